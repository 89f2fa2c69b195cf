//! Whole models, of which the [zoo](zoo) has the programs.

use super::{Row, device, units};
use crate::labeled::measurements::{Case, Measure, Rebuilt};
use crate::labeled::zoo;
use crate::latency::Caller;
use crate::target::{Route, Units};

/// The programs of a row, and how its number follows from their time.
pub fn case(row: &Row, model: &Rebuilt) -> Result<Case, String> {
    if model.programs.is_empty() {
        return Err(model.left_out.clone());
    }
    let (units, route) = match model.units.as_str() {
        "ANE only" => (Units::CpuAndNeuralEngine, Route::Direct),
        name => (units(name)?, Route::CoreMl),
    };
    let target = device(&row.chip, &row.os, units, route)?;
    let mut parts = Vec::new();
    for term in model.programs.split('+') {
        let (name, calls) = term.split_once('*').unwrap_or((term, "1"));
        let calls = calls
            .parse()
            .map_err(|_| format!("{calls:?} in {:?} is no number of calls", model.programs))?;
        parts.push((zoo::program(name)?, calls));
    }
    let measure = match row.metric.as_str() {
        "ms" => Measure::Time(1.0 / model.per_call),
        "s" => Measure::Time(1e3 / model.per_call),
        _ => Measure::Rate(model.per_call),
    };
    Ok(Case {
        parts,
        target,
        caller: match model.caller.as_str() {
            _ if row.path.contains("e5rt") => Caller::AneForge,
            "predict" => Caller::Predict,
            _ => Caller::App,
        },
        measure,
        idle_calls: 0.0,
        layers: None,
    })
}
