//! What the tests of this crate reach inside for: functions planned with some of the patterns, the
//! form that is planned, and steps that no result shows by itself. No part of the API.

use std::sync::Arc;

use thane_mil::backend::{Instance, LoadError, LoadOptions, RunError};
use thane_mil::program::Function;

use crate::ane::half;
use crate::exec::Kind;
use crate::instance::Running;
use crate::ops::BY_ROW;
use crate::plan::fuse::{Fusion, fusions};
pub use crate::plan::rewrite::order::{groups, orders};
pub use crate::plan::rewrite::rewrite;
use crate::shared::Shared;
pub use crate::weight::{Coding, Compressed};
use crate::{Cpu, exec};

/// The names of all patterns, each once.
pub fn pattern_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = fusions().iter().map(|fusion| fusion.name).collect();
    names.dedup();
    names
}

/// The ops whose plain functions go by rows of elements.
pub fn by_row_names() -> Vec<&'static str> {
    BY_ROW.iter().map(|(name, _)| *name).collect()
}

/// A function planned as it is, without rewriting it.
pub struct Planned {
    shared: Arc<Shared>,
    function: String,
}

impl Planned {
    /// With kernels for the patterns of this name, or for none.
    pub fn new(cpu: &Cpu, function: &Function, pattern: Option<&str>) -> Result<Self, LoadError> {
        let is_wanted = |candidate: &Fusion| Some(candidate.name) == pattern;
        let fusions: Vec<Fusion> = fusions().into_iter().filter(is_wanted).collect();
        let functions = std::slice::from_ref(function);
        Ok(Self {
            shared: Arc::new(cpu.plan_with(functions, &LoadOptions::default(), &fusions)?),
            function: function.name.clone(),
        })
    }

    /// The names of its kernels, each once.
    pub fn kernels(&self) -> Vec<&'static str> {
        let plan = &self.shared.plans[&self.function];
        let fused = plan
            .steps
            .iter()
            .filter(|step| matches!(step.kind, Kind::Fused(_)));
        let mut names: Vec<&str> = fused.map(|step| exec::name(plan, step).0).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// A running copy.
    pub fn instantiate(&self) -> Result<Box<dyn Instance>, RunError> {
        Ok(Box::new(Running::new(Arc::clone(&self.shared))?))
    }
}

/// The fp16 number that is nearest to one; half way, the one away from zero or the even one.
pub fn nearest_half(v: f64, half_away: bool) -> f64 {
    half::nearest(v, half_away)
}

/// Rounds numbers to fp16 where each is zero or a normal fp16 number before and after; else
/// `false`, and all are as they were.
pub fn round_normal(values: &mut [f32], half_away: bool) -> bool {
    half::round_normal(values, half_away)
}
