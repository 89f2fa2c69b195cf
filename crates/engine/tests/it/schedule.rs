//! Many requests over one program: whatever arrives, is cancelled and loses its sequence when, each
//! answer equals the answer of the request alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use thane_cpu::{Cpu, Numerics, Profile};
use thane_engine::choose::{Chooser, Constraint, Grammar, GrammarError};
use thane_engine::generate::{FinishReason, Session};
use thane_engine::pages::{PAGE_TOKENS, Pages};
use thane_engine::sample::{SampleOptions, TokenLogprob};
use thane_engine::schedule::{Event, Request, RequestId, Scheduler, StepLimits, Usage};
use thane_engine::sessions::Sessions;
use thane_engine::text::{StreamOptions, TextStream, Tokenizer, TokenizerConfig};
use thane_mil::backend::{Backend, Executable};
use thane_mil::budget::Budget;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Info, Options, build};

pub const CONTEXT: usize = 160;
/// Bytes of a page of `tiny-chat`: keys and values of 2 layers, 2 heads of 16, in fp32.
pub const PAGE_BYTES: usize = PAGE_TOKENS * 2 * 2 * 2 * 16 * 4;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

/// Logits of `decode_top`.
const N_TOP: usize = 5;

pub struct Model {
    executable: Arc<dyn Executable>,
    info: Info,
    tokenizer: Tokenizer,
    profile: Arc<Profile>,
}

/// The answer of a request that has the program for itself.
struct Alone {
    text: String,
    n_tokens: usize,
    logprobs: Vec<TokenLogprob>,
    reason: FinishReason,
}

/// A checkpoint on the CPU, with the tokenizer of `tiny-chat`: what tokens spell does not matter.
pub fn model(name: &str) -> Model {
    model_within(name, &Budget::unlimited())
}

/// The same, with the memory of a budget.
pub fn model_within(name: &str, budget: &Budget) -> Model {
    let checkpoint = Checkpoint::open(&models().join(name)).unwrap();
    let options = Options {
        context: Some(CONTEXT),
        top: Some(N_TOP),
        ..Options::default()
    };
    let profile = Arc::new(Profile::default());
    let built = build(&checkpoint, &options).unwrap();
    let json = std::fs::read(models().join("tiny-chat/tokenizer.json")).unwrap();
    let config = TokenizerConfig {
        n_vocab: 282,
        ..TokenizerConfig::default()
    };
    Model {
        executable: Cpu::new(Numerics::F32, 1)
            .with_budget(budget)
            .with_profile(Some(Arc::clone(&profile)))
            .load(&built.program)
            .unwrap(),
        info: built.info,
        tokenizer: Tokenizer::from_json(&json, config).unwrap(),
        profile,
    }
}

/// A few prompt tokens a step, or the usual number for 1.
fn limits(prompt_tokens: usize) -> StepLimits {
    match prompt_tokens {
        1 => StepLimits::default(),
        n => StepLimits {
            per_prompt: n,
            answers_per_token: usize::MAX,
            n_steps: usize::MAX,
            chunk: n,
            turn_tokens: n,
        },
    }
}

impl Model {
    pub fn scheduler<'a>(&'a self, sessions: &'a mut Sessions, n: usize) -> Scheduler<'a> {
        Scheduler::new(sessions, &self.tokenizer, limits(n))
    }

    pub fn sessions(&self, n_slots: usize) -> Sessions {
        let batch = self.executable.instantiate_batch(n_slots).unwrap();
        let sessions = Sessions::new(batch, CONTEXT, self.info.vocab_size);
        let sessions = sessions.with_recurrence(self.info.recurrent);
        sessions.with_top(Some(N_TOP))
    }

    /// Whether pages can hold all that a token leaves behind: not where there are convolutions.
    fn has_pages(&self) -> bool {
        let instance = self.executable.instantiate().unwrap();
        (0..self.info.n_layers).all(|i| instance.state(&format!("conv_cache_{i}")).is_err())
    }

    /// Pages of at most `limit` bytes in all.
    pub fn pages(&self, limit: usize) -> Pages {
        let instance = self.executable.instantiate().unwrap();
        let layers = 0..self.info.n_layers;
        let names = layers.flat_map(|i| [format!("k_cache_{i}"), format!("v_cache_{i}")]);
        let states: Vec<String> = names.filter(|n| instance.state(n).is_ok()).collect();
        Pages::new(instance.as_ref(), &states, limit).unwrap()
    }

    /// The first tokens of the greedy answer to a prompt.
    pub fn tokens_of(&self, prompt: &[u32], n: usize) -> Vec<u32> {
        let mut sessions = self.sessions(1);
        let mut scheduler = self.scheduler(&mut sessions, 64);
        scheduler.submit(greedy(prompt.to_vec(), n)).unwrap();
        let mut events = Vec::new();
        while !scheduler.is_idle() {
            events.extend(scheduler.step());
        }
        let done = events.into_iter().find_map(|(_, event)| match event {
            Event::Done(_, _, tokens) => Some(tokens),
            _ => None,
        });
        done.unwrap()
    }

    /// The answer of a request that has the program for itself, token by token, from all logits.
    fn alone(&self, request: &Request) -> Alone {
        let instance = self.executable.instantiate().unwrap();
        let mut session = Session::new(instance, CONTEXT, self.info.vocab_size)
            .with_recurrence(self.info.recurrent);
        let options = StreamOptions {
            stop: request.stop.clone(),
            ..StreamOptions::default()
        };
        let mut stream = TextStream::new(&self.tokenizer, options);
        let mut chooser = Chooser::new(request.sampling.clone()).unwrap();
        chooser.set_grammar(request.grammar.clone());
        chooser.set_logprobs(request.logprobs);
        chooser.begin().unwrap();
        let mut history = request.prompt.clone();
        let (mut text, mut logprobs) = (String::new(), Vec::new());
        let is_end = |token| self.tokenizer.is_end(token) || request.stop_tokens.contains(&token);
        let mut reason = (request.max_tokens == 0).then_some(FinishReason::Length);
        while reason.is_none() {
            let mut logits = match history[session.tokens().len()..] {
                [token] => session.decode(token).unwrap().into_owned(),
                _ => session.feed(&history, &|| false).unwrap().unwrap(),
            };
            let chosen = chooser.choose(&mut logits, &history, &[]).unwrap();
            let mut logprob = chosen.logprob.clone();
            for (token, is_complete) in chosen.tokens() {
                reason = is_end(token).then_some(FinishReason::Stop);
                if reason.is_some() {
                    break;
                }
                logprobs.extend(logprob.take());
                history.push(token);
                text.push_str(&stream.push(token).unwrap_or_default());
                reason = if stream.stopped() || is_complete {
                    Some(FinishReason::Stop)
                } else if history.len() == request.prompt.len() + request.max_tokens {
                    Some(FinishReason::Length)
                } else {
                    (history.len() > CONTEXT).then_some(FinishReason::Context)
                };
                if reason.is_some() {
                    break;
                }
            }
        }
        text.push_str(&stream.finish());
        Alone {
            text,
            n_tokens: history.len() - request.prompt.len(),
            logprobs,
            reason: reason.unwrap(),
        }
    }
}

/// Allows each third token, another third at each place; forces two tokens after each fourth, and
/// ends after some.
#[derive(Clone, Debug)]
struct Thirds {
    n_total: usize,
    n: usize,
    forces: bool,
    /// How often a mask, or what must follow, is not there in time.
    n_late: usize,
    /// How often it was waited for.
    n_waits: usize,
}

fn thirds(n_total: usize, n_late: usize) -> Arc<dyn Grammar> {
    Arc::new(Thirds {
        n_total,
        n: 0,
        forces: false,
        n_late,
        n_waits: 0,
    })
}

impl Grammar for Thirds {
    fn start(&self) -> Result<Box<dyn Constraint>, GrammarError> {
        Ok(Box::new(self.clone()))
    }
}

impl Constraint for Thirds {
    fn wait(&mut self, _: Duration) -> bool {
        self.n_waits += 1;
        self.n_waits > self.n_late
    }

    fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        self.n_waits = 0;
        for (token, logit) in logits.iter_mut().enumerate() {
            if token % 3 != self.n % 3 {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn advance(&mut self, token: u32, forces: bool) -> Result<(), GrammarError> {
        assert_eq!(token as usize % 3, self.n % 3);
        self.n += 1;
        self.forces = forces && self.n < self.n_total;
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, GrammarError> {
        self.n_waits = 0;
        if !(self.forces && self.n.is_multiple_of(4)) {
            return Ok(Vec::new());
        }
        self.n += 2;
        Ok(vec![71, 72])
    }

    fn is_complete(&self) -> bool {
        self.n >= self.n_total
    }
}

/// xorshift64*: the same programs in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn request(&mut self, n_vocab: usize) -> Request {
        // Few different beginnings, so that prompts share them.
        let shared = 3 + self.below(3);
        let n_shared = self.below(100);
        let mut prompt: Vec<u32> = (0..n_shared).map(|k| ((k * shared) % 97) as u32).collect();
        let n_own = 1 + self.below(50);
        prompt.extend((0..n_own).map(|_| self.below(n_vocab) as u32));
        let stop = match self.below(3) {
            0 => vec!["e".to_owned(), "th".to_owned()],
            _ => Vec::new(),
        };
        let n_total = 1 + self.below(40);
        let grammar = thirds(n_total, n_total % 4);
        // Greedy, from a few, or from all; some penalties look at more tokens.
        let (temperature, top_k) = [(0.0, 0), (0.5, 3), (0.5, 40), (0.5, 0)][self.below(4)];
        let penalized = (self.below(4) == 0).then(|| self.below(4));
        Request {
            prompt,
            grammar: (self.below(3) == 0).then_some(grammar),
            logprobs: (self.below(4) == 0).then_some(2),
            scores_prompt: self.below(8) == 0,
            sampling: SampleOptions {
                temperature,
                top_k,
                repetition_penalty: if penalized.is_some() { 1.1 } else { 1.0 },
                repeat_last_n: penalized,
                seed: self.below(1000) as u64,
                ..SampleOptions::default()
            },
            max_tokens: self.below(60),
            stop,
            stop_tokens: vec![self.below(n_vocab) as u32],
            ..Request::default()
        }
    }
}

/// What a test keeps of the requests that it submitted.
#[derive(Default)]
pub struct Log {
    submitted: BTreeMap<RequestId, Request>,
    pub texts: BTreeMap<RequestId, String>,
    logprobs: BTreeMap<RequestId, Vec<TokenLogprob>>,
    scored: BTreeMap<RequestId, Vec<TokenLogprob>>,
    pub done: BTreeMap<RequestId, (FinishReason, Usage)>,
}

impl Log {
    pub fn note(&mut self, events: Vec<(RequestId, Event)>) {
        for (id, event) in events {
            assert!(
                !self.done.contains_key(&id),
                "{id:?} ended before {event:?}"
            );
            match event {
                Event::Text(text) => self.texts.entry(id).or_default().push_str(&text),
                Event::Logprob(logprob) => self.logprobs.entry(id).or_default().push(logprob),
                Event::Scored(logprob) => self.scored.entry(id).or_default().push(logprob),
                Event::Done(reason, usage, tokens) => {
                    assert_eq!(tokens.len(), usage.answer_tokens, "{id:?}");
                    assert!(self.done.insert(id, (reason, usage)).is_none())
                }
                Event::Failed(error) => panic!("{id:?}: {error}"),
            }
        }
    }

    /// Compares each answer with the answer of its request alone.
    fn check(&self, model: &Model, what: &str) {
        for (id, (reason, usage)) in &self.done {
            let request = &self.submitted[id];
            let text = self.texts.get(id).cloned().unwrap_or_default();
            let logprobs = self.logprobs.get(id).cloned().unwrap_or_default();
            let scored = self.scored.get(id).into_iter().flatten();
            let scored: Vec<u32> = scored.map(|scored| scored.token).collect();
            let wanted: &[u32] = if request.scores_prompt {
                &request.prompt
            } else {
                &[]
            };
            assert_eq!(scored, wanted, "{what}, {id:?}");
            let alone = model.alone(request);
            let found = (text, *reason, usage.answer_tokens);
            let due = (alone.text, alone.reason, alone.n_tokens);
            assert_eq!(found, due, "{what}, {id:?}: {request:?}");
            // Products add in another order beside other requests.
            assert_eq!(logprobs.len(), alone.logprobs.len());
            for (found, due) in logprobs.iter().zip(&alone.logprobs) {
                let (a, b) = (found.logprob.unwrap(), due.logprob.unwrap());
                assert_eq!((found.token, found.top.len()), (due.token, 2));
                assert!((a - b).abs() < 1e-3, "{what}, {id:?}: {a} {b}");
            }
            assert_eq!(usage.prompt_tokens, request.prompt.len());
            assert!(usage.cached_tokens < usage.prompt_tokens);
        }
    }
}

/// Sessions that keep prompts in one of five ways, and most bytes of that; whole caches count
/// against `memory`.
fn keeping(model: &Model, sessions: Sessions, way: u64, memory: &Budget) -> (Sessions, usize) {
    let (pages, whole) = match way {
        0 => return (sessions, 0),
        // Room for three pages, for all, for whole caches only, and for some of both.
        1 => (3 * PAGE_BYTES, 0),
        2 => (1 << 30, 0),
        3 => (0, 40 * PAGE_BYTES),
        _ => (20 * PAGE_BYTES, 10 * PAGE_BYTES),
    };
    let mut sessions = match model.has_pages() {
        true => sessions.with_pages(model.pages(pages)),
        false => sessions,
    };
    if whole > 0 {
        sessions.keep_whole(whole, memory.clone());
    }
    (sessions, pages.max(whole))
}

/// A grammar that takes long holds up its own answer only, which is the same as ever.
#[test]
fn nobody_waits_for_the_grammar_of_another() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(2);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let slow = Request {
        grammar: Some(thirds(20, 40)),
        ..greedy(vec![5, 6, 7], 20)
    };
    let mut log = Log::default();
    for request in [slow, greedy(vec![8, 9], 30)] {
        let id = scheduler.submit(request.clone()).unwrap();
        log.submitted.insert(id, request);
    }
    while log.done.is_empty() {
        log.note(scheduler.step());
    }
    let slow = *log.submitted.keys().next().unwrap();
    assert!(!log.done.contains_key(&slow));
    while !scheduler.is_idle() {
        log.note(scheduler.step());
    }
    assert_eq!(log.done.len(), 2);
    log.check(&model, "a slow grammar");
}

#[test]
fn each_answer_of_a_random_program_is_the_one_it_gets_alone() {
    let mut reasons = Vec::new();
    let (mut n_cached, mut n_preempted) = (0, 0);
    // Attention only, with convolutions, which pages do not hold, and with recurrent states, which
    // cannot go back.
    let models = [
        ("tiny-chat", 1..12),
        ("tiny/lfm2", 16..22),
        ("tiny/qwen3_5", 12..15),
    ];
    for (name, seeds) in models {
        let model = model(name);
        let mut n_whole = 0;
        for seed in seeds {
            let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
            let (n_slots, budget) = (1 + random.below(5), 1 + random.below(70));
            let what = format!("{name}, program {seed}, {n_slots} slots, budget {budget}");
            let sessions = model.sessions(n_slots);
            let memory = Budget::new(1 << 30);
            let (mut sessions, limit) = keeping(&model, sessions, seed % 5, &memory);
            let mut scheduler = model.scheduler(&mut sessions, budget);
            let mut log = Log::default();
            let mut cancelled = 0;
            let mut n_left = 24;
            while n_left > 0 || !scheduler.is_idle() {
                while n_left > 0 && random.below(4) == 0 {
                    n_left -= 1;
                    let request = random.request(model.info.vocab_size);
                    let id = scheduler.submit(request.clone()).unwrap();
                    log.submitted.insert(id, request);
                }
                if random.below(20) == 0 && !log.submitted.is_empty() {
                    let at = random.below(log.submitted.len());
                    let id = *log.submitted.keys().nth(at).unwrap();
                    let was_done = log.done.contains_key(&id);
                    let found = scheduler.cancel(id);
                    assert!(!(found && was_done), "{what}: cancelled after its end");
                    cancelled += usize::from(found);
                    assert!(!scheduler.cancel(id), "{what}: cancelled twice");
                }
                if random.below(6) == 0 && !log.submitted.is_empty() {
                    let at = random.below(log.submitted.len());
                    let id = *log.submitted.keys().nth(at).unwrap();
                    n_preempted += usize::from(scheduler.preempt(id));
                }
                log.note(scheduler.step());
                let n_kept = scheduler.kept_bytes();
                assert!(n_kept <= limit, "{what}: {n_kept} bytes are kept");
            }
            n_whole += memory.used_bytes();
            assert_eq!(scheduler.n_running() + scheduler.n_waiting(), 0, "{what}");
            assert_eq!(log.done.len() + cancelled, 24, "{what}");
            log.check(&model, &what);
            reasons.extend(log.done.values().map(|(reason, _)| *reason));
            n_cached += log
                .done
                .values()
                .map(|(_, u)| u.cached_tokens)
                .sum::<usize>();
            drop(scheduler);
            drop(sessions);
            assert_eq!(memory.used_bytes(), 0, "{what}");
        }
        assert!(n_whole > 0, "{name}: whole caches were kept");
        let rows = model.profile.rows();
        for function in ["prefill", "decode", "decode_top"] {
            let ran = rows.iter().any(|row| row.function == function);
            assert!(ran, "{name}: {function} ran");
        }
    }
    for reason in [FinishReason::Stop, FinishReason::Length] {
        assert!(reasons.contains(&reason), "{reason:?} occurred");
    }
    assert!(n_cached > 100, "prompts shared {n_cached} tokens");
    assert!(n_preempted > 20, "{n_preempted} lost their sequence");
}

/// Requests come, are cancelled and lose their sequences over 10,000 steps of one scheduler. What
/// is kept stays within its limit at each step, all memory that counts is given back, and an answer
/// is what it was at first.
#[test]
fn ten_thousand_steps_keep_what_is_kept_within_its_limit() {
    for (name, way) in [("tiny-chat", 4), ("tiny/lfm2", 3)] {
        let model = model(name);
        let memory = Budget::new(1 << 30);
        let (mut sessions, limit) = keeping(&model, model.sessions(3), way, &memory);
        let mut scheduler = model.scheduler(&mut sessions, 1);
        let mut random = Random(way);
        let (mut n_steps, mut n_requests) = (0, 0);
        let first = answer(&mut scheduler, greedy(prompt(70), 9));
        let mut ids = Vec::new();
        while n_steps < 10_000 || !scheduler.is_idle() {
            if n_steps < 10_000 && random.below(4) == 0 && scheduler.n_waiting() < 8 {
                ids.push(
                    scheduler
                        .submit(random.request(model.info.vocab_size))
                        .unwrap(),
                );
                n_requests += 1;
            }
            if !ids.is_empty() && random.below(10) == 0 {
                let id = ids.swap_remove(random.below(ids.len()));
                match random.below(3) {
                    0 => scheduler.cancel(id),
                    _ => scheduler.preempt(id),
                };
            }
            scheduler.step();
            n_steps += 1;
            let n_kept = scheduler.kept_bytes();
            assert!(
                n_kept <= limit,
                "{name}: step {n_steps}: {n_kept} bytes are kept"
            );
            assert!(memory.used_bytes() <= limit, "{name}: step {n_steps}");
        }
        assert!(n_requests > 300, "{name}: {n_requests} requests");
        assert_eq!(scheduler.n_running() + scheduler.n_waiting(), 0, "{name}");
        assert_eq!(
            answer(&mut scheduler, greedy(prompt(70), 9)),
            first,
            "{name}"
        );
        drop(scheduler);
        drop(sessions);
        assert_eq!(memory.used_bytes(), 0, "{name}");
    }
}

/// The text of a request, which has the scheduler for itself.
fn answer(scheduler: &mut Scheduler<'_>, request: Request) -> String {
    scheduler.submit(request).unwrap();
    let mut text = String::new();
    while !scheduler.is_idle() {
        for (_, event) in scheduler.step() {
            if let Event::Text(piece) = event {
                text += &piece;
            }
        }
    }
    text
}

pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        sampling: SampleOptions::default(),
        max_tokens,
        ..Request::default()
    }
}

/// Tokens that all end nothing soon.
pub fn prompt(n: usize) -> Vec<u32> {
    (0..n).map(|k| ((k * k * 5 + 31) % 97) as u32).collect()
}

#[test]
fn a_long_prompt_blocks_no_running_answer() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(2);
    let mut scheduler = model.scheduler(&mut sessions, 16);
    let running = scheduler.submit(greedy(prompt(4), 40)).unwrap();
    scheduler.step();
    let long = scheduler.submit(greedy(prompt(150), 1)).unwrap();
    let mut n_steps = 0;
    let mut answer_tokens = 1;
    let mut log = Log::default();
    while !log.done.contains_key(&long) {
        assert!(
            !log.done.contains_key(&running),
            "the answer is long enough"
        );
        log.note(scheduler.step());
        n_steps += 1;
        answer_tokens += 1;
    }
    // 150 tokens by 16.
    assert_eq!(n_steps, 10);
    while !log.done.contains_key(&running) {
        log.note(scheduler.step());
        answer_tokens += 1;
    }
    // Each step of the long prompt gave the running answer a token.
    let (_, usage) = log.done[&running];
    assert!(
        usage.answer_tokens.abs_diff(answer_tokens) <= 1,
        "{usage:?}"
    );
}

#[test]
fn long_answers_take_turns() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1).with_pages(model.pages(1 << 30));
    let mut scheduler = model.scheduler(&mut sessions, 9);
    let mut log = Log::default();
    let mut submit = |scheduler: &mut Scheduler<'_>, request: Request| {
        let id = scheduler.submit(request.clone()).unwrap();
        log.submitted.insert(id, request);
        id
    };
    let long = [70, 40].map(|n| submit(&mut scheduler, greedy(prompt(n), 50)));
    let short = submit(&mut scheduler, greedy(prompt(20), 5));
    let mut ends = Vec::new();
    while !scheduler.is_idle() {
        log.note(scheduler.step());
        let done = log.done.keys().filter(|id| !ends.contains(*id));
        ends.extend(done.copied().collect::<Vec<_>>());
    }
    // A turn has 9 tokens.
    assert_eq!(ends, [short, long[0], long[1]]);
    log.check(&model, "turns");
    let usage = scheduler.totals();
    assert_eq!((usage.prompt_tokens, usage.answer_tokens), (130, 105));
}

#[test]
fn a_prompt_of_several_answers_counts_once() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(2);
    let mut scheduler = model.scheduler(&mut sessions, 9);
    for counts_prompt in [true, false, false] {
        let request = Request {
            counts_prompt,
            ..greedy(prompt(20), 3)
        };
        scheduler.submit(request).unwrap();
    }
    let mut usages = Vec::new();
    while !scheduler.is_idle() {
        for (_, event) in scheduler.step() {
            if let Event::Done(_, usage, _) = event {
                usages.push((usage.prompt_tokens, usage.answer_tokens));
            }
        }
    }
    assert_eq!(usages, [(20, 3); 3]);
    let totals = scheduler.totals();
    assert_eq!((totals.prompt_tokens, totals.answer_tokens), (20, 9));
}

/// Allows everything, and takes 12 ms of a clock each time it is waited for.
#[derive(Debug)]
struct Slow(Arc<AtomicU64>);

impl Grammar for Slow {
    fn start(&self) -> Result<Box<dyn Constraint>, GrammarError> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }
}

impl Constraint for Slow {
    fn wait(&mut self, _: Duration) -> bool {
        self.0.fetch_add(12, Ordering::Relaxed);
        true
    }

    fn mask(&mut self, _: &mut [f32]) -> Result<(), GrammarError> {
        Ok(())
    }

    fn advance(&mut self, _: u32, _: bool) -> Result<(), GrammarError> {
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, GrammarError> {
        Ok(Vec::new())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

/// Turns of slow grammars end after a second of all slots, long before they have many tokens.
#[test]
fn answers_with_slow_grammars_take_turns() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(2).with_pages(model.pages(1 << 30));
    let (start, now_ms) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let read = Arc::clone(&now_ms);
    let clock = move || start + Duration::from_millis(read.load(Ordering::Relaxed));
    let mut scheduler = model.scheduler(&mut sessions, 1).with_clock(clock);
    let mut log = Log::default();
    let slow = || Request {
        grammar: Some(Arc::new(Slow(Arc::clone(&now_ms)))),
        ..greedy(prompt(9), 100)
    };
    for request in [slow(), slow(), greedy(prompt(20), 5)] {
        let id = scheduler.submit(request.clone()).unwrap();
        log.submitted.insert(id, request);
    }
    let mut ended_at = BTreeMap::new();
    while !scheduler.is_idle() {
        log.note(scheduler.step());
        for id in log.done.keys() {
            ended_at
                .entry(*id)
                .or_insert(now_ms.load(Ordering::Relaxed));
        }
    }
    let ends: Vec<u64> = ended_at.into_values().collect();
    assert!(ends[2] < 1500, "{ends:?}");
    assert!(ends[0] > 4000 && ends[1] > 4000, "{ends:?}");
    for (_, usage) in log.done.values().take(2) {
        assert_eq!(usage.answer_tokens, 100);
    }
}

#[test]
fn a_turn_finds_the_slot_of_its_conversation() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(3);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let mut run = |prompt: Vec<u32>| {
        let id = scheduler.submit(greedy(prompt, 3)).unwrap();
        let mut log = Log::default();
        while !scheduler.is_idle() {
            log.note(scheduler.step());
        }
        log.done[&id].1
    };
    let other: Vec<u32> = prompt(30).iter().map(|token| token + 100).collect();
    assert_eq!(run(prompt(40)).cached_tokens, 0);
    assert_eq!(run(other).cached_tokens, 0);
    let usage = run([prompt(40), vec![200, 201]].concat());
    assert_eq!((usage.prompt_tokens, usage.cached_tokens), (42, 40));
    // The same again: only its last token is computed.
    assert_eq!(run(prompt(40)).cached_tokens, 39);
}

#[test]
fn a_cancelled_request_frees_its_slot_for_the_next_step() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let first = scheduler.submit(greedy(prompt(5), 100)).unwrap();
    let second = scheduler.submit(greedy(prompt(9), 2)).unwrap();
    scheduler.step();
    assert_eq!((scheduler.n_running(), scheduler.n_waiting()), (1, 1));
    assert!(scheduler.cancel(first));
    let mut log = Log::default();
    log.note(scheduler.step());
    log.note(scheduler.step());
    assert_eq!(log.done.keys().collect::<Vec<_>>(), [&second]);
    assert!(scheduler.is_idle());
    assert!(scheduler.step().is_empty());
}

#[test]
fn an_interrupted_answer_has_what_was_held_back_of_its_text() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let after_4 = model.alone(&greedy(prompt(5), 4)).text;
    // The text so far could begin this stop string, so all of it is held back.
    let stop = format!("{after_4}\u{1}");
    let request = Request {
        stop: vec![stop],
        ..greedy(prompt(5), 50)
    };
    let id = scheduler.submit(request).unwrap();
    let waiting = scheduler.submit(greedy(prompt(9), 2)).unwrap();
    let mut log = Log::default();
    while scheduler.totals().answer_tokens < 4 {
        log.note(scheduler.step());
    }
    assert!(!after_4.is_empty() && log.texts.is_empty());
    log.note(scheduler.interrupt(id));
    log.note(scheduler.interrupt(waiting));
    assert!(scheduler.interrupt(id).is_empty() && scheduler.is_idle());
    assert_eq!(log.texts[&id], after_4);
    let ends = [id, waiting].map(|id| (log.done[&id].0, log.done[&id].1.answer_tokens));
    assert_eq!(
        ends,
        [
            (FinishReason::Interrupted, 4),
            (FinishReason::Interrupted, 0)
        ]
    );
}

#[test]
fn an_answer_ends_at_its_deadline() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let until = |deadline: Instant| Request {
        deadline: Some(deadline),
        ..greedy(prompt(5), 30)
    };
    let late = scheduler.submit(until(Instant::now())).unwrap();
    let in_time = scheduler.submit(until(Instant::now() + Duration::from_secs(3600)));
    let mut log = Log::default();
    log.note(scheduler.step());
    assert_eq!(log.done[&late].0, FinishReason::Deadline);
    assert_eq!(log.done[&late].1.answer_tokens, 0);
    while !scheduler.is_idle() {
        log.note(scheduler.step());
    }
    let alone = model.alone(&greedy(prompt(5), 30));
    let id = in_time.unwrap();
    assert_eq!(
        (log.done[&id].0, &log.texts[&id]),
        (alone.reason, &alone.text)
    );
    // One that runs has what it has by then.
    let mut answer_tokens = |time: Duration| {
        let deadline = Instant::now() + time;
        let request = Request {
            min_tokens: 150,
            max_tokens: 150,
            ..until(deadline)
        };
        let id = scheduler.submit(request).unwrap();
        log.note(scheduler.step());
        log.note(scheduler.step());
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        log.note(scheduler.step());
        assert!(scheduler.is_idle());
        assert_eq!(log.done[&id].0, FinishReason::Deadline);
        log.done[&id].1.answer_tokens
    };
    // Two steps take a millisecond, and longer beside other work.
    let mut times = (0..10).map(|k| Duration::from_millis(50 << k));
    assert!(times.any(|time| answer_tokens(time) == 2));
}

#[test]
fn a_request_that_cannot_run_is_refused() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let mut refused = |request: Request| scheduler.submit(request).unwrap_err().to_string();
    assert!(refused(greedy(Vec::new(), 1)).contains("at least one token"));
    let error = refused(greedy(prompt(CONTEXT), 1));
    assert!(
        error.contains("the context of 160 tokens") && error.contains("found 160"),
        "{error}"
    );
    let mut request = greedy(prompt(3), 1);
    request.sampling.temperature = -1.0;
    assert!(refused(request).contains("temperature"));
    assert!(scheduler.is_idle());
}

#[test]
fn log_probabilities_of_a_prompt_are_those_of_its_logits() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let mut request = greedy(prompt(9), 2);
    request.logprobs = Some(3);
    request.scores_prompt = true;
    // A cache that holds the prompt saves none of its logits.
    for _ in 0..2 {
        let id = scheduler.submit(request.clone()).unwrap();
        let mut log = Log::default();
        while !scheduler.is_idle() {
            log.note(scheduler.step());
        }
        assert_eq!(log.done[&id].1.cached_tokens, 0);
        let scored = [&log.scored[&id][..], &log.logprobs[&id]].concat();
        assert_eq!(scored.len(), 11);
        assert_eq!(scored[0].logprob, None);
        let mut tokens = vec![request.prompt[0]];
        for found in &scored[1..] {
            let instance = model.executable.instantiate().unwrap();
            let mut session = Session::new(instance, CONTEXT, model.info.vocab_size);
            let logits = session.feed(&tokens, &|| false).unwrap().unwrap();
            let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
            let due = f64::from(logits[found.token as usize]) - sum.ln();
            let logprob = f64::from(found.logprob.unwrap());
            assert!((logprob - due).abs() < 1e-4, "{logprob} {due}");
            let greater = |x: f32| logits.iter().filter(|y| **y > x).count();
            let ranks: Vec<usize> = found
                .top
                .iter()
                .map(|(token, _)| greater(logits[*token as usize]))
                .collect();
            assert_eq!(ranks, [0, 1, 2]);
            tokens.push(found.token);
        }
    }
}

/// The answer to a request that no other runs beside.
fn alone(model: &Model, request: &Request) -> (RequestId, Log) {
    let mut sessions = model.sessions(1);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let id = scheduler.submit(request.clone()).unwrap();
    let mut log = Log::default();
    while !scheduler.is_idle() {
        log.note(scheduler.step());
    }
    (id, log)
}

#[test]
fn an_answer_has_at_least_its_minimum_of_tokens() {
    let model = model("tiny-chat");
    let run = |request: &Request| {
        let (id, log) = alone(&model, request);
        (log.done[&id].0, log.done[&id].1.answer_tokens)
    };
    let mut request = greedy(prompt(5), 20);
    // Every token would end the answer.
    request.stop_tokens = (10..model.info.vocab_size as u32).collect();
    assert_eq!(run(&request), (FinishReason::Stop, 0));
    request.min_tokens = 7;
    let (reason, n) = run(&request);
    assert_eq!((reason, n >= 7), (FinishReason::Stop, true), "{n}");
}

/// Where a grammar leaves only tokens that end the answer, it ends there, before its minimum.
#[test]
fn a_grammar_goes_before_a_minimum_of_tokens() {
    let model = model("tiny-chat");
    let mut request = greedy(prompt(5), 20);
    request.grammar = Some(thirds(9, 0));
    let tokens = 0..model.info.vocab_size as u32;
    request.stop_tokens = tokens.filter(|token| token % 3 == 1).collect();
    for min_tokens in [0, 7] {
        request.min_tokens = min_tokens;
        let (id, log) = alone(&model, &request);
        let (reason, usage) = log.done[&id];
        assert_eq!((reason, usage.answer_tokens), (FinishReason::Stop, 1));
    }
}

/// As in vLLM, stop strings are not looked for in the tokens that an answer has at least.
#[test]
fn stop_strings_do_not_end_an_answer_before_its_minimum_of_tokens() {
    let model = model("tiny-chat");
    let run = |request: &Request| {
        let (id, log) = alone(&model, request);
        let text = log.texts.get(&id).cloned().unwrap_or_default();
        (text, log.done[&id].1.answer_tokens)
    };
    let mut request = greedy(prompt(5), 20);
    let (whole, _) = run(&request);
    let first: String = whole.chars().take(1).collect();
    request.stop = vec![first.clone()];
    assert_eq!(run(&request), (String::new(), 1));
    request.min_tokens = 7;
    let (text, n) = run(&request);
    assert!(text.starts_with(&first) && n >= 7, "{text:?}, {n} tokens");
    assert!(whole.starts_with(&text), "{text:?} of {whole:?}");
}
