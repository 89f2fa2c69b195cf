//! Models that are packages in a repository: which files they need.
//!
//! | the repository has | its files are |
//! |---|---|
//! | [`PUBLICATION`] | those that it lists |
//! | a manifest of a folder of packages | those that it lists |
//! | the description of another project's bundle | all but pictures, texts and archives |
//! | one package | those of the package |
//!
//! A bundle is all or nothing: [`place`] gives it a folder of its own when every file is there, and
//! [`compare`] says whether that folder still has what it should.

pub mod compare;
mod fetch;
pub mod mend;
pub mod names;
pub mod place;

use serde::Deserialize;
use serde_json::Value;

use crate::disk;
use crate::download::{Download, Fetched};
use crate::error::HubError;
use crate::layout::{INDEX, WEIGHTS};
use crate::paths::check_together;
use crate::publication::{
    Format, MOST_FILES, MOST_LIST_BYTES, PUBLICATION, Publication, PublishedPackage, SIGNATURE,
    Selection, check_schema, chosen, is_below, is_wanted,
};
use crate::sign::{PublicKey, SIGNATURE_BYTES};
use crate::spec::is_inside;
use crate::store::Check;

/// The manifest of a folder of packages.
pub const MANIFEST: &str = "manifest.json";
/// The newest version of that manifest that is read.
const MANIFEST_SCHEMA: u32 = 1;
/// Files that describe a bundle of another project.
pub const DESCRIPTIONS: [&str; 2] = ["meta.yaml", "model_config.json"];
/// Endings of files that no program reads.
const NOT_READ: [&str; 12] = [
    ".md",
    ".gitattributes",
    ".gitignore",
    ".zip",
    ".tar.gz",
    ".png",
    ".jpg",
    ".jpeg",
    ".gif",
    ".svg",
    ".mp4",
    ".pdf",
];

/// A file that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Path in the repository.
    pub path: String,
    /// Length and sha256, where a list has them.
    pub known: Option<(u64, String)>,
}

/// What is needed of a bundle, and where the model is in it.
#[derive(Debug)]
pub struct Bundle {
    pub wanted: Vec<Wanted>,
    /// The folders of packages that were chosen.
    pub folders: Vec<String>,
}

/// The choices of a pull besides the name.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Packages of a bundle.
    pub selection: Selection,
    /// Who must have signed the list of files.
    pub key: Option<PublicKey>,
}

impl Asked {
    /// Refuses what only packages have, for a model that is something else.
    pub(crate) fn check_plain(&self, what: &str) -> Result<(), HubError> {
        if self.key.is_some() {
            return Err(HubError::Unsigned {
                what: what.to_owned(),
                why: "it has no signed list of files".to_owned(),
            });
        }
        match self.selection.is_default() {
            true => Ok(()),
            false => Err(HubError::NoSuchPart {
                place: what.to_owned(),
                expected: "no --buckets and no --format".to_owned(),
                found: "a model without packages".to_owned(),
            }),
        }
    }

    /// Whether all of a model is wanted, whoever published it.
    pub(crate) fn is_default(&self) -> bool {
        self.key.is_none() && self.selection.is_default()
    }
}

/// Downloads the packages of a commit; `None` if the repository has no packages, or has a
/// checkpoint too. `package` is one that was named.
pub fn pull(
    download: &Download<'_>,
    commit: &str,
    names: &[String],
    (asked, package, check): (&Asked, Option<&str>, Check),
) -> Result<Option<Fetched>, HubError> {
    let Some(bundle) = find(download, commit, names, (asked, package))? else {
        return Ok(None);
    };
    if bundle.wanted.is_empty() {
        let what = format!("{}/{}", download.what(), package.unwrap_or_default());
        let endpoint = download.hub.places.endpoint.clone();
        return Err(HubError::NotFound { what, endpoint });
    }
    if bundle.wanted.len() > MOST_FILES {
        let why = format!(
            "expected at most {MOST_FILES} files, found {}",
            bundle.wanted.len()
        );
        return Err(download.no_model(why));
    }
    let paths = bundle.wanted.iter().map(|file| file.path.as_str());
    check_together(paths).map_err(|why| HubError::BadPublication {
        place: download.what(),
        why,
    })?;
    let is_signed = asked.key.is_some();
    let check = match is_signed {
        true => Check::Bytes,
        false => check,
    };
    let bytes = fetch::all(download, commit, &bundle.wanted, (check, is_signed))?;
    let key = names::key(&asked.selection, package);
    let repo = download.repo();
    let path = place::place(download.hub, (repo, commit), (&bundle, &key), check)?;
    Ok(Some(Fetched { path, bytes }))
}

fn find(
    download: &Download<'_>,
    commit: &str,
    names: &[String],
    (asked, package): (&Asked, Option<&str>),
) -> Result<Option<Bundle>, HubError> {
    let has = |name: &str| names.iter().any(|other| other == name);
    let selection = &asked.selection;
    if has(PUBLICATION) {
        let mut bundle = published(download, commit, asked)?;
        if let Some(package) = package {
            bundle.wanted.retain(|file| is_below(&file.path, package));
            bundle.folders.retain(|folder| folder == package);
        }
        return Ok(Some(bundle));
    }
    if asked.key.is_some() {
        return Err(download.unsigned(&format!("there is no {PUBLICATION}")));
    }
    if let Some(package) = package {
        return Ok(Some(in_folder(names, package)));
    }
    if has(WEIGHTS) || has(INDEX) {
        return Ok(None);
    }
    let packages = packages(names);
    if packages.is_empty() {
        return Ok(None);
    }
    if has(MANIFEST)
        && let Some(bundle) = of_manifest(download, commit, names, selection)?
    {
        return Ok(Some(bundle));
    }
    if packages.len() > 1 && !DESCRIPTIONS.iter().any(|name| has(name)) {
        let repo = download.repo().to_owned();
        let files = packages.iter().flat_map(|p| p.forms.values()).cloned();
        return Err(HubError::Choose {
            repo,
            files: files.collect(),
        });
    }
    let chosen = chosen(&packages, selection, &download.what())?;
    let is_read = |path: &&String| {
        let lower = path.to_lowercase();
        is_inside(path) && !NOT_READ.iter().any(|end| lower.ends_with(end))
    };
    let files = names.iter().filter(is_read);
    let files = files.filter(|path| is_wanted(path, &packages, &chosen));
    Ok(Some(Bundle {
        wanted: files.map(|path| unknown(path)).collect(),
        folders: chosen
            .iter()
            .map(|(_, folder)| (*folder).to_owned())
            .collect(),
    }))
}

fn unknown(path: &str) -> Wanted {
    Wanted {
        path: path.to_owned(),
        known: None,
    }
}

/// The files of one folder.
fn in_folder(names: &[String], folder: &str) -> Bundle {
    let files = names
        .iter()
        .filter(|path| is_below(path, folder) && is_inside(path));
    Bundle {
        wanted: files.map(|path| unknown(path)).collect(),
        folders: vec![folder.to_owned()],
    }
}

/// The packages and compiled models in a list of files, those of one name as forms of one package.
fn packages(names: &[String]) -> Vec<PublishedPackage> {
    let mut packages: Vec<PublishedPackage> = Vec::new();
    for name in names.iter().filter(|name| is_inside(name)) {
        let mut parts = name.split('/').scan(0, |end, part| {
            *end += part.len() + 1;
            Some((*end - 1, Format::of_folder(part)))
        });
        let Some((end, Some(format))) = parts.find(|(_, format)| format.is_some()) else {
            continue;
        };
        let folder = &name[..end];
        if end == name.len() {
            continue;
        }
        let stem = folder.trim_end_matches(&format!(".{}", format.extension())[..]);
        let known = packages.iter_mut().find(|package| package.name == stem);
        let forms = match known {
            Some(package) => &mut package.forms,
            None => {
                packages.push(PublishedPackage {
                    name: stem.to_owned(),
                    tokens: None,
                    forms: Default::default(),
                });
                &mut packages.last_mut().expect("one was pushed").forms
            }
        };
        forms.insert(format, folder.to_owned());
    }
    packages
}

/// The files that a publication lists.
fn published(download: &Download<'_>, commit: &str, asked: &Asked) -> Result<Bundle, HubError> {
    if asked.key.is_some() {
        for name in [PUBLICATION, SIGNATURE] {
            download.remove_damaged(commit, Some(name))?;
        }
    }
    let json = download.read(commit, PUBLICATION, MOST_LIST_BYTES)?;
    if let Some(key) = &asked.key {
        let signature = download.read(commit, SIGNATURE, SIGNATURE_BYTES as u64);
        let signature = signature.map_err(|e| match e {
            HubError::NotFound { .. } => download.unsigned(&format!("there is no {SIGNATURE}")),
            HubError::TooLarge { .. } => {
                let why = format!("expected {SIGNATURE_BYTES} bytes in {SIGNATURE}, found more");
                download.unsigned(&why)
            }
            other => other,
        })?;
        if !key.verifies(&json, &signature) {
            return Err(download.unsigned("the signature is not of this key"));
        }
    }
    let place = format!("{}/{PUBLICATION}", download.what());
    of_list(&json, &place, &asked.selection)
}

/// The files that a list names, as far as they are selected, and the list itself.
fn of_list(json: &[u8], place: &str, selection: &Selection) -> Result<Bundle, HubError> {
    let list = Publication::parse(json, place)?;
    let mut bundle = selected(&list, selection, place)?;
    bundle.wanted.push(Wanted {
        path: PUBLICATION.to_owned(),
        known: Some((json.len() as u64, disk::hash_of(json))),
    });
    Ok(bundle)
}

fn selected(list: &Publication, selection: &Selection, place: &str) -> Result<Bundle, HubError> {
    let chosen = chosen(&list.packages, selection, place)?;
    let files = list.files.iter();
    let files = files.filter(|file| is_wanted(&file.path, &list.packages, &chosen));
    let wanted = files.map(|file| Wanted {
        path: file.path.clone(),
        known: Some((file.bytes, file.sha256.clone())),
    });
    Ok(Bundle {
        wanted: wanted.collect(),
        folders: chosen
            .iter()
            .map(|(_, folder)| (*folder).to_owned())
            .collect(),
    })
}

/// The manifest of a folder of packages, as far as it says which files there are.
#[derive(Deserialize)]
struct Manifest {
    packages: Vec<Entry>,
    files: Vec<crate::publication::PublishedFile>,
}

#[derive(Deserialize)]
struct Entry {
    path: String,
    tokens: Option<u64>,
}

/// The files that the manifest of a folder lists, and the list of files that each package has of
/// its own; `None` if the manifest is that of something else.
fn of_manifest(
    download: &Download<'_>,
    commit: &str,
    names: &[String],
    selection: &Selection,
) -> Result<Option<Bundle>, HubError> {
    let json = download.read(commit, MANIFEST, MOST_LIST_BYTES)?;
    let place = format!("{}/{MANIFEST}", download.what());
    let Ok(value) = serde_json::from_slice::<Value>(&json) else {
        return Ok(None);
    };
    if value["generator"].as_str().is_none() || !value["packages"].is_array() {
        return Ok(None);
    }
    check_schema(&value, MANIFEST_SCHEMA, &place)?;
    let manifest: Manifest =
        serde_json::from_value(value).map_err(|e| HubError::BadPublication {
            place: place.clone(),
            why: e.to_string(),
        })?;
    let package = |entry: Entry| PublishedPackage {
        name: entry.path.trim_end_matches(".mlpackage").to_owned(),
        tokens: entry.tokens,
        forms: [(Format::Mlpackage, entry.path)].into(),
    };
    let packages: Vec<_> = manifest.packages.into_iter().map(package).collect();
    let mut files = manifest.files;
    files.retain(|file| !file.path.ends_with("/Manifest.json"));
    let list = Publication {
        schema: 1,
        generator: String::new(),
        task: None,
        model: None,
        license: None,
        packages,
        files,
    };
    list.to_json().map_err(|error| match error {
        HubError::BadPublication { why, .. } => HubError::BadPublication { place, why },
        other => other,
    })?;
    let mut bundle = selected(&list, selection, &download.what())?;
    let own = bundle
        .folders
        .iter()
        .map(|folder| format!("{folder}/Manifest.json"));
    let own: Vec<String> = own.filter(|path| names.contains(path)).collect();
    bundle.wanted.extend(own.iter().map(|path| unknown(path)));
    bundle.wanted.push(unknown(MANIFEST));
    Ok(Some(bundle))
}
