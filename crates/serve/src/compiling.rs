//! Compiles the grammars of a model's answers on threads of their own, so that nobody who asks for
//! something else waits for a grammar that takes long. Keys take turns, and none has all threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use thane_engine::choose::Grammar;
use thane_runtime::{GrammarSource, PromptEncoder, RuntimeError};
use tokio::sync::{Notify, oneshot};

use crate::error::{ApiError, error_chain};
use crate::log::current_account;
use crate::rate::Owner;

/// Grammars that are compiled at once.
const THREADS: usize = 3;

/// Those of a key among them.
const OF_OWNER: usize = THREADS - 1;

/// Grammars of a key that are compiled, or wait for that. Each holds a place in the queue of the
/// model.
const PLACES: usize = 8;

/// The form of an answer, and the field that asked for it.
pub(crate) struct Form {
    pub source: GrammarSource,
    pub field: &'static str,
}

/// The threads that compile grammars of one model.
#[derive(Default)]
pub(crate) struct Compilers(Arc<Queue>);

/// Grammars that are compiled, or wait for that.
#[derive(Default)]
struct Queue {
    tickets: Mutex<Tickets>,
    /// Somebody has left.
    changed: Notify,
}

#[derive(Default)]
struct Tickets {
    all: Vec<Place>,
    n_given: u64,
}

/// A place in the queue.
struct Place {
    number: u64,
    owner: Owner,
    is_running: bool,
}

/// Holds a place, until it is dropped.
struct Ticket {
    queue: Arc<Queue>,
    number: u64,
}

impl Tickets {
    fn n_running(&self, owner: Owner) -> usize {
        let own = self.all.iter().filter(|place| place.owner == owner);
        own.filter(|place| place.is_running).count()
    }

    /// A new place for an owner who has a free one.
    fn enter(&mut self, owner: Owner) -> Option<u64> {
        if self.all.iter().filter(|p| p.owner == owner).count() == PLACES {
            return None;
        }
        let number = self.n_given;
        self.n_given += 1;
        self.all.push(Place {
            number,
            owner,
            is_running: false,
        });
        Some(number)
    }

    /// Begins number `number` if it is its turn: that of the owner of whom fewest are compiled, and
    /// of the first to come among those.
    fn begin(&mut self, number: u64) -> bool {
        if self.all.iter().filter(|place| place.is_running).count() >= THREADS {
            return false;
        }
        let waiting = self.all.iter().filter(|place| !place.is_running);
        let turns = waiting.map(|place| (self.n_running(place.owner), place.number));
        let next = turns.filter(|(n_running, _)| *n_running < OF_OWNER).min();
        if next.is_none_or(|(_, next)| next != number) {
            return false;
        }
        let own = self.all.iter_mut().filter(|place| place.number == number);
        own.for_each(|place| place.is_running = true);
        true
    }
}

impl Queue {
    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in the queue. With all places of the owner taken, the request is refused.
    fn enter(self: &Arc<Self>, owner: Owner) -> Result<Ticket, ApiError> {
        let number = self.tickets().enter(owner).ok_or_else(|| {
            let message = format!(
                "the queue of the model is full: {PLACES} compilations of grammars run or wait"
            );
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                .with_code("queue_full")
                .retry_after(1)
        })?;
        let queue = Arc::clone(self);
        Ok(Ticket { queue, number })
    }
}

impl Ticket {
    /// Waits for a thread.
    async fn turn(&self) {
        loop {
            let changed = self.queue.changed.notified();
            if self.queue.tickets().begin(self.number) {
                // Another one may be next for another thread.
                return self.queue.changed.notify_waiters();
            }
            changed.await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut tickets = self.queue.tickets();
        tickets.all.retain(|place| place.number != self.number);
        drop(tickets);
        self.queue.changed.notify_waiters();
    }
}

impl Compilers {
    /// Compiles a grammar, or takes one that was compiled before. If the caller is dropped,
    /// compiling ends.
    pub async fn compile(
        &self,
        prompts: &Arc<PromptEncoder>,
        form: Form,
    ) -> Result<Arc<dyn Grammar>, ApiError> {
        if let Some(kept) = prompts.grammars.take_kept(&form.source) {
            return Ok(kept);
        }
        let ticket = self.0.enter(current_account().owner)?;
        ticket.turn().await;
        let prompts = Arc::clone(prompts);
        let (reply, compiled) = oneshot::channel();
        let compile = move || {
            let _held = ticket;
            let compiled = compile(&prompts, &form, &|| reply.is_closed());
            let _ = reply.send(compiled);
        };
        let thread = std::thread::Builder::new().name("grammar".to_owned());
        let started = thread.spawn(compile);
        started.map_err(|e| ApiError::failed(format!("the grammar: {e}")))?;
        let failed = |_| ApiError::failed("the grammar could not be compiled");
        compiled.await.map_err(failed)?
    }
}

fn compile(
    prompts: &PromptEncoder,
    form: &Form,
    is_gone: &dyn Fn() -> bool,
) -> Result<Arc<dyn Grammar>, ApiError> {
    let error = match prompts.grammars.compile(&form.source, is_gone) {
        Ok(compiled) => return Ok(compiled),
        Err(error) => error,
    };
    let refused = |field: &str, error: &RuntimeError| {
        ApiError::field(field, format!("`{field}`: {}", error_chain(error)))
    };
    match (&form.source, error) {
        // Which of both is at fault.
        (GrammarSource::Either { form: one, .. }, error @ RuntimeError::Grammar(_)) => {
            let alone = prompts.grammars.compile(one, is_gone);
            Err(alone.map_or_else(
                |error| refused(form.field, &error),
                |_| refused("tools", &error),
            ))
        }
        (_, error @ RuntimeError::Grammar(_)) => Err(refused(form.field, &error)),
        (_, error @ RuntimeError::Budget(_)) => {
            let said = error_chain(&error);
            let full = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, said);
            Err(full.with_param(form.field).retry_after(1))
        }
        (_, error) => Err(ApiError::failed(error_chain(&error)).with_param(form.field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that run after each change: `+` comes, `-` leaves.
    fn running(changes: &[(char, u64)]) -> Vec<Vec<u64>> {
        let mut tickets = Tickets::default();
        let change = |(sign, n): &(char, u64)| {
            match sign {
                '+' => _ = tickets.enter(Owner(*n)),
                _ => tickets.all.retain(|place| place.number != *n),
            }
            let all: Vec<u64> = tickets.all.iter().map(|place| place.number).collect();
            // Whoever asks first.
            for number in all.iter().rev().chain(all.iter().rev()) {
                tickets.begin(*number);
            }
            let running = tickets.all.iter().filter(|place| place.is_running);
            running.map(|place| place.number).collect()
        };
        changes.iter().map(change).collect()
    }

    #[test]
    fn slow_grammars_of_a_key_do_not_hold_up_those_of_another() {
        let of_first = [('+', 1), ('+', 1), ('+', 1), ('+', 1)];
        let found = running(&[&of_first[..], &[('+', 2), ('+', 3), ('-', 1), ('-', 4)]].concat());
        let expected: [&[u64]; 8] = [
            &[0],
            &[0, 1],
            &[0, 1],
            &[0, 1],
            &[0, 1, 4],
            &[0, 1, 4],
            // The third key comes before the first one's third grammar.
            &[0, 4, 5],
            &[0, 2, 5],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_places_are_those_of_a_key() {
        let queue = Arc::new(Queue::default());
        let enter = |owner| queue.enter(Owner(owner));
        let mut held: Vec<Ticket> = (0..PLACES).map(|_| enter(1).ok().unwrap()).collect();
        let refused = enter(1).err().unwrap();
        assert_eq!(refused.code, Some("queue_full"));
        assert!(enter(2).is_ok());
        held.pop();
        assert!(enter(1).is_ok());
        // Whoever waits is told when somebody leaves.
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            for ticket in &held[..OF_OWNER] {
                ticket.turn().await;
            }
            let last = held.pop().unwrap();
            let leave = async {
                tokio::task::yield_now().await;
                held.clear();
            };
            tokio::join!(last.turn(), leave);
        });
    }
}
