//! `thane perplexity`: how well a model predicts a text, to compare numerics and quantizations.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_engine::generate::Session;
use thane_engine::pages::PAGE_TOKENS;
use thane_engine::sample::log_sum_exp;
use thane_engine::text::{EncodeOptions, Tokenizer};
use thane_runtime::{LanguageModel, PageOptions, Scorer, TOKENIZER_BYTES};

use crate::app::App;
use crate::exit::{Failure, Outcome, usage};
use crate::model::{self, KvFlag, RunFlags, longer_context};
use crate::output::counted;
use crate::overflow;
use crate::source;
use crate::talk::no_numbers;

/// What needs all logits.
const WHAT: &str = "the perplexity";

/// Measure how well a model predicts a text.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalog.
    model: String,
    /// The text file.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Tokens of the text to use, in one context.
    #[arg(long, value_name = "N", default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(2..))]
    tokens: u32,
    /// Keep keys and values as `thane serve --prompt-kv` does: exact, or int8.
    ///
    /// Later tokens see what is kept. Each 64 tokens are kept once all of them are computed.
    #[arg(long, value_name = "FORM", value_enum, hide_possible_values = true)]
    kv: Option<KvFlag>,
    #[command(flatten)]
    flags: RunFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    /// Number of tokens that were predicted: all but the first.
    tokens: usize,
    /// Mean negative log-likelihood of the tokens, natural logarithm.
    mean_nll: f64,
    /// e to the power of `mean_nll`.
    perplexity: f64,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let (text, _held) = source::read_text(&args.file, &app.budget).map_err(usage)?;
    let model = model::open(&args.model, &args.flags.program.options(true), app)?;
    model.require_all_logits(WHAT)?;
    let language = model.language(&app.budget)?;
    let limit = args.tokens as usize;
    let ids = tokens(&args.file, &text, limit, &language.tokenizer, app)?;
    let mut scorer = Scorer::new(&model, WHAT, &args.flags.backend(app))?;
    let context = scorer.session.context();
    if ids.len() - 1 > context {
        let failure = usage!(
            "{} tokens are to be looked at, the context holds {context}",
            ids.len()
        )
        .remedy(format!("--tokens {}", context + 1));
        return Err(longer_context(&model, ids.len())
            .into_iter()
            .fold(failure, Failure::remedy));
    }
    if let Some(kv) = args.kv {
        keep(&model, &mut scorer.session, kv, app)?;
    }
    overflow::check(&model, &args.flags, &ids, app)?;
    app.output.count("scoring", Some(ids.len() as u64 - 1), 0);
    let mut sum = 0.0;
    let (scored, next) = (&ids[..ids.len() - 1], &ids[1..]);
    let part = args.kv.map_or(Scorer::CALL_TOKENS, |_| PAGE_TOKENS);
    let mut start = 0;
    for (tokens, next) in scored.chunks(part).zip(next.chunks(part)) {
        for (tokens, next) in calls(tokens).zip(calls(next)) {
            let rows = scorer.rows(tokens).map_err(usage)?;
            let rows = rows.chunks(scorer.vocab_size).zip(next);
            sum += rows
                .map(|(row, id)| log_sum_exp(row) - f64::from(row[*id as usize]))
                .sum::<f64>();
            app.output.advance(tokens.len() as u64);
        }
        if args.kv.is_some() {
            scorer.session.keep().map_err(usage)?;
            scorer.session.reload(start).map_err(usage)?;
        }
        start += tokens.len();
    }
    app.output.clear();
    let tokens = ids.len() - 1;
    let mean_nll = sum / tokens as f64;
    if !mean_nll.is_finite() {
        return Err(no_numbers(
            anyhow::anyhow!("the mean is {mean_nll}"),
            &model.name,
            args.flags.program.numerics,
        ));
    }
    let report = Report {
        model: &model.name,
        tokens,
        mean_nll,
        perplexity: mean_nll.exp(),
    };
    Ok(app.output.report(&report, |report| {
        format!(
            "{:.4} over {}\n",
            report.perplexity,
            counted(tokens, "token")
        )
    })?)
}

/// The tokens of each call.
fn calls(tokens: &[u32]) -> std::slice::Chunks<'_, u32> {
    tokens.chunks(Scorer::CALL_TOKENS)
}

/// The first `limit` tokens of the text of a file: at least two.
pub fn tokens(
    file: &Path,
    text: &str,
    limit: usize,
    tokenizer: &Tokenizer,
    app: &App,
) -> Result<Vec<u32>, Failure> {
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let what = || format!("the tokens of {}", file.display());
    let held = app
        .budget
        .reserve(text.len().saturating_mul(TOKENIZER_BYTES), what)
        .map_err(usage)?;
    let mut ids = tokenizer.encode(text, options).map_err(usage)?;
    drop(held);
    ids.truncate(limit);
    if ids.len() < 2 {
        return Err(usage!("{} has fewer than two tokens", file.display()));
    }
    Ok(ids)
}

/// Keeps the tokens of a session in pages.
fn keep(model: &LanguageModel, session: &mut Session, kv: KvFlag, app: &App) -> Outcome {
    let options = PageOptions {
        most_bytes: usize::MAX,
        budget: app.budget.clone(),
        form: kv.form(),
        store: None,
    };
    if model.keep_prompts(session, options)? {
        return Ok(());
    }
    Err(usage!(
        "--kv is for models whose caches are kept: functions of this one have fixed lengths, or \
         layers remember all tokens together"
    )
    .remedy("leave --kv out"))
}
