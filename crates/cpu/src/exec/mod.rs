//! Running a plan: values in slots, buffers from a pool, kernels on slices.
//!
//! Start at [`Frame`]: what one call of a plan works on, and how its steps run. `step` has what a
//! plan is made of, and the trait of kernels; the other files have what several kernels share.

mod cache;
mod linear;
mod patches;
mod step;
mod work;

use std::sync::Arc;

pub use cache::{Cached, HIDDEN, Rows};
pub use linear::turn;
pub use step::{Batching, Branch, Facts, Kernel, Kind, Parts, Plan, Step, in_slots, operands};
use thane_kernels::Context;
use thane_kernels::linear::Path;
use thane_mil::loops::Loops;
use thane_mil::program::{Function, OpId, ValueId};
use thane_mil::types::{DType, Type};
pub use work::name;

use crate::Numerics;
use crate::ane::{self, Tally};
use crate::evaluate::{evaluate_as, view_shape};
use crate::ops::random::{Seeds, is_random};
use crate::ops::{Fault, Value};
use crate::plain::{Item, Operand, Plain};
use crate::profile::Profile;
use crate::tensor::{Buffer, Pool, Tensor, floats};

/// Elements that a task adds in place.
const ADD_LEN: usize = 1 << 13;

/// Hears of calls of ops that are steps by themselves.
pub trait Watch: Send {
    /// Whether it hears of this op.
    fn asks(&self, op: OpId) -> bool;

    /// Hears of a call: what entered, constants apart, and what left.
    fn called(&mut self, f: &Function, op: OpId, values: &[(ValueId, Tensor)])
    -> Result<(), Fault>;
}

/// What one call of a plan works on.
pub struct Frame<'a> {
    /// Threads and instructions.
    pub context: &'a Context,
    /// How products are computed.
    pub numerics: Numerics,
    /// Whether products of values may be rounded, as those with constant matrices are.
    pub may_round: bool,
    /// The states of the instance, by the plan's numbers.
    pub states: Vec<&'a mut Tensor>,
    /// Values by id.
    pub slots: Vec<Option<Tensor>>,
    /// Buffers to use again.
    pub pool: &'a mut Pool,
    /// What its loops have done.
    pub loops: Loops,
    /// Seeds of random ops that have none.
    pub seeds: &'a mut Seeds,
    /// What happened to numbers, where that is counted.
    pub tally: Tally,
    /// What masks say by tiles, looked up once for all layers: by their elements, which stay as
    /// they are for it.
    pub mask_tiles: Vec<(Arc<Buffer>, Vec<f32>)>,
    /// Masks, and what they became for the rows of heads.
    pub masks: Vec<(Tensor, Tensor)>,
    /// What is told what each step takes.
    pub profile: Option<&'a Profile>,
    /// What hears of calls of ops, where they are observed.
    pub watch: Option<&'a mut dyn Watch>,
    /// Frames whose rows are in the values: those of several where they run together.
    pub n_frames: usize,
    /// How the products of the step were computed, where it has some.
    pub path: Option<Path>,
    /// Bytes of its constants that the step did not read, where it screened them.
    pub unread: Option<f64>,
}

impl Frame<'_> {
    /// Run the step.
    pub fn step(&mut self, plan: &Plan, step: &Step) -> Result<(), Fault> {
        self.step_until(plan, step, &|| false)
    }

    /// As [`Self::step`], and a loop ends with an error once `is_over` returns true.
    pub fn step_until(
        &mut self,
        plan: &Plan,
        step: &Step,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        self.loops.step()?;
        let begun = self.profile.map(|_| self.begin(plan, step));
        let entered = self.entering(plan, step);
        let results = self.compute(plan, step, is_over)?;
        let passed = entered.map(|values| [values, by_value(step, &results)].concat());
        let (unread, path) = (self.unread.take(), self.path.take());
        if let (Some(profile), Some(begun)) = (self.profile, begun) {
            let begun = if let Some(bytes) = unread {
                begun.screened(bytes)
            } else {
                begun
            };
            begun.by(path).end(profile, &plan.function, results.iter());
        }
        self.drop_values(&step.last_uses);
        for (defined, tensor) in step.results.iter().zip(results) {
            // A label and a dictionary are declared, and no tensor holds them.
            if !matches!(step.kind, Kind::Classify(..)) {
                defined.check(&plan.function, tensor.dtype, &tensor.shape)?;
            }
            if !step.last_uses.contains(&defined.id) {
                self.slots[defined.id.index()] = Some(tensor);
            }
        }
        match (&mut self.watch, passed) {
            (Some(watch), Some(values)) => watch.called(&plan.function, step.op, &values),
            _ => Ok(()),
        }
    }

    /// What enters a step that is watched. It is held beyond its last use, so that no step computes
    /// in the place of an operand.
    fn entering(&self, plan: &Plan, step: &Step) -> Option<Vec<(ValueId, Tensor)>> {
        self.watch.as_ref().filter(|watch| watch.asks(step.op))?;
        let f = &plan.function;
        let is_state = |v: &&ValueId| matches!(f.value(**v).ty, Type::State(_));
        let state = |v: ValueId| {
            let at = f
                .body()
                .inputs
                .iter()
                .filter(is_state)
                .position(|s| *s == v)?;
            self.states.get(at).map(|state| (*state).clone())
        };
        let held = |v: ValueId| self.slots[v.index()].clone().or_else(|| state(v));
        let operands = f.op(step.op).uses();
        Some(operands.filter_map(|v| Some((v, held(v)?))).collect())
    }

    /// Give back the buffers of values that are used no more.
    pub fn drop_values(&mut self, values: &[ValueId]) {
        for value in values {
            if let Some(tensor) = self.slots[value.index()].take() {
                self.pool.give(tensor);
            }
        }
    }

    /// What the step gives.
    pub fn compute(
        &mut self,
        plan: &Plan,
        step: &Step,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Vec<Tensor>, Fault> {
        Ok(match &step.kind {
            Kind::Plain(plain) => self.plain(plain)?,
            Kind::View(plain) => vec![self.view(plain)?.ok_or("elements move")?],
            Kind::Add(plain, x, y) => match self.add_in_place(step, *x, *y)? {
                Some(sum) => {
                    self.loops.add(2.0 * sum.len() as f64)?;
                    vec![sum]
                }
                None => self.plain(plain)?,
            },
            Kind::Read(state) => vec![self.states[*state].clone()],
            Kind::Write(state, value) => {
                let value = self.get(*value)?.clone();
                let kept = &self.states[*state];
                if (kept.dtype, &kept.shape) != (value.dtype, &value.shape) {
                    return Err(format!(
                        "{:?} does not fit a state {:?}",
                        value.shape, kept.shape
                    ));
                }
                *self.states[*state] = value.clone();
                vec![value]
            }
            Kind::Fused(kernel) => kernel.run(self, step)?,
            Kind::Cond(pred, [then, otherwise]) => {
                let branch = if self.truth(*pred)? { then } else { otherwise };
                self.branch(plan, branch, Vec::new(), is_over)?
            }
            Kind::Loop(vars, branches) => self.repeat(plan, vars, branches, is_over)?,
            Kind::Classify(probabilities, n_classes) => {
                self.classify(*probabilities, *n_classes)?
            }
            Kind::List(list) => {
                let list = list.run(&self.args(&list.args)?, self.pool)?;
                self.loops.add(list.len() as f64)?;
                vec![list]
            }
        })
    }

    fn branch(
        &mut self,
        plan: &Plan,
        branch: &Branch,
        inputs: Vec<Tensor>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Vec<Tensor>, Fault> {
        for (id, tensor) in branch.inputs.iter().zip(inputs) {
            self.slots[id.index()] = Some(tensor);
        }
        for step in &branch.steps {
            self.step_until(plan, step, is_over)?;
        }
        branch
            .outputs
            .iter()
            .map(|v| self.get(*v).cloned())
            .collect()
    }

    fn repeat(
        &mut self,
        plan: &Plan,
        vars: &[ValueId],
        branches: &[Branch; 2],
        is_over: &dyn Fn() -> bool,
    ) -> Result<Vec<Tensor>, Fault> {
        let mut values = vars
            .iter()
            .map(|v| self.get(*v).cloned())
            .collect::<Result<Vec<_>, _>>()?;
        self.loops.enter();
        loop {
            let goes_on = self.branch(plan, &branches[0], values.clone(), is_over)?;
            if !goes_on.first().is_some_and(is_true) {
                self.loops.leave();
                return Ok(values);
            }
            self.loops.round()?;
            if is_over() {
                return Err("the call was ended".to_owned());
            }
            values = self.branch(plan, &branches[1], values, is_over)?;
        }
    }

    /// The place of the first greatest probability, and all of them.
    fn classify(&self, probabilities: ValueId, n_classes: usize) -> Result<Vec<Tensor>, Fault> {
        let all = floats(self.get(probabilities)?)?;
        if all.len() != n_classes || all.is_empty() {
            return Err(format!(
                "there are {} probabilities for {n_classes} classes",
                all.len()
            ));
        }
        let greatest = (0..all.len())
            .rev()
            .max_by(|a, b| all[*a].total_cmp(&all[*b]))
            .unwrap_or_default();
        let greatest =
            i32::try_from(greatest).map_err(|_| "there are too many classes".to_owned())?;
        let dictionary = Tensor::new(
            DType::Fp32,
            vec![n_classes],
            Buffer::F32(all.to_vec().into()),
        );
        Ok(vec![
            Tensor::new(DType::Int32, Vec::new(), Buffer::I32(vec![greatest].into())),
            dictionary,
        ])
    }

    fn truth(&self, value: ValueId) -> Result<bool, Fault> {
        self.get(value).map(is_true)
    }

    pub fn get(&self, value: ValueId) -> Result<&Tensor, Fault> {
        self.slots[value.index()]
            .as_ref()
            .ok_or_else(|| "a value is used after it was dropped".to_owned())
    }

    /// The value for this step to change: taken out of its slot when the step is its last user.
    pub fn take(&mut self, step: &Step, value: ValueId) -> Result<Tensor, Fault> {
        if step.last_uses.contains(&value) {
            self.slots[value.index()]
                .take()
                .ok_or_else(|| "a value is used after it was dropped".to_owned())
        } else {
            self.get(value).cloned()
        }
    }

    /// A result of the shape of x, which `compute` makes of its elements.
    pub fn same_shape(
        &mut self,
        x: ValueId,
        compute: impl FnOnce(&[f32], &[usize], &mut [f32]),
    ) -> Result<Vec<Tensor>, Fault> {
        let shape = self.get(x)?.shape.clone();
        let (mut out, n) = self.pool.take_checked(&shape)?;
        compute(floats(self.get(x)?)?, &shape, &mut out[..n]);
        Ok(vec![Tensor::new(DType::Fp32, shape, Buffer::F32(out))])
    }

    fn args(&self, args: &[Option<Operand>]) -> Result<Vec<Option<Value>>, Fault> {
        args.iter()
            .map(|arg| match arg {
                None => Ok(None),
                Some(Operand::Constant(v)) => Ok(Some(v.clone())),
                Some(Operand::Value(v)) => Ok(Some(Value::Tensor(self.get(*v)?.clone()))),
                Some(Operand::Values(items)) => {
                    let tensor = |item: &Item| match item {
                        Item::Constant(t) => Ok(t.clone()),
                        Item::Value(v) => self.get(*v).cloned(),
                    };
                    Ok(Some(Value::Tensors(
                        items.iter().map(tensor).collect::<Result<_, Fault>>()?,
                    )))
                }
            })
            .collect()
    }

    fn plain(&mut self, plain: &Plain) -> Result<Vec<Tensor>, Fault> {
        if plain.def.name == "transpose"
            && let Some(view) = self.view(plain)?
        {
            return Ok(vec![view]);
        }
        let mut args = self.args(&plain.args)?;
        if is_random(plain.def) {
            self.seeds.bind(plain.def, &mut args);
        }
        match self.numerics {
            Numerics::Ane(effects) => ane::evaluate(
                self.context,
                plain,
                args,
                effects,
                (self.pool, &mut self.loops),
                &mut self.tally,
            ),
            Numerics::F32 | Numerics::Fast | Numerics::Int8 => {
                let types = plain.result_types(&args)?;
                self.loops.op(plain.def, &args, &types)?;
                let op = (self.context, plain.def, plain.eval);
                evaluate_as(op, &types, args, self.pool)
            }
        }
    }

    /// The first argument under another shape, sharing its buffer; none where elements move.
    fn view(&mut self, plain: &Plain) -> Result<Option<Tensor>, Fault> {
        let x = match plain.args.first() {
            Some(Some(Operand::Value(x))) => self.get(*x)?.clone(),
            Some(Some(Operand::Constant(Value::Tensor(x)))) => x.clone(),
            _ => return Err("`x` is missing".to_owned()),
        };
        let shape = plain.view(&x.shape, || {
            view_shape(plain.def, &self.args(&plain.args)?, self.pool)
        })?;
        Ok(shape.map(|shape| Tensor { shape, ..x }))
    }

    /// `x + y` in the buffer of x, when x ends here and both have one shape.
    fn add_in_place(
        &mut self,
        step: &Step,
        x: ValueId,
        y: ValueId,
    ) -> Result<Option<Tensor>, Fault> {
        let fits = {
            let (x, y) = (self.get(x)?, self.get(y)?);
            x.shape == y.shape && x.f32s().is_some() && y.f32s().is_some()
        };
        let rounds = matches!(self.numerics, Numerics::Ane(_));
        if x == y || !fits || rounds || !step.last_uses.contains(&x) {
            return Ok(None);
        }
        let mut sum = self.take(step, x)?;
        let n = sum.len();
        let unique = matches!(Arc::get_mut(&mut sum.data), Some(Buffer::F32(_)));
        if !unique {
            self.slots[x.index()] = Some(sum);
            return Ok(None);
        }
        if let (Some(Buffer::F32(a)), Some(b)) = (Arc::get_mut(&mut sum.data), self.get(y)?.f32s())
        {
            self.context
                .pool()
                .run_chunks(&mut a[..n], ADD_LEN, |i, a| {
                    a.iter_mut()
                        .zip(&b[i * ADD_LEN..])
                        .for_each(|(a, b)| *a += b);
                });
        }
        Ok(Some(sum))
    }
}

/// The results of a step by their values.
fn by_value(step: &Step, results: &[Tensor]) -> Vec<(ValueId, Tensor)> {
    let ids = step.results.iter().map(|defined| defined.id);
    ids.zip(results.iter().cloned()).collect()
}

/// Whether a truth value of one element is true.
fn is_true(t: &Tensor) -> bool {
    t.to_ints()
        .is_some_and(|v| v.first().is_some_and(|v| *v != 0))
}
