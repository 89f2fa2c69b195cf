//! How weights are stored, and the form of the programs: `plan` prices each encoding in the form
//! that `convert --compress` chooses, and a model of many layers is cut for the same reason in all.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::fixture::{Home, assert_ends, chat_folder};
use crate::plan::plan_of;

/// Beside the form, every encoding has a price, and those that a chip cannot have name the rules.
#[test]
fn encodings_are_priced_beside_the_form() {
    let home = Home::new();
    let report = plan_of(
        &home,
        &chat_folder(),
        &["--target", "m5-max+macos26", "--context", "64"],
    );
    let rows = report["encodings"].as_array().unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["encoding"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["fp16", "int8", "pal8", "pal6", "pal4", "2x16"]);
    let (plain, chosen) = (&rows[0], &report["chosen"]);
    assert_eq!(plain["ms"], chosen["decode_ms"]);
    assert_eq!(plain["disk_bytes"], chosen["disk_bytes"]);
    assert_eq!(plain["loaded_bytes"], chosen["loaded_bytes"]);
    let faults = |at: usize| rows[at]["faults"].to_string();
    assert_eq!((faults(0), faults(4)), ("[]".to_owned(), "[]".to_owned()));
    assert!(faults(1).contains("ANE162"), "{rows:?}");
    assert!(faults(5).contains("ANE089"), "{rows:?}");
    let bytes = |at: usize| rows[at]["disk_bytes"].as_u64().unwrap();
    assert!(bytes(0) > bytes(1) && bytes(1) > bytes(3) && bytes(3) > bytes(4));
}

/// The chat model with so many layers, which are all alike.
fn deep_folder(home: &Home, n_layers: usize) -> PathBuf {
    let folder = home.path("deep");
    fs::create_dir(&folder).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(chat_folder().join(name), folder.join(name)).unwrap();
    }
    let config = fs::read_to_string(chat_folder().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["num_hidden_layers"] = n_layers.into();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let file = fs::read(chat_folder().join("model.safetensors")).unwrap();
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let (header, data) = rest.split_at(length);
    let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let (mut tensors, mut bytes) = (Map::new(), Vec::new());
    let mut add = |name: &str, tensor: &Value| {
        let offsets = tensor["data_offsets"].as_array().unwrap().iter();
        let offsets: Vec<usize> = offsets.map(|at| at.as_u64().unwrap() as usize).collect();
        let start = bytes.len();
        bytes.extend_from_slice(&data[offsets[0]..offsets[1]]);
        let mut tensor = tensor.clone();
        tensor["data_offsets"] = vec![start, bytes.len()].into();
        tensors.insert(name.to_owned(), tensor);
    };
    for (name, tensor) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        match name.strip_prefix("model.layers.0.") {
            Some(part) => {
                (0..n_layers).for_each(|i| add(&format!("model.layers.{i}.{part}"), tensor));
            }
            None if name.starts_with("model.layers.") => {}
            None => add(name, tensor),
        }
    }
    let header = serde_json::to_vec(&tensors).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(
        folder.join("model.safetensors"),
        [&length[..], &header, &bytes].concat(),
    )
    .unwrap();
    folder
}

/// Compressed weights are fewer bytes and no more layers: a phone takes as many programs of them.
/// The reason for the cut is said.
#[test]
fn compression_needs_no_more_programs() {
    let home = Home::new();
    let model = deep_folder(&home, 30);
    let flags = ["--target", "a19", "--context", "64"];
    for pins in [&[][..], &["--kv", "explicit", "--lookup", "inside"]] {
        let flags = [&flags[..], pins].concat();
        let report = plan_of(&home, &model, &flags);
        assert_eq!(report["chosen"]["programs"], 2, "{report}");
        for row in report["encodings"].as_array().unwrap() {
            assert_eq!(row["programs"], 2, "{row}");
        }
        let model = model.to_str().unwrap();
        for more in [&[][..], &["--compress", "int8"]] {
            let output = home.run(&[&["plan", model][..], &flags, more].concat());
            let because = "2 programs, since one may not load: 30 attention layers";
            assert_ends(&output, 0, &[because, "ANE144"]);
        }
    }
}

/// `plan --compress` and the table of `plan` are one answer.
#[test]
fn the_table_has_what_compress_would_choose() {
    let home = Home::new();
    let deep = deep_folder(&home, 24);
    for (model, target) in [
        (&deep, "a19"),
        (&chat_folder(), "m4"),
        (&deep, "a17-pro,m1"),
    ] {
        let flags = ["--target", target, "--context", "64"];
        let report = plan_of(&home, model, &flags);
        let rows = report["encodings"].as_array().unwrap();
        for row in &rows[1..] {
            let encoding = row["encoding"].as_str().unwrap();
            let compress = ["--compress", encoding, "--scale", "none"];
            let chosen = plan_of(&home, model, &[&flags[..], &compress].concat());
            let chosen = &chosen["chosen"];
            let keys = [
                ("ms", "decode_ms"),
                ("disk_bytes", "disk_bytes"),
                ("loaded_bytes", "loaded_bytes"),
                ("programs", "programs"),
            ];
            for (of_row, of_plan) in keys {
                assert_eq!(
                    row[of_row], chosen[of_plan],
                    "{encoding} on {target}: {of_row}"
                );
            }
        }
    }
}
