//! Requests that change something at the Hub: JSON, commits, and files for its store.

use std::io::{self, Read};

use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Body, ResponseExt, SendBody};

use super::{Client, Pace, failed, location, refuse_compressed};
use crate::error::HubError;
use crate::parts::{text, without_query};
use crate::shown::shown_url;

/// What the body of a request is.
#[derive(Clone, Copy)]
pub enum Kind {
    Json,
    /// JSON of Git LFS.
    Lfs,
    /// A JSON value per line.
    Lines,
}

impl Kind {
    fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Lfs => "application/vnd.git-lfs+json",
            Self::Lines => "application/x-ndjson",
        }
    }
}

/// A header that the store wants to have.
pub type Header = (String, String);

/// Bytes for the store, and who hears how many were sent.
pub struct Outgoing<'a> {
    pub bytes: Box<dyn Read + 'a>,
    pub len: u64,
    pub sent: &'a dyn Fn(u64),
}

impl Client<'_> {
    /// Sends a body and parses the answer. Only for requests that may be repeated.
    pub fn post<T: DeserializeOwned>(
        &self,
        url: &str,
        kind: Kind,
        body: &[u8],
        what: &str,
    ) -> Result<T, HubError> {
        let text = self.retrying(what, || self.post_once(url, kind, body, what))?;
        parse(&text, url)
    }

    /// Sends a body once and reads the answer.
    pub fn post_once(
        &self,
        url: &str,
        kind: Kind,
        body: &[u8],
        what: &str,
    ) -> Result<Vec<u8>, HubError> {
        let mut request = self.agent.post(url);
        request = request.header("Content-Type", kind.content_type());
        if let Kind::Lfs = kind {
            request = request.header("Accept", kind.content_type());
        }
        if let Some(token) = self.token_for(url) {
            request = request.header("Authorization", token);
        }
        self.tell(&format!("POST {}", shown_url(without_query(url))));
        let response = request.send(body).map_err(|e| failed(url, &e))?;
        self.answered(url, &response)?;
        self.check(&response, what)?;
        refuse_compressed(&response)?;
        self.read_body(response, url, what)
    }

    /// Sends bytes to the store once, with its headers. Returns the ETag of the answer.
    pub fn put_once(
        &self,
        url: &str,
        headers: &[Header],
        from: Outgoing<'_>,
        what: &str,
    ) -> Result<Option<String>, HubError> {
        let mut request = self.agent.put(url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request = request.header("Content-Length", from.len.to_string());
        self.tell(&format!("PUT {}", shown_url(without_query(url))));
        let mut body = Counted {
            left: from.len,
            pace: Pace::new(self.hub.patience),
            client: self,
            what,
            from,
        };
        let sent = request.send(SendBody::from_reader(&mut body));
        let response = sent.map_err(|e| failed(url, &e))?;
        self.answered(url, &response)?;
        // The errors of the Hub's endpoint mean something else than those of its store.
        let status = response.status().as_u16();
        match status {
            200..=299 => Ok(text(response.headers(), "etag")),
            _ => Err(HubError::Status {
                url: without_query(url).to_owned(),
                status,
                message: text(response.headers(), "x-error-message"),
                wait: None,
            }),
        }
    }

    /// Refuses redirects: a body is not sent to a place that the first one names.
    fn answered(&self, url: &str, response: &Response<Body>) -> Result<(), HubError> {
        let status = response.status().as_u16();
        self.tell(&format!("  {status}"));
        if !(300..400).contains(&status) {
            return Ok(());
        }
        let to = location(url, response).unwrap_or_else(|| response.get_uri().to_string());
        Err(HubError::BadAnswer {
            url: without_query(url).to_owned(),
            why: format!(
                "expected an answer, found a redirect to {}",
                shown_url(without_query(&to))
            ),
        })
    }

    fn tell(&self, line: &str) {
        self.hub.progress.detail(line);
    }
}

/// Parses an answer; no body is null.
pub fn parse<T: DeserializeOwned>(text: &[u8], url: &str) -> Result<T, HubError> {
    let text = if text.is_empty() { b"null" } else { text };
    serde_json::from_slice(text).map_err(|e| HubError::BadAnswer {
        url: without_query(url).to_owned(),
        why: e.to_string(),
    })
}

/// A body that counts what was sent. It ends with an error where the file is too short, the server
/// takes next to nothing, or nobody waits for it.
struct Counted<'a> {
    from: Outgoing<'a>,
    left: u64,
    pace: Pace,
    client: &'a Client<'a>,
    what: &'a str,
}

impl Read for Counted<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).map_or(to.len(), |left| left.min(to.len()));
        let n = self.from.bytes.read(&mut to[..most])?;
        if n == 0 && most > 0 {
            let why = "the file became shorter while it was sent";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        self.left -= n as u64;
        (self.from.sent)(n as u64);
        let wanted = self.client.hub.check_wanted(self.what);
        wanted.map_err(|e| io::Error::other(e.to_string()))?;
        self.pace.took(n).map_err(io::Error::other)?;
        Ok(n)
    }
}
