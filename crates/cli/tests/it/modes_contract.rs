//! Contracts of decoders for the Neural Engine that were edited: what contradicts the program, or
//! would give wrong numbers, is refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, chat_folder, sha256};

/// Sets a number of the contract, and says what is refused then.
type Case = (&'static str, Value, &'static str);

#[test]
fn numbers_of_a_contract_that_would_give_wrong_logits_are_refused() {
    let home = Home::new();
    let streaming: &[&str] = &["--kv", "explicit", "--attention-window", "8"];
    let host = ["--head", "host"];
    let window = "/streaming/window";
    let forms: [(&[&str], &[Case]); 3] = [
        (
            streaming,
            &[
                (window, json!(0), "`window`, `ring` and `pool` of 1 or more"),
                (window, json!(25), "a pool of at most 24 tokens"),
                (window, json!(u64::MAX), "found 18446744073709551615"),
                (
                    "/streaming/ring",
                    json!(33),
                    "expected 37 rows, which `streaming` says, found 36",
                ),
                (
                    "/calls/0/functions",
                    json!([]),
                    "a call of functions that differ, found []",
                ),
                (
                    "/calls/1/functions",
                    json!(["decode", "decode"]),
                    "a call of functions that differ",
                ),
            ],
        ),
        (
            &["--head", "top5"],
            &[
                ("/head/greatest", json!(6), "the 6 greatest logits"),
                ("/head/greatest", json!(282), "the 282 greatest logits"),
            ],
        ),
        (
            &host,
            &[
                ("/head/host/factor", json!(0.0), "a finite factor"),
                ("/head/host/factor", json!(1e300), "a finite factor"),
                ("/head/host/soft_cap", json!(0.0), "a soft cap above 0"),
                ("/head/host/soft_cap", json!(-5.0), "a soft cap above 0"),
            ],
        ),
    ];
    for (flags, cases) in forms {
        let package = converted(&home, flags);
        let contract = package.join("Data/ai.thane/contract.json");
        let written = fs::read(&contract).unwrap();
        for (place, value, said) in cases {
            let mut edited: Value = serde_json::from_slice(&written).unwrap();
            let fixed = &mut edited["model"]["fixed"];
            *fixed.pointer_mut(place).unwrap() = value.clone();
            fs::write(&contract, edited.to_string()).unwrap();
            let said = ["contract.json", said, "convert again"];
            assert_ends(&home.run(&["check", text(&package)]), 2, &said);
            assert_ends(&home.run(&["run", text(&package), "words"]), 2, &said);
        }
    }
}

#[test]
fn scales_beside_a_table_of_floats_are_refused() {
    let home = Home::new();
    let package = converted(&home, &["--lookup", "host-int8"]);
    let data = package.join("Data/ai.thane");
    // The embedding as a table of fp16, with hashes that fit.
    let rotations = fs::read(data.join("rotary_cos.npy")).unwrap();
    fs::write(data.join("embedding.npy"), &rotations).unwrap();
    let contract = data.join("contract.json");
    let mut edited: Value = serde_json::from_slice(&fs::read(&contract).unwrap()).unwrap();
    for file in edited["files"].as_array_mut().unwrap() {
        if file["path"] == "Data/ai.thane/embedding.npy" {
            file["sha256"] = json!(sha256(&rotations));
            file["bytes"] = json!(rotations.len());
        }
    }
    fs::write(&contract, edited.to_string()).unwrap();
    let said = ["embedding.npy: expected int8", "found fp16; convert again"];
    assert_ends(&home.run(&["check", text(&package)]), 2, &said);
    assert_ends(&home.run(&["run", text(&package), "words"]), 2, &said);
}

/// The chat model with a context of 64 and calls of up to 8 tokens.
fn converted(home: &Home, flags: &[&str]) -> PathBuf {
    let (checkpoint, out) = (chat_folder(), home.path("edited.mlpackage"));
    let fixed = ["convert", text(&checkpoint), "--form", "ane", "--force"];
    let sizes = ["--context", "64", "--block", "8", "-o", text(&out)];
    let output = home.run(&[&fixed[..], &sizes, flags].concat());
    assert_ends(&output, 0, &[]);
    out
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
