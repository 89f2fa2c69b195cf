//! What allocations take, for estimates of memory that is reserved before it is allocated.

/// Bytes that the allocator takes for a piece of memory: with its own length, in steps of 16.
pub fn piece(n_bytes: usize) -> usize {
    (n_bytes.saturating_add(8 + 15) & !15).max(32)
}

/// Bytes of a list of `n` elements of `n_bytes` that has grown.
pub fn list(n: usize, n_bytes: usize) -> usize {
    match n {
        0 => 0,
        n => piece(n.next_power_of_two().max(4).saturating_mul(n_bytes)),
    }
}

/// Buckets of a hash table of `n` entries, which is full at seven eighths.
pub fn buckets(n: usize) -> usize {
    match n {
        0 => 0,
        n => (n.saturating_mul(8)).div_ceil(7).next_power_of_two().max(4),
    }
}

/// Bytes of a hash table of `n` entries of `n_bytes`.
pub fn table(n: usize, n_bytes: usize) -> usize {
    const GROUP: usize = 16;
    match n {
        0 => 0,
        n => piece(buckets(n).saturating_mul(n_bytes + 1).saturating_add(GROUP)),
    }
}
