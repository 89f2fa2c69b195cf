//! The opset as a table: which ops there are, what they take, and the types of what they give.
//!
//! One row per op, a file per group. The wire form of an op is uniform, so printer, parser and
//! validator hold no code per op; adding one is adding a row (and its meaning in `cpu/ops`).

use std::fmt;

use crate::literal::Literal;
use crate::types::{DType, Dim, Symbol, TensorType, Type};

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

/// Why arguments do not fit an op.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TypeError(pub String);

/// What is known of a value beside its type.
#[derive(Clone, Copy, Debug)]
pub enum Known<'a> {
    /// Nothing.
    No,
    /// It is this literal.
    Literal(&'a Literal),
    /// It is these integers, at run time.
    Ints(&'a [i32]),
}

/// One bound parameter, as type inference sees it.
#[derive(Clone, Debug)]
pub enum ArgType<'a> {
    /// A single value.
    One(&'a Type, Known<'a>),
    /// The values of a variadic parameter.
    Many(Vec<(&'a Type, Known<'a>)>),
}

/// The types that a nested block takes and gives.
#[derive(Clone, Debug)]
pub struct BlockTypes {
    /// Of its inputs.
    pub inputs: Vec<Type>,
    /// Of its outputs.
    pub outputs: Vec<Type>,
}

/// The arguments of one op while its result types are inferred.
///
/// The same rules serve the validator, with symbolic shapes, and a backend at run time, with every
/// shape known.
pub struct Infer<'a> {
    def: &'static OpDef,
    args: &'a [Option<ArgType<'a>>],
    blocks: &'a [BlockTypes],
    next_symbol: &'a mut u32,
}

impl<'a> Infer<'a> {
    /// Prepare inference of `def` over `args` (one entry a parameter); new symbols count on from
    /// `next_symbol`.
    pub fn new(
        def: &'static OpDef,
        args: &'a [Option<ArgType<'a>>],
        next_symbol: &'a mut u32,
    ) -> Self {
        Self {
            def,
            args,
            blocks: &[],
            next_symbol,
        }
    }

    /// Let the op run these blocks.
    pub fn with_blocks(mut self, blocks: &'a [BlockTypes]) -> Self {
        self.blocks = blocks;
        self
    }

    /// The result types.
    pub fn run(mut self) -> Result<Vec<Type>, TypeError> {
        (self.def.infer)(&mut self)
    }

    fn arg(&self, name: &str) -> Option<&'a ArgType<'a>> {
        self.args.get(self.def.param_index(name)?)?.as_ref()
    }

    fn has(&self, name: &str) -> bool {
        self.arg(name).is_some()
    }

    fn ty(&self, name: &str) -> Result<&'a TensorType, TypeError> {
        match self.arg(name) {
            Some(ArgType::One(Type::Tensor(t), _)) => Ok(t),
            Some(ArgType::One(t, _)) => {
                Err(TypeError(format!("`{name}` is {t}, a tensor is needed")))
            }
            Some(ArgType::Many(_)) => Err(TypeError(format!("`{name}` takes one value"))),
            None => Err(TypeError(format!("`{name}` is missing"))),
        }
    }

    fn state(&self, name: &str) -> Result<&'a TensorType, TypeError> {
        match self.arg(name) {
            Some(ArgType::One(Type::State(t), _)) => Ok(t),
            _ => Err(TypeError(format!("`{name}` must be a state"))),
        }
    }

    fn many(&self, name: &str) -> Result<Vec<&'a TensorType>, TypeError> {
        match self.arg(name) {
            Some(ArgType::Many(items)) if !items.is_empty() => items
                .iter()
                .map(|(t, _)| {
                    t.tensor()
                        .ok_or_else(|| TypeError(format!("`{name}` holds {t}, tensors are needed")))
                })
                .collect(),
            _ => Err(TypeError(format!(
                "`{name}` must be a tuple of one or more values"
            ))),
        }
    }

    /// The one known integer or truth value that each value of a variadic parameter is.
    fn scalar_values(&self, name: &str, dtype: DType) -> Result<Vec<i64>, TypeError> {
        let scalar = |(ty, known): &(&Type, Known<'_>)| match (ty, known) {
            (Type::Tensor(t), _) if t.dtype != dtype || t.rank() != 0 => None,
            (_, Known::Literal(l)) => l.to_ints()?.first().copied(),
            (_, Known::Ints(v)) => v.first().map(|v| i64::from(*v)),
            _ => None,
        };
        let items = if let Some(ArgType::Many(items)) = self.arg(name) {
            items.as_slice()
        } else {
            &[]
        };
        let all: Option<Vec<i64>> = items.iter().map(scalar).collect();
        all.ok_or_else(|| TypeError(format!("`{name}` must be a tuple of constant {dtype}")))
    }

    /// The integers (or truth values) of a parameter, where they are known.
    fn ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.arg(name)? {
            ArgType::One(_, Known::Literal(l)) => l.to_ints(),
            ArgType::One(_, Known::Ints(v)) => Some(v.iter().map(|&i| i64::from(i)).collect()),
            _ => None,
        }
    }

    /// The floating-point numbers of a parameter, where they are known.
    fn floats(&self, name: &str) -> Option<Vec<f32>> {
        match self.arg(name)? {
            ArgType::One(_, Known::Literal(l)) => l.to_floats(),
            _ => None,
        }
    }

    /// The one floating-point number of a parameter, where it is known.
    fn float(&self, name: &str) -> Option<f32> {
        match self.floats(name)?.as_slice() {
            [v] => Some(*v),
            _ => None,
        }
    }

    /// Refuse parameters of another element type than the first of them; what is left out agrees.
    fn alike(&self, names: &[&str]) -> Result<(), TypeError> {
        let first = self.ty(names[0])?;
        for name in names.iter().filter(|name| self.has(name)) {
            let ty = self.ty(name)?;
            if ty.dtype != first.dtype {
                let reason = "the element types must be equal";
                return Err(TypeError(format!(
                    "`{}` is {first} and `{name}` is {ty}: {reason}",
                    names[0]
                )));
            }
        }
        Ok(())
    }

    /// Refuse parameters of more or less than one element; they may be left out.
    fn scalars(&self, names: &[&str]) -> Result<(), TypeError> {
        for name in names.iter().filter(|name| self.has(name)) {
            let ty = self.ty(name)?;
            if ty.n_elements() != Some(1) {
                return Err(TypeError(format!("`{name}` is {ty}, one number is needed")));
            }
        }
        Ok(())
    }

    /// Refuse a string that is none of `choices`; what is left out is its default.
    fn choice(
        &self,
        name: &str,
        choices: &[&str],
        default: &'static str,
    ) -> Result<&'a str, TypeError> {
        let word = if self.has(name) {
            self.string(name)?
        } else {
            default
        };
        if !choices.iter().any(|c| c == &word) {
            return Err(TypeError(format!(
                "`{name}` is `{word}`, one of {} is needed",
                choices.join(", ")
            )));
        }
        Ok(word)
    }

    /// One known integer, or `default` when the parameter is left out.
    fn int_or(&self, name: &str, default: i64) -> Result<i64, TypeError> {
        if !self.has(name) {
            return Ok(default);
        }
        match self.ints(name).as_deref() {
            Some([v]) => Ok(*v),
            _ => Err(TypeError(format!("`{name}` must be one constant integer"))),
        }
    }

    fn bool_or(&self, name: &str, default: bool) -> Result<bool, TypeError> {
        self.int_or(name, i64::from(default)).map(|v| v != 0)
    }

    fn string(&self, name: &str) -> Result<&'a str, TypeError> {
        match self.arg(name) {
            Some(ArgType::One(_, Known::Literal(Literal::String(s)))) => Ok(s),
            _ => Err(TypeError(format!("`{name}` must be a constant string"))),
        }
    }

    /// Known integers, where the op cannot do without.
    fn constant_ints(&self, name: &str) -> Result<Vec<i64>, TypeError> {
        self.ints(name)
            .ok_or_else(|| TypeError(format!("`{name}` must be constant")))
    }

    /// What is known of a value that is of either type; the types are compatible.
    fn join(&mut self, a: &Type, b: &Type) -> Type {
        match (a, b) {
            (Type::Tensor(s), Type::Tensor(t)) => {
                let dims = s.shape.iter().zip(&t.shape);
                let shape = dims
                    .map(|(x, y)| if x == y { *x } else { self.fresh() })
                    .collect();
                Type::Tensor(TensorType {
                    dtype: s.dtype,
                    shape,
                })
            }
            (Type::List(s, n), Type::List(t, m)) => {
                Type::List(Box::new(self.join(s, t)), if n == m { *n } else { None })
            }
            _ => a.clone(),
        }
    }

    /// [`broadcast`], where a dimension that may be that of either is a new one.
    fn broadcast(&mut self, a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, TypeError> {
        let mut shape = broadcast(a, b)?;
        for ((dim, x), y) in shape
            .iter_mut()
            .rev()
            .zip(a.iter().rev())
            .zip(b.iter().rev())
        {
            if x != y && matches!((x, y), (Dim::Symbol(_), Dim::Symbol(_))) {
                *dim = self.fresh();
            }
        }
        Ok(shape)
    }

    fn fresh(&mut self) -> Dim {
        *self.next_symbol += 1;
        Dim::Symbol(Symbol(*self.next_symbol - 1))
    }
}

/// An axis counted from the end when negative.
fn axis(axis: i64, rank: usize) -> Result<usize, TypeError> {
    let wrapped = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(wrapped)
        .ok()
        .filter(|a| *a < rank)
        .ok_or_else(|| TypeError(format!("axis {axis} is outside of rank {rank}")))
}

/// Refuse sorted axes that name one axis twice.
fn distinct(axes: &[usize]) -> Result<(), TypeError> {
    match axes.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => Err(TypeError(format!("`axes` names axis {} twice", twice[0]))),
        None => Ok(()),
    }
}

/// The shape of two operands after broadcasting (numpy's rule).
fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, TypeError> {
    let rank = a.len().max(b.len());
    let at = |s: &[Dim], i: usize| {
        (i + s.len())
            .checked_sub(rank)
            .map_or(Dim::Known(1), |j| s[j])
    };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (Dim::Known(1), d) | (d, Dim::Known(1)) => Ok(d),
            (Dim::Known(x), Dim::Known(y)) if x != y => Err(TypeError(format!(
                "{} and {} do not broadcast",
                show(a),
                show(b)
            ))),
            (d @ Dim::Known(_), _) | (_, d @ Dim::Known(_)) => Ok(d),
            (d, _) => Ok(d),
        })
        .collect()
}

fn show(shape: &[Dim]) -> String {
    let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}

fn one(dtype: DType, shape: Vec<Dim>) -> Result<Vec<Type>, TypeError> {
    Ok(vec![Type::Tensor(TensorType { dtype, shape })])
}

/// The result is of the type of `x`.
fn same(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    Ok(vec![Type::Tensor(i.ty("x")?.clone())])
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

    /// One of two sizes that are not known may be 1.
    #[test]
    fn two_symbols_broadcast_to_a_new_one() {
        let [a, b] = [7, 8].map(|s| Dim::Symbol(Symbol(s)));
        let mut next = 20;
        let mut infer = Infer::new(find("add").unwrap(), &[], &mut next);
        assert_eq!(
            infer.broadcast(&[a, b], &[b, b]),
            Ok(vec![Dim::Symbol(Symbol(20)), b])
        );
        assert_eq!(
            infer.broadcast(&[a, a, a], &[Dim::Known(1), Dim::Known(5)]),
            Ok(vec![a, a, Dim::Known(5)])
        );
    }

    #[test]
    fn shapes_broadcast_as_numpy_does() {
        let k = |s: &[usize]| s.iter().map(|&n| Dim::Known(n)).collect::<Vec<_>>();
        assert_eq!(broadcast(&k(&[3, 1, 5]), &k(&[4, 5])), Ok(k(&[3, 4, 5])));
        assert_eq!(broadcast(&k(&[]), &k(&[2])), Ok(k(&[2])));
        assert!(broadcast(&k(&[3, 5]), &k(&[4, 5])).is_err());
        let s = Dim::Symbol(Symbol(7));
        assert_eq!(
            broadcast(&[s, Dim::Known(5)], &k(&[1, 5])),
            Ok(vec![s, Dim::Known(5)])
        );
    }
}
