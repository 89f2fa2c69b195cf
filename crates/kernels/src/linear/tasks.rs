//! How work is divided among threads.

use crate::Context;
use crate::threads::Pool;

/// Calls `task(start, len)` for parts of `0..n_rows`: small enough for threads of unequal speed to
/// end together, and multiples of `unit`.
pub(super) fn run_row_parts(
    pool: &Pool,
    n_rows: usize,
    unit: usize,
    task: impl Fn(usize, usize) + Sync,
) {
    /// Parts per thread: 4 leave at most an eighth of a thread's time idle on average, and a claim
    /// costs less than 0.1 us.
    const N_PARTS: usize = 4;
    let n_parts = if pool.n_threads() == 1 {
        1
    } else {
        pool.n_threads() * N_PARTS
    };
    let part_len = n_rows.div_ceil(n_parts).max(1).next_multiple_of(unit);
    pool.run(n_rows.div_ceil(part_len), |part_idx| {
        let start = part_idx * part_len;
        task(start, part_len.min(n_rows - start));
    });
}

/// Tokens that suffice for a task of weights that need not be unpacked: what a thread reads of them
/// then comes soon enough.
pub(super) const LEAST_PACKED_TOKENS: usize = 48;

/// Tokens of a task, a multiple of `unit` and `most` at most: as many shares as there are threads,
/// or a multiple of that, so that each thread has tokens of its own. What it writes here it reads
/// next: from another thread's cache that took 1.1 to 1.17 of the time of a product of 512 tokens.
/// That each thread reads, or fills, all panels costs less, unless it has fewer tokens than
/// `least`: then threads share them.
pub fn share_len(
    ctx: &Context,
    n_tokens: usize,
    (unit, least): (usize, usize),
    most: usize,
) -> usize {
    let most = (most / unit * unit).max(unit);
    let n_blocks = n_tokens.div_ceil(most).max(1);
    let n_shares = n_blocks
        .next_multiple_of(ctx.pool().n_threads())
        .min(n_tokens / least)
        .max(n_blocks);
    n_tokens
        .div_ceil(n_shares)
        .next_multiple_of(unit)
        .clamp(1, most)
}
