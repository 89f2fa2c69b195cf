//! A language model and the thread that owns it. Handlers encode prompts and submit requests; the
//! thread runs the scheduler and sends each event to the handler that waits for it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thane_engine::schedule::{Event, Request, RequestId, Scheduler, StepLimits};
use thane_engine::sessions::Sessions;
use thane_engine::text::Tokenizer;
use thane_mil::budget::{OverBudget, Reservation};
use thane_runtime::{Known, PromptEncoder, Recommended};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::compiling::Compilers;
use crate::counts::Counts;
use crate::deadline;
use crate::error::{ApiError, stopped};
use crate::log::{Record, arrived, current_account, current_budget};
use crate::logprobs::logprob_bytes;
use crate::places::Places;
use crate::rate::Account;
use crate::threads::lock;

/// A handle to a running language model.
pub(crate) struct Answers {
    pub prompts: Arc<PromptEncoder>,
    /// Tokens of a prompt and its answer together.
    pub context: usize,
    /// Most bytes of a prompt: no tokenization of a longer one fits the context.
    pub max_prompt_bytes: usize,
    /// Number of tokens in the vocabulary of the model.
    pub n_vocab: usize,
    /// How answers are generated, as the model's files say.
    pub recommended: Box<Recommended>,
    /// The logits that the model gives, if not all.
    pub known: Option<Known>,
    pub places: Places,
    pub compilers: Compilers,
    /// Answers that run side by side.
    pub n_slots: usize,
    answer_time: Option<Duration>,
    pub counts: Arc<Counts>,
    jobs: mpsc::Sender<Job>,
}

/// What comes of an answer, or why there is no memory for it.
pub(crate) type Sent = Result<Event, OverBudget>;

/// A request and who waits for its answer.
struct Job {
    request: Request,
    listener: Listener,
}

/// An answer that is waited for.
pub(crate) struct Waiting {
    pub events: UnboundedReceiver<Sent>,
    /// The memory of all events, also of those that were received.
    pub held: Arc<Mutex<Reservation>>,
    /// When the first token was computed.
    pub first_token: Arc<OnceLock<Instant>>,
}

/// What the thread needs.
pub(crate) struct Parts {
    pub prompts: PromptEncoder,
    pub sessions: Sessions,
    pub n_vocab: usize,
    pub recommended: Recommended,
    pub known: Option<Known>,
    pub n_queue: usize,
    /// Most time from the arrival of a request to the end of its answer.
    pub answer_time: Option<Duration>,
}

impl Answers {
    /// Starts the thread, which ends when the result is dropped.
    pub fn start(parts: Parts) -> io::Result<(Self, JoinHandle<()>)> {
        let (jobs, waiting) = mpsc::channel();
        let prompts = Arc::new(parts.prompts);
        let (sessions, of_thread) = (parts.sessions, Arc::clone(&prompts));
        let counts = Arc::new(Counts::default());
        let counted = Arc::clone(&counts);
        let (n_slots, context) = (sessions.n_sequences(), sessions.context());
        let thread = std::thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || work(sessions, &of_thread, &waiting, &counted))?;
        let started = Self {
            max_prompt_bytes: max_bytes(prompts.tokenizer(), context),
            prompts,
            context,
            n_vocab: parts.n_vocab,
            recommended: Box::new(parts.recommended),
            known: parts.known,
            places: Places::new(n_slots + parts.n_queue, "requests"),
            compilers: Compilers::default(),
            n_slots,
            answer_time: parts.answer_time,
            counts,
            jobs,
        };
        Ok((started, thread))
    }

    /// What is made for an answer before it is queued, such as its prompt and its grammar, as long
    /// as the request has time.
    pub async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        deadline::within(self.answer_time, work).await
    }

    /// Queues a request. Its events end with `Done` or `Failed`. A receiver that is dropped cancels
    /// the request before the next step. What waits in the channel, and what its reader keeps of
    /// it, counts as memory.
    pub fn submit(
        &self,
        mut request: Request,
        place: OwnedSemaphorePermit,
    ) -> Result<Waiting, ApiError> {
        let (events, answer) = unbounded_channel();
        let first_token = Arc::default();
        let held = current_budget().reserve(0, String::new)?;
        let held = Arc::new(Mutex::new(held));
        let waiting = Waiting {
            events: answer,
            held: Arc::clone(&held),
            first_token: Arc::clone(&first_token),
        };
        self.recommended.complete(&mut request);
        let arrived = arrived();
        request.deadline = self.answer_time.and_then(|time| arrived.checked_add(time));
        let listener = Listener {
            events,
            held,
            _place: place,
            arrived,
            first_token,
            record: Record::current(),
            account: current_account(),
            n_pieces: 0,
        };
        request.owner = listener.account.owner.0;
        let n_prompt = match request.counts_prompt {
            true => request.prompt.len(),
            false => 0,
        };
        listener.account.spend(n_prompt);
        if let Some(record) = listener.record.upgrade() {
            record.add_tokens(n_prompt, 0);
        }
        let job = Job { request, listener };
        self.jobs.send(job).map_err(|_| stopped())?;
        Ok(waiting)
    }
}

/// Most bytes of text that fit a context: those of its longest token in each place. A tokenizer
/// that normalizes may make one byte of three (NFC composes a syllable of Hangul from its letters).
fn max_bytes(tokenizer: &Tokenizer, context: usize) -> usize {
    const NORMALIZED: usize = 3;
    let ids = 0..u32::try_from(tokenizer.n_vocab()).unwrap_or(u32::MAX);
    let longest = ids.map(|id| tokenizer.token_bytes(id).len()).max();
    context.saturating_mul(NORMALIZED * longest.unwrap_or(1).max(1))
}

/// Who waits for the events of a request. The place in the queue is free once this is dropped.
struct Listener {
    events: UnboundedSender<Sent>,
    held: Arc<Mutex<Reservation>>,
    _place: OwnedSemaphorePermit,
    arrived: Instant,
    first_token: Arc<OnceLock<Instant>>,
    record: Weak<Record>,
    account: Arc<Account>,
    /// Pieces of text so far: nearly as many as tokens.
    n_pieces: usize,
}

/// Runs the scheduler until the server is gone.
fn work(
    mut sessions: Sessions,
    prompts: &PromptEncoder,
    jobs: &mpsc::Receiver<Job>,
    counts: &Counts,
) {
    let mut scheduler = Scheduler::new(&mut sessions, prompts.tokenizer(), StepLimits::default());
    let mut listeners = BTreeMap::new();
    loop {
        if scheduler.is_idle() {
            let Some(job) = next(&scheduler, jobs) else {
                return;
            };
            submit(&mut scheduler, &mut listeners, job, counts);
        }
        while let Ok(job) = jobs.try_recv() {
            submit(&mut scheduler, &mut listeners, job, counts);
        }
        listeners.retain(|id, listener: &mut Listener| {
            let is_heard = !listener.events.is_closed();
            if !is_heard {
                scheduler.cancel(*id);
                counts.cancelled.add(1);
                listener.account.spend(listener.n_pieces);
            }
            is_heard
        });
        // Requests may all have been cancelled.
        let (start, has_work) = (Instant::now(), !scheduler.is_idle());
        let events = scheduler.step();
        if has_work {
            counts.step.observe(start.elapsed());
        }
        counts.note_scheduled(&scheduler.totals(), scheduler.n_running());
        for (id, event) in events {
            let is_last = matches!(event, Event::Done(..) | Event::Failed(_));
            counts.note_end(&event);
            if let Some(listener) = listeners.get_mut(&id) {
                let is_answer = !matches!(event, Event::Scored(_));
                if is_answer && listener.first_token.set(Instant::now()).is_ok() {
                    counts.first.observe(listener.arrived.elapsed());
                    if let Some(record) = listener.record.upgrade() {
                        record.note_first_token();
                    }
                }
                listener.note(&event);
                let events = listener.events.clone();
                let sent = listener.hold(&event).map(|()| event);
                if sent.is_err() && !is_last {
                    scheduler.cancel(id);
                    counts.failed.add(1);
                    listener.account.spend(listener.n_pieces);
                }
                if is_last || sent.is_err() {
                    // The place is free before the client can ask again.
                    listeners.remove(&id);
                }
                // A client that has gone is seen before the next step.
                let _ = events.send(sent);
            }
        }
    }
}

impl Listener {
    /// Counts the memory of an event, which waits for its reader and may then be kept until the
    /// answer is complete.
    fn hold(&self, event: &Event) -> Result<(), OverBudget> {
        let beside = match event {
            Event::Scored(token) | Event::Logprob(token) => logprob_bytes(token.top.capacity()),
            Event::Text(text) => text.len(),
            // The end of an answer needs no room that its beginning had not.
            Event::Done(..) | Event::Failed(_) => return Ok(()),
        };
        let mut held = lock(&self.held);
        held.grow(size_of::<Sent>() + beside, || "an answer".to_owned())
    }

    /// Counts tokens where they are wanted. The client may leave at any time, and its record is
    /// written then, so each piece counts when it comes; the end says how many tokens there were.
    fn note(&mut self, event: &Event) {
        match event {
            Event::Text(_) => {
                self.n_pieces += 1;
                if let Some(record) = self.record.upgrade() {
                    record.add_tokens(0, 1);
                }
            }
            Event::Done(_, usage, _) => {
                if let Some(record) = self.record.upgrade() {
                    record.correct_tokens(self.n_pieces, usage.answer_tokens);
                }
                self.account.spend(usage.answer_tokens);
            }
            Event::Scored(_) | Event::Logprob(_) | Event::Failed(_) => {}
        }
    }
}

/// How long a server that ends may store prompts.
const STORE_TIME: Duration = Duration::from_secs(5);

/// The next request of an idle server, which stores prompts until it comes; `None` if the server is
/// gone.
fn next(scheduler: &Scheduler<'_>, jobs: &mpsc::Receiver<Job>) -> Option<Job> {
    loop {
        match jobs.try_recv() {
            Ok(job) => return Some(job),
            Err(mpsc::TryRecvError::Disconnected) => {
                let start = Instant::now();
                while start.elapsed() < STORE_TIME && store_one(scheduler) {}
                return None;
            }
            Err(mpsc::TryRecvError::Empty) => {}
        }
        if !store_one(scheduler) {
            return jobs.recv().ok();
        }
    }
}

/// Stores a page; returns whether there was one to store.
fn store_one(scheduler: &Scheduler<'_>) -> bool {
    scheduler.pages().is_some_and(|mut pages| pages.store_one())
}

fn submit(
    scheduler: &mut Scheduler<'_>,
    listeners: &mut BTreeMap<RequestId, Listener>,
    job: Job,
    counts: &Counts,
) {
    match scheduler.submit(job.request) {
        Ok(id) => drop(listeners.insert(id, job.listener)),
        Err(error) => {
            counts.failed.add(1);
            let _ = job.listener.events.send(Ok(Event::Failed(Arc::new(error))));
        }
    }
}
