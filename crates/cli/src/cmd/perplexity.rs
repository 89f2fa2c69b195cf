//! `thane perplexity`: how well a model predicts a text, to compare numerics and quantisations.

use std::path::PathBuf;

use serde::Serialize;
use thane_engine::text::EncodeOptions;

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::model::{self, RunFlags};

/// Tokens of one call: their logits are held at once.
const CHUNK: usize = 32;

/// Measure how well a model predicts a text.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name with /file or @revision after it, or a name of the catalogue.
    model: String,
    /// The text.
    #[arg(long, env = "THANE_FILE", value_name = "FILE")]
    file: PathBuf,
    /// Tokens of the text that are looked at, in one context.
    #[arg(long, env = "THANE_TOKENS", value_name = "N", default_value_t = 2000)]
    tokens: usize,
    #[command(flatten)]
    flags: RunFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    /// Tokens that were predicted: all but the first.
    tokens: usize,
    /// Mean negative natural logarithm of their probabilities.
    mean_nll: f64,
    /// e to the mean.
    perplexity: f64,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let bad = |e: anyhow::Error| Failure::new(Code::Usage, e);
    let text = std::fs::read_to_string(&args.file)
        .map_err(|e| bad(anyhow::Error::new(e).context(args.file.display().to_string())))?;
    let opened = model::open(&args.model, &args.flags.options(true), app)?;
    let language = model::language(&opened)?;
    let options = EncodeOptions { add_special: true, parse_special: false };
    let mut ids = language.tokenizer.encode(&text, options).map_err(|e| bad(e.into()))?;
    ids.truncate(args.tokens);
    if ids.len() < 2 {
        return Err(bad(anyhow::anyhow!("{} has fewer than two tokens", args.file.display())));
    }
    let mut session = model::session(&opened, &args.flags)?;
    let vocab = opened.model.info.vocab_size;
    let mut sum = 0.0;
    for (chunk, start) in ids[..ids.len() - 1].chunks(CHUNK).zip((0..).step_by(CHUNK)) {
        let logits = session.score(chunk).map_err(|e| bad(e.into()))?;
        for (row, next) in logits.chunks(vocab).zip(&ids[start + 1..]) {
            sum += nll(row, *next as usize);
        }
    }
    let tokens = ids.len() - 1;
    let mean_nll = sum / tokens as f64;
    let report = Report { model: &opened.name, tokens, mean_nll, perplexity: mean_nll.exp() };
    if app.output.is_json() {
        return Ok(app.output.json(&report)?);
    }
    Ok(app.output.data(&format!("{:.4} over {tokens} tokens\n", report.perplexity))?)
}

/// Negative logarithm of the probability that these logits give to `id`.
fn nll(logits: &[f32], id: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    sum.ln() - f64::from(logits[id] - max)
}
