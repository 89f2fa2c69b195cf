//! An encoder from a model's files: its program on the CPU, and its tokenizer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::Context;
use sha2::{Digest, Sha256};
use thane_cpu::Profile;
use thane_engine::embed::{Document, Embedder, Limits, Watch, shorten};
use thane_engine::text::{EncodeOptions, SpecialTokens, Tokenizer};
use thane_mil::program::Program;
use thane_models::checkpoint::Checkpoint;
use thane_models::{EncoderInfo, EncoderOptions, Encoding};

use super::journal::hex;
use super::packages as bundle;
use crate::app::App;
use crate::contract::Embeds;
use crate::exit::{Code, Failure};
use crate::language::Parts;
use crate::model::{self, NumericsFlag};

/// How an encoder is run.
pub struct Run {
    pub numerics: NumericsFlag,
    pub threads: Option<u16>,
    pub batch_tokens: usize,
    /// Most tokens of a text; none for what the model was made for.
    pub max_length: Option<usize>,
    /// What is told where the time goes.
    pub profile: Option<Arc<Profile>>,
}

/// A model that turns texts into vectors.
pub struct Encoder {
    /// As the user would ask for it again.
    pub name: String,
    pub path: PathBuf,
    pub info: EncoderInfo,
    pub embedder: Embedder,
    words: Words,
}

/// The tokenizer of an encoder.
pub struct Words {
    tokenizer: Tokenizer,
    /// The tokens that it puts around a text.
    around: SpecialTokens,
}

impl Words {
    /// That of a checkpoint.
    pub fn of_checkpoint(checkpoint: &Checkpoint, info: &EncoderInfo) -> Result<Self, Failure> {
        let usage = |e: anyhow::Error| {
            Failure::new(
                Code::Usage,
                e.context(checkpoint.path.display().to_string()),
            )
        };
        Self::new(tokenizer(checkpoint, info.vocab_size).map_err(usage)?, info)
    }

    fn new(mut tokenizer: Tokenizer, info: &EncoderInfo) -> Result<Self, Failure> {
        if info.lower_case {
            tokenizer.lower_case();
        }
        let around = tokenizer
            .special_tokens()
            .map_err(|e| Failure::new(Code::Usage, e))?;
        Ok(Self { tokenizer, around })
    }

    /// The tokens of a text, with those that belong around it.
    pub fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        Ok(self.tokenizer.encode(
            text,
            EncodeOptions {
                add_special: true,
                parse_special: true,
            },
        )?)
    }
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
pub fn open(
    spec: &str,
    options: &EncoderOptions,
    run: &Run,
    app: &App,
) -> Result<Encoder, Failure> {
    let thane_hub::ModelFiles { name, path, .. } = app.hub.resolve(spec)?;
    app.output.explain(&format!("reading {}", path.display()));
    app.output.busy("reading the model");
    let encoder = if model::is_package(&path) || bundle::is_bundle(&path) {
        of_packages(&path, options, run, app)?
    } else {
        let checkpoint = Checkpoint::open(&path).map_err(|e| Failure::new(Code::Usage, e))?;
        of_checkpoint(&checkpoint, options, run, app)?
    };
    Ok(Encoder { name, ..encoder })
}

/// The encoder that a checkpoint is.
pub fn of_checkpoint(
    checkpoint: &Checkpoint,
    options: &EncoderOptions,
    run: &Run,
    app: &App,
) -> Result<Encoder, Failure> {
    let path = &checkpoint.path;
    let encoder =
        thane_models::build_encoder(checkpoint, options).map_err(|e| model::unusable(path, e))?;
    let words = Words::of_checkpoint(checkpoint, &encoder.info)?;
    let program = model::compile(encoder.program, path, app)?;
    let embedder = embedder(&program, &encoder.info, run, app)?;
    Ok(Encoder {
        name: String::new(),
        path: path.clone(),
        info: encoder.info,
        embedder,
        words,
    })
}

/// The encoder that packages hold.
fn of_packages(
    path: &Path,
    options: &EncoderOptions,
    run: &Run,
    app: &App,
) -> Result<Encoder, Failure> {
    let usage = |e: anyhow::Error| Failure::new(Code::Usage, e.context(path.display().to_string()));
    let bundle = bundle::open(path).map_err(usage)?;
    let info = bundle::info(&bundle.facts).map_err(usage)?;
    if options.pooling.is_some_and(|p| p != info.pooling)
        || bundle.facts.encoding != encoding(options.encoding)
    {
        let Embeds {
            pooling, encoding, ..
        } = &bundle.facts;
        let error = anyhow::anyhow!(
            "the package gives vectors of {encoding}, with {pooling} pooling, and no others"
        );
        return Err(usage(error).remedy("thane embed with the checkpoint that it was made of"));
    }
    let parts = bundle
        .parts
        .context("the package was made of a checkpoint without a tokenizer")
        .map_err(usage)?;
    let words = Words::new(parts.language().map_err(usage)?.tokenizer, &info)?;
    let program = model::compile(bundle.program, path, app)?;
    let embedder = embedder(&program, &info, run, app)?
        .in_buckets(bundle.facts.buckets.clone(), bundle.facts.flexible);
    Ok(Encoder {
        name: String::new(),
        path: path.to_owned(),
        info,
        embedder,
        words,
    })
}

/// The word of a contract for what a program gives vectors of.
pub fn encoding(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Text => "text",
        Encoding::Chunks => "chunks",
        Encoding::Tokens => "tokens",
    }
}

fn embedder(
    program: &Program,
    info: &EncoderInfo,
    run: &Run,
    app: &App,
) -> Result<Embedder, Failure> {
    let cpu = model::cpu(run.numerics, run.threads, app);
    let executable = model::load(cpu, program, run.profile.as_ref())
        .map_err(|e| Failure::new(Code::Usage, e))?;
    let instance = executable
        .instantiate()
        .map_err(|e| Failure::new(Code::Usage, e))?;
    let max_tokens = run.max_length.unwrap_or(info.max_tokens);
    if max_tokens == 0 || max_tokens > info.n_positions {
        let error = anyhow::anyhow!(
            "the model has {} positions, --max-length asks for {max_tokens}",
            info.n_positions
        );
        return Err(Failure::new(Code::Usage, error)
            .remedy(format!("--max-length 1 to {}", info.n_positions)));
    }
    let limits = Limits {
        max_tokens,
        batch_tokens: run.batch_tokens,
    };
    Ok(Embedder::new(instance, info.dim, limits))
}

fn tokenizer(checkpoint: &Checkpoint, n_vocab: usize) -> anyhow::Result<Tokenizer> {
    let parts =
        Parts::of(checkpoint, n_vocab)?.context("it has no tokenizer: no tokenizer.json")?;
    Ok(parts.language()?.tokenizer)
}

impl Encoder {
    /// Most tokens of a text here.
    pub fn max_tokens(&self) -> usize {
        self.embedder.limits().max_tokens
    }

    /// The vector of one text.
    pub fn embed(&mut self, tokens: Vec<u32>) -> anyhow::Result<Vec<f32>> {
        let mut watch = Watch {
            interrupted: &|| false,
            progress: &mut |_| {},
        };
        Ok(self
            .embedder
            .texts(&[tokens], &mut watch)?
            .unwrap_or_default())
    }

    /// The tokens of a text, with those that belong around it; with `truncate` no more than the
    /// model takes. Whether there were more.
    pub fn text(&self, text: &str, truncate: bool) -> anyhow::Result<(Tokens, bool)> {
        let (ids, is_cut) = self.text_within(
            text,
            if truncate {
                self.max_tokens()
            } else {
                usize::MAX
            },
        )?;
        Ok((Tokens::Text(ids), is_cut))
    }

    /// The same, of at most `most` tokens.
    pub fn text_within(&self, text: &str, most: usize) -> anyhow::Result<(Vec<u32>, bool)> {
        let mut ids = self.words.encode(text)?;
        let is_cut = shorten(&mut ids, most, self.words.around.after.len());
        Ok((ids, is_cut))
    }

    /// The same of a document's chunks, which the model's separator joins.
    pub fn chunks(&self, chunks: &[String], truncate: bool) -> anyhow::Result<(Tokens, bool)> {
        let Words { tokenizer, around } = &self.words;
        let separator = tokenizer
            .sep()
            .context("the tokenizer has no separator (sep_token in tokenizer_config.json), which joins chunks")?;
        let options = EncodeOptions {
            add_special: false,
            parse_special: true,
        };
        let mut pieces = Vec::with_capacity(chunks.len());
        for (chunk, number) in chunks.iter().zip(1..) {
            let ids = tokenizer.encode(chunk, options)?;
            anyhow::ensure!(
                !ids.contains(&separator),
                "chunk {number} holds the separator that joins chunks, token {separator}; take it out"
            );
            pieces.push(ids);
        }
        let mut document = Document::join(&pieces, separator, around);
        let is_cut = truncate && document.shorten(self.max_tokens(), around);
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
        return path
            .read_dir()?
            .try_for_each(|entry| walk(&entry?.path(), files));
    }
    let time = metadata
        .modified()?
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    files.push((path.to_owned(), metadata.len(), time.as_nanos()));
    Ok(())
}
