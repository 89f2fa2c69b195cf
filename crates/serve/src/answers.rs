//! A language model and the thread that owns it. Handlers encode prompts and submit requests; the
//! thread runs the scheduler and sends each event to the handler that waits for it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};

use thane_engine::schedule::{Event, Request, RequestId, Scheduler, StepLimits};
use thane_engine::sessions::Sessions;
use thane_runtime::{Known, PromptEncoder, Recommended};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::error::{ApiError, stopped};
use crate::places::Places;

/// A handle to a running language model.
pub(crate) struct Answers {
    pub prompts: Arc<PromptEncoder>,
    /// Tokens of a prompt and its answer together.
    pub context: usize,
    /// Number of tokens in the vocabulary of the model.
    pub n_vocab: usize,
    /// The sampling options that the model's files recommend.
    pub recommended: Option<Recommended>,
    /// The logits that the model gives, if not all.
    pub known: Option<Known>,
    pub places: Places,
    jobs: mpsc::Sender<Job>,
}

/// A request and who waits for its answer.
struct Job {
    request: Request,
    events: UnboundedSender<Event>,
    place: OwnedSemaphorePermit,
}

/// What the thread needs.
pub(crate) struct Parts {
    pub prompts: PromptEncoder,
    pub sessions: Sessions,
    pub n_vocab: usize,
    pub recommended: Option<Recommended>,
    pub known: Option<Known>,
    pub n_queue: usize,
}

impl Answers {
    /// Starts the thread.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel();
        let prompts = Arc::new(parts.prompts);
        let (sessions, of_thread) = (parts.sessions, Arc::clone(&prompts));
        let (n_slots, context) = (sessions.n_sequences(), sessions.context());
        std::thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || work(sessions, &of_thread, &waiting))?;
        Ok(Self {
            prompts,
            context,
            n_vocab: parts.n_vocab,
            recommended: parts.recommended,
            known: parts.known,
            places: Places::new(n_slots + parts.n_queue),
            jobs,
        })
    }

    /// Queues a request. Its events end with `Done` or `Failed`. A receiver that is dropped cancels
    /// the request before the next step. What waits in the channel is at most one answer, which the
    /// context bounds.
    pub fn submit(
        &self,
        request: Request,
        place: OwnedSemaphorePermit,
    ) -> Result<UnboundedReceiver<Event>, ApiError> {
        let (events, answer) = unbounded_channel();
        let job = Job {
            request,
            events,
            place,
        };
        self.jobs.send(job).map_err(|_| stopped())?;
        Ok(answer)
    }
}

/// Who waits for the events of a request. The place in the queue is free once this is dropped.
struct Listener {
    events: UnboundedSender<Event>,
    _place: OwnedSemaphorePermit,
}

/// Runs the scheduler until the server is gone.
fn work(sessions: Sessions, prompts: &PromptEncoder, jobs: &mpsc::Receiver<Job>) {
    let mut scheduler = Scheduler::new(sessions, prompts.tokenizer(), StepLimits::default());
    let mut listeners = BTreeMap::new();
    loop {
        if scheduler.is_idle() {
            let Ok(job) = jobs.recv() else { return };
            submit(&mut scheduler, &mut listeners, job);
        }
        while let Ok(job) = jobs.try_recv() {
            submit(&mut scheduler, &mut listeners, job);
        }
        listeners.retain(|id, listener: &mut Listener| {
            let is_heard = !listener.events.is_closed();
            if !is_heard {
                scheduler.cancel(*id);
            }
            is_heard
        });
        for (id, event) in scheduler.step() {
            let is_last = matches!(event, Event::Done(..) | Event::Failed(_));
            if let Some(listener) = listeners.get(&id) {
                // A client that has gone is seen before the next step.
                let _ = listener.events.send(event);
            }
            if is_last {
                listeners.remove(&id);
            }
        }
    }
}

fn submit(scheduler: &mut Scheduler<'_>, listeners: &mut BTreeMap<RequestId, Listener>, job: Job) {
    match scheduler.submit(job.request) {
        Ok(id) => {
            let listener = Listener {
                events: job.events,
                _place: job.place,
            };
            listeners.insert(id, listener);
        }
        Err(error) => {
            let _ = job.events.send(Event::Failed(Arc::new(error)));
        }
    }
}
