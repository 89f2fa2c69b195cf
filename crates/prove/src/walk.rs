//! Computes values of a function op by op, and notes what happens to numbers on the way.
//!
//! Sums are taken in f64, so the only roundings are those of results: to f32, and in
//! [`Mode::Declared`] to fp16 where a value is declared so. What is held is counted against a
//! budget, and the clock is asked between ops; the backend asks it within long ones.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Instant;

use thane_mil::backend::Limits;
use thane_mil::budget::{Budget, OverBudget, Reservation};
use thane_mil::evaluate::{Evaluate, HostTensor, Value};
use thane_mil::literal::Literal;
use thane_mil::loops::Loops;
use thane_mil::program::{Arg, BlockId, Definition, Function, Op, OpId, ValueId};
use thane_mil::types::{DType, TensorType};

use crate::rounding::{halved, nudged};

/// How numbers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In f32, whatever is declared.
    Wide,
    /// As [`Mode::Wide`], each result of an op that rounds off by as much as a rounding of f32 may
    /// put it off.
    Nudged,
    /// In fp16 where that is declared: numbers beyond it are infinite, and those below 2^-14 are 0,
    /// as on the engine.
    Declared,
}

/// Why values are not computed.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The time that may be spent is over.
    #[error("the time that may be spent is over; --time-limit allows more")]
    Time,
    /// The memory that may be used is.
    #[error("{0}; --memory allows more")]
    Memory(#[from] OverBudget),
    /// An op fails, or is not computed here.
    #[error("{0}")]
    Op(String),
}

/// What a walk may use.
pub struct Env<E> {
    /// What computes ops.
    pub backend: E,
    /// What tensors are counted against.
    pub budget: Budget,
    /// What one call may take.
    pub limits: Limits,
    /// When to stop.
    pub deadline: Option<Instant>,
}

impl<E> Env<E> {
    /// Whether the time that may be spent is over.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|at| Instant::now() >= at)
    }
}

/// A tensor, and the bytes that it takes of the budget.
#[derive(Clone, Debug)]
pub struct Held<T> {
    /// The numbers.
    pub tensor: T,
    _taken: Rc<Reservation>,
}

/// Ops that are infinite at numbers that are not large.
const POLES: &[&str] = &[
    "log", "real_div", "rsqrt", "inverse", "pow", "tan", "atanh", "cast", "fill", "select",
];

/// Whether results of an op may round.
pub fn rounds(op: &Op) -> bool {
    !op.def.exact
}

/// Whether a value is declared fp16.
pub fn is_half(f: &Function, value: ValueId) -> bool {
    let ty = f.value(value).ty.tensor_or_state();
    ty.is_some_and(|t| t.dtype == DType::Fp16)
}

/// Values of a function, as far as they are computed.
pub struct Walk<'a, E: Evaluate> {
    f: &'a Function,
    env: &'a Env<E>,
    mode: Mode,
    /// Values that are computed or given.
    pub slots: HashMap<ValueId, Held<E::Tensor>>,
    states: HashMap<ValueId, Held<E::Tensor>>,
    loops: Loops,
    /// The first op of which a finite number is beyond fp16 where it is declared so, or in the
    /// other modes one that makes an infinite number of finite ones.
    pub overflow: Option<String>,
}

impl<'a, E: Evaluate> Walk<'a, E> {
    /// Begin with nothing.
    pub fn new(f: &'a Function, env: &'a Env<E>, mode: Mode) -> Self {
        Self {
            f,
            env,
            mode,
            slots: HashMap::new(),
            states: HashMap::new(),
            loops: Loops::within(env.limits),
            overflow: None,
        }
    }

    /// What is computed.
    pub fn function(&self) -> &'a Function {
        self.f
    }

    /// Give an input its numbers, or a value that another walk computed.
    pub fn give(&mut self, value: ValueId, given: &Held<E::Tensor>) -> Result<(), Stop> {
        let held = match self.mode {
            Mode::Declared if self.is_half(value) => {
                self.hold(self.halved(self.widened(&given.tensor)?).0, value)?
            }
            _ => given.clone(),
        };
        self.slots.insert(value, held);
        Ok(())
    }

    /// Give an input the bytes that a call passes.
    pub fn give_bytes(
        &mut self,
        value: ValueId,
        dtype: DType,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<(), Stop> {
        let tensor = E::Tensor::of_bytes(dtype, shape, bytes)
            .ok_or_else(|| self.unfit(value, "cannot be held here"))?;
        self.give_tensor(value, tensor)
    }

    /// Give a value numbers of one's own.
    pub fn give_tensor(&mut self, value: ValueId, tensor: E::Tensor) -> Result<(), Stop> {
        let held = self.hold(self.widened(&tensor)?, value)?;
        self.give(value, &held)
    }

    /// What a state holds; zeros where nothing was written.
    pub fn state(&mut self, state: ValueId) -> Result<Held<E::Tensor>, Stop> {
        if let Some(held) = self.states.get(&state) {
            return Ok(held.clone());
        }
        let ty = self
            .f
            .value(state)
            .ty
            .tensor_or_state()
            .ok_or_else(|| self.unfit(state, "is no state"))?;
        let shape = ty
            .known_shape()
            .ok_or_else(|| self.unfit(state, "has no fixed shape"))?;
        let dtype = if ty.dtype == DType::Fp16 {
            DType::Fp32
        } else {
            ty.dtype
        };
        let n_bytes = TensorType::new(dtype, shape.iter().copied()).byte_len();
        let taken = self.reserve(n_bytes.unwrap_or(usize::MAX), state)?;
        let tensor = E::Tensor::zeros(dtype, &shape)
            .ok_or_else(|| self.unfit(state, "cannot be held here"))?;
        let held = Held {
            tensor,
            _taken: Rc::new(taken),
        };
        self.states.insert(state, held.clone());
        Ok(held)
    }

    /// Forget the values of a call, and keep states.
    pub fn next_call(&mut self) {
        self.slots.clear();
        self.loops = Loops::within(self.env.limits);
    }

    /// Compute all of the body. Of values with an op behind their last use, only those that are
    /// `kept` remain.
    pub fn run(&mut self, kept: Option<&HashSet<ValueId>>) -> Result<(), Stop> {
        let ops = &self.f.body().ops;
        let mut last: HashMap<ValueId, OpId> = HashMap::new();
        if kept.is_some() {
            ops.iter()
                .for_each(|id| last.extend(self.f.uses(*id).into_iter().map(|v| (v, *id))));
        }
        for id in ops {
            self.op(*id)?;
            let Some(kept) = kept else { continue };
            for v in self
                .f
                .uses(*id)
                .into_iter()
                .chain(self.f.op(*id).results.iter().copied())
            {
                if !kept.contains(&v) && last.get(&v).is_none_or(|at| at == id) {
                    self.slots.remove(&v);
                }
            }
        }
        Ok(())
    }

    /// Compute ops in this order.
    pub fn ops(&mut self, ops: &[OpId]) -> Result<(), Stop> {
        ops.iter().try_for_each(|id| self.op(*id))
    }

    fn op(&mut self, id: OpId) -> Result<(), Stop> {
        if self.env.is_over() {
            return Err(Stop::Time);
        }
        self.loops.step().map_err(Stop::Op)?;
        let f = self.f;
        let op = f.op(id);
        if op.def.is_constexpr() {
            return Ok(());
        }
        let name = |name: &str| {
            op.value_arg(name)
                .ok_or_else(|| Stop::Op(format!("`{}` lacks `{name}`", op.def.name)))
        };
        match op.def.name {
            "read_state" => {
                let held = self.state(name("input")?)?;
                self.slots.insert(op.results[0], held);
            }
            "coreml_update_state" | "write_state" => {
                let of = if op.def.name == "write_state" {
                    ("input", "data")
                } else {
                    ("state", "value")
                };
                let (state, value) = (name(of.0)?, name(of.1)?);
                let held = self.value(value)?;
                self.states.insert(state, held.clone());
                op.results
                    .iter()
                    .for_each(|r| drop(self.slots.insert(*r, held.clone())));
            }
            "cond" => self.cond(op)?,
            "while_loop" => self.repeat(op)?,
            _ => self.plain(op)?,
        }
        Ok(())
    }

    fn cond(&mut self, op: &Op) -> Result<(), Stop> {
        let pred = op
            .value_arg("pred")
            .ok_or_else(|| Stop::Op("`cond` lacks `pred`".to_owned()))?;
        let (Some(then), Some(otherwise)) = (op.blocks.first(), op.blocks.get(1)) else {
            return Err(Stop::Op("`cond` does not run two blocks".to_owned()));
        };
        let pred = self.value(pred)?;
        let results = self.block(
            if pred.tensor.is_true() {
                *then
            } else {
                *otherwise
            },
            Vec::new(),
        )?;
        self.slots.extend(op.results.iter().copied().zip(results));
        Ok(())
    }

    fn repeat(&mut self, op: &Op) -> Result<(), Stop> {
        let (Some(goes_on), Some(body)) = (op.blocks.first(), op.blocks.get(1)) else {
            return Err(Stop::Op("`while_loop` does not run two blocks".to_owned()));
        };
        let mut values = op
            .uses()
            .map(|v| self.value(v))
            .collect::<Result<Vec<_>, _>>()?;
        self.loops.enter();
        while self
            .block(*goes_on, values.clone())?
            .first()
            .is_some_and(|held| held.tensor.is_true())
        {
            self.loops.round().map_err(Stop::Op)?;
            values = self.block(*body, values)?;
        }
        self.loops.leave();
        self.slots.extend(op.results.iter().copied().zip(values));
        Ok(())
    }

    fn block(
        &mut self,
        block: BlockId,
        inputs: Vec<Held<E::Tensor>>,
    ) -> Result<Vec<Held<E::Tensor>>, Stop> {
        let f = self.f;
        let block = f.block(block);
        self.slots.extend(block.inputs.iter().copied().zip(inputs));
        block.ops.iter().try_for_each(|id| self.op(*id))?;
        block.outputs.iter().map(|v| self.value(*v)).collect()
    }

    /// A value that is computed, or a constant.
    pub fn value(&self, value: ValueId) -> Result<Held<E::Tensor>, Stop> {
        if let Some(held) = self.slots.get(&value) {
            return Ok(held.clone());
        }
        match self.constant(value)? {
            (Value::Tensor(tensor), taken) => {
                let wide = self.widened(&tensor)?;
                let flushed = self.mode == Mode::Declared && self.is_half(value);
                let tensor = if flushed { self.halved(wide).0 } else { wide };
                Ok(Held {
                    tensor,
                    _taken: Rc::new(taken),
                })
            }
            _ => Err(self.unfit(value, "is no tensor")),
        }
    }

    /// A constant, as it is stored.
    fn constant(&self, value: ValueId) -> Result<(Value<E::Tensor>, Reservation), Stop> {
        let f = self.f;
        let Definition::Result(id, at) = f.value(value).definition else {
            return Err(self.unfit(value, "was given no numbers"));
        };
        let op = f.op(id);
        if !op.def.is_constexpr() {
            return Err(self.unfit(value, "is not computed"));
        }
        // Once as stored and once in f32.
        let n = f
            .value(value)
            .ty
            .tensor()
            .and_then(|t| t.n_elements())
            .unwrap_or(0);
        let taken = self.reserve(n.saturating_mul(6), value)?;
        if op.def.is_const() {
            let literal = f
                .constant(value)
                .ok_or_else(|| self.unfit(value, "has no `val`"))?;
            return Ok((self.literal(literal), taken));
        }
        let mut args = Vec::new();
        for arg in &op.args {
            args.push(match arg {
                None => None,
                Some(Arg::Literal(l)) => Some(self.literal(l)),
                Some(Arg::Value(v)) => Some(self.constant(*v)?.0),
                Some(Arg::Values(_)) => return Err(self.unfit(value, "takes a list")),
            });
        }
        let results = self.env.backend.evaluate(op.def, args);
        let results = results.map_err(|e| self.failed(op, &e))?;
        let tensor = results
            .into_iter()
            .nth(at)
            .ok_or_else(|| self.unfit(value, "is not given by its op"))?;
        Ok((Value::Tensor(tensor), taken))
    }

    fn plain(&mut self, op: &Op) -> Result<(), Stop> {
        let mut taken = Vec::new();
        let args = op
            .args
            .iter()
            .map(|arg| self.arg(op, arg.as_ref(), &mut taken))
            .collect::<Result<Vec<_>, _>>()?;
        let types = self.env.backend.result_types(op.def, &args);
        let types = types.map_err(|e| self.failed(op, &e))?;
        self.loops
            .op(op.def, &args, &types)
            .map_err(|e| self.failed(op, &e))?;
        let n_bytes = types
            .iter()
            .map(|t| t.byte_len().unwrap_or(0))
            .fold(0, usize::saturating_add);
        let base = op.results.first().copied();
        let mut reserved = match base {
            Some(value) => self.reserve(n_bytes, value)?,
            None => return Ok(()),
        };
        let found = self.env.backend.evaluate(op.def, args);
        let found = found.map_err(|e| match self.env.is_over() {
            true => Stop::Time,
            false => self.failed(op, &e),
        })?;
        // Sizes that follow from numbers are known only now.
        let made = found
            .iter()
            .map(HostTensor::n_bytes)
            .fold(0, usize::saturating_add);
        let name = || format!("a result of `{}`", op.def.name);
        reserved.grow(made.saturating_sub(n_bytes), name)?;
        let taken = Rc::new(reserved);
        if self.mode != Mode::Declared && self.overflow.is_none() && !POLES.contains(&op.def.name) {
            let is_infinite =
                |t: &E::Tensor| t.f32s().is_some_and(|x| x.iter().any(|x| x.is_infinite()));
            if found.iter().any(is_infinite) && !self.takes_infinite(op)? {
                self.overflow = base.map(|v| format!("{} `{}`", op.def.name, self.f.value(v).name));
            }
        }
        for (value, tensor) in op.results.iter().zip(found) {
            let tensor = self.keep(op, *value, tensor);
            self.slots.insert(
                *value,
                Held {
                    tensor,
                    _taken: Rc::clone(&taken),
                },
            );
        }
        Ok(())
    }

    /// Whether an operand of an op is not finite.
    fn takes_infinite(&self, op: &Op) -> Result<bool, Stop> {
        for value in op.uses() {
            if self
                .f
                .constant(value)
                .is_some_and(|l| l.ty().tensor().is_none())
            {
                continue;
            }
            let held = self.value(value)?;
            if held
                .tensor
                .f32s()
                .is_some_and(|x| x.iter().any(|x| !x.is_finite()))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn arg(
        &self,
        op: &Op,
        arg: Option<&Arg>,
        taken: &mut Vec<Held<E::Tensor>>,
    ) -> Result<Option<Value<E::Tensor>>, Stop> {
        let mut tensor = |v: ValueId| -> Result<E::Tensor, Stop> {
            let held = self.value(v)?;
            taken.push(held.clone());
            Ok(held.tensor)
        };
        // What is declared fp16 is in f32 here.
        let wide = |l: &Literal| -> Result<Value<E::Tensor>, Stop> {
            Ok(match self.literal(l) {
                Value::Literal(l) if op.def.name == "cast" && l.as_str() == Some("fp16") => {
                    Value::Literal(Literal::string("fp32"))
                }
                Value::Tensor(t) => Value::Tensor(self.widened(&t)?),
                other @ (Value::Literal(_) | Value::Tensors(_)) => other,
            })
        };
        Ok(match arg {
            None => None,
            Some(Arg::Literal(l)) => Some(wide(l)?),
            Some(Arg::Value(v)) => match self.f.constant(*v) {
                Some(l) if l.ty().tensor().is_none() || l.as_str().is_some() => Some(wide(l)?),
                _ => Some(Value::Tensor(tensor(*v)?)),
            },
            Some(Arg::Values(vs)) => Some(Value::Tensors(
                vs.iter().map(|v| tensor(*v)).collect::<Result<_, _>>()?,
            )),
        })
    }

    fn is_half(&self, value: ValueId) -> bool {
        is_half(self.f, value)
    }

    /// Numbers as the mode keeps them.
    fn keep(&mut self, op: &Op, value: ValueId, tensor: E::Tensor) -> E::Tensor {
        match self.mode {
            Mode::Declared if self.is_half(value) => {
                let (tensor, is_beyond) = self.halved(tensor);
                if is_beyond && self.overflow.is_none() {
                    self.overflow = Some(format!("{} `{}`", op.def.name, self.f.value(value).name));
                }
                tensor
            }
            Mode::Nudged if rounds(op) => nudged(tensor, value.index() as u64),
            _ => tensor,
        }
    }

    fn halved(&self, tensor: E::Tensor) -> (E::Tensor, bool) {
        halved(&self.env.backend, tensor)
    }

    fn widened(&self, tensor: &E::Tensor) -> Result<E::Tensor, Stop> {
        self.env.backend.widened(tensor).map_err(Stop::Op)
    }

    fn literal(&self, literal: &Literal) -> Value<E::Tensor> {
        let tensor = self.env.backend.literal(literal);
        tensor.map_or_else(|| Value::Literal(literal.clone()), Value::Tensor)
    }

    fn hold(&self, tensor: E::Tensor, value: ValueId) -> Result<Held<E::Tensor>, Stop> {
        let taken = self.reserve(tensor.n_bytes(), value)?;
        Ok(Held {
            tensor,
            _taken: Rc::new(taken),
        })
    }

    fn reserve(&self, n_bytes: usize, value: ValueId) -> Result<Reservation, Stop> {
        let name = || {
            format!(
                "`{}` of function `{}`",
                self.f.value(value).name,
                self.f.name
            )
        };
        Ok(self.env.budget.reserve(n_bytes, name)?)
    }

    fn unfit(&self, value: ValueId, why: &str) -> Stop {
        Stop::Op(format!(
            "`{}` of function `{}` {why}",
            self.f.value(value).name,
            self.f.name
        ))
    }

    fn failed(&self, op: &Op, why: &str) -> Stop {
        let name = op
            .results
            .first()
            .map_or("", |r| self.f.value(*r).name.as_str());
        Stop::Op(format!(
            "{} `{name}` of function `{}`: {why}",
            op.def.name, self.f.name
        ))
    }
}
