//! Generated inputs of decoders in the Neural Engine form: random positions, write ranges and masks
//! would not be valid. They are those of a first call, whose tokens begin at position 0 of an empty
//! cache (ARCHITECTURE.md lists the inputs).

use thane_engine::chain::first_mask;
use thane_mil::literal::f64_to_f16;
use thane_mil::program::Function;
use thane_mil::types::{DType, TensorType, Type};

/// The inputs of which a decoder has at least one.
const MASKS: [&str; 3] = ["full_mask", "sliding_mask", "streaming_mask"];

/// The lengths of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderCall {
    /// Tokens of the call.
    n_tokens: usize,
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
        // A chunk may have layers of one kind only.
        let mask = |name| shape(name, DType::Fp16);
        let mut masks = MASKS.into_iter();
        let mask = masks.find_map(mask)?;
        let &[1, 1, n_tokens, columns] = mask.as_slice() else {
            return None;
        };
        columns.checked_sub(n_tokens).filter(|n| *n > 0)?;
        // Positions are left out where the caller looks up what depends on them.
        let fits =
            |name: &str, due: &[usize]| shape(name, DType::Int32).is_none_or(|shape| shape == due);
        let all_fit =
            fits("positions", &[n_tokens]) && fits("write_begin", &[4]) && fits("write_end", &[4]);
        all_fit.then_some(Self { n_tokens })
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
            name if MASKS.contains(&name) => is(
                halves(first_mask(n, ty.known_shape()?.last().copied()?)),
                "each token attends to itself and those before".to_owned(),
            ),
            "last_token" => is(
                halves((0..n).map(|i| if i + 1 == n { 1.0 } else { 0.0 })),
                format!("1 at token {}", n.saturating_sub(1)),
            ),
            _ if ["conv_cache_", "recurrent_"]
                .iter()
                .any(|p| name.starts_with(p)) =>
            {
                let n_elements = ty.known_shape()?.iter().product();
                let zeros = vec![0; ty.dtype.byte_len(n_elements)?];
                is(zeros, "nothing before the first token".to_owned())
            }
            _ => None,
        }
    }
}

fn ints(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

fn halves(values: impl Iterator<Item = f32>) -> Vec<u8> {
    let bytes = |v: f32| f64_to_f16(f64::from(v)).to_le_bytes();
    values.flat_map(bytes).collect()
}
