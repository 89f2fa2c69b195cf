//! Which trace a request belongs to, as W3C Trace Context has it.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use axum::http::HeaderMap;

/// Longest list of other systems' values that is passed on, in bytes, as the standard asks for.
const MAX_STATE: usize = 512;

/// The span of a request in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The trace: that of the client, or a new one.
    pub trace_id: [u8; 16],
    /// The span of the request.
    pub span_id: [u8; 8],
    /// The span of the client; `None` if the request begins the trace.
    pub parent_id: Option<[u8; 8]>,
    /// What other systems say of the trace.
    pub state: String,
    /// Whether the client records its own span. Without a client's trace, it is recorded.
    pub is_sampled: bool,
    /// When the request arrived.
    pub began: SystemTime,
}

impl Trace {
    /// The span of a request with these headers. `random` makes ids that nobody can guess.
    pub(crate) fn of(headers: &HeaderMap, random: &RandomState, n: u64) -> Self {
        let id = |part: u8| random.hash_one((n, part)).to_be_bytes();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // Two of them are none.
        let is_one = headers.get_all("traceparent").iter().count() == 1;
        let parent = text("traceparent").filter(|_| is_one).and_then(parse);
        let began = SystemTime::now();
        let Some((trace_id, parent_id, is_sampled)) = parent else {
            let mut trace_id = [0; 16];
            trace_id[..8].copy_from_slice(&id(0));
            trace_id[8..].copy_from_slice(&id(1));
            return Self {
                trace_id,
                span_id: id(2),
                parent_id: None,
                state: String::new(),
                is_sampled: true,
                began,
            };
        };
        let state = text("tracestate").filter(|state| state.len() <= MAX_STATE);
        Self {
            trace_id,
            span_id: id(2),
            parent_id: Some(parent_id),
            state: state.unwrap_or_default().to_owned(),
            is_sampled,
            began,
        }
    }
}

/// Trace, span and whether it is recorded, of `00-{32 digits}-{16 digits}-{2 digits}`. Later
/// versions may have more behind it.
fn parse(header: &str) -> Option<([u8; 16], [u8; 8], bool)> {
    let mut parts = header.split('-');
    let mut next = || parts.next();
    let (version, trace, span, flags) = (next()?, next()?, next()?, next()?);
    let (version, [flags]) = (hex::<1>(version)?[0], hex::<1>(flags)?);
    if version == 0xff || version == 0 && next().is_some() {
        return None;
    }
    let (trace, span) = (hex::<16>(trace)?, hex::<8>(span)?);
    let is_valid = trace != [0; 16] && span != [0; 8];
    is_valid.then_some((trace, span, flags & 1 == 1))
}

/// The bytes of lower-case digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if text.len() != 2 * N || !text.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the standard, and what it calls invalid.
    #[test]
    fn a_parent_is_read_as_the_standard_has_it() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let span = "00f067aa0ba902b7";
        let found = parse(&format!("00-{trace}-{span}-01")).unwrap();
        assert_eq!(found.0[..3], [0x4b, 0xf9, 0x2f]);
        assert_eq!((found.1[1], found.2), (0xf0, true));
        assert!(!parse(&format!("00-{trace}-{span}-00")).unwrap().2);
        assert!(parse(&format!("cc-{trace}-{span}-01-what-comes")).is_some());
        for header in [
            String::new(),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{trace}-{span}-0x"),
            format!("0-{trace}-{span}-01"),
        ] {
            assert_eq!(parse(&header), None, "{header}");
        }
    }
}
