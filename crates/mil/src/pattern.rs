//! Shapes of ops as values: what a pass, a fix or a fused kernel looks for.
//!
//! A [`Pattern`] is plain data, so a `const` holds it; [`pattern!`](crate::pattern!) writes it as
//! the ops are written. It is matched against the op that ends it, its root, and from there back to
//! what the root is computed from. There are three answers: it matches, and [`Match`] has what its
//! names stand for; it does not; or it is refused, with the words of the part that nearly matched.
//!
//! ```
//! use thane_mil::pattern;
//! use thane_mil::pattern::Pattern;
//!
//! /// `exp(x) / sum(exp(x))`.
//! const SOFTMAX: Pattern = pattern!(real_div(powers@exp(x), sum@reduce_sum(powers)));
//! ```
//!
//! Where an alternative matched, it is kept: what follows does not go back to another one. Write
//! alternatives that do not match the same ops.

use crate::graph::{Graph, users};
use crate::literal::Literal;
use crate::program::{Arg, Function, Op, OpId, ValueId};

/// What an argument is, and what it is computed from.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    /// Any value. All that a name stands for is one value; the empty name stands for nothing.
    Any(&'static str),
    /// Any argument, one that is written in place too.
    Given(&'static str),
    /// A constant of one number that the condition holds for.
    Number(&'static str, fn(f32) -> bool),
    /// The first result, which gets the name, of an op of one of these kinds (any kind, if there
    /// are none) with these first arguments, those of a variadic parameter each by itself; further
    /// arguments may be anything.
    Op(&'static str, &'static [&'static str], &'static [Self]),
    /// As [`Self::Op`], with its arguments `x` and `y` in either order.
    Pair(&'static str, &'static [&'static str], &'static [Self; 2]),
    /// The first of these that matches.
    OneOf(&'static [Self]),
    /// The same, if the value is used once and is no output.
    Once(&'static Self),
    /// The same; where it does not match, it is refused because of this.
    Else(&'static Self, &'static str),
}

/// Writes a [`Pattern`]:
///
/// | written | matches |
/// |---|---|
/// | `x` | any value, the same one wherever the name occurs |
/// | `#x` | any argument, one that is written in place too; `_` needs no name |
/// | `sub(x, y)` | a `sub` with these first arguments |
/// | `add{x, y}` | an `add` with these arguments in either order |
/// | `root@rsqrt(x)` | an `rsqrt`, whose result gets a name |
/// | `[rsqrt, sqrt](x)` | an op of one of these kinds |
/// | `(KINDS)(x)` | the same with a constant of kinds |
/// | `(PATTERN)` | what this constant matches |
#[macro_export]
macro_rules! pattern {
    (@args [$($done:expr),*]) => { &[$($done),*] };
    (@args [$($done:expr),*] # $name:ident $(, $($more:tt)*)?) => {
        $crate::pattern!(@args [$($done,)* $crate::pattern!(# $name)] $($($more)*)?)
    };
    (@args [$($done:expr),*] $name:ident @ $kinds:tt $args:tt $(, $($more:tt)*)?) => {
        $crate::pattern!(@args [$($done,)* $crate::pattern!($name @ $kinds $args)] $($($more)*)?)
    };
    (@args [$($done:expr),*] $kinds:tt ($($args:tt)*) $(, $($more:tt)*)?) => {
        $crate::pattern!(@args [$($done,)* $crate::pattern!($kinds ($($args)*))] $($($more)*)?)
    };
    (@args [$($done:expr),*] $kinds:tt {$($args:tt)*} $(, $($more:tt)*)?) => {
        $crate::pattern!(@args [$($done,)* $crate::pattern!($kinds {$($args)*})] $($($more)*)?)
    };
    (@args [$($done:expr),*] $one:tt $(, $($more:tt)*)?) => {
        $crate::pattern!(@args [$($done,)* $crate::pattern!($one)] $($($more)*)?)
    };
    (@kinds [$($kind:ident),*]) => { &[$(stringify!($kind)),*] };
    (@kinds ($kinds:expr)) => { $kinds };
    (@kinds $kind:ident) => { &[stringify!($kind)] };
    (@op $name:expr, $kinds:tt ($($args:tt)*)) => {
        $crate::pattern::Pattern::Op(
            $name,
            $crate::pattern!(@kinds $kinds),
            $crate::pattern!(@args [] $($args)*),
        )
    };
    (@op $name:expr, $kinds:tt {$($args:tt)*}) => {
        $crate::pattern::Pattern::Pair(
            $name,
            $crate::pattern!(@kinds $kinds),
            $crate::pattern!(@args [] $($args)*),
        )
    };
    (_) => { $crate::pattern::Pattern::Given("") };
    (# $name:ident) => { $crate::pattern::Pattern::Given(stringify!($name)) };
    ($name:ident) => { $crate::pattern::Pattern::Any(stringify!($name)) };
    (($pattern:expr)) => { $pattern };
    ($name:ident @ $kinds:tt $args:tt) => {
        $crate::pattern!(@op stringify!($name), $kinds $args)
    };
    ($kinds:tt $args:tt) => { $crate::pattern!(@op "", $kinds $args) };
}

/// What a pattern matched.
#[derive(Clone, Debug)]
pub struct Match<'a> {
    /// The op that ends it.
    pub root: OpId,
    /// All its ops, the root first, each once.
    pub ops: Vec<OpId>,
    names: Vec<(&'static str, Bound<'a>)>,
    f: &'a Function,
}

/// What a name of a pattern stands for.
#[derive(Clone, Copy, Debug)]
pub enum Bound<'a> {
    /// A value.
    Value(ValueId),
    /// What is written in place.
    Literal(&'a Literal),
}

impl<'a> Match<'a> {
    /// A match of one op without names.
    pub fn of(f: &'a Function, root: OpId) -> Self {
        Self {
            root,
            ops: vec![root],
            names: Vec::new(),
            f,
        }
    }

    /// What a name stands for; `None` if it is in an alternative that was not taken.
    pub fn bound(&self, name: &str) -> Option<Bound<'a>> {
        let bound = self.names.iter().find(|(own, _)| *own == name);
        bound.map(|(_, bound)| *bound)
    }

    /// The value that a name stands for.
    pub fn value(&self, name: &str) -> Option<ValueId> {
        match self.bound(name)? {
            Bound::Value(value) => Some(value),
            Bound::Literal(_) => None,
        }
    }

    /// The values that names stand for.
    pub fn values<const N: usize>(&self, names: [&str; N]) -> Option<[ValueId; N]> {
        let values: Option<Vec<ValueId>> = names.iter().map(|name| self.value(name)).collect();
        values?.try_into().ok()
    }

    /// The op that makes the value of a name.
    pub fn maker(&self, name: &str) -> Option<OpId> {
        self.f.maker(self.value(name)?)
    }

    /// The op that [`Self::maker`] finds.
    pub fn op(&self, name: &str) -> Option<&'a Op> {
        self.f.definer(self.value(name)?)
    }

    /// The number that a name stands for.
    pub fn number(&self, name: &str) -> Option<f32> {
        number(self.f, self.bound(name)?)
    }
}

/// A match, none, or the words of a refusal.
pub type Answer<'a> = Result<Option<Match<'a>>, &'static str>;

impl Pattern {
    /// Match the pattern with its root at an op.
    pub fn find<'a>(&self, graph: &Graph<'a>, root: OpId) -> Answer<'a> {
        let found = Match {
            root,
            ops: Vec::new(),
            names: Vec::new(),
            f: graph.f,
        };
        let mut search = Search {
            graph,
            found,
            refusal: None,
        };
        match (search.op(self, root), search.refusal) {
            (true, _) => Ok(Some(search.found)),
            (false, None) => Ok(None),
            (false, Some(words)) => Err(words),
        }
    }

    /// [`Self::find`], where nobody asks why there is no match.
    pub fn at<'a>(&self, graph: &Graph<'a>, root: OpId) -> Option<Match<'a>> {
        self.find(graph, root).ok().flatten()
    }

    /// Match the pattern with its root at the op whose first result a value is.
    pub fn made<'a>(&self, graph: &Graph<'a>, value: ValueId) -> Option<Match<'a>> {
        self.at(graph, first_maker(graph, value)?)
    }

    /// Match the pattern so that an op is one of its ops: the root is the op itself or follows it.
    pub fn find_around<'a>(&self, graph: &Graph<'a>, site: OpId) -> Answer<'a> {
        let (mut roots, mut refusal) = (vec![site], None);
        for _ in 0..self.depth() {
            for root in &roots {
                for pattern in self.alternatives().iter().filter(|p| p.takes(graph, *root)) {
                    match pattern.find(graph, *root) {
                        Ok(Some(found)) if found.ops.contains(&site) => return Ok(Some(found)),
                        Ok(_) => {}
                        Err(words) => refusal = refusal.or(Some(words)),
                    }
                }
            }
            roots = roots.iter().flat_map(|op| users(graph, *op)).collect();
            roots.sort_unstable();
            roots.dedup();
            roots.truncate(MAX_ROOTS);
        }
        refusal.or(self.words()).map_or(Ok(None), Err)
    }

    /// The patterns of which one has to match.
    fn alternatives(&self) -> &[Self] {
        match self {
            Self::OneOf(patterns) => patterns,
            Self::Else(inner, _) => inner.alternatives(),
            other => std::slice::from_ref(other),
        }
    }

    /// Why the pattern as a whole is refused.
    fn words(&self) -> Option<&'static str> {
        match self {
            Self::Else(_, words) => Some(words),
            _ => None,
        }
    }

    /// Whether an op is of a kind that the root may be of.
    fn takes(&self, graph: &Graph<'_>, op: OpId) -> bool {
        match self {
            Self::Op(_, kinds, _) | Self::Pair(_, kinds, _) => is_any(graph, op, kinds),
            Self::OneOf(patterns) => patterns.iter().any(|p| p.takes(graph, op)),
            Self::Once(inner) | Self::Else(inner, _) => inner.takes(graph, op),
            Self::Any(_) | Self::Given(_) | Self::Number(..) => false,
        }
    }

    /// Ops from the root to the furthest one, both included.
    fn depth(&self) -> usize {
        let deepest = |patterns: &[Self]| patterns.iter().map(Self::depth).max().unwrap_or(0);
        match self {
            Self::Any(_) | Self::Given(_) | Self::Number(..) => 0,
            Self::Op(_, _, args) => 1 + deepest(args),
            Self::Pair(_, _, args) => 1 + deepest(&args[..]),
            Self::OneOf(patterns) => deepest(patterns),
            Self::Once(inner) | Self::Else(inner, _) => inner.depth(),
        }
    }
}

/// Ops that are tried as roots at one distance from a site.
const MAX_ROOTS: usize = 64;

fn is_any(graph: &Graph<'_>, op: OpId, kinds: &[&str]) -> bool {
    kinds.is_empty() || kinds.contains(&graph.op(op).def.name)
}

/// The op whose first result a value is.
fn first_maker(graph: &Graph<'_>, value: ValueId) -> Option<OpId> {
    let maker = graph.maker(value)?;
    (graph.op(maker).results[0] == value).then_some(maker)
}

/// The one number that an argument is, an integer too, stated in place or not.
fn number(f: &Function, bound: Bound<'_>) -> Option<f32> {
    let literal = match bound {
        Bound::Value(value) => f.constant(value)?,
        Bound::Literal(literal) => literal,
    };
    if !matches!(literal, Literal::Tensor(_, data) if data.byte_len() <= 4) {
        return None;
    }
    let ints = || Some(literal.to_ints()?.iter().map(|i| *i as f32).collect());
    match literal.to_floats().or_else(ints)?.as_slice() {
        [number] => Some(*number),
        _ => None,
    }
}

/// The arguments of an op in the order of its parameters.
fn bounds(op: &Op) -> impl Iterator<Item = Option<Bound<'_>>> {
    op.args.iter().flat_map(|arg| {
        let (one, many) = match arg {
            None => (Some(None), &[][..]),
            Some(Arg::Literal(literal)) => (Some(Some(Bound::Literal(literal))), &[][..]),
            Some(Arg::Value(value)) => (Some(Some(Bound::Value(*value))), &[][..]),
            Some(Arg::Values(values)) => (None, values.as_slice()),
        };
        let many = many.iter().map(|value| Some(Bound::Value(*value)));
        one.into_iter().chain(many)
    })
}

struct Search<'s, 'a> {
    graph: &'s Graph<'a>,
    found: Match<'a>,
    /// The words of the innermost part that refused.
    refusal: Option<&'static str>,
}

impl<'a> Search<'_, 'a> {
    /// Search, and forget what was found where nothing matches.
    fn attempt(&mut self, search: impl FnOnce(&mut Self) -> bool) -> bool {
        let (n_ops, n_names) = (self.found.ops.len(), self.found.names.len());
        let matches = search(self);
        if !matches {
            self.found.ops.truncate(n_ops);
            self.found.names.truncate(n_names);
        }
        matches
    }

    fn op(&mut self, pattern: &Pattern, id: OpId) -> bool {
        self.attempt(|search| match pattern {
            Pattern::Op(name, kinds, args) => {
                search.enters(name, kinds, id) && {
                    let mut given = bounds(search.graph.op(id));
                    args.iter().all(|p| search.arg(p, given.next().flatten()))
                }
            }
            Pattern::Pair(name, kinds, [a, b]) => {
                search.enters(name, kinds, id) && {
                    let mut given = bounds(search.graph.op(id));
                    let (x, y) = (given.next().flatten(), given.next().flatten());
                    let mut orders = [(x, y), (y, x)].into_iter();
                    orders.any(|(x, y)| search.attempt(|s| s.arg(a, x) && s.arg(b, y)))
                }
            }
            Pattern::OneOf(patterns) => patterns.iter().any(|p| search.op(p, id)),
            Pattern::Once(inner) => search.is_used_once(id) && search.op(inner, id),
            Pattern::Else(inner, words) => {
                search.op(inner, id) || {
                    search.refusal.get_or_insert(words);
                    false
                }
            }
            Pattern::Any(_) | Pattern::Given(_) | Pattern::Number(..) => false,
        })
    }

    /// Whether an op is of one of these kinds and its result may have the name.
    fn enters(&mut self, name: &'static str, kinds: &[&str], id: OpId) -> bool {
        if !is_any(self.graph, id, kinds) {
            return false;
        }
        if !self.found.ops.contains(&id) {
            self.found.ops.push(id);
        }
        let result = self.graph.op(id).results.first();
        name.is_empty() || result.is_some_and(|r| self.binds(name, Bound::Value(*r)))
    }

    fn is_used_once(&self, id: OpId) -> bool {
        let mut results = self.graph.op(id).results.iter();
        results.all(|r| self.graph.is_used_once(*r))
    }

    /// Whether a name stands for an argument, or for nothing yet.
    fn binds(&mut self, name: &'static str, bound: Bound<'a>) -> bool {
        match (self.found.bound(name), bound) {
            (None, _) if name.is_empty() => true,
            (None, _) => {
                self.found.names.push((name, bound));
                true
            }
            (Some(Bound::Value(known)), Bound::Value(value)) => known == value,
            _ => false,
        }
    }

    fn arg(&mut self, pattern: &Pattern, bound: Option<Bound<'a>>) -> bool {
        self.attempt(|search| match (pattern, bound) {
            (Pattern::Any(name), Some(bound @ Bound::Value(_)))
            | (Pattern::Given(name), Some(bound)) => search.binds(name, bound),
            (Pattern::Number(name, holds), Some(bound)) => {
                number(search.graph.f, bound).is_some_and(holds) && search.binds(name, bound)
            }
            (Pattern::OneOf(patterns), _) => patterns.iter().any(|p| search.arg(p, bound)),
            (Pattern::Else(inner, words), _) => {
                search.arg(inner, bound) || {
                    search.refusal.get_or_insert(words);
                    false
                }
            }
            (_, Some(Bound::Value(value))) => {
                first_maker(search.graph, value).is_some_and(|id| search.op(pattern, id))
            }
            _ => false,
        })
    }
}
