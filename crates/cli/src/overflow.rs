//! Warns where fp16 numerics overflow, which would give a meaningless answer and no error.

use thane_runtime::{LanguageModel, OverflowOptions, first_overflow};

use crate::app::App;
use crate::model::{self, NumericsFlag, RunFlags};

/// Names the first op whose results fp16 cannot hold, and the form of the program that helps.
pub fn warn(model: &LanguageModel, flags: &RunFlags, tokens: &[u32], app: &App) {
    if flags.program.numerics != NumericsFlag::Ane || model.is_for_engine() {
        return;
    }
    app.output.busy("looking for overflows");
    let options = OverflowOptions {
        n_threads: model::n_threads(flags.threads),
        isa: app.isa,
        budget: app.budget.clone(),
    };
    let found = first_overflow(model, tokens, options);
    app.output.clear();
    let Some(op) = found else { return };
    app.output.say(&format!(
        "thane: fp16 overflows, so the numbers mean nothing; the first that overflows: {op}"
    ));
    app.output.say(&format!(
        "  try: thane convert {} --form engine -o PACKAGE.mlpackage, and that with --numerics ane",
        model.checkpoint_name()
    ));
}
