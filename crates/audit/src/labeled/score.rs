//! Scores the audit on what others measured and published: the data that this crate carries
//! ([`CARRIED`]), or tables with the same columns.

use std::collections::BTreeMap;

use serde::Serialize;

use super::counts;
pub use super::counts::OpCountRow;
use super::csv::{CsvError, Table};
use super::measurements::{self, LoadError, Scored, Summary, summary};
use super::parameters::{self, ParameterRow, WorkRow};
use super::placement::{self, Confusion, Miss};
use super::plans;
pub use super::plans::{PlanMiss, PlanRow};
use super::power::{self, left_out_text};
pub use super::power::{LeftOut, PowerRow};
use super::shares;
pub use super::shares::ShareRow;
use crate::format::wrap::{item, shorten};
use crate::latency::whole::Class;
use crate::number::short;
use crate::target::Target;

/// Name and text of the published data that this crate carries.
pub const CARRIED: [(&str, &str); 4] = [
    (
        "ane_placement_m4.csv",
        include_str!("../../data/ane_placement_m4.csv"),
    ),
    (
        "placed_models.csv",
        include_str!("../../data/placed_models.csv"),
    ),
    (
        "ane_measurements.csv",
        include_str!("../../data/ane_measurements.csv"),
    ),
    (
        "whole_models.csv",
        include_str!("../../data/whole_models.csv"),
    ),
];

/// What `--self-check --json` prints.
#[derive(Debug, Default, Serialize)]
pub struct Scores {
    /// Files of placements.
    pub placement: Vec<PlacementScore>,
    /// Files of compute plans of whole models.
    pub plans: Vec<PlanScore>,
    /// Files of measurements.
    pub latency: Vec<LatencyScore>,
    /// The numbers of the model; empty for files of the user.
    pub parameters: Vec<ParameterRow>,
    /// The works that they cite.
    pub works: Vec<WorkRow>,
}

/// A file of placements.
#[derive(Debug, Serialize)]
pub struct PlacementScore {
    /// Name of the file.
    pub file: String,
    /// The target.
    pub target: String,
    /// Rows of the file.
    pub rows: usize,
    /// Rows predicted right.
    pub right: usize,
    /// Support by the Neural Engine, for each group of rows.
    pub groups: Vec<Matrix>,
    /// Support by the GPU.
    pub gpu: Matrix,
    /// Rows whose support by the Neural Engine was predicted wrong.
    pub misses: Vec<Miss>,
    /// Rows whose support by the GPU was predicted wrong.
    pub gpu_misses: Vec<Miss>,
}

/// A file of compute plans.
#[derive(Debug, Serialize)]
pub struct PlanScore {
    /// Name of the file.
    pub file: String,
    /// Each plan.
    pub plans: Vec<PlanRow>,
    /// Plans that are not predicted.
    pub left_out: Vec<LeftOut>,
}

/// Labels against what was said.
#[derive(Debug, Serialize)]
pub struct Matrix {
    /// Group of rows.
    pub group: &'static str,
    /// Rows of the group.
    pub rows: usize,
    /// Rows predicted right.
    pub right: usize,
    /// Supported, and said to be.
    pub true_positive: usize,
    /// Not supported, but predicted to be.
    pub false_positive: usize,
    /// Not supported, and predicted not to be.
    pub true_negative: usize,
    /// Supported, but predicted not to be.
    pub false_negative: usize,
    /// No program could be made of the row.
    pub not_built: usize,
}

/// A file of measurements.
#[derive(Debug, Serialize)]
pub struct LatencyScore {
    /// Name of the file.
    pub file: String,
    /// Rows of the file.
    pub rows: usize,
    /// Rows that a program could be made of.
    pub predicted: usize,
    /// Errors by kind, chip and route.
    pub groups: Vec<ErrorRow>,
    /// Rows that no program could be made of.
    pub left_out: Vec<LeftOut>,
    /// Each whole model that was rebuilt.
    pub models: Vec<ModelRow>,
    /// How much of each whole model runs on the Neural Engine.
    pub shares: Vec<ShareRow>,
    /// Rows with such a share that are not predicted.
    pub shares_left_out: Vec<LeftOut>,
    /// How many ops each whole model has.
    pub op_counts: Vec<OpCountRow>,
    /// Power of the Neural Engine.
    pub powers: Vec<PowerRow>,
    /// Rows in watts that are not predicted.
    pub powers_left_out: Vec<LeftOut>,
}

/// A measurement of a whole model.
#[derive(Debug, Serialize)]
pub struct ModelRow {
    /// Id of the row.
    pub id: String,
    /// What ran, as the source calls it.
    pub model: String,
    /// Kind of the model.
    pub kind: String,
    /// Name of the chip in the tables.
    pub chip: &'static str,
    /// The compute units.
    pub units: String,
    /// Whether numbers of the model were chosen with the row in view.
    pub seen: bool,
    /// Measured milliseconds.
    pub measured_ms: f64,
    /// Predicted milliseconds.
    pub predicted_ms: f64,
    /// About 80 % are expected between these.
    pub interval_ms: (f64, f64),
    /// What made the calls, where the source says.
    pub caller: String,
    /// Milliseconds of the prediction that the caller adds, in the first program: copies of inputs
    /// and outputs, and what the bindings of its language take.
    pub caller_ms: f64,
    /// Class of whole models that the interval goes by; null for small programs.
    pub class: Option<&'static str>,
    /// In what it is far from the models that intervals were fitted to.
    pub far: Vec<String>,
    /// Where it is published.
    pub source: String,
}

/// Errors of some rows.
#[derive(Debug, Serialize)]
pub struct ErrorRow {
    /// `all`, `kind`, `chip`, `path`, or `compressed`: the chip of rows with compressed weights.
    pub by: &'static str,
    /// Name of the group.
    pub name: String,
    /// Whether numbers of the model were chosen with these rows in view.
    pub seen: bool,
    /// The errors.
    #[serde(flatten)]
    pub errors: Summary,
}

/// Why a file cannot be scored.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    /// It is no table.
    #[error(transparent)]
    Csv(#[from] CsvError),
    /// A row of measurements cannot be read.
    #[error(transparent)]
    Measurement(#[from] LoadError),
    /// It has no rows.
    #[error("it has a header and no rows")]
    Empty,
    /// Its columns are those of no kind of data.
    #[error(
        "it has neither the columns of placements (case, op, shape_or_params, ane_supported, \
         gpu_supported, reason), those of compute plans (program, chip, os, units, first, unit, \
         ops, source, split), nor those of measurements (id, kind, model, shape, dtype, chip, \
         os, path, metric, value, unit, ..)"
    )]
    Columns,
}

impl Scores {
    /// Score the data that this crate carries, and list the numbers that were chosen with it.
    pub fn of_carried(target: &Target) -> Result<Self, ScoreError> {
        let mut scores = Self {
            parameters: parameters::parameters(),
            works: parameters::works(&CARRIED)?,
            ..Self::default()
        };
        for (name, text) in CARRIED {
            scores.add(name, text, target)?;
        }
        Ok(scores)
    }

    /// Score the text of one file; `name` is the file's name for the report.
    pub fn add(&mut self, name: &str, text: &str, target: &Target) -> Result<(), ScoreError> {
        let table = Table::parse(text)?;
        if table.rows().is_empty() {
            return Err(ScoreError::Empty);
        }
        if table.column("case").is_ok() {
            self.placement.push(placements(name, text, target)?);
        } else if table.column("first").is_ok() {
            let (plans, left_out) = plans::score(text)?;
            self.plans.push(PlanScore {
                file: name.to_owned(),
                plans,
                left_out,
            });
        } else if table.column("metric").is_ok() {
            self.latency.push(latencies(name, text)?);
        } else {
            return Err(ScoreError::Columns);
        }
        Ok(())
    }
}

fn placements(name: &str, text: &str, target: &Target) -> Result<PlacementScore, ScoreError> {
    let rows = placement::read(text)?;
    let score = placement::score(&rows, target);
    let groups: Vec<Matrix> = score
        .ane
        .iter()
        .map(|(group, c)| matrix(group, c))
        .collect();
    Ok(PlacementScore {
        file: name.to_owned(),
        target: target.to_string(),
        rows: rows.len(),
        right: groups.iter().map(|g| g.right).sum(),
        groups,
        gpu: matrix("GPU", &score.gpu),
        misses: score.misses,
        gpu_misses: score.gpu_misses,
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

fn latencies(name: &str, text: &str) -> Result<LatencyScore, ScoreError> {
    let rows = measurements::load(text)?;
    let scores = measurements::score(&rows);
    let mut groups: BTreeMap<(usize, String, bool), Vec<&Scored>> = BTreeMap::new();
    for row in &scores.scored {
        let names = ["all", &row.row.kind, row.chip, &row.row.path];
        let compressed = row.latency.reads_compressed.then_some(row.chip);
        for (by, name) in names.into_iter().chain(compressed).enumerate() {
            groups
                .entry((by, name.to_owned(), row.row.is_seen()))
                .or_default()
                .push(row);
        }
    }
    let error = |((by, name, seen), rows): ((usize, String, bool), Vec<&Scored>)| {
        Some(ErrorRow {
            by: ["all", "kind", "chip", "path", "compressed"][by],
            name,
            seen,
            errors: summary(rows)?,
        })
    };
    let left_out = scores.inexpressible.iter();
    let models = scores.scored.iter().filter_map(model_row).collect();
    let (shares, shares_left_out) = shares::score(text)?;
    let (powers, powers_left_out) = power::score(text)?;
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
        models,
        shares,
        shares_left_out,
        op_counts: counts::score(text)?,
        powers,
        powers_left_out,
    })
}

fn model_row(scored: &Scored) -> Option<ModelRow> {
    let rebuilt = scored.row.rebuilt.as_ref()?;
    Some(ModelRow {
        id: scored.row.id.clone(),
        model: scored.row.model.clone(),
        kind: scored.row.kind.clone(),
        chip: scored.chip,
        units: rebuilt.units.clone(),
        caller: rebuilt.caller.clone(),
        caller_ms: (scored.latency.parts.copies + scored.latency.parts.caller) * 1e3,
        class: scored.latency.class.map(Class::name),
        far: scored
            .latency
            .class
            .map(|class| scored.latency.far.reasons(class, scored.chip))
            .unwrap_or_default(),
        seen: scored.row.is_seen(),
        measured_ms: scored.measured_ms,
        predicted_ms: scored.predicted_ms,
        interval_ms: scored.interval_ms,
        source: scored.row.source.clone(),
    })
}

/// For a terminal.
pub fn text(scores: &Scores) -> String {
    let blocks = scores
        .placement
        .iter()
        .map(placement_text)
        .chain(
            scores
                .plans
                .iter()
                .map(|s| plans::text(&s.file, &s.plans, &s.left_out)),
        )
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
    for (word, misses) in [("engine", &s.misses), ("GPU", &s.gpu_misses)] {
        for m in misses {
            out += &item(
                word,
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
            g.errors.n,
            percent(g.errors.median),
            percent(g.errors.within_quarter),
            percent(g.errors.worst),
            percent(g.errors.inside)
        );
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    s.left_out
        .iter()
        .for_each(|l| *reasons.entry(&l.reason).or_insert(0) += 1);
    for (reason, n) in reasons {
        out += &item("left out", &format!("{n}: {reason}"));
    }
    let counted = counts::text(&s.op_counts);
    out + &models_text(s) + &shares_text(s) + &counted + &power::text(&s.powers, &s.powers_left_out)
}

fn models_text(s: &LatencyScore) -> String {
    if s.models.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\nwhole models, in milliseconds\n\n{:<26} {:<9} {:<9} {:<6} {:>9} {:>9} {:>17}  source\n",
        "model", "chip", "units", "fitted", "measured", "predicted", "interval"
    );
    for m in &s.models {
        let interval = format!("{} to {}", short(m.interval_ms.0), short(m.interval_ms.1));
        out += &format!(
            "{:<26} {:<9} {:<9} {:<6} {:>9} {:>9} {:>17}  {}\n",
            shorten(&m.model, 26),
            m.chip,
            m.units,
            if m.seen { "yes" } else { "no" },
            short(m.measured_ms),
            short(m.predicted_ms),
            interval,
            m.source
        );
    }
    out
}

fn shares_text(s: &LatencyScore) -> String {
    if s.shares.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\nshare of ops on the engine, in percent\n\n{:<34} {:<9} {:<9} {:<6} {:>9} {:>9}  source\n",
        "model", "chip", "units", "fitted", "published", "predicted"
    );
    for m in &s.shares {
        out += &format!(
            "{:<34} {:<9} {:<9} {:<6} {:>9} {:>9}  {}\n",
            shorten(&m.model, 34),
            m.chip,
            m.units,
            if m.seen { "yes" } else { "no" },
            short(m.published * 100.0),
            short(m.predicted * 100.0),
            m.source
        );
    }
    out + &left_out_text(&s.shares_left_out)
}
