//! Rows of embeddings that the host looks up for an encoder's functions.

use std::sync::Arc;

use thane_mil::backend::{Instance, RunError};
use thane_mil::types::DType;

use crate::chain::{Rows, table_columns};

/// The tables of an encoder whose functions take `token_embedding` fp16 [1, columns, 1, tokens]
/// instead of tokens.
#[derive(Clone)]
pub struct Lookup {
    /// A row for each token.
    pub tokens: Arc<dyn Rows>,
    /// Rows for the input `position_embedding`, if functions have it.
    pub positions: Option<PositionRows>,
}

/// The table of a model whose positions depend on the tokens.
#[derive(Clone)]
pub struct PositionRows {
    /// A row for each position.
    pub rows: Arc<dyn Rows>,
    /// The id of the padding token. A padding token has its id as its position, wherever it stands,
    /// and the others are counted from the next.
    pub padding: u32,
}

impl Lookup {
    /// Sets the inputs of a text, padded on the right with token 0.
    pub(super) fn fill(
        &self,
        instance: &mut dyn Instance,
        tokens: &[u32],
        n_tokens: usize,
    ) -> Result<(), RunError> {
        let padded = || tokens.iter().chain(std::iter::repeat(&0)).take(n_tokens);
        let rows = padded().map(|token| *token as usize);
        set_columns(
            instance,
            "token_embedding",
            self.tokens.as_ref(),
            (rows, n_tokens),
        )?;
        let Some(PositionRows { rows, padding }) = &self.positions else {
            return Ok(());
        };
        let mut position = *padding as usize;
        let positions = padded().map(|token| match token == padding {
            true => *padding as usize,
            false => {
                position += 1;
                position
            }
        });
        set_columns(
            instance,
            "position_embedding",
            rows.as_ref(),
            (positions, n_tokens),
        )
    }
}

fn set_columns(
    instance: &mut dyn Instance,
    input: &str,
    table: &dyn Rows,
    (rows, n): (impl Iterator<Item = usize>, usize),
) -> Result<(), RunError> {
    let bytes = instance.input(input, &[1, table.n_columns(), 1, n])?;
    table_columns(bytes, (input, DType::Fp16), table, (rows, n))
}
