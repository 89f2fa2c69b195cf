//! Files written by the Python packages of the formats (`make_fixtures.py`), compared in full.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use thane_mil::data::Bytes;
use thane_models::checkpoint::gguf::{self, Value};
use thane_models::checkpoint::{Checkpoint, Tensors, safetensors};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/checkpoint/fixtures")
        .join(name)
}

fn expected(name: &str) -> Json {
    serde_json::from_slice(&fs::read(path(name)).unwrap()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

fn assert_tensors(tensors: &Tensors, expected: &Json) {
    let expected = expected["tensors"].as_object().unwrap();
    assert_eq!(tensors.len(), expected.len());
    for (name, tensor) in tensors {
        let found = json!({"type": tensor.ty.name(), "shape": tensor.shape, "hex": hex(tensor.bytes.as_slice())});
        assert_eq!(found, expected[name], "{name}");
    }
}

/// The type, as the specification names it, and the value.
fn to_json(value: &Value) -> (String, Json) {
    let json = match value {
        Value::Bool(value) => json!(value),
        Value::F32(value) => json!(value),
        Value::F64(value) => json!(value),
        Value::U64(value) => json!(value),
        Value::String(bytes) => json!(std::str::from_utf8(bytes.as_slice()).unwrap()),
        Value::Array(array) => {
            let elements: Vec<Json> = array.iter().map(|value| to_json(&value).1).collect();
            return (array.element().name().to_owned(), json!(elements));
        }
        integer => json!(i64::try_from(integer.as_integer().unwrap()).unwrap()),
    };
    (value.type_name(), json)
}

#[test]
fn a_gguf_file_of_the_gguf_package_is_read_in_full() {
    let checkpoint = Checkpoint::open(&path("small.gguf")).unwrap();
    let expected = expected("small.gguf.json");
    let gguf = checkpoint.gguf().unwrap();
    assert_eq!(gguf.version, 3);
    let mut count = 1; // the writer adds general.architecture
    assert_eq!(gguf.str("general.architecture").unwrap(), "llama");
    for kind in ["scalars", "arrays"] {
        for (key, value) in expected[kind].as_object().unwrap() {
            let (ty, found) = to_json(gguf.value(key).unwrap());
            assert_eq!(json!([ty, found]), *value, "{key}");
            count += 1;
        }
    }
    assert_eq!(gguf.metadata.len(), count);
    assert_tensors(&checkpoint.tensors, &expected);
}

#[test]
fn a_safetensors_file_of_the_safetensors_package_is_read_in_full() {
    let bytes = Bytes::new(fs::read(path("small.safetensors")).unwrap());
    let parsed = safetensors::parse(&bytes).unwrap();
    assert_eq!(parsed.metadata["made_by"], "make_fixtures.py");
    assert_tensors(&parsed.tensors, &expected("small.safetensors.json"));
}

#[test]
fn truncated_fixtures_are_refused_wherever_they_end() {
    let file = Bytes::new(fs::read(path("small.gguf")).unwrap());
    let (_, tensors) = gguf::parse(&file).unwrap();
    // The writer pads the last tensor; the file is still valid without that padding.
    let ends = tensors
        .values()
        .map(|tensor| tensor.bytes.as_slice().as_ptr_range().end as usize);
    let end = ends.max().unwrap() - file.as_slice().as_ptr() as usize;
    assert!(gguf::parse(&file.slice(0..end).unwrap()).is_ok());
    for len in 0..end {
        assert!(
            gguf::parse(&file.slice(0..len).unwrap()).is_err(),
            "GGUF truncated at {len}"
        );
    }
    let file = fs::read(path("small.safetensors")).unwrap();
    for len in 0..file.len() {
        assert!(
            safetensors::parse(&Bytes::new(file[..len].to_vec())).is_err(),
            "safetensors truncated at {len}"
        );
    }
}
