//! One running copy of a program.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use thane_mil::backend::{Instance, Limits, RunError, States, View, of_op};
use thane_mil::budget::{Budget, OverBudget};
use thane_mil::loops::Loops;
use thane_mil::program::OpId;
use thane_mil::types::{DType, Dim, TensorType};

use crate::Numerics;
use crate::ane::{self, Tally};
use crate::exec::{Frame, Plan, Step, Watch};
use crate::ops::random::Seeds;
use crate::shared::{Shared, listed};
use crate::tensor::{Buffer, Pool, Tensor};

/// Zeros that the machine provides page by page as they are written, so that a long context costs
/// what it uses. What counts is what a full one takes: it is to be known before, not when half of
/// the context is written.
fn zeros(name: &str, ty: &TensorType, limits: Limits, budget: &Budget) -> Result<Tensor, RunError> {
    let unheld = || RunError::Shape {
        name: name.to_owned(),
        expected: ty.to_string(),
        given: Vec::new(),
    };
    let shape = ty.known_shape().ok_or_else(unheld)?;
    let mut pool = Pool::new(limits.state_bytes, budget);
    pool.state(ty.dtype, shape)
        .map_err(|reason| match pool.refusal(&reason) {
            Some(source) => RunError::OverBudget {
                place: format!("state `{name}`"),
                source,
            },
            None => unheld(),
        })
}

/// A running copy of a program.
pub struct Running {
    /// What it shares with the others.
    pub shared: Arc<Shared>,
    /// Those of [`Shared::states`].
    states: Vec<Tensor>,
    /// By name and element type: functions may have inputs of one name and of different types.
    inputs: HashMap<(String, DType), Tensor>,
    outputs: HashMap<String, Tensor>,
    pool: Pool,
    seeds: Seeds,
    /// States that were written from outside since the last run.
    written: HashSet<String>,
}

impl Running {
    /// No inputs, and states of zeros.
    pub fn new(shared: Arc<Shared>) -> Result<Self, RunError> {
        // Functions share states. A second allocation would not only be waste: what it frees is
        // handed out again as memory that has to be cleared, and so is all used at once.
        let fresh =
            |(name, ty): &(String, TensorType)| zeros(name, ty, shared.limits, &shared.budget);
        let states = shared.states.iter().map(fresh).collect::<Result<_, _>>()?;
        let pool = Pool::new(shared.limits.tensor_bytes, &shared.budget);
        let seeds = Seeds::new(shared.seed);
        let (inputs, outputs, written) = Default::default();
        Ok(Self {
            shared,
            states,
            inputs,
            outputs,
            pool,
            seeds,
            written,
        })
    }

    /// Sets inputs and states to what is given.
    pub fn fill(
        &mut self,
        inputs: &[(&str, View<'_>)],
        states: &[(&str, View<'_>)],
    ) -> Result<(), RunError> {
        let misfit = |name: &str, view: &View<'_>, expected: String| RunError::Shape {
            name: name.to_owned(),
            expected,
            given: view.shape.to_vec(),
        };
        for (name, view) in inputs {
            let dtype = self.shared.input_dtype(name, view.shape)?;
            let to = self.input(name, view.shape)?;
            let n_bytes = to.len();
            to.get_mut(..view.bytes.len())
                .filter(|to| to.len() == n_bytes && view.dtype == dtype)
                .map(|to| to.copy_from_slice(view.bytes))
                .ok_or_else(|| {
                    misfit(
                        name,
                        view,
                        format!(
                            "{n_bytes} bytes of {dtype}, found {} of {}",
                            view.bytes.len(),
                            view.dtype
                        ),
                    )
                })?;
        }
        for (name, view) in states {
            let held = self.state(name)?;
            if (held.dtype, held.shape, held.bytes.len())
                != (view.dtype, view.shape, view.bytes.len())
            {
                return Err(misfit(
                    name,
                    view,
                    format!("a state {:?} of {}", held.shape, held.dtype),
                ));
            }
            self.state_mut(name)?.copy_from_slice(view.bytes);
        }
        Ok(())
    }

    /// What a call of `plan` starts with.
    pub fn frame<'a>(
        &'a mut self,
        shared: &'a Shared,
        plan: &'a Plan,
    ) -> Result<Frame<'a>, RunError> {
        self.outputs
            .drain()
            .for_each(|(_, tensor)| self.pool.give(tensor));
        let effects = if let Numerics::Ane(effects) = shared.numerics {
            Some(effects)
        } else {
            None
        };
        let mut slots = vec![None; plan.function.n_values()];
        let mut symbols = HashMap::new();
        for (name, id, ty) in &plan.inputs {
            let given = self.bind(name, ty, &mut symbols)?;
            slots[id.index()] = Some(match effects {
                Some(e) => ane::entering(given, e, &mut self.pool)
                    .map_err(|e| self.refused("input", name, e))?,
                None => given,
            });
        }
        for (id, tensor) in &plan.constants {
            let name = &plan.function.value(*id).name;
            slots[id.index()] = Some(match effects {
                Some(e) => ane::constant(&shared.context, tensor, e, &mut self.pool)
                    .map_err(|e| self.refused("constant", name, e))?,
                None => tensor.clone(),
            });
        }
        for name in std::mem::take(&mut self.written) {
            if let (Some(at), Some(effects)) = (shared.state(&name), effects) {
                let state = ane::entering(self.states[at].clone(), effects, &mut self.pool);
                self.states[at] = state.map_err(|e| self.refused("state", &name, e))?;
            }
        }
        let mut all: Vec<Option<&mut Tensor>> = self.states.iter_mut().map(Some).collect();
        let states = plan
            .state_idx
            .iter()
            .filter_map(|at| all[*at].take())
            .collect();
        Ok(Frame {
            context: &shared.context,
            numerics: shared.numerics,
            may_round: shared.may_round,
            states,
            slots,
            pool: &mut self.pool,
            loops: Loops::within(shared.limits),
            seeds: &mut self.seeds,
            tally: Tally::default(),
            mask_tiles: Vec::new(),
            masks: Vec::new(),
            profile: shared.profile.as_deref(),
            watch: None,
            n_frames: 1,
            path: None,
            unread: None,
        })
    }

    /// Runs the whole plan while `watch` hears of its ops.
    pub fn run_watched(
        &mut self,
        shared: &Shared,
        plan: &Plan,
        watch: &mut dyn Watch,
    ) -> Result<(), RunError> {
        let mut frame = self.frame(shared, plan)?;
        frame.watch = Some(watch);
        let slots = run_steps(frame, plan, &plan.steps, &|| false)?;
        self.keep_outputs(plan, slots);
        Ok(())
    }

    /// The error of memory that was refused outside of the ops.
    fn refused(&mut self, kind: &str, name: &str, reason: String) -> RunError {
        let place = format!("{kind} `{name}`");
        match self.pool.refusal(&reason) {
            Some(source) => RunError::OverBudget { place, source },
            None => RunError::Shape {
                name: name.to_owned(),
                expected: reason,
                given: Vec::new(),
            },
        }
    }

    /// Keep what a call left of the outputs.
    pub fn keep_outputs(&mut self, plan: &Plan, mut slots: Vec<Option<Tensor>>) {
        for output in &plan.function.body().outputs {
            if let Some(tensor) = slots[output.index()].take() {
                self.outputs
                    .insert(plan.function.value(*output).name.clone(), tensor);
            }
        }
    }

    /// The tensor for an input of this function, its shape checked.
    fn bind(
        &self,
        name: &str,
        ty: &TensorType,
        symbols: &mut HashMap<u32, usize>,
    ) -> Result<Tensor, RunError> {
        let tensor = self.inputs.get(&(name.to_owned(), ty.dtype));
        let tensor = tensor.ok_or_else(|| RunError::NoInput(name.to_owned()))?;
        let mut fits = tensor.shape.len() == ty.rank();
        for (dim, n) in ty.shape.iter().zip(&tensor.shape) {
            fits &= match dim {
                Dim::Known(m) => m == n,
                Dim::Symbol(s) => *symbols.entry(s.0).or_insert(*n) == *n,
            };
        }
        if fits {
            return Ok(tensor.clone());
        }
        let (expected, given) = (ty.to_string(), tensor.shape.clone());
        Err(RunError::Shape {
            name: name.to_owned(),
            expected,
            given,
        })
    }
}

impl Instance for Running {
    fn input(&mut self, name: &str, shape: &[usize]) -> Result<&mut [u8], RunError> {
        let dtype = self.shared.input_dtype(name, shape)?;
        let wrong = || RunError::Shape {
            name: name.to_owned(),
            expected: listed(self.shared.input_types(name)),
            given: shape.to_vec(),
        };
        self.pool.check(dtype, shape).map_err(|_| wrong())?;
        let key = (name.to_owned(), dtype);
        let kept = self.inputs.remove(&key).filter(|t| t.shape == shape);
        let tensor = match kept {
            Some(kept) => Ok(kept),
            // A cache that is an input is written token by token.
            None => self.pool.state(dtype, shape.to_vec()),
        };
        let fail = |pool: &mut Pool, reason: String| match pool.refusal(&reason) {
            Some(source) => RunError::OverBudget {
                place: format!("input `{name}`"),
                source,
            },
            None => RunError::Shape {
                name: name.to_owned(),
                expected: reason,
                given: shape.to_vec(),
            },
        };
        let tensor = tensor.map_err(|reason| fail(&mut self.pool, reason))?;
        let tensor = self.inputs.entry(key).or_insert(tensor);
        let n_bytes = dtype.byte_len(tensor.len()).unwrap_or_default();
        match self.pool.own(tensor) {
            // A buffer that is used again may be longer.
            Ok(data) => Ok(&mut data.bytes_mut()[..n_bytes]),
            Err(reason) => Err(fail(&mut self.pool, reason)),
        }
    }

    fn given(&self, name: &str) -> Result<View<'_>, RunError> {
        let mut inputs = self.inputs.iter();
        let given = inputs.find(|((given, _), _)| given == name);
        given
            .and_then(|(_, tensor)| view(tensor))
            .ok_or_else(|| RunError::NoInput(name.to_owned()))
    }

    fn run(&mut self, function: &str) -> Result<(), RunError> {
        self.run_until(function, &|| false)
    }

    fn run_until(&mut self, function: &str, is_over: &dyn Fn() -> bool) -> Result<(), RunError> {
        let shared = Arc::clone(&self.shared);
        let plan = shared.plan(function)?;
        let slots = run_steps(self.frame(&shared, plan)?, plan, &plan.steps, is_over)?;
        self.keep_outputs(plan, slots);
        Ok(())
    }

    fn run_for_states(&mut self, function: &str) -> Result<(), RunError> {
        let shared = Arc::clone(&self.shared);
        let plan = shared.plan(function)?;
        let frame = self.frame(&shared, plan)?;
        let slots = run_steps(frame, plan, plan.steps_for_states(), &|| false)?;
        let values = slots.into_iter().flatten();
        values.for_each(|tensor| self.pool.give(tensor));
        Ok(())
    }

    fn output(&self, name: &str) -> Result<View<'_>, RunError> {
        self.outputs
            .get(name)
            .and_then(view)
            .ok_or_else(|| RunError::NoOutput(name.to_owned()))
    }

    fn state(&self, name: &str) -> Result<View<'_>, RunError> {
        let at = self.shared.state(name);
        at.and_then(|at| view(&self.states[at]))
            .ok_or_else(|| RunError::NoState(name.to_owned()))
    }

    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError> {
        let none = || RunError::NoState(name.to_owned());
        let at = self.shared.state(name).ok_or_else(none)?;
        let tensor = &mut self.states[at];
        let n_bytes = tensor.dtype.byte_len(tensor.len()).ok_or_else(none)?;
        self.written.insert(name.to_owned());
        match self.pool.own(tensor) {
            Ok(data) => data.bytes_mut().get_mut(..n_bytes).ok_or_else(none),
            Err(reason) => Err(match self.pool.refusal(&reason) {
                Some(source) => RunError::OverBudget {
                    place: format!("state `{name}`"),
                    source,
                },
                None => none(),
            }),
        }
    }

    fn reset(&mut self) {
        self.seeds = Seeds::new(self.shared.seed);
        // An output may hold what a state was.
        self.outputs.clear();
        for tensor in &mut self.states {
            if let Ok(data) = self.pool.own(tensor) {
                data.renew();
            }
        }
    }

    fn states_bytes(&self) -> Option<usize> {
        let mut states = self.shared.states.iter();
        states.try_fold(0usize, |sum, (_, ty)| sum.checked_add(ty.byte_len()?))
    }

    fn fresh_states(&self) -> Option<States> {
        let fresh = |tensor: &Tensor| {
            let data = Buffer::paged(tensor.dtype, tensor.len(), None)?;
            Some(Tensor::new(tensor.dtype, tensor.shape.clone(), data))
        };
        Some(States(Box::new(Apart {
            tensors: self.states.iter().map(fresh).collect::<Option<_>>()?,
            written: HashSet::new(),
        })))
    }

    fn swap_states(&mut self, states: &mut States) -> bool {
        let Some(other) = states.0.downcast_mut::<Apart>() else {
            return false;
        };
        // An output may hold what a state was.
        let outputs = self.outputs.drain();
        outputs.for_each(|(_, tensor)| self.pool.give(tensor));
        let is_same = |(a, b): (&Tensor, &Tensor)| a.dtype == b.dtype && a.shape == b.shape;
        if self.states.len() != other.tensors.len()
            || !self.states.iter().zip(&other.tensors).all(is_same)
        {
            return false;
        }
        let both = self.states.iter_mut().zip(&mut other.tensors);
        let both = both.map(|(a, b)| Arc::get_mut(&mut a.data).zip(Arc::get_mut(&mut b.data)));
        let Some(both) = both.collect::<Option<Vec<_>>>() else {
            return false;
        };
        both.into_iter().for_each(|(a, b)| a.swap(b));
        std::mem::swap(&mut self.written, &mut other.written);
        true
    }
}

/// What an instance has of [`States`].
struct Apart {
    tensors: Vec<Tensor>,
    /// [`Running::written`] of them.
    written: HashSet<String>,
}

/// The elements of a tensor, of whose buffer there may be more.
fn view(tensor: &Tensor) -> Option<View<'_>> {
    let n_bytes = tensor.dtype.byte_len(tensor.len())?;
    let bytes = tensor.data.bytes().get(..n_bytes)?;
    Some(View {
        dtype: tensor.dtype,
        shape: &tensor.shape,
        bytes,
    })
}

/// The values that these steps leave. `is_over` is asked before each step and round of a loop.
fn run_steps(
    mut frame: Frame<'_>,
    plan: &Plan,
    steps: &[Step],
    is_over: &dyn Fn() -> bool,
) -> Result<Vec<Option<Tensor>>, RunError> {
    for step in steps {
        if is_over() {
            return Err(RunError::Interrupted);
        }
        if let Err(reason) = frame.step_until(plan, step, is_over) {
            if is_over() {
                return Err(RunError::Interrupted);
            }
            let refused = frame.pool.refusal(&reason);
            return Err(run_error(plan, step.op, reason, refused));
        }
    }
    Ok(frame.slots)
}

/// The error of a step.
pub fn run_error(plan: &Plan, op: OpId, reason: String, refused: Option<OverBudget>) -> RunError {
    let f = &plan.function;
    let op = f.op(op);
    if let Some(source) = refused {
        let result = op.results.first().map(|r| &*f.value(*r).name);
        let op = of_op(op.def.name, result, op.origin.place.as_ref());
        let place = format!("{}: {op}", f.name);
        return RunError::OverBudget { place, source };
    }
    RunError::Op {
        function: f.name.clone(),
        op: op.def.name.to_owned(),
        result: op
            .results
            .first()
            .map_or(String::new(), |r| f.value(*r).name.clone()),
        place: op.origin.place.to_string(),
        reason,
    }
}
