//! Parser. Every error has a line and a column; nothing that the text claims is allocated before it
//! is read.

use std::collections::{HashMap, HashSet};

use super::lex::{Lexer, Token};
use super::number::Elements;
use crate::data::Data;
use crate::literal::Literal;
use crate::opset::{self, Accepts, OpDef, Opset};
use crate::program::{Arg, BlockId, Function, Origin, Program, ValueId};
use crate::types::{DType, Dim, MAX_RANK, Symbol, TensorType, Type, is_type_word};

/// Nesting of types and literals beyond this is refused, so that no text exhausts the stack.
const MAX_DEPTH: usize = 32;

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

/// Finds the constant at a path and offset of a weight file, of the type that the text declares.
pub type Resolve<'a> = &'a dyn Fn(&str, u64, &TensorType) -> Option<Data>;

/// Read a program; `resolve` finds the constants that the text refers to.
pub fn parse(text: &str, resolve: Resolve<'_>) -> Result<Program, ParseError> {
    let mut lexer = Lexer::new(text);
    let token = lexer.next()?;
    let mut parser = Parser {
        lexer,
        token,
        resolve,
        depth: 0,
        n_wildcards: 0,
        in_literal: false,
    };
    parser.program()
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    resolve: Resolve<'a>,
    depth: usize,
    n_wildcards: u32,
    /// Inside of literals a `?` is no dimension of a value, and all are one symbol.
    in_literal: bool,
}

type Parsed<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    fn error<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(self.lexer.error(message))
    }

    fn advance(&mut self) -> Parsed<Token<'a>> {
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    fn eat(&mut self, mark: char) -> Parsed<bool> {
        let found = self.token == Token::Mark(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, mark: char) -> Parsed<()> {
        if self.eat(mark)? {
            Ok(())
        } else {
            self.error(format!("`{mark}` is due, {} stands here", show(self.token)))
        }
    }

    fn word(&mut self, what: &str) -> Parsed<&'a str> {
        match self.token {
            Token::Word(w) => {
                self.advance()?;
                Ok(w)
            }
            other => self.error(format!("{what} is due, {} stands here", show(other))),
        }
    }

    fn keyword(&mut self, keyword: &str) -> Parsed<()> {
        match self.token {
            Token::Word(w) if w == keyword => self.advance().map(|_| ()),
            other => self.error(format!("`{keyword}` is due, {} stands here", show(other))),
        }
    }

    /// Items separated by commas up to `close`, which is consumed.
    fn list<T>(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let mut out = Vec::new();
        if self.eat(close)? {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            if self.eat(close)? {
                return Ok(out);
            }
            self.expect(',')?;
        }
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_DEPTH {
            return self.error(format!("it is nested deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn program(&mut self) -> Parsed<Program> {
        self.keyword("program")?;
        self.expect('(')?;
        self.word("a version")?;
        self.expect(')')?;
        let attributes = self.attributes()?;
        self.expect('{')?;
        let mut functions: Vec<Function> = Vec::new();
        while !self.eat('}')? {
            let function = self.function()?;
            if functions.iter().any(|f| f.name == function.name) {
                return self.error(format!("function `{}` stands twice", function.name));
            }
            functions.push(function);
        }
        if self.token != Token::End {
            return self.error(format!(
                "{} stands after the end of the program",
                show(self.token)
            ));
        }
        Ok(Program {
            attributes,
            functions,
        })
    }

    fn attributes(&mut self) -> Parsed<Vec<(String, Literal)>> {
        if !self.eat('[')? {
            return Ok(Vec::new());
        }
        self.list(']', |p| {
            let name = p.word("the name of an attribute")?;
            p.expect('=')?;
            Ok((name.to_owned(), p.typed_literal()?))
        })
    }

    fn function(&mut self) -> Parsed<Function> {
        self.keyword("func")?;
        let name = self.word("the name of a function")?;
        self.expect('<')?;
        let opset = self.word("an opset")?;
        let Some(opset) = Opset::from_name(opset) else {
            return self.error(format!("unknown opset `{opset}`; ios15 to ios18 are known"));
        };
        self.expect('>')?;
        self.expect('(')?;
        let mut scope = Scope {
            function: Function::new(name.to_owned(), opset),
            block: Function::BODY,
            values: HashMap::new(),
            hidden: HashSet::new(),
            local: Vec::new(),
        };
        self.n_wildcards = 0;
        self.inputs(&mut scope)?;
        scope.function.n_symbols = self.n_wildcards;
        scope.function.attributes = self.attributes()?;
        self.block(&mut scope)?;
        Ok(scope.function)
    }

    /// `T a, T b)`, the inputs of the block at hand.
    fn inputs(&mut self, scope: &mut Scope<'a>) -> Parsed<()> {
        for (ty, name) in self.list(')', |p| Ok((p.ty()?, p.word("the name of an input")?)))? {
            let id = scope.function.append_input(scope.block, name, ty);
            self.declare(scope, name, id)?;
        }
        Ok(())
    }

    /// `{ statements } -> (outputs);`, the ops of the block at hand.
    fn block(&mut self, scope: &mut Scope<'a>) -> Parsed<()> {
        self.expect('{')?;
        while !self.eat('}')? {
            self.statement(scope)?;
        }
        if self.token != Token::Arrow {
            return self.error(format!("`->` is due, {} stands here", show(self.token)));
        }
        self.advance()?;
        self.expect('(')?;
        let outputs = self.list(')', |p| p.value(scope))?;
        self.expect(';')?;
        scope.function.blocks[scope.block.index()].outputs = outputs;
        Ok(())
    }

    /// `{ block(inputs) {..} -> (outputs); .. }` behind an op.
    fn nested_blocks(&mut self, scope: &mut Scope<'a>) -> Parsed<Vec<BlockId>> {
        let mut blocks = Vec::new();
        while !self.eat('}')? {
            self.keyword("block")?;
            self.expect('(')?;
            let block = scope.function.append_block();
            let outside = (
                std::mem::replace(&mut scope.block, block),
                std::mem::take(&mut scope.local),
            );
            self.nested(|p| {
                p.n_wildcards = scope.function.n_symbols;
                p.inputs(scope)?;
                scope.function.n_symbols = p.n_wildcards;
                p.block(scope)
            })?;
            for name in scope.local.drain(..) {
                scope.values.remove(name);
                scope.hidden.insert(name);
            }
            (scope.block, scope.local) = outside;
            blocks.push(block);
        }
        Ok(blocks)
    }

    fn declare(&self, scope: &mut Scope<'a>, name: &'a str, id: ValueId) -> Parsed<()> {
        // As an argument it would be read as a literal of that type.
        if is_type_word(name) {
            return self.error(format!("`{name}` is a type and cannot name a value"));
        }
        if scope.hidden.contains(name) || scope.values.insert(name, id).is_some() {
            return self.error(format!("`{name}` is defined twice"));
        }
        scope.local.push(name);
        scope.function.values[id.index()].name = name.to_owned();
        scope.function.names.entry(name.to_owned()).or_insert(0);
        Ok(())
    }

    fn value(&mut self, scope: &Scope<'a>) -> Parsed<ValueId> {
        let name = self.word("the name of a value")?;
        match scope.values.get(name) {
            Some(id) => Ok(*id),
            None => self.error(format!("`{name}` is used before it is defined")),
        }
    }

    /// `T a, T b = op(..)[..];` or, for an op without results, `op(..)[..];`.
    fn statement(&mut self, scope: &mut Scope<'a>) -> Parsed<()> {
        let mut declared = Vec::new();
        let bare = matches!(self.token, Token::Word(w) if opset::find(w).is_some_and(|d| d.name == "write_state"));
        if !bare {
            loop {
                declared.push((self.ty()?, self.word("the name of a result")?));
                if self.eat('=')? {
                    break;
                }
                self.expect(',')?;
            }
        }
        let name = self.word("an op")?;
        let Some(def) = opset::find_in(name, scope.function.opset) else {
            return self.error(format!(
                "opset {} has no op `{name}`",
                scope.function.opset.name()
            ));
        };
        self.expect('(')?;
        let mut args = self.list(')', |p| p.argument(scope, def))?;
        let mut op_name = None;
        if self.eat('[')? {
            for (key, literal) in self.list(']', |p| p.op_attribute(def))? {
                match (key, literal) {
                    (None, Literal::String(s)) => op_name = Some(s),
                    (Some(param), literal) => args.push((param, Arg::Literal(literal))),
                    (None, _) => return self.error("the attribute `name` must be a string"),
                }
            }
        }
        let blocks = if self.eat('{')? {
            self.nested_blocks(scope)?
        } else {
            Vec::new()
        };
        self.expect(';')?;
        self.append(
            scope,
            Statement {
                def,
                args,
                blocks,
                declared,
                name: op_name,
            },
        )
    }

    fn argument(&mut self, scope: &Scope<'a>, def: &'static OpDef) -> Parsed<(&'static str, Arg)> {
        let name = self.word("the name of a parameter")?;
        let Some(param) = def.params.iter().find(|p| p.name == name) else {
            return self.error(format!("op `{}` has no parameter `{name}`", def.name));
        };
        self.expect('=')?;
        let arg = match self.token {
            Token::Mark('(') => {
                self.advance()?;
                Arg::Values(self.list(')', |p| p.value(scope))?)
            }
            Token::Word(w) if scope.values.contains_key(w) => {
                let value = self.value(scope)?;
                if param.accepts == Accepts::Tensors {
                    Arg::Values(vec![value])
                } else {
                    Arg::Value(value)
                }
            }
            Token::Word(w) if is_type_word(w) => Arg::Literal(self.typed_literal()?),
            other => {
                return self.error(format!("{} is no value that is defined here", show(other)));
            }
        };
        Ok((param.name, arg))
    }

    fn op_attribute(&mut self, def: &'static OpDef) -> Parsed<(Option<&'static str>, Literal)> {
        let key = self.word("the name of an attribute")?;
        let param = def
            .params
            .iter()
            .find(|p| def.attributes && p.name == key)
            .map(|p| p.name);
        if param.is_none() && key != "name" {
            return self.error(format!("op `{}` has no attribute `{key}`", def.name));
        }
        self.expect('=')?;
        Ok((param, self.typed_literal()?))
    }

    fn append(&mut self, scope: &mut Scope<'a>, statement: Statement<'a>) -> Parsed<()> {
        let Statement {
            def,
            args,
            blocks,
            declared,
            name,
        } = statement;
        let mut given: Vec<&str> = args.iter().map(|(n, _)| *n).collect();
        given.sort_unstable();
        if let Some(twice) = given.windows(2).find(|w| w[0] == w[1]) {
            return self.error(format!(
                "parameter `{}` of op `{}` is bound twice",
                twice[0], def.name
            ));
        }
        let first = declared.first().map_or(def.name, |d| d.1);
        let id =
            match scope
                .function
                .append_op(scope.block, def, args, blocks, first, Origin::default())
            {
                Ok(id) => id,
                Err(e) => return self.error(e.to_string()),
            };
        scope.function.ops[id.index()].name = name;
        let results = scope.function.op(id).results.clone();
        if results.len() != declared.len() {
            return self.error(format!(
                "op `{}` gives {} results, not {}",
                def.name,
                results.len(),
                declared.len()
            ));
        }
        for ((ty, name), result) in declared.iter().zip(results) {
            let inferred = &mut scope.function.values[result.index()].ty;
            if !inferred.compatible(ty) {
                return Err(self.lexer.error(format!(
                    "`{name}` is declared {ty}, op `{}` gives {inferred}",
                    def.name
                )));
            }
            inferred.refine(ty);
            self.declare(scope, name, result)?;
        }
        Ok(())
    }

    fn ty(&mut self) -> Parsed<Type> {
        self.nested(|p| {
            let word = p.word("a type")?;
            if let Some(dtype) = DType::from_name(word) {
                return Ok(Type::Tensor(TensorType::scalar(dtype)));
            }
            if !is_type_word(word) {
                return p.error(format!("unknown type `{word}`"));
            }
            p.expect('<')?;
            p.type_arguments(word)
        })
    }

    fn type_arguments(&mut self, constructor: &str) -> Parsed<Type> {
        match constructor {
            "tensor" => {
                let name = self.word("an element type")?;
                let Some(dtype) = DType::from_name(name) else {
                    return self.error(format!("unknown element type `{name}`"));
                };
                self.expect(',')?;
                self.expect('[')?;
                let shape = self.list(']', Self::dim)?;
                if shape.len() > MAX_RANK {
                    return self.error(format!(
                        "a tensor of {} dimensions, {MAX_RANK} are the most",
                        shape.len()
                    ));
                }
                self.expect('>')?;
                Ok(Type::Tensor(TensorType { dtype, shape }))
            }
            "state" => match self.ty()? {
                Type::Tensor(t) => self.expect('>').map(|()| Type::State(t)),
                other => self.error(format!("a state holds a tensor, not {other}")),
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
            Err(_) => self.error(format!("`{word}` is no dimension")),
        }
    }

    /// `type(value)`.
    fn typed_literal(&mut self) -> Parsed<Literal> {
        let outside = std::mem::replace(&mut self.in_literal, true);
        // Nested too: the offset of a BLOBFILE could be a BLOBFILE again.
        let literal = self.nested(|p| p.ty().and_then(|ty| p.literal(&ty)));
        self.in_literal = outside;
        literal
    }

    /// `(value)` after a type that was read.
    fn literal(&mut self, ty: &Type) -> Parsed<Literal> {
        self.expect('(')?;
        let literal = match (self.token, ty) {
            (Token::Word("BLOBFILE"), Type::Tensor(t)) => self.blob(t)?,
            _ => self.bare(ty)?,
        };
        self.expect(')')?;
        Ok(literal)
    }

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
                other => return self.error(format!("`{other}` is neither `path` nor `offset`")),
            }
        }
        let (Some(path), Some(offset)) = (path, offset) else {
            return self.error("BLOBFILE needs a `path` and an `offset`");
        };
        match (self.resolve)(&path, offset, ty) {
            Some(data) if ty.byte_len() == Some(data.byte_len()) && ty.dtype != DType::String => {
                Ok(Literal::Tensor(ty.clone(), data))
            }
            _ => self.error(format!("there is no {ty} at offset {offset} of `{path}`")),
        }
    }

    /// A value without its type, which the context gives.
    fn bare(&mut self, ty: &Type) -> Parsed<Literal> {
        self.nested(|p| match ty {
            Type::Tensor(t) if t.dtype == DType::String => match p.token {
                Token::Quoted(s) if t.rank() == 0 => {
                    p.advance()?;
                    Ok(Literal::String(unescape(s)))
                }
                other => p.error(format!(
                    "a quoted string is due, {} stands here",
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
            Type::State(_) => p.error("a state has no literal"),
        })
    }

    fn tensor(&mut self, ty: &TensorType) -> Parsed<Literal> {
        let mut elements = Elements::new(ty.dtype);
        let mut shape = vec![None; ty.rank()];
        self.elements(&mut shape, 0, &mut elements)?;
        // Below an empty dimension nothing says how long the others are; the type does.
        let fits = shape
            .iter()
            .zip(&ty.shape)
            .all(|(n, d)| n.is_none_or(|n| d.compatible(Dim::Known(n))));
        if !fits {
            return self.error(format!("the elements do not fill a {ty}"));
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
                None => self.error(format!("`{word}` is no {}", out.dtype)),
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

struct Scope<'a> {
    function: Function,
    /// The block at hand.
    block: BlockId,
    /// Names that can be used.
    values: HashMap<&'a str, ValueId>,
    /// Names of blocks that are closed.
    hidden: HashSet<&'a str>,
    /// Names of the block at hand.
    local: Vec<&'a str>,
}

/// An op as it was read.
struct Statement<'a> {
    def: &'static OpDef,
    args: Vec<(&'static str, Arg)>,
    blocks: Vec<BlockId>,
    declared: Vec<(Type, &'a str)>,
    name: Option<String>,
}

fn uint(literal: &Literal) -> Option<u64> {
    let Literal::Tensor(ty, data) = literal else {
        return None;
    };
    let bytes: [u8; 8] = data.to_vec().try_into().ok()?;
    (ty.dtype == DType::Uint64).then(|| u64::from_le_bytes(bytes))
}

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

fn show(token: Token<'_>) -> String {
    match token {
        Token::Word(w) => format!("`{}`", w.chars().take(40).collect::<String>()),
        Token::Quoted(_) => "a string".to_owned(),
        Token::Mark(c) => format!("`{c}`"),
        Token::Arrow => "`->`".to_owned(),
        Token::End => "the end of the text".to_owned(),
    }
}
