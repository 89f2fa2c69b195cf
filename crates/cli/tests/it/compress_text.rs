//! `thane compress` and `thane convert --compress` by what a model computes of a text: errors that
//! weigh more, and activations of 8 bits.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::embed::model;
use crate::fixture::{Home, assert_ends, chat_gguf, json};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The chat model as a package.
fn package(home: &Home, name: &str, flags: &str) -> PathBuf {
    let (out, gguf) = (home.path(name), chat_gguf());
    let args = format!("convert --context 64 --force {flags} -o");
    let mut args: Vec<&str> = args.split_whitespace().collect();
    args.extend([text(&out), text(&gguf)]);
    assert_ends(&home.run(&args), 0, &[]);
    out
}

/// The report of `thane compress` for the package that it writes.
fn compress(home: &Home, from: &Path, flags: &str) -> Value {
    let out = home.path("small.mlpackage");
    let mut args = vec![
        "compress",
        "--json",
        "--force",
        text(from),
        "-o",
        text(&out),
    ];
    args.extend(flags.split_whitespace());
    let report = json(&home.run(&args));
    report["packages"][0]["compression"].clone()
}

/// The least plain error is that of errors that count alike.
#[test]
fn packages_are_weighed_by_a_text() {
    let home = Home::new();
    let file = home.path("text.txt");
    fs::write(&file, "Why is the sky blue? ".repeat(60)).unwrap();
    let by_file = format!("--compress pal2 --calibrate {}", text(&file));
    for form in ["--form ane --block 8", "--form ane --kv explicit --block 8"] {
        let plain = package(&home, "plain.mlpackage", form);
        let error = |flags: &str| compress(&home, &plain, flags)["error"].as_f64().unwrap();
        let alike = error("--compress pal2 --calibrate none");
        let [own, by_file] = [error("--compress pal2"), error(&by_file)];
        assert!(
            alike < own && alike < by_file && own != by_file,
            "{form}: {alike} {own} {by_file}"
        );
    }
    let (gemma, minilm) = (model("embeddinggemma"), home.path("embeds.mlpackage"));
    let args = [
        "convert",
        text(&gemma),
        "--task",
        "embed",
        "-o",
        text(&minilm),
    ];
    assert_ends(&home.run(&args), 0, &[]);
    let error = |flags: &str| compress(&home, &minilm, flags)["error"].as_f64().unwrap();
    assert!(error("--compress pal2 --calibrate none") < error("--compress pal2"));
    fs::write(&file, "").unwrap();
    let small = home.path("s.mlpackage");
    let args = [
        "compress",
        text(&minilm),
        "-o",
        text(&small),
        "--calibrate",
        text(&file),
    ];
    assert_ends(
        &home.run(&args),
        2,
        &["expected a text of two tokens or more"],
    );
    assert!(!small.exists());
}

#[test]
fn activations_are_quantized_where_weights_are() {
    let home = Home::new();
    for form in ["--form ane --block 8", "--form ane --kv explicit --block 8"] {
        let plain = package(&home, "plain.mlpackage", form);
        for (encoding, weights) in [("w8a8", "int8"), ("w4a8", "int4")] {
            let done = compress(&home, &plain, &format!("--compress {encoding}"));
            assert!(done["activations"].as_u64().unwrap() > 4, "{done}");
            let tensors = done["tensors"].as_array().unwrap();
            assert!(
                tensors.iter().all(|t| t["encoding"] == weights),
                "{encoding}"
            );
            let small = home.path("small.mlpackage");
            assert_ends(&home.run(&["check", text(&small)]), 0, &[]);
            let run = [
                "run",
                text(&small),
                "hello",
                "--max-tokens",
                "4",
                "--temperature",
                "0",
            ];
            assert_ends(&home.run(&run), 0, &[]);
        }
        // At once, as later.
        let flags = format!("{form} --compress w8a8");
        package(&home, "once.mlpackage", &flags);
    }
}

#[test]
fn activations_need_a_text_and_a_target_that_takes_them() {
    let home = Home::new();
    let plain = package(&home, "plain.mlpackage", "--form ane --block 8");
    let (out, plain) = (home.path("out.mlpackage"), text(&plain));
    let gemma = model("embeddinggemma");
    for (args, says) in [
        (vec!["compress", plain, "--target", "a19"], "ANE097"),
        (
            vec!["compress", plain, "--calibrate", "none"],
            "--calibrate none computes none",
        ),
        (
            vec!["convert", text(&gemma), "--task", "embed"],
            "thane compress of the package",
        ),
        (
            vec!["compress", plain, "--min-os", "ios16"],
            "--compress w8a8 needs ios17",
        ),
    ] {
        let args = [&args[..], &["--compress", "w8a8", "-o", text(&out)]].concat();
        assert_ends(&home.run(&args), 2, &[says]);
        assert!(!out.exists());
    }
}

/// A chunk that an encoding fits nothing of stays as it is.
#[test]
fn chunks_without_a_weight_that_fits_are_kept() {
    let home = Home::new();
    let cut = package(&home, "cut", "--form ane --block 8 --split 0-1,1-2,head");
    let small = home.path("small");
    // 47 divides the number of tokens, 282, and no other number of channels.
    let args = [
        "compress",
        "--json",
        text(&cut),
        "-o",
        text(&small),
        "--compress",
        "pal2g47",
    ];
    let report = json(&home.run(&args));
    let packages = report["packages"].as_array().unwrap();
    let n_tensors = |p: &Value| p["compression"]["tensors"].as_array().unwrap().len();
    assert_eq!(
        packages.iter().map(n_tensors).collect::<Vec<_>>(),
        [1, 0, 1]
    );
    let run = [
        "run",
        text(&small),
        "hello",
        "--max-tokens",
        "4",
        "--temperature",
        "0",
    ];
    assert_ends(&home.run(&run), 0, &[]);
    let args = [
        "compress",
        text(&cut),
        "-o",
        text(&small),
        "--force",
        "--compress",
        "5:7",
    ];
    assert_ends(&home.run(&args), 2, &["nothing to compress"]);
}

#[test]
fn nothing_to_compress_is_said_by_all_who_compress() {
    let home = Home::new();
    let (gemma, gguf, out) = (
        model("embeddinggemma"),
        chat_gguf(),
        home.path("out.mlpackage"),
    );
    for args in [
        vec!["convert", text(&gemma), "--task", "embed", "-o", text(&out)],
        vec!["convert", text(&gguf), "--form", "ane", "-o", text(&out)],
        vec!["plan", text(&gguf), "--target", "m4"],
    ] {
        let args = [&args[..], &["--compress", "5:7"]].concat();
        assert_ends(&home.run(&args), 2, &["nothing to compress"]);
        assert!(!out.exists());
    }
    let missing = home.path("missing");
    let args = ["compress", text(&missing), "-o", text(&out)];
    assert_ends(&home.run(&args), 2, &["there is no such file or folder"]);
}
