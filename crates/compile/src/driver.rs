//! Applies passes until none has more to do, and checks the program between them.
//!
//! A pass answers for a whole function at once, a [`Site`] for each place that it matched. The
//! driver gathers what it may apply into one patch, so that a pass costs a walk over the function
//! however much it changes. Sites are in an order in which any first part of them is a legal change
//! by itself: [`Options::stop_after`] stops after the Nth, and a patch that breaks the program is
//! taken apart to name the site that did it.

use thane_mil::edit::{Patch, PatchError};
use thane_mil::program::{OpId, Program};
use thane_mil::valid;

use crate::graph::label;
use crate::pass::{Outcome, Pass, Site};
use crate::report::{Refusal, Report};

/// Rounds over all passes; a program that still changes after so many is one that passes change
/// back and forth.
const MAX_ROUNDS: usize = 16;

/// How passes are run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Check the program before the first patch and after each.
    pub verify: bool,
    /// Change no more than this many sites, to find the one that breaks something by halving.
    pub stop_after: Option<usize>,
}

impl Default for Options {
    /// Debug builds verify; a release build trusts the tests, since a check costs more than the
    /// passes.
    fn default() -> Self {
        Self {
            verify: cfg!(debug_assertions),
            stop_after: None,
        }
    }
}

/// Why a program cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// It was not legal to begin with.
    #[error("the program is not legal before any pass: {}", join(.0))]
    Illegal(Vec<valid::Violation>),
    /// A pass went wrong, which is a bug of the pass.
    #[error("{pass}, function `{function}`, at {op}: {fault}")]
    Pass {
        /// Pass name.
        pass: &'static str,
        /// Function name.
        function: String,
        /// The op that the pass matched.
        op: String,
        /// What went wrong.
        fault: Fault,
    },
}

/// How a pass goes wrong.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A patch cannot be applied.
    #[error("{0}")]
    Patch(Box<PatchError>),
    /// A patch broke rules of programs.
    #[error("the program is not legal any more: {}", join(.0))]
    Broken(Vec<valid::Violation>),
    /// Passes change a function without end; this was the last one.
    #[error("still changing after {MAX_ROUNDS} rounds")]
    Endless,
}

fn join(violations: &[valid::Violation]) -> String {
    violations
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Apply `passes` to every function until none has more to do.
pub fn run(
    program: Program,
    passes: &[Pass],
    options: &Options,
) -> Result<(Program, Report), CompileError> {
    if options.verify {
        valid::check(&program).map_err(CompileError::Illegal)?;
    }
    let report = Report::new(&program, passes);
    let mut driver = Driver {
        program,
        passes,
        options,
        report,
        n_left: options.stop_after.unwrap_or(usize::MAX),
    };
    for at in 0..driver.program.functions().len() {
        driver.function(at)?;
    }
    let Driver {
        program,
        mut report,
        ..
    } = driver;
    report.finish(&program);
    Ok((program, report))
}

struct Driver<'a> {
    program: Program,
    passes: &'a [Pass],
    options: &'a Options,
    report: Report,
    n_left: usize,
}

/// What one pass answered for one function.
#[derive(Default)]
struct Answer {
    applied: Vec<(OpId, Patch)>,
    n_without_effect: usize,
    refusals: Vec<Refusal>,
}

impl Driver<'_> {
    fn function(&mut self, at: usize) -> Result<(), CompileError> {
        let mut n_rounds = 0;
        while let Some((k, op)) = self.round(at)? {
            n_rounds += 1;
            if n_rounds == MAX_ROUNDS {
                let op = label(&self.program.functions()[at], op);
                return Err(self.error(at, k, op, Fault::Endless));
            }
        }
        Ok(())
    }

    /// Apply each pass once; the last pass that changed something and where, or `None` when none
    /// did.
    fn round(&mut self, at: usize) -> Result<Option<(usize, OpId)>, CompileError> {
        let mut last = None;
        let mut kept = Vec::with_capacity(self.passes.len());
        for k in 0..self.passes.len() {
            let answer = self.ask(at, k);
            kept.push((answer.n_without_effect, answer.refusals));
            if let Some((op, _)) = answer.applied.first() {
                last = Some((k, *op));
                self.apply(at, k, answer.applied)?;
            }
        }
        if last.is_none() {
            // What is left as it is, is reported as the last round sees it.
            for (report, (n, refusals)) in self.report.passes.iter_mut().zip(kept) {
                report.n_without_effect += n;
                report.refusals.extend(refusals);
            }
        }
        Ok(last)
    }

    /// What pass `k` would do to function `at`, cut where the options say stop.
    fn ask(&self, at: usize, k: usize) -> Answer {
        let f = &self.program.functions()[at];
        let mut answer = Answer::default();
        for Site { op, outcome } in (self.passes[k].run)(f) {
            match outcome {
                // A patch that changes nothing would be found again for ever.
                Outcome::Applied(patch) if patch.is_empty() => answer.n_without_effect += 1,
                Outcome::Applied(patch) if answer.applied.len() < self.n_left => {
                    answer.applied.push((op, patch))
                }
                Outcome::Applied(_) | Outcome::NoMatch => {}
                Outcome::NoEffect => answer.n_without_effect += 1,
                Outcome::Refused(reason) => {
                    answer.refusals.push(Refusal {
                        function: f.name.clone(),
                        op: label(f, op),
                        reason,
                    });
                }
            }
        }
        answer
    }

    fn apply(
        &mut self,
        at: usize,
        k: usize,
        applied: Vec<(OpId, Patch)>,
    ) -> Result<(), CompileError> {
        let before = self.options.verify.then(|| self.program.clone());
        let first = label(&self.program.functions()[at], applied[0].0);
        let n = applied.len();
        self.n_left -= n;
        self.report.passes[k].n_applied += n;
        let mut whole = Patch::new();
        applied
            .into_iter()
            .for_each(|(_, patch)| whole.append(patch));
        let result = step(&mut self.program, at, whole, self.options.verify);
        let Err(fault) = result else { return Ok(()) };
        let culprit = before.and_then(|program| self.culprit(program, at, k, n));
        let (op, fault) = culprit.unwrap_or((first, fault));
        Err(self.error(at, k, op, fault))
    }

    fn error(&self, at: usize, k: usize, op: String, fault: Fault) -> CompileError {
        CompileError::Pass {
            pass: self.passes[k].name,
            function: self.program.functions()[at].name.clone(),
            op,
            fault,
        }
    }

    /// The first of `n` sites whose patch, applied by itself after those before it, does not leave
    /// a legal program.
    fn culprit(
        &self,
        mut program: Program,
        at: usize,
        k: usize,
        n: usize,
    ) -> Option<(String, Fault)> {
        let sites = (self.passes[k].run)(&program.functions()[at]).into_iter();
        let patches = sites.filter_map(|site| match site.outcome {
            Outcome::Applied(patch) if !patch.is_empty() => Some((site.op, patch)),
            _ => None,
        });
        for (op, patch) in patches.take(n) {
            let op = label(&program.functions()[at], op);
            if let Err(fault) = step(&mut program, at, patch, true) {
                return Some((op, fault));
            }
        }
        None
    }
}

fn step(program: &mut Program, at: usize, patch: Patch, verify: bool) -> Result<(), Fault> {
    patch
        .apply_to(program, at)
        .map_err(|e| Fault::Patch(Box::new(e)))?;
    if verify {
        valid::check(program).map_err(Fault::Broken)
    } else {
        Ok(())
    }
}
