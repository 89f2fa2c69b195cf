//! `thane perplexity`: how well a model predicts a text, to compare numerics and quantizations.

use std::path::PathBuf;

use serde::Serialize;
use thane_engine::generate::Session;
use thane_engine::pages::PAGE_TOKENS;
use thane_engine::sample::log_sum_exp;
use thane_engine::text::{EncodeOptions, Tokenizer};
use thane_runtime::{LanguageModel, PageOptions, TOKENIZER_BYTES};

use crate::app::App;
use crate::exit::{Failure, Outcome, usage};
use crate::model::{self, KvFlag, RunFlags, longer_context};
use crate::output::counted;
use crate::overflow;
use crate::source;
use crate::talk::no_numbers;

/// Tokens per call, whose logits are all in memory.
const CHUNK: usize = 32;

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
    model.require_all_logits("the perplexity")?;
    let language = model.language(&app.budget)?;
    let ids = tokens(args, &text, &language.tokenizer, app)?;
    let mut session = model.session_of_any_functions(&args.flags.backend(app))?;
    if ids.len() - 1 > session.context() {
        let context = session.context();
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
        keep(&model, &mut session, kv, app)?;
    }
    overflow::check(&model, &args.flags, &ids, app)?;
    app.output.count("scoring", Some(ids.len() as u64 - 1), 0);
    let mut sum = 0.0;
    let mut take = |at: usize, row: &[f32]| {
        sum += log_sum_exp(row) - f64::from(row[ids[at + 1] as usize]);
        app.output.advance(1);
    };
    let scored = &ids[..ids.len() - 1];
    let part = args.kv.map_or(scored.len(), |_| PAGE_TOKENS);
    for (tokens, start) in scored.chunks(part).zip((0..).step_by(part)) {
        let mut take = |at: usize, row: &[f32]| take(start + at, row);
        for_each_row(&model, &mut session, tokens, &mut take)?;
        if args.kv.is_some() {
            session.keep().map_err(usage)?;
            session.reload(start).map_err(usage)?;
        }
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

/// The tokens to score: at least two.
fn tokens(args: &Args, text: &str, tokenizer: &Tokenizer, app: &App) -> Result<Vec<u32>, Failure> {
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let what = || format!("the tokens of {}", args.file.display());
    let held = app
        .budget
        .reserve(text.len().saturating_mul(TOKENIZER_BYTES), what)
        .map_err(usage)?;
    let mut ids = tokenizer.encode(text, options).map_err(usage)?;
    drop(held);
    ids.truncate(args.tokens as usize);
    if ids.len() < 2 {
        return Err(usage!("{} has fewer than two tokens", args.file.display()));
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

/// Calls `take` with the logits after each token: many per call if the program has the function
/// `verify`, else one per call.
fn for_each_row(
    model: &LanguageModel,
    session: &mut Session,
    ids: &[u32],
    take: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), Failure> {
    if model.has_function("verify") {
        for (chunk, start) in ids.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
            let logits = session.verify(chunk).map_err(usage)?;
            logits
                .chunks(model.info.vocab_size)
                .zip(start..)
                .for_each(|(row, at)| take(at, row));
        }
        return Ok(());
    }
    if model.has_function("decode") {
        for (at, id) in ids.iter().enumerate() {
            take(at, &session.decode(*id).map_err(usage)?);
        }
        return Ok(());
    }
    let path = model.path.display();
    Err(usage!(
        "{path}: it has no function `verify` or `decode`, which give the logits after each token"
    )
    .remedy("thane convert MODEL -o PACKAGE --functions prefill,decode"))
}
