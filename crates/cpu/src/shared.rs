//! What the instances of a program share.

use std::collections::HashMap;
use std::sync::Arc;

use thane_kernels::Context;
use thane_mil::backend::{Limits, RunError};
use thane_mil::budget::Budget;
use thane_mil::types::{DType, TensorType};

use crate::Numerics;
use crate::exec::Plan;
use crate::profile::Profile;

/// What the instances of a program share.
#[derive(Clone)]
pub struct Shared {
    pub context: Arc<Context>,
    pub numerics: Numerics,
    pub may_round: bool,
    pub limits: Limits,
    pub budget: Budget,
    pub seed: u64,
    pub plans: Arc<HashMap<String, Plan>>,
    /// The states of all plans, by name; plans know theirs by the position here.
    pub states: Vec<(String, TensorType)>,
    pub profile: Option<Arc<Profile>>,
}

impl Shared {
    /// The plan of a function.
    pub fn plan(&self, function: &str) -> Result<&Plan, RunError> {
        self.plans
            .get(function)
            .ok_or_else(|| RunError::NoFunction(function.to_owned()))
    }

    /// The position of the state of that name.
    pub fn state(&self, name: &str) -> Option<usize> {
        self.states.iter().position(|(known, _)| known == name)
    }

    /// The types that functions give the input of that name, each once.
    pub fn input_types(&self, name: &str) -> Vec<&TensorType> {
        let mut types: Vec<&TensorType> = Vec::new();
        for (_, _, ty) in self
            .plans
            .values()
            .flat_map(|p| &p.inputs)
            .filter(|(n, ..)| n == name)
        {
            if !types.contains(&ty) {
                types.push(ty);
            }
        }
        types
    }

    /// The element type that the input of that name has, where it is given this shape.
    pub fn input_dtype(&self, name: &str, shape: &[usize]) -> Result<DType, RunError> {
        let types = self.input_types(name);
        let fits = |ty: &&TensorType| {
            ty.rank() == shape.len()
                && ty
                    .shape
                    .iter()
                    .zip(shape)
                    .all(|(d, n)| d.known().is_none_or(|d| d == *n))
        };
        let fitting: Vec<&TensorType> = types.iter().copied().filter(fits).collect();
        // A shape that fits none is refused by the function that runs, which knows what it wants.
        let choices = if fitting.is_empty() { &types } else { &fitting };
        let first = choices
            .first()
            .ok_or_else(|| RunError::NoInput(name.to_owned()))?;
        if choices.iter().all(|ty| ty.dtype == first.dtype) {
            return Ok(first.dtype);
        }
        let (name, given) = (name.to_owned(), shape.to_vec());
        Err(match fitting.is_empty() {
            true => RunError::Shape {
                name,
                expected: listed(types),
                given,
            },
            false => RunError::Ambiguous {
                name,
                expected: listed(fitting),
                given,
            },
        })
    }
}

/// Types in the order of their text, since plans have none.
pub fn listed(types: Vec<&TensorType>) -> String {
    let mut texts: Vec<String> = types.into_iter().map(ToString::to_string).collect();
    texts.sort();
    texts.dedup();
    texts.join(" or ")
}
