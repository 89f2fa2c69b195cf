//! The table at the top of a report for a terminal: a row for each target, and below it a row for
//! each function or length where there are several.

use super::wrap::{shorten, shorten_function, wrap};
use crate::number::{between, share};
use crate::report::{FunctionRow, PricedRow, Report, TargetRow};

/// Functions of a target that have rows; the rest is counted.
const MOST_FUNCTIONS: usize = 12;
const HEAD: [&str; 7] = [
    "target",
    "verdict",
    "on engine",
    "ms (80 % of calls)",
    "err",
    "warn",
    "note",
];
/// Columns of numbers, which end where the head does.
const NUMBERS: [bool; 7] = [false, false, true, false, true, true, true];
/// Longest first column: what the others leave of 80.
const MOST_NAME: usize = 24;

/// Lengths that are explained.
const MOST_LENGTHS: usize = 6;

type Row = [String; 7];

/// The table, with notes below it.
pub fn print(report: &Report) -> String {
    let mut rows: Vec<Row> = report.targets.iter().flat_map(rows).collect();
    rows.insert(0, HEAD.map(str::to_owned));
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|at| {
            rows.iter()
                .map(|r| r[at].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out: String = rows.iter().map(|row| line(row, &widths)).collect();
    let all = || report.targets.iter().flat_map(|t| &t.functions);
    if all().any(|f| f.catch_all) {
        out += "* for texts that are too long for the others: the row of the target does not \
                count it\n  and --require-ane leaves it out\n";
    }
    let mut lengths: Vec<String> = Vec::new();
    for length in all()
        .flat_map(|f| &f.lengths)
        .map(|priced| priced.length.describe())
    {
        if !lengths.contains(&length) {
            lengths.push(length);
        }
    }
    if !lengths.is_empty() {
        lengths.truncate(MOST_LENGTHS);
        out += &wrap(
            "",
            0,
            &format!("Lengths that calls are priced at: {}.", lengths.join("; ")),
        );
    }
    out
}

fn rows(t: &TargetRow) -> Vec<Row> {
    let counts = [t.errors, t.warnings, t.notes].map(|n| n.to_string());
    let [errors, warnings, notes] = counts;
    let on_engine = format!("{} %", share(t.residency));
    let name = shorten(&t.short(), MOST_NAME);
    let ms = match &t.functions[..] {
        [f] if f.lengths.is_empty() => between(f.latency.ms, f.latency.low_ms, f.latency.high_ms),
        _ => String::new(),
    };
    let is_whole = !ms.is_empty();
    let mut rows = vec![[
        name,
        t.verdict.to_owned(),
        on_engine,
        ms,
        errors,
        warnings,
        notes,
    ]];
    if !is_whole {
        rows.extend(
            t.functions
                .iter()
                .take(MOST_FUNCTIONS)
                .flat_map(of_function),
        );
    }
    let left = t.functions.len().saturating_sub(MOST_FUNCTIONS);
    if left > 0 {
        let functions = if left == 1 { "function" } else { "functions" };
        rows.push(sub_row(
            format!("  and {left} {functions} more"),
            String::new(),
            String::new(),
        ));
    }
    rows
}

fn of_function(f: &FunctionRow) -> Vec<Row> {
    let mark = if f.catch_all { " *" } else { "" };
    let on_engine = || format!("{} %", share(f.residency));
    if f.lengths.is_empty() {
        let name = format!("  {}{mark}", shorten_function(&f.name, MOST_NAME - 4));
        return vec![sub_row(
            name,
            on_engine(),
            between(f.latency.ms, f.latency.low_ms, f.latency.high_ms),
        )];
    }
    let row = |(i, l): (usize, &PricedRow)| {
        let length = shorten(&l.length.text, MOST_NAME / 2);
        let name = shorten_function(
            &f.name,
            (MOST_NAME - 8).saturating_sub(length.chars().count()),
        );
        let share = if i == 0 { on_engine() } else { String::new() };
        sub_row(
            format!("  {name} at {length}{mark}"),
            share,
            between(l.ms, l.low_ms, l.high_ms),
        )
    };
    f.lengths.iter().enumerate().map(row).collect()
}

fn sub_row(name: String, on_engine: String, ms: String) -> Row {
    let none = String::new;
    [name, none(), on_engine, ms, none(), none(), none()]
}

fn line(row: &Row, widths: &[usize]) -> String {
    let cells = row
        .iter()
        .zip(widths)
        .zip(NUMBERS)
        .map(|((cell, width), number)| {
            if number {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
    let line = cells.collect::<Vec<_>>().join("  ");
    format!("{}\n", line.trim_end())
}
