//! An op that runs by itself, and what its parameters are bound to.

use std::sync::{Arc, Mutex, PoisonError};

use thane_mil::opset::OpDef;
use thane_mil::program::ValueId;
use thane_mil::types::{DType, TensorType};

use crate::evaluate::infer;
use crate::ops::{Eval, Fault, Value, follow_from_types};
use crate::tensor::Tensor;

/// An op that runs by itself.
#[derive(Debug)]
pub struct Plain {
    /// The op.
    pub def: &'static OpDef,
    /// Its meaning.
    pub eval: Eval,
    /// One entry for each parameter.
    pub args: Vec<Option<Operand>>,
    /// What the op made of a shape, where it is another shape of the same elements and follows from
    /// the first argument's alone.
    last_view: Option<Mutex<LastView>>,
    /// The types of the results, where they follow from the types of the arguments alone.
    last_types: Option<Mutex<LastTypes>>,
}

/// The element types and shapes that were given last, and the types that followed.
#[derive(Debug, Default)]
struct LastTypes {
    given: Vec<(DType, Vec<usize>)>,
    results: Arc<[TensorType]>,
}

/// The shape that was given last, and that it was seen as; none where elements move.
#[derive(Debug, Default)]
struct LastView {
    given: Vec<usize>,
    seen: Option<Option<Vec<usize>>>,
}

impl Plain {
    /// With nothing seen yet.
    pub fn new(def: &'static OpDef, eval: Eval, args: Vec<Option<Operand>>) -> Self {
        let is_fixed = |arg: &Option<Operand>| matches!(arg, None | Some(Operand::Constant(_)));
        let follows = matches!(&args[..], [Some(Operand::Value(_)), others @ ..] if others.iter().all(is_fixed));
        Self {
            def,
            eval,
            args,
            last_view: follows.then(Mutex::default),
            last_types: follow_from_types(def.name).then(Mutex::default),
        }
    }

    /// The types of the results, which are remembered as those of [`Self::view`] are.
    pub fn result_types(&self, args: &[Option<Value>]) -> Result<Arc<[TensorType]>, Fault> {
        let Some(last) = &self.last_types else {
            return Ok(infer(self.def, args)?.into());
        };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let given = || args.iter().flatten().flat_map(Value::tensors);
        let known = last.given.iter().map(|(dtype, shape)| (*dtype, &shape[..]));
        if !last.results.is_empty() && given().map(|t| (t.dtype, &t.shape[..])).eq(known) {
            return Ok(Arc::clone(&last.results));
        }
        let results: Arc<[TensorType]> = infer(self.def, args)?.into();
        *last = LastTypes {
            given: given().map(|t| (t.dtype, t.shape.clone())).collect(),
            results: Arc::clone(&results),
        };
        Ok(results)
    }

    /// As the result of `find`, which is remembered for the next call with this shape: to infer it
    /// takes longer than a small op.
    pub fn view(
        &self,
        shape: &[usize],
        find: impl FnOnce() -> Result<Option<Vec<usize>>, Fault>,
    ) -> Result<Option<Vec<usize>>, Fault> {
        let Some(last) = &self.last_view else {
            return find();
        };
        {
            let last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(seen) = last.seen.as_ref().filter(|_| last.given == shape) {
                return Ok(seen.clone());
            }
        }
        let seen = find()?;
        *last.lock().unwrap_or_else(PoisonError::into_inner) = LastView {
            given: shape.to_vec(),
            seen: Some(seen.clone()),
        };
        Ok(seen)
    }
}

/// What a parameter of a plain op is bound to.
#[derive(Debug)]
pub enum Operand {
    /// A value at run time.
    Value(ValueId),
    /// Values of a variadic parameter.
    Values(Vec<Item>),
    /// Part of the program.
    Constant(Value),
}

/// One of the values of a variadic parameter.
#[derive(Debug)]
pub enum Item {
    /// A value at run time.
    Value(ValueId),
    /// Part of the program.
    Constant(Tensor),
}

/// The run-time values among operands.
pub fn values(args: &[Option<Operand>]) -> Vec<ValueId> {
    let of = |arg: &Operand| match arg {
        Operand::Value(v) => vec![*v],
        Operand::Values(items) => items
            .iter()
            .filter_map(|i| {
                if let Item::Value(v) = i {
                    Some(*v)
                } else {
                    None
                }
            })
            .collect(),
        Operand::Constant(_) => Vec::new(),
    };
    args.iter().flatten().flat_map(of).collect()
}
