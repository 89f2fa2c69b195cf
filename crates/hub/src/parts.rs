//! What a server says of a file, and which of several answers are of one version of it.

use ureq::Body;
use ureq::http::{HeaderMap, Response};

use crate::error::HubError;

/// What the server says about a file before the download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    pub url: String,
    pub etag: String,
    /// The strong validator of the server that sends the bytes: its ETag with quotes. `None` if
    /// the server that named the ETag redirects to another one.
    pub validator: Option<String>,
    pub bytes: Option<u64>,
    pub commit: Option<String>,
    /// Most bytes, where the length is not known.
    pub limit: Option<u64>,
}

impl Remote {
    /// The hash in the ETag: large files have their sha256, small files git's hash of their
    /// content.
    pub fn sum(&self) -> Option<Sum> {
        Sum::of_etag(&self.etag)
    }
}

/// The hash that the bytes of a file must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sum {
    /// sha256, hexadecimal.
    Sha256(String),
    /// sha1 of `blob LENGTH\0` and the bytes, as git computes it. Mirrors that make their own ETags
    /// use the sha1 of the bytes alone.
    Git(String),
}

impl Sum {
    /// Parses an ETag; `None` if it is no hash.
    pub fn of_etag(etag: &str) -> Option<Self> {
        let is_hex = etag.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match etag.len() {
            64 if is_hex => Some(Self::Sha256(etag.to_owned())),
            40 if is_hex => Some(Self::Git(etag.to_owned())),
            _ => None,
        }
    }
}

/// Why the bytes of several answers are bytes of one file (RFC 9110, 15.3.7.3).
pub enum Joins {
    /// The hash of the whole file is compared in the end.
    Hash,
    /// All answers have this strong validator; `None` if the server gave none yet.
    Validator(Option<String>),
}

/// The rest of a file that is asked for.
#[derive(Clone, Copy)]
pub struct Rest<'a> {
    pub from: u64,
    /// The whole file is asked for instead if it has another strong validator.
    pub validator: Option<&'a str>,
}

/// Whether the bytes of an answer may follow those that are there: whether it has the whole file,
/// or the rest of the same file. An error that a further attempt without a range can mend is
/// transient.
pub fn joined(response: &Response<Body>, remote: &Remote, rest: Rest) -> Result<(), HubError> {
    let found = strong_etag(response.headers());
    if response.status() != 206 {
        return match (&remote.validator, found) {
            (Some(expected), Some(found)) if rest.validator.is_some() && *expected != found => {
                Err(HubError::BadAnswer {
                    url: remote.url.clone(),
                    why: format!(
                        "the file has changed: expected ETag {expected}, found {found}; pull again"
                    ),
                })
            }
            _ => Ok(()),
        };
    }
    let range = text(response.headers(), "content-range").unwrap_or_default();
    let (start, total) = content_range(&range).unwrap_or_default();
    if rest.from == 0 || start != Some(rest.from) {
        let why = format!("asked for byte {}, got another place", rest.from);
        return Err(HubError::BadAnswer {
            url: remote.url.clone(),
            why,
        });
    }
    let differs = match (total, remote.bytes) {
        (Some(total), Some(bytes)) if total != bytes => {
            Some(format!("expected {bytes} bytes of the file, found {total}"))
        }
        _ => None,
    };
    let differs = differs.or_else(|| match (rest.validator, found) {
        (Some(expected), found) if found.as_deref() != Some(expected) => {
            let found = found.unwrap_or_else(|| "none".to_owned());
            Some(format!("expected ETag {expected}, found {found}"))
        }
        _ => None,
    });
    differs.map_or(Ok(()), |differs| {
        let why = format!("the rest of the file is of another version: {differs}");
        Err(unreachable(&remote.url, &why, true))
    })
}

/// The first byte and the length of the whole file, of `bytes 5-9/10` or `bytes 5-9/*`.
fn content_range(value: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok(), total.trim().parse().ok()))
}

/// The ETag, with its quotes, if it is a strong validator (RFC 9110, 8.8.3).
pub fn strong_etag(headers: &HeaderMap) -> Option<String> {
    text(headers, "etag").filter(|etag| etag.starts_with('"'))
}

/// The address without its query, which carries secrets in signed addresses.
pub fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

/// A header, if it is text.
pub fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
}

/// A header that is a number.
pub fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name).and_then(|value| value.parse().ok())
}

/// The failure of a server to send what was asked for; a transient one may succeed next time.
pub fn unreachable(url: &str, reason: &str, transient: bool) -> HubError {
    HubError::Unreachable {
        url: without_query(url).to_owned(),
        reason: reason.to_owned(),
        transient,
    }
}

/// The path and query of the page that a `Link` header calls the next one; `None` if this is the
/// last. The host is not taken: pages come from the endpoint that was asked.
pub fn next_page(link: &str) -> Result<Option<String>, String> {
    let mut links = link.split(',').filter_map(|one| one.split_once(';'));
    let Some((url, _)) = links.find(|(_, rest)| rest.contains("rel=\"next\"")) else {
        return Ok(None);
    };
    let url = url.trim().trim_start_matches('<').trim_end_matches('>');
    match url.find("/api/models/") {
        Some(from) => Ok(Some(url[from..].to_owned())),
        None => Err(format!(
            "expected a next page below /api/models/, found {url}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_say_where_they_begin_and_how_long_the_file_is() {
        for (value, expected) in [
            ("bytes 5-9/10", Some((Some(5), Some(10)))),
            ("bytes 5-9/*", Some((Some(5), None))),
            ("bytes */10", None),
            ("bytes 5-9", None),
            ("5-9/10", None),
        ] {
            assert_eq!(content_range(value), expected, "{value}");
        }
    }

    #[test]
    fn weak_validators_do_not_count() {
        for (etag, expected) in [("\"a\"", true), ("W/\"a\"", false), ("a", false)] {
            let mut headers = HeaderMap::new();
            headers.insert("etag", etag.parse().unwrap());
            assert_eq!(strong_etag(&headers).is_some(), expected, "{etag}");
        }
    }

    #[test]
    fn the_next_page_is_a_path_of_the_endpoint() {
        let want = "/api/models/o/n/tree/main?cursor=a%3D";
        for link in [
            format!("<https://huggingface.co{want}>; rel=\"next\""),
            format!("<{want}>; rel=\"next\""),
            format!("<http://h/api/x>; rel=\"prev\", <http://evil:80{want}>; rel=\"next\""),
        ] {
            assert_eq!(next_page(&link), Ok(Some(want.to_owned())), "{link}");
        }
        assert_eq!(next_page(""), Ok(None));
        assert_eq!(next_page("<http://h/x>; rel=\"prev\""), Ok(None));
        assert!(next_page("<http://h/x>; rel=\"next\"").is_err());
    }
}
