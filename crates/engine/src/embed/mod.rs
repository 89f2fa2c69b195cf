//! Embeddings: computes vectors of token sequences, on any backend.
//!
//! [`Embedder`] drives the program of an encoder. [`Document`] is a text in chunks that share one
//! forward pass. [`output`] converts vectors to storage formats, and [`similarity`] compares
//! vectors.

mod batch;
mod document;
mod lookup;
pub mod output;
pub mod similarity;

pub use document::{Document, shorten};
pub use lookup::{Lookup, PositionRows};

use std::borrow::Cow;
use std::ops::Range;

use crate::text::Pair;
use thane_mil::backend::{Instance, RunError};
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

/// Why texts could not be embedded. `index` is the index of a sequence in the caller's list.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The backend reported an error.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A sequence has no tokens.
    #[error("expected at least one token, found none")]
    Empty {
        /// Index of the sequence.
        index: usize,
    },
    /// A sequence has more tokens than the model supports.
    #[error("expected at most {max_tokens} tokens, found {tokens}")]
    TooLong {
        /// Index of the sequence.
        index: usize,
        /// Number of tokens in the sequence.
        tokens: usize,
        /// Maximum number of tokens.
        max_tokens: usize,
    },
    /// A token that no vocabulary has: programs take ids of 31 bits, and count others from the end.
    #[error("expected token ids below 2147483648, found {id}: its tokenizer is another model's")]
    Token {
        /// Index of the sequence.
        index: usize,
        /// The id.
        id: u32,
    },
    /// The pool matrix of a document would be too large.
    #[error(
        "expected at most {most} for the number of chunks times the number of tokens, found \
         {chunks} chunks and {tokens} tokens"
    )]
    TooManyChunks {
        /// Number of chunks.
        chunks: usize,
        /// Number of tokens.
        tokens: usize,
        /// The limit of their product.
        most: usize,
    },
    /// A vector contains NaN or infinity.
    #[error("the vector contains numbers that are not finite")]
    NotFinite {
        /// Index of the sequence.
        index: usize,
    },
    /// An output of the program has an unexpected shape or type.
    #[error(
        "output `{name}` of the program: expected fp32 or fp16 {expected:?}, found {dtype} \
         {found:?}"
    )]
    Output {
        /// Name of the output.
        name: &'static str,
        /// Element type of the output.
        dtype: &'static str,
        /// Shape of the output.
        found: Vec<usize>,
        /// Expected shape.
        expected: Vec<usize>,
    },
}

impl EmbedError {
    /// Index of the sequence at fault, if the error concerns one.
    pub fn index(&self) -> Option<usize> {
        match self {
            Self::Empty { index }
            | Self::TooLong { index, .. }
            | Self::Token { index, .. }
            | Self::NotFinite { index } => Some(*index),
            Self::Run(_) | Self::TooManyChunks { .. } | Self::Output { .. } => None,
        }
    }
}

/// The tokens of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// The tokens, those of a prompt included.
    pub tokens: Vec<u32>,
    /// How many tokens at the beginning are not pooled, because a prompt has them. Of no effect
    /// unless the program has the input `pooling_mask`.
    pub n_skipped: usize,
}

impl From<Vec<u32>> for Sequence {
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            tokens,
            n_skipped: 0,
        }
    }
}

/// The limits of a program call.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of tokens in a sequence.
    pub max_tokens: usize,
    /// Maximum number of tokens in a call, padding included. A longer sequence gets its own call.
    pub batch_tokens: usize,
}

/// How the caller follows and interrupts the work.
pub struct Watch<'a> {
    /// Whether the caller interrupts the work; called before every call of the program, and by
    /// backends that can end within a call also there.
    pub interrupted: &'a dyn Fn() -> bool,
    /// Receives the number of sequences that each call has processed.
    pub progress: &'a mut dyn FnMut(usize),
}

/// The lengths of the program's functions.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lengths {
    /// One function takes any number of texts of any length, with an int32 mask, and returns fp32.
    Any,
    /// One function for each bucket of lengths, and possibly one of any length. Each takes one
    /// text, and all floats are fp16.
    Buckets { lengths: Vec<usize>, flexible: bool },
}

/// A running encoder.
pub struct Embedder {
    instance: Box<dyn Instance>,
    dim: usize,
    limits: Limits,
    lengths: Lengths,
    has_pooling_mask: bool,
    lookup: Option<Lookup>,
}

impl Embedder {
    /// Maximum number of elements of a pool matrix: 256 MB in fp32.
    const MAX_POOL: usize = 1 << 26;

    /// An embedder over an instance whose vectors have `dim` elements.
    pub fn new(instance: Box<dyn Instance>, dim: usize, limits: Limits) -> Self {
        Self {
            instance,
            dim,
            limits,
            lengths: Lengths::Any,
            has_pooling_mask: false,
            lookup: None,
        }
    }

    /// For a program whose functions take rows of embeddings instead of tokens.
    pub fn with_lookup(self, lookup: Lookup) -> Self {
        Self {
            lookup: Some(lookup),
            ..self
        }
    }

    /// For a program whose function `encode` has the input `pooling_mask`.
    pub fn with_pooling_mask(self, has_pooling_mask: bool) -> Self {
        Self {
            has_pooling_mask,
            ..self
        }
    }

    /// For a program with one function for each bucket of lengths, such as `encode_128`. With
    /// `flexible` the program also has the function `encode` for longer texts.
    pub fn in_buckets(mut self, mut lengths: Vec<usize>, flexible: bool) -> Self {
        lengths.sort_unstable();
        if let (false, Some(most)) = (flexible, lengths.last()) {
            self.limits.max_tokens = self.limits.max_tokens.min(*most);
        }
        self.lengths = Lengths::Buckets { lengths, flexible };
        self
    }

    /// The name of the function for a text of `n_tokens` tokens, and the number of tokens after
    /// padding.
    fn route(&self, function: &str, n_tokens: usize) -> (String, usize) {
        match &self.lengths {
            Lengths::Buckets { lengths, .. } => match lengths.iter().find(|n| **n >= n_tokens) {
                Some(n) => (format!("{function}_{n}"), *n),
                None => (function.to_owned(), n_tokens),
            },
            Lengths::Any => (function.to_owned(), n_tokens),
        }
    }

    /// Whether floats are fp16.
    fn is_half(&self) -> bool {
        self.lengths != Lengths::Any
    }

    /// Number of elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The limits of a program call.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The sequences that share a call, as indices into their lengths in tokens. Sequences of
    /// similar length share one, so that little padding is computed. A batch is computed in one
    /// call, also if its sequences are passed alone.
    pub fn batches(&self, lengths: &[usize]) -> Vec<Vec<usize>> {
        match self.lengths {
            Lengths::Any => batch::plan(lengths, self.limits.batch_tokens),
            Lengths::Buckets { .. } => (0..lengths.len()).map(|idx| vec![idx]).collect(),
        }
    }

    /// Computes one vector for each sequence, row by row in the order of `sequences`. Returns
    /// `None` if the caller interrupts. The program must have the function `encode`.
    ///
    /// Sequences of similar length share a call, in whatever order they are given, so that little
    /// padding is computed.
    pub fn texts(
        &mut self,
        sequences: &[Sequence],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<f32>>, EmbedError> {
        let tokens: Vec<&[u32]> = sequences.iter().map(|s| s.tokens.as_slice()).collect();
        let skipped: Vec<usize> = sequences.iter().map(|s| s.n_skipped).collect();
        let beside = match self.has_pooling_mask {
            true => Beside::Skipped(&skipped),
            false => Beside::Nothing,
        };
        self.rows(Output::Text, &tokens, beside, watch)
    }

    /// Computes the logits of each pair of texts, row by row in the order of `pairs`. Returns
    /// `None` if the caller interrupts. The program must have the function `classify`, and with
    /// `has_types` its input `token_type_ids`. The "vectors" of this embedder are the logits.
    pub fn logits(
        &mut self,
        pairs: &[Pair],
        has_types: bool,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<f32>>, EmbedError> {
        let sequences: Vec<&[u32]> = pairs.iter().map(|pair| pair.tokens.as_slice()).collect();
        let types: Vec<&[u32]> = pairs.iter().map(|pair| pair.types.as_slice()).collect();
        let beside = match has_types {
            true => Beside::Types(&types),
            false => Beside::Nothing,
        };
        self.rows(Output::Logits, &sequences, beside, watch)
    }

    /// A row for each sequence, in their order.
    fn rows(
        &mut self,
        output: Output,
        sequences: &[&[u32]],
        beside: Beside<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<f32>>, EmbedError> {
        let dim = self.dim;
        let mut rows = vec![0.0; sequences.len() * dim];
        let keep = &mut |batch: &[usize], _, values: &[f32]| {
            for (&idx, row) in batch.iter().zip(values.chunks_exact(dim)) {
                rows[idx * dim..(idx + 1) * dim].copy_from_slice(row);
            }
        };
        let is_whole = self.each_batch(output, sequences, beside, watch, keep)?;
        Ok(is_whole.then_some(rows))
    }

    /// Computes one vector for each token of each sequence, including tokens that the tokenizer
    /// added. Returns `None` if the caller interrupts. The program must have the function
    /// `encode_tokens`.
    pub fn tokens(
        &mut self,
        sequences: &[Vec<u32>],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<Vec<f32>>>, EmbedError> {
        let dim = self.dim;
        let mut rows = vec![Vec::new(); sequences.len()];
        let tokens: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let is_whole = self.each_batch(
            Output::Tokens,
            &tokens,
            Beside::Nothing,
            watch,
            &mut |batch, n_tokens, values| {
                for (&idx, row) in batch.iter().zip(values.chunks_exact(n_tokens * dim)) {
                    rows[idx] = row[..sequences[idx].len() * dim].to_vec();
                }
            },
        )?;
        Ok(is_whole.then_some(rows))
    }

    /// Computes one vector for each chunk of a document in one forward pass over the whole
    /// document. A chunk without tokens gets a vector of zeros. The program must have the function
    /// `encode_chunks`.
    pub fn chunks(&mut self, document: &Document) -> Result<Vec<f32>, EmbedError> {
        let (tokens, spans) = (document.tokens(), document.spans());
        self.check(&[tokens])?;
        let (n_tokens, n_chunks) = (tokens.len(), spans.len());
        if n_tokens * n_chunks > Self::MAX_POOL {
            return Err(EmbedError::TooManyChunks {
                chunks: n_chunks,
                tokens: n_tokens,
                most: Self::MAX_POOL,
            });
        }
        let mut rows = Vec::with_capacity(n_chunks * self.dim);
        // Functions of fixed length have a pool matrix with a fixed number of rows.
        for spans in spans.chunks(if self.is_half() {
            MAX_CHUNKS
        } else {
            n_chunks.max(1)
        }) {
            rows.extend(self.pooled(tokens, spans)?);
        }
        // A program that normalizes would return arbitrary values for an empty chunk.
        for (row, _) in rows
            .chunks_exact_mut(self.dim)
            .zip(spans)
            .filter(|(_, span)| span.is_empty())
        {
            row.fill(0.0);
        }
        finite(&rows)
            .then_some(rows)
            .ok_or(EmbedError::NotFinite { index: 0 })
    }

    /// Computes the vectors of some of the chunks.
    fn pooled(&mut self, tokens: &[u32], spans: &[Range<usize>]) -> Result<Vec<f32>, EmbedError> {
        let (function, width) = self.route("encode_chunks", tokens.len());
        let is_fixed = function != "encode_chunks";
        let height = if is_fixed { MAX_CHUNKS } else { spans.len() };
        self.fill(&[tokens], width)?;
        let mut matrix = vec![0.0; height * width];
        for (row, span) in matrix.chunks_exact_mut(width).zip(spans) {
            row[span.clone()].fill(1.0 / span.len().max(1) as f32);
        }
        let is_half = self.is_half();
        let pool = self.instance.input("pool_matrix", &[height, width])?;
        if is_half {
            let places = pool.as_chunks_mut::<2>().0.iter_mut();
            places
                .zip(matrix)
                .for_each(|(place, v)| *place = f64_to_f16(v.into()).to_ne_bytes());
        } else {
            pool.as_chunks_mut::<4>()
                .0
                .iter_mut()
                .zip(matrix)
                .for_each(|(place, v)| *place = v.to_ne_bytes());
        }
        self.instance.run(&function)?;
        let rows = self.output("embedding", &[height, self.dim])?;
        Ok(rows[..spans.len() * self.dim].to_vec())
    }

    /// Runs all sequences, batch by batch. Returns `false` if the caller interrupts.
    fn each_batch(
        &mut self,
        output: Output,
        sequences: &[&[u32]],
        beside: Beside<'_>,
        watch: &mut Watch<'_>,
        take: &mut Take<'_>,
    ) -> Result<bool, EmbedError> {
        self.check(sequences)?;
        let lengths: Vec<usize> = sequences.iter().map(|s| s.len()).collect();
        for batch in self.batches(&lengths) {
            let members: Vec<&[u32]> = batch.iter().map(|idx| sequences[*idx]).collect();
            let longest = members.iter().map(|s| s.len()).max().unwrap_or(0);
            let (function, n_tokens) = self.route(output.function(), longest);
            self.fill(&members, n_tokens)?;
            match beside {
                Beside::Nothing => {}
                Beside::Types(types) => {
                    let types: Vec<&[u32]> = batch.iter().map(|idx| types[*idx]).collect();
                    self.fill_ids("token_type_ids", &types, n_tokens)?;
                }
                Beside::Skipped(skipped) => {
                    let pooled = |idx: &usize| skipped[*idx].min(lengths[*idx])..lengths[*idx];
                    let pooled: Vec<_> = batch.iter().map(pooled).collect();
                    self.fill_mask("pooling_mask", &pooled, n_tokens)?;
                }
            }
            match self.instance.run_until(&function, watch.interrupted) {
                Err(RunError::Interrupted) => return Ok(false),
                run => run?,
            }
            let shape = match output {
                Output::Text | Output::Logits => vec![batch.len(), self.dim],
                Output::Tokens => vec![batch.len(), n_tokens, self.dim],
            };
            let values = self.output(output.name(), &shape)?;
            let values = values.as_ref();
            take(&batch, n_tokens, values);
            // The values at padding tokens are undefined.
            let row_len = values.len() / batch.len();
            let used = |idx: usize| {
                if output == Output::Tokens {
                    lengths[idx] * self.dim
                } else {
                    row_len
                }
            };
            let odd = batch
                .iter()
                .zip(values.chunks_exact(row_len))
                .find(|(idx, row)| !finite(&row[..used(**idx)]));
            if let Some((&index, _)) = odd {
                return Err(EmbedError::NotFinite { index });
            }
            (watch.progress)(batch.len());
        }
        Ok(true)
    }

    /// Checks the number of tokens in each sequence, and their ids.
    fn check(&self, sequences: &[&[u32]]) -> Result<(), EmbedError> {
        let max_tokens = self.limits.max_tokens;
        for (index, sequence) in sequences.iter().enumerate() {
            let tokens = sequence.len();
            if tokens == 0 {
                return Err(EmbedError::Empty { index });
            }
            if tokens > max_tokens {
                return Err(EmbedError::TooLong {
                    index,
                    tokens,
                    max_tokens,
                });
            }
            if let Some(&id) = sequence.iter().find(|id| i32::try_from(**id).is_err()) {
                return Err(EmbedError::Token { index, id });
            }
        }
        Ok(())
    }

    /// Sets the tokens of a call, padded on the right with token 0, which the mask hides.
    fn fill(&mut self, members: &[&[u32]], n_tokens: usize) -> Result<(), EmbedError> {
        match (&self.lookup, members) {
            // Functions of such programs take one text.
            (Some(lookup), [tokens]) => lookup.fill(self.instance.as_mut(), tokens, n_tokens)?,
            _ => self.fill_ids("input_ids", members, n_tokens)?,
        }
        let seen: Vec<_> = members.iter().map(|tokens| 0..tokens.len()).collect();
        self.fill_mask("attention_mask", &seen, n_tokens)
    }

    /// Sets a mask to 1 at these places of each row and to 0 elsewhere.
    fn fill_mask(
        &mut self,
        input: &str,
        rows: &[Range<usize>],
        n_tokens: usize,
    ) -> Result<(), EmbedError> {
        let is_half = self.is_half();
        let mask = self.instance.input(input, &[rows.len(), n_tokens])?;
        mask.fill(0);
        if is_half {
            for (row, places) in mask.chunks_exact_mut(n_tokens * 2).zip(rows) {
                row.as_chunks_mut::<2>().0[places.clone()].fill(f64_to_f16(1.0).to_ne_bytes());
            }
            return Ok(());
        }
        for (row, places) in mask.chunks_exact_mut(n_tokens * 4).zip(rows) {
            row.as_chunks_mut::<4>().0[places.clone()].fill(1i32.to_ne_bytes());
        }
        Ok(())
    }

    /// Sets an input of integers, padded on the right with 0.
    fn fill_ids(
        &mut self,
        input: &str,
        rows: &[&[u32]],
        n_tokens: usize,
    ) -> Result<(), EmbedError> {
        let ids = self.instance.input(input, &[rows.len(), n_tokens])?;
        ids.fill(0);
        for (row, values) in ids.chunks_exact_mut(n_tokens * 4).zip(rows) {
            let places = row.as_chunks_mut::<4>().0.iter_mut();
            places
                .zip(*values)
                .for_each(|(place, value)| *place = value.to_ne_bytes());
        }
        Ok(())
    }

    /// Reads an output as fp32 and checks its shape.
    fn output(&self, name: &'static str, expected: &[usize]) -> Result<Cow<'_, [f32]>, EmbedError> {
        let view = self.instance.output(name)?;
        let wrong = || EmbedError::Output {
            name,
            dtype: view.dtype.name(),
            found: view.shape.to_vec(),
            expected: expected.to_vec(),
        };
        match view.dtype {
            _ if view.shape != expected => Err(wrong()),
            DType::Fp32 => bytemuck::try_cast_slice(view.bytes)
                .map(Cow::Borrowed)
                .map_err(|_| wrong()),
            DType::Fp16 => {
                let halves = view.bytes.as_chunks().0.iter();
                Ok(Cow::Owned(
                    halves.map(|b| f16_to_f32(u16::from_ne_bytes(*b))).collect(),
                ))
            }
            _ => Err(wrong()),
        }
    }
}

/// Rows of the pool matrix in functions of fixed length.
const MAX_CHUNKS: usize = 32;

/// Receives the indices of a call's sequences, the number of tokens that each was padded to, and
/// the output.
type Take<'a> = dyn FnMut(&[usize], usize, &[f32]) + 'a;

fn finite(values: &[f32]) -> bool {
    values.iter().all(|v| v.is_finite())
}

/// What a call takes beside tokens, by sequence.
#[derive(Clone, Copy)]
enum Beside<'a> {
    Nothing,
    /// Which of two texts each token belongs to.
    Types(&'a [&'a [u32]]),
    /// How many tokens at the beginning are not pooled.
    Skipped(&'a [usize]),
}

/// The output of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Text,
    Tokens,
    Logits,
}

impl Output {
    fn function(self) -> &'static str {
        match self {
            Self::Text => "encode",
            Self::Tokens => "encode_tokens",
            Self::Logits => "classify",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Text => "embedding",
            Self::Tokens => "token_embeddings",
            Self::Logits => "logits",
        }
    }
}

#[cfg(test)]
mod tests;
