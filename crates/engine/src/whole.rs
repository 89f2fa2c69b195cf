//! Whole caches of conversations that no sequence has: the next turn takes its cache back without a
//! copy, and computes only what the cache did not hold.
//!
//! A cache counts as much as was ever written to it, because the system provides its memory as it
//! is written. Where there is no room for another one, whoever has most makes room: the owner's
//! cache that was not used for longest is overwritten.

use std::cmp::Reverse;

use thane_mil::backend::{Instance, States};
use thane_mil::budget::{Budget, Reclaim, Reservation};

use crate::pages::PAGE_TOKENS;
use crate::sequence::Sequence;

/// Caches that no sequence has.
pub(crate) struct WholeCaches {
    caches: Vec<Cache>,
    /// Most bytes of all.
    limit: usize,
    budget: Budget,
}

struct Cache {
    sequence: Sequence,
    states: States,
    /// When it was last used.
    used: u64,
    /// The memory of what was written to it.
    held: Reservation,
}

impl WholeCaches {
    /// Most caches, since each is compared with each prompt.
    const MOST: usize = 64;
    /// Fewer tokens are computed anew.
    const LEAST_TOKENS: usize = 16;

    /// No caches yet, of at most `limit` bytes in all, as far as `budget` has memory for them.
    pub fn new(limit: usize, budget: Budget) -> Self {
        Self {
            caches: Vec::new(),
            limit,
            budget,
        }
    }

    /// Bytes of all caches.
    pub fn n_bytes(&self) -> usize {
        self.caches.iter().map(|cache| cache.held.bytes()).sum()
    }

    /// The cache that holds most tokens at the start of a prompt of an owner, and their number,
    /// among those that would go on.
    pub fn find(&self, owner: u64, prompt: &[u32]) -> Option<(usize, usize)> {
        let found = self.caches.iter().enumerate().filter_map(|(at, cache)| {
            let n = cache.sequence.n_cached_for(owner, prompt);
            (n > 0 && cache.sequence.goes_on(owner, prompt)).then_some((at, n))
        });
        found.max_by_key(|(_, n)| *n)
    }

    /// Gives an instance the cache number `wanted`, or an empty one, and keeps the cache that it
    /// had, which was last used at `used`. Where there is no room for that one, it is dropped, or
    /// stays where it is if no other is wanted.
    pub fn exchange(
        &mut self,
        (instance, sequence): (&mut dyn Instance, &mut Sequence),
        wanted: Option<usize>,
        used: u64,
    ) {
        let wanted = wanted.map(|at| self.caches.swap_remove(at));
        let kept = self.make_room(instance, sequence, used);
        let (held, oldest) = match kept {
            Some((held, oldest)) => (Some(held), oldest),
            None if wanted.is_none() => return,
            None => (None, None),
        };
        let (mut other, mut states) = match (wanted, oldest) {
            (Some(wanted), _) => (wanted.sequence, wanted.states),
            // Memory that is given back would have to be cleared.
            (None, Some(mut oldest)) => {
                oldest.sequence.clear();
                (oldest.sequence, oldest.states)
            }
            (None, None) => match instance.fresh_states() {
                Some(states) => (sequence.fresh(), states),
                None => return,
            },
        };
        if !instance.swap_states(&mut states) {
            return;
        }
        std::mem::swap(sequence, &mut other);
        self.caches.extend(held.map(|held| Cache {
            sequence: other,
            states,
            used,
            held,
        }));
    }

    /// The memory for the cache of an instance, and the last of the older caches that were dropped
    /// for that; `None` if the cache is not worth it, or only newer ones could be dropped.
    fn make_room(
        &mut self,
        instance: &dyn Instance,
        sequence: &Sequence,
        used: u64,
    ) -> Option<(Reservation, Option<Cache>)> {
        if sequence.tokens().len() < Self::LEAST_TOKENS {
            return None;
        }
        let n_bytes = written_bytes(sequence, instance.states_bytes()?);
        if n_bytes > self.limit {
            return None;
        }
        let mut dropped = None;
        let owner = sequence.owner();
        while self.n_bytes() > self.limit - n_bytes || self.caches.len() >= Self::MOST {
            let of_owner = |of: u64| self.bytes_of(of) + if of == owner { n_bytes } else { 0 };
            let (most, Reverse(last), at) = self.least(of_owner)?;
            if most < of_owner(owner) || (most == of_owner(owner) && last > used) {
                return None;
            }
            dropped = Some(self.caches.swap_remove(at));
        }
        Some((self.budget.reserve_spare(n_bytes)?, dropped))
    }

    fn bytes_of(&self, owner: u64) -> usize {
        let caches = self.caches.iter();
        let caches = caches.filter(|cache| cache.sequence.owner() == owner);
        caches.map(|cache| cache.held.bytes()).sum()
    }

    /// The cache that makes room first, of whoever has most: the bytes of its owner, when it was
    /// last used, and its number.
    fn least(&self, of_owner: impl Fn(u64) -> usize) -> Option<(usize, Reverse<u64>, usize)> {
        let caches = self.caches.iter().enumerate();
        let keys = caches.map(|(at, cache)| {
            let of_owner = of_owner(cache.sequence.owner());
            (of_owner, Reverse(cache.used), at)
        });
        keys.max()
    }
}

impl Reclaim for WholeCaches {
    fn held_bytes(&self) -> usize {
        self.n_bytes()
    }

    fn reclaim(&mut self, n_bytes: usize) -> bool {
        let n_left = self.n_bytes().saturating_sub(n_bytes);
        let n_caches = self.caches.len();
        while self.n_bytes() > n_left
            && let Some((.., at)) = self.least(|owner| self.bytes_of(owner))
        {
            self.caches.swap_remove(at);
        }
        self.caches.len() < n_caches
    }
}

/// Bytes of a cache that were ever written, where it has `all` once it is full.
fn written_bytes(sequence: &Sequence, all: usize) -> usize {
    let context = sequence.context();
    if sequence.is_recurrent() || context == 0 {
        // Not all states have rows for each token.
        return all;
    }
    let n = sequence.n_written().next_multiple_of(PAGE_TOKENS);
    all / context * n.min(context)
}
