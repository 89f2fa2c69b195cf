//! The inputs of an encoder's function, and the values that all layers share.

use thane_calls::Lookup;
use thane_mil::program::ValueId;
use thane_mil::types::{DType, Dim, TensorType};

use super::masks::masks;
use super::positions::Positions;
use super::{Direction, EncoderPlan, Encoding};
use crate::Table;
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, Layout, ValueResult};
use crate::layers::attention::AttentionInputs;
use crate::layers::decoder::Mask;
use crate::layers::rope::{Rotary, Rotation};

/// The input of rows of tokens.
const TOKEN_INPUT: &str = "token_embedding";

/// The inputs of a function and the values that all layers share.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Token ids, int32 [batch, tokens]; `None` if the caller looks up the rows of tokens.
    pub(super) input_ids: Option<ValueId>,
    pub(super) positions: Positions,
    /// 1 for a token that is pooled and 0 for others, in the graph's element type, [batch, tokens].
    pub(super) pooled: ValueId,
    /// Whether that mask is an input of its own.
    pub(super) has_pooling_mask: bool,
    pool_matrix: Option<ValueId>,
    full: ValueId,
    sliding: Option<ValueId>,
    tokens: Dim,
    lookup: Lookup,
}

impl Io {
    /// Declares the inputs. `group` is the number of queries that share a key head. With a
    /// `window`, sliding-window layers attend to tokens that are less than `window` positions away.
    pub fn new(
        g: &mut Graph,
        plan: &EncoderPlan<'_>,
        direction: Direction,
        group: usize,
        window: Option<usize>,
    ) -> Result<Self, ModelError> {
        let (encoding, extent) = (plan.head.encoding, plan.extent);
        g.at_module("");
        let single = extent.single || encoding == Encoding::Chunks;
        let batch = if single { Dim::Known(1) } else { g.symbol() };
        let tokens = extent.tokens.map_or_else(|| g.symbol(), Dim::Known);
        let float = g.spelling().float;
        let input_ids = (plan.lookup == Lookup::Inside)
            .then(|| g.input("input_ids", TensorType::new(DType::Int32, [batch, tokens])));
        // A program in fp16 casts no integers, so the mask arrives in the type of its use.
        let mask_type = if float == DType::Fp32 {
            DType::Int32
        } else {
            float
        };
        let mask = g.input(
            "attention_mask",
            TensorType::new(mask_type, [batch, tokens]),
        );
        let pooling_mask = (extent.has_pooling_mask && encoding == Encoding::Text).then(|| {
            let ty = TensorType::new(mask_type, [batch, tokens]);
            g.input("pooling_mask", ty)
        });
        let pool_matrix = (encoding == Encoding::Chunks).then(|| {
            let chunks = extent.chunks.map_or_else(|| g.symbol(), Dim::Known);
            g.input("pool_matrix", TensorType::new(float, [chunks, tokens]))
        });
        let valid = g.cast(mask, float)?;
        let pooled = match pooling_mask {
            Some(mask) => g.cast(mask, float)?,
            None => valid,
        };
        let positions = Positions::new(g, extent, input_ids.unwrap_or(mask))?;
        let (full, sliding) = masks(g, valid, positions, direction, group, window)?;
        Ok(Self {
            input_ids,
            positions,
            pooled,
            has_pooling_mask: pooling_mask.is_some(),
            pool_matrix,
            full,
            sliding,
            tokens,
            lookup: plan.lookup,
        })
    }

    /// The weight of each token in each chunk's vector, [chunks, tokens].
    pub(super) fn pool_matrix(&self) -> Option<ValueId> {
        self.pool_matrix
    }

    /// The inputs of a layer's attention.
    pub fn attention_inputs<'a>(
        &self,
        rotary: Option<&'a Rotary>,
        mask: Mask,
    ) -> AttentionInputs<'a> {
        let mask = if mask == Mask::Sliding {
            self.sliding.unwrap_or(self.full)
        } else {
            self.full
        };
        AttentionInputs {
            rotary,
            mask,
            past: None,
            last: None,
        }
    }

    /// Cosines and sines of this rotation at the positions of the tokens.
    pub fn rotary(&self, g: &mut Graph, rotation: &Rotation) -> Result<Rotary, ModelError> {
        let max_tokens = self.positions.max_tokens();
        if g.spelling().float == DType::Fp32 {
            let positions = self.positions.ints(g)?;
            let positions = g.cast(positions, DType::Fp32)?;
            return Rotary::new(g, positions, rotation, max_tokens);
        }
        let rows = |g: &mut Graph, table| self.positions.rows(g, table);
        Rotary::from_table(g, rows, rotation, max_tokens)
    }

    /// The positions of a model that counts them from `padding + 1`, where `padding` is the id of
    /// the padding token: int32 [batch, tokens]. A padding token has the position `padding` and is
    /// not counted, wherever it stands.
    fn positions_after(g: &mut Graph, input_ids: ValueId, padding: i32) -> ValueResult {
        let (padding, axis, no) = (g.int(padding)?, g.int(1)?, g.bool(false)?);
        let is_text = g.op("not_equal", "is_text", [("x", input_ids), ("y", padding)])?;
        let is_text = g.cast(is_text, DType::Int32)?;
        let args = [
            ("x", is_text),
            ("axis", axis),
            ("exclusive", no),
            ("reverse", no),
        ];
        let counts = g.op("cumsum", "counts", args)?;
        let counts = g.mul(counts, is_text)?;
        g.add(counts, padding)
    }

    /// The rows of the tokens in `table` [tokens, features] times `factor`, divided by the divisor
    /// of the residual stream: [batch, tokens, features], or [1, features, 1, tokens] from the
    /// caller.
    pub fn token_rows(&self, g: &mut Graph, table: &Tensor, factor: f32) -> ValueResult {
        let Some(input_ids) = self.input_ids else {
            return Ok(self.looked_up(g, TOKEN_INPUT, table, factor));
        };
        if factor == 1.0 {
            return g.rows_to_residual(table, input_ids);
        }
        let table = g.weight(table)?;
        let rows = g.gather(table, input_ids)?;
        g.scale(rows, factor / g.residual_divisor())
    }

    /// The rows of the tokens' positions in `table` [positions, features], divided likewise:
    /// [tokens, features], or like those of the tokens if positions are counted from the one after
    /// `padding`, the id of the padding token.
    pub fn position_rows(
        &self,
        g: &mut Graph,
        table: &Tensor,
        padding: Option<usize>,
    ) -> ValueResult {
        match (padding, self.input_ids) {
            (None, _) => {
                let table = g.weight_for_residual(table)?;
                self.positions.rows(g, table)
            }
            (Some(padding), Some(input_ids)) => {
                let at = Self::positions_after(g, input_ids, padding as i32)?;
                g.rows_to_residual(table, at)
            }
            (Some(_), None) => Ok(self.looked_up(g, "position_embedding", table, 1.0)),
        }
    }

    /// An input [1, features, 1, tokens]: rows of `table` times `factor`, divided by the divisor of
    /// the residual stream.
    fn looked_up(&self, g: &mut Graph, name: &str, table: &Tensor, factor: f32) -> ValueId {
        let by_token = name == TOKEN_INPUT;
        let (divisor, n_columns) = (g.residual_divisor() / factor, table.shape[1]);
        let (dtype, data, scales) = match self.lookup {
            Lookup::HostInt8 if by_token => {
                let (codes, scales) = g.int8_table(table, divisor, n_columns);
                (DType::Int8, codes, Some(scales))
            }
            _ => (g.spelling().float, g.table_numbers(table, divisor), None),
        };
        g.add_table(Table {
            input: name.to_owned(),
            by_token,
            n_rows: table.shape[0],
            n_columns,
            dtype,
            parts: vec![data],
            factor: 1.0,
            scales,
        });
        let shape = [
            Dim::Known(1),
            Dim::Known(n_columns),
            Dim::Known(1),
            self.tokens,
        ];
        g.input(name, TensorType::new(g.spelling().float, shape))
    }

    /// Declares the input `token_type_ids`, int32 [batch, tokens]: which of two texts each token
    /// belongs to.
    pub fn token_types(&self, g: &mut Graph) -> ValueId {
        let shape = self.input_ids.map(|ids| g.shape(ids).to_vec());
        let shape = shape.unwrap_or_else(|| vec![Dim::Known(1), self.tokens]);
        g.input("token_type_ids", TensorType::new(DType::Int32, shape))
    }

    /// The positions of the tokens.
    pub fn positions(&self) -> Positions {
        self.positions
    }

    /// Adds `bias` [1, heads, tokens, tokens] to the scores of full-attention layers.
    pub fn bias_scores(&mut self, g: &mut Graph, bias: ValueId) -> Result<(), ModelError> {
        self.full = g.add(self.full, bias)?;
        Ok(())
    }

    /// The sum of embeddings as hidden states in the layout of the graph. Rows [.., tokens,
    /// features] are added before their layout is changed, and so are inputs [1, features, 1,
    /// tokens].
    pub fn sum_of(&self, g: &mut Graph, parts: &[ValueId]) -> ValueResult {
        let (columns, rows): (Vec<_>, Vec<_>) =
            parts.iter().partition(|part| g.shape(**part).len() == 4);
        let mut sums = Vec::new();
        for parts in [columns, rows] {
            let Some((first, others)) = parts.split_first() else {
                continue;
            };
            let mut sum = *first;
            for part in others {
                sum = g.add(sum, *part)?;
            }
            sums.push(Self::lay_out(g, sum)?);
        }
        match sums[..] {
            [a, b] => g.add(a, b),
            _ => Ok(sums[0]),
        }
    }

    /// Converts rows [.., tokens, features] or columns [1, features, 1, tokens] to the layout of
    /// the graph.
    fn lay_out(g: &mut Graph, x: ValueId) -> ValueResult {
        match (g.spelling().layout, g.shape(x).len()) {
            (Layout::Rows, 4) => Self::of_columns(g, x),
            (Layout::Rows, _) | (Layout::Channels, 4) => Ok(x),
            (Layout::Channels, 2) => {
                let columns = g.transpose(x, &[1, 0])?;
                g.expand_dims(columns, &[0, 2])
            }
            (Layout::Channels, _) => {
                let columns = g.transpose(x, &[0, 2, 1])?;
                g.expand_dims(columns, &[2])
            }
        }
    }

    /// Converts hidden states from the layout of the graph to [batch, tokens, features].
    pub(super) fn to_rows(g: &mut Graph, hidden: ValueId) -> ValueResult {
        match g.spelling().layout {
            Layout::Rows => Ok(hidden),
            Layout::Channels => Self::of_columns(g, hidden),
        }
    }

    /// Converts [1, features, 1, tokens] to [1, tokens, features].
    fn of_columns(g: &mut Graph, x: ValueId) -> ValueResult {
        let columns = g.squeeze(x, &[2])?;
        g.transpose(columns, &[0, 2, 1])
    }
}
