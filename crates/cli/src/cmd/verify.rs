//! `thane verify`: whether an embedding model's packages are what was written, and compute what
//! they should.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_engine::embed::similarity::Similarity;
use thane_models::{EncoderOptions, Encoding};

use crate::app::App;
use crate::embed::{encoder, golden, packages};
use crate::exit::{Code, Failure, Outcome};
use crate::model::NumericsFlag;
use crate::output::counted;
use crate::source;

/// Check an embedding model's package: hashes, and texts whose vectors are known.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An .mlpackage, or a folder of them with its manifest.
    bundle: PathBuf,
    /// The least cosine that passes.
    #[arg(long, value_name = "X", default_value_t = 0.999, value_parser = cosine)]
    cosine: f64,
    /// How to compute.
    ///
    /// f32 is the reference, ane is fp16 after each op with the sums of the Apple Neural Engine.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NumericsFlag::F32)]
    numerics: NumericsFlag,
    /// Threads [default: the physical cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// A least cosine: no vector has one above 1, and all have one of -1 or more.
fn cosine(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x| (0.0..=1.0).contains(x));
    number.ok_or_else(|| "expected a number from 0 to 1, such as 0.999".to_owned())
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    bundle: &'a Path,
    /// Files whose hash is what the manifest says.
    hashed_files: usize,
    /// The known texts, and how close their vectors are.
    vectors: Vec<Row>,
    /// Whether every cosine is at least what was asked for.
    passed: bool,
}

/// A known text.
#[derive(Serialize)]
struct Row {
    text: String,
    /// Cosine of its vector here and the one that was written.
    cosine: f64,
    passed: bool,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let usage =
        |e: anyhow::Error| Failure::new(Code::Usage, e.context(args.bundle.display().to_string()));
    source::expect(&args.bundle, app)?;
    app.output.busy("comparing hashes");
    let bundle = packages::open(&args.bundle).map_err(usage)?;
    if bundle.goldens.is_empty() {
        let error = anyhow::anyhow!(
            "it holds no vectors of known texts; whole are {}",
            counted(bundle.n_files, "file")
        );
        return Err(usage(error).remedy(format!("thane check {}", args.bundle.display())));
    }
    let run = encoder::Run {
        numerics: args.numerics,
        threads: args.threads,
        batch_tokens: 1024,
        max_length: None,
        profile: None,
    };
    let name = args.bundle.display().to_string();
    let encoding = if bundle.facts.encoding == "chunks" {
        Encoding::Chunks
    } else {
        Encoding::Text
    };
    let mut encoder = encoder::open(
        &name,
        &EncoderOptions {
            encoding,
            ..EncoderOptions::default()
        },
        &run,
        app,
    )?;
    let mut report = Report {
        bundle: &args.bundle,
        hashed_files: bundle.n_files,
        vectors: Vec::new(),
        passed: true,
    };
    app.output
        .count("verifying", Some(bundle.goldens.len() as u64), 0);
    let vectors = golden::vectors(&mut encoder, &bundle.goldens, encoding, || {
        app.output.advance(1)
    })
    .map_err(usage)?;
    for (golden, vector) in bundle.goldens.into_iter().zip(vectors) {
        let cosine = if vector.len() == golden.vector.len() {
            Similarity::Cosine.compare(&vector, &golden.vector)
        } else {
            0.0
        };
        let passed = cosine >= args.cosine;
        report.passed &= passed;
        report.vectors.push(Row {
            text: golden.text,
            cosine,
            passed,
        });
    }
    app.output.clear();
    if app.output.is_json() {
        app.output.json(&report)?;
    } else {
        app.output.data(&text(&report))?;
    }
    if report.passed {
        return Ok(());
    }
    let error = anyhow::anyhow!("{}: vectors are not what they were", args.bundle.display());
    Err(Failure::new(Code::Other, error).remedy("convert again, and compare with --numerics f32"))
}

fn text(r: &Report<'_>) -> String {
    let mut out = format!(
        "{}: {} as the manifest says\n",
        r.bundle.display(),
        counted(r.hashed_files, "file")
    );
    for row in &r.vectors {
        let shown: String = row.text.chars().take(48).collect();
        let verdict = if row.passed { "pass" } else { "FAIL" };
        out += &format!("{verdict} {:.6} {shown:?}\n", row.cosine);
    }
    out
}
