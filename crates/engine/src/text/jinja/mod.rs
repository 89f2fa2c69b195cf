//! A Jinja interpreter for chat templates, with limits: a template comes with a downloaded file, so
//! it must not hang the process, exhaust its memory or overflow its stack.
//!
//! It is our own because no library can be limited. Libraries that count instructions let a single
//! one (`x ~ x`, `replace`, a list times a number, an iteration inside of a filter) take any time
//! and memory, overflow the stack when they print a namespace that contains itself, and recurse
//! while they parse. Here each copied byte counts as work and each live byte as memory
//! ([`meter::Meter`]), nesting is counted wherever the parser and the interpreter recurse, and
//! values cannot form cycles. The interpreter also tracks for each character whether the template
//! wrote it or it came with a message ([`text::Text`]). This decides whether `<|im_end|>` is a
//! control token or text from a user.
//!
//! The additions of transformers to Jinja (`raise_exception`, `strftime_now`, Python's JSON, the
//! tag `generation`) are supported. Files (`include`, `import`, `extends`) are not, as in
//! transformers. Start reading at [`statements`].

mod args;
mod ast;
mod calls;
mod cases;
mod clock;
mod expressions;
mod filters;
mod format;
mod given;
mod interpreter;
mod json;
mod lex;
mod lists;
mod many;
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
    /// Parses a template.
    pub(super) fn parse(source: &str) -> Result<Self, Error> {
        parse::template(source).map(Self)
    }
}
