//! HTTP requests to the Hub. Redirects are followed here and not by the HTTP library, so that the
//! token is sent to the endpoint's host only.

pub mod send;

use std::io::Read;
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body, ResponseExt};

use crate::config::{Hub, Proxy};
use crate::disk::{CHUNK_BYTES, Growing};
use crate::error::HubError;
use crate::parts::{
    Joins, Remote, Rest, joined, next_page, number, strong_etag, text, unreachable, without_query,
};
use crate::shown::shown_url;

/// Redirects per request at most. The Hub makes two.
const REDIRECTS: usize = 8;
/// Bytes of a JSON answer at most. The listing of a repository with thousands of files is smaller.
const JSON_BYTES: u64 = 32 << 20;
/// The least throughput. Lines in use are faster; a server that sends less is faulty or malicious.
const MIN_BYTES_PER_S: u64 = 1000;
/// Bytes that an attempt must bring to reset the count of failures. Without a minimum, a server
/// that drops every connection after one byte would be asked forever.
const STEP_BYTES: u64 = 64 << 10;
/// The longest wait that a server may ask for (`Retry-After`); a longer one is an error.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Checks the throughput over every period of `patience`.
struct Pace {
    patience: Duration,
    since: Instant,
    n_bytes: u64,
}

impl Pace {
    fn new(patience: Duration) -> Self {
        Self {
            patience,
            since: Instant::now(),
            n_bytes: 0,
        }
    }

    /// Counts bytes that arrived; the error says how few they were.
    fn took(&mut self, n: usize) -> Result<(), String> {
        self.n_bytes += n as u64;
        let elapsed = self.since.elapsed();
        if elapsed < self.patience {
            return Ok(());
        }
        if self.n_bytes < MIN_BYTES_PER_S * self.patience.as_secs().max(1) {
            return Err(format!(
                "only {} bytes came in {:.0} s",
                self.n_bytes,
                elapsed.as_secs_f64()
            ));
        }
        *self = Self::new(self.patience);
        Ok(())
    }
}

/// Talks to one endpoint.
pub struct Client<'a> {
    agent: Agent,
    hub: &'a Hub,
    origin: Option<Origin>,
}

/// Scheme, host and port.
type Origin = (String, String, u16);

impl<'a> Client<'a> {
    pub fn new(hub: &'a Hub) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // A compressed answer would have another length than the file.
            .accept_encoding("identity")
            .user_agent(concat!("thane/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(Duration::from_secs(10)))
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(hub.patience))
            .timeout_per_read(Some(hub.patience))
            .timeout_per_write(Some(hub.patience))
            .tls_config(hub.tls())
            .proxy(hub.places.proxy.as_ref().and_then(proxy))
            .build();
        Self {
            agent: config.into(),
            hub,
            origin: origin(&hub.places.endpoint),
        }
    }

    /// Requests a JSON answer from the endpoint.
    pub fn json<T: DeserializeOwned>(&self, path: &str, what: &str) -> Result<T, HubError> {
        self.json_page(path, what).map(|(answer, _)| answer)
    }

    /// Requests a page of a JSON answer, with the path of the next one.
    pub fn json_page<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
    ) -> Result<(T, Option<String>), HubError> {
        let url = format!("{}{path}", self.hub.places.endpoint);
        let bad = |why: String| HubError::BadAnswer {
            url: url.clone(),
            why,
        };
        self.retrying(what, || {
            let response = self.follow("GET", &url, None, what)?;
            let link = text(response.headers(), "link").unwrap_or_default();
            let next = next_page(&link).map_err(bad)?;
            let text = self.read_body(response, &url, what)?;
            let answer = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
            Ok((answer, next))
        })
    }

    /// Reads a body of at most [`JSON_BYTES`].
    fn read_body(
        &self,
        response: Response<Body>,
        url: &str,
        what: &str,
    ) -> Result<Vec<u8>, HubError> {
        let mut body = response.into_body().into_reader();
        let (mut text, mut pace, mut chunk) =
            (Vec::new(), Pace::new(self.hub.patience), vec![0; 16 << 10]);
        loop {
            let n = body.read(&mut chunk).map_err(|e| broken(url, &e))?;
            if n == 0 {
                return Ok(text);
            }
            self.hub.check_wanted(what)?;
            pace.took(n).map_err(|why| unreachable(url, &why, true))?;
            text.extend_from_slice(&chunk[..n]);
            if text.len() as u64 > JSON_BYTES {
                let why = format!("expected at most {JSON_BYTES} bytes, found more");
                return Err(HubError::BadAnswer {
                    url: url.to_owned(),
                    why,
                });
            }
        }
    }

    /// Requests ETag, length and commit of a file.
    pub fn head(&self, url: &str, what: &str) -> Result<Remote, HubError> {
        self.retrying(what, || self.head_once(url, what))
    }

    fn head_once(&self, url: &str, what: &str) -> Result<Remote, HubError> {
        let mut at = url.to_owned();
        let (mut commit, mut etag, mut bytes) = (None, None, None);
        for _ in 0..REDIRECTS {
            let response = self.send("HEAD", &at, None)?;
            let headers = response.headers();
            commit = commit.or_else(|| text(headers, "x-repo-commit"));
            etag = etag.or_else(|| text(headers, "x-linked-etag"));
            bytes = bytes.or_else(|| number(headers, "x-linked-size"));
            let next = location(&at, &response);
            // The linked headers describe the file behind the redirect, so its server need not be
            // asked.
            if next.is_none() || etag.is_some() {
                self.check(&response, what)?;
                let own = if next.is_none() {
                    (text(headers, "etag"), number(headers, "content-length"))
                } else {
                    (None, None)
                };
                let validator = next.is_none().then(|| strong_etag(headers)).flatten();
                let etag = etag
                    .or(own.0)
                    .map(|e| short_etag(e.trim_start_matches("W/").trim_matches('"')));
                let why = "neither ETag nor X-Linked-Etag".to_owned();
                let etag = etag.ok_or(HubError::BadAnswer { url: at, why })?;
                return Ok(Remote {
                    url: url.to_owned(),
                    etag,
                    validator,
                    bytes: bytes.or(own.1),
                    commit,
                    limit: None,
                });
            }
            at = next.unwrap_or_default();
        }
        Err(HubError::BadAnswer {
            url: url.to_owned(),
            why: "too many redirects".into(),
        })
    }

    /// Appends the missing bytes of a file, over as many connections as needed.
    ///
    /// Attempts are counted from the last one that brought [`STEP_BYTES`], so that a line that
    /// drops now and then still completes a download. Without `is_hashed`, nobody compares the hash
    /// of the file, and bytes are only appended if a strong validator says that the file has not
    /// changed.
    pub fn download(
        &self,
        remote: &Remote,
        to: &mut Growing,
        what: &str,
        is_hashed: bool,
    ) -> Result<(), HubError> {
        let (mut failed, mut reached) = (0, to.len());
        let mut joins = match is_hashed {
            true => Joins::Hash,
            false => Joins::Validator(remote.validator.clone()),
        };
        loop {
            if remote.bytes == Some(to.len()) {
                return Ok(());
            }
            let error = match self.download_once(remote, to, what, &mut joins) {
                Ok(()) => match remote.bytes {
                    Some(expected) if to.len() < expected => {
                        unreachable(&remote.url, "the connection closed before the end", true)
                    }
                    _ => return Ok(()),
                },
                Err(e) => e,
            };
            // What comes again after a start from the first byte does not count.
            if to.len() >= reached.saturating_add(STEP_BYTES) {
                (failed, reached) = (1, to.len());
            } else {
                failed += 1;
            }
            let network = matches!(error, HubError::Unreachable { .. }) || error.is_transient();
            if failed >= self.hub.attempts.max(1) || !network {
                return Err(error);
            }
            self.hub
                .progress
                .detail(&format!("{what}: {error}; continuing at byte {}", to.len()));
            self.wait(error, failed, what)?;
        }
    }

    fn download_once(
        &self,
        remote: &Remote,
        to: &mut Growing,
        what: &str,
        joins: &mut Joins,
    ) -> Result<(), HubError> {
        if matches!(joins, Joins::Validator(None)) {
            to.restart()?;
        }
        let rest = Rest {
            from: to.len(),
            validator: match joins {
                Joins::Hash | Joins::Validator(None) => None,
                Joins::Validator(Some(validator)) => Some(validator),
            },
        };
        let response = self.follow("GET", &remote.url, (rest.from > 0).then_some(rest), what)?;
        if let Err(error) = joined(&response, remote, rest) {
            to.restart()?;
            return Err(error);
        }
        if response.status() != 206 {
            to.restart()?;
            if let Joins::Validator(validator) = joins {
                *validator = strong_etag(response.headers());
            }
        }
        let mut body = response.into_body().into_reader();
        let mut pace = Pace::new(self.hub.patience);
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let n = body.read(&mut chunk).map_err(|e| broken(&remote.url, &e))?;
            if n == 0 {
                return Ok(());
            }
            let after = to.len() + n as u64;
            if let Some(expected) = remote.bytes.filter(|expected| after > *expected) {
                return Err(HubError::WrongSize {
                    what: what.to_owned(),
                    expected,
                    found: after,
                });
            }
            if let Some(limit) = remote.limit.filter(|limit| after > *limit) {
                return Err(HubError::TooLarge {
                    what: what.to_owned(),
                    limit,
                    found: None,
                });
            }
            to.push(&chunk[..n])?;
            self.hub.progress.set(to.len());
            self.hub.check_wanted(what)?;
            pace.took(n)
                .map_err(|why| unreachable(&remote.url, &why, true))?;
        }
    }

    /// Sends a request, follows redirects and checks the status.
    fn follow(
        &self,
        method: &str,
        url: &str,
        rest: Option<Rest>,
        what: &str,
    ) -> Result<Response<Body>, HubError> {
        let mut at = url.to_owned();
        for _ in 0..REDIRECTS {
            let response = self.send(method, &at, rest)?;
            match location(&at, &response) {
                Some(next) => at = next,
                None => {
                    self.check(&response, what)?;
                    refuse_compressed(&response)?;
                    return Ok(response);
                }
            }
        }
        Err(HubError::BadAnswer {
            url: url.to_owned(),
            why: "too many redirects".into(),
        })
    }

    fn send(
        &self,
        method: &str,
        url: &str,
        rest: Option<Rest>,
    ) -> Result<Response<Body>, HubError> {
        let mut request = match method {
            "HEAD" => self.agent.head(url),
            _ => self.agent.get(url),
        };
        if let Some(Rest { from, validator }) = rest {
            request = request.header("Range", format!("bytes={from}-"));
            if let Some(validator) = validator {
                request = request.header("If-Range", validator);
            }
        }
        if let Some(token) = self.token_for(url) {
            request = request.header("Authorization", token);
        }
        self.hub
            .progress
            .detail(&format!("{method} {}", shown_url(without_query(url))));
        let response = request.call().map_err(|e| failed(url, &e))?;
        self.hub.progress.detail(&format!(
            "  {} {}",
            response.status().as_u16(),
            shown_url(without_query(&response.get_uri().to_string()))
        ));
        Ok(response)
    }

    /// The token as a header, for addresses of the endpoint and no others.
    fn token_for(&self, url: &str) -> Option<String> {
        let own = origin(url).is_some_and(|o| Some(o) == self.origin);
        let token = self.hub.places.token.as_ref().filter(|_| own)?;
        Some(format!("Bearer {token}"))
    }

    /// Turns an error status of the Hub into the error that it stands for.
    fn check(&self, response: &Response<Body>, what: &str) -> Result<(), HubError> {
        let status = response.status().as_u16();
        if status < 400 {
            return Ok(());
        }
        let headers = response.headers();
        let endpoint = self.hub.places.endpoint.clone();
        let url = without_query(&response.get_uri().to_string()).to_owned();
        Err(match (text(headers, "x-error-code").as_deref(), status) {
            (Some("GatedRepo"), _) => HubError::Gated {
                repo: repo_of(what),
                endpoint,
            },
            // Without a valid token, the Hub does not say whether a repository exists.
            (Some("RepoNotFound"), _) | (_, 404) => HubError::NotFound {
                what: what.to_owned(),
                endpoint,
            },
            (None, 401) if self.hub.places.token.is_none() => HubError::NotFound {
                what: what.to_owned(),
                endpoint,
            },
            _ => HubError::Status {
                url,
                status,
                message: text(headers, "x-error-message"),
                wait: text(headers, "retry-after")
                    .and_then(|value| retry_after(&value, SystemTime::now())),
            },
        })
    }

    /// Tries again what failed for a transient reason.
    pub fn retrying<T>(
        &self,
        what: &str,
        mut once: impl FnMut() -> Result<T, HubError>,
    ) -> Result<T, HubError> {
        let mut failed = 0;
        loop {
            self.hub.check_wanted(what)?;
            match once() {
                Err(error) if error.is_transient() && failed + 1 < self.hub.attempts => {
                    failed += 1;
                    self.hub.progress.detail(&format!(
                        "{error}; attempt {} of {}",
                        failed + 1,
                        self.hub.attempts
                    ));
                    self.wait(error, failed, what)?;
                }
                done => return done,
            }
        }
    }

    /// Waits before the next attempt, as long as the server asks for. Returns the error instead if
    /// that is longer than [`MAX_WAIT`]. Ends when nobody waits for `what`.
    pub fn wait(&self, error: HubError, failed: u32, what: &str) -> Result<(), HubError> {
        let own = pause(failed);
        match &error {
            HubError::Status {
                wait: Some(asked), ..
            } if *asked > MAX_WAIT => Err(error),
            HubError::Status {
                wait: Some(asked), ..
            } if *asked > own => {
                self.hub.progress.note(&format!("{error}; waiting"));
                self.hub.sleep(*asked, what)
            }
            _ => self.hub.sleep(own, what),
        }
    }
}

/// An ETag as the name of a file, which has at most 255 bytes. A long one is hashed; what is before
/// its hash tells it from that of a file.
fn short_etag(etag: &str) -> String {
    const MOST_BYTES: usize = 128;
    if etag.len() <= MOST_BYTES {
        return etag.to_owned();
    }
    let hash = Sha256::digest(etag);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("etag-{hex}")
}

/// The pause before an attempt: 0.25 s, doubled after each failure, 8 s at most.
fn pause(failed: u32) -> Duration {
    Duration::from_millis(250 << failed.saturating_sub(1).min(5))
}

/// Parses `Retry-After`: seconds, or a date.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(
            httpdate::parse_http_date(value)
                .ok()?
                .duration_since(now)
                .unwrap_or_default(),
        ),
    }
}

/// Refuses a compressed answer. None was asked for, its length says nothing about the file, and a
/// small one may unpack to any size.
fn refuse_compressed(response: &Response<Body>) -> Result<(), HubError> {
    match text(response.headers(), "content-encoding") {
        Some(encoding)
            if !encoding.trim().is_empty() && !encoding.trim().eq_ignore_ascii_case("identity") =>
        {
            let url = without_query(&response.get_uri().to_string()).to_owned();
            let why = format!(
                "expected plain bytes, found Content-Encoding {}",
                encoding.trim()
            );
            Err(HubError::BadAnswer { url, why })
        }
        _ => Ok(()),
    }
}

/// A proxy as the HTTP library takes it; `None` if its address is not valid.
fn proxy(proxy: &Proxy) -> Option<ureq::Proxy> {
    let parsed = ureq::Proxy::new(&proxy.uri).ok()?;
    let mut builder = ureq::Proxy::builder(parsed.protocol())
        .host(parsed.host())
        .port(parsed.port())
        .resolve_target(parsed.resolve_target());
    if let Some(name) = parsed.username() {
        builder = builder.username(name);
    }
    if let Some(password) = parsed.password() {
        builder = builder.password(password);
    }
    let bypass = proxy.bypass.iter();
    bypass
        .fold(builder, |b, host| b.no_proxy(host))
        .build()
        .ok()
}

/// The address that a redirect leads to. A redirect from https to http is ignored.
fn location(at: &str, response: &Response<Body>) -> Option<String> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let to = text(response.headers(), "location")?;
    let base: Uri = at.parse().ok()?;
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    let to = match to.strip_prefix("//") {
        Some(rest) => format!("{scheme}://{rest}"),
        None if to.starts_with('/') => format!("{scheme}://{authority}{to}"),
        None => to,
    };
    (scheme == "http" || to.starts_with("https://")).then_some(to)
}

fn origin(url: &str) -> Option<Origin> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri
        .port_u16()
        .unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

/// The `org/name` in a name such as `hf:org/name/file`.
fn repo_of(what: &str) -> String {
    let text = what.trim_start_matches("hf:");
    text.split('/').take(2).collect::<Vec<_>>().join("/")
}

fn broken(url: &str, error: &std::io::Error) -> HubError {
    unreachable(url, &error.to_string(), true)
}

const NO_HOST: &str = "the name of the host is not known (no network?)";

fn failed(url: &str, error: &ureq::Error) -> HubError {
    use std::io::ErrorKind;
    match error {
        ureq::Error::HostNotFound => unreachable(url, NO_HOST, false),
        ureq::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => {
            unreachable(url, "connection refused", false)
        }
        // The system's resolver asked several servers already.
        ureq::Error::Io(e) if e.to_string().contains("failed to lookup address") => {
            unreachable(url, NO_HOST, false)
        }
        ureq::Error::Timeout(phase) => {
            unreachable(url, &format!("no answer in time ({phase})"), true)
        }
        ureq::Error::Io(e) => unreachable(url, &e.to_string(), true),
        ureq::Error::Protocol(e) => unreachable(url, &e.to_string(), true),
        // The library repeats an address that it cannot read.
        other => {
            let reason = other.to_string().replace(url, &shown_url(url));
            unreachable(url, &reason, false)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{Places, Progress};

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        assert_eq!(origin("https://A.b/x"), origin("https://a.b:443/y?z"));
        for other in [
            "http://a.b/x",
            "https://a.b:444/x",
            "https://a.b.c/x",
            "https://evil/a.b",
            "https://a.b@evil/x",
        ] {
            assert_ne!(origin("https://a.b/x"), origin(other), "{other}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        // RFC 9110, 10.2.3; the date is 784111777 s after 1970.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let wait = |value: &str| retry_after(value, now).map(|d| d.as_secs());
        assert_eq!(
            [
                wait("120"),
                wait(" 0 "),
                wait(date),
                wait("soon"),
                wait("-1")
            ],
            [Some(120), Some(0), Some(7), None, None]
        );
        assert_eq!(
            retry_after(date, now + Duration::from_secs(60)),
            Some(Duration::ZERO),
            "the date is over"
        );
    }

    #[test]
    fn long_etags_are_names_of_files() {
        assert_eq!(short_etag("abc"), "abc");
        let [a, b] = ["a", "b"].map(|end| short_etag(&("x".repeat(5000) + end)));
        assert!(a.len() < 128 && a != b, "{a} {b}");
        assert_eq!(crate::parts::Sum::of_etag(&a), None);
    }

    /// Nobody waits, so neither a server nor a pause is.
    #[test]
    fn what_nobody_wants_is_not_awaited() {
        struct Gone;
        impl Progress for Gone {
            fn start(&self, _: &str, _: Option<u64>, _: u64) {}
            fn set(&self, _: u64) {}
            fn is_wanted(&self) -> bool {
                false
            }
            fn finish(&self) {}
            fn note(&self, _: &str) {}
            fn detail(&self, _: &str) {}
        }
        let folder = tempfile::tempdir().unwrap();
        let mut hub = Hub::new(Places::in_folder(folder.path()));
        hub.progress = Arc::new(Gone);
        let client = Client::new(&hub);
        let asked = HubError::Status {
            url: String::new(),
            status: 429,
            message: None,
            wait: Some(MAX_WAIT),
        };
        let unwanted = |error: Result<(), HubError>| {
            assert!(matches!(error, Err(HubError::Unwanted { .. })), "{error:?}");
        };
        unwanted(client.wait(asked, 1, "x"));
        let mut never = || -> Result<(), HubError> { panic!("nobody asked for this") };
        unwanted(client.retrying("x", &mut never));
    }

    #[test]
    fn pauses_grow_to_eight_seconds() {
        let millis: Vec<u128> = [1, 2, 3, 6, 40].map(|n| pause(n).as_millis()).into();
        assert_eq!(millis, [250, 500, 1000, 8000, 8000]);
    }
}
