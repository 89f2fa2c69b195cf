//! Scores the rules on published placements of single ops.

use std::collections::BTreeMap;

use serde::Serialize;
use thane_mil::opset::GROUPS;

use super::call::{CallError, call};
use super::csv::{CsvError, Table};
use super::notation::Notation;
use crate::rule::Effect;
use crate::rules;
use crate::target::Target;
use crate::view::View;

/// A placement that was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// The op, or several joined by `/`.
    pub op: String,
    /// How it is called, in [`Notation`].
    pub description: String,
    /// Whether Core ML runs it on the engine.
    pub ane: bool,
    /// Whether Core ML runs it on the GPU.
    pub gpu: bool,
    /// What the source says of it.
    pub reason: String,
}

/// Read rows from a text with the columns
/// `case,op,shape_or_params,ane_supported,gpu_supported,reason`.
pub fn read(text: &str) -> Result<Vec<Row>, CsvError> {
    let table = Table::parse(text)?;
    let [case, op, description, ane, gpu, reason] = table.columns([
        "case",
        "op",
        "shape_or_params",
        "ane_supported",
        "gpu_supported",
        "reason",
    ])?;
    let row = |(i, r): (usize, &Vec<String>)| {
        let flag = |at: usize| match r[at].trim() {
            "0" => Ok(false),
            "1" => Ok(true),
            found => Err(CsvError::Flag {
                row: i + 1,
                found: found.to_owned(),
            }),
        };
        Ok(Row {
            case: r[case].clone(),
            op: r[op].clone(),
            description: r[description].clone(),
            ane: flag(ane)?,
            gpu: flag(gpu)?,
            reason: r[reason].clone(),
        })
    };
    table.rows().iter().enumerate().map(row).collect()
}

/// What the rules say of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// Whether the engine runs it.
    pub ane: bool,
    /// Whether the GPU runs it.
    pub gpu: bool,
    /// Why the engine does not: id of the rule and what it says.
    pub reasons: Vec<String>,
}

/// What the rules say of a row on a target; of several ops, all must run.
pub fn predict(row: &Row, target: &Target) -> Result<Prediction, CallError> {
    let notation = Notation::parse(&row.case, &row.description);
    let mut prediction = Prediction {
        ane: true,
        gpu: true,
        reasons: Vec::new(),
    };
    for op in row.op.split('/').map(str::trim) {
        let called = call(op, &notation)?;
        let function = &called.program.functions()[0];
        let view = View::new(&called.program, function, target);
        let leaves = rules::find(&view)
            .into_iter()
            .filter(|f| f.op == Some(called.op) && f.rule.effect == Effect::OpLeaves);
        prediction
            .reasons
            .extend(leaves.map(|f| format!("{}: {}", f.rule.id, f.message)));
        prediction.gpu &= rules::gpu_supports(&view, called.op);
    }
    prediction.ane = prediction.reasons.is_empty();
    Ok(prediction)
}

/// Labels against predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confusion {
    /// Supported, and said to be.
    pub true_positive: usize,
    /// Not supported, and said to be.
    pub false_positive: usize,
    /// Not supported, and said not to be.
    pub true_negative: usize,
    /// Supported, and said not to be.
    pub false_negative: usize,
    /// No program could be made.
    pub other: usize,
}

impl Confusion {
    fn count(&mut self, label: bool, said: bool) {
        let cell = match (label, said) {
            (true, true) => &mut self.true_positive,
            (false, true) => &mut self.false_positive,
            (false, false) => &mut self.true_negative,
            (true, false) => &mut self.false_negative,
        };
        *cell += 1;
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.n_right() + self.false_positive + self.false_negative + self.other
    }

    /// Rows that were said right.
    pub fn n_right(&self) -> usize {
        self.true_positive + self.true_negative
    }
}

/// A row that was said wrong, or could not be built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Miss {
    /// Name of the case.
    pub case: String,
    /// What was said, or why nothing could be.
    pub said: String,
    /// What the source says of it.
    pub label: String,
}

/// How well the rules say what was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Support by the engine, by group of ops.
    pub ane: BTreeMap<&'static str, Confusion>,
    /// Support by the GPU.
    pub gpu: Confusion,
    /// Rows whose support by the engine was said wrong, or that could not be built.
    pub misses: Vec<Miss>,
    /// Rows whose support by the GPU was said wrong.
    pub gpu_misses: Vec<Miss>,
}

impl Score {
    /// The share of rows whose support by the engine was said right; rows that could not be built
    /// are wrong.
    pub fn share_right(&self) -> f64 {
        let sum = |f: fn(&Confusion) -> usize| self.ane.values().map(f).sum::<usize>() as f64;
        sum(Confusion::n_right) / sum(Confusion::n_rows).max(1.0)
    }
}

/// Judge every row.
pub fn score(rows: &[Row], target: &Target) -> Score {
    let mut score = Score::default();
    for row in rows {
        let confusion = score.ane.entry(group(&row.op)).or_default();
        let label = format!(
            "engine {}, GPU {}: {}",
            u8::from(row.ane),
            u8::from(row.gpu),
            row.reason
        );
        let miss = |said: String| Miss {
            case: row.case.clone(),
            said,
            label,
        };
        match predict(row, target) {
            Err(error) => {
                confusion.other += 1;
                score.gpu.other += 1;
                score.misses.push(miss(format!("not built: {error}")));
            }
            Ok(prediction) => {
                confusion.count(row.ane, prediction.ane);
                score.gpu.count(row.gpu, prediction.gpu);
                if prediction.ane != row.ane {
                    let why = if prediction.ane {
                        "no rule fires".to_owned()
                    } else {
                        prediction.reasons.join("; ")
                    };
                    score.misses.push(miss(why));
                } else if prediction.gpu != row.gpu {
                    score
                        .gpu_misses
                        .push(miss(format!("GPU {}", u8::from(prediction.gpu))));
                }
            }
        }
    }
    score
}

/// The names of the opset's groups, in its order.
const GROUP_NAMES: [&str; 26] = [
    "activation",
    "block",
    "boxes",
    "classify",
    "constexpr",
    "control",
    "conv",
    "elementwise",
    "fill",
    "gather",
    "image",
    "join",
    "linear",
    "list",
    "normalization",
    "permute",
    "pool",
    "quantization",
    "random",
    "recurrent",
    "reduce",
    "scatter",
    "shape",
    "slice",
    "sort",
    "state",
];

fn group(op: &str) -> &'static str {
    let first = op.split('/').next().unwrap_or_default().trim();
    let at = GROUPS
        .iter()
        .position(|g| g.iter().any(|def| def.name == first));
    at.and_then(|i| GROUP_NAMES.get(i))
        .copied()
        .unwrap_or("unknown")
}
