//! What is checked before any route: the `Host` header, the key, and the type of the body.
//!
//! A page of another site that a browser shows can send requests to 127.0.0.1. It cannot read the
//! answers, because no header allows it to, unless the user names its origin (`cors`). A site whose
//! name resolves to 127.0.0.1 (DNS rebinding) could, so on loopback addresses the `Host` header
//! must name this machine, also where pages may ask. A page can send text, but JSON or an archive
//! only after a question that no route answers, so bodies must be declared as one of them. Programs
//! that are no browsers often declare JSON as a form, as text or not at all (`curl -d`). Browsers
//! send `Origin`, `Referer` or `Sec-Fetch-Site` with each POST of a page, so such bodies are taken
//! where all three are missing.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::{Authority, Uri};
use axum::http::{HeaderMap, Method, Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use sha2::{Digest, Sha256};

use crate::connections::Connection;
use crate::cors::Cors;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::log::set_account;
use crate::rate::{Account, Limits, Owner, Quota, Rate};

/// What requests must have.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Those who may ask; nobody in particular where there are no keys.
    clients: Vec<Client>,
    /// Whether the `Host` header must name this machine.
    only_local_names: bool,
    /// Pages of other sites that may ask.
    pub cors: Cors,
}

/// Who has a key, or everybody.
#[derive(Debug)]
struct Client {
    /// SHA-256 of the key; `None` if everybody may ask.
    key: Option<[u8; 32]>,
    rate: Option<Rate>,
    account: Arc<Account>,
}

impl Guard {
    /// Checks for one of these keys, if there are any. The limits hold for each key.
    pub fn new(keys: &[String], limits: Limits, is_loopback: bool) -> Self {
        let now = Instant::now();
        let client = |key: Option<[u8; 32]>| Client {
            key,
            rate: limits.requests_per_minute.map(|n| Rate::new(n, now)),
            account: Arc::new(Account {
                owner: key.map_or_else(Owner::default, |key| owner(&key)),
                quota: limits.tokens_per_day.map(|n| Quota::new(n, now)),
            }),
        };
        let hash = |key: &String| Some(Sha256::digest(key.trim()).into());
        let clients = match keys {
            [] => vec![client(None)],
            keys => keys.iter().map(|key| client(hash(key))).collect(),
        };
        Self {
            clients,
            only_local_names: is_loopback,
            cors: Cors::default(),
        }
    }

    fn check(&self, uri: &Uri, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
        self.check_host(uri, headers)?;
        let is_post = *method == Method::POST;
        if !is_open(uri.path(), method) {
            let client = self.client(headers)?;
            set_account(&client.account);
            // Whoever only looks costs nothing.
            if is_post {
                client.check(Instant::now())?;
            }
        }
        if is_post {
            check_type(headers, uri.path())?;
        }
        Ok(())
    }

    fn asks_for_key(&self) -> bool {
        self.clients.iter().all(|client| client.key.is_some())
    }

    /// A request may also name the host in its first line.
    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let in_headers = headers.get_all(header::HOST).iter();
        let mut hosts: Vec<&str> = in_headers.map(|h| h.to_str().unwrap_or("")).collect();
        if hosts.len() != 1 {
            let found = hosts.len();
            let message = format!("expected one Host header, found {found}");
            return Err(ApiError::invalid(message));
        }
        hosts.extend(uri.authority().map(Authority::as_str));
        if !self.only_local_names || hosts.into_iter().all(is_local) {
            return Ok(());
        }
        let message = "expected a Host header that names this machine (localhost, 127.0.0.1 or \
                       [::1]), found another name";
        Err(ApiError::new(StatusCode::FORBIDDEN, message))
    }

    /// Whose key a request has.
    fn client(&self, headers: &HeaderMap) -> Result<&Client, ApiError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text("authorization").and_then(|value| {
            let (scheme, key) = value.trim().split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key)
        });
        // Clients of Anthropic's API send the key in a header of its own.
        let given = bearer.or_else(|| text("x-api-key"));
        let found = given.unwrap_or_default();
        let found = Sha256::digest(found.trim()).into();
        // All are compared, so that the time does not tell which one fits.
        let fitting = self.clients.iter().fold(None, |fitting, client| {
            let fits = client.key.is_none_or(|key| is_equal(&key, &found));
            if fits { Some(client) } else { fitting }
        });
        if let Some(client) = fitting {
            return Ok(client);
        }
        let message = match given {
            Some(_) => "the API key is none that this server was started with",
            None => "expected the header Authorization: Bearer KEY, found none",
        };
        Err(ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key"))
    }
}

impl Client {
    /// Counts a request, whose tokens will be counted too.
    fn check(&self, now: Instant) -> Result<(), ApiError> {
        if let Some(quota) = &self.account.quota {
            quota.check(now)?;
        }
        self.rate.as_ref().map_or(Ok(()), |rate| rate.take(now))
    }
}

/// Whoever has a key of this hash. It is the same after the next start, because prompts are kept on
/// disks.
fn owner(key: &[u8; 32]) -> Owner {
    let hash = Sha256::new_with_prefix("owner").chain_update(key);
    let hash: [u8; 32] = hash.finalize().into();
    let [a, b, c, d, e, f, g, h, ..] = hash;
    Owner(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

/// Compares hashes in a time that does not depend on where they differ.
fn is_equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let differing = a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(differing) == 0
}

/// Whether a `Host` header names this machine, with any port.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let is_name = name.eq_ignore_ascii_case("localhost");
    let ip = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    let ip = ip.unwrap_or(name).parse::<std::net::IpAddr>();
    is_name || ip.is_ok_and(|ip| ip.is_loopback())
}

/// Whether a route needs no key: whoever watches the server has none, and the page asks for it.
fn is_open(path: &str, method: &Method) -> bool {
    let is_page = path == "/" || path.starts_with("/page/");
    matches!(path, "/health" | "/ready") || is_page && matches!(*method, Method::GET | Method::HEAD)
}

/// Types of bodies, beside none, that a page can send to another site unasked, and that clients
/// declare whose bodies are JSON.
const FORM_TYPES: &[&str] = &["application/x-www-form-urlencoded", "text/plain"];

/// Headers of which browsers send at least one with each POST of a page.
const OF_PAGES: &[&str] = &["origin", "referer", "sec-fetch-site"];

/// The type of most bodies.
pub(crate) const JSON: &str = "application/json";

/// The type of the bodies of a route.
pub(crate) fn body_type(path: &str) -> &'static str {
    match path {
        "/audit" => "application/zip",
        _ => JSON,
    }
}

/// An archive is not what a page of another site can send unasked either.
fn check_type(headers: &HeaderMap, path: &str) -> Result<(), ApiError> {
    let expected = body_type(path);
    let given = headers.get(header::CONTENT_TYPE);
    let given = given.map(|value| value.to_str().unwrap_or("other bytes"));
    let kind = given.map(|given| given.split(';').next().unwrap_or_default().trim());
    let is = |expected: &str| kind.is_some_and(|kind| kind.eq_ignore_ascii_case(expected));
    if is(expected) {
        return Ok(());
    }
    let is_undeclared = kind.is_none() || FORM_TYPES.iter().any(|kind| is(kind));
    let of_page = OF_PAGES.iter().find(|name| headers.contains_key(**name));
    if expected == JSON && is_undeclared && of_page.is_none() {
        return Ok(());
    }
    let given = given.unwrap_or("none");
    let mut message = format!("expected the header Content-Type: {expected}, found {given}");
    if let Some(name) = of_page.filter(|_| is_undeclared) {
        message = format!("{message} in a request that has the header {name}, as a page's has");
    }
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Lets requests pass that have what is needed, and shows errors as the API of the path does.
pub(crate) async fn guard(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let headers = request.headers();
    let is_host = guard.check_host(request.uri(), headers).is_ok();
    let origin = guard.cors.allowed(headers).filter(|_| is_host);
    if let Some(answer) = guard.cors.preflight(&request, origin.as_ref()) {
        return answer;
    }
    let checked = guard.check(request.uri(), request.method(), headers);
    if let Some(connection) = request.extensions().get::<Arc<Connection>>()
        && checked.is_ok()
        && guard.asks_for_key()
        && !is_open(request.uri().path(), request.method())
    {
        connection.note_key();
    }
    let dialect = Dialect::of(request.uri().path());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    let is_shown = response.extensions().get::<ApiError>().is_some();
    if response.status().is_client_error() && !is_shown {
        // The router itself refuses a path that it cannot decode.
        response = ApiError::invalid("expected a path of UTF-8, found other bytes").into_response();
    }
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        *response.status_mut() = dialect.status(&error);
        *response.body_mut() = Body::from(dialect.error(&error).to_string());
    }
    guard.cors.mark(response.headers_mut(), origin);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_local() {
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:8080",
            "127.1.2.3",
            "[::1]:8080",
            "[::1]",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "",
            "example.com",
            "localhost.example.com:80",
            "127.0.0.1.nip.io",
            "10.0.0.1:80",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn a_key_is_asked_for_where_there_is_one() {
        let headers = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            headers
        };
        let guard = Guard::new(
            &["other".to_owned(), "secret".to_owned()],
            Limits::default(),
            false,
        );
        for value in [
            "Bearer secret",
            "bearer other",
            "BEARER  secret ",
            " bEaReR secret",
        ] {
            assert!(guard.client(&headers(value)).is_ok(), "{value}");
        }
        for value in [
            "Bearer Secret",
            "Bearer",
            "Bearersecret",
            "Bearer secret other",
            "secret",
            "Basic secret",
            "Bearer secret2",
        ] {
            let error = guard.client(&headers(value)).unwrap_err();
            let response = error.into_response();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{value}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", "secret".parse().unwrap());
        guard.client(&headers).unwrap();
        guard.client(&HeaderMap::new()).unwrap_err();
        Guard::new(&[], Limits::default(), false)
            .client(&HeaderMap::new())
            .unwrap();
    }
}
