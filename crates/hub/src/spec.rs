//! Parses how a model is named: a path, a repository of the Hub, or a name of the catalog.

use std::path::{Path, PathBuf};

use crate::catalog::Entry;
use crate::error::HubError;
use crate::known::{HUB_NAMES, HubName, suggested};
use crate::similar::is_similar;

/// How a model is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// A file or folder that exists.
    Path(PathBuf),
    /// A repository of the Hub, or one file of it.
    Hub(RepoSpec),
    /// A name of the catalog.
    Name(String),
}

/// A repository of the Hub, written `hf:org/name[/file][@revision]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoSpec {
    /// `org/name`.
    pub repo: String,
    /// One file of the repository; `None` for the whole model.
    pub file: Option<String>,
    /// A branch, tag or commit; `main` by default.
    pub revision: String,
}

impl std::fmt::Display for RepoSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

impl Spec {
    /// Parses `text`. A name of the catalog wins over a file with the same name: write `./name` for
    /// the file. A file wins over a name that stands for a repository of the Hub.
    pub fn parse(text: &str, catalog: &[Entry]) -> Result<Self, HubError> {
        if let Some(rest) = text.strip_prefix("hf:") {
            return RepoSpec::parse(rest.strip_prefix("//").unwrap_or(rest)).map(Self::Hub);
        }
        if catalog.iter().any(|entry| entry.name == text) {
            return Ok(Self::Name(text.to_owned()));
        }
        let path = PathBuf::from(text);
        // A link that leads nowhere is a path too.
        if path.symlink_metadata().is_ok() {
            return Ok(Self::Path(path));
        }
        if let Some(named) = HUB_NAMES.iter().find(|named| named.name == text) {
            return Ok(Self::Hub(named.spec()));
        }
        if looks_like_path(text) {
            return Err(HubError::NoSuchPath { path });
        }
        let hub_names = HUB_NAMES.iter().map(|named| named.name.to_owned());
        let names = catalog.iter().map(|entry| entry.name.clone());
        let known: Vec<String> = names.chain(hub_names).collect();
        let similar = known
            .iter()
            .filter(|name| is_similar(text, name))
            .cloned()
            .collect();
        Err(HubError::UnknownName {
            name: text.to_owned(),
            similar,
            known,
            repos: suggested(text),
        })
    }
}

impl RepoSpec {
    /// Parses the text that follows `hf:`.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let bad = |why: &str| HubError::BadSpec {
            spec: format!("hf:{text}"),
            why: why.to_owned(),
        };
        let (place, revision) = text.split_once('@').unwrap_or((text, "main"));
        let mut parts = place.splitn(3, '/');
        let (Some(org), Some(name)) = (parts.next(), parts.next()) else {
            return Err(bad(
                "expected an organization and a name, as in hf:org/name",
            ));
        };
        let file = parts.next().filter(|file| !file.is_empty());
        if !is_repo_part(org) || !is_repo_part(name) {
            return Err(bad(
                "organization and name may only have letters, digits, `-`, `_` and `.`",
            ));
        }
        if file.is_some_and(|file| !is_inside(file)) || !is_inside(revision) {
            return Err(bad("file and revision may not leave their folder"));
        }
        Ok(Self {
            repo: format!("{org}/{name}"),
            file: file.map(str::to_owned),
            revision: revision.to_owned(),
        })
    }
}

fn is_repo_part(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    // `--` separates organization and name in the folder names of the cache, so the Hub forbids it
    // in both.
    !text.is_empty()
        && text.chars().all(plain)
        && !text.starts_with('.')
        && !text.contains("--")
        && !text.contains("..")
}

/// Whether a relative path stays inside its folder: file names also come from servers.
pub fn is_inside(path: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(plain)
        && !path.contains(['\\', '\0', ':', '?', '#', '%'])
        && !path.chars().any(char::is_control)
}

fn looks_like_path(text: &str) -> bool {
    let extension = Path::new(text).extension().and_then(|e| e.to_str());
    text.contains(['/', '\\'])
        || text.starts_with(['.', '~'])
        || matches!(
            extension,
            Some(
                "gguf"
                    | "safetensors"
                    | "mil"
                    | "mlpackage"
                    | "mlmodelc"
                    | "json"
                    | "jsonl"
                    | "csv"
                    | "parquet"
                    | "npy"
                    | "txt"
                    | "md"
                    | "onnx"
                    | "bin"
                    | "pt"
                    | "pth"
                    | "zip"
            )
        )
}

impl HubName {
    /// The repository that the name stands for.
    pub fn spec(&self) -> RepoSpec {
        RepoSpec {
            repo: self.repo.to_owned(),
            file: None,
            revision: "main".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn hub_names() {
        let repo = |text: &str| {
            RepoSpec::parse(text)
                .map(|r| (r.repo, r.file, r.revision))
                .ok()
        };
        let want = |repo: &str, file: Option<&str>, revision: &str| {
            Some((
                repo.to_owned(),
                file.map(str::to_owned),
                revision.to_owned(),
            ))
        };
        assert_eq!(repo("a/b"), want("a/b", None, "main"));
        assert_eq!(repo("a/b/"), want("a/b", None, "main"));
        assert_eq!(repo("a/b/c/d.gguf"), want("a/b", Some("c/d.gguf"), "main"));
        assert_eq!(repo("a/b@refs/pr/1"), want("a/b", None, "refs/pr/1"));
        assert_eq!(repo("a/b/c.gguf@v1"), want("a/b", Some("c.gguf"), "v1"));
        for bad in [
            "", "a", "a/", "/b", "a/..", "../b", "a/b/../c", "a/b/c//d", "a/b@", "a/b@../x",
            "a b/c", "a--b/c", "a/b/c\\d",
        ] {
            assert_eq!(repo(bad), None, "{bad}");
        }
    }

    #[test]
    fn similar_names_are_suggested() {
        let similar = |text: &str| match Spec::parse(text, &catalog::builtin()) {
            Err(HubError::UnknownName { similar, .. }) => similar.join(" "),
            other => panic!("{other:?}"),
        };
        assert_eq!(similar("smolm2-135m"), "smollm2-135m");
        assert_eq!(similar("gemma3"), "gemma3-270m");
        assert_eq!(similar("smolm"), "smollm2-135m");
        assert_eq!(similar("Gemma3-1b"), "gemma3-270m");
        assert_eq!(similar("zzz"), "");
    }

    #[test]
    fn names_of_the_hub_are_repositories() {
        let spec = Spec::parse("qwen3-0.6b", &catalog::builtin());
        assert_eq!(spec.unwrap(), Spec::Hub(HUB_NAMES[0].spec()));
        match Spec::parse("llama3", &catalog::builtin()) {
            Err(HubError::UnknownName { repos, known, .. }) => {
                assert_eq!(repos[0], "meta-llama/Llama-3.2-1B-Instruct");
                assert!(known.contains(&"ms-marco-minilm".to_owned()));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_path_that_is_not_there_is_no_name() {
        for text in ["./none", "none/here", "none.gguf", "~/none"] {
            assert!(
                matches!(Spec::parse(text, &[]), Err(HubError::NoSuchPath { .. })),
                "{text}"
            );
        }
    }
}
