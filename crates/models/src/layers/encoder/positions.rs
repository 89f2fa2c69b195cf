//! Where the tokens of an encoder's function are.
//!
//! Tables by position are the same constants in functions of every length, so that packages share
//! them: a function of fixed length takes their first rows, and one of any length gathers rows. In
//! fp16 no integer is computed: what is compared with a position comes from such tables, too.

use thane_mil::program::ValueId;

use super::Extent;
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};

/// Positions that masks in fp16 tell apart: 2^12 blocks of [`BLOCK`], counted from the middle.
pub const MOST_HALF_TOKENS: usize = 1 << 18;
/// Positions from here on are a number of blocks and a rest, because fp16 holds all integers up to
/// 2^11 only.
const MOST_WHOLE: usize = 1 << 12;
const BLOCK: i64 = 64;

/// Positions of the tokens, counted from 0.
#[derive(Clone, Copy, Debug)]
pub struct Positions {
    /// Number of tokens in a function of fixed length.
    known: Option<usize>,
    /// int32 [tokens], in a function of any length.
    of_call: Option<ValueId>,
    /// Largest number of tokens that any function of the program takes.
    max_tokens: usize,
}

/// A number for each token, as the sum of parts [tokens]: whole, or blocks of 64 and the rest.
pub(super) struct Line(Vec<ValueId>);

impl Positions {
    /// Those of a function whose `input` is [batch, tokens].
    pub(super) fn new(g: &mut Graph, extent: Extent, input: ValueId) -> Result<Self, ModelError> {
        let of_call = match extent.tokens {
            Some(_) => None,
            None => Some(range(g, input)?),
        };
        Ok(Self {
            known: extent.tokens,
            of_call,
            max_tokens: extent.max_tokens,
        })
    }

    /// Largest number of tokens that any function of the program takes.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Number of tokens, in a function of fixed length.
    pub(super) fn n_known(&self) -> Option<usize> {
        self.known
    }

    /// As int32 [tokens].
    pub fn ints(&self, g: &mut Graph) -> ValueResult {
        if let Some(positions) = self.of_call {
            return Ok(positions);
        }
        let n = self.known.unwrap_or(0) as i32;
        g.ints(&(0..n).collect::<Vec<i32>>())
    }

    /// The rows of the tokens in a table [positions, ..].
    pub fn rows(&self, g: &mut Graph, table: ValueId) -> ValueResult {
        self.along(g, table, 0)
    }

    /// The elements of the tokens in a table along `axis`.
    pub fn along(&self, g: &mut Graph, table: ValueId, axis: usize) -> ValueResult {
        if let Some(n) = self.known {
            return g.part("rows", table, axis, 0..n);
        }
        let (positions, axis) = (self.ints(g)?, g.int(axis as i32)?);
        let args = [("x", table), ("indices", positions), ("axis", axis)];
        g.op("gather", "rows", args)
    }

    /// A float for each token, by its position: [tokens].
    pub(super) fn floats(&self, g: &mut Graph, of: impl Fn(usize) -> f32) -> ValueResult {
        let numbers: Vec<f32> = (0..self.max_tokens).map(of).collect();
        let table = g.floats(&numbers, &[numbers.len()])?;
        self.rows(g, table)
    }

    /// The positions plus `shift`, in fp16.
    pub(super) fn line(&self, g: &mut Graph, shift: i64) -> Result<Line, ModelError> {
        let from_middle = |at: usize| at as i64 + shift - (self.max_tokens / 2) as i64;
        if self.max_tokens <= MOST_WHOLE {
            return Ok(Line(vec![self.floats(g, |at| from_middle(at) as f32)?]));
        }
        let blocks = self.floats(g, |at| from_middle(at).div_euclid(BLOCK) as f32)?;
        let rest = self.floats(g, |at| from_middle(at).rem_euclid(BLOCK) as f32)?;
        Ok(Line(vec![blocks, rest]))
    }
}

impl Line {
    /// 1 where this number of a key is greater than that of a query, else 0: [tokens, tokens].
    /// Differences near 0 are exact, and others keep their sign.
    pub fn is_beyond(&self, g: &mut Graph, queries: &Self) -> ValueResult {
        let keys = Side(self, 0);
        keys.minus(g, &Side(queries, 1))
    }

    /// 1 where this number of a query is greater than that of a key, else 0: [tokens, tokens].
    pub fn of_query_is_beyond(&self, g: &mut Graph, keys: &Self) -> ValueResult {
        let queries = Side(self, 1);
        queries.minus(g, &Side(keys, 0))
    }
}

/// Numbers along the axis of keys or of queries: the axis that is inserted.
struct Side<'a>(&'a Line, i32);

impl Side<'_> {
    /// The difference of both, from 0 to 1.
    fn minus(&self, g: &mut Graph, other: &Side<'_>) -> ValueResult {
        let mut differences = Vec::new();
        for (a, b) in self.0.0.iter().zip(&other.0.0) {
            let (a, b) = (
                g.expand_dims(*a, &[self.1])?,
                g.expand_dims(*b, &[other.1])?,
            );
            differences.push(g.sub(a, b)?);
        }
        let difference = match differences[..] {
            [blocks, rest] => {
                let blocks = g.scale(blocks, BLOCK as f32)?;
                g.add(blocks, rest)?
            }
            _ => differences[0],
        };
        let (zero, one) = (g.float(0.0)?, g.float(1.0)?);
        let args = [("x", difference), ("alpha", zero), ("beta", one)];
        g.op("clip", "is_beyond", args)
    }
}

/// The positions 0, 1, .. of the tokens of `input` [batch, tokens], as int32 [tokens].
fn range(g: &mut Graph, input: ValueId) -> ValueResult {
    let n = g.n_tokens(input)?;
    let (n, zero, step) = (g.squeeze(n, &[0])?, g.int(0)?, g.int(1)?);
    g.op(
        "range_1d",
        "positions",
        [("end", n), ("start", zero), ("step", step)],
    )
}
