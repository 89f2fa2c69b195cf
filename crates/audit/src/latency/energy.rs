//! The energy of a call: what the Neural Engine draws while it runs, its products and elementwise
//! ops, reads of memory for them, and the host's part of a call.
//!
//! Energy by product, element, byte and call is that of the M6 study (M4 and M6, macOS 27, power
//! metrics over long loops). Whole models draw more than their products explain: a step of a
//! decoder, whose products are few, draws as much as an encoder. That is power while the engine
//! runs ([`ACTIVE_W`]), fitted to the engine's rail as ANEForge read it. All chips are taken to be
//! alike, with wider intervals where nobody read any energy ([`READ_ON`]). Power takes as long as
//! the call, so its interval is that of the power and that of the time together. Work of the CPU
//! and GPU is not counted, and neither is the rest of the machine.

use thane_mil::program::{OpId, ValueId};

use super::on_ane;
use super::traffic::Traffic;
use crate::place::Placement;
use crate::target::{Figure, Route};
use crate::view::View;
use crate::work::Kind;

const STUDY: &str = "M6 study, M4 and M6, macOS 27";
/// An fp16 multiplication and addition, in picojoules.
const PRODUCT_PJ: Figure = Figure::measured(0.7, 0.6, 0.8).by(STUDY);
/// Energy of an int8 multiplication and addition, as a share of that in fp16.
const INT8: Figure = Figure::measured(0.675, 0.55, 0.8).by(STUDY);
/// A result of an elementwise op, in picojoules.
const ELEMENT_PJ: Figure = Figure::measured(55.0, 50.0, 60.0).by(STUDY);
/// A byte out of memory: about 42; how far it may be off is a guess.
const BYTE_PJ: Figure = Figure::measured(42.0, 36.0, 48.0).by(STUDY);
/// The host's part of a call through Core ML, in millijoules: about 1.6; how far it may be off is a
/// guess.
const CALL_MJ: Figure = Figure::measured(1.6, 1.2, 2.0).by(STUDY);

/// Power of the engine while it is awake, in watts, beside what products and elements take: from
/// one call to the next where they follow each other, but not while ops run elsewhere. Fitted to
/// the rows in watts with the split `fit`: ResNet-18, MiniLM, ViT-B/16 and a decoder at batch 1 to
/// 32, on M2 and M5 Pro. Bounds are the least and most of one row whose time is met.
const ACTIVE_W: Figure = Figure::measured(1.5, 0.9, 2.4).by("ANEForge, M2 and M5 Pro, macOS 26");

/// The figures of energy, by name.
pub const FIGURES: [(&str, Figure); 7] = [
    ("product_pj", PRODUCT_PJ),
    ("int8", INT8),
    ("element_pj", ELEMENT_PJ),
    ("byte_pj", BYTE_PJ),
    ("call_mj", CALL_MJ),
    ("active_w", ACTIVE_W),
    ("spread.energy_of_other_chips", OTHER_CHIPS),
];

/// Chips with published energy of products or power of the engine: the M6 study, and the rows in
/// watts of `ane_measurements.csv` and `whole_models.csv`.
const READ_ON: [&str; 6] = ["m2", "m2-pro", "m4", "m5-max", "m5-pro", "m6"];

/// The logarithm of the factor that energy may be off by on other chips, beside what figures leave
/// open: that of 1.5, a guess.
const OTHER_CHIPS: Figure = Figure::inferred(0.405, 0.405, 0.405).by("a related chip");

/// Energy of a call, in millijoules.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// Power of the engine while it is awake, for the predicted time.
    pub awake: Millijoules,
    /// Products and elementwise ops on the engine.
    pub work: Millijoules,
    /// Memory.
    pub memory: Millijoules,
    /// The CPU's part of a call.
    pub host: Millijoules,
    /// The logarithm of the factor that the call may take more or less.
    time_spread: f64,
}

impl Energy {
    /// The engine, as its power rail has it, for the predicted time.
    pub fn ane(&self) -> Millijoules {
        Millijoules::sum(&[self.awake, self.work])
    }

    /// All of it, in as long as the call may take.
    pub fn total(&self) -> Millijoules {
        let awake = self.awake.widened(self.time_spread);
        Millijoules::sum(&[awake, self.work, self.memory, self.host])
    }
}

/// Some energy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Millijoules {
    /// Expected.
    pub mj: f64,
    /// Interval that the sources' figures leave open.
    pub interval_mj: (f64, f64),
}

impl Millijoules {
    /// The sum of energies, each of which may be at its lowest or highest.
    fn sum(parts: &[Self]) -> Self {
        let sum = |of: fn(&Self) -> f64| parts.iter().map(of).sum();
        Self {
            mj: sum(|p| p.mj),
            interval_mj: (sum(|p| p.interval_mj.0), sum(|p| p.interval_mj.1)),
        }
    }

    /// The energy if it may also be off by a factor whose logarithm is `spread`, independently.
    fn widened(self, spread: f64) -> Self {
        let factor = |bound: f64| libm::exp(libm::hypot(libm::log(bound / self.mj), spread));
        if self.mj <= 0.0 || self.interval_mj.0 <= 0.0 {
            return self;
        }
        Self {
            mj: self.mj,
            interval_mj: (
                self.mj / factor(self.interval_mj.0),
                self.mj * factor(self.interval_mj.1),
            ),
        }
    }

    fn add(&mut self, n: f64, figure: Figure, unit_mj: f64) {
        self.mj += n * figure.value * unit_mj;
        self.interval_mj.0 += n * figure.low * unit_mj;
        self.interval_mj.1 += n * figure.high * unit_mj;
    }
}

/// For how long the engine is awake in a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awake {
    /// Expected seconds.
    pub seconds: f64,
    /// The logarithm of the factor that the call may take more or less.
    pub spread: f64,
}

/// Sum the energy of a call.
pub(super) fn of(
    view: &View<'_>,
    placement: &Placement,
    awake: Awake,
    weight_bytes: f64,
    traffic: &Traffic,
) -> Energy {
    let mut energy = Energy {
        work: of_ane(view, placement),
        time_spread: awake.spread,
        ..Energy::default()
    };
    energy.awake.add(awake.seconds, ACTIVE_W, 1e3);
    let bytes = weight_bytes + traffic.edge_bytes + 2.0 * traffic.spilled_bytes;
    energy.memory.add(bytes, BYTE_PJ, PICO);
    if view.target.route == Route::CoreMl {
        let calls = placement.n_dispatches() as f64;
        energy.host.add(calls, CALL_MJ, 1.0);
    }
    if READ_ON.contains(&view.target.chip.name) {
        return energy;
    }
    Energy {
        awake: energy.awake.widened(OTHER_CHIPS.value),
        work: energy.work.widened(OTHER_CHIPS.value),
        memory: energy.memory.widened(OTHER_CHIPS.value),
        host: energy.host.widened(OTHER_CHIPS.value),
        ..energy
    }
}

/// Millijoules of a picojoule.
const PICO: f64 = 1e-9;

/// What products and elementwise ops take.
fn of_ane(view: &View<'_>, placement: &Placement) -> Millijoules {
    let mut energy = Millijoules::default();
    for op in placement.ops.iter().filter(|op| on_ane(op.chosen)) {
        // Winograd's form has fewer products.
        let products = match op.work.kind {
            Kind::Product(gemm, _) => op.work.flops / 2.0 / gemm.speed.max(1.0),
            _ => op.work.flops / 2.0,
        };
        match op.work.kind {
            Kind::Product(gemm, _) if gemm.int8 => {
                energy.mj += products * PRODUCT_PJ.value * INT8.value * PICO;
                energy.interval_mj.0 += products * PRODUCT_PJ.low * INT8.low * PICO;
                energy.interval_mj.1 += products * PRODUCT_PJ.high * INT8.high * PICO;
            }
            Kind::Product(..) | Kind::Matmul | Kind::Attention => {
                energy.add(products, PRODUCT_PJ, PICO)
            }
            Kind::Transpose | Kind::Copy | Kind::Free | Kind::State => {}
            _ => energy.add(elements(view, op.op, op.work.outputs), ELEMENT_PJ, PICO),
        }
    }
    energy
}

/// Elements that an op processes; for reductions, those of the operand.
fn elements(view: &View<'_>, op: OpId, outputs: f64) -> f64 {
    let count = |value: ValueId| view.n_elements(value).map_or(0.0, |n| n as f64);
    view.op(op)
        .uses()
        .filter(|v| !view.is_constant(*v))
        .map(count)
        .fold(outputs, f64::max)
}
