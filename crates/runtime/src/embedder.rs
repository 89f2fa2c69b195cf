//! Embeds texts: an embedding model on a backend, with its tokenizer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_engine::chain::Rows;
use thane_engine::embed::output::{self, Kept};
use thane_engine::embed::{self, Document, Limits, Lookup, PositionRows, Sequence, Watch, shorten};
use thane_engine::text::{EncodeOptions, SpecialTokens, Tokenizer};
use thane_mil::backend::Backend;
use thane_mil::budget::Budget;
use thane_mil::program::Program;
use thane_models::checkpoint::Checkpoint;
use thane_models::{EncoderInfo, EncoderOptions, Encoding, Pooling, Poolings};

use crate::bundle_reader::Bundle;
use crate::contract::encoding_name;
use crate::error::{ContractError, LanguageError, RuntimeError};
use crate::files::fingerprint;
use crate::language::LanguageData;
use crate::observer::{Note, Observer};
use crate::opened::{Files, Model};
use crate::passes::compile;
use crate::prompt::Prompt;
use crate::tables::Tables;

/// How an embedding model is run.
#[derive(Clone, Debug)]
pub struct EmbedOptions {
    /// How the vectors of tokens become one; `None` for what the model's files say.
    pub pooling: Option<Poolings>,
    /// What has a vector: texts, chunks or tokens.
    pub encoding: Encoding,
    /// What also has vectors, if the pooling allows it: functions of the same program. Packages
    /// have what they were written with.
    pub more: Vec<Encoding>,
    /// Most tokens of a text; `None` for what the model was made for.
    pub max_tokens: Option<usize>,
    /// Most tokens of a call of the program, padding included.
    pub batch_tokens: usize,
}

impl EmbedOptions {
    /// 1,024: of 400 texts of 1 to 180 words (all-MiniLM-L6-v2, 2 threads of an EPYC, November
    /// 2026, a busy machine) the CPU time was 10.0 s at 512, 10.7 s at 1,024, 14.1 s at 2,048,
    /// 44.9 s at 16,384, and 16.5 s one by one; longer texts want the larger of the first two.
    pub const BATCH_TOKENS: usize = 1024;
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self {
            pooling: None,
            encoding: Encoding::Text,
            more: Vec::new(),
            max_tokens: None,
            batch_tokens: Self::BATCH_TOKENS,
        }
    }
}

/// A running embedding model with its tokenizer.
pub struct Embedder {
    /// The name by which the user can ask for this model again.
    pub name: String,
    /// The file or folder.
    pub path: PathBuf,
    /// Facts about the model.
    pub info: EncoderInfo,
    /// Embeds tokens.
    pub engine: embed::Embedder,
    /// What has vectors.
    pub encodings: Vec<Encoding>,
    text: Arc<TextEncoder>,
}

/// The tokenizer of an embedding model, and the tokens that it puts around a text.
pub struct TextEncoder {
    tokenizer: Tokenizer,
    around: SpecialTokens,
    /// Whether the tokens of a prompt are not pooled.
    skips_prompt: bool,
    /// Whether a maximum of tokens is part of the pooling.
    pools_max: bool,
}

/// A prompt that precedes texts, and how many tokens at the beginning of a text are not pooled
/// because of it.
#[derive(Clone, Debug, Default)]
pub struct Prefix {
    /// The prompt.
    pub text: String,
    n_skipped: usize,
    /// Whether a text must have tokens behind those.
    needs_more: bool,
}

impl Prefix {
    /// The tokens of this prompt and a text behind it.
    pub fn before(&self, tokens: Vec<u32>) -> Result<Sequence, RuntimeError> {
        if self.needs_more && tokens.len() <= self.n_skipped {
            return Err(RuntimeError::OnlyPrompt);
        }
        Ok(Sequence {
            tokens,
            n_skipped: self.n_skipped,
        })
    }
}

/// The tokens of what is embedded in one pass.
#[derive(Clone, Debug)]
pub enum Tokens {
    /// A text.
    Text(Sequence),
    /// The chunks of a document.
    Chunks(Document),
}

impl Tokens {
    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        match self {
            Self::Text(sequence) => sequence.tokens.len(),
            Self::Chunks(document) => document.tokens().len(),
        }
    }
}

impl TextEncoder {
    /// Reads the tokenizer of a checkpoint, within a memory limit, against which it counts as long
    /// as it is there.
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        info: &EncoderInfo,
        budget: &Budget,
    ) -> Result<Self, RuntimeError> {
        let data = LanguageData::from_checkpoint(checkpoint, info.vocab_size, budget);
        data.and_then(|data| {
            data.ok_or(LanguageError::NoTokenizer(
                "it has no tokenizer: no tokenizer.json",
            ))
        })
        .and_then(|data| Self::new(data, info, budget))
        .map_err(|e| RuntimeError::language(&checkpoint.path, e))
    }

    fn new(data: LanguageData, info: &EncoderInfo, budget: &Budget) -> Result<Self, LanguageError> {
        let mut tokenizer = data.tokenizer.into_tokenizer(budget)?;
        if info.lower_case {
            tokenizer.lower_case();
        }
        tokenizer.end_texts()?;
        let around = tokenizer.special_tokens()?;
        Ok(Self {
            tokenizer,
            around,
            skips_prompt: !info.include_prompt,
            pools_max: info.pooling.modes().contains(&Pooling::Max),
        })
    }

    /// A prompt that precedes texts of at most `max_tokens` tokens.
    ///
    /// Where the model leaves the prompt out of its pooling, the prompt has as many tokens as the
    /// tokenizer makes of the prompt alone, without a control token at the end. Source:
    /// `Transformer._get_prompt_length` of sentence-transformers 6.2.
    pub fn prefix(&self, text: String, max_tokens: usize) -> Result<Prefix, RuntimeError> {
        let mut n_skipped = 0;
        if self.skips_prompt && !text.is_empty() {
            let mut tokens = self.encode(&text)?;
            shorten(&mut tokens, max_tokens, &self.around, self.tokenizer.cut());
            let ends = tokens.last().is_some_and(|id| self.tokenizer.is_named(*id));
            n_skipped = tokens.len() - usize::from(ends);
        }
        Ok(Prefix {
            text,
            n_skipped,
            needs_more: n_skipped > 0 && self.pools_max,
        })
    }

    /// The tokens of a text behind a prompt.
    pub fn encode_behind(&self, prefix: &Prefix, text: &str) -> Result<Sequence, RuntimeError> {
        let tokens = self.encode(&[prefix.text.as_str(), text].concat())?;
        prefix.before(tokens)
    }

    /// The tokens of a text, with those that the tokenizer puts around it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RuntimeError> {
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        Ok(self.tokenizer.encode(text, options)?)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens that the tokenizer puts around a text.
    pub fn around(&self) -> &SpecialTokens {
        &self.around
    }

    /// A document of chunks, joined by the model's separator. Ends with
    /// `TextError::Interrupted` if `is_stopped`.
    pub fn document(
        &self,
        chunks: &[String],
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Document, RuntimeError> {
        let separator = self.tokenizer.sep().ok_or(RuntimeError::NoSeparator)?;
        let options = EncodeOptions {
            add_special: false,
            parse_special: true,
        };
        let mut pieces = Vec::with_capacity(chunks.len());
        for (chunk, number) in chunks.iter().zip(1..) {
            let ids = self.tokenizer.encode_until(chunk, options, is_stopped)?;
            if ids.contains(&separator) {
                return Err(RuntimeError::SeparatorInChunk { number, separator });
            }
            pieces.push(ids);
        }
        Ok(Document::join(&pieces, separator, &self.around))
    }
}

impl Model {
    /// Starts the model as an embedding model with default options on a backend.
    pub fn embedder(self, backend: &dyn Backend) -> Result<Embedder, RuntimeError> {
        self.embedding_model(&EmbedOptions::default(), backend, &())
    }

    /// Starts the model as an embedding model on a backend.
    pub fn embedding_model(
        self,
        options: &EmbedOptions,
        backend: &dyn Backend,
        observer: &dyn Observer,
    ) -> Result<Embedder, RuntimeError> {
        let embedder = match &self.files {
            Files::Checkpoint(checkpoint) => {
                Embedder::from_checkpoint(checkpoint, options, backend, observer)?
            }
            Files::Foreign(_) => return Err(RuntimeError::GeneratesOnly { path: self.path }),
            Files::Package | Files::Bundle => {
                Embedder::from_packages(&self.path, options, backend, observer)?
            }
        };
        Ok(Embedder {
            name: self.name,
            ..embedder
        })
    }
}

impl Embedder {
    /// Starts a checkpoint, in the portable form. The name of the result is empty.
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        options: &EmbedOptions,
        backend: &dyn Backend,
        observer: &dyn Observer,
    ) -> Result<Self, RuntimeError> {
        let path = &checkpoint.path;
        let build = |encoding| {
            let options = EncoderOptions {
                pooling: options.pooling,
                encoding,
                ..EncoderOptions::default()
            };
            thane_models::build_encoder(checkpoint, &options)
                .map_err(|e| RuntimeError::model(path, e))
        };
        let mut encodings = vec![options.encoding];
        let mut encoder = build(options.encoding)?;
        for note in std::mem::take(&mut encoder.notes) {
            observer.note(&Note::Checkpoint(note));
        }
        if encoder.info.pooling.modes().len() == 1 {
            encodings.extend(&options.more);
        }
        if encodings.len() > 1 {
            let more = options.more.iter().map(|encoding| build(*encoding));
            let more = more.collect::<Result<Vec<_>, _>>()?;
            let programs = more.iter().map(|encoder| &encoder.program);
            let programs = [&encoder.program].into_iter().chain(programs);
            let functions = programs.flat_map(|program| program.functions().iter().cloned());
            encoder.program = Program::new(functions.collect());
        }
        let text = TextEncoder::from_checkpoint(checkpoint, &encoder.info, &backend.budget())?;
        let program = compile(encoder.program, path, observer)?;
        Ok(Self {
            name: String::new(),
            path: path.clone(),
            engine: start(&program, &encoder.info, options, backend)?,
            info: encoder.info,
            encodings,
            text: Arc::new(text),
        })
    }

    /// Starts a package or a folder of packages. The name of the result is empty.
    pub(crate) fn from_packages(
        path: &Path,
        options: &EmbedOptions,
        backend: &dyn Backend,
        observer: &dyn Observer,
    ) -> Result<Self, RuntimeError> {
        let bundle = Bundle::open(path)?;
        let info = bundle.facts.info()?;
        if options.pooling.is_some_and(|p| p != info.pooling)
            || bundle.facts.encoding != encoding_name(options.encoding)
        {
            return Err(RuntimeError::Vectors {
                path: path.to_owned(),
                encoding: bundle.facts.encoding,
                pooling: bundle.facts.pooling,
            });
        }
        let text = bundle
            .language
            .ok_or(LanguageError::NoTokenizer(
                "the package was made of a checkpoint without a tokenizer",
            ))
            .and_then(|data| TextEncoder::new(data, &info, &backend.budget()))
            .map_err(|e| RuntimeError::language(path, e))?;
        let lookup = lookup(&bundle.program, &bundle.tables, &info).map_err(|what| {
            ContractError::Model {
                path: path.to_owned(),
                what,
            }
        })?;
        let program = compile(bundle.program, path, observer)?;
        let mut engine = start(&program, &info, options, backend)?
            .in_buckets(bundle.facts.buckets, bundle.facts.flexible);
        if let Some(lookup) = lookup {
            engine = engine.with_lookup(lookup);
        }
        Ok(Self {
            name: String::new(),
            path: path.to_owned(),
            info,
            engine,
            encodings: vec![options.encoding],
            text: Arc::new(text),
        })
    }

    /// Most tokens of a text.
    pub fn max_tokens(&self) -> usize {
        self.engine.limits().max_tokens
    }

    /// The tokenizer, for another thread.
    pub fn text(&self) -> Arc<TextEncoder> {
        Arc::clone(&self.text)
    }

    /// One vector for each text, in order, of as many elements as the model gives by default.
    /// `prompt` names the prompt to put before each text: `None` for the model's default, an empty
    /// name for none.
    ///
    /// A text that is longer than [`Self::max_tokens`] is an error.
    pub fn embed(
        &mut self,
        texts: &[&str],
        prompt: Option<&str>,
    ) -> Result<Vec<Vec<f32>>, RuntimeError> {
        let prompt = Prompt::choose(prompt, &self.info)?.text;
        let prefix = self.text.prefix(prompt, self.max_tokens())?;
        let sequences = texts
            .iter()
            .map(|text| self.text.encode_behind(&prefix, text))
            .collect::<Result<Vec<_>, _>>()?;
        let rows = self.embed_all(&sequences)?;
        Ok(self.kept(rows))
    }

    /// The rows of vectors with the elements that the model gives by default.
    fn kept(&self, rows: Vec<f32>) -> Vec<Vec<f32>> {
        let kept = kept_by_default(&self.info);
        let rows = output::shorten(rows, self.engine.dim(), kept);
        rows.chunks_exact(kept.dim).map(<[f32]>::to_vec).collect()
    }

    /// The vector of one text that was tokenized, with all elements.
    pub fn embed_tokens(&mut self, tokens: Vec<u32>) -> Result<Vec<f32>, RuntimeError> {
        self.embed_all(&[tokens.into()])
    }

    /// The vectors of sequences with all elements, row by row.
    fn embed_all(&mut self, sequences: &[Sequence]) -> Result<Vec<f32>, RuntimeError> {
        let mut watch = Watch {
            interrupted: &|| false,
            progress: &mut |_| {},
        };
        let rows = self.engine.texts(sequences, &mut watch)?;
        Ok(rows.unwrap_or_default())
    }

    /// The vectors of the chunks of one document, of as many elements as the model gives by
    /// default.
    pub fn embed_chunks(&mut self, chunks: &[String]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        let rows = self.whole_chunks(chunks)?;
        Ok(self.kept(rows))
    }

    /// The vectors of the chunks of one document with all elements, row by row.
    pub(crate) fn whole_chunks(&mut self, chunks: &[String]) -> Result<Vec<f32>, RuntimeError> {
        if chunks.is_empty() {
            return Ok(Vec::new());
        }
        let document = self.text.document(chunks, &|| false)?;
        Ok(self.engine.chunks(&document)?)
    }

    /// The tokens of a text behind a prompt, and whether they were cut: with `truncate`, to
    /// [`Self::max_tokens`].
    pub fn tokenize(
        &self,
        prefix: &Prefix,
        text: &str,
        truncate: bool,
    ) -> Result<(Tokens, bool), RuntimeError> {
        let mut sequence = self.text.encode_behind(prefix, text)?;
        let (most, cut) = (self.max_tokens(), self.text.tokenizer.cut());
        let is_cut = truncate && shorten(&mut sequence.tokens, most, &self.text.around, cut);
        Ok((Tokens::Text(sequence), is_cut))
    }

    /// At most `most` tokens of a text, and whether it was cut. The tokens around the text stay.
    pub fn tokenize_within(
        &self,
        text: &str,
        most: usize,
    ) -> Result<(Vec<u32>, bool), RuntimeError> {
        let mut ids = self.text.encode(text)?;
        let cut = self.text.tokenizer.cut();
        let is_cut = shorten(&mut ids, most, &self.text.around, cut);
        Ok((ids, is_cut))
    }

    /// The tokens of a document's chunks, joined by the model's separator, and whether they were
    /// cut.
    pub fn tokenize_chunks(
        &self,
        chunks: &[String],
        truncate: bool,
    ) -> Result<(Tokens, bool), RuntimeError> {
        let mut document = self.text.document(chunks, &|| false)?;
        let cut = self.text.tokenizer.cut();
        let is_cut = truncate && document.shorten(self.max_tokens(), &self.text.around, cut);
        Ok((Tokens::Chunks(document), is_cut))
    }

    /// A hash of the names, lengths and modification times of the model's files, which identifies
    /// the files without reading them.
    pub fn fingerprint(&self) -> Result<String, RuntimeError> {
        fingerprint(&self.path)
    }
}

/// The tables that the functions of a program need; an error in words if they do not fit.
fn lookup(
    program: &Program,
    tables: &Tables,
    info: &EncoderInfo,
) -> Result<Option<Lookup>, String> {
    let table = |input: &str, n_rows: usize| {
        let features = program.functions().iter().flat_map(|f| {
            let inputs = f.body().inputs.iter().map(move |id| f.value(*id));
            let types = inputs.filter(move |v| v.name == input);
            let types = types.filter_map(|v| v.ty.tensor());
            types.map(|ty| ty.shape.get(1).and_then(|dim| dim.known()))
        });
        let features: Vec<Option<usize>> = features.collect();
        if features.is_empty() {
            return Ok(None);
        }
        let table = tables.get(input);
        let table = table.ok_or(format!(
            "expected a table for the input `{input}`, found none"
        ))?;
        let found = (table.n_rows(), Some(table.n_columns()));
        if found.0 < n_rows || features.iter().any(|n| *n != found.1) {
            return Err(format!(
                "the table for the input `{input}`: expected {n_rows} rows of {} columns, found {} \
                 of {}",
                features[0].unwrap_or(0),
                found.0,
                table.n_columns()
            ));
        }
        Ok(Some(table.clone()))
    };
    let Some(tokens) = table("token_embedding", info.vocab_size)? else {
        return Ok(None);
    };
    let padding = info.padding_token.unwrap_or(0);
    let n_positions = info.n_positions.saturating_add(padding as usize + 1);
    let positions = table("position_embedding", n_positions)?;
    if positions.is_some() && info.padding_token.is_none() {
        return Err("expected `padding_token`, because functions take `position_embedding`".into());
    }
    let positions = positions.map(|rows| PositionRows { rows, padding });
    Ok(Some(Lookup { tokens, positions }))
}

fn start(
    program: &Program,
    info: &EncoderInfo,
    options: &EmbedOptions,
    backend: &dyn Backend,
) -> Result<embed::Embedder, RuntimeError> {
    let instance = backend
        .load(program)?
        .instantiate()
        .map_err(|e| RuntimeError::Run(Box::new(e)))?;
    let max_tokens = options.max_tokens.unwrap_or(info.max_tokens);
    if max_tokens == 0 || max_tokens > info.n_positions {
        return Err(RuntimeError::MaxTokens {
            asked: max_tokens,
            positions: info.n_positions,
        });
    }
    let limits = Limits {
        max_tokens,
        batch_tokens: options.batch_tokens,
    };
    let engine = embed::Embedder::new(instance, info.dim, limits);
    Ok(engine.with_pooling_mask(!info.include_prompt))
}

/// The elements of a vector that a model gives unless the caller says otherwise. Unlike those that
/// a caller asks for, they are not brought to length 1 again, as in sentence-transformers.
pub fn kept_by_default(info: &EncoderInfo) -> Kept {
    Kept {
        dim: info.truncate_dim.unwrap_or(info.dim),
        normalize: false,
    }
}
