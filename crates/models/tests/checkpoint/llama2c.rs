//! Files of llama2.c: how they are recognized, and which are rejected.

use std::fs;
use std::path::{Path, PathBuf};

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
