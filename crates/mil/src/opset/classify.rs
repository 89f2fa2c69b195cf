//! The output op of classifiers. Source: coremltools `ops/defs/iOS15/classify.py`.

use super::OpKind::Other;
use super::{Accepts, ArgType, Infer, Known, OpDef, Opset, Param, Type, TypeError, tensor};
use crate::literal::Literal;
use crate::types::{DType, TensorType};

const CLASSES: Param = Param {
    name: "classes",
    accepts: Accepts::List,
    required: true,
    constant: true,
};

pub(super) static OPS: &[OpDef] = &[
    // Results: the class with the highest probability, and a dictionary from class to probability.
    // Classes are strings or int64.
    OpDef::new(
        "classify",
        Other,
        Opset::CoreMl5,
        &[tensor("probabilities", &[DType::Fp32]), CLASSES],
        classify,
    ),
];

fn classify(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let probabilities = i.ty("probabilities")?;
    let Some(ArgType::One(ty @ Type::List(class, _), known)) = i.arg("classes") else {
        return Err(TypeError("`classes`: expected a list".to_owned()));
    };
    if ![DType::String, DType::Int64]
        .map(|d| Type::Tensor(TensorType::scalar(d)))
        .contains(class)
    {
        return Err(TypeError::new(format_args!(
            "`classes`: expected a list of strings or int64, found {ty}"
        )));
    }
    if let (Known::Literal(Literal::List(_, classes)), Some(n)) =
        (known, probabilities.n_elements())
        && classes.len() != n
    {
        return Err(TypeError::new(format_args!(
            "`probabilities`: expected one number for each of the {} classes, found \
             {probabilities}",
            classes.len()
        )));
    }
    let probability = Type::Tensor(TensorType::scalar(DType::Fp64));
    Ok(vec![
        (**class).clone(),
        Type::Dict(class.clone(), Box::new(probability)),
    ])
}
