//! Jinja as chat templates use it, with bounds: a template comes with a downloaded file, so nothing
//! in it may hang the process, exhaust its memory or overflow its stack.
//!
//! It is our own because no library can be bounded: those that count instructions let one of them
//! (`x ~ x`, `replace`, a list times a number, an iteration inside of a filter) take any time and
//! memory, print a namespace that holds itself until the stack is full, and recurse while they
//! parse. Here each byte that is copied costs [`meter::Meter`] work and each byte that is held
//! costs it memory; nesting is counted where the parser and the interpreter recurse; and values
//! cannot form cycles. It also knows of each character whether the template wrote it or a message
//! brought it ([`value::Text`]), which decides whether `<|im_end|>` is a control token or what a
//! user message_ranges.
//!
//! Start reading at [`statements`]. What transformers adds to Jinja (`raise_exception`, `strftime_now`,
//! Python's JSON, the tag `generation`) is part of it; files (`include`, `import`, `extends`) are
//! not, as in transformers.

mod args;
mod ast;
mod calls;
mod clock;
mod expressions;
mod filters;
mod format;
mod interpreter;
mod json;
mod lex;
mod lists;
mod meter;
mod methods;
mod names;
mod ops;
mod parse;
mod parse_expression;
mod predicates;
mod print;
mod statements;
mod strings;
mod text;
mod value;

pub(super) use interpreter::Input;
pub(super) use meter::Error;
pub(super) use statements::render;

/// A parsed template.
#[derive(Debug)]
pub(super) struct Template(ast::Body);

impl Template {
    /// Reads a template.
    pub(super) fn parse(source: &str) -> Result<Self, Error> {
        parse::template(source).map(Self)
    }
}
