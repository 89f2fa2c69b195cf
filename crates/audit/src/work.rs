//! The work of an op on any backend: operations, bytes, and the kind of work.
//!
//! Sizes are floats, so that no program overflows them. An axis that the program leaves open has
//! the length of the call that is priced ([`View::priced_shape`]).

use thane_mil::graph::wrap;
use thane_mil::opset::OpKind;
use thane_mil::program::{Arg, Op, OpId, ValueId};

use crate::plan::stream::Gemm;
use crate::target::Figure;
use crate::view::View;
use crate::weight::Stored;

/// The kind of work of an op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A product with constant weights; the value is the operand that holds them.
    Product(Gemm, ValueId),
    /// A product of two activations.
    Matmul,
    /// Attention in one op: scores, softmax, weighted sum.
    Attention,
    /// An elementwise op of one input.
    Unary,
    /// Any other elementwise op.
    Elementwise,
    /// A sum, mean, maximum over axes.
    Reduction,
    /// Softmax.
    Softmax,
    /// A norm.
    Normalization,
    /// A pool.
    Pool,
    /// A texture op: resizing, resampling.
    Resize,
    /// A permutation of elements: a transpose.
    Transpose,
    /// A copy of runs of elements.
    Copy,
    /// No work: a reshape that keeps the last axis, or a transpose that moves axes of length 1.
    Free,
    /// A sort of some kind.
    TopK,
    /// A recurrent layer.
    Recurrent(Steps),
    /// Reading or writing a state.
    State,
    /// Anything else.
    Other,
}

/// The steps of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// Steps, of both directions.
    pub n: f64,
    /// Operations of all of them.
    pub flops: f64,
    /// Bytes of the weights that a step reads: those of one direction.
    pub weight_bytes: f64,
}

/// The operations and bytes of an op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Kind of work.
    pub kind: Kind,
    /// Operations; a multiplication and an addition are two.
    pub flops: f64,
    /// Bytes of operands that are computed at run time.
    pub input_bytes: f64,
    /// Bytes of results.
    pub output_bytes: f64,
    /// Bytes of constant operands, at the width that the op reads; of a table, those of the rows
    /// that are read.
    pub constant_bytes: f64,
    /// Elements of the largest operand that is computed at run time.
    pub inputs: f64,
    /// Elements of results.
    pub outputs: f64,
    /// Bytes of computed operands that the op does not read, since it copies parts of them.
    pub skipped_bytes: f64,
    /// The constant that the op copies parts of, as a lookup of embeddings does.
    pub table: Option<ValueId>,
}

impl Work {
    /// The work of an op of a function.
    pub fn of(view: &View<'_>, id: OpId) -> Self {
        let op = view.op(id);
        let (mut input_bytes, mut constant_bytes, mut inputs) = (0.0, 0.0, 0.0f64);
        let (copied, mut skipped_bytes) = (copied(view, op), 0.0);
        let table = copied.filter(|x| view.is_constant(*x));
        for value in op.uses() {
            if table == Some(value) {
                constant_bytes += copied_bytes(view, op, value);
            } else if view.is_constant(value) {
                constant_bytes += bytes(view, value);
            } else {
                let whole = bytes(view, value);
                input_bytes += whole;
                inputs = inputs.max(count(view, value));
                if copied == Some(value) {
                    skipped_bytes += whole - copied_bytes(view, op, value);
                }
            }
        }
        let output_bytes = op.results.iter().map(|r| bytes(view, *r)).sum();
        let outputs = op.results.iter().map(|r| count(view, *r)).sum();
        let kind = kind(view, op);
        let flops = flops(view, op, kind, inputs, outputs);
        Self {
            kind,
            flops,
            input_bytes,
            output_bytes,
            constant_bytes,
            inputs,
            outputs,
            skipped_bytes,
            table,
        }
    }

    /// Bytes of all operands and results.
    pub fn bytes(&self) -> f64 {
        self.input_bytes + self.constant_bytes + self.output_bytes
    }

    /// Bytes that are read and written.
    pub fn moved_bytes(&self) -> f64 {
        self.bytes() - self.skipped_bytes
    }

    /// Whether all of an operand must be there before any result is, which a fused chain cannot be
    /// tiled through. Of the operands of a product only the smallest must.
    pub fn takes_all(&self, is_smallest: bool) -> bool {
        use Kind::{Attention, Matmul, Normalization, Reduction, Softmax, TopK, Transpose};
        match self.kind {
            Matmul => is_smallest,
            Attention | Normalization | Reduction | Softmax | Transpose | TopK => true,
            _ => false,
        }
    }
}

/// The matrices of a recurrent layer.
const RECURRENT_WEIGHTS: [&str; 4] = ["weight_ih", "weight_hh", "weight_ih_back", "weight_hh_back"];

/// The steps of a recurrent layer, if the op is one. Each multiplies the matrices of its direction
/// with a vector for each sequence.
fn steps(view: &View<'_>, op: &Op) -> Option<Steps> {
    if !["lstm", "gru", "rnn"].contains(&op.def.name) {
        return None;
    }
    let x = shape(view, op.value_arg("x")?);
    let (length, batch) = (x.first().copied()?, x.get(1).copied().unwrap_or(1.0));
    let matrices = || RECURRENT_WEIGHTS.iter().filter_map(|w| op.value_arg(w));
    let elements: f64 = matrices().map(|w| count(view, w)).sum();
    let directions = if op.arg("weight_ih_back").is_some() {
        2.0
    } else {
        1.0
    };
    Some(Steps {
        n: length * directions,
        flops: 2.0 * elements * length * batch,
        weight_bytes: matrices().map(|w| bytes(view, w)).sum::<f64>() / directions,
    })
}

/// Lengths of the axes of a value.
pub fn shape(view: &View<'_>, value: ValueId) -> Vec<f64> {
    view.priced_shape(value)
        .into_iter()
        .map(|n| n as f64)
        .collect()
}

/// Elements of a value, capped at more than any memory holds.
pub fn count(view: &View<'_>, value: ValueId) -> f64 {
    const MOST: f64 = 1e30;
    let is_tensor = view.f.value(value).ty.tensor_or_state().is_some();
    if is_tensor {
        shape(view, value).into_iter().product::<f64>().min(MOST)
    } else {
        0.0
    }
}

/// Bytes of a value.
pub fn bytes(view: &View<'_>, value: ValueId) -> f64 {
    let bits = view
        .f
        .value(value)
        .ty
        .tensor_or_state()
        .map_or(0, |t| t.dtype.bits());
    count(view, value) * bits as f64 / 8.0
}

/// The operand that an op copies parts of.
fn copied(view: &View<'_>, op: &Op) -> Option<ValueId> {
    let copies = [
        "gather",
        "gather_along_axis",
        "gather_nd",
        "slice_by_index",
        "slice_by_size",
    ];
    let x = op.value_arg("x")?;
    let is_value = view.f.value(x).ty.tensor().is_some();
    (is_value && copies.contains(&op.def.name)).then_some(x)
}

/// Bytes that an op reads of what it copies from: results times the bytes of an element, whole
/// lines where the elements of a row are not together, and never more than there are.
fn copied_bytes(view: &View<'_>, op: &Op, table: ValueId) -> f64 {
    let whole = bytes(view, table);
    let results: f64 = op.results.iter().map(|r| count(view, *r)).sum();
    let n = count(view, table);
    if n == 0.0 || results == 0.0 {
        return 0.0;
    }
    let each = whole / n;
    let row = row(view, op, table).max(1.0);
    (results / row * (row * each).max(LINE_BYTES.value)).min(whole)
}

/// The axis of an op on a value of `rank` axes, or `default`; of negative numbers from the last.
pub fn axis(view: &View<'_>, op: &Op, rank: usize, default: i64) -> usize {
    let axis = int(view, op, "axis").unwrap_or(default);
    let at = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(at).unwrap_or(0)
}

/// Elements that lie side by side and are copied together.
fn row(view: &View<'_>, op: &Op, table: ValueId) -> f64 {
    let dims = shape(view, table);
    let behind = |axis: usize| dims.iter().skip(axis).product::<f64>();
    match op.def.name {
        "gather" => behind(axis(view, op, dims.len(), 0) + 1),
        "gather_nd" => {
            let indices = op.value_arg("indices").map(|v| shape(view, v));
            let n = indices
                .and_then(|s| s.last().copied())
                .map_or(0, |n| n as usize);
            let batch = int(view, op, "batch_dims").unwrap_or(0);
            behind(n + usize::try_from(batch).unwrap_or(0))
        }
        "gather_along_axis" => 1.0,
        _ => op
            .results
            .first()
            .and_then(|r| shape(view, *r).last().copied())
            .unwrap_or(1.0),
    }
}

fn kind(view: &View<'_>, op: &Op) -> Kind {
    if let Some((gemm, weight)) = product(view, op) {
        return Kind::Product(gemm, weight);
    }
    if let Some(steps) = steps(view, op) {
        return Kind::Recurrent(steps);
    }
    match op.def.kind {
        OpKind::Product => Kind::Matmul,
        OpKind::Attention => Kind::Attention,
        OpKind::Unary | OpKind::Channelwise => Kind::Unary,
        OpKind::Elementwise | OpKind::Random => Kind::Elementwise,
        OpKind::Reduction => Kind::Reduction,
        OpKind::Softmax => Kind::Softmax,
        OpKind::Normalization => Kind::Normalization,
        OpKind::Pool => Kind::Pool,
        OpKind::Resample => Kind::Resize,
        OpKind::Reshape if !keeps_rows(view, op) => Kind::Transpose,
        OpKind::Rearrange if moves_nothing(view, op) => Kind::Free,
        OpKind::Rearrange => Kind::Transpose,
        OpKind::Copy | OpKind::Fill => Kind::Copy,
        OpKind::Cast | OpKind::Reshape | OpKind::Shape | OpKind::View => Kind::Free,
        OpKind::Sort => Kind::TopK,
        OpKind::State => Kind::State,
        OpKind::Constant | OpKind::Control | OpKind::List | OpKind::Other => Kind::Other,
    }
}

/// Whether the last axis of a reshape stays as long as it is.
fn keeps_rows(view: &View<'_>, op: &Op) -> bool {
    let last = |value: Option<ValueId>| value.and_then(|v| shape(view, v).last().copied());
    last(op.value_arg("x")) == last(op.results.first().copied())
}

/// Whether a transpose keeps the last axis and the order of all axes longer than 1, so that each
/// element stays where it is: `repeat_interleave` of one head of keys has two of these.
fn moves_nothing(view: &View<'_>, op: &Op) -> bool {
    let (Some(x), Some(perm)) = (op.value_arg("x"), ints(view, op, "perm")) else {
        return false;
    };
    let dims = shape(view, x);
    let perm: Option<Vec<usize>> = perm.iter().map(|axis| wrap(*axis, dims.len())).collect();
    let Some(perm) = perm.filter(|perm| perm.len() == dims.len()) else {
        return false;
    };
    let long = perm.iter().filter(|axis| dims[**axis] != 1.0);
    op.def.name == "transpose"
        && long.is_sorted()
        && perm.last().map(|a| dims[*a]) == dims.last().copied()
}

/// The product with constant weights that an op is, if it is one.
fn product(view: &View<'_>, op: &Op) -> Option<(Gemm, ValueId)> {
    let result = *op.results.first()?;
    let outputs_of = |weight: ValueId| Stored::of(view.f, weight);
    match op.def.name {
        "linear" => {
            let weight = op.value_arg("weight").filter(|w| view.is_constant(*w))?;
            let [outputs, inputs] = shape(view, weight)[..] else {
                return None;
            };
            let positions = count(view, result) / outputs.max(1.0);
            let gemm = Gemm::matrix(inputs, outputs, positions, outputs_of(weight));
            Some((quantized(view, op, gemm), weight))
        }
        "matmul" => constant_matmul(view, op, result),
        "conv" | "conv_quantized" => convolution(view, op, result),
        "conv_transpose" => {
            let weight = op.value_arg("weight").filter(|w| view.is_constant(*w))?;
            let [inputs, outputs, ref kernel @ ..] = shape(view, weight)[..] else {
                return None;
            };
            let taps: f64 = kernel.iter().product();
            let x = op.value_arg("x")?;
            // Each input position meets every tap of the kernel.
            let positions = count(view, x) / shape(view, x).get(1).copied().unwrap_or(1.0).max(1.0);
            let gemm = Gemm::matrix(inputs, outputs * taps, positions, outputs_of(weight));
            Some((Gemm { taps, ..gemm }, weight))
        }
        _ => None,
    }
}

/// A `matmul` of which one operand is constant.
fn constant_matmul(view: &View<'_>, op: &Op, result: ValueId) -> Option<(Gemm, ValueId)> {
    let (x, y) = (op.value_arg("x")?, op.value_arg("y")?);
    let (weight, other) = match (view.is_constant(x), view.is_constant(y)) {
        (false, true) => (y, x),
        (true, false) => (x, y),
        _ => return None,
    };
    let n_weights = count(view, weight);
    let inputs = contraction(view, op)?;
    let outputs = n_weights / inputs.max(1.0);
    let positions = (count(view, result) / outputs.max(1.0))
        .max(count(view, other) / inputs.max(1.0).max(outputs));
    Some((
        Gemm::matrix(inputs, outputs, positions, Stored::of(view.f, weight)),
        weight,
    ))
}

fn convolution(view: &View<'_>, op: &Op, result: ValueId) -> Option<(Gemm, ValueId)> {
    let weight = op.value_arg("weight").filter(|w| view.is_constant(*w))?;
    let [outputs, channels, ref kernel @ ..] = shape(view, weight)[..] else {
        return None;
    };
    let taps: f64 = kernel.iter().product();
    let groups = int(view, op, "groups").unwrap_or(1).max(1) as f64;
    let positions = count(view, result) / outputs.max(1.0);
    let stored = Stored::of(view.f, weight);
    let gemm = Gemm {
        channels: channels * groups,
        taps,
        groups,
        speed: speed(view, op, kernel, groups),
        ..Gemm::matrix(channels * taps, outputs, positions, stored)
    };
    Some((quantized(view, op, gemm), weight))
}

/// Whether a product is int8: both its activations and its weights are.
fn quantized(view: &View<'_>, op: &Op, gemm: Gemm) -> Gemm {
    let made_by =
        |value: Option<ValueId>| value.and_then(|v| view.f.definer(v)).map(|op| op.def.name);
    let activations = made_by(op.value_arg("x")) == Some("dequantize");
    Gemm {
        int8: activations && gemm.stored.bits <= 8.0,
        ..gemm
    }
}

/// What convolutions with kernels of at least 9 columns reach: those of up to 15 are rewritten to
/// sparse ones of stride 2. Wider ones are taken to be no faster.
const WIDE_KERNEL: Figure = Figure::measured(0.6, 0.42, 0.85).by("M6 study: 42 to 85 %");

/// The least that is read of memory at once, in bytes: a cache line.
const LINE_BYTES: Figure = Figure::documented(128.0).by("Apple's specifications");

/// The figures of the work of ops, by name.
pub const FIGURES: [(&str, Figure); 2] = [("wide_kernel", WIDE_KERNEL), ("line_bytes", LINE_BYTES)];

/// How much faster a convolution is than its operations say.
fn speed(view: &View<'_>, op: &Op, kernel: &[f64], groups: f64) -> f64 {
    let ones = |name: &str| ints(view, op, name).is_none_or(|n| n.iter().all(|n| *n == 1));
    match kernel {
        [h, w]
            if *h == 3.0 && *w == 3.0 && groups == 1.0 && ones("strides") && ones("dilations") =>
        {
            view.target.chip.family.winograd.value
        }
        [_, w] if *w >= 9.0 => WIDE_KERNEL.value,
        _ => 1.0,
    }
}

fn ints(view: &View<'_>, op: &Op, name: &str) -> Option<Vec<i64>> {
    view.f.literal_arg(op, name)?.to_ints()
}

fn int(view: &View<'_>, op: &Op, name: &str) -> Option<i64> {
    ints(view, op, name)?.first().copied()
}

/// Elements that a matrix product sums over.
fn contraction(view: &View<'_>, op: &Op) -> Option<f64> {
    let x = shape(view, op.value_arg("x")?);
    let is_flipped = int(view, op, "transpose_x") == Some(1);
    let back = if is_flipped { 2 } else { 1 };
    x.len().checked_sub(back).map(|at| x[at])
}

fn flops(view: &View<'_>, op: &Op, kind: Kind, inputs: f64, outputs: f64) -> f64 {
    match kind {
        Kind::Product(gemm, _) => gemm.flops(),
        Kind::Recurrent(steps) => steps.flops,
        Kind::Matmul if op.def.name == "matmul" => {
            2.0 * outputs * contraction(view, op).unwrap_or(1.0)
        }
        Kind::Matmul => 2.0 * outputs * summed(view, op),
        Kind::Attention => {
            let (scores, width) = scores(view, op);
            2.0 * scores * width + 5.0 * scores
        }
        Kind::Unary | Kind::Elementwise | Kind::Other | Kind::Resize => outputs,
        Kind::Reduction | Kind::Pool | Kind::TopK => inputs,
        Kind::Softmax | Kind::Normalization => 5.0 * outputs,
        Kind::Transpose | Kind::Copy | Kind::Free | Kind::State => 0.0,
    }
}

/// Elements that a convolution or einsum of two activations sums over for a result.
fn summed(view: &View<'_>, op: &Op) -> f64 {
    if let Some(weight) = op.value_arg("weight") {
        return shape(view, weight).iter().skip(1).product();
    }
    let first = match op.arg("values") {
        Some(Arg::Values(values)) => values.first().copied(),
        _ => None,
    };
    // nchw,nwhr->nchr sums up the last axis of the first.
    first
        .and_then(|v| shape(view, v).last().copied())
        .unwrap_or(1.0)
}

/// Elements of the scores of attention, and the width of keys and values together.
pub fn scores(view: &View<'_>, op: &Op) -> (f64, f64) {
    let of = |name: &str| op.value_arg(name).map_or(Vec::new(), |v| shape(view, v));
    let (query, key, value) = (of("query"), of("key"), of("value"));
    let last = |s: &[f64]| s.last().copied().unwrap_or(1.0);
    let rows = |s: &[f64]| s.len().checked_sub(2).map_or(1.0, |at| s[at]);
    let outer: f64 = query[..query.len().saturating_sub(2)].iter().product();
    (
        outer * rows(&query) * rows(&key),
        last(&query) + last(&value),
    )
}
