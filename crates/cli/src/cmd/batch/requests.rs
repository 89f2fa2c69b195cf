//! The requests of a batch: a file with a request in each line, as OpenAI's batch API has it.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use thane_mil::budget::Budget;
use thane_mil::package::open_regular;

use crate::exit::{Failure, usage};

/// The routes that take requests of a batch.
const URLS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"];

/// Most bytes of a line: a body of the server, and what is around it.
pub const MAX_LINE_BYTES: usize = (4 << 20) + (64 << 10);

/// Most models that requests name.
const MAX_MODELS: usize = 16;

/// Bytes of memory for each request: its id here, and its place among the answers.
const REQUEST_BYTES: usize = 128;

/// A file of requests.
pub struct Requests {
    path: PathBuf,
}

/// What a file of requests holds.
pub struct Survey {
    /// Number of lines that are not empty.
    pub n: u64,
    /// SHA-256 of the file.
    pub sha256: String,
    /// The models that requests name, with the first line that does.
    pub models: BTreeMap<String, u64>,
}

/// A line that is not empty.
pub struct Line {
    /// From 1.
    pub number: u64,
    pub request: Result<Asked, Fault>,
}

/// A request.
pub struct Asked {
    pub custom_id: String,
    pub url: String,
    pub body: Map<String, Value>,
}

/// Why a line is no request.
pub struct Fault {
    pub custom_id: Option<String>,
    /// As OpenAI's API names it.
    pub code: &'static str,
    pub message: String,
}

impl Requests {
    pub fn new(path: &Path) -> Result<Self, Failure> {
        let found = path
            .metadata()
            .with_context(|| path.display().to_string())
            .map_err(usage)?;
        if !found.is_file() {
            // It is read twice.
            return Err(usage!(
                "{}: expected a regular file of requests",
                path.display()
            ));
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Reads the whole file. Memory for its requests is taken from `budget` until the result is
    /// dropped.
    pub fn survey(&self, budget: &Budget) -> Result<(Survey, impl Sized + use<>), Failure> {
        let what = || format!("the requests of {}", self.path.display());
        let mut held = budget.reserve(0, String::new).map_err(usage)?;
        let mut survey = Survey {
            n: 0,
            sha256: String::new(),
            models: BTreeMap::new(),
        };
        let mut lines = self.lines()?;
        while let Some(line) = lines.next_line().map_err(|e| self.unread(e))? {
            held.grow(REQUEST_BYTES, what).map_err(usage)?;
            survey.n += 1;
            let Ok(asked) = line.request else { continue };
            if let Some(Value::String(model)) = asked.body.get("model") {
                let n = survey.models.len();
                if n < MAX_MODELS || survey.models.contains_key(model) {
                    survey.models.entry(model.clone()).or_insert(line.number);
                } else {
                    return Err(usage!(
                        "{}: line {}: expected at most {MAX_MODELS} models, found `{model}` too",
                        self.path.display(),
                        line.number
                    )
                    .remedy("several files of requests"));
                }
            }
        }
        let hash = lines.file.sha.finalize();
        survey.sha256 = hash.iter().map(|b| format!("{b:02x}")).collect();
        Ok((survey, held))
    }

    /// The lines that are not empty.
    pub fn lines(&self) -> Result<Lines, Failure> {
        let file = open_regular(&self.path).map_err(|e| self.unread(e))?;
        let file = Hashing {
            from: BufReader::new(file),
            sha: Sha256::new(),
        };
        Ok(Lines {
            file,
            number: 0,
            ids: HashSet::new(),
        })
    }

    pub fn unread(&self, error: io::Error) -> Failure {
        usage(anyhow::Error::new(error).context(self.path.display().to_string()))
    }
}

/// Hashes what is read.
struct Hashing {
    from: BufReader<File>,
    sha: Sha256,
}

/// The rest of a file.
pub struct Lines {
    file: Hashing,
    number: u64,
    /// Hashes of the custom ids so far.
    ids: HashSet<[u8; 16]>,
}

impl Lines {
    /// The next line that is not empty.
    pub fn next_line(&mut self) -> io::Result<Option<Line>> {
        loop {
            let Some(line) = self.file.line()? else {
                return Ok(None);
            };
            self.number += 1;
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let request = parse(&line, self.number).and_then(|asked| self.unique(asked));
            let number = self.number;
            return Ok(Some(Line { number, request }));
        }
    }

    fn unique(&mut self, asked: Asked) -> Result<Asked, Fault> {
        let hash: [u8; 32] = Sha256::digest(&asked.custom_id).into();
        let mut id = [0; 16];
        id.copy_from_slice(&hash[..16]);
        if self.ids.insert(id) {
            return Ok(asked);
        }
        let message = format!(
            "line {}: expected a `custom_id` that no line before has, found `{}`",
            self.number, asked.custom_id
        );
        Err(Fault {
            custom_id: Some(asked.custom_id),
            code: "duplicate_custom_id",
            message,
        })
    }
}

impl Hashing {
    /// The next line; of one that is too long, a byte more than is allowed.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut is_there = false;
        loop {
            let piece = self.from.fill_buf()?;
            if piece.is_empty() {
                return Ok(is_there.then_some(line));
            }
            is_there = true;
            let end = piece.iter().position(|b| *b == b'\n');
            let n = end.map_or(piece.len(), |end| end + 1);
            self.sha.update(&piece[..n]);
            let room = (MAX_LINE_BYTES + 1).saturating_sub(line.len());
            line.extend_from_slice(&piece[..n.min(room)]);
            self.from.consume(n);
            if end.is_some() {
                return Ok(Some(line));
            }
        }
    }
}

fn parse(line: &[u8], number: u64) -> Result<Asked, Fault> {
    let fault = |custom_id: Option<&str>, code, what: String| Fault {
        custom_id: custom_id.map(str::to_owned),
        code,
        message: format!("line {number}: {what}"),
    };
    let invalid = |what| fault(None, "invalid_json_line", what);
    if line.len() > MAX_LINE_BYTES {
        let what = format!("expected at most {MAX_LINE_BYTES} bytes, found more");
        return Err(invalid(what));
    }
    let line: Value =
        serde_json::from_slice(line).map_err(|e| invalid(format!("expected JSON: {e}")))?;
    let Value::Object(mut line) = line else {
        return Err(invalid("expected a JSON object".to_owned()));
    };
    let Some(Value::String(custom_id)) = line.remove("custom_id") else {
        let what = "expected a string as `custom_id`".to_owned();
        return Err(fault(None, "invalid_custom_id", what));
    };
    let fault = |code, what| fault(Some(&custom_id), code, what);
    let text = |name: &str| line.get(name).and_then(Value::as_str).unwrap_or("none");
    let (method, url) = (text("method"), text("url").to_owned());
    if method != "POST" {
        let what = format!("expected the `method` POST, found {method}");
        return Err(fault("invalid_method", what));
    }
    if !URLS.contains(&url.as_str()) {
        let what = format!("expected a `url` of {}, found {url}", URLS.join(", "));
        return Err(fault("invalid_url", what));
    }
    let Some(Value::Object(body)) = line.remove("body") else {
        let what = "expected a JSON object as `body`".to_owned();
        return Err(fault("invalid_request", what));
    };
    if body.get("stream").is_some_and(|stream| *stream == true) {
        let what = "expected `stream` to be false: answers of a batch are in one piece".to_owned();
        return Err(fault("invalid_request", what));
    }
    Ok(Asked {
        custom_id,
        url,
        body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_requests_say_why() {
        let ok = r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{}}"#;
        assert!(parse(ok.as_bytes(), 1).is_ok());
        let long = " ".repeat(MAX_LINE_BYTES + 1);
        for (from, to, code) in [
            (ok, "[]", "invalid_json_line"),
            (ok, "{", "invalid_json_line"),
            (ok, &long, "invalid_json_line"),
            ("\"a\"", "1", "invalid_custom_id"),
            ("POST", "GET", "invalid_method"),
            ("/v1/embeddings", "/v1/models", "invalid_url"),
            ("{}", "[]", "invalid_request"),
            ("{}", r#"{"stream":true}"#, "invalid_request"),
        ] {
            let fault = parse(ok.replace(from, to).as_bytes(), 7).err().unwrap();
            assert_eq!(fault.code, code, "{to:.20}");
            assert!(fault.message.starts_with("line 7: expected "), "{to:.20}");
            let has_id = !["invalid_json_line", "invalid_custom_id"].contains(&code);
            assert_eq!(fault.custom_id.is_some(), has_id, "{to:.20}");
        }
    }
}
