//! The table of `--profile`: the time of each kernel, compared with the peak rates of the machine.

use std::fmt::Write as _;
use std::sync::Arc;

use thane_cpu::{Cpu, Profile, Row};
use thane_kernels::ceiling;

use crate::output::Output;

/// Rows that are shown; the others take little time.
const MOST_ROWS: usize = 16;

/// An empty profile, if one was asked for.
pub fn wanted(asked: bool) -> Option<Arc<Profile>> {
    asked.then(Arc::default)
}

/// Prints the profile of a run on `cpu`, and clears it.
pub fn say(profile: Option<&Arc<Profile>>, cpu: &Cpu, output: &Output) {
    let Some(profile) = profile else { return };
    let context = cpu.context();
    let ceilings = Ceilings {
        read: ceiling::read_bytes(&context),
        flops: ceiling::fma_flops(&context),
        bf16_flops: ceiling::bf16_flops(&context),
        byte_ops: ceiling::byte_ops(&context),
    };
    output.say(table(&profile.rows(), ceilings).trim_end());
    profile.clear();
}

/// Peak rates of the machine, per second.
struct Ceilings {
    /// Bytes read from memory.
    read: f64,
    /// Operations of fp32 products.
    flops: f64,
    /// Operations of products of bf16.
    bf16_flops: f64,
    /// Operations of products of bytes.
    byte_ops: f64,
}

impl Ceilings {
    /// The fraction of the peak rate that a row reaches: of reading or of computing, whichever
    /// takes longer.
    fn share(&self, row: &Row, seconds: f64) -> f64 {
        let computing = (row.flops - row.bf16_flops - row.byte_ops) / self.flops
            + row.bf16_flops / self.bf16_flops
            + row.byte_ops / self.byte_ops;
        (row.bytes / self.read).max(computing) / seconds
    }
}

fn table(rows: &[Row], ceilings: Ceilings) -> String {
    let total: f64 = rows.iter().map(|row| row.time.as_secs_f64()).sum();
    let mut text = format!(
        "{:10} {:30} {:>8} {:>10} {:>6} {:>7} {:>8} {:>8}\n",
        "function", "step", "calls", "ms", "%", "GB/s", "GFLOP/s", "ceiling"
    );
    for row in rows.iter().take(MOST_ROWS) {
        let seconds = row.time.as_secs_f64().max(1e-9);
        let _ = writeln!(
            text,
            "{:10} {:30} {:>8} {:>10.2} {:>6.1} {:>7.1} {:>8.1} {:>7.0}%",
            shorten(&row.function, 10),
            shorten(
                &format!(
                    "{}{}{}",
                    row.step,
                    row.path.map(|path| format!(", {path}")).unwrap_or_default(),
                    if row.is_slow { " (no kernel)" } else { "" }
                ),
                30
            ),
            row.calls,
            seconds * 1e3,
            100.0 * seconds / total.max(1e-9),
            row.bytes / seconds / 1e9,
            row.flops / seconds / 1e9,
            100.0 * ceilings.share(row, seconds),
        );
    }
    let rest: f64 = rows
        .iter()
        .skip(MOST_ROWS)
        .map(|row| row.time.as_secs_f64())
        .sum();
    if rows.len() > MOST_ROWS {
        let _ = writeln!(
            text,
            "{:10} {:30} {:>8} {:>10.2} {:>6.1}",
            "",
            format!("{} more", rows.len() - MOST_ROWS),
            "",
            rest * 1e3,
            100.0 * rest / total.max(1e-9)
        );
    }
    let slow: u64 = rows
        .iter()
        .filter(|row| row.is_slow)
        .map(|row| row.calls)
        .sum();
    let _ = writeln!(
        text,
        "{:.2} ms in all; {slow} calls of ops that compute much had no kernel",
        total * 1e3
    );
    let _ = writeln!(
        text,
        "this machine, measured now: {:.1} GB/s read from memory, {:.1} GFLOP/s of fp32 products, {:.1} of bf16, {:.1} of bytes; caches go beyond",
        ceilings.read / 1e9,
        ceilings.flops / 1e9,
        ceilings.bf16_flops / 1e9,
        ceilings.byte_ops / 1e9
    );
    text
}

fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}
