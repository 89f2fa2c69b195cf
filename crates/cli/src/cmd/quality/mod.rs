//! `thane quality`: how far a model or package is from a reference, with intervals.

mod decoder;
mod encoder;
mod retrieval;

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use thane_engine::quality::Estimate;
use thane_runtime::contract::GENERATOR;
use thane_runtime::{
    Files, Measure, Model, Quality, Task, check_record, find_source, record_quality,
};

use crate::app::App;
use crate::exit::{Failure, Outcome, usage};
use crate::model::{NumericsFlag, ProgramFlags, RunFlags};

/// Measure how far a model or package is from a reference.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalog.
    model: String,
    /// The model to compare with, which computes in f32 [default: see --help].
    ///
    /// By default the checkpoint that a package was made of, if its files are in a cache, beside
    /// the package or in the current folder; else the model's own values.
    reference: Option<String>,
    /// Text for a language model, or texts for an embedding model, one per line.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Retrieval set for an embedding model, as BEIR has it.
    ///
    /// A folder with corpus.jsonl, queries.jsonl and qrels/test.tsv.
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    retrieval: Option<PathBuf>,
    /// Tokens of the text to use [default: 20000, with --numerics ane 512].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    tokens: Option<u32>,
    /// Tokens per window, each of which begins with an empty context [default: at most 2048].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Greedy answers to compare [default: 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1000))]
    answers: Option<u16>,
    /// Tokens of a greedy answer [default: 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    answer_tokens: Option<u16>,
    /// Numerics of the model: fast, f32, int8 or ane.
    ///
    /// fast multiplies quantized weights without dequantizing them, int8 also quantizes float
    /// weights, and ane rounds like the Apple Neural Engine. The reference always has f32.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NumericsFlag::Fast,
        hide_possible_values = true)]
    numerics: NumericsFlag,
    /// Store the result in the package.
    ///
    /// The contract or manifest gets the means, and for a language model what the reference says
    /// after known texts, which `thane verify` checks.
    #[arg(long)]
    record: bool,
    /// Number of threads [default: the physical cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl Args {
    /// Refuses flags of language models.
    fn check_embedding(&self) -> Result<(), Failure> {
        let flags = [
            ("--tokens", self.tokens.is_some()),
            ("--window", self.window.is_some()),
            ("--answers", self.answers.is_some()),
            ("--answer-tokens", self.answer_tokens.is_some()),
        ];
        let given = flags.into_iter().find(|(_, is_given)| *is_given);
        given.map_or(Ok(()), |(flag, _)| {
            Err(
                usage!("{flag} is for language models, found an embedding model")
                    .remedy(format!("the same without {flag}")),
            )
        })
    }

    /// The flags of a run with these numerics.
    fn run_flags(&self, numerics: NumericsFlag) -> RunFlags {
        RunFlags {
            program: ProgramFlags {
                context: None,
                numerics,
            },
            threads: self.threads,
            profile: None,
        }
    }
}

/// The flag of verbs that write a package, after which its quality is measured.
#[derive(Debug, clap::Args)]
pub struct Flag {
    /// Measure the package on this text once it is written, and record the result in it.
    ///
    /// As `thane quality --record --numerics f32` does, without answers: a text for a language
    /// model, texts, one per line, or the folder of a retrieval set for an embedding model.
    #[arg(long, value_name = "FILE")]
    quality: Option<PathBuf>,
}

impl Flag {
    pub fn is_given(&self) -> bool {
        self.quality.is_some()
    }

    /// Refuses a text that cannot be read, or for which there is no place, before the work.
    pub fn check(&self, has_contract: bool) -> Outcome {
        let Some(texts) = &self.quality else {
            return Ok(());
        };
        if !has_contract {
            return Err(usage!(
                "--quality: compiled models and bundles of other projects record no quality"
            )
            .remedy("leave --quality out, or -o NAME.mlpackage"));
        }
        let found = std::fs::metadata(texts).with_context(|| texts.display().to_string());
        found.map(|_| ()).map_err(usage)
    }

    /// Measures the package that was written, if the flag is given, and says what was found.
    pub fn measure(
        &self,
        (package, task): (&Path, Task),
        reference: &str,
        app: &App,
    ) -> Result<Option<Report>, Failure> {
        let Some(texts) = &self.quality else {
            return Ok(None);
        };
        let (report, sentence) = of_written((package, task), reference, texts, app)?;
        app.output.say(&sentence);
        Ok(Some(report))
    }
}

/// What `--json` prints.
#[derive(Serialize)]
pub struct Report {
    model: String,
    reference: String,
    /// Why that reference: `given`, `source` or `itself`.
    reference_is: &'static str,
    /// Numerics of the model; the reference has f32.
    numerics: &'static str,
    /// Of a language model, else null.
    language: Option<decoder::Language>,
    /// Of an embedding model, else null.
    embedding: Option<encoder::Embedding>,
}

/// A mean with its 95 % interval.
#[derive(Clone, Copy, Serialize)]
struct Interval {
    value: f64,
    low: f64,
    high: f64,
}

impl From<Estimate> for Interval {
    fn from(estimate: Estimate) -> Self {
        let Estimate { value, low, high } = estimate;
        Self { value, low, high }
    }
}

/// The two models that are compared.
struct Subjects {
    model: Model,
    reference: Model,
    reference_is: &'static str,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let report = measured(args, app)?;
    Ok(app.output.report(&report, text)?)
}

/// Measures a package that was just written for a task of the model named `reference`, as
/// `--record` does in f32, over a text or a retrieval set. What was found, and a sentence of it.
fn of_written(
    (package, task): (&Path, Task),
    reference: &str,
    texts: &Path,
    app: &App,
) -> Result<(Report, String), Failure> {
    let (file, retrieval) = match texts.is_dir() {
        true => (None, Some(texts.to_owned())),
        false => (Some(texts.to_owned()), None),
    };
    let args = Args {
        model: package.to_string_lossy().into_owned(),
        reference: Some(reference.to_owned()),
        file,
        retrieval,
        tokens: None,
        window: None,
        // Answers take as long as a text, and say less.
        answers: (task == Task::Generate).then_some(0),
        answer_tokens: None,
        numerics: NumericsFlag::F32,
        record: true,
        threads: None,
    };
    let report = measured(&args, app)?;
    let sentence = sentence(&report, texts);
    Ok((report, sentence))
}

/// Measures, and records the result if the flags say so.
fn measured(args: &Args, app: &App) -> Result<Report, Failure> {
    let subjects = subjects(args, app)?;
    let names = (subjects.model.name.clone(), subjects.reference.name.clone());
    let reference_is = subjects.reference_is;
    let path = subjects.model.path.clone();
    let (mut language, mut embedding) = (None, None);
    let task = subjects.model.task()?;
    match &subjects.model.files {
        _ if !args.record => {}
        Files::Package | Files::Bundle => check_record(&path, task)?,
        Files::Checkpoint(_) | Files::Foreign(_) => {
            let expected = "--record: expected a package that Thane wrote";
            return Err(
                usage!("{}: {expected}, found another model", path.display())
                    .remedy("thane convert MODEL -o PACKAGE, then that package"),
            );
        }
    }
    match (task, subjects.reference.task()?) {
        (Task::Generate, Task::Generate) => language = Some(decoder::measure(args, subjects, app)?),
        (Task::Embed, Task::Embed) => {
            args.check_embedding()?;
            embedding = Some(encoder::measure(args, subjects, app)?);
        }
        (Task::Generate, Task::Embed) => return Err(unlike(&names.0, &names.1)),
        (Task::Embed, Task::Generate) => return Err(unlike(&names.1, &names.0)),
    }
    let report = Report {
        model: names.0,
        reference: names.1,
        reference_is,
        numerics: numerics_name(args.numerics),
        language,
        embedding,
    };
    if args.record {
        record(&path, &report)?;
    }
    Ok(report)
}

/// What an app developer asks of a compressed package, in one sentence.
fn sentence(report: &Report, texts: &Path) -> String {
    let language = report.language.as_ref().map(decoder::sentence);
    let embedding = report.embedding.as_ref().map(encoder::sentence);
    let found = language.or(embedding).unwrap_or_default();
    format!("quality on {}: {found}", texts.display())
}

/// Stores what a report says in the package at `path`.
fn record(path: &Path, report: &Report) -> Outcome {
    let (language, embedding) = (report.language.as_ref(), report.embedding.as_ref());
    let measures = language.map(decoder::Language::measures);
    let measures = measures.or_else(|| embedding.map(encoder::Embedding::measures));
    let samples = language.map_or(0, |l| l.tokens) + embedding.map_or(0, |e| e.texts);
    // JSON has no infinite numbers.
    let finite = |i: &Interval| i.value.is_finite() && i.low.is_finite() && i.high.is_finite();
    let measures = measures.into_iter().flatten().filter(|(_, i)| finite(i));
    let measure = |(name, interval): (String, Interval)| {
        let Interval { value, low, high } = interval;
        (name, Measure { value, low, high })
    };
    let last = Path::new(&report.reference).file_name();
    let reference = last.map_or(report.reference.as_str().into(), |name| {
        name.to_string_lossy()
    });
    let quality = Quality {
        generator: GENERATOR.to_owned(),
        reference: reference.into_owned(),
        numerics: report.numerics.to_owned(),
        samples,
        measures: measures.map(measure).collect(),
        layer_errors: language
            .and_then(|l| l.layer_errors.clone())
            .unwrap_or_default(),
        goldens: language.map(|l| l.goldens.clone()).unwrap_or_default(),
    };
    Ok(record_quality(path, quality)?)
}

fn unlike(language: &str, embedding: &str) -> Failure {
    usage!(
        "expected two language models or two embedding models, found the language model {language} \
         and the embedding model {embedding}"
    )
}

fn subjects(args: &Args, app: &App) -> Result<Subjects, Failure> {
    let open = |spec: &str| Model::open(spec, &app.hub, app.output.as_ref());
    let model = open(&args.model)?;
    if let Some(spec) = &args.reference {
        let reference = open(spec)?;
        return Ok(Subjects {
            model,
            reference,
            reference_is: "given",
        });
    }
    app.output.busy("looking for the source of the package");
    let source = match &model.files {
        Files::Package | Files::Bundle => find_source(&model.path, &app.hub)?,
        Files::Checkpoint(_) | Files::Foreign(_) => None,
    };
    let (reference, reference_is) = match source {
        Some(files) => (Model::from_files(files)?, "source"),
        None => (open(&args.model)?, "itself"),
    };
    Ok(Subjects {
        model,
        reference,
        reference_is,
    })
}

fn numerics_name(numerics: NumericsFlag) -> &'static str {
    match numerics {
        NumericsFlag::F32 => "f32",
        NumericsFlag::Fast => "fast",
        NumericsFlag::Int8 => "int8",
        NumericsFlag::Ane => "ane",
    }
}

fn text(report: &Report) -> String {
    let reference = match report.reference_is {
        "itself" => "its own values".to_owned(),
        "source" => format!("its source {}", report.reference),
        _ => report.reference.clone(),
    };
    let (model, numerics) = (&report.model, report.numerics);
    let head = format!("{model} in {numerics}, beside {reference} in f32\n");
    let language = report.language.as_ref().map(decoder::text);
    let embedding = report.embedding.as_ref().map(encoder::text);
    [Some(head), language, embedding]
        .into_iter()
        .flatten()
        .collect()
}

/// A row of the text: what, its mean and its interval.
fn row(what: &str, interval: Interval, show: impl Fn(f64) -> String) -> String {
    let Interval { value, low, high } = interval;
    let (value, low, high) = (show(value), show(low), show(high));
    format!("{what:<22} {value:>12}  {low} to {high}\n")
}

/// A number with five digits.
fn digits(x: f64) -> String {
    let whole = if x == 0.0 {
        0
    } else {
        x.abs().log10().floor() as i32
    };
    match whole {
        -5..=5 => format!("{x:.*}", (4 - whole).clamp(0, 8) as usize),
        _ => format!("{x:.4e}"),
    }
}

fn percent(x: f64) -> String {
    format!("{:.2} %", 100.0 * x)
}
