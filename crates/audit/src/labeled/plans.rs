//! Compares where each op of a whole model runs with what Core ML's compute plan said.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::csv::{CsvError, Table};
use super::measurements::{device, units};
use super::power::{LeftOut, left_out_text};
use super::zoo;
use crate::format::wrap::{item, shorten};
use crate::number::short;
use crate::place::{Backend, place};
use crate::rules;
use crate::target::Route;
use crate::view::View;

/// The ops of a whole model, where they run and where they were predicted to.
#[derive(Debug, Serialize)]
pub struct PlanRow {
    /// Name of the program in the zoo.
    pub program: String,
    /// Name of the chip in the tables.
    pub chip: &'static str,
    /// The compute units.
    pub units: &'static str,
    /// Whether numbers of the model were chosen with the row in view.
    pub seen: bool,
    /// Ops of the plan.
    pub ops: usize,
    /// Ops predicted on the unit that runs them.
    pub right: usize,
    /// Published share of ops on the engine, 0 to 1.
    pub published: f64,
    /// Predicted share, 0 to 1.
    pub predicted: f64,
    /// Ops predicted on another unit.
    pub misses: Vec<PlanMiss>,
    /// Where it is published.
    pub source: String,
}

/// Ops of a type that run on one unit and were predicted on another.
#[derive(Debug, Serialize)]
pub struct PlanMiss {
    /// Type of the ops.
    pub op: String,
    /// `ANE`, `GPU` or `CPU`: where they run.
    pub published: &'static str,
    /// Where they were predicted.
    pub predicted: &'static str,
    /// How many.
    pub n: usize,
}

/// A plan as published: the type and the unit of each op, in order.
struct Plan {
    program: String,
    chip: String,
    os: String,
    units: String,
    ops: Vec<(String, &'static str)>,
    is_seen: bool,
    source: String,
}

/// A plan by its name, or why it cannot be read.
type Named = (String, Result<Plan, String>);

const UNITS: [&str; 3] = ["ANE", "GPU", "CPU"];

/// Score a text with the columns `program,chip,os,units,first,unit,ops,source,split`: a row is a
/// run of ops on one unit. Plans that are not predicted come with the reason.
pub fn score(text: &str) -> Result<(Vec<PlanRow>, Vec<LeftOut>), CsvError> {
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for (name, plan) in read(&Table::parse(text)?)? {
        match plan.and_then(|plan| compare(&plan)) {
            Ok(row) => rows.push(row),
            Err(reason) => left_out.push(LeftOut { id: name, reason }),
        }
    }
    Ok((rows, left_out))
}

/// The plans of a table with a name each, in its order.
fn read(table: &Table) -> Result<Vec<Named>, CsvError> {
    let [program, chip, os, units, first, unit, ops, source, split] = table.columns([
        "program", "chip", "os", "units", "first", "unit", "ops", "source", "split",
    ])?;
    let mut plans: Vec<Named> = Vec::new();
    for row in table.rows() {
        let name = [program, chip, os, units]
            .map(|at| row[at].trim())
            .join(", ");
        if plans.last().is_none_or(|(last, _)| *last != name) {
            let plan = Plan {
                program: row[program].trim().to_owned(),
                chip: row[chip].clone(),
                os: row[os].clone(),
                units: row[units].trim().to_owned(),
                ops: Vec::new(),
                is_seen: row[split].trim() != "test",
                source: row[source].clone(),
            };
            plans.push((name, Ok(plan)));
        }
        if let Some((_, plan)) = plans.last_mut()
            && let Ok(open) = plan
            && let Err(reason) = add_run(open, &row[first], &row[unit], &row[ops])
        {
            *plan = Err(reason);
        }
    }
    Ok(plans)
}

fn add_run(plan: &mut Plan, first: &str, unit: &str, ops: &str) -> Result<(), String> {
    let next = plan.ops.len() + 1;
    if first.trim().parse() != Ok(next) {
        return Err(format!("expected a run from op {next}, found {first:?}"));
    }
    let unit = UNITS
        .into_iter()
        .find(|name| *name == unit.trim())
        .ok_or_else(|| format!("expected ANE, GPU or CPU from op {next}, found {unit:?}"))?;
    let ops = ops.split_whitespace().map(|op| (op.to_owned(), unit));
    plan.ops.extend(ops);
    Ok(())
}

fn compare(plan: &Plan) -> Result<PlanRow, String> {
    let units = units(&plan.units)?;
    let target = device(&plan.chip, &plan.os, units, Route::CoreMl)?;
    let program = zoo::program(&plan.program)?;
    let function = program.functions().first().ok_or("there is no function")?;
    let view = View::new(&program, function, &target);
    let placement = place(&view, &rules::find(&view));
    // Ops that do not depend on each other may stand in another order, so the first `add` of the
    // plan is the first of the program, and so on.
    let mut ours: HashMap<&str, Vec<&'static str>> = HashMap::new();
    for op in placement.ops.iter().rev() {
        let name = view.op(op.op).def.name;
        ours.entry(name).or_default().push(unit_of(op.chosen));
    }
    let mut right = 0;
    let mut misses: BTreeMap<(&str, &'static str, &'static str), usize> = BTreeMap::new();
    for (op, published) in &plan.ops {
        let predicted = ours
            .get_mut(op.as_str())
            .and_then(Vec::pop)
            .ok_or_else(|| format!("the plan has more ops {op:?} than the rebuilt program"))?;
        if predicted == *published {
            right += 1;
        } else {
            *misses.entry((op, published, predicted)).or_insert(0) += 1;
        }
    }
    if let Some((op, _)) = ours.iter().find(|(_, left)| !left.is_empty()) {
        return Err(format!(
            "the rebuilt program has more ops {op:?} than the plan"
        ));
    }
    let on_engine = plan.ops.iter().filter(|(_, unit)| *unit == "ANE").count();
    Ok(PlanRow {
        program: plan.program.clone(),
        chip: target.chip.name,
        units: units.name(),
        seen: plan.is_seen,
        ops: plan.ops.len(),
        right,
        published: on_engine as f64 / plan.ops.len().max(1) as f64,
        predicted: placement.residency(),
        misses: misses
            .into_iter()
            .map(|((op, published, predicted), n)| PlanMiss {
                op: op.to_owned(),
                published,
                predicted,
                n,
            })
            .collect(),
        source: plan.source.clone(),
    })
}

fn unit_of(backend: Backend) -> &'static str {
    match backend {
        Backend::Ane => "ANE",
        Backend::MpsGraph => "GPU",
        Backend::Bnns | Backend::ClassicCpu => "CPU",
    }
}

/// For a terminal.
pub fn text(file: &str, rows: &[PlanRow], left_out: &[LeftOut]) -> String {
    let sum = |f: fn(&PlanRow) -> usize| rows.iter().map(f).sum::<usize>();
    let mut out = format!(
        "placement of whole models: {} of {} ops right\n  {}; shares on the engine are in percent\n\n",
        sum(|row| row.right),
        sum(|row| row.ops),
        shorten(file, 40)
    );
    out += &format!(
        "{:<24} {:<8} {:<18} {:<6} {:>5} {:>5} {:>9} {:>9}\n",
        "program", "chip", "units", "fitted", "ops", "right", "published", "predicted"
    );
    for row in rows {
        out += &format!(
            "{:<24} {:<8} {:<18} {:<6} {:>5} {:>5} {:>9} {:>9}\n",
            shorten(&row.program, 24),
            row.chip,
            row.units,
            if row.seen { "yes" } else { "no" },
            row.ops,
            row.right,
            short(row.published * 100.0),
            short(row.predicted * 100.0)
        );
        for miss in &row.misses {
            let said = format!(
                "{} of {:?}: on the {}, predicted on the {}",
                miss.n, miss.op, miss.published, miss.predicted
            );
            out += &item("missed", &said);
        }
    }
    out + &left_out_text(left_out)
}
