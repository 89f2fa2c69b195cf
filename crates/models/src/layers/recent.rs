//! What a layer without attention remembers of earlier calls, in functions of fixed length.

use std::cell::RefCell;

use thane_mil::program::ValueId;

use crate::graph::{Graph, ValueResult};

/// A tensor that a layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Name of the input that holds it, without the number of the layer.
    pub name: &'static str,
    /// Dimensions; the first is 1.
    pub shape: [usize; 4],
}

impl Memory {
    /// What so many sequences remember, one after another along the second axis.
    pub fn of_lanes(self, n: usize) -> Self {
        let [one, a, b, c] = self.shape;
        let shape = [one, n * a, b, c];
        Self { shape, ..self }
    }
}

/// A tensor as it was before the call, and where the layer leaves what the next call needs.
#[derive(Clone, Copy, Debug)]
pub struct Recent<'a> {
    /// The tensor before the call.
    pub past: ValueId,
    /// The tensors after the call, in the order of layers and their parts.
    pub kept: &'a RefCell<Vec<ValueId>>,
    /// Whether each token is of a sequence of its own: the tensor is that of
    /// [`Memory::of_lanes`].
    pub in_lanes: bool,
}

impl Recent<'_> {
    /// Leaves the tensor after the call.
    pub fn keep(self, value: ValueId) {
        self.kept.borrow_mut().push(value);
    }

    /// The columns of the tokens before the call, which are remembered as rows [1, 1, m, channels],
    /// followed by those of `x` [1, channels, 1, n]: [1, channels, 1, m + n]. The last m are kept.
    ///
    /// Of n sequences side by side, the tokens before are [1, n, m, channels], and their windows
    /// [1, channels, m + 1, n].
    pub fn window(self, g: &mut Graph, x: ValueId) -> ValueResult {
        let (to_columns, to_rows, axis) = match self.in_lanes {
            true => ([0, 3, 2, 1], [0, 3, 2, 1], 2),
            false => ([0, 3, 1, 2], [0, 2, 3, 1], 3),
        };
        let past = g.transpose(self.past, &to_columns)?;
        let window = g.join("concat", &[past, x], axis)?;
        let mut first = [0; 4];
        first[axis as usize] = g.len_along(x, axis) as i32;
        let (begin, end) = (g.ints(&first)?, g.ints(&[0; 4])?);
        let but_tokens = g.bools(&[0, 1, 2, 3].map(|other| other != axis))?;
        let all = g.bools(&[true; 4])?;
        let last = g.slice("kept", window, [begin, end], [but_tokens, all])?;
        let rows = g.transpose(last, &to_rows)?;
        self.keep(rows);
        Ok(window)
    }
}
