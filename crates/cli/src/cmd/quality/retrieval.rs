//! Reads a retrieval set: documents, queries, and which documents answer which query. The format is
//! that of BEIR.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::app::App;
use crate::exit::{Failure, usage, usage_in};
use crate::source::read_text;

/// Documents and queries.
pub(super) struct RetrievalSet {
    pub documents: Vec<String>,
    pub queries: Vec<Query>,
}

/// A query with what answers it.
pub(super) struct Query {
    pub text: String,
    /// Documents and their gains.
    pub relevant: Vec<(usize, f64)>,
    /// The document of the query's own id, which is no answer to it, as BEIR has it.
    pub own: Option<usize>,
}

/// A line of `corpus.jsonl` or `queries.jsonl`.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "_id")]
    id: String,
    #[serde(default)]
    title: String,
    text: String,
}

impl RetrievalSet {
    /// Reads the set in a folder. Queries that nobody judged are left out.
    pub(super) fn read(folder: &Path, app: &App) -> Result<Self, Failure> {
        let (documents, document_ids) = lines(&folder.join("corpus.jsonl"), app)?;
        let (texts, query_ids) = lines(&folder.join("queries.jsonl"), app)?;
        let new = |text| Query {
            text,
            relevant: Vec::new(),
            own: None,
        };
        let mut queries: Vec<Query> = texts.into_iter().map(new).collect();
        for (id, query) in &query_ids {
            queries[*query].own = document_ids.get(id).copied();
        }
        let mut is_judged = vec![false; queries.len()];
        let path = folder.join("qrels").join("test.tsv");
        let (text, _held) = read_text(&path, &app.budget).map_err(usage)?;
        let fault =
            |number: usize, what: String| usage_in(&path)(anyhow::anyhow!("line {number}: {what}"));
        for (line, number) in text.lines().zip(1..) {
            let cells: Vec<&str> = line.split('\t').map(str::trim).collect();
            let is_judgment = cells.get(2).is_some_and(|gain| gain.parse::<f64>().is_ok());
            if number == 1 && is_judgment {
                let expected = "expected the header query-id, corpus-id, score";
                return Err(fault(number, format!("{expected}, found `{line}`")));
            }
            if number == 1 || line.trim().is_empty() {
                continue;
            }
            let [query, document, gain] = cells[..] else {
                let expected = "expected a query, a document and a score with tabs between";
                return Err(fault(number, format!("{expected}, found `{line}`")));
            };
            let gain = gain.parse::<f64>().ok().filter(|gain| gain.is_finite());
            let gain = gain
                .ok_or_else(|| fault(number, format!("expected a score, found `{}`", cells[2])))?;
            let unknown = |file: &str, id: &str| fault(number, format!("{file} has no `{id}`"));
            let query = query_ids.get(query);
            let query = query.ok_or_else(|| unknown("queries.jsonl", cells[0]))?;
            let document = document_ids.get(document);
            let document = document.ok_or_else(|| unknown("corpus.jsonl", cells[1]))?;
            // Of two judgments of a pair the last holds, as in BEIR.
            is_judged[*query] = true;
            let relevant = &mut queries[*query].relevant;
            relevant.retain(|(known, _)| known != document);
            if gain > 0.0 {
                relevant.push((*document, gain));
            }
        }
        let mut is_judged = is_judged.into_iter();
        queries.retain(|_| is_judged.next() == Some(true));
        if queries.iter().all(|query| query.relevant.is_empty()) {
            let what = "expected a query with a relevant document, found none";
            return Err(usage_in(&path)(anyhow::anyhow!(what)));
        }
        Ok(Self { documents, queries })
    }
}

/// The texts of a file of JSON lines, and their indices by id.
fn lines(path: &Path, app: &App) -> Result<(Vec<String>, HashMap<String, usize>), Failure> {
    let (text, _held) = read_text(path, &app.budget).map_err(usage)?;
    let (mut texts, mut ids) = (Vec::new(), HashMap::new());
    let lines = text.lines().zip(1..);
    for (line, number) in lines.filter(|(line, _)| !line.trim().is_empty()) {
        let fault = |what: String| usage_in(path)(anyhow::anyhow!("line {number}: {what}"));
        let line: Line = serde_json::from_str(line)
            .map_err(|e| fault(format!("expected an object with `_id` and `text`: {e}")))?;
        // As BEIR joins them.
        let text = [line.title.trim(), line.text.trim()].join(" ");
        let text = text.trim().to_owned();
        if ids.insert(line.id.clone(), texts.len()).is_some() {
            return Err(fault(format!("the id `{}` is there twice", line.id)));
        }
        texts.push(text);
    }
    Ok((texts, ids))
}
