//! Explains the errors of Apple's stack: what each means, and which rules find its causes.
//!
//! A row has texts and codes as users see them. Its rules are in the order of how often each was
//! the cause where somebody found one. Findings of the user's own program come before that order
//! ([`causes`]).

mod table;

pub use table::ERRORS;

use crate::judged::Audit;
use crate::rule::Rule;
use crate::rules;
use crate::target::Evidence;

/// An error of Core ML, the engine's compiler or its driver.
#[derive(Clone, Copy, Debug)]
pub struct ErrorRow {
    /// Title, in a line.
    pub title: &'static str,
    /// Texts of the error, found anywhere in a message; case does not count.
    pub texts: &'static [&'static str],
    /// Codes of the error; a number counts only after a word such as `code`.
    pub codes: &'static [&'static str],
    /// Meaning.
    pub meaning: &'static str,
    /// Rules that find causes, the most likely first.
    pub causes: &'static [&'static str],
    /// What to do, the cheapest first.
    pub remedies: &'static [&'static str],
    /// Evidence.
    pub evidence: Evidence,
    /// Sources.
    pub source: &'static str,
}

/// Words after which a number is a code.
const BEFORE_CODES: [&str; 6] = ["code", "status", "rc", "err", "error", "failed"];

/// The rows that a text shows, the longest match first; a text that is nothing but a code counts as
/// one.
pub fn find(text: &str) -> Vec<&'static ErrorRow> {
    let text = text.trim().to_ascii_lowercase();
    let mut found: Vec<(usize, &ErrorRow)> = ERRORS
        .iter()
        .filter_map(|row| {
            let texts = row
                .texts
                .iter()
                .filter(|t| has_words(&text, &t.to_ascii_lowercase()))
                .map(|t| t.len() * 2);
            let codes = row
                .codes
                .iter()
                .filter(|c| has_code(&text, c))
                .map(|c| c.len());
            texts.chain(codes).max().map(|len| (len, row))
        })
        .collect();
    found.sort_by_key(|(len, _)| std::cmp::Reverse(*len));
    found.into_iter().map(|(_, row)| row).collect()
}

/// Whether a text has words that are not part of longer ones.
fn has_words(text: &str, words: &str) -> bool {
    let words = words.trim();
    text.match_indices(words).any(|(at, _)| {
        let joins = |c: Option<char>, edge: Option<char>| {
            c.is_some_and(|c| c.is_ascii_alphanumeric())
                && edge.is_some_and(|e| e.is_ascii_alphanumeric())
        };
        !joins(text[..at].chars().next_back(), words.chars().next())
            && !joins(
                text[at + words.len()..].chars().next(),
                words.chars().next_back(),
            )
    })
}

fn has_code(text: &str, code: &str) -> bool {
    let text_is_code = |text: &str| text.trim_matches(|c: char| "()[]".contains(c)) == code;
    if text_is_code(text) {
        return true;
    }
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || "=:,;()[]\"'`/".contains(c))
        .collect();
    let words: Vec<&str> = words.into_iter().filter(|w| !w.is_empty()).collect();
    words
        .windows(2)
        .any(|w| w[1] == code && BEFORE_CODES.contains(&w[0]))
}

/// A cause of an error, with the number of findings in the user's program.
#[derive(Clone, Copy, Debug)]
pub struct Cause {
    /// The rule that finds it.
    pub rule: &'static Rule,
    /// Findings of the rule; 0 without a program.
    pub n_findings: usize,
}

/// The causes of an error: those that a program's audits found first, then in the order of
/// likelihood.
pub fn causes(row: &ErrorRow, audits: &[Audit]) -> Vec<Cause> {
    let found = |rule: &Rule| {
        let of = |a: &Audit| {
            a.functions
                .iter()
                .flat_map(|f| &f.findings)
                .chain(&a.findings)
                .filter(|f| f.rule.id == rule.id)
                .count()
        };
        audits.iter().map(of).sum()
    };
    let listed = row
        .causes
        .iter()
        .filter_map(|id| rules::all().find(|r| r.id == *id));
    let mut causes: Vec<Cause> = listed
        .map(|rule| Cause {
            rule,
            n_findings: found(rule),
        })
        .collect();
    // Stable: likelihood decides among what was found, and among the rest.
    causes.sort_by_key(|c| c.n_findings == 0);
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole_and_name_rules() {
        for row in ERRORS {
            let texts = [row.title, row.meaning, row.source];
            assert!(
                texts.iter().all(|t| !t.is_empty()) && !row.remedies.is_empty(),
                "{}",
                row.title
            );
            assert!(
                !row.texts.is_empty() || !row.codes.is_empty(),
                "{}",
                row.title
            );
            for id in row.causes {
                assert!(rules::all().any(|r| r.id == *id), "{}: {id}", row.title);
            }
        }
    }

    /// Texts as they were reported, with the row that explains them.
    #[test]
    fn reported_texts_are_explained() {
        let cases = [
            ("-14", "No plan for the program"),
            ("14", "No plan for the program"),
            ("0x1d", "The engine stopped in a call: 0x1d"),
            ("0X15", "The engine stopped in a call: 0x15"),
            ("0x16", "The engine stopped in a call: 0x16 or 0x1"),
            ("0x20004", "Too much memory for the engine: 0x20004"),
            ("0x50004", "Too many programs: 0x50004"),
            ("ANECCompile() FAILED", "The engine's compiler failed"),
            (
                "ANECF error: ANECCompile(/tmp/x) FAILED: err=(CompilationFailure)",
                "The engine's compiler failed",
            ),
            (
                "Error=_ANECompiler : ANECCompile() FAILED (11)",
                "The engine's compiler failed",
            ),
            (
                "libc++abi: terminating due to uncaught exception of type std::bad_cast: std::bad_cast",
                "std::bad_cast",
            ),
            (
                "Unknown opset 'CoreML8'",
                "An opset that the system does not read",
            ),
            (
                "ANE model load has failed for on-device compiled macho. Must re-compile the E5 bundle",
                "A compiled bundle that the engine does not take",
            ),
            (
                "Failed to build the model execution plan using a model architecture file '/x/model.mil' with error code: -14.",
                "No plan for the program",
            ),
            (
                "ANEProgramProcessRequestDirect() Failed with status=0x1d : statusType=0x9: Program Inference error",
                "The engine stopped in a call: 0x1d",
            ),
            ("Error plan build: -1.", "No plan for the program"),
        ];
        for (text, title) in cases {
            assert_eq!(find(text).first().map(|r| r.title), Some(title), "{text}");
        }
    }

    #[test]
    fn numbers_that_are_no_codes_are_none() {
        for text in [
            "macOS 14",
            "x14",
            "0x1da",
            "layer 11 of 22",
            "",
            "hello",
            "1400",
        ] {
            assert!(
                find(text).is_empty(),
                "{text}: {:?}",
                find(text).first().map(|r| r.title)
            );
        }
        assert_eq!(
            find("rc 22").first().map(|r| r.title),
            Some("An op that this engine does not have")
        );
    }
}
