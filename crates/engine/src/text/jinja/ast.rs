//! The syntax tree of a template. Chains (`a + b + c`, `x.y[0]|f`, `elif`) are lists, so that the
//! depth of the tree is the nesting in the source.

use std::sync::Arc;

/// Statements in order.
pub(super) type Body = Vec<Stmt>;

/// A statement with its line in the source, counted from 1.
#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: u32,
    pub(super) kind: StmtKind,
}

#[derive(Debug)]
pub(super) enum StmtKind {
    Text(String),
    Print(Expr),
    /// Conditions with their bodies, and the body of `else`.
    If(Vec<(Expr, Body)>, Body),
    For(Arc<For>),
    Set(Target, Expr),
    /// `{% set x | filter %}`: assigns what the body prints, after the filters.
    SetBlock(Target, Vec<Applied>, Body),
    Macro(Arc<Macro>),
    /// `{% call(..) f(..) %}`: the macro that is passed as `caller`, and the call.
    CallBlock(Arc<Macro>, Expr),
    FilterBlock(Vec<Applied>, Body),
    With(Vec<(Target, Expr)>, Body),
    /// A block without effect: `generation`, `block`.
    Plain(Body),
    Break,
    Continue,
}

#[derive(Debug)]
/// `{% for target in over if filter %}`.
pub(super) struct For {
    pub(super) target: Target,
    pub(super) over: Expr,
    pub(super) filter: Option<Expr>,
    pub(super) is_recursive: bool,
    pub(super) body: Body,
    pub(super) otherwise: Body,
}

#[derive(Debug)]
/// `{% macro name(params) %}`; parameters may have default values.
pub(super) struct Macro {
    pub(super) name: String,
    pub(super) params: Vec<(String, Option<Expr>)>,
    pub(super) body: Body,
}

/// The target of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    /// `namespace.attribute`
    Attr(String, String),
    Tuple(Vec<Target>),
}

/// An expression with its line in the source, counted from 1.
#[derive(Debug)]
pub(super) struct Expr {
    pub(super) line: u32,
    pub(super) kind: ExprKind,
}

#[derive(Debug)]
pub(super) enum ExprKind {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Name(String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// `a if condition else b`: the condition and `a`, then `b` if there is one.
    Ternary(Box<[Expr; 2]>, Option<Box<Expr>>),
    Or(Vec<Expr>),
    And(Vec<Expr>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    /// `+x`
    Plus(Box<Expr>),
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    Binary(Box<Expr>, Vec<(BinaryOp, Expr)>),
    /// `a ~ b`
    Concat(Vec<Expr>),
    Postfix(Box<Expr>, Vec<Postfix>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

/// A suffix of an expression.
#[derive(Debug)]
pub(super) enum Postfix {
    Attr(String),
    Item(Expr),
    Slice([Option<Expr>; 3]),
    Call(Args),
    Filter(Applied),
    /// `is` or, if the flag is set, `is not`.
    Test(Applied, bool),
}

/// A filter or test with its arguments.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) name: String,
    pub(super) args: Args,
}

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(String, Expr)>,
    /// `*list` and `**dict`.
    pub(super) spread: Vec<Expr>,
    pub(super) spread_named: Vec<Expr>,
}
