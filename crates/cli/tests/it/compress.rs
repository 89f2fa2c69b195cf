//! `thane compress` and `thane convert --compress`: the same weights, packages that run, and what
//! is refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::embed::model;
use crate::fixture::{Home, assert_ends, chat_gguf, json, stderr, stdout};

const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Converts the chat model in the form for the Neural Engine.
fn convert(home: &Home, out: &str, flags: &str) -> PathBuf {
    let (out, gguf) = (home.path(out), chat_gguf());
    let fixed = format!("convert --form ane --context 64 --block 8 {flags} -o");
    let mut args: Vec<&str> = fixed.split(' ').filter(|word| !word.is_empty()).collect();
    args.extend([text(&out), text(&gguf)]);
    assert_ends(&home.run(&args), 0, &[]);
    out
}

fn compress(home: &Home, from: &Path, out: &str, flags: &str) -> (PathBuf, Value) {
    let out = home.path(out);
    let flags = flags.split(' ').filter(|word| !word.is_empty());
    let mut args = vec!["compress", "--json", text(from), "-o", text(&out)];
    args.extend(flags);
    let report = json(&home.run(&args));
    (out, report)
}

fn answer(home: &Home, package: &Path) -> String {
    let args = [
        "run",
        text(package),
        "hello",
        "--raw",
        "--temperature",
        "0",
        "--max-tokens",
        "8",
    ];
    let output = home.run(&[&args[..], &["--numerics", "f32"]].concat());
    assert_ends(&output, 0, &[]);
    stdout(&output)
}

/// A package that is compressed has the weights of one that is converted so, whose errors are
/// weighed by a text beside that, and keeps what it needs to run.
#[test]
fn packages_are_compressed_as_checkpoints_are() {
    let home = Home::new();
    let plain = convert(&home, "plain.mlpackage", "");
    for (k, flags) in [
        "--compress pal4 --compress-tables int8",
        "--compress pal6 --scale inside",
        "--compress int8",
    ]
    .into_iter()
    .enumerate()
    {
        let at_once = convert(&home, &format!("once{k}.mlpackage"), flags);
        let (later, report) = compress(&home, &plain, &format!("later{k}.mlpackage"), flags);
        let size = |path: &Path| fs::metadata(path.join(WEIGHTS)).unwrap().len();
        assert_eq!(size(&at_once), size(&later), "{flags}");
        let done = &report["packages"][0]["compression"];
        assert!(done["bits"].as_f64().unwrap() < 9.0 && done["error"].as_f64().unwrap() > 0.0);
        assert_ends(&home.run(&["check", text(&later)]), 0, &[]);
        answer(&home, &at_once);
        answer(&home, &later);
        assert!(size(&later) < size(&plain));
        // What was finished is in the output.
        assert!(!home.path(&format!("later{k}.mlpackage.codes")).exists());
        let again = home.run(&[
            "compress",
            text(&later),
            "-o",
            text(&home.path("x.mlpackage")),
        ]);
        assert_ends(&again, 2, &["nothing to compress", "compressed already"]);
        assert!(!home.path("x.mlpackage").exists());
    }
}

#[test]
fn folders_of_packages_are_compressed_whole() {
    let home = Home::new();
    let plain = convert(&home, "plain", "--split 2");
    let (small, report) = compress(&home, &plain, "small", "--compress pal6");
    assert_eq!(report["packages"].as_array().unwrap().len(), 2);
    assert!(!answer(&home, &small).is_empty());
    let gemma = model("embeddinggemma");
    let folder = home.path("embeds");
    let args = [
        "convert",
        text(&gemma),
        "--task",
        "embed",
        "--buckets",
        "24,48",
    ];
    let args = [&args[..], &["--layout", "folder", "-o", text(&folder)]].concat();
    assert_ends(&home.run(&args), 0, &[]);
    let (small, _) = compress(&home, &folder, "small-embeds", "--compress int8");
    // Packages of one model share the file of their compressed weights.
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let inode = |name: &str| fs::metadata(small.join(name).join(WEIGHTS)).unwrap().ino();
        assert_eq!(inode("L24.mlpackage"), inode("L48.mlpackage"));
    }
    assert_ends(
        &home.run(&["verify", text(&small), "--cosine", "0.99"]),
        0,
        &[],
    );
}

#[test]
fn embedding_models_are_compressed_as_they_are_written() {
    let home = Home::new();
    let (gemma, out) = (model("embeddinggemma"), home.path("gemma.mlpackage"));
    let args = [
        "convert",
        text(&gemma),
        "--task",
        "embed",
        "--buckets",
        "24",
        "--json",
    ];
    let args = [&args[..], &["--compress", "int8", "-o", text(&out)]].concat();
    let report = json(&home.run(&args));
    assert!(
        report["compression"]["tensors"].as_array().unwrap().len() > 1,
        "{report}"
    );
    assert_ends(
        &home.run(&["verify", text(&out), "--cosine", "0.99"]),
        0,
        &[],
    );
}

/// A package of which no weight can be compressed so is not written.
#[test]
fn nothing_to_compress_is_an_error() {
    let home = Home::new();
    let (gguf, out) = (chat_gguf(), home.path("out.mlpackage"));
    let args = [
        "convert",
        text(&gguf),
        "--compress",
        "5:7",
        "-o",
        text(&out),
    ];
    assert_ends(&home.run(&args), 2, &["nothing to compress"]);
    assert!(!out.exists());
}

#[test]
fn what_cannot_be_compressed_is_refused_before_any_work() {
    let home = Home::new();
    let plain = convert(&home, "plain.mlpackage", "");
    let (plain, gguf) = (text(&plain), chat_gguf());
    let out = home.path("out.mlpackage");
    let out = text(&out);
    let gguf = text(&gguf);
    for (args, says) in [
        (
            vec!["compress", plain, "--compress", "pal5"],
            "expected an encoding, found `pal5`",
        ),
        (vec!["compress", plain, "--compress", "int4b32"], "ANE083"),
        (
            vec![
                "compress",
                plain,
                "--compress",
                "pal4g8",
                "--min-os",
                "ios16",
            ],
            "--compress pal4g8 needs ios18, and the oldest system reads ios16",
        ),
        (
            vec!["compress", plain, "--scale", "inside", "--compress", "int8"],
            "int8 has no scales of channels beside it",
        ),
        (
            vec!["compress", gguf],
            "expected a package or a folder of packages",
        ),
        (
            vec!["convert", gguf, "--scale", "behind"],
            "--scale says how --compress does it",
        ),
        (
            vec!["convert", gguf, "--target", "a19", "--compress", "int4b32"],
            "ANE083",
        ),
        (
            vec![
                "convert",
                gguf,
                "--target",
                "m5-max+macos26",
                "--compress",
                "int8",
            ],
            "ANE162",
        ),
        (
            vec![
                "convert",
                gguf,
                "--form",
                "ane",
                "--compress",
                "pal3",
                "--min-os",
                "ios17",
            ],
            "--compress pal3 needs ios18",
        ),
    ] {
        let output = home.run(&[&args[..], &["-o", out]].concat());
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(says),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(!Path::new(out).exists(), "{args:?}");
    }
    let output = home.run(&["compress", plain, "-o", plain, "--force"]);
    assert_ends(&output, 2, &["it would replace the input"]);
}
