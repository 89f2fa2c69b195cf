//! Parses programs, functions and ops. Every error has a line and a column. The parser allocates
//! memory only for text that it has read, never for a size that the text merely claims.

use std::collections::{HashMap, HashSet};

use super::error::ParseError;
use super::lex::Token;
use super::parser::{Parsed, Parser, Resolve, show};
use crate::literal::Literal;
use crate::opset::{self, Accepts, OpDef, Opset};
use crate::program::{Arg, BlockId, Function, Origin, Program, ValueId};
use crate::types::{Type, is_type_word};
use crate::watch::Watch;

/// Attributes that Apple's compiler leaves on ops in `analytics.mil`, and `audit --format mil` too.
const NOTES: [&str; 4] = [
    "BackendSupport",
    "EstimatedRuntime",
    "SelectedBackend",
    "ValidationMessage",
];

/// Parses a program. `resolve` looks up the constants that the text stores in weight files. The
/// result is not validated; see [`valid::check`](crate::valid::check).
pub fn parse(text: &str, resolve: Resolve<'_>) -> Result<Program, ParseError> {
    parse_watched(text, resolve, &Watch::new(&|| false))
}

/// As [`parse`]; where the watch ends it, the result is some error.
pub(crate) fn parse_watched(
    text: &str,
    resolve: Resolve<'_>,
    watch: &Watch<'_>,
) -> Result<Program, ParseError> {
    Parser::new(text, resolve, watch)?.program()
}

impl<'a> Parser<'a> {
    fn program(&mut self) -> Parsed<Program> {
        self.keyword("program")?;
        self.expect('(')?;
        self.word("a version")?;
        self.expect(')')?;
        let attributes = self.attributes()?;
        self.expect('{')?;
        let (mut functions, mut names) = (Vec::new(), HashSet::new());
        while !self.eat('}')? {
            functions.push(self.function(&mut names)?);
        }
        if self.token != Token::End {
            return self.error(format_args!(
                "expected the end of the text after the program, found {}",
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

    /// A function, whose name joins `names`.
    fn function(&mut self, names: &mut HashSet<&'a str>) -> Parsed<Function> {
        self.keyword("func")?;
        let name = self.word("the name of a function")?;
        if !names.insert(name) {
            return self.error(format_args!("function `{name}` is defined twice"));
        }
        self.expect('<')?;
        let opset = self.word("an opset")?;
        let Some(opset) = Opset::from_name(opset) else {
            return self.error(format_args!(
                "expected an opset from ios15 to ios18, found `{opset}`"
            ));
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

    /// `T a, T b)`: the inputs of the current block.
    fn inputs(&mut self, scope: &mut Scope<'a>) -> Parsed<()> {
        for (ty, name) in self.list(')', |p| Ok((p.ty()?, p.word("the name of an input")?)))? {
            let id = scope.function.append_input(scope.block, name, ty);
            self.declare(scope, name, id)?;
        }
        Ok(())
    }

    /// `{ statements } -> (outputs);`: the ops and outputs of the current block.
    fn block(&mut self, scope: &mut Scope<'a>) -> Parsed<()> {
        self.expect('{')?;
        while !self.eat('}')? {
            self.statement(scope)?;
        }
        if self.token != Token::Arrow {
            return self.error(format_args!("expected `->`, found {}", show(self.token)));
        }
        self.advance()?;
        self.expect('(')?;
        let outputs = self.list(')', |p| p.value(scope))?;
        self.expect(';')?;
        scope.function.blocks[scope.block.index()].outputs = outputs;
        Ok(())
    }

    /// `{ block(inputs) {..} -> (outputs); .. }` after an op: its nested blocks.
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
        // As an argument, the name would parse as a literal of that type.
        if is_type_word(name) {
            return self.error(format_args!(
                "`{name}` is the name of a type and cannot name a value"
            ));
        }
        if scope.hidden.contains(name) || scope.values.insert(name, id).is_some() {
            return self.error(format_args!("`{name}` is defined twice"));
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
            None => self.error(format_args!("`{name}` is used before it is defined")),
        }
    }

    /// `T a, T b = op(..)[..];` or, for an op without results, `op(..)[..];`.
    fn statement(&mut self, scope: &mut Scope<'a>) -> Parsed<()> {
        let mut declared = Vec::new();
        let has_results = self.token != Token::Word("write_state");
        if has_results {
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
            return self.error(format_args!(
                "opset {} has no op `{name}`",
                scope.function.opset.name()
            ));
        };
        self.expect('(')?;
        let mut args = self.list(')', |p| p.argument(scope, def))?;
        let mut op_name = None;
        if self.eat('[')? {
            let attributes = self.list(']', |p| p.op_attribute(def))?;
            for (key, literal) in attributes.into_iter().flatten() {
                match (key, literal) {
                    (None, Literal::String(s)) => op_name = Some(s),
                    (Some(param), literal) => args.push((param, Arg::Literal(literal))),
                    (None, _) => return self.error("attribute `name`: expected a string"),
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
            return self.error(format_args!("op `{}` has no parameter `{name}`", def.name));
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
                return self.error(format_args!(
                    "expected a defined value, found {}",
                    show(other)
                ));
            }
        };
        Ok((param.name, arg))
    }

    /// An attribute of an op; `None` for what Apple's compiler or this program noted about the op.
    fn op_attribute(
        &mut self,
        def: &'static OpDef,
    ) -> Parsed<Option<(Option<&'static str>, Literal)>> {
        let key = self.word("the name of an attribute")?;
        let param = def
            .params
            .iter()
            .find(|p| def.attributes && p.name == key)
            .map(|p| p.name);
        if NOTES.contains(&key) {
            self.expect('=')?;
            return self.skip_value().map(|()| None);
        }
        if param.is_none() && key != "name" {
            return self.error(format_args!("op `{}` has no attribute `{key}`", def.name));
        }
        self.expect('=')?;
        Ok(Some((param, self.typed_literal()?)))
    }

    /// Skips to the next `,` or `]` outside of brackets.
    fn skip_value(&mut self) -> Parsed<()> {
        let mut depth = 0usize;
        loop {
            match self.token {
                Token::Mark(',' | ']') if depth == 0 => return Ok(()),
                Token::Mark('(' | '[' | '{' | '<') => depth += 1,
                Token::Mark(')' | ']' | '}' | '>') if depth > 0 => depth -= 1,
                Token::Mark(')' | '}' | '>') | Token::End => {
                    return self.error(format_args!(
                        "expected the value of an attribute, found {}",
                        show(self.token)
                    ));
                }
                _ => {}
            }
            self.advance()?;
        }
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
            return self.error(format_args!(
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
                Err(e) => return self.error(e),
            };
        scope.function.ops[id.index()].name = name;
        let results = scope.function.op(id).results.clone();
        if results.len() != declared.len() {
            return self.error(format_args!(
                "op `{}`: expected {} results, found {}",
                def.name,
                results.len(),
                declared.len()
            ));
        }
        for ((ty, name), result) in declared.iter().zip(results) {
            let inferred = &mut scope.function.values[result.index()].ty;
            if !inferred.compatible(ty) {
                return Err(self.lexer.error(format_args!(
                    "`{name}`: expected {inferred} as op `{}` infers, found declared type {ty}",
                    def.name
                )));
            }
            inferred.refine(ty);
            self.declare(scope, name, result)?;
        }
        Ok(())
    }
}

/// The function under construction and the names that are visible at this point.
struct Scope<'a> {
    function: Function,
    /// The current block.
    block: BlockId,
    /// Visible names.
    values: HashMap<&'a str, ValueId>,
    /// Names that closed blocks defined; no longer usable, and not reusable.
    hidden: HashSet<&'a str>,
    /// Names that the current block defined.
    local: Vec<&'a str>,
}

/// An op as written in the text.
struct Statement<'a> {
    def: &'static OpDef,
    args: Vec<(&'static str, Arg)>,
    blocks: Vec<BlockId>,
    declared: Vec<(Type, &'a str)>,
    name: Option<String>,
}
