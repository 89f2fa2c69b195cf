//! Convolutions and pools with channels last.

use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Op, ValueId};

use super::{Ordering, channels_last, ints};

impl<'a> Ordering<'a> {
    pub(super) fn conv(&mut self, op: &'a Op) -> Option<()> {
        let x = op.value_arg("x")?;
        let order = channels_last(self.rank(x));
        let rows = self.get(x, &order)?;
        if let Some(weight) = self.pointwise(op) {
            let mut args = vec![("x", Arg::Value(rows)), ("weight", Arg::Value(weight))];
            match op.arg("bias") {
                None => {}
                Some(Arg::Value(bias)) if !self.is_constant(*bias) => return None,
                Some(Arg::Value(bias)) => args.push(("bias", Arg::Value(self.standard(*bias)?))),
                Some(bias) => args.push(("bias", bias.clone())),
            }
            let value = *self.add(op, "linear", args)?.first()?;
            self.set(op.results[0], order, value);
            return Some(());
        }
        self.around(op, rows)
    }

    pub(super) fn pool(&mut self, op: &'a Op) -> Option<()> {
        let x = op.value_arg("x")?;
        let rows = self.get(x, &channels_last(self.rank(x)))?;
        self.around(op, rows)
    }

    /// `transpose, op, transpose`: from channels last to channels last.
    fn around(&mut self, op: &'a Op, rows: ValueId) -> Option<()> {
        let order = channels_last(self.rank(op.value_arg("x")?));
        let name = self.copy.name(op.results[0]);
        let last = order.len() as i32 - 1;
        let back: Vec<i32> = [0, last].into_iter().chain(1..last).collect();
        let turned = self.turned(&format!("{name}_x"), rows, &back)?;
        let args = self.with_x(op, turned)?;
        let value = *self.add(op, op.def.name, args)?.first()?;
        let perm: Vec<i32> = order.iter().map(|axis| *axis as i32).collect();
        let value = self.turned(&format!("{name}_rows"), value, &perm)?;
        self.set(op.results[0], order, value);
        Some(())
    }

    fn turned(&mut self, name: &str, x: ValueId, perm: &[i32]) -> Option<ValueId> {
        let args = vec![("x", Arg::Value(x)), ("perm", ints(perm))];
        self.copy.op("transpose", name, args).ok()
    }

    /// The weight [out, in] of a convolution whose kernel is one place, and that skips none.
    fn pointwise(&mut self, op: &'a Op) -> Option<ValueId> {
        let all = |name: &str, value: i64| {
            op.arg(name).is_none()
                || self
                    .int_args(op, name)
                    .is_some_and(|v| v.iter().all(|v| *v == value))
        };
        let pads = self
            .copy
            .f
            .literal_arg(op, "pad_type")
            .is_some_and(|l| l.as_str() == Some("custom"));
        if !all("strides", 1) || !all("groups", 1) || pads && !all("pad", 0) {
            return None;
        }
        let weight = op.value_arg("weight")?;
        let shape = self.tensor(weight)?.known_shape()?;
        let (sizes, kernel) = shape.split_first_chunk::<2>()?;
        if kernel.iter().any(|n| *n != 1) || !self.is_constant(weight) {
            return None;
        }
        let sizes = sizes.map(|n| n as i32);
        let name = format!("{}_rows", self.copy.name(weight));
        let made = self.copy.f.definer(weight)?;
        let matrix = |literal: &Literal| match literal {
            Literal::Tensor(ty, data) => Some(Literal::Tensor(
                thane_mil::types::TensorType::new(ty.dtype, shape[..2].iter().copied()),
                data.clone(),
            )),
            _ => None,
        };
        match made.def.name {
            "const" => {
                let literal = Arg::Literal(matrix(self.copy.f.constant(weight)?)?);
                self.copy.op("const", &name, vec![("val", literal)]).ok()
            }
            "constexpr_cast" => {
                let literal = matrix(self.copy.f.literal_arg(made, "source_val")?)?;
                let dtype = Arg::Literal(Literal::string("fp32"));
                let args = vec![
                    ("source_val", Arg::Literal(literal)),
                    ("output_dtype", dtype),
                ];
                self.copy.op("constexpr_cast", &name, args).ok()
            }
            _ => {
                let value = self.standard(weight)?;
                let args = vec![("x", Arg::Value(value)), ("shape", ints(&sizes))];
                self.copy.op("reshape", &name, args).ok()
            }
        }
    }
}
