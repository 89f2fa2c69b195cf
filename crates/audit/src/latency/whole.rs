//! By what factor whole models take more or less than is predicted: as much as published models of
//! their class did.

use super::engine::Total;
use super::on_engine;
use crate::place::Placement;
use crate::work::Kind;

/// Ops that compute, from which on a program is a whole model.
const LEAST_OPS: usize = 20;

/// A class of whole models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Convolutions on the engine, without attention.
    Convolutions,
    /// Attention on the engine, over several positions.
    Attention,
    /// One position at a time on the engine.
    Decode,
    /// More than half of the time on the CPU or GPU.
    Host,
}

impl Class {
    /// The logarithm of the factor that 80 % of the rows of `whole_models.csv` with the split `fit`
    /// stay within, each source counted once, rounded up to a twentieth.
    pub fn spread(self) -> f64 {
        match self {
            Self::Convolutions => 0.7,
            Self::Attention => 0.55,
            Self::Decode => 1.2,
            Self::Host => 0.65,
        }
    }
}

/// The class of a program that is a whole model.
pub fn of(placement: &Placement, work: &Total) -> Option<Class> {
    if placement.ops.len() < LEAST_OPS {
        return None;
    }
    let has_attention = || {
        placement
            .ops
            .iter()
            .filter(|op| on_engine(op.chosen))
            .any(|op| matches!(op.work.kind, Kind::Softmax | Kind::Attention))
    };
    Some(match () {
        () if work.parts.host > 0.5 * work.parts.total() => Class::Host,
        () if work.positions == 1.0 => Class::Decode,
        () if has_attention() => Class::Attention,
        () => Class::Convolutions,
    })
}
