//! The opset as a table: which ops there are, what they take, and the types of what they give.
//!
//! One row per op, a file per group. The wire form of an op is uniform, so printer, parser and
//! validator hold no code per op; adding one is adding a row (and its meaning in `cpu/ops`).

use std::fmt;

use crate::types::{DType, Dim, Type};

mod activation;
mod block;
mod boxes;
mod classify;
mod constexpr;
mod control;
mod conv;
mod elementwise;
mod fill;
mod gather;
mod image;
mod infer;
mod join;
mod linear;
mod list;
mod normalization;
mod permute;
mod pool;
mod quantization;
mod random;
mod recurrent;
mod reduce;
mod scatter;
mod shape;
pub mod slice;
mod sort;
mod state;
pub mod window;

pub use infer::{ArgType, BlockTypes, Infer, Known, TypeError};
use infer::{axis, broadcast, distinct, one, same, show};

/// A version of the opset; each holds all ops of the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Opset {
    /// iOS 15, macOS 12.
    CoreMl5,
    /// iOS 16, macOS 13.
    CoreMl6,
    /// iOS 17, macOS 14.
    CoreMl7,
    /// iOS 18, macOS 15.
    CoreMl8,
}

impl Opset {
    /// Every version, oldest first.
    pub const ALL: &'static [Opset] = &[
        Opset::CoreMl5,
        Opset::CoreMl6,
        Opset::CoreMl7,
        Opset::CoreMl8,
    ];

    /// The name in MIL text, such as `ios18`.
    pub fn name(self) -> &'static str {
        match self {
            Opset::CoreMl5 => "ios15",
            Opset::CoreMl6 => "ios16",
            Opset::CoreMl7 => "ios17",
            Opset::CoreMl8 => "ios18",
        }
    }

    /// The version of that name in MIL text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|o| o.name() == name)
    }
}

/// What a parameter can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// A tensor of one of these element types.
    Tensor(&'static [DType]),
    /// One or more values.
    Tensors,
    /// A list.
    List,
    /// A state.
    State,
    /// Anything; only `const` takes it.
    Any,
}

/// One parameter of an op.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Name.
    pub name: &'static str,
    /// What it can be bound to.
    pub accepts: Accepts,
    /// Whether it must be bound.
    pub required: bool,
    /// Whether its value must be part of the program.
    pub constant: bool,
}

impl Param {
    /// It can be left out.
    const fn optional(mut self) -> Self {
        self.required = false;
        self
    }
}

/// A tensor parameter that can be computed at run time.
const fn tensor(name: &'static str, dtypes: &'static [DType]) -> Param {
    Param {
        name,
        accepts: Accepts::Tensor(dtypes),
        required: true,
        constant: false,
    }
}

/// A parameter whose value is part of the program.
const fn constant(name: &'static str, dtypes: &'static [DType]) -> Param {
    Param {
        name,
        accepts: Accepts::Tensor(dtypes),
        required: true,
        constant: true,
    }
}

const FLOAT: &[DType] = &[DType::Fp16, DType::Fp32];
const NUMBER: &[DType] = &[DType::Fp16, DType::Fp32, DType::Int32];
const INT32: &[DType] = &[DType::Int32];
const INDEX: &[DType] = &[
    DType::Int32,
    DType::Int16,
    DType::Uint16,
    DType::Int8,
    DType::Uint8,
];
/// What sizes and positions along axes are given in since iOS 17.
const SHAPE_INT: &[DType] = &[DType::Int32, DType::Int16, DType::Int8];
const BOOL: &[DType] = &[DType::Bool];
const STRING: &[DType] = &[DType::String];
/// What ops take that have not been widened since the first opset.
const BASIC: &[DType] = &[DType::Fp16, DType::Fp32, DType::Int32, DType::Bool];
const ANY: &[DType] = &[
    DType::Fp16,
    DType::Fp32,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Uint8,
    DType::Uint16,
    DType::Bool,
];

/// How an op's result types follow from its arguments.
pub type InferFn = fn(&mut Infer<'_>) -> Result<Vec<Type>, TypeError>;

/// One row of the opset.
///
/// An op that took other arguments in an earlier opset has a row for each; [`find_in`] tells which
/// one an opset has.
pub struct OpDef {
    /// MIL's name.
    pub name: &'static str,
    /// The first opset that has it in this form.
    pub since: Opset,
    /// Parameters, in the order of [`Op::args`](crate::program::Op::args).
    pub params: &'static [Param],
    /// Whether parameters are written as attributes instead of inputs.
    pub attributes: bool,
    /// How many nested blocks it runs.
    pub n_blocks: usize,
    /// Result types.
    pub infer: InferFn,
}

impl OpDef {
    const fn new(
        name: &'static str,
        since: Opset,
        params: &'static [Param],
        infer: InferFn,
    ) -> Self {
        Self {
            name,
            since,
            params,
            attributes: false,
            n_blocks: 0,
            infer,
        }
    }

    /// Position of the parameter of that name.
    pub fn param_index(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|p| p.name == name)
    }

    /// Whether this is `const`.
    pub fn is_const(&self) -> bool {
        self.name == "const"
    }

    /// Whether the result is part of the program: `const` and the constexpr ops.
    pub fn is_constexpr(&self) -> bool {
        self.is_const() || self.name.starts_with("constexpr_")
    }
}

impl fmt::Debug for OpDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpDef({})", self.name)
    }
}

impl PartialEq for OpDef {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.since == other.since
    }
}

/// Every op, group by group.
pub static GROUPS: &[&[OpDef]] = &[
    activation::OPS,
    block::OPS,
    boxes::OPS,
    classify::OPS,
    constexpr::OPS,
    control::OPS,
    conv::OPS,
    elementwise::OPS,
    fill::OPS,
    gather::OPS,
    image::OPS,
    join::OPS,
    linear::OPS,
    list::OPS,
    normalization::OPS,
    permute::OPS,
    pool::OPS,
    quantization::OPS,
    random::OPS,
    recurrent::OPS,
    reduce::OPS,
    scatter::OPS,
    shape::OPS,
    slice::OPS,
    sort::OPS,
    state::OPS,
];

/// The newest row of that name.
pub fn find(name: &str) -> Option<&'static OpDef> {
    find_in(name, Opset::ALL[Opset::ALL.len() - 1])
}

/// The row of that name in an opset.
pub fn find_in(name: &str, opset: Opset) -> Option<&'static OpDef> {
    rows(name)
        .filter(|def| def.since <= opset)
        .max_by_key(|def| def.since)
}

/// Every row of that name, of whatever opset.
pub fn rows(name: &str) -> impl Iterator<Item = &'static OpDef> {
    GROUPS
        .iter()
        .flat_map(|g| g.iter())
        .filter(move |def| def.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_unique_and_found() {
        let mut rows: Vec<_> = GROUPS
            .iter()
            .flat_map(|g| g.iter())
            .map(|d| (d.name, d.since))
            .collect();
        assert!(rows.iter().all(|(n, since)| {
            find_in(n, *since).is_some_and(|d| (d.name, d.since) == (n, *since))
        }));
        let n = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), n);
    }
}
