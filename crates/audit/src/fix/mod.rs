//! Rewrites what the rules find. Each rewrite is kept only if it is proven to compute the same and
//! predicted to help. A rewrite that changes precision or ranges is lossy: it is tried only if the
//! prover has a bound for the error.
//!
//! The fixes and the driver that tries them are in `thane-compile`, which knows no chip. Here is
//! what they are told of the target: what the rules find, what a function costs, and what is no
//! gain.

mod judge;
mod report;

use thane_compile::pad_interface;
use thane_compile::trial::{Trials, count};
use thane_mil::lower::with_opset;
use thane_mil::program::Program;
use thane_mil::valid;

use crate::price::Predictor;
use crate::target::Target;

pub use judge::limits;
pub use report::Report;
pub use thane_compile::fixes::{FIXES, Fix};
pub use thane_compile::pad_interface::Changed;
pub use thane_compile::proof::{Forms, Numbers, Proof, Prover, Stage};
pub use thane_compile::trial::{Left, Measure, Place, Step, Verdict};

/// How to fix.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Only the fix of this name.
    pub only: Option<&'a str>,
    /// Keep exact rewrites that cannot be run here, though not what is seen to differ.
    pub unproven: bool,
    /// Pad inputs, outputs and states where rules ask for it, which changes what callers pass.
    pub pad_interface: bool,
}

/// Why nothing is fixed.
#[derive(Debug, thiserror::Error)]
pub enum FixError {
    /// The program is not legal.
    #[error("the program is not legal: \
        {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Illegal(Vec<valid::Violation>),
    /// There is no fix of that name.
    #[error("there is no fix {name:?}, there are \
        {}", FIXES.iter().map(|f| f.name).collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
}

/// Rewrite what the rules find in a program.
pub fn run(
    program: Program,
    target: &Target,
    options: &Options<'_>,
    prover: &mut dyn Prover,
) -> Result<(Program, Report), FixError> {
    valid::check(&program).map_err(FixError::Illegal)?;
    let fixes: Vec<&'static Fix> = FIXES
        .iter()
        .filter(|f| options.only.is_none_or(|name| name == f.name))
        .collect();
    if let (true, Some(name)) = (fixes.is_empty(), options.only) {
        return Err(FixError::Unknown {
            name: name.to_owned(),
        });
    }
    let judge = Predictor { target };
    let before = judge::program(&program, &judge);
    let mut steps = Vec::new();
    let mut program = lowered(program, target, &mut steps);
    let mut interface = Vec::new();
    if options.pad_interface {
        let tried;
        (program, interface, tried) = pad_interface::run(program, &judge, prover, options.unproven);
        steps.extend(tried);
    }
    let trials = Trials::new(program, &judge, &fixes, prover, options.unproven);
    let (program, tried, mut left) = trials.run();
    steps.extend(tried);
    for left in &mut left {
        if pad_interface::RULES.contains(&left.rule) {
            let why = if options.pad_interface {
                "was tried in vain, see above"
            } else {
                "changes what callers pass, and is not asked for"
            };
            left.reason = format!("{} {why}", pad_interface::NAME);
        }
    }
    let after = judge::program(&program, &judge);
    let report = Report {
        target: *target,
        before,
        after,
        steps,
        left,
        interface,
    };
    Ok((program, report))
}

/// The program in an opset that the release reads, where it can be said in one; nothing of it
/// changes but the forms of ops.
fn lowered(program: Program, target: &Target, steps: &mut Vec<Step>) -> Program {
    let newest = target.release.opset;
    if program.functions().iter().all(|f| f.opset <= newest) {
        return program;
    }
    let (verdict, program) = match with_opset(&program, newest) {
        Ok(lower) => (
            Verdict::Kept(Proof::Equal(
                "each op is the same op in an older form".to_owned(),
            )),
            lower,
        ),
        Err(violations) => (Verdict::Rejected(violations[0].to_string()), program),
    };
    steps.push(Step {
        fix: "lower_opset",
        what: "an opset that the release reads",
        rules: vec!["ANE143"],
        function: String::new(),
        sites: Vec::new(),
        before: Measure::default(),
        after: Measure::default(),
        verdict,
    });
    program
}
