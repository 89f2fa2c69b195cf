//! Which pages of other sites may ask, and read the answers (CORS). None may unless the user names
//! their origins. The check of the `Host` header comes first, so a page whose own name resolves to
//! this machine (DNS rebinding) gets nothing more.

use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::Uri;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

/// Methods of routes.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// Headers of answers that pages may read, beside those that all may.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, retry-after");

/// The header that answers depend on.
const ORIGIN: HeaderValue = HeaderValue::from_static("Origin");

/// Origins whose pages may ask.
#[derive(Clone, Debug, Default)]
pub struct Cors {
    origins: Vec<String>,
    allows_all: bool,
}

/// Why an origin cannot be allowed.
#[derive(Debug, thiserror::Error)]
pub enum CorsError {
    /// It is not written as browsers write it.
    #[error("expected an origin such as https://example.com, without a path, found `{0}`")]
    Origin(String),
    /// All pages would have what keys are for.
    #[error("expected origins by their names where clients need keys, found `*`")]
    AllWithKeys,
}

impl Cors {
    /// Allows pages of these origins, or of all (`*`), which is refused where clients need keys.
    pub fn new(origins: &[String], has_keys: bool) -> Result<Self, CorsError> {
        let mut cors = Self::default();
        for text in origins.iter().map(|text| text.trim()) {
            if text != "*" {
                let origin = origin(text);
                let refused = || CorsError::Origin(thane_runtime::shown_url(text));
                cors.origins.push(origin.ok_or_else(refused)?);
            } else if has_keys {
                return Err(CorsError::AllWithKeys);
            } else {
                cors.allows_all = true;
            }
        }
        Ok(cors)
    }

    /// The answer to a browser that asks whether a page of an allowed origin may send a request;
    /// `None` if that is not what is asked.
    pub(crate) fn preflight(
        &self,
        request: &Request,
        origin: Option<&HeaderValue>,
    ) -> Option<Response<Body>> {
        let (asked, origin) = (request.headers(), origin?);
        let is_asked = asked.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if *request.method() != Method::OPTIONS || !is_asked {
            return None;
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        // Clients have headers of their own, such as those of their versions.
        if let Some(names) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        headers.insert(header::VARY, ORIGIN);
        Some(response)
    }

    /// Lets a page of an allowed origin read an answer. Caches must not give one page what another
    /// one was told.
    pub(crate) fn mark(&self, headers: &mut HeaderMap, origin: Option<HeaderValue>) {
        if self.allows_all || !self.origins.is_empty() {
            headers.append(header::VARY, ORIGIN);
        }
        if let Some(origin) = origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }

    /// The origin that the answer to a request names as allowed.
    pub(crate) fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut given = headers.get_all(header::ORIGIN).iter();
        let (Some(origin), None) = (given.next(), given.next()) else {
            return None;
        };
        if self.allows_all {
            return Some(HeaderValue::from_static("*"));
        }
        let is = |own: &String| own.as_bytes() == origin.as_bytes();
        self.origins.iter().any(is).then(|| origin.clone())
    }
}

/// An origin as browsers send it: in lower case, without the port that the scheme has anyway.
fn origin(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?.as_str());
    let is_whole = text.len() == scheme.len() + "://".len() + authority.len();
    let is_plain = !authority.contains(['@', '*']) && !uri.host()?.is_empty();
    if !is_whole || !is_plain {
        return None;
    }
    let port = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => "",
    };
    let authority = authority.strip_suffix(port).unwrap_or(authority);
    Some(format!("{scheme}://{authority}").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_of_browsers() {
        for (text, expected) in [
            ("https://Example.com", Some("https://example.com")),
            ("https://example.com:443", Some("https://example.com")),
            ("http://localhost:3000", Some("http://localhost:3000")),
            ("http://[::1]:80", Some("http://[::1]")),
            ("app://obsidian.md", Some("app://obsidian.md")),
            ("https://example.com/", None),
            ("https://example.com/path", None),
            ("https://me:secret@example.com", None),
            ("https://*.example.com", None),
            ("example.com", None),
            ("null", None),
            ("", None),
        ] {
            assert_eq!(origin(text).as_deref(), expected, "{text}");
        }
        let all = ["*".to_owned()];
        assert!(Cors::new(&all, false).unwrap().allows_all);
        Cors::new(&all, true).unwrap_err();
    }
}
