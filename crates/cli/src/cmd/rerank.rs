//! `thane rerank`: texts in the order of how well they answer a query.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use thane_engine::embed::Watch;
use thane_engine::text::Pair;
use thane_mil::budget::Reservation;
use thane_runtime::{
    Model, Ranked, RerankOptions, Reranker, RuntimeError, TOKENIZER_BYTES, sort_ranked,
};

use crate::app::App;
use crate::embed::files::{Kind, check_out};
use crate::embed::reader::{TextFlags, say_notes};
use crate::embed::scores::{self, Metadata, Scored};
use crate::exit::{Failure, Outcome, interrupted, usage};
use crate::model::EncoderFlags;
use crate::out;
use crate::output::counted;
use crate::screen::in_a_row;
use thane_texts::row::{Fields, Place};
use thane_texts::rows::Texts;

/// Order texts by how well they answer a query, with a reranker (a cross-encoder).
///
/// Prints a line for each text, best first: score, number of the text from 1, and the text, or
/// writes a file. Pairs that are longer than the model takes are truncated, the longer text first.
#[derive(Debug, clap::Args)]
// `--file` takes all names that follow, so it comes last.
#[command(override_usage = "thane rerank <MODEL> <QUERY> [OPTIONS] [TEXTS]...")]
pub struct Args {
    /// A path, hf:org/name[@revision], or a name of the catalog.
    model: String,
    /// The query.
    query: String,
    #[command(flatten)]
    input: TextFlags,
    /// Write a .jsonl, .parquet or .npy file [default: lines on stdout].
    ///
    /// A .npy file has the scores alone, in the order of the texts.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace a file that exists.
    #[arg(long, requires = "out")]
    force: bool,
    /// Give only the N best texts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// Most tokens of a query and a text together [default: the model's].
    #[arg(long, value_name = "N")]
    max_length: Option<usize>,
    #[command(flatten)]
    run: EncoderFlags,
}

/// How long an interrupted run may take to end by itself.
const GRACE: Duration = Duration::from_millis(300);

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    query: &'a str,
    /// Number of texts.
    texts: usize,
    /// Tokens of all pairs.
    tokens: usize,
    /// Pairs that were truncated.
    truncated: usize,
    seconds: f64,
    /// The file that was written; null if the scores are in `results`.
    out: Option<&'a Path>,
    /// Best first; null if they were written to a file.
    results: Option<Vec<Scored<'a>>>,
}

/// The texts to score.
struct Scoring {
    texts: Vec<Text>,
    /// The tokens of the query with each text.
    pairs: Vec<Pair>,
    /// Memory of both, and of the results.
    held: Reservation,
}

struct Text {
    text: String,
    id: Option<Value>,
}

/// Bytes of a text beside its own: two lists that double, and a row of the results.
const TEXT_BYTES: usize = 2 * (size_of::<Text>() + size_of::<Pair>())
    + 2 * size_of::<Ranked>()
    + size_of::<Scored<'static>>();
/// Bytes of lines that are printed together.
const LINES_BYTES: usize = 1 << 16;

pub fn run(args: &Args, app: &App) -> Outcome {
    let start = Instant::now();
    let source = texts(args, app)?;
    let kind = args.out.as_deref().map(|out| target(out, args, &source));
    let kind = kind.transpose()?;
    source.check().map_err(usage)?;
    say_notes(&source, app);
    let backend = args.run.cpu(app);
    let opened = Model::open(&args.model, &app.hub, app.output.as_ref())?;
    if let Some(out) = &args.out {
        out::check(out, args.force, &[&opened.path])?;
    }
    let path = opened.path.display().to_string();
    let options = RerankOptions {
        max_tokens: args.max_length,
        batch_tokens: args.run.batch_tokens,
    };
    let mut reranker = opened
        .reranker(&options, &backend, app.output.as_ref())
        .map_err(|e| Failure::from(e).naming(&path, &args.model))?;
    let mut scoring = tokenized(&source, &reranker, &args.query, app)?;
    let ranked = ranked(&mut reranker, &scoring.pairs, app)?;
    let (texts, pairs) = (&scoring.texts, &scoring.pairs);
    let n_shown = args.top.map_or(usize::MAX, |n| n as usize);
    let line = |ranked: &Ranked| {
        let Text { text, id } = &texts[ranked.index];
        Scored {
            index: ranked.index,
            id: id.as_ref(),
            score: ranked.score,
            logit: ranked.logit,
            text,
        }
    };
    let results: Vec<Scored<'_>> = ranked.iter().take(n_shown).map(line).collect();
    if let (Some(out), Some(kind)) = (&args.out, kind) {
        let metadata = Metadata {
            model: &reranker.name,
            query: &args.query,
        };
        if kind == Kind::Parquet {
            // The writer copies texts and ids, into columns and pages.
            let n_bytes = scoring.held.bytes().saturating_mul(2);
            let what = || "the columns of a Parquet file".to_owned();
            scoring.held.grow(n_bytes, what).map_err(usage)?;
        }
        let _writing = app.interrupt.writing(out);
        scores::write(&results, &metadata, kind, out, args.force)?;
    }
    let report = Report {
        model: &reranker.name,
        query: &args.query,
        texts: texts.len(),
        tokens: pairs.iter().map(|pair| pair.tokens.len()).sum(),
        truncated: pairs.iter().filter(|pair| pair.is_cut).count(),
        seconds: start.elapsed().as_secs_f64(),
        out: args.out.as_deref(),
        results: args.out.is_none().then_some(results),
    };
    say(&report, app)
}

/// The format of the output file.
fn target(path: &Path, args: &Args, texts: &Texts) -> Result<Kind, Failure> {
    let kind = Kind::of_scores(path).map_err(usage)?;
    if kind == Kind::Npy && args.top.is_some() {
        return Err(usage!(
            "{}: the best texts cannot be told apart there: it has scores alone",
            path.display()
        )
        .remedy("-o with a .jsonl or .parquet file"));
    }
    check_out(path, args.force, &args.model, &texts.paths())?;
    Ok(kind)
}

/// The texts that the flags name.
fn texts(args: &Args, app: &App) -> Result<Texts, Failure> {
    let source = args.input.source(false)?.ok_or_else(|| {
        usage!("there are no texts")
            .remedy("thane rerank MODEL \"a query\" \"a text\" \"another\"")
            .remedy("thane rerank MODEL \"a query\" --file texts.txt")
    })?;
    let fields = Fields::text(args.input.field());
    Texts::new(source, fields, false, &app.budget).map_err(usage)
}

/// All texts with the tokens of their pairs.
fn tokenized(
    source: &Texts,
    reranker: &Reranker,
    query: &str,
    app: &App,
) -> Result<Scoring, Failure> {
    let mut held = app.budget.reserve(0, String::new).map_err(usage)?;
    let n_bytes = query.len().saturating_mul(TOKENIZER_BYTES);
    let what = || "the tokens of the query".to_owned();
    let tokenizing = app.budget.reserve(n_bytes, what).map_err(usage)?;
    let query = reranker
        .query(query, &|| false)
        .map_err(|e| usage(anyhow::Error::new(e).context("the query")))?;
    drop(tokenizing);
    let (mut texts, mut pairs) = (Vec::new(), Vec::new());
    for row in source.rows() {
        let row = row.map_err(usage)?;
        let (place, id_bytes) = (row.place, row.id_bytes());
        let text = row.texts.concat();
        let kept = text.len() + id_bytes + TEXT_BYTES;
        let grown = held.grow(kept, || "the texts to rank".to_owned());
        grown.map_err(usage)?;
        let what = || format!("the tokens of {}", source.place(place));
        let n_bytes = reranker.tokenized_len(&query, &text);
        let n_bytes = n_bytes.saturating_mul(TOKENIZER_BYTES);
        let _tokenizing = app.budget.reserve(n_bytes, what).map_err(usage)?;
        let pair = reranker.tokenize(&query, &text, reranker.cut(), &|| false);
        let pair = pair.map_err(|e| at(source, place, e))?;
        let grown = held.grow(pair.tokens.len() * 8, || "the texts to rank".to_owned());
        grown.map_err(usage)?;
        texts.push(Text { text, id: row.id });
        pairs.push(pair);
    }
    if texts.is_empty() {
        return Err(usage!("{}: there are no texts", source.name()));
    }
    Ok(Scoring { texts, pairs, held })
}

fn at(source: &Texts, place: Place, error: RuntimeError) -> Failure {
    let error = anyhow::Error::new(error);
    usage!("{}: {error:#}", source.place(place))
}

/// The scores in falling order.
fn ranked(reranker: &mut Reranker, pairs: &[Pair], app: &App) -> Result<Vec<Ranked>, Failure> {
    app.output.count("ranking", Some(pairs.len() as u64), 0);
    let is_stopped = || app.interrupt.is_set();
    let mut watch = Watch {
        interrupted: &is_stopped,
        progress: &mut |n| app.output.advance(n as u64),
    };
    let _cooperative = app.interrupt.cooperate(Some(GRACE));
    let scores = reranker.score(pairs, &mut watch)?;
    app.output.clear();
    let mut ranked = scores.ok_or_else(interrupted)?;
    sort_ranked(&mut ranked);
    Ok(ranked)
}

fn say(report: &Report<'_>, app: &App) -> Outcome {
    if app.output.is_json() {
        return Ok(app.output.json(report)?);
    }
    app.output.explain(&format!(
        "{}, {}",
        counted(report.texts, "text"),
        counted(report.tokens, "token")
    ));
    if report.truncated > 0 {
        app.output.say(&format!(
            "thane: cut to what the model takes: {} of {}",
            report.truncated,
            counted(report.texts, "text")
        ));
    }
    if let Some(out) = report.out {
        return Ok(app.output.data(&format!("{}\n", out.display()))?);
    }
    let mut lines = String::new();
    for line in report.results.iter().flatten() {
        let (number, text) = (line.index + 1, in_a_row(line.text));
        lines += &format!("{:>9.6}  {number:>4}  {text}\n", line.score);
        if lines.len() >= LINES_BYTES {
            app.output.data(&std::mem::take(&mut lines))?;
        }
    }
    Ok(app.output.data(&lines)?)
}
