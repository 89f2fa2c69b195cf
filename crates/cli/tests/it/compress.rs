//! `thane compress` and `thane convert --compress`: the same weights, packages that run, and what
//! is refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::decoder::models;
use crate::embed::model;
use crate::fixture::{Home, assert_ends, chat_gguf, conversion, json, sha256, stderr, stdout};

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
    assert_ends(&home.run(&["verify", text(&small)]), 0, &[]);
}

/// The package of any length is in a newer opset than the others, and all are one model.
#[test]
fn folders_of_embedding_models_can_be_loaded_and_share_what_they_did() {
    let home = Home::new();
    let (bert, plain) = (model("bert-mean"), home.path("plain"));
    let args = [
        "convert",
        text(&bert),
        "--task",
        "embed",
        "--buckets",
        "32,64",
    ];
    let args = [&args[..], &["--layout", "folder", "-o", text(&plain)]].concat();
    assert_ends(&home.run(&args), 0, &[]);
    for (name, flags) in [
        ("pal4", "--compress pal4"),
        ("sparse50", "--compress sparse50"),
        ("int8", "--compress int8"),
        ("auto", ""),
    ] {
        let (small, _) = compress(&home, &plain, name, flags);
        assert_ends(&home.run(&["embed", text(&small), "hello there"]), 0, &[]);
        assert_ends(&home.run(&["verify", text(&small)]), 0, &[]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let n_files = |folder: &Path, name: &str| {
                let inode = |package: &str| {
                    let found = fs::metadata(folder.join(package).join(name));
                    found.map(|found| found.ino()).ok()
                };
                let packages = ["L32.mlpackage", "L64.mlpackage", "any.mlpackage"];
                packages
                    .map(inode)
                    .into_iter()
                    .collect::<BTreeSet<_>>()
                    .len()
            };
            assert_eq!(
                n_files(&small, WEIGHTS),
                n_files(&plain, WEIGHTS),
                "{flags}"
            );
        }
    }
    let old = home.path("old");
    let args = [
        "compress",
        text(&plain),
        "-o",
        text(&old),
        "--compress",
        "pal4",
    ];
    let output = home.run(&[&args[..], &["--min-os", "ios16"]].concat());
    assert_ends(
        &output,
        2,
        &["expected packages of ios16 or before, found some of ios18"],
    );
    let inside = plain.join("small");
    let output = home.run(&["compress", text(&plain), "-o", text(&inside)]);
    assert_ends(&output, 2, &["it would lie in the input"]);
    assert_eq!(fs::read_dir(&plain).unwrap().count(), 4);
}

/// Weights that are stored in fp16 and used in fp32 are weights as others are.
#[test]
fn portable_packages_of_fp16_are_compressed() {
    let home = Home::new();
    let (llama, plain) = (
        models().join("tiny/llama-f16"),
        home.path("plain.mlpackage"),
    );
    let convert = ["convert", text(&llama), "--form", "portable", "-o"];
    assert_ends(&home.run(&[&convert[..], &[text(&plain)]].concat()), 0, &[]);
    let (small, report) = compress(&home, &plain, "small.mlpackage", "--compress pal4");
    let done = &report["packages"][0]["compression"];
    let [before, after] = ["bytes_before", "bytes"].map(|key| done[key].as_u64().unwrap());
    let size = |package: &Path| fs::metadata(package.join(WEIGHTS)).unwrap().len();
    assert!(after < before && size(&small) < size(&plain) / 2, "{done}");
    let saved = size(&plain) - size(&small);
    assert!(
        saved.abs_diff(before - after) < 8192,
        "{saved}: {before} {after}"
    );
    let once = home.path("once.mlpackage");
    let convert = [&convert[..], &[text(&once), "--compress", "pal4"]].concat();
    assert_ends(&home.run(&convert), 0, &[]);
    assert!(size(&once).abs_diff(size(&small)) < 8192);
}

/// A weight that does not fit the limit is named before it is read.
#[test]
fn compressing_counts_against_the_limit_of_memory() {
    let home = Home::new();
    let plain = convert(&home, "plain.mlpackage", "");
    let out = home.path("small.mlpackage");
    let args = [
        "compress",
        text(&plain),
        "-o",
        text(&out),
        "--memory",
        "1kB",
    ];
    let output = home.run(&args);
    assert_ends(
        &output,
        2,
        &["compressing the largest weight needs", "--memory SIZE"],
    );
    assert!(!out.exists() && !home.path("small.mlpackage.codes").exists());
}

/// A folder that no earlier run has begun stays as it is.
#[test]
fn a_folder_in_the_place_of_finished_tensors_is_refused() {
    let home = Home::new();
    let plain = convert(&home, "plain.mlpackage", "");
    let (out, codes) = (
        home.path("small.mlpackage"),
        home.path("small.mlpackage.codes"),
    );
    fs::create_dir(&codes).unwrap();
    fs::write(codes.join("thesis.txt"), "precious").unwrap();
    let gguf = chat_gguf();
    let compress = ["compress", text(&plain), "--compress", "pal4"];
    let convert = [
        "convert",
        text(&gguf),
        "--form",
        "ane",
        "--compress",
        "pal4",
    ];
    for args in [&compress[..], &convert] {
        let output = home.run(&[args, &["-o", text(&out)]].concat());
        assert_ends(
            &output,
            2,
            &["small.mlpackage.codes holds what thane did not write"],
        );
        assert_eq!(fs::read(codes.join("thesis.txt")).unwrap(), b"precious");
        assert!(!out.exists());
    }
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
    assert_ends(&home.run(&["verify", text(&out)]), 0, &[]);
}

/// Vectors of few bits are far from those of the checkpoint, which is no damage.
#[test]
fn embedding_models_of_few_bits_are_verified_by_what_they_were() {
    let home = Home::new();
    let (bert, out) = (model("bert-mean"), home.path("bert.mlpackage"));
    let args = ["convert", text(&bert), "--task", "embed", "--buckets", "32"];
    let args = [&args[..], &["--compress", "pal1", "-o", text(&out)]].concat();
    assert_ends(&home.run(&args), 0, &[]);
    let golden = out.join("Data/ai.thane/golden.json");
    let mut goldens: Value = serde_json::from_slice(&fs::read(&golden).unwrap()).unwrap();
    assert!(goldens[1]["cosine"].as_f64().unwrap() < 0.99, "{goldens}");
    assert_ends(&home.run(&["verify", text(&out)]), 0, &[]);
    assert_ends(&home.run(&["check", text(&out)]), 0, &[]);
    // The recorded similarity decides: a package whose vectors moved fails.
    goldens[1]["cosine"] = Value::from(0.9999);
    let bytes = goldens.to_string();
    let contract = out.join("Data/ai.thane/contract.json");
    let mut stated: Value = serde_json::from_slice(&fs::read(&contract).unwrap()).unwrap();
    let mut files = stated["files"].as_array_mut().unwrap().iter_mut();
    let file = files
        .find(|file| file["path"] == "Data/ai.thane/golden.json")
        .unwrap();
    file["sha256"] = sha256(bytes.as_bytes()).into();
    file["bytes"] = bytes.len().into();
    fs::write(&golden, bytes).unwrap();
    fs::write(&contract, stated.to_string()).unwrap();
    assert_ends(
        &home.run(&["verify", text(&out)]),
        1,
        &["vectors are not what they were"],
    );
}

/// A package of which no weight can be compressed so is not written.
/// A constant that functions use in different ways is one in the list of those that stay.
#[test]
fn what_is_left_is_listed_once() {
    let home = Home::new();
    let (from, out) = (model("bert-mean"), home.path("x.mlpackage"));
    let flags = "--compress int8 --lookup host --json";
    let output = home.run(&conversion(text(&from), text(&out), flags));
    assert_ends(&output, 0, &[]);
    let left = json(&output)["compression"]["left"].clone();
    let left = left.as_array().unwrap().iter();
    let mut names: Vec<&str> = left.map(|row| row["name"].as_str().unwrap()).collect();
    assert!(
        names.contains(&"embeddings_position_embeddings_weight"),
        "{names:?}"
    );
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n);
}

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
