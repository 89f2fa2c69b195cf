//! Refuses to answer where fp16 numerics overflow: the answer would mean nothing, with no error.

use thane_runtime::{LanguageModel, OverflowOptions, first_overflow};

use crate::app::App;
use crate::exit::Outcome;
use crate::model::{self, NumericsFlag, RunFlags};

/// Fails where fp16 cannot hold the results of an op: names the first such op, and the form of the
/// program that helps.
pub fn check(model: &LanguageModel, flags: &RunFlags, tokens: &[u32], app: &App) -> Outcome {
    if flags.program.numerics != NumericsFlag::Ane || model.is_for_ane() {
        return Ok(());
    }
    app.output.busy("looking for overflows");
    let options = OverflowOptions {
        n_threads: model::n_threads(flags.threads),
        isa: app.isa,
        budget: app.budget.clone(),
    };
    let found = first_overflow(model, tokens, options);
    app.output.clear();
    let Some(op) = found else { return Ok(()) };
    Err(
        other!("fp16 overflows, so the result means nothing; the first op that overflows: {op}")
            .remedy(format!(
                "thane convert {} --form ane --kv explicit -o PACKAGE.mlpackage, and that with \
         --numerics ane",
                model.checkpoint_name()
            )),
    )
}
