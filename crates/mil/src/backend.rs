//! The traits for running programs, which hide the machine that runs them.
//!
//! A [`Backend`] loads a whole program, never single ops, and returns an [`Executable`], which can
//! be shared. An [`Instance`] is one running copy with its own buffers and state. A [`Batch`] is
//! several copies that run together.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use crate::budget::{Budget, OverBudget};
use crate::data::Truncated;
use crate::program::{OpId, Program};
use crate::types::{DType, Type};

/// A machine that can run programs.
pub trait Backend: Send + Sync {
    /// The name, such as `cpu`.
    fn name(&self) -> &'static str;

    /// Prepare a program that [`valid::check`](crate::valid::check) accepts.
    fn load_with(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Executable>, LoadError>;

    /// [`Self::load_with`] the usual options.
    fn load(&self, program: &Program) -> Result<Arc<dyn Executable>, LoadError> {
        self.load_with(program, &LoadOptions::default())
    }

    /// The memory limit of what is loaded, which a model's tokenizer counts against as well.
    fn budget(&self) -> Budget {
        Budget::unlimited()
    }
}

/// How a program is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// What the program may take.
    pub limits: Limits,
    /// Seed of random ops that have none of their own. Each instance draws the same numbers: others
    /// at each op, loop's round and call, from the start after a reset.
    pub seed: u64,
}

impl LoadOptions {
    /// The usual options with these limits.
    pub fn within(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }
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
    /// Rounds of all loops of a call together, since those of nested loops multiply.
    pub rounds: usize,
    /// Elements that the steps inside of loops read and write in a call. A step counts as some
    /// hundred elements at least, and products count more for their multiplications.
    pub loop_elements: u64,
    /// Elements that one op may read and write where its plain form computes it, counted alike. A
    /// kernel that computes ops instead has no limit.
    pub op_elements: u64,
}

impl Default for Limits {
    /// 1 GiB for a tensor: the logits of 1,024 tokens over the 262,144 entries of the largest
    /// vocabulary known. 16 GiB for a state, and 64 GiB for those of a batch, whose memory is used
    /// as far as it is written. A million rounds of loops, and 2^40 elements, which take the better
    /// part of an hour: the delta net of a model of 1e9 parameters comes near with a call of some
    /// 20,000 tokens, if no kernel computes its loops. As many for one op.
    fn default() -> Self {
        const fn bytes(gib: u64) -> usize {
            // Where a pointer has 32 bits, nothing is that large.
            if gib << 30 > usize::MAX as u64 {
                usize::MAX
            } else {
                (gib << 30) as usize
            }
        }
        Self {
            tensor_bytes: bytes(1),
            state_bytes: bytes(16),
            batch_bytes: bytes(64),
            rounds: 1_000_000,
            loop_elements: 1 << 40,
            op_elements: 1 << 40,
        }
    }
}

impl Limits {
    /// Refuses the first state of a program that is larger than a state may be, before a backend
    /// makes room for it.
    ///
    /// # Errors
    ///
    /// [`RunError::State`].
    pub fn check_states(&self, program: &Program) -> Result<(), RunError> {
        let values = program
            .functions()
            .iter()
            .flat_map(|f| f.body().inputs.iter().map(|input| f.value(*input)));
        for value in values {
            let Type::State(ty) = &value.ty else { continue };
            let n = ty.known_shape().and_then(|shape| {
                let mut dims = shape.iter();
                dims.try_fold(1usize, |n, dim| n.checked_mul(*dim))
            });
            let bytes = n.map_or(usize::MAX, |n| ty.dtype.byte_len(n).unwrap_or(usize::MAX));
            if bytes > self.state_bytes {
                return Err(RunError::State {
                    name: value.name.clone(),
                    ty: ty.to_string(),
                    bytes,
                    most: self.state_bytes,
                });
            }
        }
        Ok(())
    }
}

/// A program prepared for one machine.
pub trait Executable: Send + Sync {
    /// Makes a running copy whose states are zero.
    fn instantiate(&self) -> Result<Box<dyn Instance>, RunError>;

    /// Makes `n` running copies that can run together. By default they run one after another.
    fn instantiate_batch(&self, n: usize) -> Result<Box<dyn Batch>, RunError> {
        let instances = (0..n)
            .map(|_| self.instantiate())
            .collect::<Result<_, _>>()?;
        Ok(Box::new(OneByOne(instances)))
    }

    /// The device that runs each op of `function`, if the machine reports it.
    fn placement(&self, _function: &str) -> Option<Vec<(OpId, String)>> {
        None
    }
}

/// One running copy of a program.
pub trait Instance: Send {
    /// The buffer of the input `name`, row-major, for an input of this shape in the next run. Its
    /// content is kept until it is rewritten.
    fn input(&mut self, name: &str, shape: &[usize]) -> Result<&mut [u8], RunError>;

    /// What the input `name` was last given.
    fn given(&self, name: &str) -> Result<View<'_>, RunError> {
        Err(RunError::NoInput(name.to_owned()))
    }

    /// Runs a function over the filled inputs.
    fn run(&mut self, function: &str) -> Result<(), RunError>;

    /// Like [`Self::run`], but ends with [`RunError::Interrupted`] soon after `is_over` returns
    /// true. Outputs and states are undefined then. By default only a call that has not begun ends.
    fn run_until(&mut self, function: &str, is_over: &dyn Fn() -> bool) -> Result<(), RunError> {
        if is_over() {
            return Err(RunError::Interrupted);
        }
        self.run(function)
    }

    /// Runs a function over the filled inputs for what it makes of the states: there may be no
    /// outputs then.
    fn run_for_states(&mut self, function: &str) -> Result<(), RunError> {
        self.run(function)
    }

    /// The output `name` of the last run.
    fn output(&self, name: &str) -> Result<View<'_>, RunError>;

    /// The content of the state `name`.
    fn state(&self, name: &str) -> Result<View<'_>, RunError>;

    /// The elements of the state `name`, for writing; [`Self::state`] returns their type and shape.
    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError>;

    /// Sets every state to zero.
    fn reset(&mut self);

    /// Bytes that all states take once they are full; `None` if they cannot be taken out.
    fn states_bytes(&self) -> Option<usize> {
        None
    }

    /// States of zeros for [`Self::swap_states`], whose memory the caller counts; `None` if states
    /// cannot be taken out, or there is no memory for them.
    fn fresh_states(&self) -> Option<States> {
        None
    }

    /// Exchanges the states with others of this program, without a copy. Returns false, and changes
    /// nothing, if that cannot be done.
    fn swap_states(&mut self, _states: &mut States) -> bool {
        false
    }
}

/// The states of an instance, taken out of it. What is in the box is the backend's.
pub struct States(pub Box<dyn Any + Send>);

/// Running copies of a program, numbered from 0. Each has its own inputs, outputs, states and
/// lengths.
pub trait Batch: Send {
    /// Number of copies.
    fn n_instances(&self) -> usize;

    /// The copy number `idx`, for reading outputs and states.
    fn instance(&self, idx: usize) -> Result<&dyn Instance, RunError>;

    /// The copy number `idx`, for filling inputs, resetting states or running it alone.
    fn instance_mut(&mut self, idx: usize) -> Result<&mut dyn Instance, RunError>;

    /// Runs a function of the copies in `which`, each listed once, over their filled inputs. The
    /// outputs equal those of running each copy alone, up to the order of additions. After an
    /// error, the outputs of all copies and the writes of this call to the states are undefined.
    fn run(&mut self, function: &str, which: &[usize]) -> Result<(), RunError>;
}

/// A batch for machines that run one instance at a time.
struct OneByOne(Vec<Box<dyn Instance>>);

impl Batch for OneByOne {
    fn n_instances(&self) -> usize {
        self.0.len()
    }

    fn instance(&self, idx: usize) -> Result<&dyn Instance, RunError> {
        let n = self.0.len();
        self.0
            .get(idx)
            .map(AsRef::as_ref)
            .ok_or(RunError::NoInstance { idx, n })
    }

    fn instance_mut(&mut self, idx: usize) -> Result<&mut dyn Instance, RunError> {
        let n = self.0.len();
        match self.0.get_mut(idx) {
            Some(instance) => Ok(instance.as_mut()),
            None => Err(RunError::NoInstance { idx, n }),
        }
    }

    fn run(&mut self, function: &str, which: &[usize]) -> Result<(), RunError> {
        check_each_once(which, self.0.len())?;
        which
            .iter()
            .try_for_each(|idx| self.instance_mut(*idx)?.run(function))
    }
}

/// Requires the numbers in `which` to be below `n` and distinct, for implementations of
/// [`Batch::run`].
pub fn check_each_once(which: &[usize], n: usize) -> Result<(), RunError> {
    let mut seen = HashSet::new();
    match which.iter().find(|idx| **idx >= n || !seen.insert(**idx)) {
        Some(idx) if *idx < n => Err(RunError::Twice(*idx)),
        Some(idx) => Err(RunError::NoInstance { idx: *idx, n }),
        None => Ok(()),
    }
}

/// A borrowed tensor of a backend: row-major, in the byte order of the machine.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// The elements.
    pub bytes: &'a [u8],
}

/// Why a backend cannot load a program.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The backend cannot run this op.
    #[error("{function}: {}{}{reason}", of_op(op, None, place), separator(op))]
    Op {
        /// Function name.
        function: String,
        /// Op name.
        op: String,
        /// The place in the checkpoint.
        place: String,
        /// Why the backend cannot run the op.
        reason: String,
    },
    /// A file that the program is mapped from was truncated.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// The program does not fit in memory.
    #[error("{place} does not fit in memory")]
    OverBudget {
        /// The function and op.
        place: String,
        /// The failed reservation.
        source: OverBudget,
    },
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program has no function with this name.
    #[error("the program has no function `{0}`")]
    NoFunction(String),
    /// No function has an input with this name, or the input was not filled.
    #[error("no input `{0}` was given")]
    NoInput(String),
    /// The last run has no output with this name.
    #[error("the last run gave no output `{0}`")]
    NoOutput(String),
    /// The program has no state with this name.
    #[error("the program has no state `{0}`")]
    NoState(String),
    /// Several functions have an input with this name but different element types, and the given
    /// shape fits more than one of them.
    #[error(
        "input `{name}` of shape {given:?} can be {expected}: give the inputs of the functions \
         different names, or load one function alone"
    )]
    Ambiguous {
        /// Input name.
        name: String,
        /// The declared types that fit the shape.
        expected: String,
        /// The given shape.
        given: Vec<usize>,
    },
    /// The given shape does not fit the declared type.
    #[error("input `{name}`: expected {expected}, found shape {given:?}")]
    Shape {
        /// Input name.
        name: String,
        /// Declared type.
        expected: String,
        /// The given shape.
        given: Vec<usize>,
    },
    /// The batch has no instance with this number.
    #[error("expected a sequence number below {n}, found {idx}")]
    NoInstance {
        /// The requested number.
        idx: usize,
        /// Number of instances.
        n: usize,
    },
    /// An instance is listed twice in one call.
    #[error(
        "sequence {0} is listed twice in one step: run its tokens in one call, or in two steps"
    )]
    Twice(usize),
    /// The states of a batch need more memory than allowed.
    #[error(
        "the states of {n} sequences take {bytes} bytes, more than the allowed {most}: ask for \
         fewer sequences or a shorter context"
    )]
    Memory {
        /// Number of instances.
        n: usize,
        /// Bytes that all states take once they are full.
        bytes: usize,
        /// The allowed number of bytes.
        most: usize,
    },
    /// A state, an input or the result of an op does not fit in memory.
    #[error("{place} does not fit in memory")]
    OverBudget {
        /// The state or input, or the function and op.
        place: String,
        /// The failed reservation.
        source: OverBudget,
    },
    /// A state takes more memory than any state may.
    #[error(
        "state `{name}`, {ty}, takes {} of memory once it is full, more than the {} that a state \
         may take",
        gigabytes(*.bytes), gigabytes(*.most)
    )]
    State {
        /// Name of the state.
        name: String,
        /// The type, with the shape.
        ty: String,
        /// Bytes that it takes; the largest number if they overflow.
        bytes: usize,
        /// The allowed number of bytes.
        most: usize,
    },
    /// The caller of [`Instance::run_until`] ended the call.
    #[error("the call was interrupted")]
    Interrupted,
    /// The host of a chain of packages cannot make an input or read an output.
    #[error("chain of packages: {0}")]
    Chain(String),
    /// An op failed on the given values.
    #[error(
        "{function}: {}{}{reason}",
        of_op(op, Some(result), place),
        separator(op)
    )]
    Op {
        /// Function name.
        function: String,
        /// Op name.
        op: String,
        /// Name of the op's first result.
        result: String,
        /// The place in the checkpoint.
        place: String,
        /// What went wrong.
        reason: String,
    },
}

/// An op for messages: `op `add` that makes `y` (from `layers.0`)`. Programs of others do not say
/// where an op is from; an error before the first op names none.
pub fn of_op(op: &str, result: Option<&str>, place: &str) -> String {
    if op.is_empty() {
        return String::new();
    }
    let result = result.filter(|name| !name.is_empty());
    let result = result.map_or_else(String::new, |name| format!(" that makes `{name}`"));
    let place = match place {
        "" => String::new(),
        place => format!(" (from `{place}`)"),
    };
    format!("op `{op}`{result}{place}")
}

fn separator(op: &str) -> &'static str {
    if op.is_empty() { "" } else { ": " }
}

fn gigabytes(bytes: usize) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}
