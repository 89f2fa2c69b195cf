//! The memory of a model file, which is counted before it is decoded.

use std::collections::BTreeMap;

use prost::Message;
use thane_mil::data::Bytes;
use thane_mil::package::Package;
use thane_mil::package::proto::*;

/// What a model counts for, without the copies that are made of its messages.
fn counted(model: &[u8]) -> usize {
    let manifest = br#"{"fileFormatVersion": "1.0.0", "rootModelIdentifier": "a",
        "itemInfoEntries": {"a": {"author": "com.apple.CoreML", "description": "a",
        "name": "model.mlmodel", "path": "com.apple.CoreML/any.name"}}}"#;
    let files = BTreeMap::from([
        ("Manifest.json".to_owned(), Bytes::new(manifest.to_vec())),
        (
            "Data/com.apple.CoreML/any.name".to_owned(),
            Bytes::new(model.to_vec()),
        ),
    ]);
    (Package::bytes_of_files("m", &files, &|| false).unwrap() - model.len()) / 4
}

/// A field of bytes.
fn field(tag: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::bytes::encode(tag, &bytes.to_vec(), &mut out);
    out
}

fn entry(name: &[u8], value: &[u8]) -> Vec<u8> {
    [field(1, name), field(2, value)].concat()
}

/// A model with these fields of its only block.
fn with_block(block: &[u8]) -> Vec<u8> {
    let function = field(3, &entry(b"CoreML7", block));
    field(502, &field(2, &entry(b"main", &function)))
}

fn block_of(model: &[u8]) -> Block {
    let program = Model::decode(model).unwrap().ml_program.unwrap();
    let function = program.functions.into_values().next().unwrap();
    let mut blocks = function.block_specializations.into_values();
    blocks.next().unwrap()
}

/// Messages of two bytes, in lists of the same message.
#[test]
fn small_messages_count_as_what_they_become() {
    const N: usize = 10_000;
    let inputs = field(2, &field(1, b"").repeat(N));
    let ops = with_block(&field(3, b"").repeat(N));
    let outputs = with_block(&field(3, &field(3, b"").repeat(N)));
    let blocks = with_block(&field(3, &field(4, b"").repeat(N)));
    let described = Model::decode(&inputs[..]).unwrap().description.unwrap();
    for (bytes, due) in [
        (
            &inputs,
            described.input.capacity() * size_of::<FeatureDescription>(),
        ),
        (
            &ops,
            block_of(&ops).operations.capacity() * size_of::<Operation>(),
        ),
        (
            &outputs,
            block_of(&outputs).operations[0].outputs.capacity() * size_of::<NamedValueType>(),
        ),
        (
            &blocks,
            block_of(&blocks).operations[0].blocks.capacity() * size_of::<Block>(),
        ),
    ] {
        assert!(due >= 20 * bytes.len());
        let found = counted(bytes);
        assert!((due..=3 * due).contains(&found), "{found}, {due}");
    }
}

/// Numbers are packed or not, and long or short.
#[test]
fn numbers_count_as_what_they_become() {
    let ints = |packed: &[u8]| field(3, &field(1, &field(5, packed)));
    // A group, which is skipped, and numbers of each fixed length.
    let others = [&[0x7b, 0x7c, 0x79][..], &[0; 8], &[0x7d], &[0; 4]].concat();
    for (value, n) in [
        (ints(&field(1, &[0; 10_000])), 10_000),
        (ints(&field(1, &[0x80, 1].repeat(5000))), 5000),
        (ints(&[8, 1].repeat(7000)), 7000),
        ([others, ints(&field(1, &[1; 3000]))].concat(), 3000),
    ] {
        let decoded = Value::decode(&value[..]).unwrap();
        assert!(decoded.value.is_some());
        let found = counted(&field(502, &field(4, &entry(b"a", &value))));
        assert!(found >= 8 * n && found <= 8 * n * 4, "{found}, {n}");
    }
}

/// Texts, lists and maps count with what is in them.
#[test]
fn texts_and_maps_count() {
    let long = "x".repeat(1 << 16);
    let file = value::BlobFileValue {
        file_name: long.clone(),
        offset: 1,
    };
    let value = Value {
        r#type: None,
        value: Some(value::Value::BlobFile(file)),
    };
    let entries = (0..20).map(|i| (i.to_string(), value.clone())).collect();
    let op = Operation {
        r#type: long.clone(),
        attributes: entries,
        ..Operation::default()
    };
    let metadata = Metadata {
        license: long.clone(),
        user_defined: [(long.clone(), long)].into(),
        ..Metadata::default()
    };
    for (model, n_long) in [
        (with_block(&field(3, &op.encode_to_vec())), 21),
        (field(2, &field(100, &metadata.encode_to_vec())), 3),
    ] {
        let found = counted(&model) >> 16;
        assert!((n_long..=n_long + 1).contains(&found), "{found}");
    }
}
