//! Rewrites what the rules find. Each rewrite is kept only if it is proven to compute the same and
//! predicted to help. A rewrite that changes precision or ranges is lossy: it is tried only if the
//! prover has a bound for the error.
//!
//! A fix answers for one op that one of its rules found: a patch, or why there is none. [`run`]
//! tries each fix on each function, cleans up after it, judges the function again, and asks a
//! [`Prover`], which runs both forms: this crate runs nothing. To add a fix, add a file whose doc
//! has a program that it rewrites, its `mod` line, its line in [`FIXES`], and
//! `tests/fixes/<name>.mil`.
//!
//! A fix is not a [`Pass`](thane_compile::Pass): it needs the target and the findings, and its
//! result need not be the same bit for bit. The cleanup after a fix uses passes and their driver.

mod bound_masks;
pub mod cancel_layouts;
mod compressed;
mod double;
mod expand_argmax;
mod expand_cumsum;
mod expand_function;
mod expand_log_softmax;
mod expand_logic;
mod expand_mod;
mod expand_reduce;
mod expand_softplus;
mod expand_tile;
mod fold_integers;
mod fold_transpose;
mod fuse_rms_norm;
mod fuse_softmax;
mod group_heads;
mod judge;
mod lower_gather;
mod lower_matmul;
mod lower_reduce;
mod merge_batch_axes;
mod narrow_floats;
mod pad_channels;
mod pad_interface;
mod raise_epsilon;
mod report;
mod rewrite;
mod scale_rms_norm;
mod shift_pad;
mod split_contraction;
mod split_kernel;
mod split_outputs;
mod tile_attention;
mod trial;
mod weights;

use thane_mil::edit::Patch;
use thane_mil::lower::with_opset;
use thane_mil::program::{OpId, Program};
use thane_mil::valid;

use super::view::View;
use crate::target::Target;

pub use thane_compile::proof::{Forms, Numbers, Proof, Prover};

pub use judge::Measure;
pub use report::{Changed, Left, Report, Step, Verdict};

/// A patch, or why there is none.
pub type Answer = Result<Patch, &'static str>;

/// A fix.
#[derive(Clone, Copy, Debug)]
pub struct Fix {
    /// Name, such as `split_contraction`.
    pub name: &'static str,
    /// The rules that it answers.
    pub rules: &'static [&'static str],
    /// What it writes, in a line.
    pub what: &'static str,
    /// How equal that is.
    pub numbers: Numbers,
    /// What it would do at an op that one of its rules found.
    pub run: fn(&View<'_>, OpId) -> Answer,
}

/// Every fix, in the order that they are tried: what folds and narrows first, then what changes the
/// form of ops, then sizes. Where two answer one rule at the same ops, the one that is predicted to
/// be faster is kept.
pub static FIXES: &[Fix] = &[
    fold_integers::FIX,
    bound_masks::FIX,
    raise_epsilon::FIX,
    narrow_floats::FIX,
    fuse_softmax::FIX,
    expand_log_softmax::FIX,
    scale_rms_norm::FIX,
    fuse_rms_norm::FIX,
    expand_function::FIX,
    expand_mod::FIX,
    expand_softplus::FIX,
    expand_logic::FIX,
    expand_cumsum::FIX,
    expand_argmax::FIX,
    lower_gather::FIX,
    shift_pad::FIX,
    group_heads::FIX,
    expand_tile::FIX,
    double::FIX,
    fold_transpose::FIX,
    expand_reduce::FIX,
    lower_reduce::FIX,
    merge_batch_axes::FIX,
    tile_attention::FIX,
    split_contraction::FIX,
    split_outputs::FIX,
    split_kernel::FIX,
    lower_matmul::FIX,
    pad_channels::FIX,
];

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

/// Rounds over all fixes: one may make room for another.
const MAX_ROUNDS: usize = 4;

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
    let before = judge::program(&program, target);
    let mut steps = Vec::new();
    let program = lowered(program, target, &mut steps);
    let (program, interface) = if options.pad_interface {
        let (program, changed, tried) = pad_interface::run(program, target, options, prover);
        steps.extend(tried);
        (program, changed)
    } else {
        (program, Vec::new())
    };
    let mut trials = trial::Trials::new(program, target, options, &fixes, prover);
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for fix in &fixes {
            for at in 0..trials.n_functions() {
                changed |= trials.attempt(fix, at);
            }
        }
        if !changed {
            break;
        }
    }
    trials.confirm();
    let left = trials.left(&fixes);
    let (program, tried) = trials.finish();
    steps.extend(tried);
    let after = judge::program(&program, target);
    Ok((
        program,
        Report {
            target: *target,
            before,
            after,
            steps,
            left,
            interface,
        },
    ))
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
