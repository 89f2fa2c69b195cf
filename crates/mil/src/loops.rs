//! What the loops of one call have done so far. Nested loops multiply their rounds, so what a call
//! may do is counted for all of its loops together. An op outside of loops has a limit of its own.

use crate::backend::Limits;
use crate::evaluate::{HostTensor, Value};
use crate::opset::OpDef;
use crate::types::{DType, TensorType};

/// Elements that a step counts as, whatever it reads: planning and dispatch take as long.
const STEP: f64 = 256.0;
/// Multiplications, or comparisons, that count as one element.
const MULTIPLICATIONS: f64 = 16.0;

/// The count of one call.
#[derive(Clone, Debug)]
pub struct Loops {
    limits: Limits,
    /// Loops that run now, each inside the one before.
    depth: usize,
    rounds: usize,
    elements: f64,
}

impl Loops {
    /// Nothing has run yet.
    pub fn within(limits: Limits) -> Self {
        Self {
            limits,
            depth: 0,
            rounds: 0,
            elements: 0.0,
        }
    }

    /// A loop begins.
    pub fn enter(&mut self) {
        self.depth += 1;
    }

    /// A loop has ended.
    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Counts a round, of whichever loop.
    ///
    /// # Errors
    ///
    /// In words, if that is one more than a call may have; so of the methods below.
    pub fn round(&mut self) -> Result<(), String> {
        self.rounds += 1;
        let most = self.limits.rounds;
        match self.rounds <= most {
            true => Ok(()),
            false => Err(format!(
                "expected at most {most} rounds of all loops of a call, found more: a loop does \
                 not end, or nested loops have too many rounds together"
            )),
        }
    }

    /// Counts a step, if it is inside of a loop.
    pub fn step(&mut self) -> Result<(), String> {
        self.add(STEP)
    }

    /// Refuses an op that takes more than one op may, wherever it is, and counts what it reads and
    /// writes if it is inside of a loop.
    pub fn op<T: HostTensor>(
        &mut self,
        def: &OpDef,
        args: &[Option<Value<T>>],
        results: &[TensorType],
    ) -> Result<(), String> {
        let (elements, most) = (elements(def, args, results), self.limits.op_elements);
        if elements > most as f64 {
            return Err(format!(
                "expected an op that reads and writes at most {most} elements, where \
                 {MULTIPLICATIONS} multiplications count as one, found {elements:.1e}"
            ));
        }
        self.add(elements)
    }

    /// Counts elements that are read or written, if that is inside of a loop.
    pub fn add(&mut self, elements: f64) -> Result<(), String> {
        if self.depth == 0 {
            return Ok(());
        }
        self.elements += elements;
        let most = self.limits.loop_elements;
        match self.elements <= most as f64 {
            true => Ok(()),
            false => Err(format!(
                "expected loops that read and write at most {most} elements in a call, found more: \
                 a loop does not end, or has too many rounds for tensors of this size"
            )),
        }
    }
}

/// Elements that an op reads and writes, with its multiplications.
fn elements<T: HostTensor>(def: &OpDef, args: &[Option<Value<T>>], results: &[TensorType]) -> f64 {
    let written: f64 = results
        .iter()
        .map(|ty| ty.n_elements().unwrap_or(0) as f64)
        .sum();
    let given = |args: &[Option<Value<T>>]| -> f64 {
        let tensors = args.iter().flatten().flat_map(Value::tensors);
        tensors.map(len).sum()
    };
    if def.kind.moves() {
        // Of the first argument, only what moves is read, unless it becomes fp32 first.
        let [first, rest @ ..] = args else {
            return written;
        };
        let tensors = first.iter().flat_map(Value::tensors);
        let halves = tensors.filter(|t| t.dtype() == DType::Fp16);
        return written + given(rest) + halves.map(len).sum::<f64>();
    }
    let args = Named { def, args };
    given(args.args) + written + multiplications(args, written) / MULTIPLICATIONS
}

/// The arguments of an op by name.
#[derive(Clone, Copy)]
struct Named<'a, T> {
    def: &'a OpDef,
    args: &'a [Option<Value<T>>],
}

impl<'a, T: HostTensor> Named<'a, T> {
    fn tensors(&self, name: &str) -> &'a [T] {
        let value = self.def.param_index(name).and_then(|i| self.args.get(i));
        value
            .and_then(Option::as_ref)
            .map_or(&[], |value| value.tensors())
    }

    fn len(&self, name: &str) -> f64 {
        self.tensors(name).first().map_or(0.0, len)
    }

    /// A dimension, counted from the last, which is 0; 1 if there is none.
    fn dim(&self, name: &str, from_last: usize) -> f64 {
        let tensor = self.tensors(name).first();
        let dim = tensor.and_then(|t| t.shape().iter().rev().nth(from_last));
        dim.map_or(1.0, |n| *n as f64)
    }

    /// Elements of a row of a weight.
    fn per_row(&self, name: &str) -> f64 {
        let n_rows = self.tensors(name).first().and_then(|t| t.shape().first());
        self.len(name) / n_rows.map_or(1.0, |n| *n as f64).max(1.0)
    }

    /// The product of the elements.
    fn product(&self, name: &str) -> f64 {
        let mut product = 1.0;
        if let Some(sizes) = self.tensors(name).first() {
            sizes.each(|size| product *= size);
        }
        product
    }
}

/// Multiplications, comparisons or additions of an op beside one for each element that it reads or
/// writes, which is what an op of no row here takes.
fn multiplications<T: HostTensor>(args: Named<'_, T>, written: f64) -> f64 {
    match args.def.name {
        // Each output adds up a window of the weight [outputs, inputs, ..]. Of a transposed
        // convolution, each input is multiplied with what belongs to it of [inputs, outputs, ..].
        "conv" | "conv_quantized" => written * args.per_row("weight"),
        "conv_transpose" => args.len("x") * args.per_row("weight"),
        // x [.., inputs]; the first of two values [.., channels, height, width] is summed over
        // width.
        "linear" => written * args.dim("x", 0),
        "matmul" => {
            let transposed = args.tensors("transpose_x").first();
            let is_transposed = transposed.is_some_and(HostTensor::is_true);
            written * args.dim("x", usize::from(is_transposed))
        }
        "einsum" => written * args.dim("values", 0),
        // Scores query [.., L, E] x key [.., S, E], their exponentials, and as many products with
        // value [.., S, EV] as there are scores.
        "scaled_dot_product_attention" => {
            let n_scores = args.len("query") / args.dim("query", 0).max(1.0) * args.dim("key", 1);
            n_scores * (args.dim("query", 0) + args.dim("value", 0) + MULTIPLICATIONS)
        }
        // Padding is not read.
        "avg_pool" | "l2_pool" | "max_pool" => {
            written * args.product("kernel_sizes").min(args.len("x"))
        }
        "local_response_norm" => written * args.product("size").min(args.len("x")),
        // Each step of each sequence is multiplied with all weights; x [steps, sequences, ..].
        "rnn" | "gru" | "lstm" => {
            let weights = ["weight_ih", "weight_hh", "weight_ih_back", "weight_hh_back"];
            let weights: f64 = weights.iter().map(|name| args.len(name)).sum();
            args.dim("x", 2) * args.dim("x", 1) * weights
        }
        // Each box is compared with all that are kept.
        "non_maximum_suppression" => {
            let n_boxes = args.len("boxes") / 4.0;
            n_boxes * args.product("max_boxes").min(n_boxes)
        }
        "argsort" => args.len("x") * args.len("x").max(2.0).log2(),
        // Up to so many are kept in order while the rest is read once; more are sorted.
        "topk" => args.len("x") * args.product("k").clamp(1.0, 256.0),
        _ => 0.0,
    }
}

fn len<T: HostTensor>(tensor: &T) -> f64 {
    tensor.n_elements() as f64
}
