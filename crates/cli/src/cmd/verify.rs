//! `thane verify`: checks that the packages of a model are undamaged and compute what they should:
//! the vectors of an embedding model, or the logits of a language model.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_models::Encoding;
use thane_runtime::{
    Bundle, EmbedOptions, Model, Origin, RuntimeError, Scorer, compare_goldens, golden_divergence,
    recorded_quality,
};

use crate::app::App;
use crate::exit::{Outcome, even_unread};
use crate::model::{self, NumericsFlag, ProgramFlags};
use crate::output::counted;
use crate::source;
use crate::tensors;

/// Check a model's package: file hashes, and golden vectors or logits.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An .mlpackage, or a folder of packages with its manifest.
    bundle: PathBuf,
    /// Least cosine similarity that passes.
    ///
    /// Where weights were compressed, a recorded similarity takes the place of 1: with 0.999, what
    /// is at most 0.001 below that passes.
    #[arg(long, value_name = "X", default_value_t = 0.999, value_parser = cosine)]
    cosine: f64,
    /// Most KL divergence that passes, beyond the recorded one.
    ///
    /// In nats, of what a language model says after a known text.
    #[arg(long, value_name = "X", default_value_t = 0.01, value_parser = tensors::at_least_zero)]
    kl: f64,
    /// Numerics to use.
    ///
    /// f32 is the reference; ane rounds to fp16 after each op and accumulates sums like the Apple
    /// Neural Engine.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NumericsFlag::F32)]
    numerics: NumericsFlag,
    /// Number of threads [default: the physical cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// Parses a cosine similarity from 0 to 1.
fn cosine(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x| (0.0..=1.0).contains(x));
    number.ok_or_else(|| "expected a number from 0 to 1, such as 0.999".to_owned())
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    bundle: &'a Path,
    /// Number of files whose hash is right.
    hashed_files: usize,
    /// The known texts of an embedding model and the similarity of their vectors.
    vectors: Vec<Row>,
    /// The known texts of a language model and the divergence of their logits.
    logits: Vec<LogitsRow>,
    /// Whether every cosine similarity is high enough, and every divergence low enough.
    passed: bool,
}

/// A known text.
#[derive(Serialize)]
struct Row {
    text: String,
    /// Cosine similarity of the computed vector and the golden one.
    cosine: f64,
    passed: bool,
}

/// A known text, and what is said to follow.
#[derive(Serialize)]
struct LogitsRow {
    text: String,
    /// KL divergence from the reference.
    kl: f64,
    /// The same when it was recorded.
    recorded_kl: f64,
    passed: bool,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    source::expect(&args.bundle, app)?;
    app.output.busy("comparing hashes");
    match Bundle::open(&args.bundle) {
        Err(RuntimeError::GeneratesOnly { .. }) => language(args, app),
        bundle => embedding(args, bundle?, app),
    }
}

/// Checks a language model.
fn language(args: &Args, app: &App) -> Outcome {
    let flags = ProgramFlags {
        context: None,
        numerics: args.numerics,
    };
    let name = args.bundle.display().to_string();
    let model = model::open(&name, &flags.options(true), app)?;
    let hashed_files = match &model.origin {
        Origin::Package(contents) => contents.contract.files.len(),
        Origin::Checkpoint(_) | Origin::Foreign(_) => 0,
    };
    let quality = recorded_quality(&args.bundle)?;
    let goldens = quality.map(|quality| quality.goldens).unwrap_or_default();
    if goldens.is_empty() {
        let whole = counted(hashed_files, "file");
        return Err(
            usage!("{name}: it holds no logits of known texts; whole are {whole}")
                .remedy(format!("thane quality {name} --file TEXT --record")),
        );
    }
    let tokenizer = model.language(&app.budget)?.tokenizer;
    let backend = model::cpu(args.numerics, args.threads, app);
    let mut scorer = Scorer::new(&model, "verify", &backend)?;
    let mut report = Report {
        bundle: &args.bundle,
        hashed_files,
        vectors: Vec::new(),
        logits: Vec::new(),
        passed: true,
    };
    app.output.count("verifying", Some(goldens.len() as u64), 0);
    for golden in &goldens {
        let kl = golden_divergence(&mut scorer, &tokenizer, golden)?;
        let passed = kl <= golden.kl + args.kl;
        report.passed &= passed;
        report.logits.push(LogitsRow {
            text: golden.text.clone(),
            kl,
            recorded_kl: golden.kl,
            passed,
        });
        app.output.advance(1);
    }
    ended(args, &report, "logits", app)
}

/// Checks an embedding model.
fn embedding(args: &Args, bundle: Bundle, app: &App) -> Outcome {
    if bundle.goldens.is_empty() {
        return Err(usage!(
            "{}: it holds no vectors of known texts; whole are {}",
            args.bundle.display(),
            counted(bundle.n_files, "file")
        )
        .remedy(format!("thane check {}", args.bundle.display())));
    }
    let encoding = if bundle.facts.encoding == "chunks" {
        Encoding::Chunks
    } else {
        Encoding::Text
    };
    let options = EmbedOptions {
        encoding,
        ..EmbedOptions::default()
    };
    let backend = model::cpu(args.numerics, args.threads, app);
    let name = args.bundle.display().to_string();
    let model = Model::open(&name, &app.hub, app.output.as_ref())?;
    let mut embedder = model.embedding_model(&options, &backend, app.output.as_ref())?;
    let mut report = Report {
        bundle: &args.bundle,
        hashed_files: bundle.n_files,
        vectors: Vec::new(),
        logits: Vec::new(),
        passed: true,
    };
    app.output
        .count("verifying", Some(bundle.goldens.len() as u64), 0);
    let cosines = compare_goldens(&mut embedder, &bundle.goldens, encoding, || {
        app.output.advance(1);
    })?;
    for (golden, cosine) in bundle.goldens.into_iter().zip(cosines) {
        // Compressed weights give other vectors, and the distance is recorded.
        let recorded = golden.cosine.unwrap_or(1.0);
        let passed = cosine >= recorded - (1.0 - args.cosine);
        report.passed &= passed;
        report.vectors.push(Row {
            text: golden.text,
            cosine,
            passed,
        });
    }
    ended(args, &report, "vectors", app)
}

/// Prints a report and gives its verdict on what was compared.
fn ended(args: &Args, report: &Report<'_>, what: &str, app: &App) -> Outcome {
    app.output.clear();
    even_unread(app.output.report(report, text))?;
    if report.passed {
        return Ok(());
    }
    Err(
        other!("{}: {what} are not what they were", args.bundle.display())
            .remedy("convert again, and compare with --numerics f32"),
    )
}

fn text(r: &Report<'_>) -> String {
    let mut out = format!(
        "{}: {} as the manifest says\n",
        r.bundle.display(),
        counted(r.hashed_files, "file")
    );
    for row in &r.vectors {
        out += &line(row.passed, &format!("{:.6}", row.cosine), &row.text);
    }
    for row in &r.logits {
        let kl = format!("KL {:.6}, recorded {:.6}", row.kl, row.recorded_kl);
        out += &line(row.passed, &kl, &row.text);
    }
    out
}

fn line(passed: bool, found: &str, text: &str) -> String {
    let shown: String = text.chars().take(48).collect();
    let verdict = if passed { "pass" } else { "FAIL" };
    format!("{verdict} {found} {shown:?}\n")
}
