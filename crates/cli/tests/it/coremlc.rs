//! Issue 30, 2.2: models that Apple's own compiler wrote, as published (`../shared/data/coremlc`,
//! where it is present): all are read, checked and audited; those with their weights run.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::fixture::{Home, assert_ends, json, stdout};

/// Complete ones first, with an output each.
const COMPLETE: [(&str, &str); 4] = [
    ("silero_vad", "vad_probability"),
    ("Argmax", "index"),
    ("TokenDurationPrediction", "token_id"),
    ("TransposeEncoder", "var_4"),
];
const WITHOUT_WEIGHTS: [(&str, u64); 4] = [
    ("decoder", 4),
    ("joint_decision", 6),
    ("parakeet_eou_preprocessor", 3),
    ("streaming_encoder", 457),
];

fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/coremlc");
    if folder.is_dir() {
        return Some(folder);
    }
    let _ = writeln!(
        std::io::stderr(),
        "skipped: there is no {}",
        folder.display()
    );
    None
}

fn audited(home: &Home, text: &Path) {
    let report = json(&home.run(&[
        "audit",
        text.to_str().unwrap(),
        "--target",
        "m4+macos26",
        "--json",
    ]));
    assert_eq!(
        report["targets"][0]["functions"][0]["name"],
        "main",
        "{}",
        text.display()
    );
}

#[test]
fn complete_models_of_apples_compiler_run() {
    let (Some(folder), home) = (folder(), Home::new()) else {
        return;
    };
    for (name, output) in COMPLETE {
        let model = folder.join(format!("{name}.mlmodelc"));
        let path = model.to_str().unwrap();
        assert_ends(&home.run(&["check", path]), 0, &[]);
        assert!(
            stdout(&home.run(&["inspect", "--stats", path])).contains("function   main"),
            "{name}"
        );
        audited(&home, &model.join("model.mil"));
        let out = home.path(name);
        let run = home.run(&["predict", path, "--out", out.to_str().unwrap()]);
        assert_ends(&run, 0, &["was made up", "seed 0"]);
        let bytes = std::fs::read(out.join(format!("{output}.npy"))).unwrap();
        assert!(bytes.starts_with(b"\x93NUMPY"), "{name}");
    }
}

#[test]
fn texts_of_apples_compiler_are_read_without_their_weights() {
    let (Some(folder), home) = (folder(), Home::new()) else {
        return;
    };
    for (name, n_absent) in WITHOUT_WEIGHTS {
        let model = folder
            .join("parakeet_eou_160ms")
            .join(format!("{name}.mlmodelc"));
        let text = model.join("model.mil");
        for path in [&model, &text] {
            let report = json(&home.run(&["check", "--json", path.to_str().unwrap()]));
            assert_eq!(
                (&report["absent"], &report["errors"]),
                (&n_absent.into(), &serde_json::json!([])),
                "{name}"
            );
        }
        let stats = stdout(&home.run(&["inspect", "--stats", text.to_str().unwrap()]));
        assert!(stats.contains("function   main"), "{name}: {stats}");
        audited(&home, &text);
        let out = home.path(name);
        let run = home.run(&[
            "predict",
            text.to_str().unwrap(),
            "--out",
            out.to_str().unwrap(),
        ]);
        assert_ends(&run, 2, &["are not beside the text", "thane inspect"]);
    }
    let text = folder.join("parakeet_eou_160ms/streaming_encoder.mlmodelc/model.mil");
    let printed = stdout(&home.run(&["inspect", text.to_str().unwrap()]));
    assert!(
        printed.contains("(inf)") && printed.contains("(-inf)"),
        "infinities as the compiler spells them"
    );
    let report = json(&home.run(&["check", "--json", text.to_str().unwrap()]));
    let odd = report["non_finite"].as_array().unwrap();
    assert!(
        odd.len() == 2
            && odd[0]
                .as_str()
                .unwrap()
                .contains("1 of 1 elements are not finite"),
        "{report}"
    );
}
