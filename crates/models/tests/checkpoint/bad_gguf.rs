//! GGUF files that are rejected, each with its message.

use std::fs;

use thane_mil::data::Bytes;
use thane_models::checkpoint::gguf;

use super::builder::{Folder, GgufFile, array, assert_says, string};

/// Asserts that the file is rejected with a message that contains each part.
fn refused(file: &GgufFile, parts: &[&str]) {
    let message = file
        .parse()
        .expect_err("the file should be refused")
        .to_string();
    assert_says(&message, parts);
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let whole = GgufFile::good().bytes();
    let folder = Folder::new();
    for step in 0..50 {
        let len = whole.len() * step / 50;
        fs::write(folder.path("model.gguf"), &whole[..len]).unwrap();
        let message = folder
            .open("model.gguf")
            .expect_err("truncated")
            .to_string();
        assert_says(&message, &["model.gguf: ", "fetch it again"]);
    }
    for len in 0..whole.len() {
        assert!(
            gguf::parse(&Bytes::new(whole[..len].to_vec())).is_err(),
            "truncated at {len}"
        );
    }
}

#[test]
fn a_file_with_one_byte_changed_never_panics() {
    let whole = GgufFile::good().bytes();
    let mut read = 0;
    for at in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] ^= flip;
            if let Ok((gguf, tensors)) = gguf::parse(&Bytes::new(changed)) {
                for key in gguf.metadata.keys() {
                    let _ = (
                        gguf.u32(key),
                        gguf.f32(key),
                        gguf.str(key),
                        gguf.strings(key),
                        gguf.i32s(key),
                    );
                }
                read += tensors.len();
            }
        }
    }
    assert!(
        read > 0,
        "changes in the data leave a file that can be read"
    );
}

#[test]
fn truncation_says_what_and_where() {
    let whole = GgufFile::good().bytes();
    for (len, parts) in [
        (2, &["ends within the magic"][..]),
        (
            6,
            &["version at offset 4 needs 4 bytes", "only 2 bytes are left"],
        ),
        (
            20,
            &["metadata count at offset 16", "only 4 bytes are left"],
        ),
        (40, &["metadata count at offset 16 is 4"]),
        (
            whole.len() - 1,
            &[
                "\"output_norm.weight\"",
                "(1 of 3 tensors reach past the end)",
                "truncated",
            ],
        ),
        (
            whole.len() - 150,
            &["(3 of 3 tensors reach past the end)", "truncated"],
        ),
    ] {
        let message = gguf::parse(&Bytes::new(whole[..len].to_vec()))
            .unwrap_err()
            .to_string();
        assert_says(&message, parts);
    }
}

#[test]
fn a_wrong_magic_is_told_by_its_looks() {
    let zip = [&b"PK\x03\x04"[..], &[0; 60]].concat();
    let safetensors = [&16_u64.to_le_bytes()[..], b"{\"a\":{\"dtype\":1}"].concat();
    for (content, looks_like) in [
        (&b""[..], "empty"),
        (b"GG", "ends within the magic"),
        (&zip, "zip archive"),
        (
            b"\x08\x08\x12\x07pytorch\x1a\x052.6.0:".as_slice(),
            "an ONNX model, which",
        ),
        (b"\x08\x0a:\xf0\x7e\x0a\x10", "an ONNX model, which"),
        (&safetensors, "safetensors file"),
        (b"<!DOCTYPE html><html>", "HTML page"),
        (b"\n <html lang=\"en\">", "HTML page"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
            "is a Git LFS pointer",
        ),
        (b"tjgg\x01\x00\x00\x00", "GGML file from before GGUF"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x80\x02}q\x00", "Python pickle"),
        (&[0; 64], "zeros only"),
        (b"{\"hidden_size\": 4}", "JSON"),
        (b"\xde\xad\xbe\xef", "the bytes de ad be ef"),
    ] {
        let folder = Folder::new().with("model.gguf", content);
        let message = folder.open("model.gguf").unwrap_err().to_string();
        assert_says(&message, &["model.gguf: not a GGUF file: ", looks_like]);
    }
}

#[test]
fn versions_and_byte_orders_that_are_not_read_are_refused() {
    refused(
        &GgufFile {
            version: 1,
            ..GgufFile::good()
        },
        &["found 1", "version 2 or 3", "convert"],
    );
    refused(
        &GgufFile {
            version: 4,
            ..GgufFile::good()
        },
        &["found 4"],
    );
    refused(
        &GgufFile {
            version: 3_u32.swap_bytes(),
            ..GgufFile::good()
        },
        &["version 3", "big-endian", "convert"],
    );
}

#[test]
fn absurd_counts_are_refused_before_anything_is_allocated() {
    for count in [1 << 20, 1 << 40, u64::MAX / 13, u64::MAX] {
        let count_text = format!("is {count}");
        let file = GgufFile {
            tensor_count: Some(count),
            ..GgufFile::good()
        };
        refused(
            &file,
            &[
                "tensor count at offset 8",
                &count_text,
                "at least 24 bytes each",
            ],
        );
        let file = GgufFile {
            entry_count: Some(count),
            ..GgufFile::good()
        };
        refused(
            &file,
            &[
                "metadata count at offset 16",
                &count_text,
                "at least 13 bytes each",
            ],
        );
        for (type_id, min_bytes) in [(0, 1), (4, 4), (8, 8), (9, 12), (12, 8)] {
            let file = GgufFile::default().entry("a", 9, &array(type_id, count, &[0; 64]));
            let parts = [
                "array length of \"a\"",
                &count_text,
                &format!("at least {min_bytes} bytes"),
            ];
            refused(&file, &parts);
        }
        refused(
            &GgufFile::default().entry("a", 8, &count.to_le_bytes()),
            &["value of \"a\"", &format!("needs {count} bytes")],
        );
    }
    refused(
        &GgufFile {
            entry_count: Some(9),
            ..GgufFile::good()
        },
        &["offset"],
    );
}

#[test]
fn a_long_or_broken_name_is_refused() {
    refused(
        &GgufFile::default().entry(&"k".repeat(70000), 7, &[1]),
        &["metadata key at offset 24", "found 70000"],
    );
    let mut file = GgufFile::good().bytes();
    file[24 + 8] = 0xff; // the first byte of the first key
    let message = gguf::parse(&Bytes::new(file)).unwrap_err().to_string();
    assert_says(&message, &["metadata key at offset 24", "UTF-8"]);
}

#[test]
fn metadata_of_no_known_form_is_refused() {
    refused(
        &GgufFile::default().entry("a", 13, &[0; 8]),
        &[
            "\"a\"",
            "at offset 33: expected a value type from 0 to 12, found 13",
        ],
    );
    refused(
        &GgufFile::default().entry("a", 9, &array(99, 0, &[])),
        &["\"a\"", "found 99"],
    );
    refused(
        &GgufFile::default().entry("a", 7, &[2]),
        &[
            "\"a\"",
            "at offset 37: expected a bool of 0 or 1, found the byte 2",
        ],
    );
    refused(
        &GgufFile::default().entry("a", 9, &array(7, 3, &[0, 1, 7])),
        &["\"a\"", "found the byte 7"],
    );
    refused(
        &GgufFile::default().entry("a", 7, &[1]).entry("a", 7, &[0]),
        &["key \"a\" is repeated at offset 38"],
    );
    let deep = (0..100).fold(array(0, 1, &[1]), |inner, _| array(9, 1, &inner));
    refused(
        &GgufFile::default().entry("a", 9, &deep),
        &["\"a\"", "deeper than 4 levels"],
    );
}

#[test]
fn an_alignment_that_is_none_is_refused() {
    for alignment in [0_u32, 1, 4, 24, 33] {
        let file = GgufFile::default().entry("general.alignment", 4, &alignment.to_le_bytes());
        refused(
            &file,
            &[
                "general.alignment",
                &format!("found {alignment}:"),
                "power of two",
            ],
        );
    }
    refused(
        &GgufFile::default().entry("general.alignment", 8, &string(b"32")),
        &["general.alignment", "found string"],
    );
    let far = GgufFile::default()
        .entry("general.alignment", 10, &(1_u64 << 63).to_le_bytes())
        .tensor("t", &[1], 0, &[0; 4]);
    refused(&far, &["past the end"]);
}

#[test]
fn a_part_of_a_split_model_is_refused() {
    let file = GgufFile::good().entry("split.count", 2, &3_u16.to_le_bytes());
    refused(&file, &["split in 3", "--merge"]);
    GgufFile::good()
        .entry("split.count", 2, &1_u16.to_le_bytes())
        .parse()
        .unwrap();
}

#[test]
fn tensors_outside_the_data_are_refused() {
    for offset in [1 << 20, 1 << 40, u64::MAX - 31] {
        let file = GgufFile::good().tensor_at("stray", &[8], 0, offset);
        refused(
            &file,
            &[
                "\"stray\"",
                "the file ends at",
                "(1 of 4 tensors reach past the end)",
            ],
        );
    }
    let file = GgufFile::good().tensor_at("stray", &[1 << 40], 0, 0);
    refused(&file, &["\"stray\"", "past the end"]);
    let file = GgufFile::good().tensor_at("askew", &[1], 0, 16);
    refused(&file, &["\"askew\"", "data offset 16", "alignment 32"]);
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let file = GgufFile::good().tensor_at("second", &[4], 0, 32);
    refused(
        &file,
        &["\"token_embd.weight\" and \"second\" overlap at offset"],
    );
    let twice = GgufFile::default()
        .tensor("a", &[8], 0, &[0; 32])
        .tensor_at("b", &[8], 0, 0);
    refused(&twice, &["overlap at offset"]);
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    refused(
        &GgufFile::default().tensor_at("t", &[1; 5], 0, 0),
        &["\"t\"", "at most 4 dimensions", "found 5"],
    );
    refused(
        &GgufFile::default().tensor_at("t", &[1 << 32; 4], 0, 0),
        &["\"t\"", "number of elements overflows"],
    );
    refused(
        &GgufFile::default().tensor_at("t", &[u64::MAX], 0, 0),
        &["\"t\"", "number of elements overflows"],
    );
    refused(
        &GgufFile::default().tensor_at("t", &[33, 32], 2, 0),
        &["\"t\"", "Q4_0", "rows of 33", "block length 32"],
    );
    refused(
        &GgufFile::default().tensor_at("t", &[128, 2], 12, 0),
        &["\"t\"", "Q4_K", "block length 256"],
    );
    let twice = GgufFile::default()
        .tensor("t", &[1], 0, &[0; 4])
        .tensor("t", &[1], 0, &[0; 4]);
    refused(&twice, &["tensor \"t\" is repeated at offset"]);
}

#[test]
fn types_that_are_not_read_are_all_listed() {
    let names = [
        (9, "Q8_1"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (34, "TQ1_0"),
        (40, "NVFP4"),
        (77, "unknown type 77"),
    ];
    for (type_id, name) in names {
        let file = GgufFile::good()
            .tensor_at("first", &[256], type_id, 0)
            .tensor_at("second", &[256], type_id, 0)
            .tensor_at("other", &[256], 21, 0);
        refused(
            &file,
            &[
                name,
                ": first, second",
                "IQ3_S (type 21): other",
                "not supported",
                "Q8_0",
            ],
        );
    }
}
