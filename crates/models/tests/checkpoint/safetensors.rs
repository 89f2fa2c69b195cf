//! Valid safetensors headers, and invalid ones with their messages.

use thane_mil::data::Bytes;
use thane_models::checkpoint::TensorType;
use thane_models::checkpoint::safetensors::{self, Safetensors, SafetensorsError};

use super::builder::{assert_says, safetensors_file};

fn parse(file: Vec<u8>) -> Result<Safetensors, SafetensorsError> {
    safetensors::parse(&Bytes::new(file))
}

/// One member of a header.
fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

#[test]
fn a_file_is_read() {
    let entries = [
        entry("b", "F16", "[2,3]", 4, 16),
        entry("a", "I32", "[]", 0, 4),
    ];
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt"}},{}}}   "#,
        entries.join(",")
    );
    let parsed = parse(safetensors_file(&header, 16)).unwrap();
    assert_eq!(parsed.metadata["format"], "pt");
    let (a, b) = (&parsed.tensors["a"], &parsed.tensors["b"]);
    assert_eq!(
        (a.ty, a.shape.len(), a.bytes.as_slice()),
        (TensorType::I32, 0, &[0, 1, 2, 3][..])
    );
    assert_eq!(
        (b.ty, &b.shape[..], b.bytes.as_slice()[0]),
        (TensorType::F16, &[2, 3][..], 4)
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are cases")]
fn bad_headers_are_refused() {
    let of = |entries: &[String], data_len| {
        safetensors_file(&format!("{{{}}}", entries.join(",")), data_len)
    };
    let two = |start, end, data_len| {
        of(
            &[
                entry("a", "F32", "[1]", 0, 4),
                entry("b", "F32", "[1]", start, end),
            ],
            data_len,
        )
    };
    let absurd = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let long = [&(1_u64 << 26).to_le_bytes()[..], b"{}"].concat();
    for (file, parts) in [
        (vec![1, 2, 3], &["found a file of 3", "fetch it again"][..]),
        (
            b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
            &["is a Git LFS pointer"],
        ),
        (b"<!doctype html><html></html>".to_vec(), &["HTML page"]),
        (absurd, &["found 18446744073709551615", "100000000"]),
        (long, &["should end at file offset 67108872", "ends at 10"]),
        (safetensors_file("{\"a\":", 4), &["line 1 column 5", "EOF"]),
        (
            safetensors_file("{\"a\":1}", 4),
            &["line 1 column 6", "invalid type"],
        ),
        (safetensors_file("{} x", 0), &["trailing characters"]),
        (
            safetensors_file("{\"\u{e9}\":{}}", 0),
            &["missing field `dtype`"],
        ),
        (
            of(
                &[
                    entry("a", "F32", "[1]", 0, 4),
                    entry("a", "F32", "[1]", 4, 8),
                ],
                8,
            ),
            &["key \"a\" is repeated"],
        ),
        (of(&[entry("a", "F32", "[-1]", 0, 4)], 4), &["line 1", "-1"]),
        (
            of(&[entry("a", "F32", "[2]", 0, 4)], 4),
            &["\"a\"", "F32", "[2]", "expected 8 bytes, found 4"],
        ),
        (
            of(&[entry("a", "F32", "[1]", 4, 0)], 4),
            &[
                "\"a\"",
                "start offset 4 after its end offset 0",
                "after its end offset",
            ],
        ),
        (
            of(&[entry("a", "F32", "[4294967296,4294967296,2]", 0, 4)], 4),
            &["\"a\"", "number of elements overflows"],
        ),
        (
            two(4, 8, 7),
            &["\"b\" ends at data offset 8", "data ends at 7", "truncated"],
        ),
        (two(2, 6, 8), &["\"b\" overlaps", "data offset 2"]),
        (
            two(6, 10, 10),
            &["hole of 2 bytes before tensor \"b\"", "offset 6"],
        ),
        (
            two(4, 8, 9),
            &["ends at data offset 8 but 1 more bytes follow"],
        ),
        (
            two(u64::MAX - 3, u64::MAX, 9),
            &["expected 4 bytes, found 3"],
        ),
        (
            two(u64::MAX - 4, u64::MAX, 9),
            &["\"b\" ends at data offset 18446744073709551615"],
        ),
    ] {
        let message = parse(file)
            .expect_err("the file should be refused")
            .to_string();
        assert_says(&message, parts);
    }
}

#[test]
fn types_that_are_not_read_are_all_listed() {
    let entries = [
        entry("a", "F8_E8M0", "[4]", 0, 4),
        entry("b", "F32", "[1]", 4, 8),
        entry("c", "F8_E8M0", "[1]", 8, 9),
    ];
    let message = parse(safetensors_file(&format!("{{{}}}", entries.join(",")), 9))
        .unwrap_err()
        .to_string();
    assert_says(&message, &["F8_E8M0: a, c", "not supported", "BF16"]);
}

#[test]
fn a_header_with_one_byte_changed_never_panics() {
    let header = format!("{{{}}}", entry("a", "F16", "[2,3]", 0, 12));
    let whole = safetensors_file(&header, 12);
    let mut refused = 0;
    for at in 0..whole.len() {
        for flip in [0x01, 0x10, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] ^= flip;
            refused += usize::from(parse(changed).is_err());
        }
    }
    assert!(
        refused > 100,
        "most changes to a header are found, {refused} were"
    );
}
