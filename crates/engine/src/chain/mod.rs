//! A chain of packages as one [`Instance`](thane_mil::backend::Instance): what other projects write
//! as a package of embeddings, several packages of layers and a package of the output head takes
//! `input_ids` and `position` and gives `logits`, like one program.
//!
//! A [`Chain`] is plain data that says what the host does for each call: which functions run in
//! which order, and where each of their inputs comes from. The functions of all packages are in one
//! program, so that functions share states by name. Readers of a bundle's files (crate `runtime`)
//! make a chain; [`ChainExecutable`] follows nothing else.
//!
//! ```text
//! tokens ── Feed::Tokens ──> embeddings ── slot 0 ──> chunk1 ── slot 0 ──> chunk2 ── slot 0 ──> head ──> logits
//!                     masks, positions, rows of tables ──^ ──────────────────^
//! ```

mod fill;
mod instance;

use std::ops::Range;
use std::sync::Arc;

use thane_mil::types::DType;

pub use instance::ChainExecutable;

/// How the functions of a bundle process tokens.
pub struct Chain {
    /// Tokens that the caches hold.
    pub context: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The ways to process tokens, the first that fits is taken. One of them takes a single token
    /// at every position below `context` and leaves what the head needs.
    pub calls: Vec<Call>,
    /// Runs after the last token, whose logits are wanted.
    pub head: Vec<Step>,
    /// What the last step gives.
    pub logits: Logits,
    /// Bytes of each slot. A slot holds an output until the next step that gives it.
    pub slot_bytes: Vec<usize>,
    /// The caches can go back to fewer tokens while they hold at most this many: slots of later
    /// tokens are masked. Beyond that, tokens are computed again from the first one, because caches
    /// that shift have lost their oldest tokens.
    pub rewind_limit: usize,
}

/// A way to process tokens that follow each other.
pub struct Call {
    /// Number of tokens.
    pub n_tokens: usize,
    /// Positions that the tokens can have.
    pub positions: Range<usize>,
    /// Whether the head can follow. If not, a further token has to be processed first.
    pub gives_hidden: bool,
    /// The functions, in order.
    pub steps: Vec<Step>,
}

/// One function and its inputs.
pub struct Step {
    /// Name of the function in the program.
    pub function: String,
    /// Every input of the function.
    pub inputs: Vec<Input>,
    /// Outputs that later steps or calls use, each with its slot.
    pub keeps: Vec<(String, usize)>,
}

/// An input of a function.
pub struct Input {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// What the input is set to.
    pub feed: Feed,
}

/// What an input is set to. The call has n tokens; p is the position of the first.
#[derive(Clone)]
pub enum Feed {
    /// The token ids, shape `[1, n]`.
    Tokens,
    /// `p, p + 1, …`, shape `[n]`.
    Positions,
    /// `p`, shape `[1]`.
    Position,
    /// Shape `[1, 1, n, width]`: 0 in row i for columns up to p + i, minus infinity after.
    CausalMask,
    /// Shape `[1, 1, 1, width]`, for a cache that shifts: 0 for the last p + 1 columns, minus
    /// infinity before.
    RecentMask,
    /// Shape `[1, 1, length, n]`: 1 at `[p + i, i]`, 0 elsewhere.
    WriteMask,
    /// Rows of a table by token id, shape `[.., n, columns]`.
    TokenRows(Arc<dyn Rows>),
    /// Rows of a table by position, shape `[.., n, columns]`.
    PositionRows(Arc<dyn Rows>),
    /// The content of a slot.
    Slot(usize),
}

/// A table of numbers that the host looks up.
pub trait Rows: Send + Sync {
    /// Number of rows.
    fn n_rows(&self) -> usize;

    /// Number of columns.
    fn n_columns(&self) -> usize;

    /// Copies the row `idx`, below [`Self::n_rows`], to `out`, which has [`Self::n_columns`]
    /// elements.
    fn read(&self, idx: usize, out: &mut [f32]);
}

/// How the outputs of the last step become logits.
pub enum Logits {
    /// Outputs that follow each other in the vocabulary.
    Joined(Vec<String>),
    /// The best token of each slice of the vocabulary, counted from the start of the slice, and its
    /// logit. The logits of all other tokens are minus infinity, so only greedy sampling is right.
    Greatest {
        /// The output with tokens, int32.
        tokens: String,
        /// The output with logits.
        logits: String,
        /// Number of tokens in each slice.
        slices: Vec<usize>,
    },
}

impl Logits {
    /// Whether only the greatest logits are known.
    pub fn is_greedy(&self) -> bool {
        matches!(self, Self::Greatest { .. })
    }
}

impl Chain {
    /// The call that processes the next of `n_left` tokens, the first of which has `position`.
    fn call(&self, position: usize, n_left: usize) -> Option<&Call> {
        self.calls.iter().find(|call| {
            let fits = if call.gives_hidden {
                call.n_tokens <= n_left
            } else {
                call.n_tokens < n_left
            };
            fits && call.positions.contains(&position)
                && position + call.n_tokens <= call.positions.end
        })
    }
}
