//! `thane buckets`: chooses the lengths of an embedding model that get a function of their own, and
//! shows the cost of each number of buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_audit::format::sentence::figure_names;
use thane_audit::plan::bucket::{self, KNEE, PlanRow, Tradeoff};
use thane_audit::plan::times::Times;
use thane_audit::target::Target;
use thane_calls::Lookup;
use thane_models::checkpoint::Checkpoint;
use thane_models::{EncoderInfo, EncoderOptions};
use thane_runtime::manifest::is_bundle;
use thane_runtime::{
    BundleOptions, Prompt, RuntimeError, TextEncoder, is_package, price_lengths, price_lookups,
};

use crate::app::App;
use crate::audit::values;
use crate::embed::lengths::{self, Lengths};
use crate::exit::{Failure, Outcome, usage};
use crate::output::counted;
use thane_texts::row::Fields;
use thane_texts::rows::{Source, Texts};

/// Choose the lengths that convert --task embed --buckets is given, for your texts.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("lengths").required(true).args(["file", "histogram"]))]
pub struct Args {
    /// A path, hf:org/name[@revision], or a name of the catalog.
    model: String,
    /// Texts: lines of a .txt file, rows of .jsonl, .csv, .tsv or .parquet.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Number of texts of each length in tokens: JSON such as {"128": 5}.
    #[arg(long, value_name = "FILE")]
    histogram: Option<PathBuf>,
    /// The field or column that has the text.
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// Put one of the model's prompts before each text; an empty name takes none [default: the
    /// model's default prompt].
    #[arg(long, value_name = "NAME", conflicts_with = "histogram")]
    prompt: Option<String>,
    /// Most buckets to try.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=64))]
    count: u16,
    /// Round buckets up to multiples of N tokens; the longest may be the model's maximum.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    align: u16,
    /// Measured milliseconds of calls by length, such as 128=14.0,256=31.9 [default:
    /// predicted for --target].
    #[arg(long, value_name = "TOKENS=MS", value_delimiter = ',', value_parser = time)]
    times: Vec<(usize, f64)>,
    /// The chip, system or both that costs are predicted for [default: m4].
    ///
    /// They are those of thane audit. With --times, only for lengths outside the measured range.
    #[arg(long, alias = "chip", value_name = "TARGET", value_parser = values::target)]
    target: Option<Target>,
}

impl Args {
    fn target(&self) -> Target {
        self.target.unwrap_or_else(Target::usual)
    }
}

fn time(text: &str) -> Result<(usize, f64), String> {
    let pair = text
        .split_once('=')
        .and_then(|(length, ms)| Some((length.trim().parse().ok()?, ms.trim().parse().ok()?)));
    pair.ok_or_else(|| "expected a length and its milliseconds, such as 128=14.0".to_owned())
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    /// Texts that are planned for.
    texts: u64,
    /// Texts without a token, which are left out.
    empty: u64,
    /// Texts that are longer than the model takes; they count as cut to its end.
    truncated: u64,
    /// Tokens of all texts, cut ones as cut.
    tokens: u64,
    /// Tokens of the longest text, cut if it is.
    longest: usize,
    /// Most tokens that the model takes.
    max_tokens: usize,
    align: u16,
    target: String,
    /// Where costs are from: `measured` or `predicted`.
    costs: &'static str,
    /// The best with one bucket, two, and so on.
    plans: Vec<PlanRow>,
    /// Buckets of the plan that is proposed.
    knee: usize,
    /// With as many buckets as help.
    unlimited: PlanRow,
    /// The command that writes the model with the proposed buckets.
    command: String,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let given = (!args.times.is_empty()).then(|| Times::new(args.times.clone()));
    let times = given.transpose().map_err(|e| {
        usage(anyhow::Error::new(e).context("--times"))
            .remedy("--times 128=14.0,256=31.9, of two lengths or more")
    })?;
    let thane_hub::ModelFiles { name, path, .. } = app.hub.resolve(&args.model)?;
    if is_package(&path) || is_bundle(&path) {
        return Err(
            usage!("{}: a package has its buckets already", path.display())
                .remedy("the checkpoint that it was made of"),
        );
    }
    let checkpoint = Checkpoint::open(&path).map_err(usage)?;
    let built = thane_models::build_encoder(&checkpoint, &EncoderOptions::default());
    let info = built.map_err(|e| RuntimeError::model(&path, e))?.info;
    let Lengths {
        mut histogram,
        empty,
    } = lengths(args, &checkpoint, &info, app)?;
    let truncated = histogram.shorten(info.max_tokens);
    let candidates = histogram.candidates(usize::from(args.align), info.max_tokens);
    let most = info.max_tokens;
    let measured = args.times.iter().map(|(length, _)| (*length).min(most));
    let prices = prices(
        &checkpoint,
        candidates.iter().copied().chain(measured),
        args,
        app,
    )?;
    // Beyond what the model takes, a call is as long in proportion.
    let predicted = |length: usize| {
        let at = length.min(most);
        prices
            .get(&at)
            .map_or(f64::INFINITY, |ms| ms * length as f64 / at as f64)
    };
    let cost = |length: usize| match &times {
        Some(times) => times.ms(length, &predicted),
        None => predicted(length),
    };
    let Some(tradeoff) = bucket::plan(&histogram, &candidates, usize::from(args.count), &cost)
    else {
        let from = args.file.as_deref().or(args.histogram.as_deref());
        let from = from.unwrap_or(Path::new("")).display();
        return Err(usage!("{from}: there are no texts"));
    };
    let Tradeoff {
        plans,
        unlimited,
        knee,
    } = tradeoff;
    let proposed = &plans[knee].buckets;
    let report = Report {
        model: &name,
        texts: histogram.n_sequences(),
        empty,
        truncated,
        tokens: histogram.total() as u64,
        longest: histogram.longest().unwrap_or_default(),
        max_tokens: info.max_tokens,
        align: args.align,
        target: args.target().described(),
        costs: if times.is_some() {
            "measured"
        } else {
            "predicted"
        },
        knee: proposed.len(),
        command: command(args, proposed),
        plans: plans
            .iter()
            .map(|plan| PlanRow::new(plan.clone(), unlimited.cost))
            .collect(),
        unlimited: PlanRow::new(unlimited.clone(), unlimited.cost),
    };
    say(&report, args, app)
}

/// The predicted milliseconds of a call of each length, in the form that `convert` writes; weights
/// are not read.
fn prices(
    checkpoint: &Checkpoint,
    lengths: impl Iterator<Item = usize>,
    args: &Args,
    app: &App,
) -> Result<BTreeMap<usize, f64>, Failure> {
    let (target, output) = (args.target(), app.output.as_ref());
    let lengths: BTreeSet<usize> = lengths.collect();
    let lengths: Vec<usize> = lengths.into_iter().collect();
    let options = BundleOptions::default();
    let lookups = [Lookup::Inside, Lookup::Host];
    let ways = price_lookups(checkpoint, &options, &lookups, &[target], output)?;
    let best = ways.first().and_then(|prices| prices.first());
    let options = BundleOptions {
        lookup: best.map_or(options.lookup, |best| best.lookup),
        ..options
    };
    let prices = price_lengths(checkpoint, &options, &lengths, &target, output)?;
    Ok(lengths.into_iter().zip(prices).collect())
}

fn lengths(
    args: &Args,
    checkpoint: &Checkpoint,
    info: &EncoderInfo,
    app: &App,
) -> Result<Lengths, Failure> {
    let Some(file) = &args.file else {
        let of_counts = |file: &Path| lengths::of_counts(file, &app.budget);
        let counts = args.histogram.as_deref().map(of_counts);
        let histogram = counts.transpose().map_err(usage)?.unwrap_or_default();
        return Ok(Lengths {
            histogram,
            empty: 0,
        });
    };
    let source = Source::file(file).map_err(usage)?;
    let texts = Texts::new(source, Fields::text(&args.field), false, &app.budget);
    let texts = texts.map_err(usage)?;
    let prompt = Prompt::choose(args.prompt.as_deref(), info)?.text;
    let encoder = TextEncoder::from_checkpoint(checkpoint, info, &app.budget)?;
    lengths::of_texts(&texts, &encoder, &prompt, app)
}

fn command(args: &Args, buckets: &[usize]) -> String {
    let model = &*args.model;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@=+,".contains(c);
    let model = match model.chars().all(plain) {
        true => model.to_owned(),
        false => format!("'{}'", model.replace('\'', r"'\''")),
    };
    let target = args
        .target
        .map(|target| format!(" --target {}", target.name()));
    format!(
        "thane convert {model} --task embed --buckets {}{} -o model.mlpackage",
        list(buckets),
        target.unwrap_or_default()
    )
}

fn list(buckets: &[usize]) -> String {
    let buckets: Vec<String> = buckets.iter().map(usize::to_string).collect();
    buckets.join(",")
}

fn say(report: &Report<'_>, args: &Args, app: &App) -> Outcome {
    if report.empty > 0 {
        app.output.say(&format!(
            "thane: left out, without a token: {}",
            counted(report.empty, "text")
        ));
    }
    if report.truncated > 0 {
        app.output.say(&format!(
            "thane: {} of {} longer than the {} tokens that the model takes: counted as cut",
            report.truncated,
            counted(report.texts, "text"),
            report.max_tokens
        ));
    }
    if app.output.is_json() {
        return Ok(app.output.json(report)?);
    }
    app.output.say(&basis(report, args));
    Ok(app.output.data(&table(report))?)
}

/// Where the costs are from.
fn basis(report: &Report<'_>, args: &Args) -> String {
    let target = &report.target;
    if report.costs == "measured" {
        return format!("costs: as measured, beyond that as the prediction for {target} grows");
    }
    let inferred = figure_names(&args.target().chip.inferred());
    let inferred = if inferred.is_empty() {
        inferred
    } else {
        format!("; from related chips: {inferred}")
    };
    format!("costs: predicted for {target}, as thane audit does, not measured{inferred}")
}

fn table(report: &Report<'_>) -> String {
    let Report {
        texts,
        tokens,
        longest,
        ..
    } = report;
    let mut out = format!(
        "{}, {}, the longest {longest}\n",
        counted(*texts, "text"),
        counted(*tokens, "token")
    );
    out += "buckets   ms/text   padded     loss   lengths\n";
    for row in &report.plans {
        let n = row.buckets.len();
        let mark = if n == report.knee { " *" } else { "" };
        let lengths = list(&row.buckets) + mark;
        out += &line(&n.to_string(), row, &lengths);
    }
    let many = counted(report.unlimited.buckets.len(), "bucket");
    out += &line("any", &report.unlimited, &many);
    out += &format!(
        "* the fewest within {:.0} % of the best here\n\n{}\n",
        (KNEE - 1.0) * 100.0,
        report.command
    );
    out
}

fn line(count: &str, row: &PlanRow, lengths: &str) -> String {
    let (padded, loss) = (row.padded * 100.0, row.loss * 100.0);
    format!(
        "{count:>7} {:>9.3} {padded:>6.1} % {loss:>6.1} %   {lengths}\n",
        row.ms_per_text
    )
}
