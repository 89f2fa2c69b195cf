//! Where each op runs.

use thane_mil::program::OpId;

use super::report::Finding;
use super::view::View;

/// What can run an op, in the order of `BackendSupport` in Apple's `analytics.mil`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// The GPU.
    MpsGraph,
    /// The CPU, by BNNS.
    Bnns,
    /// The CPU, by Espresso's own kernels.
    ClassicCpu,
    /// The Neural Engine.
    Ane,
}

/// An op, placed.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The op.
    pub op: OpId,
    /// What can run it, and the milliseconds that the segmenter reckons with.
    pub estimates: Vec<(Backend, f64)>,
    /// What runs it.
    pub chosen: Backend,
    /// Why something cannot run it, as Apple's tools say it.
    pub validation: Vec<(Backend, String)>,
}

/// Ops in a row on one backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// What runs them.
    pub backend: Backend,
    /// Position of the first in [`Placement::ops`].
    pub first: usize,
    /// How many.
    pub n_ops: usize,
}

/// The ops of a function, placed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Ops that compute, in order; constants are left out.
    pub ops: Vec<Placed>,
    /// Runs of ops.
    pub segments: Vec<Segment>,
}

/// Place the ops of a function.
pub fn place(_view: &View<'_>, _findings: &[Finding]) -> Placement {
    Placement::default()
}
