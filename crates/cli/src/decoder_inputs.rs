//! Generated inputs of decoders in the Neural Engine form: random positions, write ranges and masks
//! would not be valid. They are those of a first call, whose tokens begin at position 0 of an empty
//! cache (ARCHITECTURE.md lists the inputs).

use thane_mil::literal::f64_to_f16;
use thane_mil::program::Function;
use thane_mil::types::{DType, TensorType, Type};

/// The score of a masked key, as `thane run` sets it.
const MASKED_SCORE: f64 = -1e4;

/// The lengths of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderCall {
    /// Tokens of the call.
    n_tokens: usize,
    /// Tokens that the cache holds.
    context: usize,
}

/// Elements of an input, and what they are.
pub struct Value {
    pub bytes: Vec<u8>,
    pub what: String,
}

impl DecoderCall {
    /// The lengths of a function, if it has the inputs of the Neural Engine form.
    pub fn of(f: &Function) -> Option<Self> {
        let shape = |name: &str, dtype: DType| {
            let mut inputs = f.body().inputs.iter().map(|v| f.value(*v));
            let value = inputs.find(|v| v.name == name)?;
            match &value.ty {
                Type::Tensor(ty) if ty.dtype == dtype => ty.known_shape(),
                _ => None,
            }
        };
        let ranges = ["write_begin", "write_end"].map(|name| shape(name, DType::Int32));
        if ranges.iter().any(|shape| shape.as_deref() != Some(&[4])) {
            return None;
        }
        let positions = shape("positions", DType::Int32)?;
        let mask = shape("full_mask", DType::Fp16)?;
        match (&positions[..], &mask[..]) {
            ([n], [1, 1, rows, columns]) if n == rows && columns > n => Some(Self {
                n_tokens: *n,
                context: columns - n,
            }),
            _ => None,
        }
    }

    /// The elements of an input that depends on where the tokens are; `None` for other inputs.
    pub fn value(self, name: &str, ty: &TensorType) -> Option<Value> {
        let n = self.n_tokens;
        let end = i32::try_from(n).ok()?;
        let is = |bytes: Vec<u8>, what: String| {
            let due = ty.known_shape()?.iter().product();
            (ty.dtype.byte_len(due) == Some(bytes.len())).then_some(Value { bytes, what })
        };
        match name {
            "positions" => is(ints(0..end), format!("0 to {}", n.saturating_sub(1))),
            "write_begin" => is(ints([0; 4]), "from position 0".to_owned()),
            "write_end" => is(ints([0, 0, end, 0]), format!("up to position {n}")),
            "full_mask" | "sliding_mask" => is(
                self.mask(),
                "each token attends to itself and those before".to_owned(),
            ),
            "last_token" => is(
                halves((0..n).map(|i| if i + 1 == n { 1.0 } else { 0.0 })),
                format!("1 at token {}", n.saturating_sub(1)),
            ),
            _ => None,
        }
    }

    /// The mask [tokens, context + tokens] of an empty cache.
    fn mask(self) -> Vec<u8> {
        let columns = self.context + self.n_tokens;
        let score = |row: usize, column: usize| {
            let is_seen = column >= self.context && column - self.context <= row;
            if is_seen { 0.0 } else { MASKED_SCORE }
        };
        halves((0..self.n_tokens).flat_map(|row| (0..columns).map(move |c| score(row, c))))
    }
}

fn ints(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

fn halves(values: impl Iterator<Item = f64>) -> Vec<u8> {
    values.flat_map(|v| f64_to_f16(v).to_le_bytes()).collect()
}
