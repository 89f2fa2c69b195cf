//! Cuts a program to the smallest part in which a rule still fires.
//!
//! [`bisect`] starts with the op of a finding and adds the ops around it until the rule fires.
//! Then it removes ops, half of them at once at first, for as long as the rule still fires (delta
//! debugging). A rule about a function or a program starts with all of it. The number of trials
//! is bounded, so the result is small but may not be the smallest.

use std::collections::{BTreeSet, HashMap, HashSet};

use thane_compile::cut::{cut, is_constant};
use thane_mil::graph::Graph;
use thane_mil::package::{self, Package};
use thane_mil::program::{Function, OpId, Program};
use thane_mil::valid;

use crate::rule::{Check, Rule, Severity};
use crate::rules;
use crate::target::Target;
use crate::view::View;

/// The finding to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// A rule.
    Rule(&'a str),
    /// Any rule of this severity or worse, the worst first.
    Severity(Severity),
}

/// The part that is left.
#[derive(Clone, Debug)]
pub struct Bisected {
    /// The part.
    pub program: Program,
    /// The rule that fires in it.
    pub rule: &'static Rule,
    /// The message of the finding.
    pub message: String,
    /// The function of the whole program in which it was found; empty where it is about the
    /// program.
    pub function: String,
    /// Ops that compute: of the whole program, and of the part.
    pub n_ops: (usize, usize),
    /// Number of trials.
    pub n_trials: usize,
    /// Whether no single op can be removed.
    pub is_smallest: bool,
}

/// Why there is no part.
#[derive(Debug, thiserror::Error)]
pub enum BisectError {
    /// The program is not legal.
    #[error("the program is not legal: \
        {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Illegal(Vec<valid::Violation>),
    /// There is no such rule.
    #[error("there is no rule {id:?}; rules are ANE001 to {last}")]
    NoRule {
        /// The id that was asked for.
        id: String,
        /// The last rule.
        last: &'static str,
    },
    /// Nothing is found in the whole program.
    #[error("{what} finds nothing in the program for {target}")]
    Nothing {
        /// The finding that was asked for.
        what: String,
        /// The target.
        target: String,
    },
}

/// An op, with the position of its function.
type Item = (usize, OpId);

/// Most trials, and most ops over all trials: a bound on time.
const MAX_TRIALS: usize = 600;
const MAX_OPS: usize = 1_000_000;

/// Find the smallest part.
pub fn bisect(
    program: &Program,
    target: &Target,
    wanted: Wanted<'_>,
) -> Result<Bisected, BisectError> {
    valid::check(program).map_err(BisectError::Illegal)?;
    let (rule, at) = find(program, target, wanted)?;
    let mut search = Search {
        program,
        target,
        rule,
        n_trials: 0,
        n_ops: 0,
        best: None,
    };
    let all = search.all();
    let n_all = all.len();
    let mut kept = at.and_then(|item| search.grow(item)).unwrap_or(all);
    if search.best.is_none() {
        search.fires(&kept);
    }
    let is_smallest = search.shrink(&mut kept);
    let function = at.map_or(String::new(), |(f, _)| program.functions()[f].name.clone());
    let n_trials = search.n_trials;
    // A part that cannot be cut out by itself, such as one with a list as an input, is the program.
    let (part, message, n) = search.best.unwrap_or_else(|| {
        let message = first(program, target, rule).unwrap_or_default();
        (program.clone(), message, n_all)
    });
    Ok(Bisected {
        program: part,
        rule,
        message,
        function,
        n_ops: (n_all, n),
        n_trials,
        is_smallest,
    })
}

/// The rule to keep, and the op where it fires.
fn find(
    program: &Program,
    target: &Target,
    wanted: Wanted<'_>,
) -> Result<(&'static Rule, Option<Item>), BisectError> {
    if let Wanted::Rule(id) = wanted
        && !rules::all().any(|r| r.id.eq_ignore_ascii_case(id))
    {
        let last = rules::all().map(|r| r.id).max().unwrap_or_default();
        return Err(BisectError::NoRule {
            id: id.to_owned(),
            last,
        });
    }
    let fits = |rule: &Rule| match wanted {
        Wanted::Rule(id) => rule.id.eq_ignore_ascii_case(id),
        Wanted::Severity(least) => rule.severity >= least,
    };
    let mut found: Vec<(&'static Rule, Option<Item>)> = Vec::new();
    for (at, f) in program.functions().iter().enumerate() {
        let findings = rules::find(&View::new(program, f, target)).into_iter();
        found.extend(findings.map(|x| (x.rule, x.op.map(|op| (at, op)))));
    }
    let findings = rules::find_in_program(program, target).into_iter();
    found.extend(findings.map(|x| (x.rule, None)));
    found.retain(|(rule, _)| fits(rule));
    // The worst; of those, one that names an op; of those, the first.
    found
        .into_iter()
        .min_by_key(|(rule, op)| (std::cmp::Reverse(rule.severity), op.is_none()))
        .ok_or_else(|| {
            let what = match wanted {
                Wanted::Rule(id) => id.to_owned(),
                Wanted::Severity(least) => {
                    format!("no rule of severity {least:?} or worse").to_lowercase()
                }
            };
            BisectError::Nothing {
                what,
                target: target.to_string(),
            }
        })
}

/// The first finding of a rule in a program; no other rule runs.
fn first(program: &Program, target: &Target, rule: &Rule) -> Option<String> {
    let mut views = program
        .functions()
        .iter()
        .map(|f| View::new(program, f, target));
    match rule.check {
        Check::Program(check) => check(program, target).into_iter().next(),
        Check::Function(check) => {
            views.find_map(|view| check(&view).into_iter().next().map(|hit| hit.message))
        }
        Check::Op(_) | Check::Kinds(..) => views.find_map(|view| {
            let ops = view.f.all_ops();
            let mut computing = ops.into_iter().filter(|id| !view.op(*id).def.is_const());
            computing.find_map(|id| rule.check.at(&view, id))
        }),
    }
}

struct Search<'a> {
    program: &'a Program,
    target: &'a Target,
    rule: &'static Rule,
    n_trials: usize,
    n_ops: usize,
    /// The smallest part so far, what the rule says of it, and its ops.
    best: Option<(Program, String, usize)>,
}

impl Search<'_> {
    fn all(&self) -> Vec<Item> {
        let of = |(at, f): (usize, &Function)| {
            let ops = f.body().ops.iter().filter(|id| !is_constant(f.op(**id)));
            ops.map(|id| (at, *id)).collect::<Vec<Item>>()
        };
        self.program
            .functions()
            .iter()
            .enumerate()
            .flat_map(of)
            .collect()
    }

    fn may_go_on(&self) -> bool {
        self.n_trials < MAX_TRIALS && self.n_ops < MAX_OPS
    }

    /// Whether the rule fires in the program of these ops; the smallest that it does in is kept.
    fn fires(&mut self, items: &[Item]) -> bool {
        self.n_trials += 1;
        self.n_ops += items.len();
        // What functions say of their shapes names inputs, which may be gone: first without.
        for with_attributes in [false, true] {
            let Some(program) = self.part(items, with_attributes) else {
                continue;
            };
            let Some(message) = first(&program, self.target, self.rule) else {
                continue;
            };
            // Last, since it takes longest.
            if valid::check(&program).is_err()
                || package::check(&Package::new(program.clone())).is_err()
            {
                continue;
            }
            if self.best.as_ref().is_none_or(|(_, _, n)| items.len() <= *n) {
                self.best = Some((program, message, items.len()));
            }
            return true;
        }
        false
    }

    /// A program of some ops.
    fn part(&self, items: &[Item], with_attributes: bool) -> Option<Program> {
        let mut of: HashMap<usize, HashSet<OpId>> = HashMap::new();
        items.iter().for_each(|(at, op)| {
            of.entry(*at).or_default().insert(*op);
        });
        let mut functions = Vec::new();
        for (at, f) in self.program.functions().iter().enumerate() {
            let Some(ops) = of.get(&at) else { continue };
            let mut part = cut(f, ops)?.ok()?;
            if with_attributes {
                part.attributes.clone_from(&f.attributes);
            }
            functions.push(part);
        }
        (!functions.is_empty()).then(|| Program::new(functions))
    }

    /// Grow the part around an op until the rule fires.
    fn grow(&mut self, (at, op): Item) -> Option<Vec<Item>> {
        let f = &self.program.functions()[at];
        let (graph, in_body) = (Graph::new(f), in_body(f));
        let mut ops: BTreeSet<OpId> = in_body.get(&op).copied().into_iter().collect();
        let mut edge: Vec<OpId> = ops.iter().copied().collect();
        let mut n_before = 0;
        while self.may_go_on() && ops.len() > n_before {
            let items: Vec<Item> = f
                .body()
                .ops
                .iter()
                .filter(|id| ops.contains(id))
                .map(|id| (at, *id))
                .collect();
            if self.fires(&items) {
                return Some(items);
            }
            n_before = ops.len();
            // As much again, so that long ways take few trials.
            let most = 2 * ops.len() + 4;
            while ops.len() < most && !edge.is_empty() {
                edge = edge
                    .iter()
                    .flat_map(|id| neighbors(&graph, *id))
                    .filter_map(|id| in_body.get(&id).copied())
                    .filter(|id| ops.insert(*id))
                    .collect();
            }
        }
        None
    }

    /// Remove ops for as long as the rule fires; returns whether no single op can be removed.
    fn shrink(&mut self, kept: &mut Vec<Item>) -> bool {
        let mut n_parts = 2;
        while kept.len() > 1 {
            let len = kept.len().div_ceil(n_parts);
            let mut smaller = None;
            // From the front: what computes an operand goes first, and an input stands for it.
            for begin in (0..kept.len()).step_by(len) {
                if !self.may_go_on() {
                    return false;
                }
                let rest: Vec<Item> =
                    [&kept[..begin], &kept[(begin + len).min(kept.len())..]].concat();
                if !rest.is_empty() && self.fires(&rest) {
                    smaller = Some(rest);
                    break;
                }
            }
            match smaller {
                Some(rest) => {
                    *kept = rest;
                    n_parts = (n_parts - 1).max(2);
                }
                None if len == 1 => return true,
                None => n_parts = (2 * n_parts).min(kept.len()),
            }
        }
        true
    }
}

/// Each op with the op of the body that stands for it: the one that runs its block, or itself.
fn in_body(f: &Function) -> HashMap<OpId, OpId> {
    let mut outer = HashMap::new();
    for &id in &f.body().ops {
        outer.insert(id, id);
        for block in &f.op(id).blocks {
            f.visit(*block, &mut |inner| {
                outer.insert(inner, id);
            });
        }
    }
    outer
}

/// The ops that make what an op uses, and that use what it makes; no constants.
fn neighbors(graph: &Graph<'_>, id: OpId) -> impl Iterator<Item = OpId> {
    let uses = graph.f.uses(id).into_iter();
    let makers = uses.filter_map(|v| graph.maker(v));
    let results = graph.op(id).results.iter();
    let takers = results.flat_map(|r| graph.users(*r).iter().take(64).copied());
    makers
        .chain(takers)
        .filter(|op| !is_constant(graph.op(*op)))
}
