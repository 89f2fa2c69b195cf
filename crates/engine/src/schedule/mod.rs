//! Schedules the answers of many requests over [`Sessions`]: continuous batching, without threads.
//! A clock is read for deadlines and slow grammars only ([`Scheduler::with_clock`]).
//!
//! Requests are admitted in the order of arrival, each to a free sequence (slot). A request gets
//! the slot whose cache holds the longest beginning of its prompt; among equals, the one that was
//! free for longest, so that other conversations stay cached. One [`Scheduler::step`] decodes a
//! token of each running answer and, beside them, computes chunks of new prompts under a budget of
//! tokens ([`StepLimits`]), so a long prompt never blocks running answers. A request that is
//! cancelled takes no part in the next step. The same requests in the same order give the same
//! steps, unless a grammar takes long: then its answer takes no part in a step either.
//!
//! The caller owns the loop: it submits and cancels between steps, and hands events to whoever
//! asked. Start at [`Scheduler`].
//!
//! With [pages](crate::pages), a prompt is taken from what any request computed before, and a
//! request waits where another one computes the beginning of its prompt. Long answers then take
//! turns: one gives its sequence to a request that waits, and goes on later where it stopped. So do
//! answers of few tokens whose grammars are slow.
//! Sessions that keep whole caches give a conversation its cache back without a copy.

mod request;
mod running;

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

pub use request::{Event, Request, RequestId, StepLimits, Usage};
use running::Running;

use crate::generate::{FinishReason, GenerateError};
use crate::pages::{PAGE_TOKENS, Pages};
use crate::sessions::Sessions;
use crate::text::Tokenizer;

/// Answers many requests over one language model.
pub struct Scheduler<'t> {
    sessions: &'t mut Sessions,
    tokenizer: &'t Tokenizer,
    limits: StepLimits,
    slots: Vec<Slot<'t>>,
    waiting: VecDeque<Running<'t>>,
    n_requests: u64,
    n_steps: u64,
    totals: Usage,
    /// Prompt tokens that earlier steps could have computed, and left to one that computes many.
    n_saved: usize,
    /// Logits of one token, whose memory steps reuse.
    logits: Vec<f32>,
    clock: Arc<dyn Fn() -> Instant + Send + Sync>,
    /// When the last step began.
    stepped_at: Instant,
}

/// A sequence, and the request that has it.
#[derive(Default)]
struct Slot<'t> {
    running: Option<Running<'t>>,
    /// The step in which the last request left.
    freed_at: u64,
}

/// How long a step waits for grammars where it has nothing else to do.
const LATE_TIME: Duration = Duration::from_millis(50);

/// How long the grammars of all slots together may hold up a request that waits for one, in turns
/// that have few tokens: a grammar may take a second for a token, where a model takes milliseconds.
/// Time of the model does not count, because a turn that ends early costs some of it.
const TURN_TIME: Duration = Duration::from_secs(1);

/// Why an answer ends, if it does.
type Taken = Result<Option<FinishReason>, GenerateError>;

/// A slot and how many tokens of its history the cache shall hold after a step.
type Target = (usize, usize);

impl<'t> Scheduler<'t> {
    /// A scheduler over new or used sessions. `tokenizer` turns tokens into text and knows which
    /// end a turn.
    pub fn new(sessions: &'t mut Sessions, tokenizer: &'t Tokenizer, limits: StepLimits) -> Self {
        let slots = (0..sessions.n_sequences()).map(|_| Slot::default());
        Self {
            slots: slots.collect(),
            sessions,
            tokenizer,
            limits,
            waiting: VecDeque::new(),
            n_requests: 0,
            n_steps: 0,
            totals: Usage::default(),
            n_saved: 0,
            logits: Vec::new(),
            clock: Arc::new(Instant::now),
            stepped_at: Instant::now(),
        }
    }

    /// The same scheduler with another clock than the system's, for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        self.stepped_at = clock();
        self.clock = Arc::new(clock);
        self
    }

    /// [`Sessions::pages`].
    pub fn pages(&self) -> Option<MutexGuard<'_, Pages>> {
        self.sessions.pages()
    }

    /// Bytes of prompts that are kept beside the slots, in pages and as whole caches.
    pub fn kept_bytes(&self) -> usize {
        let in_pages = self.sessions.pages().map_or(0, |pages| pages.n_bytes());
        in_pages + self.sessions.whole_bytes()
    }

    /// Number of requests that have a slot.
    pub fn n_running(&self) -> usize {
        let taken = self.slots.iter().filter(|slot| slot.running.is_some());
        taken.count()
    }

    /// Number of requests that wait for a slot.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Tokens of all requests so far: prompts since they got a slot, where they
    /// [count](Request::counts_prompt), and answers as they grow.
    pub fn totals(&self) -> Usage {
        self.totals
    }

    /// Whether no request runs or waits.
    pub fn is_idle(&self) -> bool {
        self.n_running() == 0 && self.waiting.is_empty()
    }

    /// Appends a request to the queue.
    ///
    /// # Errors
    ///
    /// If the prompt is empty or leaves no room for an answer, sampling options are out of range,
    /// or the grammar cannot be used.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, GenerateError> {
        let (prompt, context) = (request.prompt.len(), self.sessions.context());
        if prompt == 0 {
            return Err(GenerateError::EmptyPrompt);
        }
        if prompt >= context {
            return Err(GenerateError::PromptTooLong { prompt, context });
        }
        let id = RequestId(self.n_requests);
        let running = Running::new(id, request, self.tokenizer)?;
        self.n_requests += 1;
        self.waiting.push_back(running);
        Ok(id)
    }

    /// Drops a request; its slot is free for the next step. Returns false if the request has ended.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.remove(id).is_some()
    }

    /// Ends an answer as it is; its slot is free for the next step. Returns what is left of its
    /// text and its end, or nothing if the request has ended.
    pub fn interrupt(&mut self, id: RequestId) -> Vec<(RequestId, Event)> {
        let mut events = Vec::new();
        if let Some(mut request) = self.remove(id) {
            request.end(FinishReason::Interrupted, &mut events);
        }
        events
    }

    /// Takes the slot of a running request, which goes on behind all that wait. Returns false if it
    /// does not run.
    pub fn preempt(&mut self, id: RequestId) -> bool {
        let running = self.take_slot(id);
        let found = running.is_some();
        self.waiting.extend(running);
        found
    }

    fn remove(&mut self, id: RequestId) -> Option<Running<'t>> {
        match self.waiting.iter().position(|waiting| waiting.id == id) {
            Some(at) => self.waiting.remove(at),
            None => self.take_slot(id),
        }
    }

    /// Frees the slot of a running request.
    fn take_slot(&mut self, id: RequestId) -> Option<Running<'t>> {
        let has = |slot: &Slot<'_>| slot.running.as_ref().is_some_and(|r| r.id == id);
        let slot = self.slots.iter().position(has)?;
        let running = self.slots[slot].running.take();
        self.free(slot);
        running
    }

    /// Admits waiting requests, runs one call of the program, and returns what happened, in the
    /// order of arrival of the requests.
    pub fn step(&mut self) -> Vec<(RequestId, Event)> {
        self.n_steps += 1;
        self.count_late();
        let mut events = self.end_overdue();
        self.take_late(Duration::ZERO, &mut events);
        self.end_a_turn();
        self.admit();
        let targets = self.targets();
        if targets.is_empty() {
            self.take_late(LATE_TIME, &mut events);
            return events;
        }
        let mut work: Vec<(usize, &[u32])> = Vec::with_capacity(targets.len());
        let mut n_greatest = Some(0);
        for (slot, n) in &targets {
            let Some(running) = &self.slots[*slot].running else {
                continue;
            };
            work.push((*slot, &running.history[..*n]));
            let wanted = running.n_greatest();
            n_greatest = n_greatest.zip(wanted).map(|(a, b)| a.max(b));
        }
        let stepped = self.sessions.step(&work, n_greatest);
        match stepped {
            Ok(()) => targets
                .iter()
                .for_each(|(slot, _)| self.advance(*slot, &mut events)),
            Err(error) => self.fail(&targets, error, &mut events),
        }
        events
    }

    /// Ends the requests whose deadline has passed.
    fn end_overdue(&mut self) -> Vec<(RequestId, Event)> {
        let running = self.slots.iter().filter_map(|slot| slot.running.as_ref());
        let due = running
            .chain(&self.waiting)
            .filter_map(|request| Some((request.id, request.deadline?)));
        let mut due: Vec<(RequestId, Instant)> = due.collect();
        let mut events = Vec::new();
        if due.is_empty() {
            return events;
        }
        let now = (self.clock)();
        due.retain(|(_, deadline)| *deadline <= now);
        due.sort_unstable();
        for (id, _) in due {
            if let Some(mut request) = self.remove(id) {
                request.end(FinishReason::Deadline, &mut events);
            }
        }
        events
    }

    /// Goes on with answers whose grammars took long. Waits at most `most` for the first of them.
    fn take_late(&mut self, mut most: Duration, events: &mut Vec<(RequestId, Event)>) {
        let context = self.sessions.context();
        for slot in 0..self.slots.len() {
            let Some(running) = &mut self.slots[slot].running else {
                continue;
            };
            if running.is_late() {
                let most = std::mem::take(&mut most);
                let taken = |running: &mut Running<'_>, events: &mut Vec<(RequestId, Event)>| {
                    running.take_late(most, context, events)
                };
                self.take(slot, taken, events);
            }
        }
    }

    /// Counts the time since the last step for answers whose grammars are still at work.
    fn count_late(&mut self) {
        let now = (self.clock)();
        let since = now.saturating_duration_since(self.stepped_at);
        self.stepped_at = now;
        let running = self.slots.iter_mut().filter_map(|s| s.running.as_mut());
        for running in running.filter(|running| running.is_late()) {
            running.turn_time += since;
        }
    }

    /// Takes the slot of the answer with the longest turn that is over, if a request waits.
    fn end_a_turn(&mut self) {
        let is_full = self.slots.iter().all(|slot| slot.running.is_some());
        if self.waiting.is_empty() || !is_full || !self.sessions.has_pages() {
            return;
        }
        let (n_tokens, n_slots) = (self.limits.turn_tokens, self.slots.len().max(1) as u32);
        let is_over = |running: &&Running<'_>| {
            running.turn_tokens() >= n_tokens || running.turn_time >= TURN_TIME / n_slots
        };
        let running = self.slots.iter().filter_map(|slot| slot.running.as_ref());
        let over = running.filter(is_over);
        let turns = over.map(|running| (running.turn_time, running.turn_tokens(), running.id));
        if let Some((_, _, id)) = turns.max() {
            self.preempt(id);
        }
    }

    /// Gives free slots to waiting requests.
    fn admit(&mut self) {
        let mut at = 0;
        while let Some(waiting) = self.waiting.get(at)
            && self.slots.iter().any(|slot| slot.running.is_none())
        {
            let (owner, prompt) = (waiting.owner, &waiting.history);
            let n_kept = self.sessions.n_kept(owner, prompt);
            let n_cached = |slot: usize| self.sessions.n_cached_for(slot, owner, prompt);
            let free = (0..self.slots.len()).filter(|i| self.slots[*i].running.is_none());
            let key = |slot: &usize| {
                let n_cached = n_cached(*slot).unwrap_or(0);
                // What is kept costs little in any slot, and nothing in a slot that has it.
                let n_held = n_cached.max(n_kept);
                let rest = prompt.len() - n_held;
                let is_lacking = n_cached < n_held;
                (rest, is_lacking, self.slots[*slot].freed_at, *slot)
            };
            let Some((rest, _, _, slot)) = free.map(|slot| key(&slot)).min() else {
                return;
            };
            let n_held = prompt.len() - rest;
            if self.n_coming(owner, prompt) > n_held {
                at += 1;
                continue;
            }
            let Some(mut running) = self.waiting.remove(at) else {
                return;
            };
            if running.n_scored.is_none() {
                // What cannot be restored is computed.
                let used = self.slots[slot].freed_at;
                let prompt = (running.owner, &running.history[..]);
                let _ = self.sessions.resume(slot, prompt, used);
            }
            // Also where nothing could be resumed.
            let _ = self.sessions.claim(slot, running.owner);
            if running.turn_start.is_none() {
                // Each token of a prompt that is scored is computed.
                running.usage.cached_tokens = match running.n_scored {
                    Some(_) => 0,
                    None => self.sessions.n_cached(slot, &running.history).unwrap_or(0),
                };
                if running.counts_prompt {
                    self.totals.prompt_tokens += running.usage.prompt_tokens;
                    self.totals.cached_tokens += running.usage.cached_tokens;
                }
            }
            running.turn_start = Some(running.usage.answer_tokens);
            running.turn_time = Duration::ZERO;
            self.slots[slot].running = Some(running);
        }
    }

    /// Tokens at the start of an owner's prompt that pages will hold soon, because a running
    /// request computes them now.
    fn n_coming(&self, owner: u64, prompt: &[u32]) -> usize {
        if !self.sessions.has_pages() {
            return 0;
        }
        let running = self.slots.iter().filter_map(|slot| slot.running.as_ref());
        let running = running.filter(|running| running.owner == owner);
        let prefilling = running.filter(|running| running.usage.answer_tokens == 0);
        let common = prefilling.map(|running| {
            let both = running.history.iter().zip(prompt);
            let n = both.take_while(|(a, b)| a == b).count();
            n.min(prompt.len() - 1) / PAGE_TOKENS * PAGE_TOKENS
        });
        common.max().unwrap_or(0)
    }

    /// What the next step computes: a token of each answer, and prompt tokens within the budget,
    /// oldest request first.
    fn targets(&mut self) -> Vec<Target> {
        let taken = self.slots.iter().enumerate();
        let taken = taken.filter_map(|(i, slot)| slot.running.as_ref().map(|r| (r.id, i, r)));
        let mut taken: Vec<_> = taken
            .map(|(id, i, running)| {
                let wanted = &running.history[..running.n_target()];
                let n_done = self.sessions.n_cached(i, wanted).unwrap_or(0);
                (id, i, n_done, wanted.len())
            })
            .collect();
        taken.sort_unstable();
        let is_decode = |(_, _, n_done, n): &(_, _, usize, usize)| n - n_done == 1;
        let n_answers = taken.iter().filter(|request| is_decode(request)).count();
        let n_left = taken.iter().map(|(_, _, n_done, n)| n - n_done);
        let n_left = n_left.sum::<usize>() - n_answers;
        let mut budget = self.budget(n_answers, taken.len() - n_answers, n_left);
        let mut targets = Vec::with_capacity(taken.len());
        for request in &taken {
            let (_, slot, n_done, n) = *request;
            if is_decode(request) {
                targets.push((slot, n));
                continue;
            }
            let chunk = budget.min(n - n_done);
            budget -= chunk;
            if chunk > 0 {
                targets.push((slot, n_done + chunk));
            }
        }
        targets
    }

    /// The number of prompt tokens of the next step beside `n_answers`. The `n_prompts` requests
    /// that have a sequence lack `n_left`.
    fn budget(&mut self, n_answers: usize, n_prompts: usize, n_left: usize) -> usize {
        if n_answers == 0 || n_left == 0 {
            self.n_saved = 0;
            // The sessions bound a call.
            return usize::MAX;
        }
        let waiting = self.waiting.iter().map(|waiting| waiting.history.len());
        let n_all = n_left + waiting.sum::<usize>();
        let n_prompts = n_prompts + self.waiting.len();
        self.n_saved += self.limits.tokens_a_step(n_answers, n_prompts, n_all);
        if self.n_saved < self.limits.chunk.min(n_left) {
            return 0;
        }
        std::mem::take(&mut self.n_saved)
    }

    /// Chooses the next tokens of a request whose whole history is in the cache.
    fn advance(&mut self, slot: usize, events: &mut Vec<(RequestId, Event)>) {
        let Some(running) = &mut self.slots[slot].running else {
            return;
        };
        let n_held = self.sessions.tokens(slot).map(<[u32]>::len);
        if n_held.is_ok_and(|n| n < running.n_target()) {
            return;
        }
        if running.usage.answer_tokens == 0 && running.n_scored.is_none() {
            // Others may begin with the same prompt at once.
            let _ = self.sessions.keep(slot);
        }
        let context = self.sessions.context();
        let mut logits = std::mem::take(&mut self.logits);
        let read = self.sessions.logits(slot).map(|found| {
            logits.clear();
            logits.extend_from_slice(&found);
        });
        let clock = Arc::clone(&self.clock);
        let take = |running: &mut Running<'_>, events: &mut Vec<(RequestId, Event)>| {
            let start = running.has_grammar.then(|| clock());
            let taken = read.and_then(|()| running.take(&mut logits, context, events));
            if let Some(start) = start {
                running.turn_time += clock().saturating_duration_since(start);
            }
            taken
        };
        self.take(slot, take, events);
        self.logits = logits;
    }

    /// Takes the next tokens of a request, and frees its slot if it ends.
    fn take(
        &mut self,
        slot: usize,
        next: impl FnOnce(&mut Running<'t>, &mut Vec<(RequestId, Event)>) -> Taken,
        events: &mut Vec<(RequestId, Event)>,
    ) {
        let Some(running) = &mut self.slots[slot].running else {
            return;
        };
        let (id, n_before) = (running.id, running.usage.answer_tokens);
        let taken = next(running, events);
        self.totals.answer_tokens += running.usage.answer_tokens - n_before;
        match taken {
            Ok(None) => return,
            Ok(Some(reason)) => running.end(reason, events),
            Err(error) => events.push((id, Event::Failed(Arc::new(error)))),
        }
        self.free(slot);
    }

    /// Ends all requests of a call that failed: the caches of its sequences are undefined.
    fn fail(
        &mut self,
        targets: &[Target],
        error: GenerateError,
        events: &mut Vec<(RequestId, Event)>,
    ) {
        let error = Arc::new(error);
        for (slot, _) in targets {
            let ended = self.slots[*slot].running.as_ref().map(|running| running.id);
            events.extend(ended.map(|id| (id, Event::Failed(Arc::clone(&error)))));
            // A slot that cannot be reset has no sequence, and so no request can get it.
            let _ = self.sessions.reset(*slot);
            self.free(*slot);
        }
    }

    fn free(&mut self, slot: usize) {
        // The next turn of the conversation begins with this one.
        let _ = self.sessions.keep(slot);
        self.slots[slot] = Slot {
            running: None,
            freed_at: self.n_steps,
        };
    }
}
