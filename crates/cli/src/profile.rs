//! The table of `--profile`: the time of each kernel, compared with the peak rates of the machine,
//! and the ops that stay far below them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use thane_cpu::{Cpu, OpRow, Profile, Row};
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
    if let Some(measured) = measured(profile, cpu) {
        measured.say(output);
    }
}

/// What a profile holds, which is cleared, and the peak rates of the machine.
pub fn measured(profile: Option<&Arc<Profile>>, cpu: &Cpu) -> Option<Measured> {
    let profile = profile?;
    let context = cpu.context();
    let ceilings = Ceilings {
        read: ceiling::read_bytes(&context),
        flops: ceiling::fma_flops(&context),
        bf16_flops: ceiling::bf16_flops(&context),
        byte_ops: ceiling::byte_ops(&context),
    };
    let (rows, ops) = (profile.rows(), profile.ops());
    profile.clear();
    Some(Measured {
        rows,
        ops,
        ceilings,
    })
}

/// A profile, and the machine that it was measured on.
pub struct Measured {
    rows: Vec<Row>,
    ops: Vec<OpRow>,
    ceilings: Ceilings,
}

/// Ops of one kind, each below a tenth of the peak rate of the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowOps {
    function: String,
    /// Kernel, or the op where it is computed by itself; with the path of its products.
    step: String,
    /// Name of the op, and of the first result of the slowest of them.
    op: &'static str,
    output: String,
    n_ops: usize,
    /// Fraction of the time of all steps.
    share_of_time: f64,
    /// Fraction of the peak rate in their fastest calls.
    share_of_ceiling: f64,
}

/// Fraction of the peak rate that an op should reach.
const SLOW: f64 = 0.1;
/// Fraction of the time from which on slow ops are named.
const NOTABLE: f64 = 0.01;

impl Measured {
    /// Prints all.
    pub fn say(&self, output: &Output) {
        output.say(table(&self.rows, &self.ceilings).trim_end());
        output.say(longest(&self.ops).trim_end());
        output.say(list(&self.slow_ops()).trim_end());
    }

    /// The ops below a tenth of the peak rate in their fastest call, which other programs disturb
    /// least, by their kind, where all of a kind take over a hundredth of the time; those that took
    /// longest first.
    pub fn slow_ops(&self) -> Vec<SlowOps> {
        let total = self.rows.iter().map(|row| row.time).sum::<Duration>();
        let mut kinds: BTreeMap<(&str, String), Vec<&OpRow>> = BTreeMap::new();
        // In falling order of their time.
        for op in &self.ops {
            if self.ceilings.share(&op.row, fastest(&op.row)) < SLOW {
                let kind = (op.row.function.as_str(), step_name(&op.row));
                kinds.entry(kind).or_default().push(op);
            }
        }
        let slow = kinds.into_iter().map(|((function, step), ops)| {
            let sum = |of: &dyn Fn(&Row) -> f64| ops.iter().map(|op| of(&op.row)).sum::<f64>();
            let reached = |row: &Row| self.ceilings.share(row, fastest(row)) * fastest(row);
            SlowOps {
                function: function.to_owned(),
                step,
                op: ops[0].op,
                output: ops[0].output.clone(),
                n_ops: ops.len(),
                share_of_time: sum(&seconds) / total.as_secs_f64().max(1e-9),
                share_of_ceiling: sum(&reached) / sum(&fastest),
            }
        });
        let mut slow: Vec<SlowOps> = slow.filter(|s| s.share_of_time > NOTABLE).collect();
        slow.sort_by(|a, b| b.share_of_time.total_cmp(&a.share_of_time));
        slow
    }
}

/// The ops that took longest, each by itself; `ops` are in falling order of their time.
fn longest(ops: &[OpRow]) -> String {
    /// More would hide the rest.
    const MOST: usize = 5;
    let total: f64 = ops.iter().map(|op| seconds(&op.row)).sum();
    let mut text = "took longest:\n".to_owned();
    for op in ops.iter().take(MOST) {
        let step = step_name(&op.row);
        let by = by(&step, op.op);
        let _ = writeln!(
            text,
            "  {}: {}{by} {}: {:.2} ms, {:.1} % of the time",
            op.row.function,
            op.op,
            op.output,
            1e3 * seconds(&op.row),
            100.0 * seconds(&op.row) / total
        );
    }
    text
}

/// The step that computes an op, unless it has the op's name.
fn by(step: &str, op: &str) -> String {
    match step == op {
        true => String::new(),
        false => format!(" ({step})"),
    }
}

fn list(slow: &[SlowOps]) -> String {
    if slow.is_empty() {
        return "no op over 1 % of the time ran below a tenth of the ceiling".to_owned();
    }
    let mut text = "below a tenth of the ceiling, and over 1 % of the time:\n".to_owned();
    for ops in slow {
        let others = match ops.n_ops {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let by = by(&ops.step, ops.op);
        let _ = writeln!(
            text,
            "  {}: {}{by} {}{others}: {:.1} % of the time, {:.1} % of the ceiling",
            ops.function,
            ops.op,
            ops.output,
            100.0 * ops.share_of_time,
            100.0 * ops.share_of_ceiling
        );
    }
    text
}

fn seconds(row: &Row) -> f64 {
    row.time.as_secs_f64().max(1e-9)
}

/// What all calls take if each is as fast as the fastest.
fn fastest(row: &Row) -> f64 {
    (row.least_time.as_secs_f64() * row.calls as f64).max(1e-9)
}

/// What a step is called, with the path of its products.
fn step_name(row: &Row) -> String {
    let path = row.path.map(|path| format!(", {path}"));
    format!("{}{}", row.step, path.unwrap_or_default())
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

fn table(rows: &[Row], ceilings: &Ceilings) -> String {
    let total: f64 = rows.iter().map(|row| row.time.as_secs_f64()).sum();
    let mut text = format!(
        "{:10} {:30} {:>8} {:>10} {:>6} {:>7} {:>8} {:>8}\n",
        "function", "step", "calls", "ms", "%", "GB/s", "GFLOP/s", "ceiling"
    );
    for row in rows.iter().take(MOST_ROWS) {
        let seconds = seconds(row);
        let no_kernel = if row.is_slow { " (no kernel)" } else { "" };
        let _ = writeln!(
            text,
            "{:10} {:30} {:>8} {:>10.2} {:>6.1} {:>7.1} {:>8.1} {:>7.0}%",
            shorten(&row.function, 10),
            shorten(&(step_name(row) + no_kernel), 30),
            row.calls,
            seconds * 1e3,
            100.0 * seconds / total.max(1e-9),
            row.bytes / seconds / 1e9,
            row.flops / seconds / 1e9,
            100.0 * ceilings.share(row, seconds),
        );
    }
    let rest = rows.iter().skip(MOST_ROWS);
    let rest: f64 = rest.map(|row| row.time.as_secs_f64()).sum();
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
    let slow = rows.iter().filter(|row| row.is_slow);
    let slow: u64 = slow.map(|row| row.calls).sum();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An op of two calls, the first of which was disturbed.
    fn op(output: &str, step: &'static str, ms: u64, bytes: f64) -> OpRow {
        OpRow {
            op: "mul",
            output: output.to_owned(),
            row: Row {
                function: "main".to_owned(),
                step,
                path: None,
                is_fused: false,
                is_slow: false,
                is_by_element: false,
                calls: 2,
                time: Duration::from_millis(ms),
                least_time: Duration::from_millis(ms) / 5,
                bytes,
                flops: 0.0,
                bf16_flops: 0.0,
                byte_ops: 0.0,
            },
        }
    }

    #[test]
    fn ops_of_one_kind_are_named_where_together_they_take_long() {
        // In their fastest calls and at 1e9 bytes a second, these reach 250, 5, 1, 50 and 1 % of
        // the ceiling.
        let ops = vec![
            op("whole", "linear", 975, 975e6),
            op("a", "mul", 10, 2e5),
            op("b", "mul", 5, 2e4),
            op("fast", "mul", 5, 1e6),
            op("rare", "exp", 5, 2e4),
        ];
        let ceilings = Ceilings {
            read: 1e9,
            flops: 1e9,
            bf16_flops: 1e9,
            byte_ops: 1e9,
        };
        let rows = ops.iter().map(|op| op.row.clone()).collect();
        let measured = Measured {
            rows,
            ops,
            ceilings,
        };
        let named = longest(&measured.ops);
        assert!(
            named.starts_with("took longest:\n  main: mul (linear) whole: 975.00 ms, 97.5 %"),
            "{named}"
        );
        assert_eq!(named.lines().count(), 6);
        let slow = measured.slow_ops();
        assert_eq!(slow.len(), 1, "{slow:?}");
        assert_eq!((slow[0].output.as_str(), slow[0].n_ops), ("a", 2));
        assert!((slow[0].share_of_time - 0.015).abs() < 1e-9, "{slow:?}");
        assert!(
            (slow[0].share_of_ceiling - 0.22 / 6.0).abs() < 1e-9,
            "{slow:?}"
        );
        assert_eq!(
            list(&slow),
            "below a tenth of the ceiling, and over 1 % of the time:\n  main: mul a and 1 more: \
             1.5 % of the time, 3.7 % of the ceiling\n"
        );
        assert!(list(&[]).starts_with("no op over 1 %"));
    }
}
