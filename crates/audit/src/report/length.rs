//! The lengths that a call is priced at where a function leaves them open: those that the user asks
//! for, else the largest that the function declares, its default, or an assumed length.

use serde::Serialize;
use thane_mil::package::{Interface, Shape, SizeRange};
use thane_mil::program::{Function, ValueId};
use thane_mil::types::{Dim, TensorType};

use crate::lengths::{ASSUMED, Inputs};

/// Why calls cannot have a length that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LengthError {
    /// No function leaves a length open.
    #[error("--length is for functions of any length, and all of these have a fixed one")]
    AllFixed,
    /// Functions leave a length open, and none takes this one.
    #[error("no function takes a call of length {length}, which --length states")]
    Unfit {
        /// The length.
        length: usize,
    },
}

/// The length of a call that is priced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LengthRow {
    /// Elements along the open axes: `512`, or `x: 1x3x224x224` where axes differ.
    pub text: String,
    /// `stated`, `most`, `default`, `assumed`, or `full` where only what is inside depends on the
    /// call.
    pub basis: &'static str,
}

impl LengthRow {
    /// `512 (the most that it takes)`.
    pub fn describe(&self) -> String {
        let basis = match self.basis {
            "stated" => "as --length says",
            "most" => "the most that it takes",
            "default" => "its default",
            "full" => "what a call decides is as long as it can be: a cache is full",
            _ => "assumed: it declares no end; --length N prices another",
        };
        format!("{} ({basis})", self.text)
    }
}

/// A call whose time is predicted.
#[derive(Clone, Debug, Default)]
pub struct SizedCall {
    /// The length as reports show it; `None` if all inputs have fixed shapes.
    pub length: Option<LengthRow>,
    /// Sizes of the inputs whose shapes are not fixed.
    pub inputs: Inputs,
}

/// An input of a function, with what is declared of its shape.
struct Open<'a> {
    value: ValueId,
    name: &'a str,
    ty: &'a TensorType,
    default: Option<Vec<usize>>,
    /// By axis; of a fixed one its size.
    ranges: Vec<SizeRange>,
}

/// The calls that a function is priced at, the one that its figures are of first. With `stated`
/// lengths, at those of them that it takes.
pub fn calls(f: &Function, interface: Option<&Interface>, stated: &[usize]) -> Vec<SizedCall> {
    let open: Vec<Open<'_>> = f
        .body()
        .inputs
        .iter()
        .filter_map(|v| input(f, *v, interface))
        .collect();
    if open.is_empty() {
        // Of fixed inputs, but not inside: what it reads of a cache follows from a position.
        let is_open = f
            .values()
            .iter()
            .any(|v| v.ty.tensor().is_some_and(|t| t.known_shape().is_none()));
        let length = is_open.then(|| LengthRow {
            text: "full".to_owned(),
            basis: "full",
        });
        return vec![SizedCall {
            length,
            ..SizedCall::default()
        }];
    }
    let takes = |n: usize| {
        open.iter().all(|input| {
            input
                .open_ranges()
                .all(|r| r.lower <= n && r.upper.is_none_or(|u| n <= u))
        })
    };
    let stated: Vec<SizedCall> = stated
        .iter()
        .filter(|n| takes(**n))
        .map(|n| call(&open, "stated", |_, _| *n))
        .collect();
    if !stated.is_empty() {
        return stated;
    }
    let defaults = || {
        call(&open, "default", |input, axis| {
            input.default.as_ref().map_or(1, |d| d[axis])
        })
    };
    let has_defaults = open.iter().any(|input| input.default.is_some());
    let mut calls = Vec::new();
    if open
        .iter()
        .all(|input| input.open_ranges().all(|r| r.upper.is_some()))
    {
        calls.push(call(&open, "most", |input, axis| {
            input.ranges[axis].upper.unwrap_or(ASSUMED)
        }));
    } else if open
        .iter()
        .all(|input| input.default.is_none() || input.default_is_one())
    {
        calls.push(call(&open, "assumed", |input, axis| {
            let range = &input.ranges[axis];
            ASSUMED
                .max(range.lower)
                .min(range.upper.unwrap_or(usize::MAX))
        }));
    }
    if has_defaults {
        let default = defaults();
        if calls.iter().all(|call| call.inputs != default.inputs) {
            calls.push(default);
        }
    }
    calls
}

/// Check that for each stated length there is a function that takes it.
pub fn check<'a>(
    functions: impl Iterator<Item = (&'a Function, Option<&'a Interface>)>,
    stated: &[usize],
) -> Result<(), LengthError> {
    let functions: Vec<_> = functions.collect();
    let takes = |n: usize| {
        functions.iter().any(|(f, interface)| {
            let first = calls(f, *interface, &[n]).into_iter().next();
            first
                .and_then(|call| call.length)
                .is_some_and(|l| l.basis == "stated")
        })
    };
    let Some(n) = stated.iter().find(|n| !takes(**n)) else {
        return Ok(());
    };
    let is_open =
        |f: &Function, i: Option<&Interface>| calls(f, i, &[]).iter().any(|c| !c.inputs.is_empty());
    if functions.iter().any(|(f, i)| is_open(f, *i)) {
        Err(LengthError::Unfit { length: *n })
    } else {
        Err(LengthError::AllFixed)
    }
}

fn input<'a>(f: &'a Function, value: ValueId, interface: Option<&Interface>) -> Option<Open<'a>> {
    let named = f.value(value);
    let ty = named.ty.tensor().filter(|t| t.known_shape().is_none())?;
    let feature = interface.and_then(|i| i.features.get(&named.name));
    let free = |dim: &Dim| match dim.known() {
        Some(n) => SizeRange {
            lower: n,
            upper: Some(n),
        },
        None => SizeRange {
            lower: 1,
            upper: None,
        },
    };
    let (default, ranges) = match feature.map(|f| &f.shape) {
        Some(Shape::Ranges { default, ranges }) => (Some(default.clone()), ranges.clone()),
        Some(Shape::Enumerated { default, shapes }) => {
            (Some(default.clone()), bounds(shapes, ty.rank()))
        }
        _ => (None, Vec::new()),
    };
    let fits = ranges.len() == ty.rank() && default.as_ref().is_some_and(|d| d.len() == ty.rank());
    let (default, ranges) = if fits {
        (default, ranges)
    } else {
        (None, ty.shape.iter().map(free).collect())
    };
    Some(Open {
        value,
        name: &named.name,
        ty,
        default,
        ranges,
    })
}

/// The least and the most of each axis.
fn bounds(shapes: &[Vec<usize>], rank: usize) -> Vec<SizeRange> {
    let of = |axis: usize| {
        shapes
            .iter()
            .filter_map(move |shape| shape.get(axis).copied())
    };
    (0..rank)
        .map(|axis| SizeRange {
            lower: of(axis).min().unwrap_or(1),
            upper: of(axis).max(),
        })
        .collect()
}

impl Open<'_> {
    fn open_axes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.ty.rank()).filter(|axis| self.ty.shape[*axis].known().is_none())
    }

    fn open_ranges(&self) -> impl Iterator<Item = &SizeRange> {
        self.open_axes().map(|axis| &self.ranges[axis])
    }

    fn default_is_one(&self) -> bool {
        self.default
            .as_ref()
            .is_some_and(|default| self.open_axes().all(|axis| default[axis] <= 1))
    }
}

fn call(
    open: &[Open<'_>],
    basis: &'static str,
    size: impl Fn(&Open<'_>, usize) -> usize,
) -> SizedCall {
    let shape = |input: &Open<'_>| -> Vec<usize> {
        let axes = input.ty.shape.iter().enumerate();
        axes.map(|(axis, dim)| dim.known().unwrap_or_else(|| size(input, axis).max(1)))
            .collect()
    };
    let shapes: Vec<(&Open<'_>, Vec<usize>)> =
        open.iter().map(|input| (input, shape(input))).collect();
    let mut sizes: Vec<usize> = shapes
        .iter()
        .flat_map(|(i, s)| i.open_axes().map(|axis| s[axis]))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let text = match sizes[..] {
        [n] => n.to_string(),
        _ => {
            let one = |(input, shape): &(&Open<'_>, Vec<usize>)| {
                let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
                format!("{}: {}", input.name, sizes.join("x"))
            };
            shapes.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    };
    let inputs = shapes
        .into_iter()
        .map(|(input, shape)| (input.value, shape))
        .collect();
    SizedCall {
        length: Some(LengthRow { text, basis }),
        inputs,
    }
}
