//! What a call takes.

use super::place::Placement;
use super::view::View;

/// What limits a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// Products.
    Compute,
    /// Reading weights.
    Weights,
    /// Reading and writing activations.
    Activations,
    /// Entering and leaving the engine.
    #[default]
    Dispatch,
}

/// What a call takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Milliseconds expected.
    pub ms: f64,
    /// About 80 % of calls take between these.
    pub interval_ms: (f64, f64),
    /// What limits it.
    pub bound: Bound,
}

/// Predict what a call takes.
pub fn predict(_view: &View<'_>, _placement: &Placement) -> Latency {
    Latency::default()
}
