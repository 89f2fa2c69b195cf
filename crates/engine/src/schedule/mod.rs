//! Schedules the answers of many requests over [`Sessions`]: continuous batching, without threads
//! and without a clock.
//!
//! Requests are admitted in the order of arrival, each to a free sequence (slot). A request gets
//! the slot whose cache holds the longest beginning of its prompt; among equals, the one that was
//! free for longest, so that other conversations stay cached. One [`Scheduler::step`] decodes a
//! token of each running answer and, beside them, computes chunks of new prompts under a budget of
//! tokens ([`StepLimits`]), so a long prompt never blocks running answers. A request that is
//! cancelled takes no part in the next step. The same requests in the same order give the same
//! steps.
//!
//! The caller owns the loop: it submits and cancels between steps, and hands events to whoever
//! asked. Start at [`Scheduler`].

mod request;
mod running;

use std::collections::VecDeque;
use std::sync::Arc;

pub use request::{Event, Request, RequestId, StepLimits, Usage};
use running::Running;

use crate::generate::GenerateError;
use crate::sessions::Sessions;
use crate::text::Tokenizer;

/// Answers many requests over one language model.
pub struct Scheduler<'t> {
    sessions: Sessions,
    tokenizer: &'t Tokenizer,
    limits: StepLimits,
    slots: Vec<Slot<'t>>,
    waiting: VecDeque<Running<'t>>,
    n_requests: u64,
    n_steps: u64,
    /// Logits of one token, whose memory steps reuse.
    logits: Vec<f32>,
}

/// A sequence, and the request that has it.
#[derive(Default)]
struct Slot<'t> {
    running: Option<Running<'t>>,
    /// The step in which the last request left.
    freed_at: u64,
}

/// A slot and how many tokens of its history the cache shall hold after a step.
type Target = (usize, usize);

impl<'t> Scheduler<'t> {
    /// A scheduler over new or used sessions. `tokenizer` turns tokens into text and knows which
    /// end a turn.
    pub fn new(sessions: Sessions, tokenizer: &'t Tokenizer, limits: StepLimits) -> Self {
        let slots = (0..sessions.n_sequences()).map(|_| Slot::default());
        Self {
            slots: slots.collect(),
            sessions,
            tokenizer,
            limits,
            waiting: VecDeque::new(),
            n_requests: 0,
            n_steps: 0,
            logits: Vec::new(),
        }
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
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) {
            self.waiting.remove(at);
            return true;
        }
        let has = |slot: &Slot<'_>| slot.running.as_ref().is_some_and(|r| r.id == id);
        let found = self.slots.iter().position(has);
        if let Some(slot) = found {
            self.free(slot);
        }
        found.is_some()
    }

    /// Admits waiting requests, runs one call of the program, and returns what happened, in the
    /// order of arrival of the requests.
    pub fn step(&mut self) -> Vec<(RequestId, Event)> {
        self.n_steps += 1;
        self.admit();
        let targets = self.targets();
        if targets.is_empty() {
            return Vec::new();
        }
        let mut work: Vec<(usize, &[u32])> = Vec::with_capacity(targets.len());
        for (slot, n) in &targets {
            let running = self.slots[*slot].running.as_ref();
            work.extend(running.map(|running| (*slot, &running.history[..*n])));
        }
        let stepped = self.sessions.step(&work);
        let mut events = Vec::new();
        match stepped {
            Ok(()) => targets
                .iter()
                .for_each(|(slot, _)| self.advance(*slot, &mut events)),
            Err(error) => self.fail(&targets, error, &mut events),
        }
        events
    }

    /// Gives free slots to waiting requests.
    fn admit(&mut self) {
        while let Some(waiting) = self.waiting.front() {
            let free = (0..self.slots.len()).filter(|i| self.slots[*i].running.is_none());
            let n_cached = |slot: usize| self.sessions.n_cached(slot, &waiting.history);
            let key = |slot: &usize| {
                let rest = waiting.history.len() - n_cached(*slot).unwrap_or(0);
                (rest, self.slots[*slot].freed_at, *slot)
            };
            let Some(slot) = free.min_by_key(key) else {
                return;
            };
            let cached_tokens = n_cached(slot).unwrap_or(0);
            let Some(mut running) = self.waiting.pop_front() else {
                return;
            };
            // Each token of a prompt that is scored is computed.
            running.usage.cached_tokens = match running.n_scored {
                Some(_) => 0,
                None => cached_tokens,
            };
            self.slots[slot].running = Some(running);
        }
    }

    /// What the next step computes: a token of each answer, and prompt tokens within the budget,
    /// oldest request first.
    fn targets(&self) -> Vec<Target> {
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
        let mut budget = match taken.iter().any(is_decode) {
            true => self.limits.prompt_tokens.max(1),
            // The sessions bound a call.
            false => usize::MAX,
        };
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

    /// Chooses the next tokens of a request whose whole history is in the cache.
    fn advance(&mut self, slot: usize, events: &mut Vec<(RequestId, Event)>) {
        let Some(running) = &mut self.slots[slot].running else {
            return;
        };
        let id = running.id;
        let n_held = self.sessions.tokens(slot).map(<[u32]>::len);
        if n_held.is_ok_and(|n| n < running.n_target()) {
            return;
        }
        let taken = self.sessions.logits(slot).and_then(|logits| {
            self.logits.clear();
            self.logits.extend_from_slice(&logits);
            let context = self.sessions.context();
            running.take(&mut self.logits, context, events)
        });
        let end = match taken {
            Ok(None) => return,
            Ok(Some(reason)) => Event::Done(reason, running.usage),
            Err(error) => Event::Failed(Arc::new(error)),
        };
        events.push((id, end));
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
            self.free(*slot);
            // A slot that cannot be reset has no sequence, and so no request can get it.
            let _ = self.sessions.reset(*slot);
        }
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = Slot {
            running: None,
            freed_at: self.n_steps,
        };
    }
}
