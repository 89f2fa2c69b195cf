//! What `--profile` says: where the time went, kernel by kernel, beside what the machine can do.

use std::fmt::Write as _;
use std::sync::Arc;

use thane_cpu::{Cpu, Profile, Row};
use thane_kernels::ceiling;

use crate::output::Output;

/// Rows that are shown; what is left takes little.
const MOST_ROWS: usize = 16;

/// A profile where one is asked for.
pub fn wanted(asked: bool) -> Option<Arc<Profile>> {
    asked.then(Arc::default)
}

/// Print the profile of what ran on `cpu`, and forget it.
pub fn say(profile: Option<&Arc<Profile>>, cpu: &Cpu, output: &Output) {
    let Some(profile) = profile else { return };
    let context = cpu.context();
    let (read, flops) = (ceiling::read_bytes(&context), ceiling::fma_flops(&context));
    output.say(table(&profile.rows(), read, flops).trim_end());
    profile.clear();
}

fn table(rows: &[Row], read: f64, flops: f64) -> String {
    let total: f64 = rows.iter().map(|row| row.time.as_secs_f64()).sum();
    let mut text = format!(
        "{:10} {:30} {:>8} {:>10} {:>6} {:>7} {:>8} {:>8}\n",
        "function", "step", "calls", "ms", "%", "GB/s", "GFLOP/s", "ceiling"
    );
    for row in rows.iter().take(MOST_ROWS) {
        let seconds = row.time.as_secs_f64().max(1e-9);
        let of_ceiling = (row.bytes / seconds / read).max(row.flops / seconds / flops);
        let _ = writeln!(
            text,
            "{:10} {:30} {:>8} {:>10.2} {:>6.1} {:>7.1} {:>8.1} {:>7.0}%",
            shorten(&row.function, 10),
            shorten(&format!("{}{}", row.step, if row.is_slow { " (no kernel)" } else { "" }), 30),
            row.calls,
            seconds * 1e3,
            100.0 * seconds / total.max(1e-9),
            row.bytes / seconds / 1e9,
            row.flops / seconds / 1e9,
            100.0 * of_ceiling,
        );
    }
    let rest: f64 = rows.iter().skip(MOST_ROWS).map(|row| row.time.as_secs_f64()).sum();
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
    let slow: u64 = rows.iter().filter(|row| row.is_slow).map(|row| row.calls).sum();
    let _ = writeln!(text, "{:.2} ms in all; {slow} calls of ops that compute much had no kernel", total * 1e3);
    let _ = writeln!(
        text,
        "this machine, measured now: {:.1} GB/s read from memory, {:.1} GFLOP/s of fp32 products; caches and int8 go beyond",
        read / 1e9,
        flops / 1e9
    );
    text
}

fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}
