//! The quality of a language model: perplexity, KL divergence and agreement over a text, and where
//! greedy answers part.

use std::path::Path;

use serde::Serialize;
use thane_engine::quality::{Pair, block_len, mean_interval, quantile};
use thane_engine::text::Tokenizer;
use thane_runtime::{
    Compared, GoldenLogits, LanguageModel, RuntimeError, Scorer, compare_answers, compare_logits,
    golden_logits, layer_errors, windows,
};

use super::{Args, Interval, Subjects, digits, percent, row};
use crate::app::App;
use crate::cmd::perplexity::tokens;
use crate::exit::{Failure, usage};
use crate::model::{self, NumericsFlag};
use crate::output::counted;
use crate::overflow;
use crate::source;
use crate::talk::no_numbers;

/// What needs all logits.
const WHAT: &str = "the quality";
/// Tokens of the text by default, and with `--numerics ane`.
const TOKENS: [u32; 2] = [20_000, 512];
/// Tokens of a window by default.
const WINDOW: usize = 2048;
/// Tokens of the prompt of a greedy answer.
const PROMPT: usize = 32;
/// Ends of the ranges of positions.
const ENDS: [usize; 5] = [16, 64, 256, 1024, usize::MAX];
/// Answers that part where the reference prefers its own token by less have parted at a near-tie:
/// it gives the token of the model at least 90 % of the probability of its own.
const NEAR_TIE: f64 = 0.105;

/// What is measured of a language model.
#[derive(Serialize)]
pub(super) struct Language {
    /// Tokens that were predicted.
    pub(super) tokens: usize,
    /// Most tokens of a window.
    window: usize,
    perplexity: Interval,
    reference_perplexity: Interval,
    /// Perplexity over that of the reference.
    perplexity_ratio: Interval,
    kl: Divergence,
    /// Share of positions where both find the same token most likely.
    same_first: Interval,
    /// Share of the five likeliest tokens of the reference that are among those of the model.
    same_five: Interval,
    cosine: Interval,
    worst_cosine: f64,
    by_position: Vec<Range>,
    /// Mean relative error of the residual stream behind each layer, for the first tokens; null if
    /// the streams cannot be compared.
    pub(super) layer_errors: Option<Vec<f64>>,
    answers: Vec<Answer>,
    /// Most tokens of an answer.
    answer_tokens: usize,
    /// What is recorded for `thane verify`.
    #[serde(skip)]
    pub(super) goldens: Vec<GoldenLogits>,
}

impl Language {
    /// What is recorded, by name.
    pub(super) fn measures(&self) -> Vec<(String, Interval)> {
        let all = [
            ("perplexity", self.perplexity),
            ("reference_perplexity", self.reference_perplexity),
            ("perplexity_ratio", self.perplexity_ratio),
            ("kl", self.kl.mean),
            ("same_first", self.same_first),
            ("same_five", self.same_five),
            ("cosine", self.cosine),
        ];
        all.map(|(name, interval)| (name.to_owned(), interval))
            .to_vec()
    }
}

/// KL divergence from the reference, in nats.
#[derive(Serialize)]
struct Divergence {
    mean: Interval,
    median: f64,
    p90: f64,
    p99: f64,
    worst: f64,
    /// Which token of the text was predicted there, from 0.
    worst_at: usize,
}

/// Positions of windows from one to another.
#[derive(Serialize)]
struct Range {
    /// Least number of tokens that were seen before.
    from: usize,
    /// The greatest.
    to: usize,
    tokens: usize,
    cosine: f64,
    kl: f64,
}

/// A greedy answer.
#[derive(Serialize)]
struct Answer {
    /// Where in the text its prompt begins, in tokens.
    at: usize,
    /// Tokens before the answers part.
    tokens: usize,
    /// By how much the reference prefers its own next token, in nats; null if they never part.
    gap: Option<f64>,
    /// Whether that is little; null if they never part.
    near_tie: Option<bool>,
}

/// Perplexity, divergence and agreement in one sentence.
pub(super) fn sentence(found: &Language) -> String {
    format!(
        "perplexity {}, {} of the reference; KL divergence {} nats, the same likeliest token at \
         {} of {} positions",
        digits(found.perplexity.value),
        digits(found.reference_perplexity.value),
        digits(found.kl.mean.value),
        percent(found.same_first.value),
        found.tokens
    )
}

pub(super) fn measure(args: &Args, subjects: Subjects, app: &App) -> Result<Language, Failure> {
    if let Some(folder) = &args.retrieval {
        return Err(usage!(
            "{}: a retrieval set is for embedding models, found a language model",
            folder.display()
        )
        .remedy("--file TEXT"));
    }
    let file = args.file.as_deref().ok_or_else(|| {
        usage!("--file: a language model is measured over a text, found none")
            .remedy("--file TEXT, of some 15,000 words")
    })?;
    let (text, _held) = source::read_text(file, &app.budget).map_err(usage)?;
    let flags = [
        args.run_flags(args.numerics),
        args.run_flags(NumericsFlag::F32),
    ];
    let model = model::lower(
        subjects.model,
        &args.model,
        &flags[0].program.options(true),
        app,
    )?;
    let spec = args.reference.as_deref().unwrap_or(&args.model);
    let options = flags[1].program.options(true);
    let reference = model::lower(subjects.reference, spec, &options, app)?;
    let (ids, begin) = common_tokens(args, (file, &text), [&model, &reference], app)?;
    let layer_errors = layers(args, [&model, &reference], &ids, app)?;
    let mut scorers = [
        Scorer::new(&model, WHAT, &flags[0].backend(app))?,
        Scorer::new(&reference, WHAT, &flags[1].backend(app))?,
    ];
    let window = window(args, &scorers)?;
    overflow::check(&model, &flags[0], &ids[..ids.len().min(window)], app)?;
    let failed = |error| failed(error, &model, args.numerics);
    let compared = compare(args, &mut scorers, (&ids, begin), window, app).map_err(failed)?;
    let (answers, answer_tokens) =
        answers(args, &mut scorers, (&ids, begin), app).map_err(failed)?;
    let goldens = match args.record {
        true => goldens(args, &model, &mut scorers[1], app)?,
        false => Vec::new(),
    };
    app.output.clear();
    Ok(Language {
        window: window.min(compared.len()),
        layer_errors,
        answers,
        answer_tokens,
        goldens,
        ..language(&compared)
    })
}

/// The tokens of the text, which are those of both models, and the token that begins each text.
fn common_tokens(
    args: &Args,
    (file, text): (&Path, &str),
    [model, reference]: [&LanguageModel; 2],
    app: &App,
) -> Result<(Vec<u32>, Option<u32>), Failure> {
    model.require_all_logits(WHAT)?;
    reference.require_all_logits(WHAT)?;
    let sizes = [model.info.vocab_size, reference.info.vocab_size];
    if sizes[0] != sizes[1] {
        let (a, b) = (&model.name, &reference.name);
        return Err(usage!(
            "expected two models of one vocabulary, found {} tokens in {a} and {} in {b}",
            sizes[0],
            sizes[1]
        ));
    }
    let usual = TOKENS[usize::from(args.numerics == NumericsFlag::Ane)];
    let limit = args.tokens.unwrap_or(usual) as usize;
    let tokenizer = model.language(&app.budget)?.tokenizer;
    let ids = tokens(file, text, limit, &tokenizer, app)?;
    let others = tokens(
        file,
        text,
        limit,
        &reference.language(&app.budget)?.tokenizer,
        app,
    )?;
    if let Some(at) = (0..ids.len().max(others.len())).find(|i| ids.get(*i) != others.get(*i)) {
        let shown = |ids: &[u32]| ids.get(at).map_or("none".to_owned(), u32::to_string);
        return Err(usage!(
            "expected two models of one tokenizer, found another token {at} of {}: {} in {} and \
             {} in {}",
            file.display(),
            shown(&ids),
            model.name,
            shown(&others),
            reference.name
        ));
    }
    if args.tokens.is_some() && ids.len() < limit {
        let n = counted(ids.len(), "token");
        app.output.say(&format!("{} has {n} only", file.display()));
    }
    let begin = begin(&tokenizer, &ids)?;
    Ok((ids, begin))
}

/// The error behind each layer; why there is none is said.
fn layers(
    args: &Args,
    [model, reference]: [&LanguageModel; 2],
    ids: &[u32],
    app: &App,
) -> Result<Option<Vec<f64>>, Failure> {
    app.output.busy("comparing layers");
    let cpu = |numerics| model::cpu(numerics, args.threads, app);
    let cpus = [cpu(args.numerics), cpu(NumericsFlag::F32)];
    let found = layer_errors((model, &cpus[0]), (reference, &cpus[1]), ids)
        .map_err(|error| failed(error, model, args.numerics))?;
    app.output.clear();
    if let Err(why) = &found {
        app.output
            .say(&format!("the error by layer is left out: {why}"));
    }
    Ok(found.ok())
}

/// The one token that the tokenizer puts before a text.
fn begin(tokenizer: &Tokenizer, ids: &[u32]) -> Result<Option<u32>, Failure> {
    let around = tokenizer.special_tokens().map_err(usage)?;
    Ok(match around.before[..] {
        [begin] if ids.first() == Some(&begin) => Some(begin),
        _ => None,
    })
}

/// Tokens of a window, which the contexts of both models hold.
fn window(args: &Args, scorers: &[Scorer; 2]) -> Result<usize, Failure> {
    let context = scorers.iter().map(|s| s.session.context()).min();
    let context = context.unwrap_or(0);
    match args.window.map(|n| n as usize) {
        Some(asked) if asked > context => Err(usage!(
            "--window: expected at most the context of {context} tokens that both models have, found \
             {asked}"
        )
        .remedy(format!("--window {context}"))),
        Some(asked) => Ok(asked),
        None => Ok(context.min(WINDOW)),
    }
}

fn failed(error: RuntimeError, model: &LanguageModel, numerics: NumericsFlag) -> Failure {
    match error {
        RuntimeError::Logits { ref path } if *path == model.path => {
            no_numbers(error.into(), &model.name, numerics)
        }
        error => error.into(),
    }
}

fn compare(
    args: &Args,
    [model, reference]: &mut [Scorer; 2],
    (ids, begin): (&[u32], Option<u32>),
    window: usize,
    app: &App,
) -> Result<Vec<Compared>, RuntimeError> {
    app.output.count("comparing", Some(ids.len() as u64 - 1), 0);
    let advance = |n| app.output.advance(n);
    let windows = windows(ids, begin, window);
    let n_threads = model::n_threads(args.threads);
    compare_logits(model, reference, &windows, n_threads, &advance)
}

/// Greedy answers to parts of the text, and how many tokens one has at most.
fn answers(
    args: &Args,
    [model, reference]: &mut [Scorer; 2],
    (ids, begin): (&[u32], Option<u32>),
    app: &App,
) -> Result<(Vec<Answer>, usize), RuntimeError> {
    let n_answers = usize::from(args.answers.unwrap_or(8));
    let context = model.session.context().min(reference.session.context());
    let n_prompt = PROMPT.min(ids.len() / 2).min(context / 2).max(1);
    let room = (context - n_prompt).saturating_sub(1);
    let n_tokens = usize::from(args.answer_tokens.unwrap_or(64)).min(room);
    app.output.count("answering", Some(n_answers as u64), 0);
    let mut answers = Vec::with_capacity(n_answers);
    for idx in 0..n_answers {
        let at = idx * (ids.len() - n_prompt) / n_answers;
        let first = begin.filter(|_| at > 0);
        let prompt: Vec<u32> = first
            .into_iter()
            .chain(ids[at..at + n_prompt].to_vec())
            .collect();
        let answered = compare_answers(model, reference, &prompt, n_tokens)?;
        answers.push(Answer {
            at,
            tokens: answered.n_alike,
            gap: answered.gap,
            near_tie: answered.gap.map(|gap| gap <= NEAR_TIE),
        });
        app.output.advance(1);
    }
    Ok((answers, n_tokens))
}

/// The metrics of all positions, without windows and answers.
fn language(compared: &[Compared]) -> Language {
    let block = block_len(compared.len());
    let series =
        |of: fn(&Pair) -> f64| -> Vec<f64> { compared.iter().map(|c| of(&c.pair)).collect() };
    let mean = |of: fn(&Pair) -> f64| mean_interval(&series(of), block);
    let mut kl = series(|pair| pair.kl);
    let worst_at = (0..kl.len()).fold(0, |worst, at| if kl[at] > kl[worst] { at } else { worst });
    kl.sort_by(f64::total_cmp);
    let cosines = series(|pair| pair.cosine);
    Language {
        tokens: compared.len(),
        window: 0,
        perplexity: mean(|pair| pair.nll).map(f64::exp).into(),
        reference_perplexity: mean(|pair| pair.reference_nll).map(f64::exp).into(),
        perplexity_ratio: mean(|pair| pair.nll - pair.reference_nll)
            .map(f64::exp)
            .into(),
        kl: Divergence {
            mean: mean(|pair| pair.kl).into(),
            median: quantile(&kl, 0.5),
            p90: quantile(&kl, 0.9),
            p99: quantile(&kl, 0.99),
            worst: quantile(&kl, 1.0),
            worst_at: worst_at + 1,
        },
        same_first: mean(|pair| f64::from(u8::from(pair.same_first))).into(),
        same_five: mean(|pair| pair.same_five).into(),
        cosine: mean(|pair| pair.cosine).into(),
        worst_cosine: cosines.into_iter().fold(f64::INFINITY, f64::min),
        by_position: by_position(compared),
        layer_errors: None,
        answers: Vec::new(),
        answer_tokens: 0,
        goldens: Vec::new(),
    }
}

/// What `thane verify` checks the package with. The package computes in f32, which is the same on
/// every machine.
fn goldens(
    args: &Args,
    model: &LanguageModel,
    reference: &mut Scorer,
    app: &App,
) -> Result<Vec<GoldenLogits>, Failure> {
    app.output.busy("computing logits of known texts");
    let backend = args.run_flags(NumericsFlag::F32).backend(app);
    let mut scorer = Scorer::new(model, WHAT, &backend)?;
    let tokenizer = model.language(&app.budget)?.tokenizer;
    Ok(golden_logits(&mut scorer, reference, &tokenizer)?)
}

fn by_position(compared: &[Compared]) -> Vec<Range> {
    let starts = [0].into_iter().chain(ENDS);
    let range = |(from, end): (usize, usize)| {
        let inside = |c: &&Compared| (from..end).contains(&c.position);
        let inside: Vec<&Compared> = compared.iter().filter(inside).collect();
        let mean = |of: fn(&Pair) -> f64| {
            inside.iter().map(|c| of(&c.pair)).sum::<f64>() / inside.len() as f64
        };
        Some(Range {
            from,
            to: inside.iter().map(|c| c.position).max()?,
            tokens: inside.len(),
            cosine: mean(|pair| pair.cosine),
            kl: mean(|pair| pair.kl),
        })
    };
    starts.zip(ENDS).filter_map(range).collect()
}

pub(super) fn text(of: &Language) -> String {
    let (n, window) = (counted(of.tokens, "token"), counted(of.window, "token"));
    let mut out = format!("{n} in windows of {window}; ranges are 95 % intervals\n\n");
    out += &row("perplexity", of.perplexity, digits);
    out += &row("of the reference", of.reference_perplexity, digits);
    out += &row("ratio", of.perplexity_ratio, |x| format!("{x:.5}"));
    out += &row("KL, nats", of.kl.mean, digits);
    out += &row("same first token", of.same_first, percent);
    out += &row("same first five", of.same_five, percent);
    out += &row("cosine of logits", of.cosine, |x| format!("{x:.6}"));
    let kl = &of.kl;
    let [median, p90, p99, worst] = [kl.median, kl.p90, kl.p99, kl.worst].map(digits);
    out += &format!(
        "\nKL: median {median}, 90 % {p90}, 99 % {p99}, worst {worst} at token {}\n",
        kl.worst_at
    );
    out += &format!(
        "cosine: worst {:.6}; after so many tokens:\n",
        of.worst_cosine
    );
    for range in &of.by_position {
        let Range { from, to, .. } = range;
        let (cosine, kl) = (range.cosine, digits(range.kl));
        out += &format!(
            "  {:<20} {cosine:>12.6}  KL {kl}\n",
            format!("{from} to {to}")
        );
    }
    if let Some(errors) = &of.layer_errors {
        out += &layers_text(errors);
    }
    out + &answers_text(of)
}

/// Layers in lines of eight.
fn layers_text(errors: &[f64]) -> String {
    let mut out = "\nrelative error of the residual stream behind layers:\n".to_owned();
    for (line, first) in errors.chunks(8).zip((0..).step_by(8)) {
        let shown: Vec<String> = line.iter().map(|error| format!("{error:.1e}")).collect();
        out += &format!("  {:<20} {}\n", format!("from {first}"), shown.join("  "));
    }
    out
}

fn answers_text(of: &Language) -> String {
    let parted: Vec<&Answer> = of.answers.iter().filter(|a| a.gap.is_some()).collect();
    let near = parted.iter().filter(|a| a.near_tie == Some(true)).count();
    if of.answers.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\ngreedy answers: {} of {} part within {}, {near} at near-ties\n",
        parted.len(),
        of.answers.len(),
        counted(of.answer_tokens, "token")
    );
    for Answer {
        at,
        tokens,
        gap,
        near_tie,
    } in parted
    {
        let gap = digits(gap.unwrap_or_default());
        let tie = if *near_tie == Some(true) {
            ", a near-tie"
        } else {
            ""
        };
        out += &format!("  prompt at token {at}: after {tokens}, by {gap} nats{tie}\n");
    }
    out
}
