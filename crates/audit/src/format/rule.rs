//! What a rule says, as text for a terminal.

use super::wrap::item;
use crate::report::RuleRow;

/// Everything that a rule says: effect, evidence, reason and fix.
pub fn explanation(rule: &RuleRow) -> String {
    let mut out = item("effect", &effect(rule));
    out += &item("evidence", &format!("{}: {}", rule.evidence, rule.source));
    if let Some(disputed) = rule.disputed {
        out += &item("disputed", disputed);
    }
    out += &item("why", rule.why);
    out += &item("fix", rule.fix);
    out
}

/// What happens where the rule fires, with the error code if one is known.
pub fn effect(rule: &RuleRow) -> String {
    match (rule.effect, rule.code) {
        ("op-leaves", _) => "the op runs elsewhere".to_owned(),
        ("program-leaves", _) => "the program runs elsewhere".to_owned(),
        ("compile-fails", code) => with_code("it does not compile", code),
        ("load-fails", code) => with_code("it does not load", code),
        ("run-fails", code) => with_code("a call fails", code),
        ("wrong-result", _) => "a call gives wrong numbers".to_owned(),
        _ => "it is slower than it need be".to_owned(),
    }
}

fn with_code(text: &str, code: Option<&str>) -> String {
    code.map_or_else(|| text.to_owned(), |code| format!("{text}: {code}"))
}
