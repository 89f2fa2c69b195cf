//! Chooses the form of a decoder for the Neural Engine: where its cache is, who looks up tables,
//! which context lengths have functions of their own, how many programs it is cut into, and how
//! many tokens of a prompt a call takes.
//!
//! The caller builds the program of a [`Form`]; here it is priced. One decision is made after the
//! other, in the order in which they matter, and what was decided stays.

use std::fmt::Write as _;

use thane_calls::{CacheForm, Call, Form, Given, Head, Lookup, Split};
use thane_mil::program::Program;
use thane_mil::types::Type;

use crate::finding::Finding;
use crate::judged::FunctionAudit;
use crate::latency::LoadRisk;
use crate::rule::Effect;
use crate::target::{Chip, Figure, Target};
use crate::view::View;

/// The fields of a [`Form`] that the caller has fixed; the planner chooses the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each field of a form"
)]
pub struct Pinned {
    /// Where the cache is.
    pub cache: bool,
    /// Who looks up tables.
    pub lookup: bool,
    /// The shorter contexts.
    pub contexts: bool,
    /// Where the model is cut.
    pub split: bool,
    /// The tokens of a prompt in a call.
    pub block: bool,
    /// Which logits a call gives.
    pub head: bool,
}

/// What a form is chosen for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// The time of a token of an answer.
    #[default]
    Latency,
    /// The time of a token of a prompt.
    Throughput,
    /// The memory of what is loaded.
    Memory,
}

/// A program of a form.
pub struct Built {
    /// The program.
    pub program: Program,
    /// How it is called.
    pub calls: Vec<Call>,
    /// Bytes of the output matrix, if the caller computes the logits of a token.
    pub host_bytes: f64,
}

/// The predicted price of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct PricedCall {
    /// The call.
    pub call: Call,
    /// Milliseconds of all its functions.
    pub ms: f64,
    /// The interval that holds about 80 % of calls, in milliseconds.
    pub interval_ms: (f64, f64),
    /// Milliseconds of reading all weights and the cache once.
    pub floor_ms: f64,
    /// Bytes of weights of its functions, each with a copy of its own, as Core ML loads them.
    pub loaded_bytes: f64,
    /// Ops.
    pub ops: usize,
    /// Ops on the Neural Engine.
    pub ane_ops: usize,
}

impl PricedCall {
    /// Tokens of all sequences in a second.
    pub fn tokens_per_second(&self) -> f64 {
        self.call.n_tokens() as f64 / self.ms * 1e3
    }
}

/// The predicted price of a form.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    /// The form.
    pub form: Form,
    /// Its calls.
    pub calls: Vec<PricedCall>,
    /// Whether each of its programs can be loaded, by its size and by what rules know to fail.
    pub load_risk: LoadRisk,
    /// Number of programs.
    pub programs: usize,
    /// Bytes of weights of all functions, each with a copy of its own, as Core ML loads them.
    pub loaded_bytes: f64,
    /// Bytes of the weights of a call, about.
    weight_bytes: f64,
}

impl Priced {
    /// The call that takes one token, in the greatest context.
    pub fn decode(&self) -> Option<&PricedCall> {
        self.of_one_token().max_by_key(|priced| priced.call.context)
    }

    /// The call of a token each of several sequences, in the greatest context.
    pub fn lanes(&self) -> Option<&PricedCall> {
        let lanes = self.calls.iter().filter(|priced| priced.call.lanes > 1);
        lanes.max_by_key(|priced| priced.call.context)
    }

    /// The calls that give the logits of each of several tokens, in the greatest context.
    pub fn verify(&self) -> impl Iterator<Item = &PricedCall> {
        let context = self.decode().map(|decode| decode.call.context);
        self.of_one_sequence().filter(move |priced| {
            priced.call.logits == Given::Each && Some(priced.call.context) == context
        })
    }

    /// The calls that take one token of one sequence: those of fewest tokens.
    fn of_one_token(&self) -> impl Iterator<Item = &PricedCall> {
        let fewest = self
            .of_one_sequence()
            .map(|priced| priced.call.tokens)
            .min();
        self.of_one_sequence()
            .filter(move |priced| Some(priced.call.tokens) == fewest)
    }

    fn of_one_sequence(&self) -> impl Iterator<Item = &PricedCall> {
        self.calls.iter().filter(|priced| priced.call.lanes == 1)
    }

    /// Milliseconds of a token of a prompt, in the greatest context.
    pub fn prefill_ms(&self) -> Option<f64> {
        let context = self.decode()?.call.context;
        let calls = self.of_one_sequence();
        let calls = calls.filter(|priced| priced.call.context == context);
        let each = calls.map(|priced| priced.ms / priced.call.tokens as f64);
        each.min_by(f64::total_cmp)
    }

    /// Milliseconds of a token of an answer, if the cache is filled from empty to full: each token
    /// takes the shortest context that holds it.
    pub fn mean_decode_ms(&self) -> f64 {
        let mut calls: Vec<&PricedCall> = self.of_one_token().collect();
        calls.sort_by_key(|priced| priced.call.context);
        let (mut from, mut sum) = (0, 0.0);
        for PricedCall { call, ms, .. } in calls {
            sum += (call.context - from) as f64 * ms;
            from = call.context;
        }
        sum / from.max(1) as f64
    }

    /// What a goal makes smaller.
    fn cost(&self, goal: Goal) -> f64 {
        match goal {
            Goal::Latency => self.mean_decode_ms(),
            Goal::Throughput => self.prefill_ms().unwrap_or(f64::INFINITY),
            Goal::Memory => self.loaded_bytes,
        }
    }
}

/// Price a program for a target.
pub fn price(form: Form, built: &Built, target: &Target) -> Priced {
    let gbps = target.chip.activation_gbps.value * 1e9;
    let host_ms = built.host_bytes / host_rate(target.chip) * 1e3;
    let mut risk = LoadRisk::None;
    let mut weight_bytes = 0.0f64;
    let mut calls = Vec::new();
    for call in &built.calls {
        // Of a prompt, the caller computes the logits of the last token only.
        let host_ms = if call.tokens == 1 { host_ms } else { 0.0 };
        let mut priced = PricedCall {
            call: call.clone(),
            ms: host_ms,
            interval_ms: (host_ms * HOST_LOGITS.low, host_ms * HOST_LOGITS.high),
            floor_ms: host_ms + cache_bytes(&built.program, call) / gbps * 1e3,
            loaded_bytes: 0.0,
            ops: 0,
            ane_ops: 0,
        };
        for name in &call.functions {
            let Some(function) = built.program.function(name) else {
                continue;
            };
            let view = View::new(&built.program, function, target);
            let audit = FunctionAudit::of(&view);
            let latency = &audit.latency;
            priced.ms += latency.ms;
            priced.interval_ms.0 += latency.interval_ms.0;
            priced.interval_ms.1 += latency.interval_ms.1;
            priced.floor_ms += latency.reading_ms;
            priced.ops += audit.placement.ops.len();
            priced.ane_ops += audit.placement.n_ane_ops();
            let fails = |finding: &Finding| {
                matches!(
                    finding.rule.effect,
                    Effect::CompileFails(_) | Effect::LoadFails(_) | Effect::RunFails(_)
                )
            };
            let may_fail = if audit.findings.iter().any(fails) {
                LoadRisk::Possible
            } else {
                LoadRisk::None
            };
            risk = risk.max(latency.load_risk).max(may_fail);
            weight_bytes =
                weight_bytes.max(latency.memory.program_bytes * call.functions.len() as f64);
            priced.loaded_bytes += latency.memory.program_bytes;
        }
        calls.push(priced);
    }
    Priced {
        form,
        loaded_bytes: calls.iter().map(|call| call.loaded_bytes).sum(),
        calls,
        load_risk: risk,
        programs: built
            .calls
            .iter()
            .map(|c| c.functions.len())
            .max()
            .unwrap_or(0),
        weight_bytes,
    }
}

/// Bytes of the caches that the functions of a call read.
fn cache_bytes(program: &Program, call: &Call) -> f64 {
    let functions = call.functions.iter();
    let functions = functions.filter_map(|name| program.function(name));
    let values = functions.flat_map(|f| f.body().inputs.iter().map(|v| f.value(*v)));
    let caches = values.filter(|value| {
        let is_state = matches!(value.ty, Type::State(_));
        is_state || value.name.contains("_cache_") || value.name.starts_with("recurrent_")
    });
    let bytes = caches.filter_map(|value| value.ty.tensor_or_state()?.byte_len());
    bytes.sum::<usize>() as f64
}

/// The time of logits on the host, over what [`host_rate`] says. Espresso's product, the only one
/// that is published, takes about 2.6 times as long; as much less is taken to be possible.
const HOST_LOGITS: Figure =
    Figure::inferred(1.0, 1.0 / 2.6, 2.6).by("Espresso of christopherkarani; M6 study");

/// The figures of forms that all chips share, by name.
pub const FIGURES: [(&str, Figure); 1] = [("host_logits", HOST_LOGITS)];

/// Bytes of a matrix that the CPU reads in a second for its product with one vector.
///
/// No measurement of such a product by chip is known. The segmenter's own table, measured on M4 and
/// M6, has 56.7 GiB/s for the CPU and 68 for the engine (M6 study, macOS 27); where less was
/// measured for the engine of a chip, the CPU is taken to be as much slower. Espresso reports 22 ms
/// for the head of Qwen2.5-1.5B, 467 MB, which is 21 GB/s, in tiles widened to fp32 (pull request
/// 41).
fn host_rate(chip: &Chip) -> f64 {
    const GIB: f64 = 1_073_741_824.0;
    let table = &chip.family.segmenter;
    let as_engine = chip.weight_gbps.value * 1e9 * table.cpu_gibps.value / table.ane_gibps.value;
    as_engine.min(table.cpu_gibps.value * GIB)
}

/// A decision, with the forms that it was made among.
#[derive(Clone, Debug)]
pub struct Step {
    /// What was decided.
    pub what: &'static str,
    /// What was tried, the best first.
    pub tried: Vec<Priced>,
}

/// What was chosen, and why.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The form.
    pub chosen: Priced,
    /// The decisions on the way.
    pub steps: Vec<Step>,
}

/// A shorter context must make the mean token of an answer this much faster, since each of its
/// functions is another copy of the weights where Core ML loads it.
const LEAST_GAIN: f64 = 0.05;
/// Contexts below this are full after a few answers.
const LEAST_CONTEXT: usize = 512;
/// Tokens of a prompt that a call may take. With 128, a token takes 21 to 45 % longer than with 64
/// (ANEMLL Forge, M6), which the latency model does not know.
const BLOCKS: [usize; 3] = [16, 32, Form::DEFAULT_BLOCK];
/// Most programs that a model is cut into for what is not its size.
const MOST_PROGRAMS: usize = 6;
/// How much of the bytes that a program may have is used: norms and constants are not counted.
const SLACK: f64 = 0.97;

/// Chooses what `pinned` leaves open of a form, for a context of `context` tokens. `build` makes
/// the program of a form.
///
/// # Errors
///
/// Those of `build`.
pub fn choose<E>(
    context: usize,
    (form, pinned): (Form, Pinned),
    (target, goal): (&Target, Goal),
    build: &mut dyn FnMut(&Form) -> Result<Built, E>,
) -> Result<Choice, E> {
    let (start, pinned) = with_decided(form, pinned, context);
    let mut price = |form: Form| Ok(price(form.clone(), &build(&form)?, target));
    let mut search = Search {
        best: first(start, pinned, &mut price)?,
        steps: Vec::new(),
        price: &mut price,
    };
    // Memory is decided by the number of functions, whatever their form.
    let by_time = if goal == Goal::Throughput {
        goal
    } else {
        Goal::Latency
    };
    search.decide("cache and tables", by_time, |form| {
        let caches = open(
            pinned.cache,
            form.cache,
            [CacheForm::State, CacheForm::Explicit],
        );
        let lookups = open(pinned.lookup, form.lookup, [Lookup::Inside, Lookup::Host]);
        let pairs = caches.iter().flat_map(|cache| {
            let lookups = lookups.iter();
            lookups.map(move |lookup| (*cache, *lookup))
        });
        let with = |(cache, lookup)| Form {
            cache,
            lookup,
            ..form.clone()
        };
        pairs.map(with).collect()
    });
    if !pinned.split {
        search.cut(by_time, target);
    }
    if !pinned.head {
        search.place_head(by_time);
    }
    if !pinned.block {
        search.decide("block", Goal::Throughput, |form| {
            let blocks = BLOCKS
                .into_iter()
                .filter(|block| *block <= least(form, context));
            let with = |block| Form {
                block: Some(block),
                ..form.clone()
            };
            blocks.map(with).collect()
        });
    }
    if !pinned.contexts && goal == Goal::Latency {
        search.add_contexts(context);
    }
    Ok(Choice {
        chosen: search.best,
        steps: search.steps,
    })
}

/// What a field may be.
fn open<T: Copy>(is_pinned: bool, now: T, all: [T; 2]) -> Vec<T> {
    match is_pinned {
        true => vec![now],
        false => all.to_vec(),
    }
}

/// The form to start from. Only the host can keep a part of the tokens, and without Core ML there
/// is one way for most.
fn with_decided(mut form: Form, mut pinned: Pinned, context: usize) -> (Form, Pinned) {
    if form.attention.streaming.is_some() && !pinned.cache {
        form.cache = CacheForm::Explicit;
        pinned.cache = true;
    }
    let mut usual = Form::DEFAULT_BLOCK.min(least(&form, context));
    if form.direct.is_some() {
        usual = Form::DIRECT_COLUMNS;
        pinned = Pinned {
            cache: true,
            lookup: true,
            block: true,
            head: true,
            ..pinned
        };
    }
    form.block.get_or_insert(usual);
    (form, pinned)
}

/// The shortest context that has functions.
fn least(form: &Form, context: usize) -> usize {
    form.contexts.iter().copied().fold(context, usize::min)
}

/// The price of the first form that the model can have: some cannot have one state for all caches,
/// and some take few tokens of a prompt a call.
fn first<E>(
    start: Form,
    pinned: Pinned,
    price: &mut dyn FnMut(Form) -> Result<Priced, E>,
) -> Result<Priced, E> {
    let error = match price(start.clone()) {
        Ok(priced) => return Ok(priced),
        Err(error) => error,
    };
    let mut explicit = start.clone();
    if !pinned.cache {
        explicit.cache = CacheForm::Explicit;
    }
    let small = |form: Form| Form {
        block: match pinned.block {
            true => form.block,
            false => form.block.min(Some(BLOCKS[0])),
        },
        ..form
    };
    for form in [explicit.clone(), small(start), small(explicit)] {
        if let Ok(priced) = price(form) {
            return Ok(priced);
        }
    }
    Err(error)
}

/// The best form so far.
struct Search<'a, E> {
    best: Priced,
    steps: Vec<Step>,
    price: &'a mut dyn FnMut(Form) -> Result<Priced, E>,
}

impl<E> Search<'_, E> {
    /// Tries the forms that differ from the best so far, and takes the cheapest that can be loaded.
    fn decide(&mut self, what: &'static str, goal: Goal, forms: impl Fn(&Form) -> Vec<Form>) {
        let mut tried = vec![self.best.clone()];
        for form in forms(&self.best.form) {
            // A form that this model cannot have is no choice.
            if form != self.best.form
                && let Ok(priced) = (self.price)(form)
            {
                tried.push(priced);
            }
        }
        if tried.len() > 1 {
            tried.sort_by(|a, b| {
                let costs = a.cost(goal).total_cmp(&b.cost(goal));
                a.load_risk.cmp(&b.load_risk).then(costs)
            });
            self.best = tried[0].clone();
            self.steps.push(Step { what, tried });
        }
    }

    /// Leaves the logits to the caller if that is fast enough, since their price there is less
    /// certain. A program that gives the greatest logit only is priced beside it, and is for the
    /// user to choose: nothing else can be sampled from it.
    fn place_head(&mut self, goal: Goal) {
        let mut tried = vec![self.best.clone()];
        for head in [Head::Host(()), Head::Greatest(1)] {
            let form = Form {
                head,
                ..self.best.form.clone()
            };
            tried.extend((self.price)(form));
        }
        if tried.len() == 1 {
            return;
        }
        let by_cost = |a: &Priced, b: &Priced| a.cost(goal).total_cmp(&b.cost(goal));
        let on_host = tried.iter().position(|t| t.form.head == Head::Host(()));
        let wins = on_host.filter(|at| {
            let (host, engine) = (&tried[*at], &tried[0]);
            let gain = 1.0 - host.cost(goal) / engine.cost(goal);
            let loads = host.load_risk <= engine.load_risk;
            loads && (gain >= LEAST_GAIN || host.load_risk < engine.load_risk)
        });
        self.best = tried.remove(wins.unwrap_or(0));
        tried.sort_by(by_cost);
        tried.insert(0, self.best.clone());
        let what = "head";
        self.steps.push(Step { what, tried });
    }

    /// Cuts the model until each program can be loaded, or no cut helps.
    fn cut(&mut self, goal: Goal, target: &Target) {
        let most = target.release.program_bytes(target.is_mobile()).low * SLACK;
        let all = self.best.weight_bytes;
        for n in 1..=MOST_PROGRAMS {
            if self.best.load_risk == LoadRisk::None {
                break;
            }
            if n == 1 && most >= all {
                continue;
            }
            // Parts of equal size are a little larger than the whole over their number.
            let limit = most.min(all / n as f64 * 1.25) as usize;
            self.decide("programs", goal, |form| {
                vec![Form {
                    split: Split::Within(limit),
                    ..form.clone()
                }]
            });
        }
    }

    /// Adds shorter contexts, each if it makes the mean token fast enough.
    fn add_contexts(&mut self, context: usize) {
        let mut shorter = LEAST_CONTEXT;
        while 2 * shorter <= context {
            let mut form = self.best.form.clone();
            form.contexts.push(shorter);
            let fits = form.block.is_none_or(|block| block <= shorter);
            // A call of many tokens does not fit a short context.
            let Ok(with) = (self.price)(form) else {
                shorter *= 2;
                continue;
            };
            let gain = 1.0 - with.mean_decode_ms() / self.best.mean_decode_ms();
            let mut tried = vec![self.best.clone(), with];
            if gain >= LEAST_GAIN && fits {
                tried.swap(0, 1);
                self.best = tried[0].clone();
            }
            let what = "contexts";
            self.steps.push(Step { what, tried });
            shorter *= 2;
        }
    }
}

impl Priced {
    /// The form in words.
    pub fn describe(&self) -> String {
        let mut text = self.form.to_string();
        if self.programs > 1 {
            let _ = write!(text, ", {} programs", self.programs);
        }
        text
    }
}
