//! Hugging Face folders: which files are read, and which folders are rejected.

use serde_json::json;
use thane_models::checkpoint::{CheckpointError, IndexFault};

use super::builder::{Folder, GgufFile, assert_says, safetensors_file};

/// A file of F32 tensors of one element each.
fn shard(names: &[&str]) -> Vec<u8> {
    let entries: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            format!(
                r#""{name}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}}"#,
                4 * i,
                4 * i + 4
            )
        })
        .collect();
    safetensors_file(&format!("{{{}}}", entries.join(",")), 4 * names.len())
}

fn index(weight_map: &[(&str, &str)]) -> String {
    let map: serde_json::Map<String, serde_json::Value> = weight_map
        .iter()
        .map(|(tensor, shard)| ((*tensor).to_owned(), json!(shard)))
        .collect();
    json!({"metadata": {"total_size": 12}, "weight_map": map}).to_string()
}

fn with_config() -> Folder {
    Folder::new().with("config.json", r#"{"model_type":"llama","hidden_size":4}"#)
}

const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[test]
fn a_folder_with_one_file_is_read() {
    let folder = with_config()
        .with("model.safetensors", shard(&["a", "b"]))
        .with("tokenizer.json", "{}")
        .with("chat_template.jinja", "")
        .with("generation_config.json", r#"{"eos_token_id":[1,106]}"#);
    for name in ["", "model.safetensors"] {
        let checkpoint = folder.open(name).unwrap();
        assert_eq!(checkpoint.tensors.keys().collect::<Vec<_>>(), ["a", "b"]);
        let files = checkpoint.hugging_face().unwrap();
        assert_eq!(files.config.usize("hidden_size").unwrap(), 4);
        assert_eq!(
            files.tokenizer_json.as_deref(),
            Some(folder.path("tokenizer.json").as_path())
        );
        assert!(
            files.chat_template.is_some()
                && files.tokenizer_config.is_none()
                && files.tokenizer_model.is_none()
        );
        assert_eq!(files.eos_token_ids().unwrap(), [1, 106]);
    }
}

#[test]
fn end_tokens_come_from_the_generation_config_first() {
    let config = r#"{"eos_token_id":2}"#;
    let folder = Folder::new()
        .with("config.json", config)
        .with("model.safetensors", shard(&["a"]));
    let eos = |folder: &Folder| {
        folder
            .open("")
            .unwrap()
            .hugging_face()
            .unwrap()
            .eos_token_ids()
    };
    assert_eq!(eos(&folder).unwrap(), [2]);
    let folder = folder.with("generation_config.json", r#"{"eos_token_id":7}"#);
    assert_eq!(eos(&folder).unwrap(), [7]);
    let folder = folder.with("generation_config.json", r#"{"eos_token_id":"x"}"#);
    assert_says(
        &eos(&folder).unwrap_err().to_string(),
        &["eos_token_id", "\"x\"", "token id"],
    );
}

#[test]
fn shards_are_read_through_their_index() {
    let folder = with_config()
        .with(ONE, shard(&["a", "b"]))
        .with(TWO, shard(&["c"]))
        .with(INDEX, index(&[("a", ONE), ("b", ONE), ("c", TWO)]));
    assert_eq!(
        folder.open("").unwrap().tensors.keys().collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    let message = folder.open(ONE).unwrap_err().to_string();
    assert_says(&message, &[ONE, "one shard of several", "give the folder"]);
}

#[test]
fn an_index_of_many_shards_is_refused_in_a_few_words() {
    for (n, said) in [
        (1_000, "\"00999.safetensors\" is missing"),
        (
            1_001,
            "expected an index of at most 1000 shards, found 1001",
        ),
    ] {
        let names: Vec<String> = (0..n)
            .rev()
            .map(|i| format!("{i:05}.safetensors"))
            .collect();
        let pairs: Vec<(&str, &str)> = names.iter().map(|name| (&name[..], &name[..])).collect();
        let folder = with_config().with(INDEX, index(&pairs));
        let message = folder.open("").unwrap_err().to_string();
        if n == 1_000 {
            assert_says(
                &message,
                &[INDEX, "\"00000.safetensors\" is missing", "; and 980 more"],
            );
            assert!(!message.contains(said), "{message}");
        } else {
            assert_says(&message, &[INDEX, said]);
        }
    }
}

#[test]
fn an_index_and_shards_that_disagree_are_refused_with_all_faults() {
    let folder = with_config()
        .with(ONE, shard(&["a", "b", "extra"]))
        .with(TWO, shard(&["b"]))
        .with(
            INDEX,
            index(&[
                ("a", ONE),
                ("b", ONE),
                ("absent", TWO),
                ("gone", "gone.safetensors"),
                ("out", "../../etc/passwd"),
            ]),
        );
    let error = folder.open("").unwrap_err();
    let message = error.to_string();
    assert_says(
        &message,
        &[
            INDEX,
            "\"gone.safetensors\" is missing",
            "\"absent\" is not in",
            "\"extra\" in",
        ],
    );
    let CheckpointError::Index { faults, .. } = error else {
        panic!("{message}")
    };
    let owned = str::to_owned;
    for fault in [
        IndexFault::Escapes {
            shard: owned("../../etc/passwd"),
        },
        IndexFault::MissingShard {
            shard: owned("gone.safetensors"),
        },
        IndexFault::MissingTensor {
            tensor: owned("absent"),
            shard: owned(TWO),
        },
        IndexFault::Repeated {
            tensor: owned("b"),
            first: owned(ONE),
            second: owned(TWO),
        },
        IndexFault::Unlisted {
            tensor: owned("extra"),
            shard: owned(ONE),
        },
    ] {
        assert!(faults.contains(&fault), "{fault:?} is not in {faults:?}");
    }
    assert_eq!(faults.len(), 5, "{faults:?}");
}

#[test]
fn paths_that_leave_the_folder_are_refused() {
    for path in [
        "../x.safetensors",
        "/x.safetensors",
        "sub/../../x.safetensors",
        "",
        ".",
    ] {
        let folder = with_config().with(INDEX, index(&[("a", path)]));
        assert_says(
            &folder.open("").unwrap_err().to_string(),
            &["is not a path inside of the folder"],
        );
    }
}

#[test]
fn folders_that_lack_files_say_what_to_do() {
    for (folder, name, parts) in [
        (Folder::new(), "", &["no config.json"][..]),
        (
            Folder::new().with("x.gguf", ""),
            "",
            &["holds x.gguf", "path of that file"],
        ),
        (
            Folder::new().with("x.safetensors", shard(&["a"])),
            "x.safetensors",
            &["no config.json beside it"],
        ),
        (
            with_config(),
            "",
            &["neither model.safetensors nor", "fetch the weights"],
        ),
        (
            with_config().with("pytorch_model.bin", ""),
            "",
            &["holds pytorch_model.bin", "convert"],
        ),
        (
            with_config().with(ONE, shard(&["a"])),
            "",
            &[ONE, "fetch the index too"],
        ),
        (
            with_config(),
            "absent.gguf",
            &["cannot read", "absent.gguf"],
        ),
        (
            with_config().with("model.safetensors", ""),
            "",
            &["model.safetensors: expected at least 10 bytes, found a file of 0"],
        ),
        (
            with_config().with(INDEX, "{"),
            "",
            &[INDEX, "not valid JSON", "line 1"],
        ),
        (
            with_config().with(INDEX, r#"{"weight_map":{"a":"x","a":"y"}}"#),
            "",
            &["\"a\" is repeated"],
        ),
        (
            Folder::new().with("config.json", "{\n\"a\": nan}"),
            "",
            &["config.json: not valid JSON", "line 2 column"],
        ),
        (
            Folder::new().with("config.json", vec![b' '; 5 << 20]),
            "",
            &["config.json: expected at most 4194304 bytes, found more"],
        ),
        (
            with_config().with(
                "x.safetensors",
                GgufFile {
                    version: 9,
                    ..GgufFile::good()
                }
                .bytes(),
            ),
            "x.safetensors",
            &["found 9"],
        ),
    ] {
        assert_refused(&folder, name, parts);
    }
}

fn assert_refused(folder: &Folder, name: &str, parts: &[&str]) {
    let message = folder
        .open(name)
        .expect_err("the folder should be refused")
        .to_string();
    assert_says(&message, parts);
}

/// An adapter beside the weights changes the model.
#[test]
fn adapters_are_refused() {
    let parts = ["adapter_config.json", "merge the adapter"];
    let file = "adapter_config.json";
    assert_refused(&with_config().with(file, "{}"), "", &parts);
    let weights = Folder::new().with(file, "{}");
    let weights = weights.with("x.safetensors", shard(&["a"]));
    assert_refused(&weights, "x.safetensors", &parts);
}

#[cfg(unix)]
#[test]
fn what_cannot_be_mapped_is_refused() {
    let message = thane_models::checkpoint::Checkpoint::open("/dev/null".as_ref())
        .unwrap_err()
        .to_string();
    assert_says(
        &message,
        &["/dev/null", "expected a regular file or a folder"],
    );
}
