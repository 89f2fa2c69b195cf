//! The program as MIL text with the attributes that Apple's compiler writes to `analytics.mil`:
//! which backends can run each op, the estimate for each, the choice, and why the others cannot.
//!
//! The names of the attributes and the five slots of `BackendSupport` are as published (M6 study,
//! macOS 27); how Apple writes `EstimatedRuntime` is not, and here it is milliseconds by backend.
//! Weights of equal beginnings are compared, and read for it.

use std::collections::HashMap;

use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::program::{Function, OpId, Program};
use thane_mil::text::{Blobs, print_with};
use thane_mil::types::{DType, TensorType, Type};

use crate::audit;
use crate::place::{Backend, Placed, SLOTS, UNSUPPORTED};
use crate::target::Target;

/// A program, judged for a target, as text.
pub fn print(program: &Program, target: &Target) -> String {
    let judged = audit(program, target);
    let mut ops: HashMap<(&str, OpId), &Placed> = HashMap::new();
    for f in &judged.functions {
        ops.extend(
            f.placement
                .ops
                .iter()
                .map(|op| ((f.name.as_str(), op.op), op)),
        );
    }
    let notes = |f: &Function, id: OpId| {
        ops.get(&(f.name.as_str(), id))
            .map(|op| notes(op))
            .unwrap_or_default()
    };
    let text = print_with(program, &mut Blobs::default(), &notes);
    format!(
        "// Predicted by thane {} for {target}\n{text}",
        env!("CARGO_PKG_VERSION")
    )
}

fn notes(op: &Placed) -> Vec<(String, Literal)> {
    let string = || Type::Tensor(TensorType::scalar(DType::String));
    let number = || Type::Tensor(TensorType::scalar(DType::Fp64));
    let can = |slot: &str| {
        Backend::ALL
            .into_iter()
            .find(|b| b.name() == slot)
            .is_some_and(|b| op.is_supported(b))
    };
    let slots = SLOTS.map(|slot| Literal::string(if can(slot) { slot } else { UNSUPPORTED }));
    let estimates = op
        .estimates
        .iter()
        .map(|(b, ms)| (Literal::string(b.name()), float(*ms)))
        .collect();
    let reasons = op
        .validation
        .iter()
        .map(|(b, why)| (Literal::string(b.name()), Literal::string(why)))
        .collect();
    let mut notes = vec![
        (
            "BackendSupport".to_owned(),
            Literal::List(string(), slots.to_vec()),
        ),
        (
            "EstimatedRuntime".to_owned(),
            Literal::Dict(string(), number(), estimates),
        ),
        (
            "SelectedBackend".to_owned(),
            Literal::string(op.chosen.name()),
        ),
    ];
    if !op.validation.is_empty() {
        notes.push((
            "ValidationMessage".to_owned(),
            Literal::Dict(string(), string(), reasons),
        ));
    }
    notes
}

fn float(value: f64) -> Literal {
    // Text has no infinity.
    let value = if value.is_finite() { value } else { f64::MAX };
    Literal::Tensor(
        TensorType::scalar(DType::Fp64),
        Data::owned(value.to_le_bytes().to_vec()),
    )
}
