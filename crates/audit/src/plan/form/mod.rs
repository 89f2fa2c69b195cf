//! Chooses the form of a decoder for the Neural Engine: where its cache is, who looks up tables,
//! which context lengths have functions of their own, how many programs it is cut into, and how
//! many tokens of a prompt a call takes.
//!
//! The caller builds the program of a [`Form`]; here it is priced. One decision is made after the
//! other, in the order in which they matter, and what was decided stays.

mod price;

use thane_calls::{CacheForm, Form, Head, Lookup, Split};

pub use price::{Priced, price};

use crate::latency::LoadRisk;
use crate::report::Subject;
use crate::target::Target;

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
    /// The time of a prompt, which gives the first token.
    Throughput,
    /// The memory of what is loaded.
    Memory,
}

/// A decision, with the forms that it was made among.
#[derive(Clone, Debug)]
pub struct Step {
    /// What was decided.
    pub what: &'static str,
    /// The goal that the best form was chosen for.
    pub goal: Goal,
    /// What was tried, the best first.
    pub tried: Vec<Priced>,
}

/// What was chosen for a target, and why.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The target.
    pub target: Target,
    /// What it was chosen for.
    pub goal: Goal,
    /// The form that is best there.
    pub best: Priced,
    /// The decisions on the way to it.
    pub steps: Vec<Step>,
    /// The form that was chosen. It is another one where there are several targets and no form is
    /// the best on each.
    pub chosen: Priced,
    /// What the chosen form costs over what the best costs.
    pub ratio: f64,
}

/// The form that came second, and why it did though it costs less.
pub struct RunnerUp<'a> {
    /// Its price.
    pub priced: &'a Priced,
    /// The goal by which the form lost.
    pub goal: Goal,
    /// Why it lost; `None` where it costs more.
    pub because: Option<&'static str>,
}

impl Choice {
    /// Why the chosen form is cut into several programs: what speaks against one.
    pub fn cut_because(&self) -> Option<&str> {
        let is_cut = self.chosen.programs > 1 && self.best.form == self.chosen.form;
        let step = self.steps.iter().find(|step| step.what == PROGRAMS)?;
        let whole = step.tried.iter().find(|tried| tried.programs == 1)?;
        whole.doubts.first().filter(|_| is_cut).map(String::as_str)
    }

    /// The form that lost the last decision that the best won.
    pub fn runner_up(&self) -> Option<RunnerUp<'_>> {
        let won = |step: &&Step| step.tried[0].form == self.best.form;
        let step = self.steps.iter().rev().find(won)?;
        let priced = step.tried.iter().find(|t| t.form != self.best.form)?;
        let costs_less = priced.cost(self.goal) < self.best.cost(self.goal);
        let because = match () {
            () if priced.rank() > self.best.rank() => Some("it may not load, or not run right"),
            () if !costs_less => None,
            () if step.what == "block" && self.goal == Goal::Latency => {
                Some("this was decided by the time of a prompt")
            }
            () if matches!(priced.form.head, Head::Greatest(_)) => {
                Some("it gives the most likely tokens only: --head argmax asks for it")
            }
            () if self.goal == Goal::Memory => {
                Some("it takes about as much memory, and the chosen form is faster")
            }
            () => Some("a gain of less than 5 % is not worth what it takes beside that"),
        };
        Some(RunnerUp {
            priced,
            goal: step.goal,
            because,
        })
    }
}

/// A shorter context must make what is chosen for this much less, since each of its functions is
/// another copy of the weights where Core ML loads it.
const LEAST_GAIN: f64 = 0.05;
/// Forms whose memory is this near to the least take equally much: the faster one is chosen.
const EQUAL_MEMORY: f64 = 0.01;
/// Contexts below this are full after a few answers.
const LEAST_CONTEXT: usize = 512;
/// Tokens of a prompt that a call may take. With 128, a token takes 21 to 45 % longer than with 64
/// (ANEMLL Forge, M6), which the latency model does not know.
const BLOCKS: [usize; 3] = [16, 32, Form::DEFAULT_BLOCK];
/// The decision on the number of programs.
const PROGRAMS: &str = "programs";
/// Most programs that a model is cut into for what is not its size.
const MOST_PROGRAMS: usize = 6;
/// How much of the bytes that a program may have is used: norms and constants are not counted.
const SLACK: f64 = 0.97;

/// Chooses what `pinned` leaves open of a form, for a context of `context` tokens. `build` makes
/// the programs of a form.
///
/// With several targets, the form is one for all: the one whose cost over that of a target's own
/// best is smallest where it is greatest. It is the best of one target, unless another form that
/// was tried gains [`LEAST_GAIN`] by that.
///
/// # Errors
///
/// Those of `build`.
pub fn choose<E>(
    context: usize,
    asked: (Form, Pinned),
    (targets, goal): (&[Target], Goal),
    build: &mut dyn FnMut(&Form) -> Result<Subject, E>,
) -> Result<Vec<Choice>, E> {
    let mut tried = Tried {
        targets,
        forms: Vec::new(),
        build,
    };
    let mut choices = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        let mut price = |form| tried.price(form, at);
        choices.push(choose_one(
            context,
            asked.clone(),
            (target, goal),
            &mut price,
        )?);
    }
    if choices.len() > 1 {
        share(&mut choices, &tried.forms, goal);
    }
    Ok(choices)
}

/// The forms that were tried, with their prices on each target.
struct Tried<'a, E> {
    targets: &'a [Target],
    forms: Vec<Vec<Priced>>,
    build: &'a mut dyn FnMut(&Form) -> Result<Subject, E>,
}

impl<E> Tried<'_, E> {
    /// The price of a form on the target at this place.
    fn price(&mut self, form: Form, at: usize) -> Result<Priced, E> {
        let mut known = self.forms.iter();
        if let Some(known) = known.find(|known| known[at].form == form) {
            return Ok(known[at].clone());
        }
        let subject = (self.build)(&form)?;
        let price = |target| price(form.clone(), &subject, target);
        let prices: Vec<Priced> = self.targets.iter().map(price).collect();
        let found = prices[at].clone();
        self.forms.push(prices);
        Ok(found)
    }
}

/// Gives all targets one form: the best of one of them, unless another form is much better.
fn share(choices: &mut [Choice], forms: &[Vec<Priced>], goal: Goal) {
    let ratio = |choice: &Choice, price: &Priced| price.cost(goal) / choice.best.cost(goal);
    let worst = |prices: &Vec<Priced>| {
        let ratios = choices.iter().zip(prices);
        let ratios = ratios.map(|(choice, price)| ratio(choice, price));
        ratios.fold(0.0, f64::max)
    };
    let rank = |prices: &Vec<Priced>| prices.iter().map(Priced::rank).max();
    let least = |a: &&Vec<Priced>, b: &&Vec<Priced>| {
        rank(a).cmp(&rank(b)).then(worst(a).total_cmp(&worst(b)))
    };
    let is_a_best = |prices: &&Vec<Priced>| {
        let mut bests = choices.iter().map(|choice| &choice.best.form);
        bests.any(|form| *form == prices[0].form)
    };
    let of_bests = forms.iter().filter(is_a_best).min_by(least);
    let of_all = forms.iter().min_by(least);
    let (Some(one), Some(other)) = (of_bests, of_all) else {
        return;
    };
    let wins = rank(other) < rank(one) || worst(other) < worst(one) * (1.0 - LEAST_GAIN);
    let prices = if wins { other } else { one }.clone();
    for (choice, price) in choices.iter_mut().zip(prices) {
        choice.ratio = ratio(choice, &price);
        choice.chosen = price;
    }
}

/// Chooses the form that is best on one target.
fn choose_one<E>(
    context: usize,
    (form, pinned): (Form, Pinned),
    (target, goal): (&Target, Goal),
    price: &mut dyn FnMut(Form) -> Result<Priced, E>,
) -> Result<Choice, E> {
    let (start, pinned) = with_decided(form, pinned, context);
    let mut search = Search {
        best: first(start, pinned, price)?,
        goal,
        steps: Vec::new(),
        price,
    };
    search.decide("cache and tables", goal, |form| {
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
        search.cut(target);
    }
    if !pinned.head {
        search.place_head();
    }
    if !pinned.block {
        // An answer takes a token a call, whatever the block.
        let goal = match goal {
            Goal::Latency | Goal::Throughput => Goal::Throughput,
            Goal::Memory => goal,
        };
        search.decide("block", goal, |form| {
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
    if !pinned.contexts {
        search.add_contexts(context);
    }
    Ok(Choice {
        target: *target,
        goal,
        chosen: search.best.clone(),
        best: search.best,
        steps: search.steps,
        ratio: 1.0,
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
    goal: Goal,
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
            sort(&mut tried, goal);
            self.best = tried[0].clone();
            self.steps.push(Step { what, goal, tried });
        }
    }

    /// Leaves the logits to the caller if that is fast enough, since their price there is less
    /// certain. A program that gives the greatest logit only is priced beside it, and is for the
    /// user to choose: nothing else can be sampled from it.
    fn place_head(&mut self) {
        let goal = self.goal;
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
        // What is loaded is counted, and no less certain.
        let least = match goal {
            Goal::Latency | Goal::Throughput => LEAST_GAIN,
            Goal::Memory => EQUAL_MEMORY,
        };
        let by_cost = |a: &Priced, b: &Priced| a.cost(goal).total_cmp(&b.cost(goal));
        let on_host = tried.iter().position(|t| t.form.head == Head::Host(()));
        let wins = on_host.filter(|at| {
            let (host, engine) = (&tried[*at], &tried[0]);
            let gain = 1.0 - host.cost(goal) / engine.cost(goal);
            let loads = host.rank() <= engine.rank();
            loads && (gain >= least || host.rank() < engine.rank())
        });
        self.best = tried.remove(wins.unwrap_or(0));
        tried.sort_by(by_cost);
        tried.insert(0, self.best.clone());
        let what = "head";
        self.steps.push(Step { what, goal, tried });
    }

    /// Cuts the model until each program can be loaded, or no cut helps.
    fn cut(&mut self, target: &Target) {
        let most = target.release.program_bytes(target.is_mobile()).low * SLACK;
        // The limit is on bytes as loaded, and cuts are counted in bytes of fp16 weights.
        let (loaded, all) = (self.best.weight_bytes, self.best.fp16_bytes);
        let most = most * (all / loaded.max(1.0)).max(1.0);
        for n in 1..=MOST_PROGRAMS {
            if self.best.load_risk == LoadRisk::None {
                break;
            }
            if n == 1 && most >= all {
                continue;
            }
            // Parts of equal size are a little larger than the whole over their number.
            let limit = most.min(all / n as f64 * 1.25) as usize;
            self.decide(PROGRAMS, self.goal, |form| {
                vec![Form {
                    split: Split::Within(limit),
                    ..form.clone()
                }]
            });
        }
    }

    /// Adds shorter contexts, each if it makes what is chosen for small enough.
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
            let gain = 1.0 - with.cost(self.goal) / self.best.cost(self.goal);
            let mut tried = vec![self.best.clone(), with];
            if gain >= LEAST_GAIN && fits {
                tried.swap(0, 1);
                self.best = tried[0].clone();
            }
            let (what, goal) = ("contexts", self.goal);
            self.steps.push(Step { what, goal, tried });
            shorter *= 2;
        }
    }
}

/// Sorts forms by what a goal makes smaller, those that load first; of those that take about the
/// least memory, the fastest is first.
fn sort(tried: &mut [Priced], goal: Goal) {
    tried.sort_by(|a, b| {
        let costs = a.cost(goal).total_cmp(&b.cost(goal));
        a.rank().cmp(&b.rank()).then(costs)
    });
    if goal != Goal::Memory {
        return;
    }
    let (rank, most) = (tried[0].rank(), tried[0].cost(goal) * (1.0 + EQUAL_MEMORY));
    let n = tried.partition_point(|t| t.rank() == rank && t.cost(goal) <= most);
    tried[..n].sort_by(|a, b| {
        let by = |goal| a.cost(goal).total_cmp(&b.cost(goal));
        by(Goal::Latency).then(by(Goal::Throughput))
    });
}
