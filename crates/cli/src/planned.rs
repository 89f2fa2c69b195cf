//! What the planner of forms says to a user: why a form was chosen, with prices.

use serde::Serialize;
use thane_audit::latency::LoadRisk;
use thane_audit::plan::form::{Choice, Goal, Priced, PricedCall, Step};
use thane_audit::target::Target;
use thane_calls::Head;
use thane_models::AneDecoder;
use thane_runtime::{Model, PlanOptions};

use crate::app::App;
use crate::exit::Failure;
use crate::form::FormFlags;
use crate::output::bytes;

/// The values of `--for`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum GoalFlag {
    /// The time of a token of an answer.
    #[default]
    Latency,
    /// The time of a token of a prompt.
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

/// The choice for a checkpoint, and the decoder of the form that was chosen.
pub fn choose(
    model: &Model,
    context: Option<usize>,
    flags: &FormFlags,
    (target, goal): (&Target, GoalFlag),
    app: &App,
) -> Result<(Choice, AneDecoder), Failure> {
    let decoder = flags.decoder();
    let options = PlanOptions {
        context,
        decoder: &decoder,
        pinned: flags.pinned(),
        target,
        goal: goal.goal(),
    };
    let choice = model.plan(&options, app.output.as_ref())?;
    let form = choice.chosen.form.clone();
    Ok((choice, AneDecoder { form, ..decoder }))
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
    decode_ops: Option<usize>,
    /// Share of these ops on the Neural Engine, in percent.
    on_engine: Option<f64>,
    /// Bytes of weights of all functions, each with a copy of its own.
    loaded_bytes: f64,
    /// `none`, `possible` or `likely`: whether a program does not load, by its size or by a rule.
    load_risk: &'static str,
    /// The calls that give the logits of each of several tokens, in the greatest context.
    verify: Vec<VerifyRow>,
}

impl From<&Priced> for Row {
    fn from(priced: &Priced) -> Self {
        let decode = priced.decode();
        let form = &priced.form;
        Self {
            form: priced.describe(),
            kv: form.cache.name(),
            lookup: form.lookup.name(),
            head: form.head.to_string(),
            contexts: form.contexts.clone(),
            programs: priced.programs,
            block: form.block,
            decode_ms: decode.map(|call| call.ms),
            low_ms: decode.map(|call| call.interval_ms.0),
            high_ms: decode.map(|call| call.interval_ms.1),
            mean_decode_ms: priced.mean_decode_ms(),
            floor_ms: decode.map(|call| call.floor_ms),
            prefill_ms: priced.prefill_ms(),
            lanes: priced.lanes().map(|lanes| lanes.call.lanes),
            lanes_tokens_per_s: priced.lanes().map(PricedCall::tokens_per_second),
            decode_ops: decode.map(|call| call.ops),
            on_engine: decode.map(|call| 100.0 * call.ane_ops as f64 / call.ops.max(1) as f64),
            loaded_bytes: priced.loaded_bytes,
            load_risk: risk(priced.load_risk),
            verify: priced.verify().map(VerifyRow::from).collect(),
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
            ms: priced.ms,
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

/// What was chosen, in a sentence each: the form with its price, and the runner-up.
pub fn sentences(choice: &Choice, target: &Target) -> Vec<String> {
    let (form, cost) = (choice.chosen.describe(), price(&choice.chosen));
    let mut lines = vec![format!("for {target}: {form}; {cost}")];
    let runner_up = choice.steps.iter().rev().find_map(|step| {
        let other = step.tried.iter().find(|t| t.form != choice.chosen.form)?;
        (step.tried[0].form == choice.chosen.form).then_some(other)
    });
    if let Some(other) = runner_up {
        lines.push(format!("next best: {}; {}", other.describe(), price(other)));
    }
    lines
}

fn price(priced: &Priced) -> String {
    let Some(decode) = priced.decode() else {
        return "no function of one token".to_owned();
    };
    let risk = match priced.load_risk {
        LoadRisk::None => "",
        LoadRisk::Possible => ", may not load",
        LoadRisk::Likely => ", likely does not load",
    };
    let lanes = priced.lanes().map(|call| {
        let (lanes, ms, rate) = (call.call.lanes, call.ms, call.tokens_per_second());
        format!("; {lanes} lanes: {ms:.2} ms a call, {rate:.0} tokens/s in all")
    });
    let lanes = lanes.unwrap_or_default();
    let verify = priced.verify().map(|verify| {
        let (n, loaded) = (verify.call.tokens, bytes(verify.loaded_bytes as u64));
        format!("; verify {n}: {:.2} ms a call, loads {loaded}", verify.ms)
    });
    let verify: String = verify.collect();
    format!(
        "{:.2} ms a token at {} ({:.2} times reading everything once), {:.1} ms on average, \
         {:.0} % of {} ops on the engine{risk}{lanes}{verify}",
        decode.ms,
        decode.call.context,
        decode.ms / decode.floor_ms,
        priced.mean_decode_ms(),
        100.0 * decode.ane_ops as f64 / decode.ops.max(1) as f64,
        decode.ops
    )
}

/// What was tried for each decision, the best first, and what was chosen.
pub fn table(choice: &Choice) -> String {
    let numbers = ["ms", "x floor", "mean", "prompt", "engine"];
    let mut text = row("decision", "form", numbers);
    for step in &choice.steps {
        for (at, tried) in step.tried.iter().enumerate() {
            let what = if at == 0 { step.what } else { "" };
            text += &line(what, tried);
        }
    }
    text + &line("chosen", &choice.chosen)
}

fn row(what: &str, form: &str, [ms, floor, mean, prompt, engine]: [&str; 5]) -> String {
    format!("{what:<17}{form:<44}{ms:>6}{floor:>8}{mean:>7}{prompt:>7}{engine:>7}\n")
}

fn line(what: &str, priced: &Priced) -> String {
    let decode = priced.decode();
    let number = |n: Option<f64>| n.map_or("-".to_owned(), |n| format!("{n:.2}"));
    let share = |part: usize, of: usize| format!("{:.0} %", 100.0 * part as f64 / of.max(1) as f64);
    let numbers = [
        number(decode.map(|call| call.ms)),
        number(decode.map(|call| call.ms / call.floor_ms)),
        number(Some(priced.mean_decode_ms())),
        number(priced.prefill_ms()),
        decode.map_or("-".to_owned(), |call| share(call.ane_ops, call.ops)),
    ];
    row(what, &short(priced), numbers.each_ref().map(String::as_str))
}

/// The form in few words: `explicit, host, block 64, +512, 2 programs`.
fn short(priced: &Priced) -> String {
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
