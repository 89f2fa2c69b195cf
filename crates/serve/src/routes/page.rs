//! `GET /`: the page of the server, whose files are part of the program. The page needs no key; it
//! asks for one, and sends it with what it requests.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderValue, Response, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use thane_audit::format::html;

use crate::error::{Answered, ApiError};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the page: name, type, content.
type File = (&'static str, &'static str, &'static str);

const FILES: [File; 11] = [
    ("index.html", HTML, include_str!("../page/index.html")),
    ("style.css", CSS, include_str!("../page/style.css")),
    ("main.js", SCRIPT, include_str!("../page/main.js")),
    ("api.js", SCRIPT, include_str!("../page/api.js")),
    ("chat.js", SCRIPT, include_str!("../page/chat.js")),
    ("markdown.js", SCRIPT, include_str!("../page/markdown.js")),
    ("embed.js", SCRIPT, include_str!("../page/embed.js")),
    ("audit.js", SCRIPT, include_str!("../page/audit.js")),
    ("zip.js", SCRIPT, include_str!("../page/zip.js")),
    ("status.js", SCRIPT, include_str!("../page/status.js")),
    ("chart.js", SCRIPT, include_str!("../page/chart.js")),
];

/// Nothing but what this server sends. The report of an audit has an inline style sheet and script,
/// which are allowed by their hashes; it is shown in a frame without an origin.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let (style, script) = (hash(html::STYLE), hash(html::SCRIPT));
    let policy = format!(
        "default-src 'none'; script-src 'self' {script}; style-src 'self' {style}; \
         connect-src 'self'; img-src 'self' data:; frame-src blob:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).ok()
});

pub(super) async fn index() -> Response<Body> {
    response(&FILES[0])
}

pub(super) async fn file(Path(name): Path<String>) -> Answered {
    let file = FILES.iter().find(|(known, ..)| *known == name);
    let missing = || ApiError::new(StatusCode::NOT_FOUND, "the page has no such file");
    file.map(response).ok_or_else(missing)
}

fn response((_, kind, content): &File) -> Response<Body> {
    let mut response = Response::new(Body::from(*content));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::X_CONTENT_TYPE_OPTIONS, &"nosniff"),
        (header::REFERRER_POLICY, &"no-referrer"),
        // Another version of the program may have the port next.
        (header::CACHE_CONTROL, &"no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let policy = POLICY
        .clone()
        .unwrap_or(HeaderValue::from_static("default-src 'none'"));
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}
