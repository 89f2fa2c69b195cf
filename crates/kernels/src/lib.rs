//! Numbers on slices, fast: products with block-quantized weights, norms, softmax, rope, attention.
//!
//! This crate sees slices, sizes and strides; it knows nothing of graphs, tensors or files, and it
//! allocates nothing but the threads of a [`Pool`]. Working memory comes from the caller, sized by
//! the `*_scratch_len` functions.
//!
//! Start at [`Context`], which every kernel takes first: the instruction set and the threads to
//! use. Then [`linear`]. A kernel's body is written once, over the vectors of [`simd`], and
//! compiled once per instruction set.
//!
//! Sizes that do not fit together are a bug of the caller and panic; each function says what it
//! asserts.
#![deny(missing_docs)]
#![allow(unsafe_code)]
// A closure over vectors would be compiled without their instructions (see `simd::Kernel`): loops
// by index are the rule here.
#![allow(clippy::needless_range_loop)]

use std::time::Instant;

pub mod accumulate;
pub mod activation;
pub mod attention;
mod cache;
pub mod ceiling;
pub mod delta;
pub mod f16;
pub mod heap;
pub mod linear;
mod math;
pub mod norm;
pub mod quant;
pub mod rope;
pub mod simd;
pub mod softmax;
pub mod spatial;
pub mod threads;
pub mod topk;
pub mod wide;

// What tests reach inside for; as `linear::internals`, no part of the API.
#[doc(hidden)]
pub use cache::second_len;
#[doc(hidden)]
pub use math::powers_of_two;

pub use attention::{Attention, HeadRows, KvData, KvView, attention, attention_scratch_len};
pub use linear::{Weight, WeightError};
pub use quant::BlockType;
pub use simd::Isa;
pub use threads::Pool;

/// What every kernel needs to know of the machine: which instructions to use, and which threads.
///
/// ```
/// use thane_kernels::linear::{Epilogue, Precision, Product, Start, linear};
/// use thane_kernels::{BlockType, Context, Weight};
///
/// // A weight of two rows and three columns, in f32.
/// let rows: Vec<u8> = [1.0f32, 2.0, 3.0, 0.0, 1.0, -1.0]
///     .iter()
///     .flat_map(|v| v.to_le_bytes())
///     .collect();
/// let weight = Weight::new(BlockType::F32, &rows, 2, 3).expect("two rows of three values");
/// let mut y = [0.0; 2];
/// let mut products = [Product::new(weight, 1, Start::NONE, &mut y)];
/// let (ctx, x, none) = (Context::new(1), [1.0, 1.0, 0.5], Epilogue::None);
/// // One token needs no scratch.
/// linear(&ctx, Precision::Exact, &mut products, &x, 1, none, &mut []);
/// assert_eq!(y, [4.5, 0.5]);
/// ```
#[derive(Debug)]
pub struct Context {
    isa: Isa,
    pool: Pool,
    deadline: Option<Instant>,
}

impl Context {
    /// The best instruction set of this machine, with `n_threads` threads (the caller counts as one
    /// of them).
    pub fn new(n_threads: usize) -> Self {
        Self::with_isa(n_threads, Isa::detect())
    }

    /// A given instruction set, so that a test can force each of [`Isa::available`].
    pub fn with_isa(n_threads: usize, isa: Isa) -> Self {
        Self {
            isa,
            pool: Pool::new(n_threads),
            deadline: None,
        }
    }

    /// Sets when [`Context::is_over`] holds; never, at first.
    pub fn stop_at(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Whether the time that may be spent is over. Long plain ops ask between their parts, and
    /// return with what they have; whoever sets a deadline asks too and discards the results.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|at| Instant::now() >= at)
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads in use.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}
