//! `thane verify`: checks that the packages of an embedding model are undamaged and compute the
//! right vectors.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_models::Encoding;
use thane_runtime::{Bundle, EmbedOptions, Model, compare_goldens};

use crate::app::App;
use crate::exit::{Outcome, even_unread};
use crate::model::{self, NumericsFlag};
use crate::output::counted;
use crate::source;

/// Check an embedding model's package: file hashes and golden vectors.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An .mlpackage, or a folder of packages with its manifest.
    bundle: PathBuf,
    /// Least cosine similarity that passes.
    #[arg(long, value_name = "X", default_value_t = 0.999, value_parser = cosine)]
    cosine: f64,
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
    /// The known texts and the similarity of their vectors.
    vectors: Vec<Row>,
    /// Whether every cosine similarity is high enough.
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

pub fn run(args: &Args, app: &App) -> Outcome {
    source::expect(&args.bundle, app)?;
    app.output.busy("comparing hashes");
    let bundle = Bundle::open(&args.bundle)?;
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
        passed: true,
    };
    app.output
        .count("verifying", Some(bundle.goldens.len() as u64), 0);
    let cosines = compare_goldens(&mut embedder, &bundle.goldens, encoding, || {
        app.output.advance(1);
    })?;
    for (golden, cosine) in bundle.goldens.into_iter().zip(cosines) {
        let passed = cosine >= args.cosine;
        report.passed &= passed;
        report.vectors.push(Row {
            text: golden.text,
            cosine,
            passed,
        });
    }
    app.output.clear();
    even_unread(app.output.report(&report, text))?;
    if report.passed {
        return Ok(());
    }
    Err(
        other!("{}: vectors are not what they were", args.bundle.display())
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
        let shown: String = row.text.chars().take(48).collect();
        let verdict = if row.passed { "pass" } else { "FAIL" };
        out += &format!("{verdict} {:.6} {shown:?}\n", row.cosine);
    }
    out
}
