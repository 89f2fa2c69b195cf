//! What the loops of one call have done so far. Nested loops multiply their rounds, so what a call
//! may do is counted for all of its loops together.

use crate::backend::Limits;
use crate::evaluate::{HostTensor, Value};
use crate::opset::{OpDef, OpKind};
use crate::types::TensorType;

/// Elements that a step counts as, whatever it reads: planning and dispatch take as long.
const STEP: f64 = 256.0;
/// Multiplications of a product that count as one element.
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

    /// Counts what an op reads and writes, if it is inside of a loop.
    pub fn op<T: HostTensor>(
        &mut self,
        def: &OpDef,
        args: &[Option<Value<T>>],
        results: &[TensorType],
    ) -> Result<(), String> {
        if self.depth == 0 {
            return Ok(());
        }
        self.add(elements(def, args, results))
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
    if def.kind.moves() {
        return written;
    }
    let given = args.iter().flatten().flat_map(Value::tensors);
    let (mut read, mut largest) = (0.0, [0.0f64; 2]);
    for len in given.map(|t| t.n_elements() as f64) {
        read += len;
        let [first, second] = largest;
        largest = [first.max(len), second.max(first.min(len))];
    }
    let arg = |name: &str| {
        let values = def.param_index(name).and_then(|i| args.get(i)?.as_ref())?;
        values.tensors().first()
    };
    let multiplications = match (def.kind, def.name) {
        // Each output adds up a window of the weight [outputs, inputs, ..]. Of a transposed
        // convolution, each input is multiplied with what belongs to it of [inputs, outputs, ..].
        (_, "conv") => written * per_row(arg("weight")),
        (_, "conv_transpose") => arg("x").map_or(0.0, len) * per_row(arg("weight")),
        (OpKind::Pool, _) => written * product(arg("kernel_sizes")),
        (_, "local_response_norm") => written * product(arg("size")),
        // Each step of each sequence is multiplied with all weights.
        (_, "rnn" | "gru" | "lstm") => {
            let weights = ["weight_ih", "weight_hh", "weight_ih_back", "weight_hh_back"];
            let weights = weights.map(|name| arg(name).map_or(0.0, len));
            let n_steps = arg("x").map_or(0.0, |x| {
                x.shape().iter().take(2).map(|n| *n as f64).product()
            });
            n_steps * weights.iter().sum::<f64>()
        }
        // Each box is compared with all that are kept.
        (_, "non_maximum_suppression") => {
            arg("scores").map_or(0.0, len) * product(arg("max_boxes"))
        }
        // n * k, k * m and n * m elements take n * k * m multiplications.
        (OpKind::Product | OpKind::Attention | OpKind::Other, _) => {
            (largest[0] * largest[1] * written.max(1.0)).sqrt()
        }
        _ => 0.0,
    };
    read + written + multiplications / MULTIPLICATIONS
}

fn len<T: HostTensor>(tensor: &T) -> f64 {
    tensor.n_elements() as f64
}

/// Elements of a row of a weight.
fn per_row<T: HostTensor>(weight: Option<&T>) -> f64 {
    weight.map_or(0.0, |w| {
        len(w) / w.shape().first().map_or(1.0, |n| *n as f64)
    })
}

/// The product of the elements.
fn product<T: HostTensor>(sizes: Option<&T>) -> f64 {
    let mut product = 1.0;
    if let Some(sizes) = sizes {
        sizes.each(|size| product *= size);
    }
    product
}
