//! Whether fp16 holds what a portable program computes: with `--numerics ane` an overflow gives
//! nonsense, and no error.

use thane_cpu::ane::{self, Effects};
use thane_mil::backend::View;
use thane_mil::program::Program;
use thane_mil::types::DType;

use crate::app::App;
use crate::model::{self, Files, NumericsFlag, Opened, RunFlags};

/// Tokens that are looked at: the first ones have the largest activations.
const MOST_TOKENS: usize = 16;

/// Says which op is the first whose results fp16 cannot hold, and what helps. Programs in the form
/// of the engine are written so that fp16 holds their results.
pub fn warn(opened: &Opened, flags: &RunFlags, tokens: &[u32], app: &App) {
    if flags.program.numerics != NumericsFlag::Ane || opened.model.info.fixed.is_some() {
        return;
    }
    app.output.busy("looking for overflows");
    let found = first_overflow(opened, flags, &tokens[..tokens.len().min(MOST_TOKENS)], app);
    app.output.clear();
    let Some(op) = found else { return };
    let model = match &opened.files {
        Files::Package(contents) => &contents.contract.source.model,
        Files::Checkpoint(_) => &opened.name,
    };
    app.output.say(&format!(
        "thane: fp16 overflows, so the numbers mean nothing; the first that overflows: {op}"
    ));
    app.output
        .say(&format!("  try: thane convert {model} --form engine -o PACKAGE.mlpackage, and that with --numerics ane"));
}

/// None where nothing overflows, or where it cannot be found out.
fn first_overflow(opened: &Opened, flags: &RunFlags, tokens: &[u32], app: &App) -> Option<String> {
    let program = &opened.model.program;
    let (name, tokens) = match (program.function("prefill"), program.function("score")) {
        (Some(_), _) => ("prefill", tokens),
        (None, Some(_)) => ("score", tokens),
        (None, None) => ("decode", tokens.get(..1)?),
    };
    let alone = Program::new(vec![program.function(name)?.clone()]);
    let ids: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_ne_bytes())
        .collect();
    let position = 0i32.to_ne_bytes();
    let inputs = [
        (
            "input_ids",
            View {
                dtype: DType::Int32,
                shape: &[1, tokens.len()],
                bytes: &ids,
            },
        ),
        (
            "position",
            View {
                dtype: DType::Int32,
                shape: &[1],
                bytes: &position,
            },
        ),
    ];
    let options = ane::Options {
        effects: Effects::default(),
        n_threads: model::n_threads(flags.threads),
        isa: app.isa,
        budget: app.budget.clone(),
        ..ane::Options::default()
    };
    let report = ane::compare(&alone, name, &inputs, &[], &options).ok()?;
    report
        .first_overflow
        .as_ref()
        .map(|found| report.op(found).to_string())
}
