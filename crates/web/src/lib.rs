//! The auditor for pages in a browser and for Node: `page` has the JavaScript around it, and
//! `scripts/web.sh` builds both.
//!
//! [`answer`] takes a question as JSON and gives the text of an answer. Files stay with the caller,
//! the [`Host`], which copies the bytes that the auditor reads and no others: of a weight file, the
//! records of its constants, and those numbers that a rule looks at. `abi` connects both to
//! JavaScript with one exported and two imported functions, so that no generated code is needed.
//!
//! This crate must not know what a report says: it prints what `thane-audit` makes.

#[cfg(target_arch = "wasm32")]
mod abi;
mod about;
mod audit;
mod buckets;
mod host;

use std::error::Error;
use std::sync::Arc;

use serde::Deserialize;

pub use host::Host;

/// What is asked. A field that it does not have is an error.
#[derive(Debug, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
enum Question {
    /// The chips and systems that programs can be judged for.
    About {},
    /// The report of a model.
    Audit(audit::Ask),
    /// The lengths that get a function of their own.
    Buckets(buckets::Ask),
}

/// The answer to a question.
#[derive(Debug)]
pub struct Answer {
    /// JSON. Of an audit, the bytes that `thane audit --json` prints.
    pub json: String,
    /// The report as a page, if it was asked for.
    pub page: Option<String>,
}

impl From<String> for Answer {
    fn from(json: String) -> Self {
        Self { json, page: None }
    }
}

/// Answers a question. The error says what is wrong and what to do.
pub fn answer(question: &[u8], host: &Arc<dyn Host>) -> Result<Answer, String> {
    let question: Question = serde_json::from_slice(question)
        .map_err(|e| format!("expected a question as JSON, found something else: {e}"))?;
    match question {
        Question::About {} => about::answer(),
        Question::Audit(ask) => audit::answer(&ask, host),
        Question::Buckets(ask) => buckets::answer(ask),
    }
}

/// The text of an error, with that of each cause that it does not repeat.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
