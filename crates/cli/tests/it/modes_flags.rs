//! Flags of decoders for the Neural Engine that name files.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::decoder::models;
use crate::fixture::{Home, assert_ends, chat_folder, conversion};

fn convert(home: &Home, flags: &[&str]) -> Output {
    let (checkpoint, out) = (chat_folder(), home.path("flags.mlpackage"));
    let fixed = ["convert", text(&checkpoint), "--form", "ane", "--force"];
    let sizes = ["--context", "64", "--block", "8", "-o", text(&out)];
    home.run(&[&fixed[..], &sizes, flags].concat())
}

#[test]
fn files_of_retrieval_heads_are_those_of_the_model() {
    let home = Home::new();
    let file = home.path("heads.tsv");
    let long = "1 ".repeat(1 << 20);
    for (lines, said) in [
        ("0.9 0.1\n0.2 1\n", None),
        (
            "0.9 0.1\n0.2 1\n0 1\n",
            Some("a line for each of 2 layers in --retrieval-heads, found 3"),
        ),
        ("0.9 0.1\n", Some("2 key heads of layer 1")),
        (&long, Some("expected at most 1048576 bytes")),
    ] {
        fs::write(&file, lines).unwrap();
        let heads = ["--retrieval-heads", text(&file)];
        let window = ["--kv", "explicit", "--attention-window", "8"];
        let output = convert(
            &home,
            &[window, [heads[0], heads[1], "--head", "logits"]].concat(),
        );
        match said {
            None => assert_ends(&output, 0, &[]),
            Some(said) => assert_ends(&output, 2, &[said]),
        }
    }
}

/// No text is computed for what cannot be written: a text that does not exist would be the error.
#[test]
fn what_cannot_be_written_is_refused_before_a_text_is_computed() {
    let (home, chat) = (Home::new(), chat_folder());
    let experts = models().join("tiny/mixtral");
    for (model, out, flags, said) in [
        (&experts, "x.mlpackage", "--form ane", "cannot have"),
        (&experts, "x", "--form anemll", "cannot have"),
        (
            &chat,
            "x.mlpackage",
            "--form ane --kv state --lanes 4",
            "choose an explicit cache",
        ),
        (
            &chat,
            "x.mlpackage",
            "--form ane --kv explicit --lanes 4 --attention-tile 32",
            "lanes have no --attention-tile",
        ),
        (
            &chat,
            "x",
            "--form ane --split 400MB",
            "a package (.mlpackage)",
        ),
    ] {
        let (out, text_file) = (home.path(out), home.path("missing"));
        let given = ["convert", text(model), "-o", text(&out), "--calibrate"];
        let flags: Vec<&str> = flags.split(' ').collect();
        let output = home.run(&[&given[..], &[text(&text_file)], &flags].concat());
        assert_ends(&output, 2, &[said]);
    }
}

/// A lane has one token, so the window may have fewer tokens than there are lanes.
#[test]
fn a_window_holds_the_tokens_of_a_sequence_and_not_of_all_lanes() {
    let home = Home::new();
    let lanes = ["--kv", "explicit", "--lanes", "32"];
    let window = |n| [&lanes[..], &["--attention-window", n]].concat();
    assert_ends(&convert(&home, &window("8")), 0, &["decode_lanes"]);
    let said = "from 8, the most tokens of a call";
    assert_ends(&convert(&home, &window("7")), 2, &[said]);
}

#[test]
fn calibration_reads_a_text_and_keeps_what_flags_say() {
    let home = Home::new();
    let file = home.path("text.txt");
    // A character of three bytes goes beyond the part that is read.
    fs::write(&file, "some words ".repeat(5957) + "a" + &"€".repeat(9)).unwrap();
    let calibrate = ["--calibrate", text(&file)];
    assert_ends(
        &convert(&home, &calibrate),
        0,
        &["2048 tokens", "--norm native"],
    );
    let scaled = [&calibrate[..], &["--norm", "scaled"]].concat();
    assert_ends(&convert(&home, &scaled), 0, &["--norm scaled"]);
    fs::write(&file, b"some words \xff").unwrap();
    assert_ends(
        &convert(&home, &calibrate),
        2,
        &["text.txt", "expected UTF-8"],
    );
    if cfg!(target_os = "linux") {
        // No end: only its start is read.
        assert_ends(&convert(&home, &["--calibrate", "/dev/zero"]), 0, &[]);
    }
}

/// A program without Core ML says the same, and the audit finds nothing but rows that the sizes of
/// the tiny model do not fill.
#[test]
fn programs_for_direct_access_are_written_run_and_judged() {
    let home = Home::new();
    let checkpoint = chat_folder();
    let out = home.path("direct.mlpackage");
    let convert = |flags: &[&str]| {
        let fixed = conversion(text(&checkpoint), text(&out), "--form ane --direct");
        home.run(&[&fixed[..], &["--force", "--context", "64"], flags].concat())
    };
    for (flags, said) in [
        (
            &["--block", "8"][..],
            "a multiple of 32 in prefill, found 8",
        ),
        (&["--kv", "state"], "--kv explicit and --lookup host"),
        (&["--head", "argmax"], "--head logits"),
    ] {
        assert_ends(&convert(flags), 2, &[said]);
    }
    assert_ends(&convert(&[]), 0, &["1 function: prefill", "--direct"]);
    let run = |model: &str| {
        let sampled = ["--max-tokens", "9", "--temperature", "0"];
        let all = ["run", model, "hello there", "--numerics", "f32"];
        let output = home.run(&[&all[..], &sampled].concat());
        assert_ends(&output, 0, &[]);
        output.stdout
    };
    assert_eq!(run(text(&out)), run(text(&checkpoint)));
    let audit = home.run(&["audit", text(&out), "--direct", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&audit.stdout).unwrap();
    let findings = report["targets"][0]["findings"].as_array().unwrap();
    let errors = findings.iter().filter(|f| f["severity"] == "error");
    let rules: Vec<&str> = errors.filter_map(|f| f["rule"].as_str()).collect();
    assert!(rules.iter().all(|rule| *rule == "ANE062"), "{rules:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
