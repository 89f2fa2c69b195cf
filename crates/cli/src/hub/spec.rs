//! What the user typed: a path, a model on the Hub, or a name of the catalogue.

use std::path::{Path, PathBuf};

use super::catalogue::Entry;
use super::error::HubError;

/// A model as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    Path(PathBuf),
    Hub(RepoSpec),
    Name(String),
}

/// `hf:org/name[/file][@revision]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoSpec {
    /// `org/name`.
    pub repo: String,
    pub file: Option<String>,
    /// A branch, tag or commit; `main` unless named.
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
    /// A name of the catalogue wins over a file of that name: write `./name` for the file.
    pub fn parse(text: &str, catalogue: &[Entry]) -> Result<Self, HubError> {
        if let Some(rest) = text.strip_prefix("hf:") {
            return RepoSpec::parse(rest.strip_prefix("//").unwrap_or(rest)).map(Self::Hub);
        }
        if catalogue.iter().any(|entry| entry.name == text) {
            return Ok(Self::Name(text.to_owned()));
        }
        let path = PathBuf::from(text);
        if path.exists() {
            return Ok(Self::Path(path));
        }
        if looks_like_path(text) {
            return Err(HubError::NoSuchPath { path });
        }
        let known: Vec<String> = catalogue.iter().map(|entry| entry.name.clone()).collect();
        let near = known
            .iter()
            .filter(|name| is_near(text, name))
            .cloned()
            .collect();
        Err(HubError::UnknownName {
            name: text.to_owned(),
            near,
            known,
        })
    }
}

impl RepoSpec {
    /// What follows `hf:`.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let bad = |why: &str| HubError::BadSpec {
            spec: format!("hf:{text}"),
            why: why.to_owned(),
        };
        let (place, revision) = text.split_once('@').unwrap_or((text, "main"));
        let mut parts = place.splitn(3, '/');
        let (Some(org), Some(name)) = (parts.next(), parts.next()) else {
            return Err(bad(
                "it wants an organisation and a name, as in hf:org/name",
            ));
        };
        let file = parts.next().filter(|file| !file.is_empty());
        if !is_repo_part(org) || !is_repo_part(name) {
            return Err(bad(
                "organisation and name are letters, digits, `-`, `_` and `.`",
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
    // `--` separates organisation and name in the cache's folder names, so the Hub allows it in
    // neither.
    !text.is_empty()
        && text.chars().all(plain)
        && !text.starts_with('.')
        && !text.contains("--")
        && !text.contains("..")
}

/// Whether a relative path stays where it is put: names come from servers too.
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
        || matches!(extension, Some("gguf" | "safetensors"))
}

/// One is within the other, or a third of the letters are off at most.
pub fn is_near(typed: &str, name: &str) -> bool {
    let typed = typed.to_ascii_lowercase();
    let stem = name.split('-').next().unwrap_or(name);
    typed.len() >= 3 && (name.contains(&typed) || typed.contains(stem))
        || [name, stem]
            .iter()
            .any(|name| distance(&typed, name) * 3 <= name.len())
}

/// Edits from one text to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::catalogue;

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
    fn near_names_are_offered() {
        let near = |text: &str| match Spec::parse(text, &catalogue::builtin()) {
            Err(HubError::UnknownName { near, .. }) => near.join(" "),
            other => panic!("{other:?}"),
        };
        assert_eq!(near("smolm2-135m"), "smollm2-135m");
        assert_eq!(near("gemma3"), "gemma3-270m");
        assert_eq!(near("smolm"), "smollm2-135m");
        assert_eq!(near("Gemma3-1b"), "gemma3-270m");
        assert_eq!(near("zzz"), "");
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
