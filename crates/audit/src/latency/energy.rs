//! The energy of a call: products and elementwise ops on the Neural Engine, reads of memory for
//! them, and the host's part of a call.
//!
//! The figures are those of the M6 study (M4 and M6, macOS 27, power metrics over long loops).
//! Other chips are assumed to be alike, which nobody measured. Work of the CPU and GPU is not
//! counted, and neither is the rest of the machine.

use thane_mil::program::{OpId, ValueId};

use super::on_engine;
use super::traffic::Traffic;
use crate::place::Placement;
use crate::target::{Figure, Route};
use crate::view::View;
use crate::work::Kind;

const STUDY: &str = "M6 study, M4 and M6, macOS 27";
/// An fp16 multiplication and addition, in picojoules.
const PRODUCT_PJ: Figure = Figure::measured(0.7, 0.6, 0.8, STUDY);
/// Energy of an int8 multiplication and addition, as a share of that in fp16.
const INT8: Figure = Figure::measured(0.675, 0.55, 0.8, STUDY);
/// A result of an elementwise op, in picojoules.
const ELEMENT_PJ: Figure = Figure::measured(55.0, 50.0, 60.0, STUDY);
/// A byte out of memory: about 42; how far it may be off is a guess.
const BYTE_PJ: Figure = Figure::measured(42.0, 36.0, 48.0, STUDY);
/// The host's part of a call through Core ML, in millijoules: about 1.6; how far it may be off is a
/// guess.
const CALL_MJ: Figure = Figure::measured(1.6, 1.2, 2.0, STUDY);

/// Energy of a call, in millijoules.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// Expected.
    pub mj: f64,
    /// Interval that the sources' figures leave open.
    pub interval_mj: (f64, f64),
}

impl Energy {
    fn add(&mut self, n: f64, figure: Figure, unit_mj: f64) {
        self.mj += n * figure.value * unit_mj;
        self.interval_mj.0 += n * figure.low * unit_mj;
        self.interval_mj.1 += n * figure.high * unit_mj;
    }
}

/// Sum the energy of a call.
pub(super) fn of(
    view: &View<'_>,
    placement: &Placement,
    weight_bytes: f64,
    traffic: &Traffic,
) -> Energy {
    const PICO: f64 = 1e-9;
    let mut energy = Energy::default();
    for op in placement.ops.iter().filter(|op| on_engine(op.chosen)) {
        match op.work.kind {
            Kind::Product(gemm, _) if gemm.int8 => {
                let products = op.work.flops / 2.0;
                energy.mj += products * PRODUCT_PJ.value * INT8.value * PICO;
                energy.interval_mj.0 += products * PRODUCT_PJ.low * INT8.low * PICO;
                energy.interval_mj.1 += products * PRODUCT_PJ.high * INT8.high * PICO;
            }
            Kind::Product(..) | Kind::Matmul | Kind::Attention => {
                energy.add(op.work.flops / 2.0, PRODUCT_PJ, PICO)
            }
            Kind::Transpose | Kind::Copy | Kind::Free | Kind::State => {}
            _ => energy.add(elements(view, op.op, op.work.outputs), ELEMENT_PJ, PICO),
        }
    }
    energy.add(
        weight_bytes + traffic.edge_bytes + 2.0 * traffic.spilled_bytes,
        BYTE_PJ,
        PICO,
    );
    if view.target.route == Route::CoreMl {
        energy.add(placement.n_dispatches() as f64, CALL_MJ, 1.0);
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
