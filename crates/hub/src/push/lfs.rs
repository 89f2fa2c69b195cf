//! Uploads of large files by Git LFS: which files the store has, and how the others get there.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Blob;
use crate::error::HubError;
use crate::http::Client;
use crate::http::send::{Header, Kind, Outgoing};

/// Most files that are asked for in one request.
const BATCH: usize = 100;
/// Most parts of an upload: what the store allows.
const MOST_PARTS: u64 = 10_000;

#[derive(Deserialize)]
struct Answer {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    size: u64,
    #[serde(default)]
    actions: Actions,
    error: Option<Refusal>,
}

/// What remains to be done for a file; nothing if the store has it.
#[derive(Default, Deserialize)]
pub struct Actions {
    upload: Option<Action>,
    verify: Option<Action>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Refusal {
    message: String,
}

/// A file that the store does not have, and what is to be done.
pub type Missing<'b> = (Blob<'b>, Actions);

/// A repository whose store is asked.
pub struct Store<'a> {
    pub client: &'a Client<'a>,
    pub endpoint: &'a str,
    pub repo: &'a str,
    pub revision: &'a str,
}

impl Store<'_> {
    /// The files that the store does not have, each with what is to be done.
    pub fn missing<'b>(&self, blobs: &[Blob<'b>]) -> Result<Vec<Missing<'b>>, HubError> {
        let mut missing = Vec::new();
        for part in blobs.chunks(BATCH) {
            missing.extend(self.ask(part)?);
        }
        Ok(missing)
    }

    fn ask<'b>(&self, blobs: &[Blob<'b>]) -> Result<Vec<Missing<'b>>, HubError> {
        let objects: Vec<Value> = blobs
            .iter()
            .map(|blob| json!({"oid": blob.sha256, "size": blob.bytes}))
            .collect();
        let body = json!({
            "operation": "upload", "transfers": ["basic", "multipart"], "objects": objects,
            "hash_algo": "sha256", "ref": {"name": self.revision},
        });
        let url = format!("{}/{}.git/info/lfs/objects/batch", self.endpoint, self.repo);
        let what = format!("hf:{}", self.repo);
        let body = body.to_string();
        let answer: Answer = self.client.post(&url, Kind::Lfs, body.as_bytes(), &what)?;
        let bad = |why: String| HubError::BadAnswer {
            url: url.clone(),
            why,
        };
        let mut objects: BTreeMap<(String, u64), Object> = BTreeMap::new();
        for object in answer.objects {
            objects.insert((object.oid.clone(), object.size), object);
        }
        let mut missing = Vec::new();
        for blob in blobs {
            let object = objects.remove(&(blob.sha256.to_owned(), blob.bytes));
            let object = object.ok_or_else(|| bad(format!("no answer for {}", blob.path)))?;
            if let Some(refusal) = object.error {
                return Err(HubError::Refused {
                    what: format!("hf:{}/{}", self.repo, blob.path),
                    why: refusal.message,
                });
            }
            if object.actions.upload.is_some() {
                missing.push((*blob, object.actions));
            }
        }
        match objects.into_keys().next() {
            Some((oid, _)) => Err(bad(format!("{oid} was not asked for"))),
            None => Ok(missing),
        }
    }

    /// Sends a file as the store wants to have it, and lets the Hub check it. `sent` hears of each
    /// piece.
    pub fn upload(
        &self,
        blob: &Blob<'_>,
        actions: &Actions,
        sent: &dyn Fn(u64),
    ) -> Result<(), HubError> {
        let Some(upload) = &actions.upload else {
            return Ok(());
        };
        self.check_scheme(&upload.href)?;
        match upload.header.get("chunk_size") {
            Some(size) => self.upload_parts(blob, upload, size, sent)?,
            None => {
                let headers = plain_headers(&upload.header);
                let all = (0, blob.bytes);
                self.put(blob, &upload.href, &headers, all, sent)?;
            }
        }
        let Some(verify) = &actions.verify else {
            return Ok(());
        };
        self.check_scheme(&verify.href)?;
        let body = json!({"oid": blob.sha256, "size": blob.bytes}).to_string();
        let what = format!("hf:{}/{}", self.repo, blob.path);
        let body = body.as_bytes();
        self.client.retrying(&what, || {
            let kind = Kind::Lfs;
            self.client
                .post_once(&verify.href, kind, body, &what)
                .map(drop)
        })
    }

    /// Sends a file in parts, each to an address of its own, and then the list of them.
    fn upload_parts(
        &self,
        blob: &Blob<'_>,
        upload: &Action,
        size: &Value,
        sent: &dyn Fn(u64),
    ) -> Result<(), HubError> {
        let bad = |why: String| HubError::BadAnswer {
            url: upload.href.clone(),
            why: format!("{}: {why}", blob.path),
        };
        let text = size.as_str().and_then(|text| text.parse().ok());
        let size = size.as_u64().or(text).filter(|size| *size > 0);
        let size = size.ok_or_else(|| bad("expected a chunk_size above 0".to_owned()))?;
        let n_parts = blob.bytes.div_ceil(size);
        let address = |part: u64| {
            let named = |(name, value): (&String, &Value)| {
                (name.parse() == Ok(part)).then(|| value.as_str().map(str::to_owned))?
            };
            upload.header.iter().find_map(named)
        };
        if n_parts > MOST_PARTS || address(n_parts).is_none() || address(n_parts + 1).is_some() {
            return Err(bad(format!("expected addresses of {n_parts} parts")));
        }
        let mut parts = Vec::new();
        for part in 1..=n_parts {
            let url = address(part).ok_or_else(|| bad(format!("part {part} has no address")))?;
            self.check_scheme(&url)?;
            let from = (part - 1) * size;
            let range = (from, size.min(blob.bytes - from));
            let etag = self.put(blob, &url, &[], range, sent)?;
            let etag = etag.ok_or_else(|| bad(format!("part {part} has no ETag")))?;
            parts.push(json!({"partNumber": part, "etag": etag}));
        }
        let body = json!({"oid": blob.sha256, "parts": parts}).to_string();
        let what = format!("hf:{}/{}", self.repo, blob.path);
        let body = body.as_bytes();
        self.client.retrying(&what, || {
            let kind = Kind::Lfs;
            self.client
                .post_once(&upload.href, kind, body, &what)
                .map(drop)
        })
    }

    /// Sends `len` bytes of a file from byte `from` on, again where the line drops.
    fn put(
        &self,
        blob: &Blob<'_>,
        url: &str,
        headers: &[Header],
        (from, len): (u64, u64),
        sent: &dyn Fn(u64),
    ) -> Result<Option<String>, HubError> {
        let what = format!("hf:{}/{}", self.repo, blob.path);
        self.client.retrying(&what, || {
            let bytes: Box<dyn Read> = blob.content.reader(from)?;
            let outgoing = Outgoing { bytes, len, sent };
            self.client.put_once(url, headers, outgoing, &what)
        })
    }

    /// Refuses to send a file in the clear where the endpoint is not.
    fn check_scheme(&self, url: &str) -> Result<(), HubError> {
        if url.starts_with("https://") || !self.endpoint.starts_with("https://") {
            return Ok(());
        }
        Err(HubError::BadAnswer {
            url: url.to_owned(),
            why: "expected an address that begins with https".to_owned(),
        })
    }
}

/// The headers that the store wants to have, without those that the request has of its own.
fn plain_headers(header: &BTreeMap<String, Value>) -> Vec<Header> {
    let own = ["content-length", "host", "transfer-encoding"];
    let all = header.iter();
    all.filter(|(name, _)| !own.contains(&name.to_ascii_lowercase().as_str()))
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect()
}
