//! Embeddings: token sequences to vectors, over any backend.
//!
//! [`Embedder`] drives the program of an encoder, [`Document`] is a text in chunks that share one
//! pass, [`output`] is what vectors become for storage, and [`similarity`] compares them. Knows
//! nothing of which backend it drives.

mod batch;
mod document;
pub mod output;
pub mod similarity;

pub use document::{Document, shorten};

use std::borrow::Cow;
use std::ops::Range;

use thane_mil::backend::{Instance, RunError};
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

/// Why texts could not be embedded. `index` is the place of a sequence among those that were given,
/// from 0.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The backend failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A sequence without a token has no vector.
    #[error("it has no tokens")]
    Empty {
        /// Which sequence.
        index: usize,
    },
    /// A sequence is longer than the model takes.
    #[error("it has {tokens} tokens, the model takes {max_tokens}")]
    TooLong {
        /// Which sequence.
        index: usize,
        /// Its tokens.
        tokens: usize,
        /// Tokens that the model takes.
        max_tokens: usize,
    },
    /// The matrix that pools chunks would be too large.
    #[error(
        "it has {chunks} chunks of {tokens} tokens together; chunks times tokens can be {most}"
    )]
    TooManyChunks {
        /// Chunks of the document.
        chunks: usize,
        /// Its tokens.
        tokens: usize,
        /// The bound.
        most: usize,
    },
    /// A vector holds a number that is none.
    #[error("its vector holds numbers that are not finite")]
    NotFinite {
        /// Which sequence.
        index: usize,
    },
    /// The program's output is not what an encoder gives.
    #[error("the program gave `{name}` of {dtype} {found:?}, fp32 {expected:?} is due")]
    Output {
        /// Output name.
        name: &'static str,
        /// Its type.
        dtype: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape due.
        expected: Vec<usize>,
    },
}

impl EmbedError {
    /// The place of the sequence that is at fault, where one is.
    pub fn index(&self) -> Option<usize> {
        match self {
            Self::Empty { index } | Self::TooLong { index, .. } | Self::NotFinite { index } => {
                Some(*index)
            }
            Self::Run(_) | Self::TooManyChunks { .. } | Self::Output { .. } => None,
        }
    }
}

/// How much a call of the program may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens of a sequence at most.
    pub max_tokens: usize,
    /// Tokens of a call at most, padding included; a sequence that is longer has a call to itself.
    pub batch_tokens: usize,
}

/// How the caller follows along.
pub struct Watch<'a> {
    /// Whether the caller wants the end now; asked before every call of the program.
    pub interrupted: &'a dyn Fn() -> bool,
    /// Gets the number of sequences that each call has done.
    pub progress: &'a mut dyn FnMut(usize),
}

/// How the functions of a program take texts.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lengths {
    /// One takes any number of texts of any length, with masks of integers, and gives fp32.
    Any,
    /// One for each of some lengths, and maybe one for any, each for one text and all in fp16.
    Buckets { lengths: Vec<usize>, flexible: bool },
}

/// A running encoder.
pub struct Embedder {
    instance: Box<dyn Instance>,
    dim: usize,
    limits: Limits,
    lengths: Lengths,
}

impl Embedder {
    /// Elements of a pool matrix at most: 256 MB.
    const MOST_POOL: usize = 1 << 26;

    /// An embedder over an instance whose vectors have `dim` elements.
    pub fn new(instance: Box<dyn Instance>, dim: usize, limits: Limits) -> Self {
        Self {
            instance,
            dim,
            limits,
            lengths: Lengths::Any,
        }
    }

    /// The same over a program that has a function of its own, `encode_128`, for each of some
    /// lengths; with `flexible` it has one, `encode`, for what is longer than all of them.
    pub fn in_buckets(mut self, mut lengths: Vec<usize>, flexible: bool) -> Self {
        lengths.sort_unstable();
        if let (false, Some(most)) = (flexible, lengths.last()) {
            self.limits.max_tokens = self.limits.max_tokens.min(*most);
        }
        self.lengths = Lengths::Buckets { lengths, flexible };
        self
    }

    /// The function for a text of so many tokens, and what it is padded to.
    fn route(&self, function: &str, n_tokens: usize) -> (String, usize) {
        match &self.lengths {
            Lengths::Buckets { lengths, .. } => match lengths.iter().find(|n| **n >= n_tokens) {
                Some(n) => (format!("{function}_{n}"), *n),
                None => (function.to_owned(), n_tokens),
            },
            Lengths::Any => (function.to_owned(), n_tokens),
        }
    }

    fn is_half(&self) -> bool {
        self.lengths != Lengths::Any
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// What a call may take.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A vector for each sequence, row by row in their order; `None` when the caller wanted the
    /// end. Needs the function `encode`.
    ///
    /// Sequences of like length share a call, whatever their order, so that little is padded.
    pub fn texts(
        &mut self,
        sequences: &[Vec<u32>],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<f32>>, EmbedError> {
        let dim = self.dim;
        let mut rows = vec![0.0; sequences.len() * dim];
        let is_whole =
            self.each_batch(Output::Text, sequences, watch, &mut |batch, _, values| {
                for (&idx, row) in batch.iter().zip(values.chunks_exact(dim)) {
                    rows[idx * dim..(idx + 1) * dim].copy_from_slice(row);
                }
            })?;
        Ok(is_whole.then_some(rows))
    }

    /// A vector for each token of each sequence, those that the tokenizer added included; `None`
    /// when the caller wanted the end. Needs the function `encode_tokens`.
    pub fn tokens(
        &mut self,
        sequences: &[Vec<u32>],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<Vec<f32>>>, EmbedError> {
        let dim = self.dim;
        let mut rows = vec![Vec::new(); sequences.len()];
        let is_whole = self.each_batch(
            Output::Tokens,
            sequences,
            watch,
            &mut |batch, n_tokens, values| {
                for (&idx, row) in batch.iter().zip(values.chunks_exact(n_tokens * dim)) {
                    rows[idx] = row[..sequences[idx].len() * dim].to_vec();
                }
            },
        )?;
        Ok(is_whole.then_some(rows))
    }

    /// A vector for each chunk of a document, from one pass over all of it. A chunk without a token
    /// has a vector of zeros. Needs the function `encode_chunks`.
    pub fn chunks(&mut self, document: &Document) -> Result<Vec<f32>, EmbedError> {
        let (tokens, spans) = (document.tokens(), document.spans());
        self.check(&[tokens])?;
        let (n_tokens, n_chunks) = (tokens.len(), spans.len());
        if n_tokens * n_chunks > Self::MOST_POOL {
            return Err(EmbedError::TooManyChunks {
                chunks: n_chunks,
                tokens: n_tokens,
                most: Self::MOST_POOL,
            });
        }
        let mut rows = Vec::with_capacity(n_chunks * self.dim);
        // Functions of fixed length have a matrix of fixed height.
        for spans in spans.chunks(if self.is_half() {
            MOST_CHUNKS
        } else {
            n_chunks.max(1)
        }) {
            rows.extend(self.pooled(tokens, spans)?);
        }
        // What a model that normalises makes of nothing is not for it to say.
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

    /// The vectors of some chunks.
    fn pooled(&mut self, tokens: &[u32], spans: &[Range<usize>]) -> Result<Vec<f32>, EmbedError> {
        let (function, width) = self.route("encode_chunks", tokens.len());
        let is_fixed = function != "encode_chunks";
        let height = if is_fixed { MOST_CHUNKS } else { spans.len() };
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

    /// Run all sequences, batch by batch. False when the caller wanted the end.
    fn each_batch(
        &mut self,
        output: Output,
        sequences: &[Vec<u32>],
        watch: &mut Watch<'_>,
        take: &mut Take<'_>,
    ) -> Result<bool, EmbedError> {
        let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        self.check(&sequences)?;
        let lengths: Vec<usize> = sequences.iter().map(|s| s.len()).collect();
        let batches = match self.lengths {
            Lengths::Any => batch::plan(&lengths, self.limits.batch_tokens),
            Lengths::Buckets { .. } => (0..sequences.len()).map(|idx| vec![idx]).collect(),
        };
        for batch in batches {
            if (watch.interrupted)() {
                return Ok(false);
            }
            let members: Vec<&[u32]> = batch.iter().map(|idx| sequences[*idx]).collect();
            let longest = members.iter().map(|s| s.len()).max().unwrap_or(0);
            let (function, n_tokens) = self.route(output.function(), longest);
            self.fill(&members, n_tokens)?;
            self.instance.run(&function)?;
            let shape = match output {
                Output::Text => vec![batch.len(), self.dim],
                Output::Tokens => vec![batch.len(), n_tokens, self.dim],
            };
            let values = self.output(output.name(), &shape)?;
            let values = values.as_ref();
            take(&batch, n_tokens, values);
            // Of padding nothing is known.
            let row_len = values.len() / batch.len();
            let used = |idx: usize| {
                if output == Output::Text {
                    row_len
                } else {
                    lengths[idx] * self.dim
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

    fn check(&self, sequences: &[&[u32]]) -> Result<(), EmbedError> {
        let max_tokens = self.limits.max_tokens;
        for (index, tokens) in sequences.iter().map(|s| s.len()).enumerate() {
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
        }
        Ok(())
    }

    /// The tokens of a call, padded on the right with token 0, which the mask hides.
    fn fill(&mut self, members: &[&[u32]], n_tokens: usize) -> Result<(), EmbedError> {
        let shape = [members.len(), n_tokens];
        let ids = self.instance.input("input_ids", &shape)?;
        ids.fill(0);
        for (row, tokens) in ids.chunks_exact_mut(n_tokens * 4).zip(members) {
            let places = row.as_chunks_mut::<4>().0.iter_mut();
            places
                .zip(*tokens)
                .for_each(|(place, token)| *place = token.to_ne_bytes());
        }
        let is_half = self.is_half();
        let mask = self.instance.input("attention_mask", &shape)?;
        mask.fill(0);
        if is_half {
            for (row, tokens) in mask.chunks_exact_mut(n_tokens * 2).zip(members) {
                row.as_chunks_mut::<2>().0[..tokens.len()].fill(f64_to_f16(1.0).to_ne_bytes());
            }
            return Ok(());
        }
        for (row, tokens) in mask.chunks_exact_mut(n_tokens * 4).zip(members) {
            row.as_chunks_mut::<4>().0[..tokens.len()].fill(1i32.to_ne_bytes());
        }
        Ok(())
    }

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

/// Rows of the pool matrix of functions of fixed length.
const MOST_CHUNKS: usize = 32;

/// Gets which sequences a call had, the tokens that each was padded to, and the output.
type Take<'a> = dyn FnMut(&[usize], usize, &[f32]) + 'a;

fn finite(values: &[f32]) -> bool {
    values.iter().all(|v| v.is_finite())
}

/// What a call gives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Text,
    Tokens,
}

impl Output {
    fn function(self) -> &'static str {
        match self {
            Self::Text => "encode",
            Self::Tokens => "encode_tokens",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Text => "embedding",
            Self::Tokens => "token_embeddings",
        }
    }
}

#[cfg(test)]
mod tests;
