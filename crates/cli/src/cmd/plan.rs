//! `thane plan`: what `convert --target` would choose, and what it would choose among.

use serde::Serialize;
use thane_audit::target::Target;
use thane_runtime::Model;

use crate::app::App;
use crate::audit::values;
use crate::exit::Outcome;
use crate::form::FormFlags;
use crate::planned::{self, Decision, GoalFlag, Row};

/// Choose the form of a language model for the Neural Engine by predicted time.
///
/// Nothing is written, and no weight is read. convert --target writes what is chosen.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalog.
    model: String,
    /// Chip, system or both, such as a19 or m4+macos26.
    #[arg(long, value_name = "TARGET", value_parser = values::target)]
    target: Target,
    /// Context length in tokens [default: the model's, at most 8192].
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// What to choose for: the time of an answer, the time of a prompt, or memory.
    #[arg(long = "for", value_name = "GOAL", value_enum, default_value_t = GoalFlag::Latency)]
    goal: GoalFlag,
    #[command(flatten)]
    form: FormFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    target: String,
    chosen: Row,
    decisions: Vec<Decision>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let files = app.hub.resolve(&args.model)?;
    let model = Model::from_files(files)?;
    let target = args.form.routed(args.target);
    let by = (&target, args.goal);
    let (choice, _) = planned::choose(&model, args.context, &args.form, by, app)?;
    let report = Report {
        model: &model.name,
        target: target.to_string(),
        chosen: Row::from(&choice.chosen),
        decisions: choice.steps.iter().map(Decision::from).collect(),
    };
    Ok(app.output.report(&report, |_| {
        let sentences = planned::sentences(&choice, &target).into_iter();
        sentences.for_each(|sentence| app.output.say(&sentence));
        planned::table(&choice)
    })?)
}
