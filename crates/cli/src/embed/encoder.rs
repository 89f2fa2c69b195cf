//! An encoder from a model's files: its program on the CPU, and its tokenizer.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use sha2::{Digest, Sha256};
use thane_engine::embed::{Document, Embedder, Limits, shorten};
use thane_engine::text::{EncodeOptions, Surroundings, Tokenizer};
use thane_mil::backend::Backend;
use thane_models::checkpoint::Checkpoint;
use thane_models::{EncoderInfo, EncoderOptions};

use super::journal::hex;
use crate::app::App;
use crate::exit::{Code, Failure};
use crate::hub;
use crate::language::Parts;
use crate::model::{self, NumericsFlag};

/// How an encoder is run.
pub struct Run {
    pub numerics: NumericsFlag,
    pub threads: Option<u16>,
    pub batch_tokens: usize,
}

/// A model that turns texts into vectors.
pub struct Encoder {
    /// As the user would ask for it again.
    pub name: String,
    pub path: PathBuf,
    pub info: EncoderInfo,
    pub embedder: Embedder,
    tokenizer: Tokenizer,
    around: Surroundings,
}

/// What is embedded in one pass.
#[derive(Clone, Debug)]
pub enum Tokens {
    Text(Vec<u32>),
    Chunks(Document),
}

impl Tokens {
    pub fn len(&self) -> usize {
        match self {
            Self::Text(tokens) => tokens.len(),
            Self::Chunks(document) => document.tokens().len(),
        }
    }
}

/// Find a model, fetching it where it must be fetched, and make it ready.
pub fn open(spec: &str, options: &EncoderOptions, run: &Run, app: &App) -> Result<Encoder, Failure> {
    let usage = |e: anyhow::Error| Failure::new(Code::Usage, e);
    let hub::ModelFiles { name, path, .. } = hub::resolve(spec, &app.hub)?;
    app.output.explain(&format!("reading {}", path.display()));
    if model::is_package(&path) {
        let error = anyhow::anyhow!("{} is a package, a checkpoint is due", path.display());
        return Err(usage(error).remedy("the checkpoint that it was made of"));
    }
    let checkpoint = Checkpoint::open(&path).map_err(|e| usage(e.into()))?;
    let encoder = thane_models::build_encoder(&checkpoint, options).map_err(|e| model::unusable(&path, e))?;
    let info = encoder.info;
    let mut tokenizer =
        tokenizer(&checkpoint, info.vocab_size).map_err(|e| usage(e.context(path.display().to_string())))?;
    if info.lower_case {
        tokenizer.lower_case();
    }
    let around = tokenizer.surroundings().map_err(|e| usage(e.into()))?;
    let program = model::compile(encoder.program, &path, app)?;
    let other = |e: anyhow::Error| Failure::new(Code::Other, e);
    let executable = model::cpu(run.numerics, run.threads).load(&program).map_err(|e| other(e.into()))?;
    let instance = executable.instantiate().map_err(|e| other(e.into()))?;
    let limits = Limits { max_tokens: info.max_tokens, batch_tokens: run.batch_tokens };
    let embedder = Embedder::new(instance, info.dim, limits);
    Ok(Encoder { name, path, info, embedder, tokenizer, around })
}

fn tokenizer(checkpoint: &Checkpoint, n_vocab: usize) -> anyhow::Result<Tokenizer> {
    let parts = Parts::of(checkpoint, n_vocab)?.context("it has no tokenizer: no tokenizer.json")?;
    Ok(parts.language()?.tokenizer)
}

impl Encoder {
    /// The tokens of a text, with those that belong around it; with `truncate` no more than the model takes. Whether there
    /// were more.
    pub fn text(&self, text: &str, truncate: bool) -> anyhow::Result<(Tokens, bool)> {
        let mut ids = self.tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: true })?;
        let is_cut = truncate && shorten(&mut ids, self.info.max_tokens, self.around.after.len());
        Ok((Tokens::Text(ids), is_cut))
    }

    /// The same of a document's chunks, which the model's separator joins.
    pub fn chunks(&self, chunks: &[String], truncate: bool) -> anyhow::Result<(Tokens, bool)> {
        let separator = self
            .tokenizer
            .sep()
            .context("the tokenizer has no separator (sep_token in tokenizer_config.json), which joins chunks")?;
        let options = EncodeOptions { add_special: false, parse_special: true };
        let mut pieces = Vec::with_capacity(chunks.len());
        for (chunk, number) in chunks.iter().zip(1..) {
            let ids = self.tokenizer.encode(chunk, options)?;
            anyhow::ensure!(
                !ids.contains(&separator),
                "chunk {number} holds the separator that joins chunks, token {separator}; take it out"
            );
            pieces.push(ids);
        }
        let mut document = Document::join(&pieces, separator, &self.around);
        let is_cut = truncate && document.shorten(self.info.max_tokens, &self.around);
        Ok((Tokens::Chunks(document), is_cut))
    }

    /// What tells these files from others without reading them: names, lengths and times.
    pub fn fingerprint(&self) -> anyhow::Result<String> {
        let mut sha = Sha256::new();
        let mut files = Vec::new();
        walk(&self.path, &mut files).with_context(|| self.path.display().to_string())?;
        files.sort();
        for (path, len, time) in files {
            sha.update(format!("{} {len} {time}\n", path.display()));
        }
        Ok(hex(sha))
    }
}

fn walk(path: &Path, files: &mut Vec<(PathBuf, u64, u128)>) -> std::io::Result<()> {
    let metadata = path.metadata()?;
    if metadata.is_dir() {
        return path.read_dir()?.try_for_each(|entry| walk(&entry?.path(), files));
    }
    let time = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    files.push((path.to_owned(), metadata.len(), time.as_nanos()));
    Ok(())
}
