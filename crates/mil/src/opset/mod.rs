//! The opset: a table of ops, their parameters and their type rules.
//!
//! Each op is one row; each file holds one group of rows. All ops have the same wire form, so the
//! printer, the parser and the validator hold no code per op. A row says what kind of work the
//! op does, which the audit and the backends ask for. To add an op, add a row here and its meaning
//! in `cpu/src/ops`.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

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
mod kind;
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

pub(crate) use infer::alternatives;
pub use infer::{ArgType, BlockTypes, Infer, Known, TypeError};
use infer::{axis, broadcast, one_of, require_distinct, show_shape, tensor_result, type_of_x};
pub use kind::OpKind;

/// A version of the opset. Each version includes all ops of the earlier ones.
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
    /// All versions, oldest first.
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

    /// The version with this name in MIL text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|o| o.name() == name)
    }
}

/// What a parameter can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// A tensor or scalar of one of these element types.
    Tensor(&'static [DType]),
    /// One or more values, for a variadic parameter.
    Tensors,
    /// A list.
    List,
    /// A state.
    State,
    /// Anything; only `const` has such a parameter.
    Any,
}

impl fmt::Display for Accepts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accepts::Tensor(_) => "a tensor",
            Accepts::Tensors => "a tuple of values",
            Accepts::List => "a list",
            Accepts::State => "a state",
            Accepts::Any => "any value",
        })
    }
}

/// One parameter of an op.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// The parameter's name.
    pub name: &'static str,
    /// What it can be bound to.
    pub accepts: Accepts,
    /// Whether it must be bound.
    pub required: bool,
    /// Whether its value must be known when the program is loaded.
    pub constant: bool,
}

impl Param {
    /// Makes the parameter optional.
    const fn optional(mut self) -> Self {
        self.required = false;
        self
    }
}

/// A required tensor parameter, which may be computed at run time.
const fn tensor(name: &'static str, dtypes: &'static [DType]) -> Param {
    Param {
        name,
        accepts: Accepts::Tensor(dtypes),
        required: true,
        constant: false,
    }
}

/// A required parameter that must be constant.
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
/// Element types of sizes and positions along axes, since iOS 17.
const SHAPE_INT: &[DType] = &[DType::Int32, DType::Int16, DType::Int8];
const BOOL: &[DType] = &[DType::Bool];
const STRING: &[DType] = &[DType::String];
/// Element types of ops that later opsets have not extended.
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

/// Infers an op's result types from its arguments.
pub type InferFn = fn(&mut Infer<'_>) -> Result<Vec<Type>, TypeError>;

/// One row of the opset: an op in the form that it has since some version.
///
/// An op whose parameters changed has one row per form; [`find_in`] returns the form of a given
/// opset.
pub struct OpDef {
    /// The op's name in MIL.
    pub name: &'static str,
    /// What the op does.
    pub kind: OpKind,
    /// Whether no float of a result is rounded: each is an element of an operand, a constant or an
    /// integer. An op that only moves elements is exact; a row says of any other that it is.
    pub exact: bool,
    /// The first opset that has the op in this form.
    pub since: Opset,
    /// Parameters, in the order of [`Op::args`](crate::program::Op::args).
    pub params: &'static [Param],
    /// Whether the parameters are written as attributes (in brackets) instead of inputs.
    pub attributes: bool,
    /// Number of nested blocks that the op runs.
    pub n_blocks: usize,
    /// The rule for the result types.
    pub infer: InferFn,
}

impl OpDef {
    const fn new(
        name: &'static str,
        kind: OpKind,
        since: Opset,
        params: &'static [Param],
        infer: InferFn,
    ) -> Self {
        Self {
            name,
            kind,
            exact: kind.moves(),
            since,
            params,
            attributes: false,
            n_blocks: 0,
            infer,
        }
    }

    /// The op rounds no result, though it does more than move elements.
    const fn exact(mut self) -> Self {
        self.exact = true;
        self
    }

    /// Position of the parameter `name` in [`Self::params`].
    pub fn param_index(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|p| p.name == name)
    }

    /// Whether this is `const`.
    pub fn is_const(&self) -> bool {
        self.name == "const"
    }

    /// Whether the result is constant: true for `const` and the constexpr ops.
    pub fn is_constexpr(&self) -> bool {
        matches!(self.kind, OpKind::Constant)
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

/// All rows, one slice per group.
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

/// The newest form of the op `name`.
pub fn find(name: &str) -> Option<&'static OpDef> {
    find_in(name, Opset::ALL[Opset::ALL.len() - 1])
}

/// The form of the op `name` in `opset`, or `None` if that opset does not have it.
pub fn find_in(name: &str, opset: Opset) -> Option<&'static OpDef> {
    rows(name)
        .filter(|def| def.since <= opset)
        .max_by_key(|def| def.since)
}

/// All forms of the op `name`, in no particular order of versions.
pub fn rows(name: &str) -> impl Iterator<Item = &'static OpDef> {
    static BY_NAME: LazyLock<HashMap<&'static str, Vec<&'static OpDef>>> = LazyLock::new(|| {
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for def in GROUPS.iter().flat_map(|group| group.iter()) {
            by_name.entry(def.name).or_default().push(def);
        }
        by_name
    });
    BY_NAME.get(name).into_iter().flatten().copied()
}
