//! Answers that follow a compiled grammar. A thread asks for all that they need, so that the model
//! waits for a grammar only as long as it wants to.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use thane_engine::choose::{Constraint, Grammar, GrammarError};

use super::call::{Link, Reply, Request};
use crate::worker::Worker;

/// A grammar that was compiled.
pub(super) struct Compiled {
    link: Arc<dyn Link>,
    worker: Worker,
}

impl Compiled {
    pub fn new(link: Arc<dyn Link>) -> io::Result<Self> {
        let (worker, _) = Worker::start("masks")?;
        Ok(Self { link, worker })
    }

    /// Whether answers can begin.
    pub fn is_alive(&self) -> bool {
        self.link.is_alive()
    }

    /// Whether an answer follows it.
    pub fn is_followed(&self) -> bool {
        Arc::strong_count(&self.link) > 1
    }

    /// Bytes of memory that it takes, where that is known.
    pub fn n_bytes(&self) -> usize {
        self.link.n_bytes()
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compiled")
    }
}

impl Grammar for Compiled {
    fn start(&self) -> Result<Box<dyn Constraint>, GrammarError> {
        let number = Arc::new(AtomicU32::new(0));
        let (link, started) = (Arc::clone(&self.link), Arc::clone(&number));
        drop(self.worker.begin(move || {
            // Without a number, the next request fails.
            if let Ok(Reply::Started(number)) = link.call(&Request::Start) {
                started.store(number, Ordering::Relaxed);
            }
        }));
        Ok(Box::new(Running {
            number,
            link: Arc::clone(&self.link),
            worker: self.worker.clone(),
            begun: None,
            done: None,
            is_complete: false,
        }))
    }
}

/// The error of a reply to another request.
fn other_reply() -> GrammarError {
    GrammarError("the tokens that can follow were not computed".to_owned())
}

/// A grammar after some tokens of an answer.
struct Running {
    /// The answer's number, once it is started. Only the worker reads it, which does one thing
    /// after the other.
    number: Arc<AtomicU32>,
    link: Arc<dyn Link>,
    worker: Worker,
    /// What the worker was asked for.
    begun: Option<Receiver<Done>>,
    /// What the worker replied.
    done: Option<Done>,
    is_complete: bool,
}

/// A mask, or tokens that were appended.
type Done = Result<Reply, GrammarError>;

impl Running {
    fn begin(&mut self, ask: impl FnOnce(&dyn Link, u32) -> Done + Send + 'static) {
        let (link, number) = (Arc::clone(&self.link), Arc::clone(&self.number));
        let ask = move || ask(&*link, number.load(Ordering::Relaxed));
        self.done = None;
        self.begun = Some(self.worker.begin(ask));
    }

    fn take(&mut self) -> Done {
        match (self.done.take(), self.begun.take()) {
            (Some(done), _) => done,
            (None, Some(begun)) => begun.recv().unwrap_or_else(|_| Err(other_reply())),
            (None, None) => Err(other_reply()),
        }
    }
}

/// Appends a token, and with `forces` those that must follow. Replies the latter.
fn advance(link: &dyn Link, answer: u32, token: u32, forces: bool) -> Done {
    match link.call(&Request::Advance { answer, token })? {
        Reply::Advanced {
            is_complete: false, ..
        } if forces => link.call(&Request::Force(answer)),
        Reply::Advanced { is_complete, .. } => Ok(Reply::Advanced {
            tokens: Vec::new(),
            is_complete,
        }),
        _ => Err(other_reply()),
    }
}

impl Constraint for Running {
    fn prepare(&mut self) {
        self.begin(|link, number| link.call(&Request::Mask(number)));
    }

    fn wait(&mut self, most: Duration) -> bool {
        if let Some(begun) = &self.begun {
            self.done = match begun.recv_timeout(most) {
                Ok(done) => Some(done),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => None,
            };
            self.begun = None;
        }
        true
    }

    fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        let Reply::Mask(words) = self.take()? else {
            return Err(other_reply());
        };
        let words = words.into_iter().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(32).zip(words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self, token: u32, forces: bool) -> Result<(), GrammarError> {
        self.begin(move |link, number| advance(link, number, token, forces));
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, GrammarError> {
        let Reply::Advanced {
            tokens,
            is_complete,
        } = self.take()?
        else {
            return Err(other_reply());
        };
        self.is_complete = is_complete;
        Ok(tokens)
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The worker may still have to start the answer.
        self.begin(|link, number| link.call(&Request::End(number)));
    }
}
