//! Responses that `previous_response_id` can name: a bounded number of them, in memory. They belong
//! to the key that made them, for which those of others are not there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use thane_mil::budget::{Budget, Loss, Reclaim, Reservation};
use thane_runtime::Message;

use crate::body::memory_of;
use crate::rate::Owner;
use crate::threads::lock;
use crate::written::Written;

/// Most responses of an owner; the oldest go first.
const MAX_RESPONSES: usize = 1000;

/// Most bytes of all; the oldest of the owner with most bytes go first.
const MAX_BYTES: usize = 64 << 20;
/// Most of the memory that all things may take. Models are loaded into the rest.
const SHARE: usize = 8;

/// A response and the conversation that it ends.
#[derive(Debug)]
pub(crate) struct Kept {
    pub id: String,
    /// All turns, the answer included, without the instructions of each.
    pub messages: Vec<Message>,
    /// The items before the answer, with ids.
    pub input: Vec<Value>,
    /// The items of the answer, without log probabilities.
    pub output: Vec<Value>,
    /// What the client got. Its memory counts by itself, also where a client reads it slowly that
    /// asked for it before it was dropped here.
    pub response: Arc<Written>,
}

impl Kept {
    /// Bytes of memory, beside those of the response.
    fn n_bytes(&self) -> usize {
        let messages = self.messages.iter();
        let messages = messages.map(|message| {
            let fields = message.fields.iter();
            let fields =
                fields.map(|(name, value)| size_of::<Value>() + name.len() + memory_of(value));
            size_of::<Message>() + message.content.len() + fields.sum::<usize>()
        });
        let items = self.input.iter().chain(&self.output).map(memory_of);
        size_of::<Self>() + messages.sum::<usize>() + items.sum::<usize>()
    }
}

/// The responses of an owner.
#[derive(Clone, Default)]
pub(crate) struct Responses {
    store: Arc<Store>,
    owner: Owner,
}

/// The responses of all owners.
#[derive(Default)]
pub(crate) struct Store {
    held: Arc<Mutex<Held>>,
    budget: Budget,
}

#[derive(Default)]
struct Held {
    by_owner: BTreeMap<Owner, Own>,
    n_bytes: usize,
}

/// The responses of an owner, oldest first.
#[derive(Default)]
struct Own {
    responses: VecDeque<(Arc<Kept>, Reservation)>,
    n_bytes: usize,
}

impl Store {
    /// No responses yet; they count against `budget`, which takes them where a request needs their
    /// memory.
    pub fn new(budget: Budget) -> Arc<Self> {
        let held = Arc::default();
        budget.keep(Loss::Data, &held);
        Arc::new(Self { held, budget })
    }

    /// Most bytes of all responses.
    fn most_bytes(&self) -> usize {
        MAX_BYTES.min(self.budget.limit_bytes() / SHARE)
    }

    /// Those of an owner.
    pub fn of(self: &Arc<Self>, owner: Owner) -> Responses {
        let store = Arc::clone(self);
        Responses { store, owner }
    }
}

impl Responses {
    /// Keeps a response if there is memory for it, and drops older ones of whoever has most where
    /// there are too many.
    pub fn keep(&self, kept: Kept) {
        let (owner, n_own) = (self.owner, kept.n_bytes());
        let n_bytes = n_own + kept.response.n_bytes();
        let most_bytes = self.store.most_bytes();
        if n_bytes > most_bytes {
            return;
        }
        // The budget may take older ones for it.
        let Ok(reserved) = self.store.budget.reserve(n_own, String::new) else {
            return;
        };
        self.with(|held| {
            let own = held.by_owner.entry(owner).or_default();
            own.responses.push_back((Arc::new(kept), reserved));
            own.n_bytes += n_bytes;
            held.n_bytes += n_bytes;
            if own.responses.len() > MAX_RESPONSES {
                held.drop_at(owner, 0);
            }
            while held.n_bytes > most_bytes && held.drop_oldest() {}
        });
    }

    /// The response with this id.
    pub fn get(&self, id: &str) -> Option<Arc<Kept>> {
        self.with(|held| {
            let mut own = held.by_owner.get(&self.owner)?.responses.iter();
            let found = own.find(|(kept, _)| kept.id == id);
            found.map(|(kept, _)| Arc::clone(kept))
        })
    }

    /// The item with this id of the output of a response.
    pub fn item(&self, id: &str) -> Option<Value> {
        self.with(|held| {
            let own = held.by_owner.get(&self.owner)?.responses.iter().rev();
            let mut items = own.flat_map(|(kept, _)| &kept.output);
            items.find(|item| item["id"] == id).cloned()
        })
    }

    /// Drops a response; returns whether there was one with this id.
    pub fn remove(&self, id: &str) -> bool {
        self.with(|held| {
            let own = held.by_owner.get(&self.owner);
            let at = own.and_then(|own| own.responses.iter().position(|(kept, _)| kept.id == id));
            at.is_some_and(|at| held.drop_at(self.owner, at))
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut lock(&self.store.held))
    }
}

impl Reclaim for Held {
    fn held_bytes(&self) -> usize {
        self.n_bytes
    }

    fn reclaim(&mut self, n_bytes: usize) -> bool {
        let (n_before, n_left) = (self.n_bytes, self.n_bytes.saturating_sub(n_bytes));
        while self.n_bytes > n_left && self.drop_oldest() {}
        self.n_bytes < n_before
    }
}

impl Held {
    /// Drops the oldest response of whoever has most; returns whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let largest = self.by_owner.iter().max_by_key(|(_, own)| own.n_bytes);
        let largest = largest.map(|(owner, _)| *owner);
        largest.is_some_and(|owner| self.drop_at(owner, 0))
    }

    /// Drops a response of an owner; returns whether there was one at this place.
    fn drop_at(&mut self, owner: Owner, at: usize) -> bool {
        let Some(own) = self.by_owner.get_mut(&owner) else {
            return false;
        };
        let removed = own.responses.remove(at);
        let n_bytes = removed
            .as_ref()
            .map_or(0, |(kept, held)| held.bytes() + kept.response.n_bytes());
        own.n_bytes -= n_bytes;
        self.n_bytes -= n_bytes;
        if own.responses.is_empty() {
            self.by_owner.remove(&owner);
        }
        removed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const A: Owner = Owner(1);
    const B: Owner = Owner(2);

    fn kept(id: usize, n_bytes: usize) -> Kept {
        Kept {
            id: id.to_string(),
            messages: vec![Message::new("user", "x".repeat(n_bytes))],
            input: Vec::new(),
            output: vec![json!({"id": format!("msg_{id}")})],
            response: Arc::default(),
        }
    }

    fn found(responses: &Responses, ids: impl IntoIterator<Item = usize>) -> usize {
        let has = |id: &usize| responses.get(&id.to_string()).is_some();
        ids.into_iter().filter(has).count()
    }

    #[test]
    fn the_oldest_make_room() {
        let responses = Store::new(Budget::unlimited()).of(A);
        for id in 0..MAX_RESPONSES + 2 {
            responses.keep(kept(id, 1));
        }
        assert_eq!(found(&responses, [1, 2, MAX_RESPONSES + 1]), 2);
        assert!(responses.remove("2") && !responses.remove("2"));
        assert_eq!(found(&responses, [2, 3]), 1);
        // One that is too large is not kept.
        responses.keep(kept(5000, MAX_BYTES - 3));
        assert_eq!(found(&responses, 0..=5000), MAX_RESPONSES - 1);
        responses.keep(kept(5001, MAX_BYTES - 5000));
        assert_eq!(found(&responses, [5001]), 1);
        assert!(found(&responses, 0..=5000) < 10);
    }

    #[test]
    fn what_one_keeps_is_nothing_to_another() {
        let store = Store::new(Budget::unlimited());
        store.of(A).keep(kept(7, 1));
        for other in [B, Owner::default()] {
            let other = store.of(other);
            assert!(other.get("7").is_none() && other.item("msg_7").is_none());
            assert!(!other.remove("7"));
        }
        let own = store.of(A);
        assert!(own.get("7").is_some() && own.item("msg_7").is_some());
    }

    #[test]
    fn none_pushes_out_what_another_keeps() {
        let store = Store::new(Budget::new(SHARE * MAX_BYTES));
        let (first, second) = (store.of(A), store.of(B));
        for id in 0..10 {
            first.keep(kept(id, MAX_BYTES / 40));
        }
        for id in 0..3 * MAX_RESPONSES {
            second.keep(kept(id, MAX_BYTES / 500));
        }
        for id in 0..100 {
            second.keep(kept(5000 + id, MAX_BYTES / 3));
        }
        assert_eq!(found(&first, 0..10), 10);
        let held = store.budget.used_bytes();
        assert!((MAX_BYTES / 2..=MAX_BYTES).contains(&held), "{held} bytes");
        // Whoever has most makes room for others.
        for id in 0..30 {
            first.keep(kept(100 + id, MAX_BYTES / 40));
        }
        assert_eq!(found(&second, 5000..5100), 1);
        // Memory that is taken elsewhere is not theirs to give.
        let rest = SHARE * MAX_BYTES - store.budget.used_bytes();
        let _held = store.budget.reserve(rest, String::new).unwrap();
        first.keep(kept(9999, MAX_BYTES / 80));
        assert_eq!([found(&first, [9999]), found(&second, [5099])], [1, 1]);
        // But what is kept makes room for any request: first that of whoever has most.
        let _more = store.budget.reserve(MAX_BYTES / 4, String::new).unwrap();
        assert_eq!([found(&first, [9999]), found(&second, [5099])], [1, 1]);
        let _most = store.budget.reserve(MAX_BYTES / 2, String::new).unwrap();
        assert_eq!(found(&second, [5099]), 0);
    }
}
