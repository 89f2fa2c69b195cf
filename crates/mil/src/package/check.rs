//! The rules for packages, in addition to the rules for programs. As many violations are
//! collected as [`valid::check`] collects.
//!
//! Source: coremltools 9, `backend/mil/load.py` and `frontend/milproto/load.py`.
//!
//! 1. A package has functions, and its default function is one of them. Several functions, or one
//!    that is not called `main`, require opset ios18.
//! 2. Inputs and outputs are fp32, int32 or, from ios16 on, fp16; classifiers also output a label
//!    and probabilities. No input is called `state`, because some versions of Core ML reject this
//!    name.
//! 3. States are fp16 and of known size.
//! 4. The only attribute of a program is `buildInfo`.
//! 5. The description of a feature fits its type, and every described feature exists.

use std::collections::HashSet;

use super::Package;
use super::description::{Feature, Interface, Shape, SizeRange};
use crate::opset::Opset;
use crate::program::{Arg, Function, ValueId};
use crate::types::{DType, Dim, TensorType, Type};
use crate::valid::{self, Violation};

/// Checks the rules of programs, then those of packages.
pub fn check(package: &Package) -> Result<(), Vec<Violation>> {
    valid::check(&package.program)?;
    let mut checker = Checker {
        out: Vec::new(),
        function: "package".to_owned(),
    };
    let functions = package.program.functions();
    for (name, _) in &package.program.attributes {
        if name != "buildInfo" {
            checker.report(
                "attributes",
                format!("expected only the attribute `buildInfo`, found `{name}`"),
            );
        }
    }
    if !functions.iter().any(|f| f.name == package.default_function) {
        checker.report(
            "default function",
            format!("the program has no function `{}`", package.default_function),
        );
    }
    for f in functions {
        checker.function.clone_from(&f.name);
        if !is_plain(package) && f.opset < Opset::CoreMl8 {
            checker.report(
                "function",
                "several functions, or one not called `main`, require opset ios18".to_owned(),
            );
        }
        checker.features(f, package.interfaces.get(&f.name));
        checker.operands(f);
    }
    let names: HashSet<&str> = functions.iter().map(|f| f.name.as_str()).collect();
    let described = package.interfaces.keys();
    for name in described.filter(|name| !names.contains(name.as_str())) {
        checker.function.clone_from(name);
        checker.report(
            "function",
            "the description has this function, the program does not".to_owned(),
        );
    }
    if checker.out.is_empty() {
        Ok(())
    } else {
        Err(checker.out)
    }
}

/// Whether a package has the form of models from before functions: a single `main`.
pub(super) fn is_plain(package: &Package) -> bool {
    matches!(package.program.functions(), [f] if f.name == "main")
}

struct Checker {
    function: String,
    out: Vec<Violation>,
}

impl Checker {
    fn report(&mut self, place: &str, message: String) {
        Violation::report(&mut self.out, &self.function, place, &message);
    }

    fn features(&mut self, f: &Function, interface: Option<&Interface>) {
        let body = f.body();
        for &input in &body.inputs {
            self.input(f, input, interface);
        }
        for &output in &body.outputs {
            let value = f.value(output);
            let allowed = match &value.ty {
                Type::Tensor(t)
                    if t.rank() == 0 && matches!(t.dtype, DType::String | DType::Int64) =>
                {
                    true
                }
                Type::Tensor(t) => is_feature(t.dtype, f.opset),
                other => matches!(other, Type::Dict(..)),
            };
            if !allowed {
                self.report(
                    &value.name,
                    format!(
                        "expected an output of fp32, fp16 (from ios16) or int32, found {}",
                        value.ty
                    ),
                );
            }
        }
        let names: HashSet<&str> = body
            .inputs
            .iter()
            .chain(&body.outputs)
            .map(|v| f.value(*v).name.as_str())
            .collect();
        for name in interface
            .iter()
            .flat_map(|i| i.features.keys())
            .filter(|name| !names.contains(name.as_str()))
        {
            self.report(
                name,
                "the description has this feature, the function does not".to_owned(),
            );
        }
        let predicted = interface
            .iter()
            .flat_map(|i| i.predicted_feature.iter().chain(&i.predicted_probabilities));
        for name in predicted.filter(|name| !names.contains(name.as_str())) {
            self.report(
                name,
                "the description predicts this feature, the function has no such output".to_owned(),
            );
        }
    }

    fn input(&mut self, f: &Function, input: ValueId, interface: Option<&Interface>) {
        let value = f.value(input);
        if value.name == "state" {
            self.report(
                &value.name,
                "some versions of Core ML reject an input called `state`: rename it".to_owned(),
            );
        }
        let feature = interface.and_then(|i| i.features.get(&value.name));
        match &value.ty {
            Type::State(t) if t.dtype != DType::Fp16 => {
                self.report(
                    &value.name,
                    format!("expected an fp16 state, found {}", t.dtype),
                );
            }
            Type::Tensor(t) if !is_feature(t.dtype, f.opset) => {
                self.report(
                    &value.name,
                    format!("expected an input of fp32, fp16 (from ios16) or int32, found {t}"),
                );
            }
            Type::Tensor(t) => {
                if let Some(reason) = feature.and_then(|feature| misfit(feature, t)) {
                    self.report(&value.name, reason);
                }
            }
            _ => {}
        }
    }

    /// Reports attributes that are not constant: attributes in a model file cannot name values.
    fn operands(&mut self, f: &Function) {
        for op in f
            .all_ops()
            .into_iter()
            .map(|id| f.op(id))
            .filter(|op| op.def.attributes)
        {
            for (param, arg) in op.def.params.iter().zip(&op.args) {
                let is_constant = match arg {
                    Some(Arg::Value(v)) => f.constant(*v).is_some(),
                    Some(Arg::Values(_)) => false,
                    _ => true,
                };
                if !is_constant {
                    self.report(
                        op.def.name,
                        format!(
                            "`{}`: expected a constant in opset {}",
                            param.name,
                            f.opset.name()
                        ),
                    );
                }
            }
        }
    }
}

/// Whether inputs and outputs can have this element type.
fn is_feature(dtype: DType, opset: Opset) -> bool {
    match dtype {
        DType::Fp32 | DType::Int32 => true,
        DType::Fp16 => opset >= Opset::CoreMl6,
        _ => false,
    }
}

/// Why the described shapes of an input do not fit its type, if they do not.
fn misfit(feature: &Feature, ty: &TensorType) -> Option<String> {
    match &feature.shape {
        Shape::OfType => None,
        Shape::Ranges { default, ranges } => {
            let within =
                |(n, r): (&usize, &SizeRange)| r.lower <= *n && r.upper.is_none_or(|u| *n <= u);
            let known = |(r, d): (&SizeRange, &Dim)| {
                d.known().is_none_or(|n| (r.lower, r.upper) == (n, Some(n)))
            };
            let good = ty.fits(default)
                && ranges.len() == ty.rank()
                && ranges.iter().zip(&ty.shape).all(known)
                && default.iter().zip(ranges).all(within);
            (!good)
                .then(|| format!("size ranges {ranges:?} with default {default:?} do not fit {ty}"))
        }
        Shape::Enumerated { default, shapes } => {
            let good = shapes.contains(default) && shapes.iter().all(|s| ty.fits(s));
            (!good).then(|| {
                format!("enumerated shapes {shapes:?} with default {default:?} do not fit {ty}")
            })
        }
    }
}
