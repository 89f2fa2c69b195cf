//! A client of a running server that has the routes of OpenAI's API: this one, or another.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use thane_runtime::{one_line, shown_url};
use ureq::http::{Response, Uri};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, RequestBuilder};

/// Most bytes of an answer in one piece, without its vectors: parsed, they may take 20 times more.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Most bytes of a number of a vector: 24 of a double with all its digits, and a line of its own.
const NUMBER_BYTES: usize = 64;
/// Most bytes of a vector beside its numbers.
const BESIDE_BYTES: usize = 1 << 10;
/// Most bytes of an event of a stream.
const MAX_EVENT_BYTES: u64 = 4 << 20;
/// Most bytes of the text of an error.
const MAX_ERROR_BYTES: usize = 1 << 16;
/// How long a server may take to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Why a server gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not one of a server.
    #[error("expected the address of a server, such as http://127.0.0.1:8080, found `{0}`")]
    Address(String),
    /// The server cannot be reached.
    #[error("the server at {url} cannot be reached: {reason}")]
    Unreachable {
        /// The address that was given.
        url: String,
        /// What the system says.
        reason: String,
    },
    /// The connection broke before the answer ended.
    #[error("the server at {url} ended before its answer did: {reason}")]
    Broken {
        /// The address that was given.
        url: String,
        /// What the system says.
        reason: String,
    },
    /// The server refused the request, or failed.
    #[error("the server at {url} answers with status {status}: {message}")]
    Refused {
        /// The address that was given.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What the server says.
        message: String,
    },
    /// The answer is not that of the API.
    #[error("the server at {url} does not answer as OpenAI's API does: {what}")]
    Answer {
        /// The address that was given.
        url: String,
        /// What is wrong.
        what: String,
    },
    /// A vector has NaN or an infinity, or is none.
    #[error("the server at {url} gives {found} for input[{index}]; expected finite numbers")]
    Vector {
        /// The address that was given.
        url: String,
        /// Which of the texts that were sent.
        index: usize,
        /// What is there instead of a vector.
        found: String,
    },
}

/// A client of one server.
pub struct Client {
    agent: Agent,
    /// The address, without a slash at its end.
    url: String,
    /// The address without a password.
    shown: String,
    key: Option<String>,
}

/// Whether this is an address of http or https that names a host.
pub(crate) fn is_address(url: &str) -> bool {
    let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    let has_host = |uri: &Uri| uri.host().is_some_and(|host| !host.is_empty());
    url.parse().is_ok_and(|uri| is_http(&uri) && has_host(&uri))
}

impl Client {
    /// A client of the server at an address, with or without `/v1` at its end, which trusts the
    /// certificates of `tls`. Nothing is sent yet.
    pub fn new(url: &str, key: Option<&str>, tls: TlsConfig) -> Result<Self, ClientError> {
        let given = url.trim().trim_end_matches('/');
        if !is_address(given) {
            return Err(ClientError::Address(shown_url(url)));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .accept_encoding("identity")
            .user_agent(concat!("thane/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIME))
            .tls_config(tls)
            .proxy(None)
            .build();
        let url = given.strip_suffix("/v1").unwrap_or(given).to_owned();
        Ok(Self {
            agent: config.into(),
            shown: shown_url(&url),
            url,
            key: key.map(str::to_owned),
        })
    }

    /// Most dimensions of a vector of which nothing is known; models have at most some thousands.
    pub const MAX_DIM: usize = 1 << 14;

    /// What a route tells; `path` begins with `/v1`.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        let request = self.with_key(self.agent.get(format!("{}{path}", self.url)));
        let response = request.call().map_err(|e| self.unreachable(&e))?;
        self.json(self.accepted(response)?, MAX_ANSWER_BYTES)
    }

    /// What a server says of a model; null if it lists no model of this name, or none at all, as
    /// servers of embeddings alone do.
    pub fn model(&self, name: &str) -> Result<Value, ClientError> {
        let mut models = match self.get("/v1/models") {
            Err(ClientError::Refused {
                status: 404 | 405 | 501,
                ..
            }) => return Ok(Value::Null),
            models => models?,
        };
        let models = models["data"].as_array_mut().map(std::mem::take);
        let mut models = models.unwrap_or_default().into_iter();
        Ok(models.find(|model| model["id"] == name).unwrap_or_default())
    }

    /// The vectors of texts, and the number of their tokens. The answer may be as long as vectors
    /// of at most `max_dim` numbers need, so that a server cannot take the memory of its client.
    pub fn embed(
        &self,
        model: &str,
        texts: &[&str],
        (asked_dim, max_dim): (Option<usize>, usize),
    ) -> Result<(Vec<Vec<f32>>, u64), ClientError> {
        let mut body = json!({"model": model, "input": texts, "encoding_format": "base64"});
        if let Some(dim) = asked_dim {
            body["dimensions"] = dim.into();
        }
        let of_vector = max_dim.saturating_mul(NUMBER_BYTES) + BESIDE_BYTES;
        let most = texts.len().saturating_mul(of_vector);
        let most = most.saturating_add(MAX_ERROR_BYTES);
        let answer: Embedded = self.json(self.send("/v1/embeddings", &body)?, most)?;
        let mut rows = vec![None; texts.len()];
        for Item { index, embedding } in answer.data {
            let row = index.and_then(|index| rows.get_mut(index));
            let row = row.ok_or_else(|| self.answer("a vector has no text"))?;
            let refused = |found| ClientError::Vector {
                url: self.shown.clone(),
                index: index.unwrap_or_default(),
                found,
            };
            *row = Some(embedding.finite().map_err(refused)?);
        }
        let rows: Option<Vec<Vec<f32>>> = rows.into_iter().collect();
        let rows = rows.ok_or_else(|| {
            let n = texts.len();
            self.answer(format!("expected vectors of {n} texts, found fewer"))
        })?;
        let n_tokens = answer.usage.and_then(|usage| usage.prompt_tokens);
        Ok((rows, n_tokens.unwrap_or(0)))
    }

    /// Gives each event of a streamed answer to `event`, which can end the stream. Returns whether
    /// the stream is complete.
    pub fn stream(
        &self,
        path: &str,
        body: &Value,
        event: &mut dyn FnMut(Value) -> ControlFlow<()>,
    ) -> Result<bool, ClientError> {
        let mut reader = BufReader::new(self.send(path, body)?.into_body().into_reader());
        let mut line = Vec::new();
        loop {
            line.clear();
            let n = (&mut reader)
                .take(MAX_EVENT_BYTES)
                .read_until(b'\n', &mut line)
                .map_err(|e| self.broken(&e))?;
            if n == 0 {
                return Err(self.broken(&"the connection was closed"));
            }
            let Some(data) = line.strip_prefix(b"data:") else {
                continue;
            };
            let data = data.trim_ascii();
            if data == b"[DONE]" {
                return Ok(true);
            }
            let data: Value = serde_json::from_slice(data)
                .map_err(|e| self.answer(format!("an event is not JSON: {e}")))?;
            if let Some(error) = data.get("error").filter(|error| !error.is_null()) {
                return Err(ClientError::Refused {
                    url: self.shown.clone(),
                    status: 500,
                    message: message(error),
                });
            }
            if event(data).is_break() {
                return Ok(false);
            }
        }
    }

    /// The address of the server, without a password.
    pub fn shown_url(&self) -> &str {
        &self.shown
    }

    /// The error of an answer that lacks something.
    pub fn answer(&self, what: impl Into<String>) -> ClientError {
        ClientError::Answer {
            url: self.shown.clone(),
            what: what.into(),
        }
    }

    fn send(&self, path: &str, body: &Value) -> Result<Response<Body>, ClientError> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let request = self.with_key(request.header("Content-Type", "application/json"));
        let response = request.send(body.to_string());
        self.accepted(response.map_err(|e| self.unreachable(&e))?)
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// Refuses an answer with another status than 200.
    fn accepted(&self, response: Response<Body>) -> Result<Response<Body>, ClientError> {
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(response);
        }
        let mut text = Vec::new();
        let body = response.into_body().into_reader();
        // What has come by then says enough.
        let _ = body.take(MAX_ERROR_BYTES as u64).read_to_end(&mut text);
        let message = match serde_json::from_slice::<Value>(&text) {
            Ok(body) => message(body.get("error").unwrap_or(&body)),
            Err(_) => {
                let text = String::from_utf8_lossy(&text);
                one_line(&text.chars().take(500).collect::<String>())
            }
        };
        Err(ClientError::Refused {
            url: self.shown.clone(),
            status,
            message,
        })
    }

    /// An answer of at most so many bytes.
    fn json<T: DeserializeOwned>(
        &self,
        response: Response<Body>,
        max_bytes: usize,
    ) -> Result<T, ClientError> {
        let mut bytes = Vec::new();
        let body = response.into_body().into_reader();
        let read = body.take(max_bytes as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|e| self.broken(&e))?;
        if bytes.len() > max_bytes {
            let what = format!("expected an answer of at most {max_bytes} bytes, found more");
            return Err(self.answer(what));
        }
        let parsed = serde_json::from_slice(&bytes);
        parsed.map_err(|e| self.answer(format!("the answer cannot be read: {e}")))
    }

    fn broken(&self, reason: &dyn fmt::Display) -> ClientError {
        ClientError::Broken {
            url: self.shown.clone(),
            reason: reason.to_string(),
        }
    }

    fn unreachable(&self, reason: &dyn fmt::Display) -> ClientError {
        ClientError::Unreachable {
            url: self.shown.clone(),
            reason: reason.to_string(),
        }
    }
}

/// The text of an error, in any API's shape, on one line.
fn message(error: &Value) -> String {
    let text = error.get("message").unwrap_or(error);
    one_line(
        &text
            .as_str()
            .map_or_else(|| text.to_string(), str::to_owned),
    )
}

/// An answer with vectors.
#[derive(Deserialize)]
struct Embedded {
    #[serde(default)]
    data: Vec<Item>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Item {
    index: Option<usize>,
    embedding: Embedding,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
}

/// A vector as base64 of fp32, or as numbers, which servers without base64 give; `None` if it is
/// neither.
struct Embedding(Option<Vec<f32>>);

impl Embedding {
    /// The numbers. The error says what is there instead of finite ones.
    fn finite(self) -> Result<Vec<f32>, String> {
        let vector = self.0.ok_or("neither numbers nor fp32 in base64")?;
        match vector.iter().find(|n| !n.is_finite()) {
            Some(found) => Err(format!("a vector with {found}")),
            None => Ok(vector),
        }
    }
}

impl<'de> Deserialize<'de> for Embedding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EmbeddingVisitor)
    }
}

/// Keeps four bytes of a number, whatever its text.
struct EmbeddingVisitor;

impl<'de> Visitor<'de> for EmbeddingVisitor {
    type Value = Embedding;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("numbers or fp32 in base64")
    }

    fn visit_str<E>(self, text: &str) -> Result<Embedding, E> {
        let numbers = STANDARD.decode(text).ok().and_then(|bytes| {
            let (numbers, rest) = bytes.as_chunks();
            let numbers = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes));
            rest.is_empty().then(|| numbers.collect())
        });
        Ok(Embedding(numbers))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Embedding, A::Error> {
        let mut numbers = Some(Vec::new());
        while let Some(number) = list.next_element::<Option<f64>>()? {
            numbers = numbers.zip(number).map(|(mut numbers, number)| {
                numbers.push(number as f32);
                numbers
            });
        }
        Ok(Embedding(numbers))
    }
}
