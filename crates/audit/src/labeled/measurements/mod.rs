//! Scores [`latency`](crate::latency) on published latencies and throughputs.
//!
//! A row describes in words what was measured; [`express`] turns the words into a function. The
//! function is audited for the chip, release and route of the row like any other program, and the
//! prediction is compared in milliseconds. Rows that cannot be expressed are kept with the
//! reason. Start reading at [`score`].

mod express;
mod graph;
mod text;

pub(super) use express::{device, units};

use serde::Serialize;
use thane_mil::program::Program;

use super::csv::{CsvError, Table};
use crate::latency::{Caller, Latency, predict_call};
use crate::place::{Placement, place};
use crate::target::Target;
use crate::{View, rules};

/// A measurement as it was published.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Number of the row in the collection.
    pub id: String,
    /// `op`, `graph`, `layer`, `peak`, `model`, `llm`.
    pub kind: String,
    /// What ran.
    pub model: String,
    /// In which sizes.
    pub shape: String,
    /// How weights were stored.
    pub dtype: String,
    /// On which chip.
    pub chip: String,
    /// Under which release.
    pub os: String,
    /// By which way in.
    pub path: String,
    /// What was measured.
    pub metric: String,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Operations, where the source tells.
    pub flops: Option<f64>,
    /// Bytes of weights, where the source tells.
    pub weight_bytes: Option<f64>,
    /// Remarks.
    pub note: String,
    /// What it was used for: `fit`, `check`, `constants`; `seen` where only other rows of its
    /// source were; `test` where none was.
    pub split: String,
    /// The repository and file that publish it.
    pub source: String,
    /// The whole model that ran, if it was one.
    pub rebuilt: Option<Rebuilt>,
}

/// A whole model that was rebuilt from its description.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rebuilt {
    /// Its programs in the [zoo](super::zoo), each with the number of calls: `text+unet*50`. Empty
    /// where it could not be rebuilt.
    pub programs: String,
    /// Why it could not.
    pub left_out: String,
    /// What a call does in the unit of the row: images, tokens.
    pub per_call: f64,
    /// The compute units: `all`, `cpuAndNE`, `cpuAndGPU`, `cpuOnly`, `ANE only`.
    pub units: String,
    /// What made the calls, where the source says: `predict` of coremltools, `aneforge`,
    /// `onnxruntime`, `swift`, `xcode`.
    pub caller: String,
}

impl Row {
    /// Whether numbers of the model were chosen with it, or other rows of its source, in view.
    pub fn is_seen(&self) -> bool {
        ["fit", "check", "constants", "seen"].contains(&self.split.as_str())
    }

    /// The repository and file that publish it, whatever the commit.
    pub fn source_file(&self) -> &str {
        self.source.split('@').next().unwrap_or_default()
    }
}

/// Why a file has no measurements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is not a table with the expected columns.
    #[error(transparent)]
    Csv(#[from] CsvError),
    /// A value is no number above 0.
    #[error("measurement {id}: {value:?} is no number above 0")]
    Value {
        /// Number of the row.
        id: String,
        /// What stands there.
        value: String,
    },
}

/// The measurements of a file with the columns of `ane_measurements.csv` or `whole_models.csv`.
pub fn load(text: &str) -> Result<Vec<Row>, LoadError> {
    let table = Table::parse(text)?;
    if table.column("program").is_ok() {
        return whole_models(&table, &["ms", "s", "per_s", "tok_s"]);
    }
    let mut rows = ops(&table)?;
    rows.retain(|row| row.metric != POWER);
    Ok(rows)
}

/// The metric of rows in watts.
const POWER: &str = "power";

/// The rows of ops and graphs in watts, as rows of a latency, which say what ran.
pub(super) fn powers(table: &Table) -> Result<Vec<Row>, LoadError> {
    let mut rows = ops(table)?;
    rows.retain(|row| row.metric == POWER);
    for row in &mut rows {
        row.metric = "latency".to_owned();
        row.unit = "ms".to_owned();
    }
    Ok(rows)
}

/// The rows of ops and graphs.
fn ops(table: &Table) -> Result<Vec<Row>, LoadError> {
    table.columns([
        "id",
        "kind",
        "model",
        "shape",
        "dtype",
        "chip",
        "os",
        "path",
        "metric",
        "unit",
        "source",
        "note",
        "split",
        "value",
        "flops",
        "weight_bytes",
    ])?;
    let row = |row: &Vec<String>| -> Result<Row, LoadError> {
        let text = |column| table.text(row, column);
        let id = text("id");
        Ok(Row {
            kind: text("kind"),
            model: text("model"),
            shape: text("shape"),
            dtype: text("dtype"),
            chip: text("chip"),
            os: text("os"),
            path: text("path"),
            metric: text("metric"),
            value: value_of(&id, &text("value"))?,
            unit: text("unit"),
            flops: number(&text("flops")),
            weight_bytes: number(&text("weight_bytes")),
            note: text("note"),
            split: text("split"),
            source: text("source"),
            rebuilt: None,
            id,
        })
    };
    table.rows().iter().map(row).collect()
}

/// The rows of whole models that have one of these metrics.
pub(super) fn whole_models(table: &Table, metrics: &[&str]) -> Result<Vec<Row>, LoadError> {
    table.columns([
        "id", "kind", "model", "detail", "chip", "os", "units", "path", "metric", "value",
        "source", "notes", "program", "per_call", "left_out", "split", "caller",
    ])?;
    let row = |row: &Vec<String>| -> Result<Row, LoadError> {
        let text = |column| table.text(row, column);
        let (id, value, per_call) = (text("id"), text("value"), text("per_call"));
        Ok(Row {
            kind: text("kind"),
            model: text("model"),
            shape: text("detail"),
            chip: text("chip"),
            os: text("os"),
            path: text("path"),
            unit: text("metric"),
            metric: text("metric"),
            // A placement may be 0; other measurements are above it.
            value: match value.trim() {
                "0" => 0.0,
                _ => value_of(&id, &value)?,
            },
            source: text("source"),
            note: text("notes"),
            split: text("split"),
            rebuilt: Some(Rebuilt {
                programs: text("program"),
                left_out: text("left_out"),
                per_call: match per_call.as_str() {
                    "" => 1.0,
                    _ => value_of(&id, &per_call)?,
                },
                units: text("units"),
                caller: text("caller"),
            }),
            id,
            ..Row::default()
        })
    };
    let rows = table.rows().iter();
    let wanted = rows.filter(|row| metrics.contains(&table.text(row, "metric").as_str()));
    wanted.map(row).collect()
}

/// A number above 0.
fn number(text: &str) -> Option<f64> {
    let value: f64 = text.trim().parse().ok()?;
    (value.is_finite() && value > 0.0).then_some(value)
}

fn value_of(id: &str, text: &str) -> Result<f64, LoadError> {
    number(text).ok_or_else(|| LoadError::Value {
        id: id.to_owned(),
        value: text.to_owned(),
    })
}

/// How a number follows from milliseconds of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Measure {
    /// It is the time of a call, in milliseconds over this.
    Time(f64),
    /// So much is done a call, and the number is how much a second.
    Rate(f64),
    /// Operations a second, counted in the function.
    Operations(f64),
}

/// What was measured, as a program.
struct Case {
    /// Programs of one function each, with how often it is called, as the equal parts of a model
    /// are.
    parts: Vec<(Program, f64)>,
    target: Target,
    caller: Caller,
    measure: Measure,
    /// Calls beside that which do nothing.
    idle_calls: f64,
    /// Layers that the time is divided by, the cost of the call left out.
    layers: Option<f64>,
}

/// A row with what is predicted for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The row.
    pub row: Row,
    /// Name of the chip in the tables.
    pub chip: &'static str,
    /// Milliseconds that were measured.
    pub measured_ms: f64,
    /// Milliseconds that are predicted.
    pub predicted_ms: f64,
    /// About 80 % are expected between these.
    pub interval_ms: (f64, f64),
    /// The whole prediction.
    pub latency: Latency,
}

impl Scored {
    /// How far the prediction is off, over what was measured.
    pub fn error(&self) -> f64 {
        (self.predicted_ms / self.measured_ms - 1.0).abs()
    }

    /// Whether the interval holds what was measured.
    pub fn is_inside(&self) -> bool {
        self.interval_ms.0 <= self.measured_ms && self.measured_ms <= self.interval_ms.1
    }
}

/// Predictions for rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Rows that are predicted.
    pub scored: Vec<Scored>,
    /// Rows that cannot be, each with the reason.
    pub inexpressible: Vec<(Row, String)>,
}

/// How well rows are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Rows.
    pub n: usize,
    /// Median error, as a share of the measured time, as are the next fields.
    pub median: f64,
    /// How many, 0 to 1, are off by a quarter at most.
    pub within_quarter: f64,
    /// The largest error.
    pub worst: f64,
    /// How many, 0 to 1, lie in their interval.
    pub inside: f64,
}

/// Sum up errors; none of no rows.
pub fn summary<'a>(rows: impl IntoIterator<Item = &'a Scored>) -> Option<Summary> {
    let rows: Vec<&Scored> = rows.into_iter().collect();
    let mut errors: Vec<f64> = rows.iter().map(|r| r.error()).collect();
    errors.sort_by(f64::total_cmp);
    let n = errors.len();
    let worst = *errors.last()?;
    let median = (errors[(n - 1) / 2] + errors[n / 2]) / 2.0;
    let part = |count: usize| count as f64 / n as f64;
    let within_quarter = part(errors.iter().filter(|e| **e <= 0.25).count());
    let inside = part(rows.iter().filter(|r| r.is_inside()).count());
    Some(Summary {
        n,
        median,
        within_quarter,
        worst,
        inside,
    })
}

/// Predict every row that can be.
pub fn score(rows: &[Row]) -> Scores {
    let mut scores = Scores::default();
    for row in rows {
        match express::case(row).and_then(|case| predict(row, &case)) {
            Ok(scored) => scores.scored.push(scored),
            Err(reason) => scores.inexpressible.push((row.clone(), reason)),
        }
    }
    scores
}

/// The placement of the program of a row, what is predicted for it, and the chip.
pub(super) fn judged(row: &Row) -> Result<(Placement, Latency, &'static str), String> {
    let case = express::case(row)?;
    let (program, _) = case.parts.first().ok_or("there is no program")?;
    let (placement, latency) = case.judge(program)?;
    Ok((placement, latency, case.target.chip.name))
}

impl Case {
    /// Where the ops of one of its programs run, and how long a call takes.
    fn judge(&self, program: &Program) -> Result<(Placement, Latency), String> {
        let function = program.functions().first().ok_or("there is no function")?;
        let view = View::new(program, function, &self.target);
        let placement = place(&view, &rules::find(&view));
        let latency = predict_call(&view, &placement, self.caller);
        Ok((placement, latency))
    }
}

fn predict(row: &Row, case: &Case) -> Result<Scored, String> {
    let mut sum = Sum::default();
    for (program, calls) in &case.parts {
        let (placement, latency) = case.judge(program)?;
        sum.add(&latency, *calls);
        sum.flops += placement.ops.iter().map(|op| op.work.flops).sum::<f64>();
        sum.first.get_or_insert(latency);
    }
    let latency = sum.first.ok_or("there is no program")?;
    let mut predicted_ms = sum.ms + latency.parts.dispatch * 1e3 * case.idle_calls;
    if let Some(layers) = case.layers {
        predicted_ms = (latency.ms - latency.parts.dispatch * 1e3) / layers;
    }
    let flops = sum.flops;
    let measured_ms = match case.measure {
        Measure::Time(unit) => row.value * unit,
        Measure::Rate(n) => 1e3 * n / row.value,
        Measure::Operations(unit) => row.flops.unwrap_or(flops) / (row.value * unit) * 1e3,
    };
    let scale = if sum.ms > 0.0 {
        predicted_ms / sum.ms
    } else {
        1.0
    };
    let interval_ms = (sum.interval_ms.0 * scale, sum.interval_ms.1 * scale);
    let usable = measured_ms.is_finite() && measured_ms > 0.0 && predicted_ms.is_finite();
    usable
        .then(|| Scored {
            row: row.clone(),
            chip: case.target.chip.name,
            measured_ms,
            predicted_ms,
            interval_ms,
            latency,
        })
        .ok_or_else(|| "it has no time".to_owned())
}

/// The calls of a case, added up.
#[derive(Default)]
struct Sum {
    ms: f64,
    interval_ms: (f64, f64),
    flops: f64,
    /// The call of the first program.
    first: Option<Latency>,
}

impl Sum {
    fn add(&mut self, latency: &Latency, calls: f64) {
        self.ms += latency.ms * calls;
        self.interval_ms.0 += latency.interval_ms.0 * calls;
        self.interval_ms.1 += latency.interval_ms.1 * calls;
    }
}
