//! What fixes leave, and why.

use std::collections::BTreeMap;

use thane_mil::graph::Graph;

use super::{Found, Judge, Left, Place, Trials};
use crate::graph::label;

impl<J: Judge> Trials<'_, J> {
    /// What no fix answered, each rule of a function once.
    pub(super) fn left(&mut self) -> Vec<Left> {
        let mut left = Vec::new();
        for at in 0..self.originals.len() {
            let opinion = self.opinion(at);
            let f = &self.program.functions()[at];
            let graph = Graph::new(f);
            let mut entries: BTreeMap<(&str, String), Left> = BTreeMap::new();
            for found in self.judge.found(&opinion) {
                let reason = self.reason(&graph, at, &found);
                let entry = Left {
                    rule: found.rule,
                    function: f.name.clone(),
                    place: found.op.map(|op| Place::of(f, op)),
                    n: 0,
                    reason: reason.clone(),
                };
                entries.entry((found.rule, reason)).or_insert(entry).n += 1;
            }
            left.extend(entries.into_values());
        }
        let of_program = self.judge.found_in_program(&self.program).into_iter();
        left.extend(of_program.map(|found| Left {
            rule: found.rule,
            function: String::new(),
            place: None,
            n: 1,
            reason: no_rewrite(found.advice),
        }));
        left
    }

    /// Why a finding is left: what the first fix for its rule says.
    fn reason(&self, graph: &Graph<'_>, at: usize, found: &Found) -> String {
        let mut fixes = self.fixes.iter();
        let fix = fixes.find(|fix| fix.rules.contains(&found.rule));
        let (Some(op), Some(fix)) = (found.op, fix) else {
            return no_rewrite(found.advice);
        };
        let name = fix.name;
        let rejected = self.settled.contains(&(name, at, label(graph.f, op)));
        match fix.answer(graph, self.judge.limits(), op) {
            Err(reason) => format!("{name}: {reason}"),
            Ok(_) if !self.is_tried(fix) => {
                format!(
                    "{name} changes precision: --lossy MAX_ERROR tries it and measures the error"
                )
            }
            Ok(_) if rejected => format!("{name} was tried in vain, see above"),
            Ok(_) if self.prover.is_over() => {
                format!("{name} was not tried: the time is over; --time-limit allows more")
            }
            Ok(_) => format!("{name} was not tried: too many trials"),
        }
    }
}

fn no_rewrite(advice: &str) -> String {
    if advice.is_empty() {
        "no rewrite is known".to_owned()
    } else {
        format!("no rewrite; by hand: {advice}")
    }
}
