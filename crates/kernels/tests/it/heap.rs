#![cfg(all(target_os = "linux", target_env = "gnu"))]

use thane_kernels::heap::return_freed_memory;

/// Resident pages of the process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn freed_memory_goes_back_although_a_block_behind_it_is_used() {
    const N_BYTES: usize = 256 << 20;
    let before = resident();
    let mut blocks: Vec<Vec<u8>> = (0..N_BYTES / 1024).map(|_| vec![1; 1024]).collect();
    let last = blocks.pop();
    drop(blocks);
    let freed = resident();
    return_freed_memory();
    let after = resident();
    drop(last);
    // Pages have at most 64 KiB, and at least 4.
    assert!(freed - before > N_BYTES / (2 * 65_536), "{before} {freed}");
    let left = after.saturating_sub(before);
    assert!(left < (freed - before) / 4, "{before} {freed} {after}");
}
