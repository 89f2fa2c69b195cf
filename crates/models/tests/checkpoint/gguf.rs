//! Valid GGUF files: both versions, tensors, getters.

use thane_blocks::BlockType;
use thane_models::checkpoint::TensorType;
use thane_models::checkpoint::gguf::Value;

use super::builder::{Folder, GgufFile, array, assert_says, string, strings};

#[test]
fn versions_2_and_3_are_read() {
    for version in [2, 3] {
        let file = GgufFile {
            version,
            ..GgufFile::good()
        };
        let folder = Folder::new().with("model.gguf", file.bytes());
        let checkpoint = folder.open("model.gguf").unwrap();
        let gguf = checkpoint.gguf().unwrap();
        assert_eq!(gguf.version, version);
        assert_eq!(gguf.str("general.architecture").unwrap(), "llama");
        assert_eq!(gguf.u32("llama.block_count").unwrap(), 2);
        assert_eq!(gguf.f32("llama.rope.freq_base").unwrap(), 10000.0);
        assert_eq!(
            gguf.strings("tokenizer.ggml.tokens").unwrap(),
            ["a", "bc", ""]
        );

        let names: Vec<&str> = checkpoint.tensors.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "blk.0.ffn_up.weight",
                "output_norm.weight",
                "token_embd.weight"
            ]
        );
        let up = &checkpoint.tensors["blk.0.ffn_up.weight"];
        assert_eq!(
            (up.ty, &up.shape[..], up.element_count()),
            (TensorType::Block(BlockType::Q8_0), &[2, 32][..], 64)
        );
        assert_eq!(up.bytes.as_slice(), [2; 68]);
        assert_eq!(checkpoint.tensors["token_embd.weight"].shape, [3, 4]);
        assert_eq!(
            checkpoint.tensors["output_norm.weight"].bytes.as_slice(),
            [3; 16]
        );
    }
}

#[test]
fn the_file_outlives_the_checkpoint_in_its_tensors() {
    let folder = Folder::new().with("model.gguf", GgufFile::good().bytes());
    let mut checkpoint = folder.open("model.gguf").unwrap();
    let norm = checkpoint.tensors.remove("output_norm.weight").unwrap();
    drop(checkpoint);
    assert_eq!(norm.bytes.as_slice(), [3; 16]);
}

#[test]
fn alignment_is_the_files_own() {
    let file = GgufFile {
        alignment: 64,
        ..GgufFile::default()
    }
    .entry("general.alignment", 4, &64_u32.to_le_bytes())
    .tensor("a", &[1], 0, &[1; 4])
    .tensor("b", &[1], 0, &[2; 4]);
    let (gguf, tensors) = file.parse().unwrap();
    assert_eq!(gguf.alignment, 64);
    assert_eq!(tensors["b"].bytes.as_slice(), [2; 4]);
}

#[test]
fn a_file_of_metadata_alone_is_read() {
    let (gguf, tensors) = GgufFile::default().entry("a", 7, &[1]).parse().unwrap();
    assert!(tensors.is_empty());
    assert!(gguf.bool("a").unwrap());
}

#[test]
fn scalars_and_empty_tensors_are_read() {
    let file = GgufFile::default()
        .tensor("empty", &[0, 5], 0, &[])
        .tensor("scalar", &[], 0, &[7; 4])
        .tensor("after", &[2], 0, &[8; 8]);
    let (_, tensors) = file.parse().unwrap();
    assert_eq!(
        (
            tensors["scalar"].element_count(),
            tensors["scalar"].bytes.len()
        ),
        (1, 4)
    );
    assert_eq!(
        (
            tensors["empty"].element_count(),
            tensors["empty"].shape.as_slice()
        ),
        (0, &[5, 0][..])
    );
}

#[test]
fn getters_take_any_width_and_refuse_what_does_not_fit() {
    let (gguf, _) = GgufFile::default()
        .entry("u8", 0, &[9])
        .entry("u64", 10, &9_u64.to_le_bytes())
        .entry("big", 10, &(1_u64 << 32).to_le_bytes())
        .entry("negative", 5, &(-1_i32).to_le_bytes())
        .entry("f64", 12, &0.5_f64.to_le_bytes())
        .entry("huge", 12, &1e300_f64.to_le_bytes())
        .entry("text", 8, &string(b"x"))
        .entry("mixed", 9, &strings(&[b"x"]))
        .parse()
        .unwrap();
    assert_eq!((gguf.u32("u8").unwrap(), gguf.u32("u64").unwrap()), (9, 9));
    assert_eq!(gguf.f32("f64").unwrap(), 0.5);
    assert_eq!(gguf.opt_u32("absent").unwrap(), None);
    assert_eq!(gguf.opt_str("absent").unwrap(), None);
    assert_eq!(gguf.opt_i32s("absent").unwrap(), None);
    for (message, parts) in [
        (
            gguf.u32("absent").unwrap_err(),
            ["\"absent\"", "missing", "unsigned integer"],
        ),
        (
            gguf.u32("text").unwrap_err(),
            ["\"text\"", "found string", "unsigned 32-bit integer"],
        ),
        (
            gguf.u32("big").unwrap_err(),
            ["\"big\"", "4294967296", "unsigned 32-bit integer"],
        ),
        (
            gguf.u32("negative").unwrap_err(),
            ["\"negative\"", "-1", "unsigned 32-bit integer"],
        ),
        (
            gguf.f32("huge").unwrap_err(),
            ["\"huge\"", "found 1000", "32-bit float"],
        ),
        (
            gguf.f32("u8").unwrap_err(),
            ["\"u8\"", "found uint8", "a float"],
        ),
        (
            gguf.str("mixed").unwrap_err(),
            ["\"mixed\"", "an array of 1 x string", "a string"],
        ),
        (
            gguf.f32s("mixed").unwrap_err(),
            ["\"mixed\"", "found string", "a float"],
        ),
        (
            gguf.strings("text").unwrap_err(),
            ["\"text\"", "found string", "an array of strings"],
        ),
    ] {
        assert_says(&message.to_string(), &parts);
    }
}

#[test]
fn numbers_that_are_not_finite_are_refused_when_read() {
    let floats = [1.0_f32, f32::NEG_INFINITY].map(f32::to_le_bytes).concat();
    let (gguf, _) = GgufFile::default()
        .entry("llama.rope.freq_base", 6, &f32::NAN.to_le_bytes())
        .entry("wide", 12, &f64::INFINITY.to_le_bytes())
        .entry("scores", 9, &array(6, 2, &floats))
        .parse()
        .unwrap();
    let message = gguf.f32("llama.rope.freq_base").unwrap_err().to_string();
    assert_says(&message, &["\"llama.rope.freq_base\"", "NaN", "finite"]);
    assert_says(
        &gguf.opt_f32("wide").unwrap_err().to_string(),
        &["\"wide\"", "inf", "finite"],
    );
    assert_says(
        &gguf.f32s("scores").unwrap_err().to_string(),
        &["\"scores\"", "-inf at element 1", "finite"],
    );
}

#[test]
fn strings_that_are_not_utf8_are_refused_as_text_and_given_as_bytes() {
    let (gguf, _) = GgufFile::default()
        .entry("name", 8, &string(b"\xff\xfe"))
        .entry("tokens", 9, &strings(&[b"ok", b"\xe2\x96"]))
        .parse()
        .unwrap();
    assert_says(
        &gguf.str("name").unwrap_err().to_string(),
        &["\"name\"", "UTF-8"],
    );
    assert_says(
        &gguf.strings("tokens").unwrap_err().to_string(),
        &["\"tokens\"", "UTF-8 at element 1"],
    );
    let raw: Vec<&[u8]> = gguf.opt_byte_strings("tokens").unwrap().unwrap().collect();
    assert_eq!(raw, [&b"ok"[..], b"\xe2\x96"]);
}

#[test]
fn nested_arrays_are_walked() {
    let inner = [array(0, 2, &[1, 2]), array(0, 0, &[]), array(0, 1, &[3])].concat();
    let (gguf, _) = GgufFile::default()
        .entry("a", 9, &array(9, 3, &inner))
        .parse()
        .unwrap();
    let Some(Value::Array(outer)) = gguf.value("a") else {
        panic!("not an array")
    };
    let lens: Vec<u64> = outer
        .iter()
        .map(|value| {
            if let Value::Array(inner) = value {
                inner.len()
            } else {
                99
            }
        })
        .collect();
    assert_eq!(lens, [2, 0, 1]);
}

#[test]
fn keys_that_nobody_read_are_listed() {
    let (gguf, _) = GgufFile::good().parse().unwrap();
    assert_eq!(
        gguf.unread("llama."),
        ["llama.block_count", "llama.rope.freq_base"]
    );
    gguf.u32("llama.block_count").unwrap();
    assert_eq!(gguf.unread("llama."), ["llama.rope.freq_base"]);
}
