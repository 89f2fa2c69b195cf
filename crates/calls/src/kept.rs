//! Which tokens the rows of a cache hold.

/// Which tokens the rows of a cache hold: first the sinks, then the ring, then the means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The first tokens, which are never overwritten.
    pub sinks: usize,
    /// Rows of the ring: position q is in row `sinks + (q - sinks) % ring`.
    pub ring: usize,
    /// Each row after the ring is the mean of so many tokens that follow each other, the first of
    /// them the first after the sinks; `None` if there are no such rows.
    pub pool: Option<usize>,
}

impl Kept {
    /// A cache of so many rows, the last tokens.
    pub fn ring(n_rows: usize) -> Self {
        Self {
            ring: n_rows,
            ..Self::default()
        }
    }

    /// The row of the token at `position`.
    pub fn row(self, position: usize) -> usize {
        match position.checked_sub(self.sinks) {
            None => position,
            Some(after) => self.sinks + after % self.ring.max(1),
        }
    }

    /// Of a token at `position` that sees `window` tokens: the first position after the sinks that
    /// it sees as it is. With means, a token sees whole blocks of older tokens as means.
    pub fn first_seen(self, position: usize, window: usize) -> usize {
        let first = (position + 1).saturating_sub(window).max(self.sinks);
        match self.pool {
            None => first,
            Some(n) => first - (first - self.sinks) % n.max(1),
        }
    }
}

/// Caches that keep the last tokens only, and possibly the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Number of tokens that they keep.
    pub n_rows: usize,
    /// A token attends to those less than so many positions before it.
    pub window: usize,
}

impl Ring {
    /// Whether tokens at `position` and after can be computed while `n` tokens are stored: all that
    /// they attend to is still there.
    pub fn keeps(self, position: usize, n: usize) -> bool {
        n <= self.n_rows || position + self.n_rows + 1 >= n.saturating_add(self.window)
    }
}
