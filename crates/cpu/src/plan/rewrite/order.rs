//! Axes in the order in which kernels read them: channels last for convolutions, rows for products.
//!
//! Each value may be held under another order of its axes, so that a transpose is no work until an
//! op needs the elements in one order. A 1x1 convolution becomes a product of rows; other
//! convolutions and pools become `transpose, conv, transpose`, which one kernel computes.
//!
//! ```text
//! %y: [1, c, 1, n] = conv(x: %x, weight: %w)                       // 1x1
//! %z: [1, c, 1, n] = relu(x: %y)
//! ```
//! becomes
//! ```text
//! %x_order: [1, 1, n, k] = transpose(perm: [0, 2, 3, 1], x: %x)
//! %y: [1, 1, n, c] = linear(x: %x_order, weight: %w)
//! %z: [1, 1, n, c] = relu(x: %y)
//! ```

mod conv;
mod groups;
mod ops;

use std::collections::HashMap;

use thane_mil::copy::{Copier, NamedArgs, args};
use thane_mil::graph::folded;
use thane_mil::literal::Literal;
use thane_mil::opset::OpKind;
use thane_mil::program::{Arg, Function, Op, OpId, ValueId};
use thane_mil::types::TensorType;

use super::{add, is_as_known};
use crate::plan::is_plain;
pub use groups::{groups, orders};

/// Axes of a value in the order in which they are held.
type Order = Vec<usize>;

/// A new value, and the order of the old value's axes that it has.
#[derive(Clone, Debug)]
struct Form {
    order: Order,
    value: ValueId,
}

/// The function with its values in the orders that suit its ops; `None` where it has nested blocks,
/// or no op that asks for another order than its own.
pub fn order(f: &Function) -> Option<Function> {
    let ops = f.all_ops();
    let is_nested = ops.iter().any(|op| !f.op(*op).blocks.is_empty());
    if is_nested || !asks(f, &ops) {
        return None;
    }
    let mut pass = Ordering {
        copy: Copier::new(f),
        is_constant: folded(f, is_plain),
        forms: HashMap::new(),
        wider: HashMap::new(),
    };
    pass.copy.inputs();
    for &id in &f.body().ops {
        pass.op(id)?;
    }
    let mut outputs = Vec::new();
    for v in &f.body().outputs {
        outputs.push(pass.standard(*v)?);
    }
    pass.copy.finish(&outputs).ok()
}

/// Whether there are ops over images, or attention written as products. Programs with
/// `scaled_dot_product_attention` have their axes in the order of its kernels.
fn asks(f: &Function, ops: &[OpId]) -> bool {
    let has = |name: &str| ops.iter().any(|op| f.op(*op).def.name == name);
    let is_of_all_channels = |op: &OpId| {
        let op = f.op(*op);
        let groups = f.literal_arg(op, "groups").and_then(|l| l.to_ints());
        op.def.name == "conv" && groups.is_none_or(|groups| groups == [1])
    };
    let has_products = has("matmul") && has("softmax") && !has("scaled_dot_product_attention");
    has_products
        || ["conv_transpose", "max_pool", "avg_pool"]
            .iter()
            .any(|name| has(name))
        || ops.iter().any(is_of_all_channels)
}

struct Ordering<'a> {
    copy: Copier<'a>,
    /// Whether each old value follows from constants alone.
    is_constant: Vec<bool>,
    /// Forms of old values beside or in place of the one in their own order.
    forms: HashMap<ValueId, Vec<Form>>,
    /// Old values with axes in front, in an order of all of them.
    wider: HashMap<(ValueId, Order), ValueId>,
}

impl<'a> Ordering<'a> {
    fn rank(&self, old: ValueId) -> usize {
        self.tensor(old).map_or(0, TensorType::rank)
    }

    fn tensor(&self, old: ValueId) -> Option<&'a TensorType> {
        self.copy.f.value(old).ty.tensor()
    }

    /// The form that was computed, before all others.
    fn first(&self, old: ValueId) -> Option<Form> {
        if let Some(forms) = self.forms.get(&old) {
            return forms.first().cloned();
        }
        let value = self.copy.get(old)?;
        let order = (0..self.rank(old)).collect();
        Some(Form { order, value })
    }

    fn standard(&mut self, old: ValueId) -> Option<ValueId> {
        let own: Order = (0..self.rank(old)).collect();
        self.get(old, &own)
    }

    /// The value in this order of its axes.
    fn get(&mut self, old: ValueId, order: &[usize]) -> Option<ValueId> {
        let first = self.first(old)?;
        if first.order == order {
            return Some(first.value);
        }
        if let Some(form) = self
            .forms
            .get(&old)
            .and_then(|forms| forms.iter().find(|form| form.order == order))
        {
            return Some(form.value);
        }
        let perm = order
            .iter()
            .map(|axis| first.order.iter().position(|a| a == axis).map(|p| p as i32));
        let perm: Vec<i32> = perm.collect::<Option<_>>()?;
        let name = format!("{}_order", self.copy.name(old));
        let args = vec![("x", Arg::Value(first.value)), ("perm", ints(&perm))];
        let value = self.copy.op("transpose", &name, args).ok()?;
        let form = Form {
            order: order.to_vec(),
            value,
        };
        self.forms
            .entry(old)
            .or_insert_with(|| vec![first])
            .push(form);
        Some(value)
    }

    /// Has a new value in this order stand for an old one.
    fn set(&mut self, old: ValueId, order: Order, value: ValueId) {
        self.forms.insert(old, vec![Form { order, value }]);
    }

    /// Adds an op of the row of `op` for its result, under the result's name.
    fn add(&mut self, op: &'a Op, name: &str, args: NamedArgs) -> Option<Vec<ValueId>> {
        self.copy.to.set_place(&op.origin.place);
        let result = self.copy.name(*op.results.first()?);
        let values = if name == op.def.name {
            self.copy.to.op_of(op.def, result, args, Vec::new()).ok()?
        } else {
            vec![self.copy.op(name, result, args).ok()?]
        };
        let mut pairs = op.results.iter().zip(&values);
        let is_known = pairs.all(|(old, new)| is_as_known(&self.copy, *old, *new));
        is_known.then_some(values)
    }

    fn is_constant(&self, old: ValueId) -> bool {
        self.is_constant[old.index()]
    }

    /// The constant integers of an argument.
    fn int_args(&self, op: &Op, name: &str) -> Option<Vec<i64>> {
        self.copy.f.literal_arg(op, name)?.to_ints()
    }

    fn op(&mut self, id: OpId) -> Option<()> {
        let op = self.copy.f.op(id);
        let done = match op.def.kind {
            OpKind::Unary | OpKind::Cast => self.unary(op),
            OpKind::Elementwise => self.elementwise(op),
            OpKind::Reduction => self.reduction(op),
            OpKind::Softmax => self.along_axis(op, "axis"),
            _ => self.by_name(op),
        };
        match done {
            Some(()) => Some(()),
            None => self.plain(id),
        }
    }

    fn by_name(&mut self, op: &'a Op) -> Option<()> {
        match op.def.name {
            "identity" => self.unary(op),
            "transpose" => self.transpose(op),
            "conv" => self.conv(op),
            "max_pool" | "avg_pool" | "conv_transpose" => self.pool(op),
            "linear" => self.linear(op),
            "matmul" => self.matmul(op),
            "layer_norm" => self.layer_norm(op),
            "concat" => self.concat(op),
            "split" => self.along_axis(op, "axis"),
            "slice_by_index" => self.slice(op),
            "reshape" | "expand_dims" | "squeeze" => self.reshape(op),
            _ => None,
        }
    }

    /// The op on values in their own orders.
    fn plain(&mut self, id: OpId) -> Option<()> {
        let args = args(self.copy.f.op(id), |_, v| self.standard(v))?;
        add(&mut self.copy, id, args, Vec::new())
    }
}

fn ints(values: &[i32]) -> Arg {
    Arg::Literal(Literal::i32s(values))
}

/// The order of channels last: [batch, axes of the image, channels].
fn channels_last(rank: usize) -> Order {
    let axes = std::iter::once(0).chain(2..rank).chain([1]);
    axes.collect()
}

fn is_own(order: &[usize]) -> bool {
    order.iter().enumerate().all(|(i, axis)| i == *axis)
}
