//! What a template is made of. Chains (`a + b + c`, `x.y[0]|f`, `elif`) are lists, so that depth is
//! nesting alone.

use std::sync::Arc;

/// Statements in order.
pub(super) type Body = Vec<Stmt>;

/// A statement and its line.
#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: u32,
    pub(super) kind: StmtKind,
}

#[derive(Debug)]
pub(super) enum StmtKind {
    Text(String),
    Print(Expr),
    /// Conditions with their bodies, and what else.
    If(Vec<(Expr, Body)>, Body),
    For(Arc<For>),
    Set(Target, Expr),
    /// What the body prints, through filters.
    SetBlock(Target, Vec<Call>, Body),
    Macro(Arc<Macro>),
    /// `call(..) f(..)`: the macro that `caller` is, and the call.
    CallBlock(Arc<Macro>, Expr),
    FilterBlock(Vec<Call>, Body),
    With(Vec<(Target, Expr)>, Body),
    /// A block that changes nothing: `generation`, `block`.
    Plain(Body),
    Do(Expr),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) over: Expr,
    pub(super) filter: Option<Expr>,
    pub(super) is_recursive: bool,
    pub(super) body: Body,
    pub(super) otherwise: Body,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    pub(super) params: Vec<(String, Option<Expr>)>,
    pub(super) body: Body,
}

/// What is assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    /// `ns.x`
    Attr(String, String),
    Tuple(Vec<Target>),
}

/// An expression and its line.
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
    /// `a if condition else b`: condition, a, b.
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

/// What stands behind an expression.
#[derive(Debug)]
pub(super) enum Postfix {
    Attr(String),
    Item(Expr),
    Slice([Option<Expr>; 3]),
    Call(Args),
    Filter(Call),
    /// Whether it is `is not`.
    Test(Call, bool),
}

/// A filter or test with what it is given.
#[derive(Debug)]
pub(super) struct Call {
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
