//! `thane plan` and `convert --target`: what flags pin stays, what cannot be is refused, and what
//! was chosen runs.

use std::path::Path;

use serde_json::Value;

use crate::fixture::{Home, assert_ends, chat_folder, conversion, json};

fn plan(home: &Home, more: &[&str]) -> Value {
    plan_of(home, &chat_folder(), more)
}

/// What `plan` says of the first target.
pub fn plan_of(home: &Home, model: &Path, more: &[&str]) -> Value {
    let args = [&["plan", model.to_str().unwrap(), "--json"], more].concat();
    let output = home.run(&args);
    assert_ends(&output, 0, &[]);
    json(&output)["targets"][0].clone()
}

#[test]
fn flags_pin_what_they_decide() {
    let home = Home::new();
    let free = plan(&home, &["--target", "m4"]);
    let decided = |report: &Value| -> Vec<String> {
        let all = report["decisions"].as_array().unwrap().iter();
        all.map(|d| d["decided"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(
        decided(&free).contains(&"cache and tables".to_owned()),
        "{free}"
    );
    // The best of what was tried is what was chosen.
    let best = &free["decisions"][0]["tried"][0];
    for key in ["kv", "lookup"] {
        assert_eq!(free["chosen"][key], best[key]);
    }
    let cost = |row: &Value| row["mean_decode_ms"].as_f64().unwrap();
    for other in free["decisions"][0]["tried"].as_array().unwrap() {
        assert!(cost(best) <= cost(other), "{free}");
    }
    let pins = [
        "--kv",
        "state",
        "--lookup",
        "inside",
        "--block",
        "8",
        "--contexts",
        "16",
    ];
    let pins = [&pins[..], &["--split", "2", "--head", "logits"]].concat();
    let pinned = plan(
        &home,
        &[&["--target", "a19", "--context", "64"], &pins[..]].concat(),
    );
    assert_eq!(decided(&pinned), Vec::<String>::new());
    let chosen = &pinned["chosen"];
    assert_eq!(chosen["kv"], "state");
    assert_eq!(chosen["lookup"], "inside");
    assert_eq!(chosen["block"], 8);
    assert_eq!(chosen["contexts"], serde_json::json!([16]));
    assert_eq!(chosen["programs"], 2);
}

/// Each goal chooses what is least of what it tried, and says the next best in its unit.
#[test]
fn each_goal_chooses_the_least_that_it_tried() {
    type Figure = fn(&Value) -> f64;
    let home = Home::new();
    let target = ["--target", "a17-pro", "--context", "512"];
    let goals: [(&str, &str, Figure); 3] = [
        ("latency", "of the chosen form", |row| {
            row["mean_decode_ms"].as_f64().unwrap()
        }),
        (
            "throughput",
            "the first token of a prompt of 512 after",
            |row| row["answer"]["first_token"]["ms"].as_f64().unwrap(),
        ),
        ("memory", "of the chosen form", |row| {
            row["loaded_bytes"].as_f64().unwrap()
        }),
    ];
    for (goal, unit, cost) in goals {
        let report = plan(&home, &[&target[..], &["--for", goal]].concat());
        let chosen = &report["chosen"];
        let decisions = report["decisions"].as_array().unwrap();
        let tried = decisions
            .iter()
            .flat_map(|d| d["tried"].as_array().unwrap());
        // The block is for prompts, and the greatest logit alone is for the user to choose.
        let open = tried.filter(|row| row["head"] != "argmax" && row["block"] == chosen["block"]);
        // What gains less than 5 % is not worth another function.
        for row in open {
            assert!(cost(chosen) * 0.95 <= cost(row), "{goal}: {row} {chosen}");
        }
        let model = chat_folder();
        let args = [
            &["plan", model.to_str().unwrap(), "--for", goal],
            &target[..],
        ]
        .concat();
        assert_ends(&home.run(&args), 0, &["next best", unit]);
    }
}

/// Each width of `verify` is a function of its own, whatever the others are, and has a price.
#[test]
fn verify_has_a_function_for_each_width() {
    let home = Home::new();
    let pins = ["--kv", "explicit", "--lookup", "inside", "--block", "8"];
    let sizes = ["--context", "64", "--verify", "2,4,8"];
    let report = plan(&home, &[&["--target", "m4"], &pins[..], &sizes].concat());
    let priced = report["chosen"]["verify"].as_array().unwrap();
    let tokens: Vec<u64> = priced
        .iter()
        .map(|v| v["tokens"].as_u64().unwrap())
        .collect();
    assert_eq!(tokens, [2, 4, 8]);
    let loaded = priced.iter().map(|v| v["loaded_bytes"].as_f64().unwrap());
    assert!(loaded.clone().all(|bytes| bytes > 0.0), "{report}");
    // prefill and decode load weights, too.
    let all = report["chosen"]["loaded_bytes"].as_f64().unwrap();
    assert!(all > loaded.sum::<f64>(), "{report}");
    let model = chat_folder();
    let of = |widths: &str| {
        let out = home.path(&format!("{}.mlpackage", widths.len()));
        let fixed = ["convert", model.to_str().unwrap(), "--form", "ane"];
        let sizes = ["--context", "64", "--block", "8", "--verify", widths];
        let out_args = ["-o", out.to_str().unwrap()];
        let said = home.run(&[&fixed[..], &sizes, &out_args].concat());
        assert_ends(&said, 0, &[]);
        let text = std::fs::read(out.join("Data/ai.thane/contract.json")).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()
    };
    let named = |contract: &Value| -> Vec<String> {
        let calls = contract["model"]["fixed"]["calls"]
            .as_array()
            .unwrap()
            .iter();
        calls
            .map(|call| call["functions"][0].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(named(&of("4")), ["prefill", "decode", "verify"]);
    let (three, four) = (of("2,4,8"), of("16,2,4,8"));
    let mut names = vec!["prefill", "decode", "verify_2", "verify_4", "verify_8"];
    assert_eq!(named(&three), names);
    for name in &names {
        assert_eq!(three["functions"][name], four["functions"][name]);
    }
    names.push("verify_16");
    assert_eq!(named(&four), names);
}

#[test]
fn what_was_chosen_answers_as_the_checkpoint_does() {
    let (home, model) = (Home::new(), chat_folder());
    let model = model.to_str().unwrap();
    let package = home.path("chosen.mlpackage");
    let folder = home.path("chunks");
    let convert = |out: &Path, more: &[&str]| {
        let args = conversion(model, out.to_str().unwrap(), "--context 64");
        home.run(&[&args[..], more].concat())
    };
    let said = convert(&package, &["--target", "m4"]);
    assert_ends(&said, 0, &["for m4", "ms a token (", " on disk, "]);
    let cut = [
        "--form",
        "ane",
        "--split",
        "0-1,1-2,head",
        "--kv",
        "explicit",
    ];
    let cut = [
        &cut[..],
        &["--contexts", "24", "--verify", "3", "--lookup", "host"],
    ]
    .concat();
    assert_ends(&convert(&folder, &cut), 0, &[]);
    assert_ends(&home.run(&["check", folder.to_str().unwrap()]), 0, &[]);
    let answer = |model: &str| {
        let flags = [
            "--max-tokens",
            "12",
            "--temperature",
            "0",
            "--numerics",
            "f32",
            "--quiet",
        ];
        let output = home.run(&[&["run", model, "a few words"], &flags[..]].concat());
        assert_ends(&output, 0, &[]);
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = answer(model);
    for found in [&package, &folder] {
        assert_eq!(
            answer(found.to_str().unwrap()),
            expected,
            "{}",
            found.display()
        );
    }
    // A part of another conversion does not fit.
    let other = home.path("other");
    let cut = [&cut[..2], &["--split", "1-2,head"], &cut[4..]].concat();
    assert_ends(
        &convert(&other, &cut),
        2,
        &[
            "expected chunks that follow each other from layer 0 to 2",
            "--split 2",
        ],
    );
    let chunk = folder.join("chunk2.mlpackage");
    assert_ends(
        &home.run(&["run", chunk.to_str().unwrap(), "hello"]),
        2,
        &["a part of a model that was cut into several"],
    );
    std::fs::remove_dir_all(folder.join("chunk1.mlpackage")).unwrap();
    assert_ends(
        &home.run(&["run", folder.to_str().unwrap(), "hello"]),
        2,
        &["chunk1"],
    );
}

#[test]
fn forms_that_cannot_be_are_refused() {
    let (home, model) = (Home::new(), chat_folder());
    let model = model.to_str().unwrap();
    let out = home.path("x.mlpackage");
    let out = out.to_str().unwrap();
    for (flags, said) in [
        (
            &["--split", "9"][..],
            &["several packages are written into a folder"][..],
        ),
        (
            &["--verify", "65"],
            &["expected verify of 1 to 64 tokens", "--verify"],
        ),
        (
            &["--contexts", "65"],
            &["shorter contexts from 1 to 64", "--contexts"],
        ),
        (
            &["--contexts", "4"],
            &["expected prefill of 1 to 4", "--block"],
        ),
        (&["--split", "x"], &["--split"]),
        (&["--split", "0MB"], &["--split"]),
        (
            &["--functions", "decode", "--split", "2"],
            &["written into a folder"],
        ),
    ] {
        let args = conversion(model, out, "--form ane --context 64");
        let block = ["--block", "8"];
        let output = home.run(&[&args[..], &block[..], flags].concat());
        assert_ends(&output, 2, said);
    }
}

#[test]
fn cuts_and_functions_that_cannot_be_are_refused() {
    let (home, model) = (Home::new(), chat_folder());
    let model = model.to_str().unwrap();
    let out = home.path("x.mlpackage");
    let out = out.to_str().unwrap();
    let folder = home.path("llama-3.2-1b");
    let folder = folder.to_str().unwrap();
    for (flags, said) in [
        (
            &["--split", "18446744073709551615"][..],
            "expected 1 to 2 chunks",
        ),
        (
            &["--split", "2", "--functions", "chunk1_decode"],
            "hold all functions",
        ),
        (&["--split", "900MB"], "-o NAME.mlpackage"),
    ] {
        let args = conversion(model, folder, "--form ane --context 64");
        assert_ends(&home.run(&[&args[..], flags].concat()), 2, &[said]);
    }
    let args = [
        "convert",
        model,
        "--form",
        "ane",
        "--context",
        "64",
        "--split",
        "2",
    ];
    assert_ends(&home.run(&[&args[..], &["-o", folder]].concat()), 0, &[]);
    let compiled = home.path("x.mlmodelc");
    let args = ["convert", model, "--form", "ane", "--lookup", "host", "-o"];
    let output = home.run(&[&args[..], &[compiled.to_str().unwrap()]].concat());
    assert_ends(&output, 2, &["no place for the tables"]);
    // The contract says what the package has.
    let args = conversion(model, out, "--form ane --context 64 --block 8");
    let some = ["--contexts", "16", "--functions", "prefill_16,decode_16"];
    assert_ends(&home.run(&[&args[..], &some].concat()), 0, &[]);
    assert_ends(&home.run(&["check", out]), 0, &[]);
    let long = "a prompt that is longer than the context of this package";
    assert_ends(&home.run(&["run", out, long]), 2, &["16"]);
    let args = ["plan", model, "--target", "m1+macos13"];
    assert_ends(&home.run(&args), 2, &["iOS 18"]);
}

#[test]
fn models_that_have_no_such_form_are_refused() {
    let home = Home::new();
    let out = home.path("mixed.mlpackage");
    let out = out.to_str().unwrap();
    let mixed = crate::decoder::models().join("tiny/gemma4-plain");
    let args = conversion(mixed.to_str().unwrap(), out, "--form ane");
    assert_ends(
        &home.run(&args),
        2,
        &["one state cannot hold", "--kv explicit"],
    );
    let args = [
        "plan",
        mixed.to_str().unwrap(),
        "--target",
        "m4",
        "--kv",
        "state",
    ];
    assert_ends(&home.run(&args), 2, &["one state cannot hold"]);
    let experts = crate::decoder::models().join("tiny/mixtral");
    let args = ["plan", experts.to_str().unwrap(), "--target", "m4"];
    assert_ends(&home.run(&args), 2, &["mixtures of experts"]);
}

#[test]
fn heads_and_lanes_are_priced() {
    let home = Home::new();
    let lanes = ["--kv", "explicit", "--lanes", "8", "--for", "throughput"];
    let report = plan(&home, &[&["--target", "m4"], &lanes[..]].concat());
    let decisions = report["decisions"].as_array().unwrap();
    let head = decisions.iter().find(|d| d["decided"] == "head").unwrap();
    let tried = head["tried"].as_array().unwrap();
    let mut heads: Vec<&str> = tried.iter().map(|t| t["head"].as_str().unwrap()).collect();
    // What was chosen comes first. A head that gives one token only is for the user to choose.
    assert_eq!(heads[0], report["chosen"]["head"]);
    assert_ne!(heads[0], "argmax");
    heads.sort_unstable();
    assert_eq!(heads, ["argmax", "host", "logits"]);
    assert_eq!(report["chosen"]["lanes"], 8);
    assert!(report["chosen"]["lanes_tokens_per_s"].as_f64().unwrap() > 0.0);
    let pinned = plan(&home, &["--target", "m4", "--head", "top40"]);
    assert_eq!(pinned["chosen"]["head"], "top40");
    assert!(pinned["chosen"]["lanes"].is_null());
    let state = ["--kv", "state", "--lanes", "8"];
    let model = chat_folder();
    let args = ["plan", model.to_str().unwrap(), "--target", "m4"];
    let output = home.run(&[&args[..], &state].concat());
    assert_ends(&output, 2, &["written at one position", "--kv explicit"]);
}
