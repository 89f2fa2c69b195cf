//! Ops that no pattern took, as steps: their kind and their operands.

use thane_mil::literal::Literal;
use thane_mil::opset;
use thane_mil::program::{Arg, Op, OpId, ValueId};
use thane_mil::types::Type;

use super::{PlanError, Planner};
use crate::evaluate::evaluate;
use crate::exec::Kind;
use crate::list;
use crate::ops::{self, Fault, Value};
use crate::plain::{Item, Operand, Plain};
use crate::tensor::Pool;

impl Planner<'_> {
    pub(super) fn kind(&mut self, id: OpId) -> Result<Kind, PlanError> {
        let f = self.f;
        let op = f.op(id);
        let fail = |reason: &str| (Some(id), reason.to_owned());
        let value = |name: &str| {
            let missing = || (Some(id), format!("`{name}` is no value"));
            op.value_arg(name).ok_or_else(missing)
        };
        let state = |name| {
            op.value_arg(name)
                .and_then(|v| self.state(v))
                .ok_or_else(|| fail("it names no state"))
        };
        Ok(match op.def.name {
            "read_state" => Kind::Read(state("input")?),
            "coreml_update_state" => Kind::Write(state("state")?, value("value")?),
            "write_state" => Kind::Write(state("input")?, value("data")?),
            "cond" => Kind::Cond(value("pred")?, self.branches(op)?),
            "while_loop" => Kind::Loop(op.uses().collect(), self.branches(op)?),
            "classify" => {
                let classes = match f.literal_arg(op, "classes") {
                    Some(Literal::List(_, classes)) => classes.len(),
                    _ => return Err(fail("`classes` is no constant list")),
                };
                Kind::Classify(value("probabilities")?, classes)
            }
            name if list::runs(name) => Kind::List(self.list(id)?),
            "reshape" | "reshape_like" | "expand_dims" | "squeeze" | "flatten2d" => {
                Kind::View(self.plain(id)?)
            }
            "add" => {
                let plain = self.plain(id)?;
                match plain.args.as_slice() {
                    [Some(Operand::Value(x)), Some(Operand::Value(y))] => {
                        let (x, y) = (*x, *y);
                        Kind::Add(plain, x, y)
                    }
                    _ => Kind::Plain(plain),
                }
            }
            _ => Kind::Plain(self.plain(id)?),
        })
    }

    fn list(&mut self, id: OpId) -> Result<list::Step, PlanError> {
        let op = self.f.op(id);
        // The type of the list that it takes or, where it takes none, makes.
        let list = op.value_arg("ls").or(op.results.first().copied());
        let (element, len) = match list.map(|v| &self.f.value(v).ty) {
            Some(Type::List(element, len)) => (element.tensor().cloned(), *len),
            _ => (None, None),
        };
        let element = element.ok_or((Some(id), "it is no op on a list of tensors".to_owned()))?;
        if op.value_arg("ls").is_some_and(|v| self.is_constant(v)) {
            return Err((
                Some(id),
                "its list is a constant, which the CPU backend does not hold".to_owned(),
            ));
        }
        // What makes a list is in its type, but for its length at first.
        let args = op.def.params.iter().zip(&op.args);
        let args = args.map(|(p, arg)| {
            arg.as_ref()
                .filter(|_| !["elem_shape", "dtype"].contains(&p.name))
        });
        Ok(list::Step {
            def: op.def,
            args: self.operands(args)?,
            element,
            len,
        })
    }

    pub(super) fn plain(&mut self, id: OpId) -> Result<Plain, PlanError> {
        let f = self.f;
        let op = f.op(id);
        let eval = ops::find(op.def.name)
            .ok_or((Some(id), "the CPU backend does not run this op".to_owned()))?;
        let mut args = self.operands(op.args.iter().map(Option::as_ref))?;
        if op.def.name == "matmul" {
            self.cast_constant(op, &mut args)
                .map_err(|reason| (Some(id), reason))?;
        }
        Ok(Plain::new(op.def, eval, args))
    }

    fn operands<'b>(
        &mut self,
        given: impl Iterator<Item = Option<&'b Arg>>,
    ) -> Result<Vec<Option<Operand>>, PlanError> {
        let mut args = Vec::new();
        for arg in given {
            args.push(match arg {
                None => None,
                Some(Arg::Literal(l)) => {
                    let tensor = self.literal(l).map_err(|reason| (None, reason))?;
                    Some(Operand::Constant(
                        tensor.map_or_else(|| Value::Literal(l.clone()), Value::Tensor),
                    ))
                }
                Some(Arg::Value(v)) => Some(self.operand(*v)?),
                Some(Arg::Values(vs)) => Some(Operand::Values(
                    vs.iter().map(|v| self.item(*v)).collect::<Result<_, _>>()?,
                )),
            });
        }
        Ok(args)
    }

    /// Where the operands of a product differ in their element type, cast the constant one to the
    /// type of the other.
    fn cast_constant(&self, op: &Op, args: &mut [Option<Operand>]) -> Result<(), Fault> {
        let operand = |at: usize| match op.args.get(at)?.as_ref()? {
            Arg::Literal(l) => Some((l.ty().tensor()?.dtype, true)),
            Arg::Value(v) => Some((
                self.f.value(*v).ty.tensor()?.dtype,
                self.f.constant(*v).is_some(),
            )),
            Arg::Values(_) => None,
        };
        let (Some((x, x_is_constant)), Some((y, _))) = (operand(0), operand(1)) else {
            return Ok(());
        };
        let (at, dtype) = if x_is_constant { (0, y) } else { (1, x) };
        if x == y {
            return Ok(());
        }
        let (Some(Some(Operand::Constant(constant))), Some(def), Some(eval)) =
            (args.get_mut(at), opset::find("cast"), ops::find("cast"))
        else {
            return Ok(());
        };
        let args = vec![
            Some(constant.clone()),
            Some(Value::Literal(Literal::string(dtype.name()))),
        ];
        let compute = |pool: &mut Pool| evaluate(self.context, def, eval, args, pool);
        let cast = self.folds.within(self.most_bytes, compute)?;
        *constant = Value::Tensor(cast.into_iter().next().ok_or("cast gives nothing")?);
        Ok(())
    }

    fn operand(&mut self, value: ValueId) -> Result<Operand, PlanError> {
        Ok(match (self.constant(value), self.f.constant(value)) {
            (Some(t), _) => Operand::Constant(Value::Tensor(t)),
            (None, Some(literal)) => Operand::Constant(Value::Literal(literal.clone())),
            (None, None) if self.is_constant(value) => return Err(self.unfolded(value)),
            (None, None) => Operand::Value(value),
        })
    }

    fn item(&mut self, value: ValueId) -> Result<Item, PlanError> {
        match self.constant(value) {
            Some(tensor) => Ok(Item::Constant(tensor)),
            None if self.is_constant(value) => Err(self.unfolded(value)),
            None => Ok(Item::Value(value)),
        }
    }
}
