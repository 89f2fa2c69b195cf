//! Parses types and literals.

use super::lex::Token;
use super::number::Elements;
use super::parser::{Parsed, Parser, show};
use crate::data::Data;
use crate::literal::Literal;
use crate::types::{DType, Dim, MAX_RANK, Symbol, TensorType, Type, is_type_word};

impl Parser<'_> {
    /// A type, such as `tensor<fp16, [2, ?]>`.
    pub fn ty(&mut self) -> Parsed<Type> {
        self.nested(|p| {
            let word = p.word("a type")?;
            if let Some(dtype) = DType::from_name(word) {
                return Ok(Type::Tensor(TensorType::scalar(dtype)));
            }
            if !is_type_word(word) {
                return p.error(format_args!("unknown type `{word}`"));
            }
            p.expect('<')?;
            p.type_arguments(word)
        })
    }

    /// The arguments of a type constructor, after its `<`.
    fn type_arguments(&mut self, constructor: &str) -> Parsed<Type> {
        match constructor {
            "tensor" => {
                let name = self.word("an element type")?;
                let Some(dtype) = DType::from_name(name) else {
                    return self.error(format_args!("unknown element type `{name}`"));
                };
                self.expect(',')?;
                self.expect('[')?;
                let shape = self.list(']', Self::dim)?;
                if shape.len() > MAX_RANK {
                    return self.error(format_args!(
                        "expected rank {MAX_RANK} or less, found rank {}",
                        shape.len()
                    ));
                }
                self.expect('>')?;
                Ok(Type::Tensor(TensorType { dtype, shape }))
            }
            "state" => match self.ty()? {
                Type::Tensor(t) => self.expect('>').map(|()| Type::State(t)),
                other => self.error(format_args!("expected a tensor in a state, found {other}")),
            },
            "list" => {
                let element = self.ty()?;
                self.expect(',')?;
                let len = self.dim()?;
                self.expect('>')?;
                Ok(Type::List(Box::new(element), len.known()))
            }
            "dict" => {
                let key = self.ty()?;
                self.expect(',')?;
                let value = self.ty()?;
                self.expect('>')?;
                Ok(Type::Dict(Box::new(key), Box::new(value)))
            }
            _ => Ok(Type::Tuple(self.list('>', Self::ty)?)),
        }
    }

    /// A dimension: a number or `?`.
    fn dim(&mut self) -> Parsed<Dim> {
        if self.eat('?')? {
            if self.in_literal {
                return Ok(Dim::Symbol(Symbol(0)));
            }
            self.n_wildcards += 1;
            return Ok(Dim::Symbol(Symbol(self.n_wildcards - 1)));
        }
        let word = self.word("a dimension")?;
        match word.parse() {
            Ok(n) => Ok(Dim::Known(n)),
            Err(_) => self.error(format_args!("expected a dimension, found `{word}`")),
        }
    }

    /// `type(value)`: a literal with its type.
    pub fn typed_literal(&mut self) -> Parsed<Literal> {
        let outside = std::mem::replace(&mut self.in_literal, true);
        // The nesting limit applies here too, since the offset of a BLOBFILE could be a BLOBFILE
        // again.
        let literal = self.nested(|p| p.ty().and_then(|ty| p.literal(&ty)));
        self.in_literal = outside;
        literal
    }

    /// `(value)` after its type.
    fn literal(&mut self, ty: &Type) -> Parsed<Literal> {
        self.expect('(')?;
        let literal = match (self.token, ty) {
            (Token::Word("BLOBFILE"), Type::Tensor(t)) => self.blob(t)?,
            _ => self.bare(ty)?,
        };
        self.expect(')')?;
        Ok(literal)
    }

    /// `BLOBFILE(path = .., offset = ..)`: a constant in a weight file.
    fn blob(&mut self, ty: &TensorType) -> Parsed<Literal> {
        self.advance()?;
        self.expect('(')?;
        let (mut path, mut offset) = (None, None);
        for (key, literal) in self.list(')', |p| {
            let key = p.word("`path` or `offset`")?;
            p.expect('=')?;
            Ok((key, p.typed_literal()?))
        })? {
            match key {
                "path" => path = literal.as_str().map(str::to_owned),
                "offset" => offset = uint(&literal),
                other => {
                    return self
                        .error(format_args!("expected `path` or `offset`, found `{other}`"));
                }
            }
        }
        let (Some(path), Some(offset)) = (path, offset) else {
            return self.error("BLOBFILE: expected a `path` and an `offset`");
        };
        match (self.resolve)(&path, offset, ty) {
            Some(data) if ty.byte_len() == Some(data.byte_len()) && ty.dtype != DType::String => {
                Ok(Literal::Tensor(ty.clone(), data))
            }
            _ => self.error(format_args!("found no {ty} at offset {offset} of `{path}`")),
        }
    }

    /// A value without its type, which the context determines.
    fn bare(&mut self, ty: &Type) -> Parsed<Literal> {
        self.nested(|p| match ty {
            Type::Tensor(t) if t.dtype == DType::String => match p.token {
                Token::Quoted(s) if t.rank() == 0 => {
                    p.advance()?;
                    Ok(Literal::String(unescape(s)))
                }
                other => p.error(format_args!(
                    "expected a quoted string, found {}",
                    show(other)
                )),
            },
            Type::Tensor(t) => p.tensor(t),
            Type::List(element, _) => {
                p.expect('[')?;
                Ok(Literal::List(
                    (**element).clone(),
                    p.list(']', |p| p.bare(element))?,
                ))
            }
            Type::Tuple(types) => {
                p.expect('(')?;
                let mut types = types.iter();
                let items = p.list(')', |p| match types.next() {
                    Some(t) => p.bare(t),
                    None => p.error("the tuple has more items than its type"),
                })?;
                if types.next().is_some() {
                    p.error("the tuple has fewer items than its type")
                } else {
                    Ok(Literal::Tuple(items))
                }
            }
            Type::Dict(key, value) => {
                p.expect('{')?;
                let items = p.list('}', |p| {
                    p.expect('{')?;
                    let k = p.bare(key)?;
                    p.expect(',')?;
                    let v = p.bare(value)?;
                    p.expect('}')?;
                    Ok((k, v))
                })?;
                Ok(Literal::Dict((**key).clone(), (**value).clone(), items))
            }
            Type::State(_) => p.error("a state cannot be a literal"),
        })
    }

    /// The elements of a tensor in nested brackets.
    fn tensor(&mut self, ty: &TensorType) -> Parsed<Literal> {
        let mut elements = Elements::new(ty.dtype);
        let mut shape = vec![None; ty.rank()];
        self.elements(&mut shape, 0, &mut elements)?;
        // Below an empty dimension the text does not show the other sizes; the type does.
        let fits = shape
            .iter()
            .zip(&ty.shape)
            .all(|(n, d)| n.is_none_or(|n| d.compatible(Dim::Known(n))));
        if !fits {
            return self.error(format_args!(
                "expected the elements of a {ty}, found another shape"
            ));
        }
        let dims = shape
            .iter()
            .zip(&ty.shape)
            .map(|(n, d)| n.map_or(*d, Dim::Known))
            .collect();
        Ok(Literal::Tensor(
            TensorType {
                dtype: ty.dtype,
                shape: dims,
            },
            Data::owned(elements.bytes),
        ))
    }

    /// The elements below dimension `level`; `shape` collects the sizes found so far.
    fn elements(
        &mut self,
        shape: &mut [Option<usize>],
        level: usize,
        out: &mut Elements,
    ) -> Parsed<()> {
        if level == shape.len() {
            let word = self.word("a number")?;
            return match out.push(word) {
                Some(()) => Ok(()),
                None => self.error(format_args!(
                    "expected a number of type {}, found `{word}`",
                    out.dtype
                )),
            };
        }
        self.expect('[')?;
        let n = self.list(']', |p| p.elements(shape, level + 1, out))?.len();
        if shape[level].is_some_and(|m| m != n) {
            return self.error("the rows have different lengths");
        }
        shape[level] = Some(n);
        Ok(())
    }
}

/// The value of a `uint64` scalar.
fn uint(literal: &Literal) -> Option<u64> {
    let Literal::Tensor(ty, data) = literal else {
        return None;
    };
    let bytes: [u8; 8] = data.to_vec().try_into().ok()?;
    (ty.dtype == DType::Uint64).then(|| u64::from_le_bytes(bytes))
}

/// Resolves the escapes of a quoted string.
fn unescape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut chars = s.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => {}
            },
            (c, _) => out.push(c),
        }
    }
    out
}
