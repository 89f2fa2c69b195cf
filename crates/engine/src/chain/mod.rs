//! Functions of fixed length as one [`Instance`](thane_mil::backend::Instance), be they in one
//! package or a chain of packages: it takes `input_ids` and `position` and gives `logits`, like a
//! program whose functions take any number of tokens.
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

mod executable;
mod fill;
mod given;
mod instance;
mod lanes;
mod store;

use std::ops::Range;
use std::sync::Arc;

use thane_calls::{Given, Kept, Ring};
use thane_mil::types::DType;

pub use executable::ChainExecutable;
pub use fill::first_mask;
pub(crate) use fill::table_columns;

/// How the functions of a bundle process tokens.
pub struct Chain {
    /// Tokens that the caches hold.
    pub context: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The ways to process tokens. One of them takes a single token, possibly padded, at every
    /// position below `context` and gives its logits or leaves what the head needs.
    pub calls: Vec<Call>,
    /// The ways to process a token each of several sequences, as many as a call has tokens, each
    /// with caches of its own. Inputs of caches and outputs that belong into them are those of all
    /// sequences, one after another: [1, sequences * heads, rows, row], as are slots that a call
    /// leaves to the next; masks are [1, sequences, 1, rows + 1].
    pub lanes: Vec<Call>,
    /// What the last step gives.
    pub logits: Logits,
    /// Bytes of each slot before the first call: 0 if a call gives it before it takes it. A slot
    /// holds an output until the next step that gives it.
    pub slot_bytes: Vec<usize>,
    /// Caches that the host holds.
    pub caches: Vec<Cache>,
    /// States that are one cache in functions of several context lengths, listed by these lengths.
    /// The host moves their content when it goes from one length to another.
    pub states: Vec<Vec<String>>,
    /// The caches can go back to fewer tokens while they hold at most this many: slots of later
    /// tokens are masked. Beyond that, tokens are computed again from the first one, because caches
    /// that shift have lost their oldest tokens.
    pub rewind_limit: usize,
    /// Caches that do not keep all tokens, if there are such caches.
    pub rings: Vec<Ring>,
}

/// Keys or values of a layer, which the host passes in and to which it adds those of a call: [1,
/// heads, context, row].
#[derive(Clone, Debug)]
pub struct Cache {
    /// Name of the inputs that take it.
    pub name: String,
    /// Number of heads.
    pub n_heads: usize,
    /// Number of rows.
    pub n_rows: usize,
    /// The tokens that they hold.
    pub kept: Kept,
    /// Elements of a token's row.
    pub row: usize,
    /// Element type.
    pub dtype: DType,
}

/// A way to process tokens that follow each other.
pub struct Call {
    /// Number of tokens.
    pub n_tokens: usize,
    /// Whether it can process fewer tokens, followed by others that mean nothing.
    pub padded: bool,
    /// Positions that the tokens can have.
    pub positions: Range<usize>,
    /// The tokens whose logits it gives; `None` if a further token has to be processed before
    /// logits are known.
    pub gives: Option<Given>,
    /// Functions that run after the others where logits are wanted.
    pub head: Vec<Step>,
    /// Which of the states of [`Chain::states`] it has.
    pub length: usize,
    /// The functions, in order.
    pub steps: Vec<Step>,
}

impl Call {
    /// How many of `n_left` tokens, the first of which has `position`, a call processes that begins
    /// at `begin`. `need` is whose logits are needed.
    fn n_done(
        &self,
        (begin, position): (usize, usize),
        n_left: usize,
        need: Option<Given>,
    ) -> usize {
        let most = match (need, self.gives) {
            // The last of them is the only one whose logits it gives.
            (Some(Given::Each), Some(Given::Last)) => 1,
            _ => n_left,
        };
        (begin + self.n_tokens).saturating_sub(position).min(most)
    }
}

/// One function and its inputs.
#[derive(Clone)]
pub struct Step {
    /// Name of the function in the program.
    pub function: String,
    /// Every input of the function.
    pub inputs: Vec<Input>,
    /// Outputs that later steps or calls use, each with its slot.
    pub keeps: Vec<(String, usize)>,
    /// Outputs [1, heads, n, row] that belong into caches, each with its cache.
    pub stores: Vec<(String, usize)>,
}

/// An input of a function.
#[derive(Clone)]
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
    /// The content of a slot.
    Slot(usize),
    /// Shape `[1, 1, n, rows + n]`, for the rows of the cache and then the tokens of the call: 0
    /// where a token attends, -1e4 where not. A token attends to itself, to those less than
    /// `window` positions before it, and to the sinks; a row that is the mean of k older tokens
    /// gets ln k.
    Mask {
        /// All tokens before are seen if there is none.
        window: Option<usize>,
        /// The tokens that the rows hold.
        kept: Kept,
    },
    /// `0, 0, p, 0`, shape `[4]`: where the cache is written.
    WriteBegin,
    /// `0, 0, p + n, 0`, shape `[4]`.
    WriteEnd,
    /// Shape `[1, 1, 1, n]`: 1 at the last token that means something, 0 elsewhere.
    LastToken,
    /// Rows of a table by token id, with the tokens along the last axis: shape `[.., columns, n]`,
    /// of which one token may leave out the last axis.
    TokenColumns(Arc<dyn Rows>),
    /// The same by position.
    PositionColumns(Arc<dyn Rows>),
    /// The first rows of a cache, as many as the input takes.
    Cache(usize),
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

/// How outputs become logits.
pub enum Logits {
    /// Outputs that follow each other in the vocabulary. Steps that have them follow each other,
    /// too: each gives a part of the vocabulary.
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
    /// The greatest logits of each token, and their tokens: outputs [1, tokens of the call, n].
    /// Steps that have them follow each other, too: each gives those of a part of the vocabulary.
    /// The logits of all other tokens are minus infinity.
    Top {
        /// The output with tokens, int32.
        tokens: String,
        /// The output with logits.
        logits: String,
        /// Number of logits that are known in the whole vocabulary.
        n: usize,
    },
}

impl Logits {
    /// How many of the greatest logits are known; `None` if all are.
    pub fn n_known(&self) -> Option<usize> {
        match self {
            Self::Joined(_) => None,
            Self::Greatest { .. } => Some(1),
            Self::Top { n, .. } => Some(*n),
        }
    }
}

impl Chain {
    /// Whether a slot holds what a call of a sequence leaves to the next.
    fn is_left_to_next(&self, slot: usize) -> bool {
        self.slot_bytes.get(slot).is_some_and(|n| *n > 0)
    }

    /// The call that processes the next of `n_left` tokens, the first of which has `position`, and
    /// the position at which it begins: earlier if a call of whole blocks would pass the end, and
    /// caches that were written up to `n_written` still keep what the tokens before attend to. The
    /// shortest context is taken, and of its calls the one that does most, with least in vain.
    fn call(
        &self,
        (position, n_written): (usize, usize),
        n_left: usize,
        need: Option<Given>,
    ) -> Option<(&Call, usize)> {
        let is_kept = |begin: usize| self.rings.iter().all(|ring| ring.keeps(begin, n_written));
        let fitting = self.calls.iter().filter_map(|call| {
            let n = call.n_tokens;
            let ends = n >= n_left;
            let gives = match need {
                None => true,
                Some(Given::Last) => !ends || call.gives.is_some(),
                Some(Given::Each) => {
                    call.gives == need || (call.gives.is_some() && (n == 1 || call.padded))
                }
            };
            let is_whole = n <= n_left || call.padded;
            // Where nothing is given, a token must be left for a call that gives something.
            let leaves = call.gives.is_some() || n < n_left || need.is_none();
            let begin = if call.padded {
                position.min(call.positions.end.checked_sub(n)?)
            } else {
                position
            };
            let holds = call.positions.contains(&begin)
                && position < call.positions.end
                && begin + n <= call.positions.end
                && (begin == position || is_kept(begin));
            (gives && is_whole && leaves && holds).then_some((call, begin))
        });
        fitting.min_by_key(|(call, begin)| {
            let done = call.n_done((*begin, position), n_left, need);
            let holds_all = position + n_left <= call.positions.end;
            let vain = call.n_tokens - done.min(call.n_tokens);
            (!holds_all, call.positions.end, usize::MAX - done, vain)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain with calls of a block, of a token, and of 2, 4 and 8 tokens with logits of each.
    fn chain(padded: bool) -> Chain {
        let of_last = [(64, Given::Last), (1, Given::Last)];
        let of_each = [2, 4, 8].map(|n| (n, Given::Each));
        let call = |(n_tokens, gives)| Call {
            n_tokens,
            padded: padded && n_tokens > 1,
            positions: 0..512,
            gives: Some(gives),
            head: Vec::new(),
            length: 0,
            steps: Vec::new(),
        };
        Chain {
            context: 512,
            vocab_size: 9,
            calls: of_last.into_iter().chain(of_each).map(call).collect(),
            lanes: Vec::new(),
            logits: Logits::Joined(Vec::new()),
            slot_bytes: Vec::new(),
            caches: Vec::new(),
            states: Vec::new(),
            rewind_limit: usize::MAX,
            rings: Vec::new(),
        }
    }

    /// The tokens of the calls that give the logits of each of `n` tokens.
    fn widths(chain: &Chain, n: usize) -> Vec<usize> {
        let (mut position, mut widths) = (0, Vec::new());
        while position < n {
            let need = Some(Given::Each);
            let at = (position, position);
            let (call, begin) = chain.call(at, n - position, need).unwrap();
            position += call.n_done((begin, position), n - position, need);
            widths.push(call.n_tokens);
        }
        widths
    }

    #[test]
    fn tokens_are_verified_by_the_call_that_fits() {
        let padded = chain(true);
        let cases: [(usize, &[usize]); 7] = [
            (1, &[1]),
            (2, &[2]),
            (3, &[4]),
            (5, &[8]),
            (9, &[8, 1]),
            (11, &[8, 4]),
            (20, &[8, 8, 4]),
        ];
        for (n, expected) in cases {
            assert_eq!(widths(&padded, n), expected, "{n} tokens");
        }
        // Layers that remember all tokens so far must not see padding.
        let whole = chain(false);
        assert_eq!(widths(&whole, 7), [4, 2, 1]);
        assert_eq!(widths(&whole, 8), [8]);
    }
}
