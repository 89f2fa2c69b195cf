//! What a layer without attention remembers of earlier calls, in functions of fixed length.

use std::cell::RefCell;

use thane_mil::program::ValueId;

use crate::graph::{Graph, ValueResult};

/// A tensor that a layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the input that holds it, without the number of the layer.
    pub name: &'static str,
    /// Dimensions; the first is 1.
    pub shape: [usize; 4],
}

/// A tensor as it was before the call, and where the layer leaves what the next call needs.
#[derive(Clone, Copy, Debug)]
pub struct Recent<'a> {
    /// The tensor before the call.
    pub past: ValueId,
    /// The tensors after the call, in the order of layers and their parts.
    pub kept: &'a RefCell<Vec<ValueId>>,
}

impl Recent<'_> {
    /// Leaves the tensor after the call.
    pub fn keep(self, value: ValueId) {
        self.kept.borrow_mut().push(value);
    }

    /// The columns of the tokens before the call, which are remembered as rows [1, 1, m, channels],
    /// followed by those of `x` [1, channels, 1, n]. The last m are kept.
    pub fn window(self, g: &mut Graph, x: ValueId) -> ValueResult {
        let n = g.shape(x).last().and_then(|dim| dim.known()).unwrap_or(1);
        let past = g.transpose(self.past, &[0, 3, 1, 2])?;
        let window = g.join("concat", &[past, x], 3)?; // [1, channels, 1, m + n]
        let (begin, end) = (g.ints(&[0, 0, 0, n as i32])?, g.ints(&[0; 4])?);
        let but_tokens = g.bools(&[true, true, true, false])?;
        let all = g.bools(&[true; 4])?;
        let args = [
            ("x", window),
            ("begin", begin),
            ("end", end),
            ("begin_mask", but_tokens),
            ("end_mask", all),
        ];
        let last = g.op("slice_by_index", "kept", args)?;
        let rows = g.transpose(last, &[0, 2, 3, 1])?;
        self.keep(rows);
        Ok(window)
    }
}
