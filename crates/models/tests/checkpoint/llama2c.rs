//! Files of llama2.c: how they are recognized, and which are rejected.

use std::fs;
use std::path::{Path, PathBuf};

use thane_models::checkpoint::llama2c::{Llama2cToken, read_tokenizer};
use thane_models::checkpoint::{Checkpoint, TensorType};
use thane_models::{Options, build};

use super::builder::{Folder, assert_says};

fn model(name: &str) -> PathBuf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny");
    models.join(name).join("model.bin")
}

fn refusal(file: &[u8]) -> String {
    let folder = Folder::new().with("stories.bin", file);
    folder.open("stories.bin").unwrap_err().to_string()
}

#[test]
fn a_file_and_its_folder_are_opened() {
    for (name, ty, is_noted) in [
        ("llama2c-v0", TensorType::F32, false),
        ("llama2c-v0-head", TensorType::F32, false),
        ("llama2c-v1", TensorType::F32, false),
        ("llama2c-v2", TensorType::I8, true),
    ] {
        let path = model(name);
        for path in [path.as_path(), path.parent().unwrap()] {
            let checkpoint = Checkpoint::open(path).unwrap();
            let table = &checkpoint.tensors["model.embed_tokens.weight"];
            assert_eq!(table.ty, ty, "{name}");
            assert_eq!(
                checkpoint.tensors.contains_key("lm_head.weight"),
                ["llama2c-v0-head", "llama2c-v1"].contains(&name),
            );
            let built = build(&checkpoint, &Options::default()).unwrap();
            assert_eq!(built.info.max_context, 128);
            assert_eq!(built.notes.len(), usize::from(is_noted), "{name}");
            let files = checkpoint.hugging_face().unwrap();
            assert_eq!(files.tokenizer_bin.is_some(), name == "llama2c-v2");
        }
    }
}

#[test]
fn files_of_another_length_are_refused() {
    for name in ["llama2c-v1", "llama2c-v2"] {
        let file = fs::read(model(name)).unwrap();
        for cut in [40, 300, file.len() - 1] {
            assert_says(&refusal(&file[..cut]), &["llama2.c checkpoint", "again"]);
        }
        let longer = [&file[..], &[0]].concat();
        assert_says(&refusal(&longer), &["llama2.c checkpoint", "expected"]);
    }
    // Without magic bytes, a file of another length is any file.
    let file = fs::read(model("llama2c-v0")).unwrap();
    assert_says(&refusal(&file[..file.len() - 4]), &["not a GGUF file"]);
}

#[test]
fn headers_that_are_not_those_of_a_model_are_refused() {
    let file = fs::read(model("llama2c-v2")).unwrap();
    let with = |at: usize, number: i32| {
        let mut file = file.clone();
        file[at..at + 4].copy_from_slice(&number.to_le_bytes());
        refusal(&file)
    };
    assert_says(&with(4, 3), &["expected version 1 or 2, found 3"]);
    for len in [0, -16, 5] {
        assert_says(&with(37, len), &["a group size that divides 32 and 48"]);
    }
    for number in [0, -1, i32::MIN] {
        assert_says(&with(32, number), &["the sizes of a model"]);
    }
    // The last number, the context length, does not change the length of the file.
    for field in 0..6 {
        for number in [0, -1, i32::MIN, i32::MAX, 7] {
            assert_says(&with(8 + 4 * field, number), &["llama2.c checkpoint"]);
        }
    }
}

/// The vocabulary that these bytes hold, read from a file.
fn tokens(file: &[u8], n_tokens: usize) -> Result<Vec<Llama2cToken>, String> {
    let folder = Folder::new().with("tokenizer.bin", file);
    read_tokenizer(&folder.path("tokenizer.bin"), n_tokens).map_err(|e| e.to_string())
}

fn vocabulary(tokens: &[(&str, f32)]) -> Vec<u8> {
    let longest = tokens.iter().map(|(text, _)| text.len()).max().unwrap_or(0);
    let mut file = (longest as u32).to_le_bytes().to_vec();
    for (text, score) in tokens {
        file.extend(score.to_le_bytes());
        file.extend((text.len() as u32).to_le_bytes());
        file.extend(text.as_bytes());
    }
    file
}

#[test]
fn both_spellings_of_bytes_are_read() {
    for bytes in [["<0x00>", "<0x01>"], ["\0", "\u{1}"]] {
        let start = [("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0)];
        let all = [&start[..], &bytes.map(|b| (b, 0.0)), &[(" a", -1.5)]].concat();
        let found = tokens(&vocabulary(&all[..5]), 5).unwrap();
        let texts: Vec<&str> = found.iter().map(|t| t.text.as_str()).collect();
        assert_eq!(texts, ["<unk>", "<s>", "</s>", "<0x00>", "<0x01>"]);
        assert_eq!(
            found.iter().map(|t| t.kind).collect::<Vec<_>>(),
            [2, 3, 3, 6, 6]
        );
    }
}

#[test]
fn damaged_vocabularies_are_refused() {
    let good = vocabulary(&[("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0)]);
    assert!(tokens(&good, 3).is_ok());
    for cut in 0..good.len() {
        assert!(tokens(&good[..cut], 3).is_err(), "{cut}");
    }
    for (n, part) in [
        (2, "14 bytes follow the 2 tokens"),
        (4, "ends within token 3"),
    ] {
        let error = tokens(&good, n).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    let mut long = good.clone();
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(tokens(&long, 3).unwrap_err().contains("token 0"));
}
