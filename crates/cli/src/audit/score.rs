//! How well the audit says what others measured: the data that this program carries, or files with
//! the same columns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use thane_compile::audit::labelled::csv::Table;
use thane_compile::audit::labelled::measurements::{self, Scored, Summary, summary};
use thane_compile::audit::labelled::placement::{self, Confusion, Miss};
use thane_compile::target::Target;
use thane_mil::package::read_small;

use super::text::short;
use super::wrap::{shorten, wrap};

/// Name and text of what is carried along.
const CARRIED: [(&str, &str); 2] = [
    (
        "ane_placement_m4.csv",
        include_str!("../../../../data/audit/ane_placement_m4.csv"),
    ),
    (
        "ane_measurements.csv",
        include_str!("../../../../data/audit/ane_measurements.csv"),
    ),
];

/// Longest file that is read.
const MOST_BYTES: u64 = 1 << 26;

/// What `--self-check --json` prints.
#[derive(Debug, Default, Serialize)]
pub struct Scores {
    pub placement: Vec<PlacementScore>,
    pub latency: Vec<LatencyScore>,
}

/// A file of placements.
#[derive(Debug, Serialize)]
pub struct PlacementScore {
    pub file: String,
    pub target: String,
    pub rows: usize,
    pub right: usize,
    /// Of the groups, support by the engine.
    pub groups: Vec<Matrix>,
    pub gpu: Matrix,
    pub misses: Vec<MissRow>,
    pub gpu_misses: Vec<MissRow>,
}

/// Labels against what was said.
#[derive(Debug, Serialize)]
pub struct Matrix {
    pub group: &'static str,
    pub rows: usize,
    pub right: usize,
    /// Supported, and said to be.
    pub true_positive: usize,
    pub false_positive: usize,
    pub true_negative: usize,
    pub false_negative: usize,
    /// No program could be made of the row.
    pub not_built: usize,
}

/// A row that was said wrong.
#[derive(Debug, Serialize)]
pub struct MissRow {
    pub case: String,
    pub said: String,
    pub label: String,
}

/// A file of measurements.
#[derive(Debug, Serialize)]
pub struct LatencyScore {
    pub file: String,
    pub rows: usize,
    pub predicted: usize,
    pub groups: Vec<ErrorRow>,
    pub left_out: Vec<LeftOut>,
}

/// Errors of some rows.
#[derive(Debug, Serialize)]
pub struct ErrorRow {
    /// `all`, `kind`, `chip` or `path`.
    pub by: &'static str,
    pub name: String,
    /// Whether numbers of the model were chosen with these rows in view.
    pub seen: bool,
    pub n: usize,
    /// Of the measured time, as are the next.
    pub median: f64,
    pub within_quarter: f64,
    pub worst: f64,
    /// How many lie in their interval, 0 to 1.
    pub inside: f64,
}

/// A row that no program says.
#[derive(Debug, Serialize)]
pub struct LeftOut {
    pub id: String,
    pub reason: String,
}

/// Score files, or what is carried along.
pub fn score(files: &[PathBuf], target: &Target) -> anyhow::Result<Scores> {
    let mut scores = Scores::default();
    for (name, text) in CARRIED.iter().filter(|_| files.is_empty()) {
        add(name, text, target, &mut scores).with_context(|| (*name).to_owned())?;
    }
    for file in files {
        read(file)
            .and_then(|text| add(&file.display().to_string(), &text, target, &mut scores))
            .with_context(|| file.display().to_string())?;
    }
    Ok(scores)
}

fn read(file: &Path) -> anyhow::Result<String> {
    Ok(String::from_utf8(read_small(file, MOST_BYTES)?)?)
}

fn add(name: &str, text: &str, target: &Target, out: &mut Scores) -> anyhow::Result<()> {
    let table = Table::parse(text)?;
    ensure!(!table.rows().is_empty(), "it has a header and no rows");
    if table.column("case").is_ok() {
        out.placement.push(placements(name, text, target)?);
    } else if table.column("metric").is_ok() {
        out.latency.push(latencies(name, text)?);
    } else {
        bail!(
            "it has neither the columns of placements (case, op, shape_or_params, ane_supported, gpu_supported, reason) nor \
             those of measurements (id, kind, model, shape, dtype, chip, os, path, metric, value, unit, ..)"
        );
    }
    Ok(())
}

fn placements(name: &str, text: &str, target: &Target) -> anyhow::Result<PlacementScore> {
    let rows = placement::read(text)?;
    let score = placement::score(&rows, target);
    let groups: Vec<Matrix> = score
        .ane
        .iter()
        .map(|(group, c)| matrix(group, c))
        .collect();
    let misses = |of: &[Miss]| of.iter().map(miss).collect();
    Ok(PlacementScore {
        file: name.to_owned(),
        target: target.to_string(),
        rows: rows.len(),
        right: groups.iter().map(|g| g.right).sum(),
        groups,
        gpu: matrix("GPU", &score.gpu),
        misses: misses(&score.misses),
        gpu_misses: misses(&score.gpu_misses),
    })
}

fn matrix(group: &'static str, c: &Confusion) -> Matrix {
    Matrix {
        group,
        rows: c.n_rows(),
        right: c.n_right(),
        true_positive: c.true_positive,
        false_positive: c.false_positive,
        true_negative: c.true_negative,
        false_negative: c.false_negative,
        not_built: c.other,
    }
}

fn miss(m: &Miss) -> MissRow {
    MissRow {
        case: m.case.clone(),
        said: m.said.clone(),
        label: m.label.clone(),
    }
}

fn latencies(name: &str, text: &str) -> anyhow::Result<LatencyScore> {
    let rows = measurements::load(text)?;
    let scores = measurements::score(&rows);
    let mut groups: BTreeMap<(usize, String, bool), Vec<&Scored>> = BTreeMap::new();
    for row in &scores.scored {
        let names = ["all", &row.row.kind, row.chip, &row.row.path];
        for (by, name) in names.into_iter().enumerate() {
            groups
                .entry((by, name.to_owned(), row.row.is_seen()))
                .or_default()
                .push(row);
        }
    }
    let error = |((by, name, seen), rows): ((usize, String, bool), Vec<&Scored>)| {
        let Summary {
            n,
            median,
            within_quarter,
            worst,
            inside,
        } = summary(rows)?;
        let by = ["all", "kind", "chip", "path"][by];
        Some(ErrorRow {
            by,
            name,
            seen,
            n,
            median,
            within_quarter,
            worst,
            inside,
        })
    };
    let left_out = scores.inexpressible.iter();
    Ok(LatencyScore {
        file: name.to_owned(),
        rows: rows.len(),
        predicted: scores.scored.len(),
        groups: groups.into_iter().filter_map(error).collect(),
        left_out: left_out
            .map(|(row, why)| LeftOut {
                id: row.id.clone(),
                reason: why.clone(),
            })
            .collect(),
    })
}

/// For a terminal.
pub fn text(scores: &Scores) -> String {
    let blocks = scores
        .placement
        .iter()
        .map(placement_text)
        .chain(scores.latency.iter().map(latency_text));
    blocks.collect::<Vec<_>>().join("\n")
}

fn placement_text(s: &PlacementScore) -> String {
    let share = |right: usize, rows: usize| right as f64 / rows.max(1) as f64 * 100.0;
    let mut out = format!(
        "placement: {} of {} rows right, {:.1} %\n  {} for {}\n\n",
        s.right,
        s.rows,
        share(s.right, s.rows),
        shorten(&s.file, 40),
        s.target
    );
    out += &format!(
        "{:<15} {:>5} {:>6}   on the engine      not on it       not\n",
        "", "", ""
    );
    out += &format!(
        "{:<15} {:>5} {:>6}   {:>5} {:>8}   {:>5} {:>8}   {:>5}\n",
        "group", "rows", "right", "right", "missed", "right", "missed", "built"
    );
    for m in s.groups.iter().chain([&s.gpu]) {
        out += &format!(
            "{:<15} {:>5} {:>4.0} %   {:>5} {:>8}   {:>5} {:>8}   {:>5}\n",
            m.group,
            m.rows,
            share(m.right, m.rows),
            m.true_positive,
            m.false_negative,
            m.true_negative,
            m.false_positive,
            m.not_built
        );
    }
    for (word, misses) in [("  engine", &s.misses), ("  GPU", &s.gpu_misses)] {
        for m in misses {
            out += &wrap(
                word,
                12,
                &format!("{}: {} - the source: {}", m.case, m.said, m.label),
            );
        }
    }
    out
}

fn latency_text(s: &LatencyScore) -> String {
    let mut out = format!(
        "latency: {} of {} rows predicted\n  {}; errors are of the measured time, in percent\n\n",
        s.predicted,
        s.rows,
        shorten(&s.file, 40)
    );
    out += &format!(
        "{:<26} {:<6} {:>4} {:>7} {:>10} {:>7} {:>11}\n",
        "rows", "fitted", "n", "median", "within 25%", "worst", "in interval"
    );
    for g in &s.groups {
        let name = if g.by == "all" {
            "all".to_owned()
        } else {
            format!("{} {}", g.by, g.name)
        };
        let percent = |v: f64| short(v * 100.0);
        out += &format!(
            "{:<26} {:<6} {:>4} {:>7} {:>10} {:>7} {:>11}\n",
            shorten(&name, 26),
            if g.seen { "yes" } else { "no" },
            g.n,
            percent(g.median),
            percent(g.within_quarter),
            percent(g.worst),
            percent(g.inside)
        );
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    s.left_out
        .iter()
        .for_each(|l| *reasons.entry(&l.reason).or_insert(0) += 1);
    for (reason, n) in reasons {
        out += &wrap("  left out", 12, &format!("{n}: {reason}"));
    }
    out
}
