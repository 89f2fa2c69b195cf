//! Type inference: the arguments of one op, and the checks and shape rules that op rows share.

use super::OpDef;
use crate::literal::Literal;
use crate::types::{DType, Dim, Symbol, TensorType, Type};

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
    pub(super) def: &'static OpDef,
    args: &'a [Option<ArgType<'a>>],
    pub(super) blocks: &'a [BlockTypes],
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

    pub(super) fn arg(&self, name: &str) -> Option<&'a ArgType<'a>> {
        self.args.get(self.def.param_index(name)?)?.as_ref()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.arg(name).is_some()
    }

    pub(super) fn ty(&self, name: &str) -> Result<&'a TensorType, TypeError> {
        match self.arg(name) {
            Some(ArgType::One(Type::Tensor(t), _)) => Ok(t),
            Some(ArgType::One(t, _)) => {
                Err(TypeError(format!("`{name}` is {t}, a tensor is needed")))
            }
            Some(ArgType::Many(_)) => Err(TypeError(format!("`{name}` takes one value"))),
            None => Err(TypeError(format!("`{name}` is missing"))),
        }
    }

    pub(super) fn state(&self, name: &str) -> Result<&'a TensorType, TypeError> {
        match self.arg(name) {
            Some(ArgType::One(Type::State(t), _)) => Ok(t),
            _ => Err(TypeError(format!("`{name}` must be a state"))),
        }
    }

    pub(super) fn many(&self, name: &str) -> Result<Vec<&'a TensorType>, TypeError> {
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
        all.ok_or_else(|| TypeError(format!("`{name}` must be a tuple of constant {dtype}")))
    }

    /// The integers (or truth values) of a parameter, where they are known.
    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.arg(name)? {
            ArgType::One(_, Known::Literal(l)) => l.to_ints(),
            ArgType::One(_, Known::Ints(v)) => Some(v.iter().map(|&i| i64::from(i)).collect()),
            _ => None,
        }
    }

    /// The floating-point numbers of a parameter, where they are known.
    pub(super) fn floats(&self, name: &str) -> Option<Vec<f32>> {
        match self.arg(name)? {
            ArgType::One(_, Known::Literal(l)) => l.to_floats(),
            _ => None,
        }
    }

    /// The one floating-point number of a parameter, where it is known.
    pub(super) fn float(&self, name: &str) -> Option<f32> {
        match self.floats(name)?.as_slice() {
            [v] => Some(*v),
            _ => None,
        }
    }

    /// Refuse parameters of another element type than the first of them; what is left out agrees.
    pub(super) fn alike(&self, names: &[&str]) -> Result<(), TypeError> {
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
    pub(super) fn scalars(&self, names: &[&str]) -> Result<(), TypeError> {
        for name in names.iter().filter(|name| self.has(name)) {
            let ty = self.ty(name)?;
            if ty.n_elements() != Some(1) {
                return Err(TypeError(format!("`{name}` is {ty}, one number is needed")));
            }
        }
        Ok(())
    }

    /// Refuse a string that is none of `choices`; what is left out is its default.
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
            return Err(TypeError(format!(
                "`{name}` is `{word}`, one of {} is needed",
                choices.join(", ")
            )));
        }
        Ok(word)
    }

    /// One known integer, or `default` when the parameter is left out.
    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64, TypeError> {
        if !self.has(name) {
            return Ok(default);
        }
        match self.ints(name).as_deref() {
            Some([v]) => Ok(*v),
            _ => Err(TypeError(format!("`{name}` must be one constant integer"))),
        }
    }

    pub(super) fn bool_or(&self, name: &str, default: bool) -> Result<bool, TypeError> {
        self.int_or(name, i64::from(default)).map(|v| v != 0)
    }

    pub(super) fn string(&self, name: &str) -> Result<&'a str, TypeError> {
        match self.arg(name) {
            Some(ArgType::One(_, Known::Literal(Literal::String(s)))) => Ok(s),
            _ => Err(TypeError(format!("`{name}` must be a constant string"))),
        }
    }

    /// Known integers, where the op cannot do without.
    pub(super) fn constant_ints(&self, name: &str) -> Result<Vec<i64>, TypeError> {
        self.ints(name)
            .ok_or_else(|| TypeError(format!("`{name}` must be constant")))
    }

    /// What is known of a value that is of either type; the types are compatible.
    pub(super) fn join(&mut self, a: &Type, b: &Type) -> Type {
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
    pub(super) fn broadcast(&mut self, a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, TypeError> {
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

    pub(super) fn fresh(&mut self) -> Dim {
        *self.next_symbol += 1;
        Dim::Symbol(Symbol(*self.next_symbol - 1))
    }
}

/// An axis counted from the end when negative.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, TypeError> {
    let wrapped = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(wrapped)
        .ok()
        .filter(|a| *a < rank)
        .ok_or_else(|| TypeError(format!("axis {axis} is outside of rank {rank}")))
}

/// Refuse sorted axes that name one axis twice.
pub(super) fn distinct(axes: &[usize]) -> Result<(), TypeError> {
    match axes.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => Err(TypeError(format!("`axes` names axis {} twice", twice[0]))),
        None => Ok(()),
    }
}

/// The shape of two operands after broadcasting (numpy's rule).
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

pub(super) fn show(shape: &[Dim]) -> String {
    let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}

pub(super) fn one(dtype: DType, shape: Vec<Dim>) -> Result<Vec<Type>, TypeError> {
    Ok(vec![Type::Tensor(TensorType { dtype, shape })])
}

/// The result is of the type of `x`.
pub(super) fn same(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    Ok(vec![Type::Tensor(i.ty("x")?.clone())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opset::find;

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
