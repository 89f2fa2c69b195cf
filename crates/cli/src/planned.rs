//! What the planner of forms says to a user: why a form was chosen, with prices.

use serde::Serialize;
use thane_audit::calls::{AnswerRow, PricedCall};
use thane_audit::format::sentence::{said_of, sizes};
use thane_audit::latency::LoadRisk;
use thane_audit::number::{milliseconds, predicted_bytes, share};
use thane_audit::plan::form::{Choice, Goal, Priced, RunnerUp, Step, price};
use thane_audit::target::Target;
use thane_calls::Head;
use thane_models::{AneDecoder, Options};
use thane_runtime::{BuiltDecoder, CompressOptions, Model, PlanOptions};

use crate::app::App;
use crate::compress::CompressFlags;
use crate::embed::bundle;
use crate::exit::Failure;
use crate::form::{FormFlag, FormFlags};
use crate::model::n_threads;
use crate::output::bytes;

/// The values of `--for`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum GoalFlag {
    /// The time of a token of an answer.
    #[default]
    Latency,
    /// The time of a prompt, which gives the first token.
    Throughput,
    /// The memory of what is loaded.
    Memory,
}

impl GoalFlag {
    fn goal(self) -> Goal {
        match self {
            Self::Latency => Goal::Latency,
            Self::Throughput => Goal::Throughput,
            Self::Memory => Goal::Memory,
        }
    }
}

/// How a checkpoint is built, as flags say it.
#[derive(Clone, Copy, Debug)]
pub struct Build<'a> {
    /// Tokens that the cache holds.
    pub context: Option<usize>,
    /// The form of a decoder; `None` for the best one for the targets.
    pub form: Option<FormFlag>,
    /// What the best is chosen for.
    pub goal: GoalFlag,
    /// The targets; empty for the portable form.
    pub targets: &'a [Target],
    pub embedding: &'a bundle::Flags,
    /// How weights are compressed.
    pub compression: CompressFlags,
}

/// What the flags make of a decoder.
pub struct Made {
    /// The form for the Neural Engine; `None` for the portable form.
    pub ane: Option<AneDecoder>,
    /// Why it was chosen, by target; empty where flags say it.
    pub choices: Vec<Choice>,
    /// How weights are compressed; `None` if they are not.
    pub compress: Option<CompressOptions>,
}

/// The form of a decoder that flags ask for, or that is predicted to be best.
pub fn made(model: &Model, build: &Build<'_>, app: &App) -> Result<Made, Failure> {
    let flags = &build.embedding.form;
    let compression = &build.compression;
    let portable = || Made {
        ane: None,
        choices: Vec::new(),
        compress: compression
            .settings()
            .map(|s| CompressOptions::new(s, n_threads(None))),
    };
    match build.form {
        Some(FormFlag::Ane | FormFlag::Foreign(_)) => {
            let decoder = flags.decoder();
            let usual = [Target::usual()];
            let targets = match build.targets {
                [] => &usual[..],
                given => given,
            };
            let targets: Vec<Target> = targets.iter().map(|t| flags.routed(*t)).collect();
            let decide = |start| {
                let ane = Some(decoder.clone());
                let built = built(model, build.context, ane)?;
                let make = |way: Option<&CompressOptions>| built.subject("", way);
                compression.decided(start, &make, &targets, app)
            };
            let start = compression.pricing();
            let compress = match compression.is_auto() {
                true => start.map(decide).transpose()?,
                false => start,
            };
            return Ok(Made {
                ane: Some(decoder),
                choices: Vec::new(),
                compress,
            });
        }
        Some(FormFlag::Portable) => return Ok(portable()),
        None if build.targets.is_empty() => return Ok(portable()),
        None => {}
    }
    let asked = Asked {
        context: build.context,
        goal: build.goal,
        targets: build.targets,
        form: flags,
        compression: build.compression,
    };
    let planned = choose(model, &asked, app)?;
    Ok(Made {
        ane: Some(planned.decoder),
        choices: planned.choices,
        compress: planned.compress,
    })
}

/// A decoder in a form, before its weights are compressed.
pub fn built(
    model: &Model,
    context: Option<usize>,
    ane: Option<AneDecoder>,
) -> Result<BuiltDecoder, Failure> {
    let options = Options {
        context,
        ane,
        ..Options::default()
    };
    Ok(BuiltDecoder::new(model.checkpoint()?, &options, &())?)
}

/// What a form is chosen by.
pub struct Asked<'a> {
    /// Tokens that the cache holds.
    pub context: Option<usize>,
    /// What the best is chosen for.
    pub goal: GoalFlag,
    /// The targets, at least one.
    pub targets: &'a [Target],
    /// What flags decide of the form.
    pub form: &'a FormFlags,
    /// How weights are compressed.
    pub compression: CompressFlags,
}

/// What was chosen.
pub struct Planned {
    /// Why, for each target.
    pub choices: Vec<Choice>,
    /// The decoder in the form that was chosen.
    pub decoder: AneDecoder,
    /// How weights are compressed; `None` if they are not.
    pub compress: Option<CompressOptions>,
}

/// The form that is predicted to be best, and how its weights are compressed. The form is chosen
/// first, with the weights compressed as flags say.
pub fn choose(model: &Model, asked: &Asked<'_>, app: &App) -> Result<Planned, Failure> {
    let decoder = asked.form.decoder();
    let start = asked.compression.pricing();
    let targets: Vec<Target> = asked
        .targets
        .iter()
        .map(|t| asked.form.routed(*t))
        .collect();
    let options = PlanOptions {
        context: asked.context,
        decoder: &decoder,
        pinned: asked.form.pinned(),
        targets: &targets,
        goal: asked.goal.goal(),
        compress: start.as_ref(),
    };
    let mut choices = model.plan(&options, app.output.as_ref())?;
    let chosen = choices.first().map(|choice| choice.chosen.form.clone());
    let form = chosen.unwrap_or_else(|| decoder.form.clone());
    let mut compress = start.clone();
    if let Some(start) = start.clone().filter(|_| asked.compression.is_auto()) {
        let built = model.decoder_in(
            &PlanOptions {
                compress: None,
                ..options
            },
            &form,
        )?;
        let make = |way: Option<&CompressOptions>| built.subject("", way);
        let decided = asked.compression.decided(start, &make, &targets, app)?;
        let subject = make(Some(&decided))?;
        for choice in &mut choices {
            choice.chosen = price(form.clone(), &subject, &choice.target);
        }
        compress = Some(decided);
    }
    Ok(Planned {
        choices,
        decoder: AneDecoder { form, ..decoder },
        compress,
    })
}

/// A form with its price, in JSON.
#[derive(Serialize)]
pub struct Row {
    /// The form in words.
    form: String,
    /// `state` or `explicit`.
    kv: &'static str,
    /// `inside`, `host` or `host-int8`.
    lookup: &'static str,
    /// As `--head` has it.
    head: String,
    contexts: Vec<usize>,
    /// Number of programs that layers and head are cut into.
    programs: usize,
    block: Option<usize>,
    /// Milliseconds of a token of an answer in the greatest context.
    decode_ms: Option<f64>,
    low_ms: Option<f64>,
    high_ms: Option<f64>,
    /// Milliseconds of a token, while the cache fills from empty to full.
    mean_decode_ms: f64,
    /// Milliseconds of reading all weights and the cache once.
    floor_ms: Option<f64>,
    /// Milliseconds of a token of a prompt.
    prefill_ms: Option<f64>,
    /// Number of sequences that a call takes a token each of; null for no such call.
    lanes: Option<usize>,
    /// Tokens of all these sequences in a second.
    lanes_tokens_per_s: Option<f64>,
    /// Ops of all functions that compute.
    ops: usize,
    /// How many of them run on the Neural Engine.
    ane_ops: usize,
    /// The predicted speed of answers.
    answer: Option<AnswerRow>,
    /// The verdict of an audit.
    verdict: &'static str,
    /// Bytes of the packages, without what is beside weights and tables.
    disk_bytes: u64,
    /// Bytes of memory once all functions are loaded.
    loaded_bytes: Option<f64>,
    /// Bytes of the tables beside the programs, which the app maps.
    table_bytes: u64,
    /// `none`, `possible` or `likely`: whether a program does not load, by its size or by a rule.
    load_risk: &'static str,
    /// The calls that give the logits of each of several tokens, in the greatest context.
    verify: Vec<VerifyRow>,
}

impl From<&Priced> for Row {
    fn from(priced: &Priced) -> Self {
        let calls = &priced.calls;
        let (decode, form) = (calls.decode(), &priced.form);
        Self {
            form: priced.describe(),
            kv: form.cache.name(),
            lookup: form.lookup.name(),
            head: form.head.to_string(),
            contexts: form.contexts.clone(),
            programs: priced.programs,
            block: form.block,
            decode_ms: decode.map(|call| call.time.ms),
            low_ms: decode.map(|call| call.time.low_ms),
            high_ms: decode.map(|call| call.time.high_ms),
            mean_decode_ms: calls.mean_decode_ms(),
            floor_ms: decode.map(|call| call.floor_ms),
            prefill_ms: calls.prefill_ms(),
            lanes: calls.lanes().map(|lanes| lanes.call.lanes),
            lanes_tokens_per_s: calls.lanes().map(PricedCall::tokens_per_second),
            ops: priced.ops.1,
            ane_ops: priced.ops.0,
            answer: calls.answer(),
            verdict: priced.verdict.name(),
            disk_bytes: priced.disk_bytes,
            loaded_bytes: priced.memory.as_ref().map(|row| row.bytes),
            table_bytes: priced.table_bytes,
            load_risk: risk(priced.load_risk),
            verify: calls.verify().map(VerifyRow::from).collect(),
        }
    }
}

/// A call of `verify`, in JSON.
#[derive(Serialize)]
struct VerifyRow {
    tokens: usize,
    ms: f64,
    /// Bytes of the weights that its functions load.
    loaded_bytes: f64,
}

impl From<&PricedCall> for VerifyRow {
    fn from(priced: &PricedCall) -> Self {
        Self {
            tokens: priced.call.tokens,
            ms: priced.time.ms,
            loaded_bytes: priced.loaded_bytes,
        }
    }
}

/// A decision, in JSON.
#[derive(Serialize)]
pub struct Decision {
    decided: &'static str,
    /// What was tried, the best first.
    tried: Vec<Row>,
}

impl From<&Step> for Decision {
    fn from(step: &Step) -> Self {
        let (decided, tried) = (step.what, step.tried.iter().map(Row::from));
        let tried = tried.collect();
        Self { decided, tried }
    }
}

fn risk(risk: LoadRisk) -> &'static str {
    match risk {
        LoadRisk::None => "none",
        LoadRisk::Possible => "possible",
        LoadRisk::Likely => "likely",
    }
}

/// What was chosen, in a sentence each: the form, what came second, and for each target what it
/// takes, if `figures` asks for that.
pub fn sentences(choices: &[Choice], with_figures: bool) -> Vec<String> {
    let Some(first) = choices.first() else {
        return Vec::new();
    };
    let names: Vec<String> = choices
        .iter()
        .map(|choice| choice.target.described())
        .collect();
    let form = first.chosen.describe();
    let mut lines = vec![format!("for {}: {form}", names.join(", "))];
    if let Some(because) = choices.iter().find_map(Choice::cut_because) {
        let n = first.chosen.programs;
        lines.push(format!("  {n} programs, since one may not load: {because}"));
    }
    for choice in choices {
        let name = choice.target.chip.name;
        let whose = match choices.len() {
            1 => String::new(),
            _ => format!("{name}: "),
        };
        if with_figures {
            let figures = figures(&choice.chosen).into_iter();
            lines.extend(figures.map(|line| format!("  {whose}{line}")));
        }
        if choices.len() > 1 {
            lines.push(format!(
                "  {whose}{:.2} times the best for it alone ({})",
                choice.ratio,
                choice.best.describe()
            ));
        }
    }
    if let ([choice], Some(second)) = (choices, first.runner_up()) {
        let because = second
            .because
            .map(|why| format!("; not chosen because {why}"));
        lines.push(format!(
            "  next best: {}; {}{}",
            second.priced.describe(),
            compared(choice, &second),
            because.unwrap_or_default()
        ));
    }
    lines
}

/// What the form that came second takes, and what the chosen form takes: of what was asked for, or
/// else of the first time in which the two differ.
fn compared(choice: &Choice, second: &RunnerUp<'_>) -> String {
    let goals = [choice.goal, second.goal, Goal::Latency, Goal::Throughput];
    let figures = goals.map(|goal| figure(choice, second.priced, goal));
    let differs = figures.iter().find(|[_, other, chosen]| other != chosen);
    match differs {
        Some([what, other, chosen]) => format!("{what} {other}, of the chosen form {chosen}"),
        None => "no difference that is predicted".to_owned(),
    }
}

/// What is made small, what another form takes of it, and what the chosen form takes.
fn figure(choice: &Choice, other: &Priced, goal: Goal) -> [String; 3] {
    let costs = [other, &choice.chosen].map(|priced| priced.cost(goal));
    let (what, [other, chosen]) = match goal {
        Goal::Latency => ("an average token takes".to_owned(), costs.map(milliseconds)),
        Goal::Throughput => {
            let n = choice.chosen.calls.answer().map_or(0, |a| a.prompt_tokens);
            let what = format!("the first token of a prompt of {n} after");
            (what, costs.map(milliseconds))
        }
        Goal::Memory => ("memory".to_owned(), costs.map(predicted_bytes)),
    };
    [what, other, chosen]
}

/// What a form takes: the time of an answer, its size, and where it runs.
fn figures(priced: &Priced) -> Vec<String> {
    let Some(answer) = priced.calls.answer() else {
        return vec!["no function of one token".to_owned()];
    };
    let (ane_ops, ops) = priced.ops;
    let placed = format!(
        "{}; {} % of {ops} ops there",
        said_of(priced.verdict.name(), false),
        share(100.0 * ane_ops as f64 / ops.max(1) as f64),
    );
    let mut lines = vec![
        answer.text(),
        sizes(
            priced.disk_bytes,
            priced.memory.as_ref(),
            priced.table_bytes,
        ),
        placed,
    ];
    lines.extend(priced.calls.lanes().map(|call| {
        let (lanes, rate) = (call.call.lanes, call.tokens_per_second());
        format!(
            "{lanes} lanes: {} a call, {rate:.0} tokens/s in all",
            call.time.text()
        )
    }));
    lines.extend(priced.calls.verify().map(|call| {
        let (n, loaded) = (call.call.tokens, bytes(call.loaded_bytes as u64));
        format!("verify {n}: {} a call, loads {loaded}", call.time.text())
    }));
    lines
}

/// The table of each target.
pub fn tables(choices: &[Choice]) -> String {
    let tables = choices.iter().map(|choice| match choices.len() {
        1 => table(choice),
        _ => format!("{}\n{}", choice.target.described(), table(choice)),
    });
    tables.collect::<String>() + COLUMNS
}

/// What was tried for each decision, the best first, and what was chosen.
fn table(choice: &Choice) -> String {
    let numbers = ["ms", "mean", "prompt", "loaded", "engine"];
    let mut text = row("decision", "form", numbers);
    for step in &choice.steps {
        for (at, tried) in step.tried.iter().enumerate() {
            let what = if at == 0 { step.what } else { "" };
            text += &line(what, tried);
        }
    }
    text + &line("chosen", &choice.chosen)
}

/// What the columns of the table are.
const COLUMNS: &str = "ms: a token of an answer with a full cache; mean: while it fills; prompt: \
    a token of a prompt;\nloaded: memory of all functions; engine: percent of the ops that are on \
    the Neural Engine\n\
    form: who keeps the KV cache (explicit: the app, state: Core ML), who looks up embeddings\n\
    (inside the program, or host: the app), block: tokens of a prompt that a call takes,\n\
    +N: functions for a shorter context of N tokens, programs: packages of a model that is cut\n";

fn row(what: &str, form: &str, [ms, mean, prompt, loaded, engine]: [&str; 5]) -> String {
    format!("{what:<17}{form:<44}{ms:>6}{mean:>6}{prompt:>7}{loaded:>9}{engine:>7}\n")
}

fn line(what: &str, priced: &Priced) -> String {
    let calls = &priced.calls;
    let number = |n: Option<f64>| n.map_or("-".to_owned(), |n| format!("{n:.2}"));
    let (ane_ops, ops) = priced.ops;
    let loaded = priced.memory.as_ref().map(|row| bytes(row.bytes as u64));
    let numbers = [
        number(calls.decode().map(|call| call.time.ms)),
        number(Some(calls.mean_decode_ms())),
        number(calls.prefill_ms()),
        loaded.unwrap_or_default(),
        share(100.0 * ane_ops as f64 / ops.max(1) as f64),
    ];
    row(what, &short(priced), numbers.each_ref().map(String::as_str))
}

/// The form in few words: `explicit, host, block 64, +512, 2 programs`.
pub fn short(priced: &Priced) -> String {
    let form = &priced.form;
    let cache = form.cache.name();
    let tables = form.lookup.name();
    let mut text = format!("{cache}, {tables}, block {}", form.block.unwrap_or(1));
    match form.head {
        Head::Logits => {}
        // The tables may be on the host, too.
        Head::Host(()) => text += ", cpu",
        head @ Head::Greatest(_) => text += &format!(", {head}"),
    }
    for context in &form.contexts {
        text += &format!(", +{context}");
    }
    if priced.programs > 1 {
        text += &format!(", {} programs", priced.programs);
    }
    text
}
