//! By what factor whole models take more or less than is predicted: as much as published models of
//! their class did, and more where a program is far from all of those.

use std::cmp::Ordering;

use super::ane::{Parts, Total};
use crate::place::{Placed, Placement};
use crate::target::{Chip, Figure};
use crate::view::View;
use crate::work::Kind;

/// Ops that compute, from which on a program is a whole model.
const LEAST_OPS: usize = 20;

/// A class of whole models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Mostly on the engine, without attention.
    Convolutions,
    /// Mostly on the engine, with attention over several positions, wherever its softmax runs.
    Attention,
    /// One position at a time on the engine.
    Decode,
    /// More than half of the time on the CPU or GPU, or nothing on the engine.
    Host,
}

/// All classes.
pub const CLASSES: [Class; 4] = [
    Class::Convolutions,
    Class::Attention,
    Class::Decode,
    Class::Host,
];

impl Class {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        self.fitted().name
    }

    /// The logarithm of the factor that 80 % of the rows of `whole_models.csv` with the split `fit`
    /// stay within, each source left out in turn and counted once, rounded up to a twentieth. Rows
    /// far from those of other sources are by themselves. Few sources have such rows: of `n`, 0.8
    /// (`n` + 1) are to be met.
    pub fn spread(self, far: Far) -> f64 {
        let fitted = self.fitted();
        if far == Far::default() {
            fitted.near
        } else {
            fitted.far
        }
    }

    /// In what a prediction is far from the rows of its class.
    pub fn far(self, chip: &Chip, parts: &Parts) -> Far {
        let fitted = self.fitted();
        let (least, most) = fitted.ms;
        let (shares, ms) = (shares(parts), parts.total() * 1e3);
        let size = match () {
            () if ms < least => Some(Ordering::Less),
            () if ms > most => Some(Ordering::Greater),
            () => None,
        };
        Far {
            chip: !fitted.chips.contains(&chip.name),
            size,
            mix: shares.iter().zip(fitted.shares).any(|(s, m)| *s > m),
        }
    }

    fn fitted(self) -> Fitted {
        match self {
            Self::Convolutions => Fitted {
                name: "convolutions",
                noun: "convolutional network",
                near: 0.75,
                far: 1.1,
                chips: &[
                    "a14", "a15", "a16", "a17-pro", "a18-pro", "a19-pro", "m2", "m2-max", "m3-max",
                    "m4-pro", "m5", "m5-pro",
                ],
                ms: (0.29, 48.0),
                shares: [0.92, 0.56, 0.53, 0.08, 0.51, 0.02],
            },
            Self::Attention => Fitted {
                name: "attention",
                noun: "model with attention",
                near: 0.5,
                far: 0.5,
                chips: &[
                    "a14", "a15", "a16", "a17-pro", "m1", "m1-max", "m1-pro", "m1-ultra", "m2",
                    "m4-max", "m5", "m5-pro",
                ],
                ms: (0.57, 1040.0),
                shares: [0.85, 0.68, 0.79, 0.72, 0.27, 0.23],
            },
            Self::Decode => Fitted {
                name: "decode",
                noun: "decode step",
                near: 1.1,
                far: 1.1,
                chips: &["m5", "m5-pro"],
                ms: (1.6, 9.3),
                shares: [0.44, 0.41, 0.55, 0.35, 0.07, 0.0],
            },
            Self::Host => Fitted {
                name: "host",
                noun: "model that is mostly on the CPU or GPU",
                near: 0.75,
                far: 1.25,
                chips: &[
                    "a19-pro", "m1", "m1-max", "m2-max", "m4-max", "m4-pro", "m5", "m5-max",
                    "m5-pro",
                ],
                ms: (0.24, 107.0),
                shares: [0.05, 0.0, 0.09, 0.01, 0.14, 1.0],
            },
        }
    }
}

/// The widths of intervals by class, by name.
pub fn figures() -> Vec<(String, Figure)> {
    const ROWS: &str = "every whole model marked `fit`";
    let of = |class: Class, which: &str, width: f64| {
        let name = format!("interval.{}.{which}", class.name());
        (name, Figure::inferred(width, width, width).by(ROWS))
    };
    let widths = |class: Class| {
        let fitted = class.fitted();
        [of(class, "near", fitted.near), of(class, "far", fitted.far)]
    };
    CLASSES.into_iter().flat_map(widths).collect()
}

/// What the rows of a class that numbers were chosen with say of it.
/// `tests/it/intervals.rs` derives it from them.
struct Fitted {
    /// The word in reports.
    name: &'static str,
    /// Noun for a model of the class, for texts.
    noun: &'static str,
    /// Width for programs like the rows.
    near: f64,
    /// Width for others.
    far: f64,
    /// Chips of the rows.
    chips: &'static [&'static str],
    /// The least and the most predicted milliseconds.
    ms: (f64, f64),
    /// The most that a part takes of the time, as [`shares`] has them.
    shares: [f64; 6],
}

/// The share of the time of a call that is products, reading weights, elements with their tasks,
/// activations, dispatch, and ops elsewhere.
pub fn shares(parts: &Parts) -> [f64; 6] {
    let total = parts.total().max(f64::MIN_POSITIVE);
    [
        parts.compute,
        parts.weights,
        parts.elements + parts.tasks,
        parts.activations + parts.copies,
        parts.dispatch + parts.caller,
        parts.host,
    ]
    .map(|seconds| seconds / total)
}

/// In what a prediction is far from the models of its class that the interval was fitted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Far {
    /// None of them was measured on the chip.
    pub chip: bool,
    /// It takes less time than any of them, or more.
    pub size: Option<Ordering>,
    /// One part takes more of its time than of any of them.
    pub mix: bool,
}

impl Far {
    /// In words, for a model of `class` on `chip`.
    pub fn reasons(self, class: Class, chip: &str) -> Vec<String> {
        let any = format!(
            "any {} that the interval was fitted to",
            class.fitted().noun
        );
        let size = self.size.map(|size| match size {
            Ordering::Less => "less",
            _ => "more",
        });
        let reasons = [
            self.chip.then(|| {
                let noun = class.fitted().noun;
                format!("no {noun} that the interval was fitted to was measured on {chip}")
            }),
            size.map(|than| format!("it takes {than} time than {any}")),
            self.mix
                .then(|| format!("one part takes more of its time than of {any}")),
        ];
        reasons.into_iter().flatten().collect()
    }
}

/// Operations for each weight, from which on a program with most weights for one position is no
/// step of a decoder: a convolutional network whose last layers are large.
const MOST_OPS_A_WEIGHT: f64 = 16.0;

/// The class of a program that is a whole model.
pub fn of(view: &View<'_>, placement: &Placement, work: &Total) -> Option<Class> {
    if placement.ops.len() < LEAST_OPS {
        return None;
    }
    let any = |is: &dyn Fn(&Placed) -> bool| placement.ops.iter().any(is);
    // A softmax may be written out.
    let has_attention = || {
        any(&|op| matches!(op.work.kind, Kind::Softmax | Kind::Attention))
            || any(&|op| op.work.kind == Kind::Matmul)
                && any(&|op| view.op(op.op).def.name == "exp")
    };
    Some(match () {
        () if work.parts.on_ane() == 0.0 => Class::Host,
        () if work.parts.host > 0.5 * work.parts.total() => Class::Host,
        () if work.positions == 1.0 && is_step(placement) => Class::Decode,
        () if has_attention() => Class::Attention,
        () => Class::Convolutions,
    })
}

/// Whether weights are used for few positions.
fn is_step(placement: &Placement) -> bool {
    let products = placement.ops.iter().filter_map(|op| match op.work.kind {
        Kind::Product(gemm, _) => Some((gemm.flops(), gemm.n_weights())),
        _ => None,
    });
    let (flops, weights) = products.fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
    flops <= MOST_OPS_A_WEIGHT * weights
}
