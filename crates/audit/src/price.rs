//! The latency model as the price by which passes and fixes choose.

use thane_compile::{Cost, Price};
use thane_mil::program::{Function, Program};

use crate::judged::FunctionAudit;
use crate::target::Target;
use crate::view::View;

/// Prices functions by the latency that is predicted for a target.
#[derive(Clone, Copy, Debug)]
pub struct Predictor<'a> {
    /// The target.
    pub target: &'a Target,
}

impl Price for Predictor<'_> {
    fn price(&self, program: &Program, function: &Function) -> Cost {
        /// Nanoseconds of a millisecond.
        const NS: f64 = 1e6;
        let latency = FunctionAudit::of(&View::new(program, function, self.target)).latency;
        let (low, high) = latency.interval_ms;
        Cost {
            ns: latency.ms * NS,
            interval_ns: (low * NS, high * NS),
        }
    }
}
