//! The numbers of the model with what they were chosen with: each cites works by the names of
//! [`WORKS`], and a work names the files whose rows in the tables of this crate are its own, or the
//! document where it has no rows.

mod works;

use std::collections::BTreeMap;

use serde::Serialize;

use super::csv::{CsvError, Table};
use crate::calls;
use crate::latency::{self, ane, energy, spread, whole};
use crate::place::estimate;
use crate::plan::stream;
use crate::report::memory;
use crate::target::{ASLEEP_US, CHIPS, Chip, Figure, RELEASES, Release};
use crate::work;

pub use works::{WORKS, Work};

/// A number of the model, for the chips that have the same.
#[derive(Clone, Debug, Serialize)]
pub struct ParameterRow {
    /// Its name, which ends in its unit. What follows `segmenter.` is for placing ops, not for
    /// their times. What follows `spread.` and `interval.` is the logarithm of a factor: by how
    /// much a part of a call, or a whole model of a class, may be wrong.
    pub name: String,
    /// Names of the chips; empty where all share the number.
    pub chips: Vec<&'static str>,
    /// The number.
    pub value: f64,
    /// Low bound.
    pub low: f64,
    /// High bound.
    pub high: f64,
    /// `documented`, `measured`, `inferred` or `folklore`.
    pub evidence: &'static str,
    /// The source, as the number has it.
    pub source: &'static str,
    /// The works that the source names.
    pub works: Vec<&'static str>,
}

/// A work that numbers cite.
#[derive(Clone, Debug, Serialize)]
pub struct WorkRow {
    /// Its name in sources.
    pub name: &'static str,
    /// What it is, where it has no rows.
    pub document: &'static str,
    /// Its files, as rows name them, with the ids of their rows.
    pub files: Vec<FileRow>,
}

/// A file of a work.
#[derive(Clone, Debug, Serialize)]
pub struct FileRow {
    /// Repository and file.
    pub file: &'static str,
    /// The table that has its rows.
    pub table: &'static str,
    /// Ids of its rows; empty in a table without ids.
    pub ids: Vec<String>,
    /// How many rows.
    pub rows: usize,
    /// What the rows were used for, as the column `split` has it.
    pub splits: Vec<String>,
}

/// Every number, in the order of chips.
pub fn parameters() -> Vec<ParameterRow> {
    let mut rows: Vec<ParameterRow> = Vec::new();
    for chip in CHIPS {
        for (name, figure) in of_chip(chip) {
            add(&mut rows, &name, Some(chip.name), figure);
        }
    }
    for (name, figure) in shared() {
        add(&mut rows, &name, None, figure);
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

fn of_chip(chip: &Chip) -> Vec<(String, Figure)> {
    let streaming = &chip.family.streaming;
    let palettes = [
        ("palette_gps", streaming.palette_gps),
        ("grouped_palette_gps", streaming.grouped_palette_gps),
    ];
    let palettes = palettes.into_iter().filter_map(|(n, f)| Some((n, f?)));
    let own = chip.figures().into_iter().chain(chip.counts());
    let own = own.chain(palettes);
    let own = own.map(|(name, figure)| (name.to_owned(), figure));
    own.chain(segmenter(chip.family.segmenter.figures()))
        .collect()
}

fn segmenter(
    figures: impl IntoIterator<Item = (&'static str, Figure)>,
) -> impl Iterator<Item = (String, Figure)> {
    let named = |(name, figure)| (format!("segmenter.{name}"), figure);
    figures.into_iter().map(named)
}

/// What all chips share.
fn shared() -> Vec<(String, Figure)> {
    let (first, last) = (&RELEASES[0], Release::newest());
    let limits = [
        ("program_bytes", first.program_bytes),
        ("newest_program_bytes", last.program_bytes),
        ("phone_bytes", last.phone_bytes),
        ("wired_bytes", memory::WIRED),
        ("asleep_us", ASLEEP_US),
    ];
    let of_calls = latency::FIGURES.into_iter().chain(ane::FIGURES);
    let of_calls = of_calls.chain(work::FIGURES).chain(stream::FIGURES);
    let of_calls = of_calls.chain(spread::FIGURES).chain(calls::FIGURES);
    let all = of_calls.chain(energy::FIGURES).chain(limits);
    let all = all.map(|(name, figure)| (name.to_owned(), figure));
    let all = all.chain(whole::figures());
    all.chain(segmenter(estimate::FIGURES)).collect()
}

/// Add a number, to the row of other chips with the same where there is one.
fn add(rows: &mut Vec<ParameterRow>, name: &str, chip: Option<&'static str>, figure: Figure) {
    let is_same = |row: &&mut ParameterRow| {
        row.name == name
            && (row.value, row.low, row.high) == (figure.value, figure.low, figure.high)
            && (row.evidence, row.source) == (figure.evidence.name(), figure.source)
    };
    if let Some(row) = rows.iter_mut().find(is_same) {
        row.chips.extend(chip);
        return;
    }
    rows.push(ParameterRow {
        name: name.to_owned(),
        chips: chip.into_iter().collect(),
        value: figure.value,
        low: figure.low,
        high: figure.high,
        evidence: figure.evidence.name(),
        source: figure.source,
        works: cited(figure.source)
            .map(|work| work.name.as_str())
            .collect(),
    });
}

/// The works that a source names.
pub fn cited(source: &str) -> impl Iterator<Item = &'static Work> {
    WORKS.iter().filter(move |work| source.contains(&work.name))
}

/// Parts of a source that name no work.
pub fn dangling(source: &str) -> Vec<&str> {
    let parts = source.split("; ");
    parts.filter(|part| cited(part).next().is_none()).collect()
}

/// Every work, with the rows of its files in `tables`, each with its name.
pub fn works(tables: &[(&'static str, &str)]) -> Result<Vec<WorkRow>, CsvError> {
    let mut found: BTreeMap<String, Vec<FileRow>> = BTreeMap::new();
    for (table, text) in tables {
        let parsed = Table::parse(text)?;
        let (Ok(source), Ok(split)) = (parsed.column("source"), parsed.column("split")) else {
            continue;
        };
        let id = parsed.column("id").ok();
        for row in parsed.rows() {
            let file = row[source].split('@').next().unwrap_or_default();
            let mut files = WORKS.iter().flat_map(|w| &w.files);
            let Some(file) = files.find(|f| *f == file) else {
                continue;
            };
            let files = found.entry(file.clone()).or_default();
            if files.last().is_none_or(|last| last.table != *table) {
                files.push(FileRow {
                    file,
                    table,
                    ids: Vec::new(),
                    rows: 0,
                    splits: Vec::new(),
                });
            }
            let Some(last) = files.last_mut() else {
                continue;
            };
            last.rows += 1;
            last.ids.extend(id.map(|id| row[id].clone()));
            if !last.splits.contains(&row[split]) {
                last.splits.push(row[split].clone());
            }
        }
    }
    let row = |work: &'static Work| {
        let rows = work.files.iter().filter_map(|file| found.get(file));
        WorkRow {
            name: &work.name,
            document: &work.document,
            files: rows.flatten().cloned().collect(),
        }
    };
    Ok(WORKS.iter().map(row).collect())
}
