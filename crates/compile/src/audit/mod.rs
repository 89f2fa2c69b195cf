//! Says of a program where each op will run, why, how fast, and what to change, with no device at
//! hand.
//!
//! Three steps, a file each: [`rules`] are rows that find what keeps an op from the engine or makes
//! it slow; [`place`] takes from them which backends support an op, estimates what each would take,
//! and finds the cheapest way through them as Apple's segmenter does; [`latency`] says what a call
//! then takes. [`audit`] puts them together.
//!
//! Weights are not read, unless a rule about numbers says that it must.

pub mod bisect;
pub mod cut;
pub mod errors;
pub mod fix;
pub mod labelled;
pub mod latency;
pub mod lengths;
pub mod place;
pub mod report;
pub mod rules;
pub mod view;
pub mod work;

pub use lengths::Inputs;
pub use report::{Audit, Finding, FunctionAudit};
pub use rules::{Check, Effect, Hit, RULES, Rule, Scope, Severity};
pub use view::View;

use thane_mil::program::{Function, Program};

use crate::target::Target;

/// Judge a program for a target.
pub fn audit(program: &Program, target: &Target) -> Audit {
    audit_calls(program, target, &|_| Inputs::new())
}

/// As [`audit`], with sizes of the inputs that a function leaves open.
pub fn audit_calls(
    program: &Program,
    target: &Target,
    inputs: &dyn Fn(&Function) -> Inputs,
) -> Audit {
    let functions = program.functions().iter().map(|f| {
        let view = View::of_call(program, f, target, &inputs(f));
        let findings = rules::find(&view);
        let placement = place::place(&view, &findings);
        let latency = latency::predict(&view, &placement);
        FunctionAudit {
            name: f.name.clone(),
            placement,
            latency,
            findings,
        }
    });
    Audit {
        target: *target,
        functions: functions.collect(),
        findings: rules::find_in_program(program, target),
    }
}
