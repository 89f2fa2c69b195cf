//! The form of a decoder: how a caller wants to call it.

use std::fmt;
use std::ops::Range;

use crate::head::Head;

/// How a caller wants to call a decoder whose functions have fixed lengths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// Tokens of a `prefill` call; `None` for the smaller of the context length and
    /// [`Self::DEFAULT_BLOCK`], [`Self::RECURRENT_BLOCK`] or [`Self::DELTA_BLOCK`].
    pub block: Option<usize>,
    /// Tokens of a call of `verify`, which gives the logits of each: a function for each number.
    pub verify: Vec<usize>,
    /// Shorter context lengths that have functions of their own, because a call may read the whole
    /// cache.
    pub contexts: Vec<usize>,
    /// Where the KV cache is.
    pub cache: CacheForm,
    /// Who looks up embeddings and rotations.
    pub lookup: Lookup,
    /// Which layers have functions of their own, as chunks that are called one after another.
    pub split: Split,
    /// What functions give of the logits.
    pub head: Head,
    /// Sequences that the function `decode_lanes` takes a token each of; `None` for no such
    /// function.
    pub lanes: Option<usize>,
    /// How attention reads the cache.
    pub attention: AttentionForm,
    /// Set if the program is called without Core ML, to the most logits that an output has, which
    /// the caller knows of its target. Tokens of a call are a multiple of
    /// [`Self::DIRECT_COLUMNS`], one token is a call of `prefill`, and outputs are copies where
    /// other ops read them.
    pub direct: Option<usize>,
}

impl Form {
    /// Default number of tokens of a `prefill` call. Fewer take about as long, since a call reads
    /// all weights (`docs/forms.md` has measurements).
    pub const DEFAULT_BLOCK: usize = 64;

    /// The same where layers have recurrent states, which must not see padding: tokens that fill no
    /// block are processed one by one.
    pub const RECURRENT_BLOCK: usize = 16;

    /// The same where layers have delta nets, which have ops of their own for each token.
    pub const DELTA_BLOCK: usize = 8;

    /// Greatest number of tokens of a call where layers have delta nets.
    pub const MOST_DELTA_BLOCK: usize = 32;

    /// Of what the last axis of inputs and outputs is a multiple without Core ML: 64 bytes of fp16.
    pub const DIRECT_COLUMNS: usize = 32;

    /// Greatest number of sequences in a call. More take longer, and caches grow with each
    /// (`docs/forms.md` has measurements).
    pub const MOST_LANES: usize = 128;
}

impl fmt::Display for Form {
    /// What a planner decides: `explicit cache, tables on the host, block 64`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.cache {
            CacheForm::State => "state",
            CacheForm::Explicit => "explicit cache",
        })?;
        f.write_str(match self.lookup {
            Lookup::Inside => ", tables inside",
            Lookup::Host | Lookup::HostInt8 => ", tables on the host",
        })?;
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        match self.head {
            Head::Logits => {}
            Head::Greatest(1) => f.write_str(", argmax in the program")?,
            Head::Greatest(n) => write!(f, ", top {n} in the program")?,
            Head::Host(()) => f.write_str(", logits on the host")?,
        }
        if self.contexts.is_empty() {
            return Ok(());
        }
        let lengths: Vec<String> = self.contexts.iter().map(usize::to_string).collect();
        write!(f, ", shorter contexts {}", lengths.join(", "))
    }
}

/// Where a decoder has its KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheForm {
    /// In a state that functions write.
    #[default]
    State,
    /// In inputs. Functions give the keys and values of the call's tokens, and the caller stores
    /// those that it accepts.
    Explicit,
}

impl CacheForm {
    /// Every value.
    pub const ALL: [Self; 2] = [Self::State, Self::Explicit];

    /// Its name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Explicit => "explicit",
        }
    }
}

/// Who looks up the rows of embeddings and the cosines and sines of positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// The program, by integers. Such ops run on the CPU.
    #[default]
    Inside,
    /// The caller, in tables beside the program.
    Host,
    /// The caller, and rows of tokens are int8 with a scale each.
    HostInt8,
}

impl Lookup {
    /// Every value.
    pub const ALL: [Self; 3] = [Self::Inside, Self::Host, Self::HostInt8];

    /// Its name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inside => "inside",
            Self::Host => "host",
            Self::HostInt8 => "host-int8",
        }
    }
}

/// How layers are cut into chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Not at all.
    #[default]
    Whole,
    /// Into so many chunks of about as many layers each.
    Into(usize),
    /// Into these ranges.
    Ranges {
        /// The layers of each chunk, which follow each other from the first layer to the last.
        layers: Vec<Range<usize>>,
        /// Whether the output head is a chunk by itself.
        head: bool,
    },
    /// Into as few chunks as have at most so many bytes of fp16 weights each. The output head is
    /// cut too, if it has more.
    Within(usize),
}

/// How attention reads the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttentionForm {
    /// Rows of the cache that are multiplied at once, under one maximum for all; `None` for all
    /// rows.
    pub tile: Option<usize>,
    /// What full-attention layers keep; `None` for all tokens. The cache must be explicit.
    pub streaming: Option<Streaming>,
    /// Key heads that see all tokens nevertheless, layer by layer; empty for none. Layers without
    /// attention or with a sliding window have entries too, which mean nothing.
    pub retrieval_heads: Vec<Vec<bool>>,
}

/// Which tokens before its own a token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// The first tokens of the context, which are always seen (attention sinks).
    pub sinks: usize,
    /// Those less than so many positions before.
    pub window: usize,
    /// Older tokens are seen as one mean of keys and values for so many of them; `None` if they are
    /// not seen.
    pub pool: Option<usize>,
}
