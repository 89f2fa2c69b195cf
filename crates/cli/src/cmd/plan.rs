//! `thane plan`: what `convert --target` would choose, and what it would choose among.

use serde::Serialize;
use thane_audit::plan::form::Choice;
use thane_audit::target::Target;
use thane_runtime::Model;

use crate::app::App;
use crate::audit::values;
use crate::compress::CompressFlags;
use crate::encodings::{self, EncodingRow};
use crate::exit::Outcome;
use crate::form::FormFlags;
use crate::planned::{self, Asked, Decision, GoalFlag, Row};

/// Choose the form of a language model for the Neural Engine by predicted time.
///
/// Nothing is written, and no weight is read, but for samples that decide on scales of --compress.
/// convert --target writes what is chosen. Without --compress, a table says what encodings of the
/// weights take, each in the form that is best with it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalog.
    model: String,
    /// Chip, system or both, such as a19 or a18,a19.
    ///
    /// With several, one form is chosen for all: the one that is least slower than the best of
    /// each.
    #[arg(long, value_name = "TARGET", value_delimiter = ',', required = true, value_parser = values::target)]
    target: Vec<Target>,
    /// Context length in tokens [default: the model's, at most 8192].
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// What to choose for: the time of an answer, the time of a prompt, or memory.
    #[arg(long = "for", value_name = "GOAL", value_enum, default_value_t = GoalFlag::Latency)]
    goal: GoalFlag,
    #[command(flatten)]
    form: FormFlags,
    #[command(flatten)]
    compression: CompressFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    targets: Vec<TargetRow>,
}

/// What was chosen for a target.
#[derive(Serialize)]
struct TargetRow {
    target: String,
    chosen: Row,
    /// What the chosen form costs over what the best for this target alone costs.
    ratio: f64,
    /// On the way to the best for this target alone.
    decisions: Vec<Decision>,
    /// What encodings take, each in the form that is best with it; empty with `--compress`.
    encodings: Vec<EncodingRow>,
}

impl TargetRow {
    fn new(choice: &Choice, encodings: Vec<EncodingRow>) -> Self {
        Self {
            target: choice.target.to_string(),
            chosen: Row::from(&choice.chosen),
            ratio: choice.ratio,
            decisions: choice.steps.iter().map(Decision::from).collect(),
            encodings,
        }
    }
}

pub fn run(args: &Args, app: &App) -> Outcome {
    args.compression.check(&args.target)?;
    let files = app.hub.resolve(&args.model)?;
    let model = Model::from_files(files)?;
    let asked = Asked {
        context: args.context,
        goal: args.goal,
        targets: &args.target,
        form: &args.form,
        compression: args.compression,
    };
    let planned = planned::choose(&model, &asked, app)?;
    let targets: Vec<Target> = planned.choices.iter().map(|choice| choice.target).collect();
    let rows = match args.compression.given() {
        None => encodings::rows(&model, &asked, &planned, app)?,
        Some(_) => targets.iter().map(|_| Vec::new()).collect(),
    };
    let choices = planned.choices;
    let table = encodings::tables(&rows, &targets);
    let report = Report {
        model: &model.name,
        targets: choices
            .iter()
            .zip(rows)
            .map(|(c, rows)| TargetRow::new(c, rows))
            .collect(),
    };
    Ok(app.output.report(&report, |_| {
        let sentences = planned::sentences(&choices, true).into_iter();
        sentences.for_each(|sentence| app.output.say(&sentence));
        planned::tables(&choices) + &table
    })?)
}
