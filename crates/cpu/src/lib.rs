//! Runs MIL programs on the CPU.
//!
//! The meaning of each op is a plain function (`ops`). So that it is usable, a function is planned
//! once (`plan`): what is constant is folded, patterns become kernels (`plan::fuse`), values are dropped
//! at their last use and their buffers used again. Lengths are bound at each call, so a plan serves
//! all of them.
//!
//! What no tensor holds is given as one: the label of `classify` is the place of the class among
//! its `classes` (int32), its dictionary the probabilities in their order (fp32). Lists are never
//! given.
//!
//! This crate knows nothing of families, checkpoints or tokens. Start at [`Cpu`].

pub mod ane;
mod batch;
mod declared;
pub mod equal;
mod evaluate;
mod exec;
mod list;
mod lockstep;
mod ops;
mod packs;
mod plain;
mod plan;
mod profile;
mod step;
mod tensor;
mod weight;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ane::{Effects, Tally};
use batch::Together;
use exec::Frame;
use ops::random::Seeds;
use plan::fuse::{self, Pattern};
use plan::plan;
pub use profile::{Profile, Row};
use step::{Fused, Kind, Plan};
use tensor::{Pool, Tensor};
use thane_kernels::{BlockType, Context, Isa};
use thane_mil::backend::{Backend, Batch, Executable, Instance, LoadError, RunError, View};
use thane_mil::budget::{Budget, OverBudget};
use thane_mil::opset::OpDef;
use thane_mil::program::{Function, OpId, Program, ValueId};
use thane_mil::types::{DType, Dim, TensorType, Type};
use weight::{Folds, Matrix};

/// Whether the backend runs an op. It may still refuse types or sizes that it cannot hold.
pub fn runs(def: &OpDef) -> bool {
    plan::runs(def)
}

/// How products with constant matrices are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// In f32, on the weights' own values: the reference.
    F32,
    /// Quantised weights as they are, by activations quantised to 8 bits a block.
    Fast,
    /// As `Fast`, and float weights rotated and rounded to integers of 7 or 8 bits when a program
    /// is loaded, with activations alike.
    Int8,
    /// Op by op, with what the Apple Neural Engine does to numbers.
    Ane(Effects),
}

impl Numerics {
    /// Whether quantised weights are multiplied as they are.
    fn is_fast(self) -> bool {
        matches!(self, Self::Fast | Self::Int8)
    }
}

/// The CPU as a backend.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// How products are computed.
    pub numerics: Numerics,
    /// Threads, the caller's included.
    pub n_threads: usize,
    /// Instructions to compute with; the best of this machine where none are named.
    pub isa: Option<Isa>,
    /// What programs may take together: constants that are computed, packed weights, states and
    /// values. Without a limit where there is none.
    pub budget: Option<Budget>,
}

/// What a program may take. Sizes are the program's to choose, and some programs come from
/// strangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one tensor that is computed or given, at run time or while constants are folded.
    pub tensor_bytes: usize,
    /// Bytes of one state.
    pub state_bytes: usize,
    /// Bytes of the states of all instances of a batch.
    pub batch_bytes: usize,
    /// Rounds of one loop.
    pub rounds: usize,
}

impl Default for Limits {
    /// 1 GiB for a tensor: the logits of 1,024 tokens over the 262,144 entries of the largest
    /// vocabulary known. 16 GiB for a state, and 64 GiB for those of a batch, whose memory is used
    /// as far as it is written. A million rounds of a loop, which no decoder comes near.
    fn default() -> Self {
        Self {
            tensor_bytes: 1 << 30,
            state_bytes: 1 << 34,
            batch_bytes: 1 << 36,
            rounds: 1_000_000,
        }
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn load(&self, program: &Program) -> Result<Arc<dyn Executable>, LoadError> {
        self.load_within(program, Limits::default())
    }
}

impl Cpu {
    /// With the best instructions of this machine.
    pub const fn new(numerics: Numerics, n_threads: usize) -> Self {
        Self {
            numerics,
            n_threads,
            isa: None,
            budget: None,
        }
    }

    /// With these instructions.
    pub fn with_isa(self, isa: Option<Isa>) -> Self {
        Self { isa, ..self }
    }

    /// With a limit of what programs may take together.
    pub fn with_budget(self, budget: &Budget) -> Self {
        Self {
            budget: Some(budget.clone()),
            ..self
        }
    }

    /// Threads and instructions for kernels.
    pub fn context(&self) -> Context {
        Context::with_isa(self.n_threads.max(1), self.isa.unwrap_or_else(Isa::detect))
    }

    /// As [`Backend::load`], with other limits than the usual.
    pub fn load_within(
        &self,
        program: &Program,
        limits: Limits,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        self.load_seeded(program, limits, 0)
    }

    /// As [`Cpu::load_within`], with another seed than 0 for random ops that have none of their
    /// own.
    ///
    /// Each instance draws the same numbers: others at each op, loop's round and call, from the
    /// start after a reset.
    pub fn load_seeded(
        &self,
        program: &Program,
        limits: Limits,
        seed: u64,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        same_states(program)?;
        program.check_files()?;
        Ok(Arc::new(Loaded {
            shared: Arc::new(self.plan(program.functions(), limits, seed)?),
        }))
    }

    /// As [`Backend::load`], with a profile that is told what each step takes.
    pub fn load_profiled(
        &self,
        program: &Program,
        profile: Arc<Profile>,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        same_states(program)?;
        program.check_files()?;
        let shared = self.plan(program.functions(), Limits::default(), 0)?;
        Ok(Arc::new(Loaded {
            shared: Arc::new(Shared {
                profile: Some(profile),
                ..shared
            }),
        }))
    }

    fn plan(&self, functions: &[Function], limits: Limits, seed: u64) -> Result<Shared, LoadError> {
        // The engine's numbers are those of each op.
        let op_by_op = matches!(self.numerics, Numerics::Ane(_));
        self.plan_with(
            functions,
            limits,
            seed,
            if op_by_op {
                fuse::STORED
            } else {
                fuse::PATTERNS
            },
        )
    }

    fn plan_with(
        &self,
        functions: &[Function],
        limits: Limits,
        seed: u64,
        patterns: &[Pattern],
    ) -> Result<Shared, LoadError> {
        let context = Arc::new(self.context());
        let mut plans = HashMap::new();
        let budget = self.budget.clone().unwrap_or_default();
        let folds = Folds::new(&budget);
        for function in functions {
            let plan = plan(
                &context,
                function,
                &folds,
                limits.tensor_bytes,
                patterns,
                self.numerics,
            )
            .map_err(|(op, reason)| {
                let refused = folds.refusal(&reason);
                load_error(function, op, reason, refused)
            })?;
            plans.insert(function.name.clone(), plan);
        }
        let may_round = self.rounds(context.isa(), plans.values());
        let mut states: Vec<(String, TensorType)> = Vec::new();
        for plan in plans.values_mut() {
            for (name, ty) in &plan.states {
                let known = states.iter().position(|(known, _)| known == name);
                plan.state_idx.push(known.unwrap_or(states.len()));
                if known.is_none() {
                    states.push((name.clone(), ty.clone()));
                }
            }
        }
        let (numerics, plans) = (self.numerics, Arc::new(plans));
        Ok(Shared {
            context,
            numerics,
            may_round,
            limits,
            budget,
            seed,
            plans,
            states,
            profile: None,
        })
    }

    /// Whether products with constant matrices round what they multiply, so that those of attention
    /// may, too.
    fn rounds<'p>(&self, isa: Isa, plans: impl Iterator<Item = &'p Plan>) -> bool {
        let is_rounded =
            |weight: &Matrix| weight.has_codes() || weight.ty == BlockType::Bf16 && isa.has_bf16();
        let mut steps = plans.flat_map(|plan| &plan.steps);
        match self.numerics {
            Numerics::F32 | Numerics::Ane(_) => false,
            Numerics::Int8 => true,
            Numerics::Fast => steps.any(|step| match &step.kind {
                Kind::Fused(Fused::Linear { products, .. }) => {
                    products.iter().any(|p| is_rounded(&p.weight))
                }
                _ => false,
            }),
        }
    }
}

/// Functions share states by name, so a name must mean one type.
fn same_states(program: &Program) -> Result<(), LoadError> {
    let mut types = HashMap::new();
    for f in program.functions() {
        for value in f.body().inputs.iter().map(|v| f.value(*v)) {
            if let Type::State(ty) = &value.ty
                && *types.entry(&value.name).or_insert(ty) != ty
            {
                let reason = format!(
                    "the state `{}` is of another type in another function",
                    value.name
                );
                return Err(load_error(f, None, reason, None));
            }
        }
    }
    Ok(())
}

fn load_error(
    function: &Function,
    op: Option<OpId>,
    reason: String,
    refused: Option<OverBudget>,
) -> LoadError {
    let (name, place) = op.map_or((String::new(), String::new()), |id| {
        (
            function.op(id).def.name.to_owned(),
            function.op(id).origin.place.to_string(),
        )
    });
    match refused {
        Some(source) => LoadError::OverBudget {
            place: format!("{}: op `{name}` (from `{place}`)", function.name),
            source,
        },
        None => LoadError::Op {
            function: function.name.clone(),
            op: name,
            place,
            reason,
        },
    }
}

struct Shared {
    context: Arc<Context>,
    numerics: Numerics,
    may_round: bool,
    limits: Limits,
    budget: Budget,
    seed: u64,
    plans: Arc<HashMap<String, Plan>>,
    /// The states of all plans, by name; plans know theirs by the position here.
    states: Vec<(String, TensorType)>,
    profile: Option<Arc<Profile>>,
}

impl Shared {
    fn plan(&self, function: &str) -> Result<&Plan, RunError> {
        self.plans
            .get(function)
            .ok_or_else(|| RunError::NoFunction(function.to_owned()))
    }

    /// The position of the state of that name.
    fn state(&self, name: &str) -> Option<usize> {
        self.states.iter().position(|(known, _)| known == name)
    }

    /// The types that functions give the input of that name, each once.
    fn input_types(&self, name: &str) -> Vec<&TensorType> {
        let mut types: Vec<&TensorType> = Vec::new();
        for (_, _, ty) in self
            .plans
            .values()
            .flat_map(|p| &p.inputs)
            .filter(|(n, ..)| n == name)
        {
            if !types.contains(&ty) {
                types.push(ty);
            }
        }
        types
    }

    /// The element type that the input of that name has, where it is given this shape.
    fn input_dtype(&self, name: &str, shape: &[usize]) -> Result<DType, RunError> {
        let types = self.input_types(name);
        let fits = |ty: &&TensorType| {
            ty.rank() == shape.len()
                && ty
                    .shape
                    .iter()
                    .zip(shape)
                    .all(|(d, n)| d.known().is_none_or(|d| d == *n))
        };
        let fitting: Vec<&TensorType> = types.iter().copied().filter(fits).collect();
        // A shape that fits none is refused by the function that runs, which knows what it wants.
        let choices = if fitting.is_empty() { &types } else { &fitting };
        let first = choices
            .first()
            .ok_or_else(|| RunError::NoInput(name.to_owned()))?;
        if choices.iter().all(|ty| ty.dtype == first.dtype) {
            return Ok(first.dtype);
        }
        let (name, given) = (name.to_owned(), shape.to_vec());
        Err(match fitting.is_empty() {
            true => RunError::Shape {
                name,
                expected: listed(types),
                given,
            },
            false => RunError::Ambiguous {
                name,
                expected: listed(fitting),
                given,
            },
        })
    }
}

/// Types in the order of their text, since plans have none.
fn listed(types: Vec<&TensorType>) -> String {
    let mut texts: Vec<String> = types.into_iter().map(ToString::to_string).collect();
    texts.sort();
    texts.dedup();
    texts.join(" or ")
}

struct Loaded {
    shared: Arc<Shared>,
}

impl Executable for Loaded {
    fn instantiate(&self) -> Result<Box<dyn Instance>, RunError> {
        Ok(Box::new(Running::new(Arc::clone(&self.shared))?))
    }

    fn instantiate_batch(&self, n: usize) -> Result<Box<dyn Batch>, RunError> {
        Ok(Box::new(Together::new(Arc::clone(&self.shared), n)?))
    }
}

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
    pool.zeros(ty.dtype, shape)
        .map_err(|reason| match pool.refusal(&reason) {
            Some(source) => RunError::OverBudget {
                place: format!("state `{name}`"),
                source,
            },
            None => unheld(),
        })
}

struct Running {
    shared: Arc<Shared>,
    /// Those of [`Shared::states`].
    states: Vec<Tensor>,
    /// By name and element type: functions may have inputs of one name and of different types.
    inputs: HashMap<(String, DType), Tensor>,
    outputs: HashMap<String, Tensor>,
    pool: Pool,
    seeds: Seeds,
    /// States that were written from outside since the last run.
    written: HashSet<String>,
    /// How many of the greatest elements of outputs are wanted, by name.
    greatest: HashMap<String, usize>,
}

impl Running {
    /// No inputs, and states of zeros.
    fn new(shared: Arc<Shared>) -> Result<Self, RunError> {
        // Functions share states. A second allocation would not only be waste: what it frees is
        // handed out again as memory that has to be cleared, and so is all used at once.
        let fresh =
            |(name, ty): &(String, TensorType)| zeros(name, ty, shared.limits, &shared.budget);
        let states = shared.states.iter().map(fresh).collect::<Result<_, _>>()?;
        let pool = Pool::new(shared.limits.tensor_bytes, &shared.budget);
        let seeds = Seeds::new(shared.seed);
        let (inputs, outputs, written, greatest) = Default::default();
        Ok(Self {
            shared,
            states,
            inputs,
            outputs,
            pool,
            seeds,
            written,
            greatest,
        })
    }

    /// What a call of `plan` starts with.
    fn frame<'a>(&'a mut self, shared: &'a Shared, plan: &'a Plan) -> Result<Frame<'a>, RunError> {
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
        let named = |id: &ValueId| Some((*id, *self.greatest.get(&plan.function.value(*id).name)?));
        let greatest = plan.ends.iter().filter_map(named).collect();
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
            most_rounds: shared.limits.rounds,
            seeds: &mut self.seeds,
            tally: Tally::default(),
            mask_tiles: Vec::new(),
            profile: shared.profile.as_deref(),
            n_frames: 1,
            greatest,
            unread: None,
        })
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
    fn keep_outputs(&mut self, plan: &Plan, mut slots: Vec<Option<Tensor>>) {
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
            None => self.pool.zeros(dtype, shape.to_vec()),
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
        match self.pool.own(tensor) {
            Ok(data) => Ok(data.bytes_mut()),
            Err(reason) => Err(fail(&mut self.pool, reason)),
        }
    }

    fn run(&mut self, function: &str) -> Result<(), RunError> {
        let shared = Arc::clone(&self.shared);
        let plan = shared.plan(function)?;
        let mut frame = self.frame(&shared, plan)?;
        for step in &plan.steps {
            if let Err(reason) = frame.step(plan, step) {
                let refused = frame.pool.refusal(&reason);
                return Err(run_error(plan, step.op, reason, refused));
            }
        }
        let slots = frame.slots;
        self.keep_outputs(plan, slots);
        Ok(())
    }

    fn want_greatest(&mut self, name: &str, n: Option<usize>) {
        match n {
            Some(n) => self.greatest.insert(name.to_owned(), n.max(1)),
            None => self.greatest.remove(name),
        };
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

fn run_error(plan: &Plan, op: OpId, reason: String, refused: Option<OverBudget>) -> RunError {
    let f = &plan.function;
    let op = f.op(op);
    if let Some(source) = refused {
        let result = op.results.first().map_or("", |r| &f.value(*r).name);
        let place = format!(
            "{}: op `{}` that makes `{result}` (from `{}`)",
            f.name, op.def.name, op.origin.place
        );
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
