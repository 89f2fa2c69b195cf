//! Responses that `previous_response_id` can name: a bounded number of them, in memory.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use thane_runtime::Message;

/// Most responses.
const MAX_RESPONSES: usize = 1000;

/// Most bytes of their texts; the oldest go first.
const MAX_BYTES: usize = 64 << 20;

/// A response and the conversation that it ends.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub id: String,
    /// All turns, the answer included, without the instructions of each.
    pub messages: Vec<Message>,
    /// The items before the answer, with ids.
    pub input: Vec<Value>,
    /// What the client got.
    pub response: Value,
}

impl Kept {
    fn n_bytes(&self) -> usize {
        let messages = self.messages.iter();
        let messages = messages.map(|message| {
            let fields = message.fields.iter();
            let fields = fields.map(|(name, value)| name.len() + value.to_string().len());
            message.content.len() + fields.sum::<usize>()
        });
        // The answer is also in the response.
        let input = self.input.iter().map(|item| item.to_string().len());
        messages.sum::<usize>() + input.sum::<usize>() + self.response.to_string().len()
    }
}

/// The responses, oldest first.
#[derive(Default)]
pub(crate) struct Responses(Mutex<Held>);

#[derive(Default)]
struct Held {
    responses: VecDeque<(Kept, usize)>,
    n_bytes: usize,
}

impl Responses {
    /// Keeps a response, and drops the oldest where there is no room.
    pub fn keep(&self, kept: Kept) {
        let n_bytes = kept.n_bytes();
        if n_bytes > MAX_BYTES {
            return;
        }
        self.with(|held| {
            held.n_bytes += n_bytes;
            held.responses.push_back((kept, n_bytes));
            while held.responses.len() > MAX_RESPONSES || held.n_bytes > MAX_BYTES {
                let Some((_, n_bytes)) = held.responses.pop_front() else {
                    return;
                };
                held.n_bytes -= n_bytes;
            }
        });
    }

    /// The response with this id.
    pub fn get(&self, id: &str) -> Option<Kept> {
        self.with(|held| {
            let found = held.responses.iter().find(|(kept, _)| kept.id == id);
            found.map(|(kept, _)| kept.clone())
        })
    }

    /// The item with this id of the output of a response.
    pub fn item(&self, id: &str) -> Option<Value> {
        self.with(|held| {
            let outputs = held.responses.iter().rev();
            let mut outputs = outputs.filter_map(|(kept, _)| kept.response["output"].as_array());
            outputs.find_map(|items| items.iter().find(|item| item["id"] == id).cloned())
        })
    }

    /// Drops a response; returns whether there was one with this id.
    pub fn remove(&self, id: &str) -> bool {
        self.with(|held| {
            let at = held.responses.iter().position(|(kept, _)| kept.id == id);
            let removed = at.and_then(|at| held.responses.remove(at));
            if let Some((_, n_bytes)) = &removed {
                held.n_bytes -= n_bytes;
            }
            removed.is_some()
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(id: usize, n_bytes: usize) -> Kept {
        Kept {
            id: id.to_string(),
            messages: vec![Message::new("user", "x".repeat(n_bytes))],
            input: Vec::new(),
            response: json!({}),
        }
    }

    #[test]
    fn the_oldest_make_room() {
        let responses = Responses::default();
        for id in 0..MAX_RESPONSES + 2 {
            responses.keep(kept(id, 1));
        }
        let found = |id: usize| responses.get(&id.to_string()).is_some();
        assert_eq!(
            [found(1), found(2), found(MAX_RESPONSES + 1)],
            [false, true, true]
        );
        assert!(responses.remove("2") && !found(2) && !responses.remove("2"));
        responses.keep(kept(5000, MAX_BYTES - 3));
        assert!(found(5000) && !found(MAX_RESPONSES + 1));
        responses.keep(kept(5001, MAX_BYTES + 1));
        assert!(
            found(5000) && !found(5001),
            "one that is too large is not kept"
        );
    }
}
