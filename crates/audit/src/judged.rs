//! Judges a program: rules, then placement, then latency, function by function.

use thane_mil::program::{Function, Program};

use crate::finding::Finding;
use crate::latency::{self, Latency};
use crate::lengths::Inputs;
use crate::place::{self, Placement};
use crate::rules;
use crate::target::Target;
use crate::view::View;

/// What the audit found in one function.
#[derive(Clone, Debug)]
pub struct FunctionAudit {
    /// The function's name.
    pub name: String,
    /// Where each op runs.
    pub placement: Placement,
    /// How long a call takes.
    pub latency: Latency,
    /// What the rules about ops and functions found.
    pub findings: Vec<Finding>,
}

impl FunctionAudit {
    /// Judge the function that a view shows.
    pub fn of(view: &View<'_>) -> Self {
        Self::of_until(view, &|| false).expect("nobody interrupts it")
    }

    /// Judge the function that a view shows, asking `interrupted` after each rule; `None` once it
    /// returns true.
    pub fn of_until(view: &View<'_>, interrupted: &dyn Fn() -> bool) -> Option<Self> {
        let findings = rules::find_until(view, interrupted)?;
        let placement = place::place(view, &findings);
        if interrupted() {
            return None;
        }
        let latency = latency::predict(view, &placement);
        Some(Self {
            name: view.f.name.clone(),
            placement,
            latency,
            findings,
        })
    }
}

/// What the audit found in a program.
#[derive(Clone, Debug)]
pub struct Audit {
    /// The target that the program was judged for.
    pub target: Target,
    /// One entry for each function, in the order of the program.
    pub functions: Vec<FunctionAudit>,
    /// Findings about the program as a whole.
    pub findings: Vec<Finding>,
}

/// Judge a program for a target. Inputs whose shape the program leaves open are taken to be
/// [`ASSUMED`](crate::lengths::ASSUMED) long.
pub fn audit(program: &Program, target: &Target) -> Audit {
    let audit = audit_calls(program, target, &|_| Inputs::new(), &|| false);
    audit.expect("nobody interrupts it")
}

/// Judge a program for a target, with sizes for the inputs that a function leaves open. Asks
/// `interrupted` after each rule of each function; `None` once it returns true.
pub fn audit_calls(
    program: &Program,
    target: &Target,
    inputs: &dyn Fn(&Function) -> Inputs,
    interrupted: &dyn Fn() -> bool,
) -> Option<Audit> {
    let functions = program.functions().iter().map(|f| {
        let view = View::of_call(program, f, target, &inputs(f));
        FunctionAudit::of_until(&view, interrupted)
    });
    Some(Audit {
        target: *target,
        functions: functions.collect::<Option<_>>()?,
        findings: rules::find_in_program(program, target),
    })
}
