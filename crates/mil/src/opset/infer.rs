//! Type inference: the view that a type rule has of its op's arguments, and the checks and shape
//! rules that many ops share.

use std::fmt;

use super::OpDef;
use crate::literal::Literal;
use crate::shorten::shorten;
use crate::types::{DType, Dim, Symbol, TensorType, Type};

/// Why arguments do not fit an op: the parameter, what was expected and what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TypeError(pub String);

impl TypeError {
    /// The error with this message, shortened if it quotes a long literal.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self(shorten(message))
    }
}

/// What is known about a value besides its type.
#[derive(Clone, Copy, Debug)]
pub enum Known<'a> {
    /// Nothing; the value is computed at run time.
    No,
    /// The value is this literal.
    Literal(&'a Literal),
    /// The value is these integers; a backend passes them at run time.
    Ints(&'a [i32]),
}

/// One bound argument, as type inference sees it.
#[derive(Clone, Debug)]
pub enum ArgType<'a> {
    /// A single value.
    One(&'a Type, Known<'a>),
    /// The values of a variadic parameter.
    Many(Vec<(&'a Type, Known<'a>)>),
}

impl ArgType<'_> {
    /// A short description of the argument for error messages: its type, or `a tuple`.
    pub(crate) fn describe(&self) -> String {
        match self {
            ArgType::One(ty, _) => ty.to_string(),
            ArgType::Many(_) => "a tuple".to_owned(),
        }
    }
}

/// Input and output types of a nested block.
#[derive(Clone, Debug)]
pub struct BlockTypes {
    /// Types of the block's inputs.
    pub inputs: Vec<Type>,
    /// Types of the block's outputs.
    pub outputs: Vec<Type>,
}

/// The arguments of one op while its result types are inferred.
///
/// The validator applies the rules to symbolic shapes; a backend applies the same rules at run
/// time, when every shape is known.
pub struct Infer<'a> {
    pub(super) def: &'static OpDef,
    args: &'a [Option<ArgType<'a>>],
    pub(super) blocks: &'a [BlockTypes],
    next_symbol: &'a mut u32,
}

impl<'a> Infer<'a> {
    /// Prepares inference of `def` over `args`, one entry per parameter. New symbols are numbered
    /// from `next_symbol` on.
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

    /// Adds the types of the nested blocks that the op runs.
    pub fn with_blocks(mut self, blocks: &'a [BlockTypes]) -> Self {
        self.blocks = blocks;
        self
    }

    /// Infers the result types.
    pub fn run(mut self) -> Result<Vec<Type>, TypeError> {
        (self.def.infer)(&mut self)
    }

    /// The argument of a parameter, if it is bound.
    pub(super) fn arg(&self, name: &str) -> Option<&'a ArgType<'a>> {
        self.args.get(self.def.param_index(name)?)?.as_ref()
    }

    /// Whether a parameter is bound.
    pub(super) fn has(&self, name: &str) -> bool {
        self.arg(name).is_some()
    }

    /// The type of a parameter that is bound to a single tensor.
    pub(super) fn ty(&self, name: &str) -> Result<&'a TensorType, TypeError> {
        match self.arg(name) {
            Some(ArgType::One(Type::Tensor(t), _)) => Ok(t),
            Some(ArgType::One(t, _)) => Err(TypeError::new(format_args!(
                "`{name}`: expected a tensor, found {t}"
            ))),
            Some(ArgType::Many(_)) => Err(TypeError::new(format_args!(
                "`{name}`: expected one value, found a tuple"
            ))),
            None => Err(TypeError::new(format_args!("`{name}` is missing"))),
        }
    }

    /// The type of the tensor in a state parameter.
    pub(super) fn state(&self, name: &str) -> Result<&'a TensorType, TypeError> {
        match self.arg(name) {
            Some(ArgType::One(Type::State(t), _)) => Ok(t),
            _ => Err(TypeError::new(format_args!("`{name}`: expected a state"))),
        }
    }

    /// The types of the members of a variadic parameter, at least one.
    pub(super) fn tuple(&self, name: &str) -> Result<Vec<&'a TensorType>, TypeError> {
        match self.arg(name) {
            Some(ArgType::Many(items)) if !items.is_empty() => items
                .iter()
                .map(|(t, _)| {
                    t.tensor().ok_or_else(|| {
                        TypeError::new(format_args!("`{name}`: expected tensors, found {t}"))
                    })
                })
                .collect(),
            _ => Err(TypeError::new(format_args!(
                "`{name}`: expected a tuple of one or more values"
            ))),
        }
    }

    /// The integer or boolean value of each member of a variadic parameter; all members must be
    /// constant scalars of `dtype`.
    pub(super) fn scalar_values(&self, name: &str, dtype: DType) -> Result<Vec<i64>, TypeError> {
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
        all.ok_or_else(|| {
            TypeError::new(format_args!(
                "`{name}`: expected a tuple of constant {dtype} scalars"
            ))
        })
    }

    /// The integers or booleans of a parameter, if known.
    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.arg(name)? {
            ArgType::One(_, Known::Literal(l)) => l.to_ints(),
            ArgType::One(_, Known::Ints(v)) => Some(v.iter().map(|&i| i64::from(i)).collect()),
            _ => None,
        }
    }

    /// The floating-point numbers of a parameter, if known.
    pub(super) fn floats(&self, name: &str) -> Option<Vec<f32>> {
        match self.arg(name)? {
            ArgType::One(_, Known::Literal(l)) => l.to_floats(),
            _ => None,
        }
    }

    /// The single floating-point number of a parameter, if known.
    pub(super) fn float(&self, name: &str) -> Option<f32> {
        match self.floats(name)?.as_slice() {
            [v] => Some(*v),
            _ => None,
        }
    }

    /// Requires all bound parameters in `names` to have the element type of the first one, which
    /// must be bound.
    pub(super) fn require_same_dtype(&self, names: &[&str]) -> Result<(), TypeError> {
        let first = self.ty(names[0])?;
        for name in names.iter().filter(|name| self.has(name)) {
            let ty = self.ty(name)?;
            if ty.dtype != first.dtype {
                return Err(TypeError::new(format_args!(
                    "`{name}`: expected the element type of `{}` ({first}), found {ty}",
                    names[0]
                )));
            }
        }
        Ok(())
    }

    /// Requires each bound parameter in `names` to have exactly one element.
    pub(super) fn require_scalars(&self, names: &[&str]) -> Result<(), TypeError> {
        for name in names.iter().filter(|name| self.has(name)) {
            let ty = self.ty(name)?;
            if ty.n_elements() != Some(1) {
                return Err(TypeError::new(format_args!(
                    "`{name}`: expected one number, found {ty}"
                )));
            }
        }
        Ok(())
    }

    /// The string of a parameter, which must be one of `choices`; `default` if it is not bound.
    pub(super) fn choice(
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
            return Err(TypeError::new(format_args!(
                "`{name}`: expected {}, found `{word}`",
                one_of(choices)
            )));
        }
        Ok(word)
    }

    /// The single known integer of a parameter, or `default` if it is not bound.
    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64, TypeError> {
        if !self.has(name) {
            return Ok(default);
        }
        match self.ints(name).as_deref() {
            Some([v]) => Ok(*v),
            _ => Err(TypeError::new(format_args!(
                "`{name}`: expected one constant integer"
            ))),
        }
    }

    /// The single known boolean of a parameter, or `default` if it is not bound.
    pub(super) fn bool_or(&self, name: &str, default: bool) -> Result<bool, TypeError> {
        self.int_or(name, i64::from(default)).map(|v| v != 0)
    }

    /// The string of a parameter that must be a constant string.
    pub(super) fn string(&self, name: &str) -> Result<&'a str, TypeError> {
        match self.arg(name) {
            Some(ArgType::One(_, Known::Literal(Literal::String(s)))) => Ok(s),
            _ => Err(TypeError::new(format_args!(
                "`{name}`: expected a constant string"
            ))),
        }
    }

    /// The integers of a parameter that must be constant.
    pub(super) fn constant_ints(&self, name: &str) -> Result<Vec<i64>, TypeError> {
        self.ints(name)
            .ok_or_else(|| TypeError::new(format_args!("`{name}`: expected a constant")))
    }

    /// The common type of two compatible types: dimensions that differ become new symbols.
    pub(super) fn join(&mut self, a: &Type, b: &Type) -> Type {
        match (a, b) {
            (Type::Tensor(s), Type::Tensor(t)) => {
                let dims = s.shape.iter().zip(&t.shape);
                let shape = dims
                    .map(|(x, y)| if x == y { *x } else { self.fresh_symbol() })
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

    /// Like [`broadcast`], but the common size of two different symbols is a new symbol.
    pub(super) fn broadcast(&mut self, a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, TypeError> {
        let mut shape = broadcast(a, b)?;
        for ((dim, x), y) in shape
            .iter_mut()
            .rev()
            .zip(a.iter().rev())
            .zip(b.iter().rev())
        {
            if x != y && matches!((x, y), (Dim::Symbol(_), Dim::Symbol(_))) {
                *dim = self.fresh_symbol();
            }
        }
        Ok(shape)
    }

    /// A new symbolic dimension.
    pub(super) fn fresh_symbol(&mut self) -> Dim {
        *self.next_symbol += 1;
        Dim::Symbol(Symbol(*self.next_symbol - 1))
    }
}

/// The index of an axis in a tensor of `rank`; a negative axis counts from the end.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, TypeError> {
    let wrapped = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(wrapped)
        .ok()
        .filter(|a| *a < rank)
        .ok_or_else(|| {
            TypeError::new(format_args!(
                "expected an axis of a tensor of rank {rank}, found axis {axis}"
            ))
        })
}

/// Requires that sorted axes contain no axis twice.
pub(super) fn require_distinct(axes: &[usize]) -> Result<(), TypeError> {
    match axes.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => Err(TypeError::new(format_args!(
            "`axes`: expected distinct axes, found {} twice",
            twice[0]
        ))),
        None => Ok(()),
    }
}

/// The common shape of two operands after numpy broadcasting.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, TypeError> {
    let rank = a.len().max(b.len());
    let at = |s: &[Dim], i: usize| {
        (i + s.len())
            .checked_sub(rank)
            .map_or(Dim::Known(1), |j| s[j])
    };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (Dim::Known(1), d) | (d, Dim::Known(1)) => Ok(d),
            (Dim::Known(x), Dim::Known(y)) if x != y => Err(TypeError::new(format_args!(
                "shapes {} and {} do not broadcast",
                show_shape(a),
                show_shape(b)
            ))),
            (d @ Dim::Known(_), _) | (_, d @ Dim::Known(_)) => Ok(d),
            (d, _) => Ok(d),
        })
        .collect()
}

/// Formats alternatives, such as `` `a`, `b` or `c` ``.
pub(super) fn one_of(words: &[&str]) -> String {
    alternatives(words.iter().map(|w| format!("`{w}`")).collect())
}

/// Formats alternatives, such as `a, b or c`.
pub(crate) fn alternatives(words: Vec<String>) -> String {
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// Formats a shape, such as `[2, ?, 8]`.
pub(super) fn show_shape(shape: &[Dim]) -> String {
    let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// The result types of an op with one tensor result.
pub(super) fn tensor_result(dtype: DType, shape: Vec<Dim>) -> Result<Vec<Type>, TypeError> {
    Ok(vec![Type::Tensor(TensorType { dtype, shape })])
}

/// The rule of ops whose result has the type of `x`.
pub(super) fn type_of_x(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    Ok(vec![Type::Tensor(i.ty("x")?.clone())])
}
