//! Shapes of ops as values: what a pass, a fix or a fused kernel looks for.
//!
//! A [`Pattern`] is plain data, so a `const` holds it. It is matched against the op that ends it,
//! its root, and from there back to what the root is computed from. There are three answers: it
//! matches, and [`Match`] has what its names stand for; it does not; or it is refused, with the
//! words of the part that nearly matched.
//!
//! ```
//! use thane_compile::pattern::Pattern::{self, Any, Op};
//!
//! /// `exp(x) / sum(exp(x))`.
//! const SOFTMAX: Pattern = Op("", &["real_div"], &[
//!     ("x", Op("powers", &["exp"], &[("x", Any("x"))])),
//!     ("y", Op("sum", &["reduce_sum"], &[("x", Any("powers"))])),
//! ]);
//! ```
//!
//! Where an alternative matched, it is kept: what follows does not go back to another one. Write
//! alternatives that do not match the same ops.

use thane_mil::program::{Arg, OpId, ValueId};

use crate::graph::{Graph, scalar_arg};

/// What an argument is, and what it is computed from.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    /// Any value. All that a name stands for is one value; the empty name stands for nothing.
    Any(&'static str),
    /// A constant of one number that the condition holds for.
    Number(&'static str, fn(f32) -> bool),
    /// The result, which gets the name, of an op of one of these kinds (any kind, if there are
    /// none) with these arguments; other arguments may be anything.
    Op(
        &'static str,
        &'static [&'static str],
        &'static [(&'static str, Pattern)],
    ),
    /// As [`Self::Op`], with its arguments `x` and `y` in either order.
    Pair(&'static str, &'static [&'static str], &'static [Pattern; 2]),
    /// The first of these that matches.
    OneOf(&'static [Pattern]),
    /// The same, if the value is used once and is no output.
    Once(&'static Pattern),
    /// The same; where it does not match, it is refused because of this.
    Else(&'static Pattern, &'static str),
}

/// What a pattern matched.
#[derive(Clone, Debug)]
pub struct Match {
    /// The op that ends it.
    pub root: OpId,
    /// All its ops, the root first.
    pub ops: Vec<OpId>,
    values: Vec<(&'static str, ValueId)>,
    numbers: Vec<(&'static str, f32)>,
}

impl Match {
    /// A match of one op without names.
    pub fn of(root: OpId) -> Self {
        Self {
            root,
            ops: vec![root],
            values: Vec::new(),
            numbers: Vec::new(),
        }
    }

    /// What a name stands for; `None` if it is in an alternative that was not taken.
    pub fn value(&self, name: &str) -> Option<ValueId> {
        let bound = self.values.iter().find(|(own, _)| *own == name);
        bound.map(|(_, value)| *value)
    }

    /// The number that a name stands for.
    pub fn number(&self, name: &str) -> Option<f32> {
        let bound = self.numbers.iter().find(|(own, _)| *own == name);
        bound.map(|(_, number)| *number)
    }
}

/// A match, none, or the words of a refusal.
pub type Answer = Result<Option<Match>, &'static str>;

impl Pattern {
    /// Match the pattern with its root at an op.
    pub fn find(&self, graph: &Graph<'_>, root: OpId) -> Answer {
        let mut search = Search {
            graph,
            found: Match::of(root),
            refusal: None,
        };
        search.found.ops.clear();
        match (search.op(self, root), search.refusal) {
            (true, _) => Ok(Some(search.found)),
            (false, None) => Ok(None),
            (false, Some(words)) => Err(words),
        }
    }

    /// Match the pattern so that an op is one of its ops: the root is the op itself or follows it.
    pub fn find_around(&self, graph: &Graph<'_>, site: OpId) -> Answer {
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
            Self::Any(_) | Self::Number(..) => false,
        }
    }

    /// Ops from the root to the furthest one, both included.
    fn depth(&self) -> usize {
        let deepest = |patterns: &mut dyn Iterator<Item = &Self>| {
            patterns.map(Self::depth).max().unwrap_or_default()
        };
        match self {
            Self::Any(_) | Self::Number(..) => 0,
            Self::Op(_, _, args) => 1 + deepest(&mut args.iter().map(|(_, p)| p)),
            Self::Pair(_, _, args) => 1 + deepest(&mut args.iter()),
            Self::OneOf(patterns) => deepest(&mut patterns.iter()),
            Self::Once(inner) | Self::Else(inner, _) => inner.depth(),
        }
    }
}

/// Ops that are tried as roots at one distance from a site, so that a value that everything uses is
/// not walked for each use.
const MAX_ROOTS: usize = 64;

fn users<'a>(graph: &'a Graph<'_>, op: OpId) -> impl Iterator<Item = OpId> + 'a {
    let results = graph.op(op).results.iter().take(1);
    results.flat_map(|r| graph.users(*r).iter().take(MAX_ROOTS).copied())
}

fn is_any(graph: &Graph<'_>, op: OpId, kinds: &[&str]) -> bool {
    kinds.is_empty() || kinds.contains(&graph.op(op).def.name)
}

struct Search<'a> {
    graph: &'a Graph<'a>,
    found: Match,
    /// The words of the innermost part that refused.
    refusal: Option<&'static str>,
}

impl Search<'_> {
    /// Search, and forget what was found where nothing matches.
    fn attempt(&mut self, search: impl FnOnce(&mut Self) -> bool) -> bool {
        let found = &self.found;
        let (n_ops, n_values, n_numbers) =
            (found.ops.len(), found.values.len(), found.numbers.len());
        let matches = search(self);
        if !matches {
            self.found.ops.truncate(n_ops);
            self.found.values.truncate(n_values);
            self.found.numbers.truncate(n_numbers);
        }
        matches
    }

    fn op(&mut self, pattern: &Pattern, id: OpId) -> bool {
        self.attempt(|search| match pattern {
            Pattern::Op(name, kinds, args) => {
                let op = search.graph.op(id);
                let mut args = args.iter();
                search.enters(name, kinds, id) && args.all(|(p, q)| search.arg(q, op.arg(p)))
            }
            Pattern::Pair(name, kinds, [a, b]) => {
                let op = search.graph.op(id);
                let (x, y) = (op.arg("x"), op.arg("y"));
                let mut orders = [(x, y), (y, x)].into_iter();
                search.enters(name, kinds, id)
                    && orders.any(|(x, y)| search.attempt(|s| s.arg(a, x) && s.arg(b, y)))
            }
            Pattern::OneOf(patterns) => patterns.iter().any(|p| search.op(p, id)),
            Pattern::Once(inner) => search.is_used_once(id) && search.op(inner, id),
            Pattern::Else(inner, words) => {
                search.op(inner, id) || {
                    search.refusal.get_or_insert(words);
                    false
                }
            }
            Pattern::Any(_) | Pattern::Number(..) => false,
        })
    }

    /// Whether an op is of one of these kinds and its result may have the name.
    fn enters(&mut self, name: &'static str, kinds: &[&str], id: OpId) -> bool {
        self.found.ops.push(id);
        let result = self.graph.op(id).results.first();
        is_any(self.graph, id, kinds)
            && (name.is_empty() || result.is_some_and(|r| self.binds(name, *r)))
    }

    fn is_used_once(&self, id: OpId) -> bool {
        let mut results = self.graph.op(id).results.iter();
        results.all(|r| self.graph.is_used_once(*r))
    }

    /// Whether a name stands for a value, or for nothing yet.
    fn binds(&mut self, name: &'static str, value: ValueId) -> bool {
        let bound = self.found.value(name);
        if bound.is_none() && !name.is_empty() {
            self.found.values.push((name, value));
        }
        bound.is_none_or(|bound| bound == value)
    }

    fn arg(&mut self, pattern: &Pattern, arg: Option<&Arg>) -> bool {
        self.attempt(|search| match (pattern, arg) {
            (Pattern::Any(name), Some(Arg::Value(v))) => search.binds(name, *v),
            (Pattern::Number(name, holds), Some(arg)) => {
                let number = scalar_arg(search.graph, arg).filter(|n| holds(*n));
                search.found.numbers.extend(number.map(|n| (*name, n)));
                number.is_some()
            }
            (Pattern::OneOf(patterns), _) => patterns.iter().any(|p| search.arg(p, arg)),
            (Pattern::Else(inner, words), _) => {
                search.arg(inner, arg) || {
                    search.refusal.get_or_insert(words);
                    false
                }
            }
            (_, Some(Arg::Value(v))) => {
                let maker = search.graph.maker(*v);
                maker.is_some_and(|id| {
                    search.graph.op(id).results[0] == *v && search.op(pattern, id)
                })
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern::{self, Any, Else, Number, Once, OneOf, Op, Pair};
    use super::*;
    use thane_mil::text::parse;

    const NORM: Pattern = Op(
        "",
        &["mul"],
        &[
            ("x", Any("x")),
            (
                "y",
                Op(
                    "root",
                    &["rsqrt"],
                    &[(
                        "x",
                        OneOf(&[
                            Pair("sum", &["add"], &[MEAN, Number("epsilon", |e| e > 0.0)]),
                            MEAN,
                        ]),
                    )],
                ),
            ),
        ],
    );
    const MEAN: Pattern = Once(&Op(
        "mean",
        &["reduce_mean"],
        &[(
            "x",
            Else(
                &Op("", &["mul"], &[("x", Any("x")), ("y", Any("x"))]),
                "it is no mean of squares",
            ),
        )],
    ));

    /// What the pattern answers around each op of a body: the numbers and ops that it found.
    fn answers(body: &str) -> Vec<String> {
        let text = format!(
            "program(1.3) {{ func f<ios18>(tensor<fp32, [2, 3]> x, tensor<fp32, [2, 3]> z) {{
               {} }} -> (y); }}",
            body
        );
        let program = parse(&text, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}"));
        let f = &program.functions()[0];
        let graph = Graph::new(f);
        let ops = f.body().ops.iter().filter(|op| !f.op(**op).def.is_const());
        ops.map(|op| match NORM.find_around(&graph, *op) {
            Ok(None) => "no".to_owned(),
            Ok(Some(found)) => format!("{} {:?}", found.ops.len(), found.number("epsilon")),
            Err(words) => words.to_owned(),
        })
        .collect()
    }

    const AXES: &str = "axes = tensor<int32, [1]>([1]), keep_dims = bool(true)";

    #[test]
    fn a_pattern_matches_refuses_or_says_nothing() {
        let norm = |square: &str, sum: &str, last: &str| {
            answers(&format!(
                "tensor<fp32, [2, 3]> q = mul({square});
                 tensor<fp32, [2, 1]> m = reduce_mean(x = q, {AXES});
                 {sum}
                 tensor<fp32, [2, 3]> y = mul({last});"
            ))
        };
        let root = "tensor<fp32, [2, 1]> r = rsqrt(x = m);";
        let added = "tensor<fp32, [2, 1]> e = add(x = fp32(0x1p-3), y = m);
            tensor<fp32, [2, 1]> r = rsqrt(x = e);";
        // Each op of it, be it written with an epsilon or without.
        assert_eq!(norm("x = x, y = x", root, "x = x, y = r"), ["4 None"; 4]);
        let with = norm("x = x, y = x", added, "x = x, y = r");
        assert_eq!(with, ["5 Some(0.125)"; 5]);
        // A name stands for one value.
        let other = norm("x = x, y = x", root, "x = z, y = r");
        assert_eq!(other, ["it is no mean of squares"; 4]);
        let product = norm("x = x, y = z", root, "x = x, y = r");
        assert_eq!(product, ["it is no mean of squares"; 4]);
        // A number that the condition does not hold for, and a mean that is used twice.
        let below = added.replace("0x1p-3", "-0x1p-3");
        assert_eq!(norm("x = x, y = x", &below, "x = x, y = r"), ["no"; 5]);
        let twice = format!("{root} tensor<fp32, [2, 1]> t = exp(x = m);");
        assert_eq!(norm("x = x, y = x", &twice, "x = x, y = r"), ["no"; 5]);
    }
}
