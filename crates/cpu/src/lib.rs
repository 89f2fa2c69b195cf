//! Runs MIL programs on the CPU.
//!
//! The meaning of each op is a plain function (`ops`). So that it is usable, a function is planned
//! once (`plan`): fp16 is widened and axes are put in the order that kernels read
//! (`plan::rewrite`), what is constant is folded, patterns become kernels (`plan::fuse`), values
//! are dropped at their last use and their buffers used again. Lengths are bound at each call, so a
//! plan serves all of them.
//!
//! What no tensor holds is given as one: the label of `classify` is the place of the class among
//! its `classes` (int32), its dictionary the probabilities in their order (fp32). Lists are never
//! given.
//!
//! This crate knows nothing of families, checkpoints or tokens. Start at [`Cpu`].

pub mod ane;
mod batch;
mod declared;
mod elements;
mod evaluate;
mod exec;
mod instance;
#[doc(hidden)]
pub mod internals;
mod list;
mod load;
mod lockstep;
mod observe;
mod op_by_op;
mod ops;
mod plain;
mod plan;
mod profile;
mod shared;
mod tensor;
mod weight;

use std::sync::Arc;

use ane::Effects;
pub use op_by_op::OpByOp;
pub use profile::{OpRow, Profile, Row};
use thane_kernels::{Context, Isa};
pub use thane_mil::backend::Limits;
use thane_mil::budget::Budget;
use thane_mil::opset::OpDef;

/// Whether the backend runs an op. It may still refuse types or sizes that it cannot hold.
pub fn runs(def: &OpDef) -> bool {
    plan::runs(def)
}

/// How products with constant matrices are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// In f32, on the weights' own values: the reference.
    F32,
    /// Quantized weights as they are, by activations quantized to 8 bits a block.
    Fast,
    /// As `Fast`, and float weights rotated and rounded to integers of 7 or 8 bits when a program
    /// is loaded, with activations alike.
    Int8,
    /// Op by op, with what the Apple Neural Engine does to numbers.
    Ane(Effects),
}

impl Numerics {
    /// Whether quantized weights are multiplied as they are.
    fn is_fast(self) -> bool {
        matches!(self, Self::Fast | Self::Int8)
    }
}

/// The CPU as a backend.
///
/// ```
/// use thane_cpu::{Cpu, Numerics};
/// use thane_mil::backend::Backend;
/// use thane_mil::text::parse;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = "program(1.3) {
///     func main<ios18>(tensor<fp32, [2]> x) {
///         tensor<fp32, [2]> y = mul(x = x, y = x);
///     } -> (y);
/// }";
/// let program = parse(text, &|_, _, _| None)?;
/// let mut instance = Cpu::new(Numerics::F32, 1).load(&program)?.instantiate()?;
/// let x: Vec<u8> = [3.0f32, -0.5].iter().flat_map(|v| v.to_ne_bytes()).collect();
/// instance.input("x", &[2])?.copy_from_slice(&x);
/// instance.run("main")?;
/// let y: Vec<u8> = [9.0f32, 0.25].iter().flat_map(|v| v.to_ne_bytes()).collect();
/// assert_eq!(instance.output("y")?.bytes, y);
/// # Ok(())
/// # }
/// ```
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
    /// What is told what each step takes, where it is wanted.
    pub profile: Option<Arc<Profile>>,
}

impl Cpu {
    /// With the best instructions of this machine.
    pub const fn new(numerics: Numerics, n_threads: usize) -> Self {
        Self {
            numerics,
            n_threads,
            isa: None,
            budget: None,
            profile: None,
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

    /// With a profile that is told what each step takes.
    pub fn with_profile(self, profile: Option<Arc<Profile>>) -> Self {
        Self { profile, ..self }
    }

    /// Threads and instructions for kernels.
    pub fn context(&self) -> Context {
        Context::with_isa(self.n_threads.max(1), self.isa.unwrap_or_else(Isa::detect))
    }
}
