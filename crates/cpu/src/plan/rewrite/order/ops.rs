//! Ops that take their operands in any order of axes.

use thane_mil::copy::{NamedArgs, args};
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Op, ValueId};
use thane_mil::types::TensorType;

use super::super::is_as_known;
use super::groups::{groups, orders};
use super::{Form, Order, Ordering, ints, is_own};

impl<'a> Ordering<'a> {
    /// One result of the kind of `x`, whose other arguments are scalars.
    pub(super) fn unary(&mut self, op: &'a Op) -> Option<()> {
        let x = op.value_arg("x")?;
        let form = self.first(x).filter(|form| !is_own(&form.order))?;
        let args = self.with_x(op, form.value)?;
        let value = *self.add(op, op.def.name, args)?.first()?;
        self.set(op.results[0], form.order, value);
        Some(())
    }

    /// The arguments of an op with another `x`; the others are constants or in their own order.
    pub(super) fn with_x(&mut self, op: &'a Op, x: ValueId) -> Option<NamedArgs> {
        args(op, |name, v| match name {
            "x" => Some(x),
            _ => self.standard(v),
        })
    }

    /// Operands are broadcast: all are brought to one order.
    pub(super) fn elementwise(&mut self, op: &'a Op) -> Option<()> {
        let values: Vec<ValueId> = op.uses().collect();
        let rank = self.rank(op.results[0]);
        let order = self.common_order(&values, rank)?;
        if is_own(&order) {
            return None;
        }
        let args = args(op, |_, v| self.broadcast(v, &order))?;
        let value = *self.add(op, op.def.name, args)?.first()?;
        self.set(op.results[0], order, value);
        Some(())
    }

    /// The order of the operand that most elements would have to be moved for.
    pub(super) fn common_order(&self, values: &[ValueId], rank: usize) -> Option<Order> {
        let len = |v: ValueId| self.tensor(v).and_then(TensorType::n_elements);
        let forms = values.iter().filter(|v| self.rank(**v) == rank);
        let forms = forms.filter(|v| !self.is_constant(**v));
        let forms: Vec<(usize, Form)> = forms
            .map(|v| Some((len(*v).unwrap_or(usize::MAX), self.first(*v)?)))
            .collect::<Option<_>>()?;
        // Of equals one that is not in its own order: what made it wants that.
        let best = forms
            .into_iter()
            .max_by_key(|(len, form)| (*len, !is_own(&form.order)))?;
        Some(best.1.order)
    }

    /// An operand of fewer axes gets those that it lacks, in front.
    fn broadcast(&mut self, old: ValueId, order: &[usize]) -> Option<ValueId> {
        let rank = self.rank(old);
        if rank == order.len() {
            return self.get(old, order);
        }
        let ty = self.tensor(old)?;
        if ty.n_elements() == Some(1) && rank <= 1 {
            return self.standard(old);
        }
        let key = (old, order.to_vec());
        if let Some(wider) = self.wider.get(&key) {
            return Some(*wider);
        }
        // Axis i of the operand is axis i + lacking of the result.
        let lacking = order.len() - rank;
        let own: Order = order
            .iter()
            .filter(|axis| **axis >= lacking)
            .map(|axis| axis - lacking)
            .collect();
        let value = self.get(old, &own)?;
        let missing = order.iter().enumerate();
        let missing = missing.filter(|(_, axis)| **axis < lacking);
        let missing: Vec<i32> = missing.map(|(i, _)| i as i32).collect();
        let name = format!("{}_axes", self.copy.name(old));
        let args = vec![("x", Arg::Value(value)), ("axes", ints(&missing))];
        let wider = self.copy.op("expand_dims", &name, args).ok()?;
        self.wider.insert(key, wider);
        Some(wider)
    }

    /// Where an axis of x is held.
    fn place(order: &[usize], axis: i64) -> Option<usize> {
        let rank = order.len() as i64;
        let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
        order.iter().position(|a| *a == axis)
    }

    pub(super) fn reduction(&mut self, op: &'a Op) -> Option<()> {
        let form = self
            .first(op.value_arg("x")?)
            .filter(|form| !is_own(&form.order))?;
        let (name, axes) = match op.def.param_index("axes") {
            Some(_) => ("axes", self.int_args(op, "axes")?),
            None => ("axis", self.int_args(op, "axis")?),
        };
        let keeps = self.int_args(op, "keep_dims").is_some_and(|k| k == [1]);
        let places: Vec<usize> = axes
            .iter()
            .map(|axis| Self::place(&form.order, *axis))
            .collect::<Option<_>>()?;
        let literal = match (name, places.as_slice()) {
            ("axis", [one]) => Literal::i32(*one as i32),
            _ => Literal::i32s(&places.iter().map(|p| *p as i32).collect::<Vec<_>>()),
        };
        let order: Order = if keeps {
            form.order.clone()
        } else {
            let gone: Vec<usize> = places.iter().map(|p| form.order[*p]).collect();
            let left = form.order.iter().filter(|a| !gone.contains(a));
            left.map(|a| a - gone.iter().filter(|g| *g < a).count())
                .collect()
        };
        self.replaced(op, form.value, &[(name, literal)], order)
    }

    /// An op along one axis of x, with results of its kind.
    pub(super) fn along_axis(&mut self, op: &'a Op, name: &'static str) -> Option<()> {
        let form = self
            .first(op.value_arg("x")?)
            .filter(|form| !is_own(&form.order))?;
        let axis = match op.arg(name) {
            None => -1,
            Some(_) => *self.int_args(op, name)?.first()?,
        };
        let place = Self::place(&form.order, axis)?;
        self.replaced(
            op,
            form.value,
            &[(name, Literal::i32(place as i32))],
            form.order,
        )
    }

    /// The op on another x with other constants; its results have this order.
    fn replaced(
        &mut self,
        op: &'a Op,
        x: ValueId,
        constants: &[(&'static str, Literal)],
        order: Order,
    ) -> Option<()> {
        let args = self.with_x(op, x)?;
        let others = args.into_iter();
        let others = others.filter(|(name, _)| constants.iter().all(|(other, _)| name != other));
        let constants = constants
            .iter()
            .map(|(name, l)| (*name, Arg::Literal(l.clone())));
        let args = others.chain(constants).collect();
        let values = self.add(op, op.def.name, args)?;
        if values.len() != op.results.len() {
            return None;
        }
        for (old, value) in op.results.iter().zip(values) {
            self.set(*old, order.clone(), value);
        }
        Some(())
    }

    /// A norm along the last axis, or a product with it, which may be the last as it is held.
    pub(super) fn layer_norm(&mut self, op: &'a Op) -> Option<()> {
        let form = self
            .first(op.value_arg("x")?)
            .filter(|form| !is_own(&form.order))?;
        let axes = self.int_args(op, "axes")?;
        let &[axis] = axes.as_slice() else {
            return None;
        };
        let place = Self::place(&form.order, axis)?;
        let axes = Literal::i32s(&[place as i32]);
        self.replaced(op, form.value, &[("axes", axes)], form.order)
    }

    pub(super) fn linear(&mut self, op: &'a Op) -> Option<()> {
        let form = self.first(op.value_arg("x")?).filter(|form| {
            !is_own(&form.order) && form.order.last() == Some(&(form.order.len() - 1))
        })?;
        self.replaced(op, form.value, &[], form.order)
    }

    /// Factors whose last two axes are exchanged are taken so.
    pub(super) fn matmul(&mut self, op: &'a Op) -> Option<()> {
        let f = self.copy.f;
        let flag = |name| {
            f.literal_arg(op, name)
                .map_or(Some(false), |l| l.to_ints().map(|v| v == [1]))
        };
        let mut args = Vec::new();
        let mut any = false;
        for (name, transposed) in [("x", "transpose_x"), ("y", "transpose_y")] {
            let value = op.value_arg(name)?;
            let (rank, form) = (self.rank(value), self.first(value)?);
            if rank < 2 {
                return None;
            }
            let mut order: Order = (0..rank).collect();
            let mut flag = flag(transposed)?;
            // What lies innermost stays there.
            if form.order.last() == Some(&(rank - 2)) {
                order.swap(rank - 2, rank - 1);
                flag = !flag;
                any = true;
            }
            args.push((name, Arg::Value(self.get(value, &order)?)));
            args.push((transposed, Arg::Literal(Literal::bool(flag))));
        }
        if !any {
            return None;
        }
        let value = *self.add(op, "matmul", args)?.first()?;
        let own = (0..self.rank(op.results[0])).collect();
        self.set(op.results[0], own, value);
        Some(())
    }

    pub(super) fn concat(&mut self, op: &'a Op) -> Option<()> {
        let Some(Arg::Values(values)) = op.arg("values") else {
            return None;
        };
        if self.int_args(op, "interleave").is_some_and(|i| i != [0]) {
            return None;
        }
        let rank = self.rank(op.results[0]);
        let order = self.common_order(values, rank)?;
        if is_own(&order) {
            return None;
        }
        let axis = *self.int_args(op, "axis")?.first()?;
        let place = Self::place(&order, axis)?;
        let axis = Arg::Literal(Literal::i32(place as i32));
        let values = values.iter().map(|v| self.get(*v, &order));
        let values = values.collect::<Option<_>>()?;
        let args = vec![("values", Arg::Values(values)), ("axis", axis)];
        let value = *self.add(op, "concat", args)?.first()?;
        self.set(op.results[0], order, value);
        Some(())
    }

    pub(super) fn slice(&mut self, op: &'a Op) -> Option<()> {
        let form = self
            .first(op.value_arg("x")?)
            .filter(|form| !is_own(&form.order))?;
        if self
            .int_args(op, "squeeze_mask")
            .is_some_and(|mask| mask.contains(&1))
            || op.arg("squeeze_mask").is_some() && self.int_args(op, "squeeze_mask").is_none()
        {
            return None;
        }
        let mut constants = Vec::new();
        for name in ["begin", "end", "stride", "begin_mask", "end_mask"] {
            if op.arg(name).is_none() {
                continue;
            }
            let given = self.int_args(op, name)?;
            if given.len() != form.order.len() {
                return None;
            }
            let moved = form.order.iter().map(|axis| given[*axis]);
            constants.push((
                name,
                if name.ends_with("mask") {
                    Literal::bools(&moved.map(|v| v != 0).collect::<Vec<_>>())
                } else {
                    let moved = moved.map(|v| i32::try_from(v).ok());
                    Literal::i32s(&moved.collect::<Option<Vec<_>>>()?)
                },
            ));
        }
        let order = form.order.clone();
        self.replaced(op, form.value, &constants, order)
    }

    /// No element moves: only the order changes.
    pub(super) fn transpose(&mut self, op: &'a Op) -> Option<()> {
        let form = self.first(op.value_arg("x")?)?;
        let rank = form.order.len();
        let perm = self.int_args(op, "perm")?;
        let perm: Vec<usize> = perm
            .iter()
            .map(|p| usize::try_from(if *p < 0 { p + rank as i64 } else { *p }).ok())
            .collect::<Option<_>>()?;
        let order = form
            .order
            .iter()
            .map(|axis| perm.iter().position(|p| p == axis));
        let order = order.collect::<Option<_>>()?;
        let is_known = is_as_known(&self.copy, op.results[0], form.value);
        is_known.then_some(())?;
        self.set(op.results[0], order, form.value);
        Some(())
    }

    /// Axes that are held together are split and joined as they are held.
    pub(super) fn reshape(&mut self, op: &'a Op) -> Option<()> {
        let x = op.value_arg("x")?;
        let form = self.first(x).filter(|form| !is_own(&form.order))?;
        let old = self.tensor(x)?.known_shape()?;
        let new = self.tensor(op.results[0])?.known_shape()?;
        let [old_order, new_order] = orders(groups(&old, &new)?, &form.order, &old);
        let value = self.get(x, &old_order)?;
        let shape: Vec<i32> = new_order.iter().map(|a| new[*a] as i32).collect();
        let args = vec![("x", Arg::Value(value)), ("shape", ints(&shape))];
        let value = *self.add(op, "reshape", args)?.first()?;
        self.set(op.results[0], new_order, value);
        Some(())
    }
}
