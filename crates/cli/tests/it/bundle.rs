//! Embedding models as packages: converted, verified, embedded with; and what is refused.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::embed::model;
use crate::fixture::{Home, assert_ends, conversion, json, sha256, stderr, stdout};

const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn convert(home: &Home, name: &str, out: &str, flags: &[&str]) -> (PathBuf, Output) {
    let out = home.path(out);
    let model = model(name);
    let args = conversion(
        text(&model),
        text(&out),
        "--json --task embed --buckets 24,48",
    );
    let output = home.run(&[&args[..], flags].concat());
    (out, output)
}

fn vectors(home: &Home, model: &Path, flags: &[&str]) -> Vec<Vec<f32>> {
    let long = "one two three four five six seven eight nine ten eleven twelve ".repeat(4);
    let texts = [
        "a",
        "Hello there, world",
        "What is the capital of France, and what is it not?",
        &long,
    ];
    let args = [
        "embed",
        "--json",
        "--numerics",
        "f32",
        "--format",
        "float",
        "--truncate",
        text(model),
    ];
    let report = json(&home.run(&[&args[..], &texts, flags].concat()));
    serde_json::from_value(report["embeddings"].clone()).unwrap()
}

pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum::<f64>()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Texts go to the smallest bucket that holds them, and to the function of any length where none
/// does.
#[test]
fn packages_embed_as_their_checkpoints_do() {
    for name in [
        "bert-cls",
        "bert-steps",
        "bert-prompt",
        "roberta",
        "mpnet",
        "modernbert-mean",
        "qwen3-embedding",
        "qwen3-pplx",
        "mistral-lasttoken",
        "embeddinggemma",
    ] {
        let home = Home::new();
        let expected = vectors(&home, &model(name), &[]);
        for (out, layout, lookup) in [
            ("model.mlpackage", "package", "inside"),
            ("folder", "folder", "host"),
        ] {
            let flags = ["--layout", layout, "--lookup", lookup];
            let (path, output) = convert(&home, name, out, &flags);
            assert_ends(&output, 0, &[]);
            let found = vectors(&home, &path, &[]);
            for (a, b) in found.iter().zip(&expected) {
                assert_eq!(a.len(), b.len(), "{name}, {layout}");
                assert!(cosine(a, b) >= 0.9995, "{name}, {layout}: {}", cosine(a, b));
            }
            let verified = json(&home.run(&["verify", "--json", text(&path)]));
            assert_eq!(
                (
                    &verified["passed"],
                    verified["vectors"].as_array().unwrap().len()
                ),
                (&true.into(), 8),
                "{name}"
            );
            for flags in [
                &["--numerics", "ane"][..],
                &["--numerics", "ane", "--cosine", "0.9999999"],
            ] {
                let output = home.run(&[&["verify", text(&path)], flags].concat());
                assert_eq!(
                    output.status.code(),
                    Some(if flags.len() == 2 { 0 } else { 1 }),
                    "{name}: {}",
                    stderr(&output)
                );
            }
        }
    }
}

/// Known texts are longer than the longest bucket: each package has the vectors of what it takes of
/// them.
#[test]
fn known_texts_are_cut_to_what_a_package_takes() {
    for (name, flags) in [
        ("bert-mean", &["--no-flexible"][..]),
        ("qwen3-embedding", &["--no-flexible"]),
        ("qwen3-pplx", &["--no-flexible", "--chunks"]),
        ("bert-mean", &["--layout", "folder"]),
        ("bert-mean", &["--layout", "folder", "--no-flexible"]),
    ] {
        let home = Home::new();
        let (path, output) = convert(&home, name, "out.mlpackage", flags);
        assert_ends(&output, 0, &[]);
        let mut packages = vec![path.clone()];
        if flags.contains(&"folder") {
            packages.extend([path.join("L24.mlpackage"), path.join("L48.mlpackage")]);
        }
        for package in packages {
            let output = home.run(&["verify", text(&package)]);
            assert_ends(&output, 0, &[]);
            assert!(
                stdout(&output).contains("pass") && !stdout(&output).contains("FAIL"),
                "{name} {flags:?}"
            );
        }
    }
}

#[test]
fn packages_of_a_folder_share_their_weights() {
    share(("qwen3-pplx", "inside"), &[WEIGHTS]);
    let table = "Data/ai.thane/token_embedding.npy";
    share(("qwen3-embedding", "host"), &[WEIGHTS, table]);
}

fn share((name, lookup): (&str, &str), files: &[&str]) {
    let home = Home::new();
    let flags = ["--layout", "folder", "--lookup", lookup];
    let (folder, output) = convert(&home, name, "folder", &flags);
    let report = json(&output);
    assert_eq!(
        (&report["buckets"], &report["flexible"], &report["packages"]),
        (&[24, 48][..].into(), &true.into(), &3.into())
    );
    let mut weights = 0;
    for file in files {
        let hashes = ["L24", "L48", "any"].map(|p| {
            let file = folder.join(format!("{p}.mlpackage")).join(file);
            sha256(&std::fs::read(file).unwrap())
        });
        assert!(hashes.iter().all(|h| *h == hashes[0]), "{name}, {file}");
        let first = folder.join("L24.mlpackage").join(file);
        weights += std::fs::metadata(first).unwrap().len();
    }
    let (bytes, disk) = (
        report["bytes"].as_u64().unwrap(),
        report["disk_bytes"].as_u64().unwrap(),
    );
    assert_eq!(bytes - disk, 2 * weights, "{report}");
    for package in ["L24", "any"] {
        assert_ends(
            &home.run(&["check", text(&folder.join(format!("{package}.mlpackage")))]),
            0,
            &[],
        );
    }
}

/// Without `--lookup` both ways are priced; with it, what it costs is said.
#[test]
fn who_looks_rows_up_is_chosen_by_price_and_said() {
    let home = Home::new();
    let model = model("bert-mean");
    let convert = |out: &str, flags: &[&str]| {
        let out = home.path(out);
        let args = ["convert", "--task", "embed", text(&model), "-o", text(&out)];
        let output = home.run(&[&args[..], &["--buckets", "24,48"], flags].concat());
        assert_ends(&output, 0, &[]);
        stderr(&output)
    };
    let said = convert("chosen.mlpackage", &[]);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("; ")).collect();
    assert!(lines[0].starts_with("for m4+macos27: "), "{said}");
    assert!(lines[1].starts_with("  next best: tables "), "{said}");
    let ms = |line: &str| {
        let (_, rest) = line.split_once("; ").unwrap();
        let (ms, rest) = rest.split_once(" ms a call of encode_48").unwrap();
        assert!(rest.contains("% of "), "{said}");
        ms.parse::<f64>().unwrap()
    };
    assert!(ms(lines[0]) <= ms(lines[1]), "{said}");
    let said = convert(
        "inside.mlpackage",
        &["--lookup", "inside", "--target", "a19"],
    );
    assert!(said.contains("for a19"), "{said}");
    assert!(
        said.contains("tables inside") && !said.contains("next best"),
        "{said}"
    );
}

/// What is damaged or missing of tables that the app looks up is said.
#[test]
fn tables_that_do_not_fit_are_refused() {
    let home = Home::new();
    let flags = ["--lookup", "host"];
    let (package, output) = convert(&home, "roberta", "model.mlpackage", &flags);
    assert_eq!(json(&output)["lookup"], "host");
    let contract: serde_json::Value = {
        let file = package.join("Data/ai.thane/contract.json");
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    };
    assert_eq!(contract["model"]["padding_token"], 1);
    let table = package.join("Data/ai.thane/position_embedding.npy");
    let whole = std::fs::read(&table).unwrap();
    std::fs::write(&table, &whole[..whole.len() - 2]).unwrap();
    let embed = ["embed", text(&package), "hello"];
    assert_ends(
        &home.run(&embed),
        2,
        &["position_embedding.npy", "changed or damaged"],
    );
}

/// Nothing is written of a folder that is damaged, or has nothing to fix.
#[test]
fn a_folder_that_cannot_be_fixed_is_left_alone() {
    let home = Home::new();
    let (folder, output) = convert(
        &home,
        "roberta",
        "folder",
        &["--layout", "folder", "--lookup", "inside"],
    );
    assert_ends(&output, 0, &[]);
    std::fs::write(folder.join("other.txt"), "x").unwrap();
    let fixed = home.path("fixed");
    // Somebody added a file: the manifest does not have it.
    let changed = home.run(&["audit", text(&folder), "--fix", "-o", text(&fixed)]);
    assert_ends(&changed, 2, &["other.txt", "changed"]);
    std::fs::remove_file(folder.join("other.txt")).unwrap();
    let into_text = home.run(&[
        "audit",
        text(&folder),
        "--fix",
        "-o",
        text(&home.path("fixed.mil")),
    ]);
    assert_ends(&into_text, 2, &["--fix takes"]);
    assert!(!fixed.exists() && !home.path("fixed.mil").exists());

    // The packages of embedding models have nothing to fix.
    let fix = [
        "audit",
        text(&folder),
        "--fix",
        "--json",
        "-o",
        text(&fixed),
    ];
    let report = json(&home.run(&fix));
    assert_eq!(report["written"], false, "{report}");
    assert!(!fixed.exists());
}

/// Each package is fixed, and the folder is still one, which answers as before.
#[test]
fn a_folder_is_fixed_as_a_whole() {
    let home = Home::new();
    let model = crate::fixture::chat_folder();
    let (chunks, fixed) = (home.path("chunks"), home.path("fixed"));
    let convert = ["convert", text(&model), "--form", "ane", "--context", "64"];
    let cut = ["--split", "2", "--lookup", "inside", "-o", text(&chunks)];
    assert_ends(&home.run(&[convert, cut].concat()), 0, &[]);
    let fix = [
        "audit",
        text(&chunks),
        "--fix",
        "--json",
        "-o",
        text(&fixed),
    ];
    let report = json(&home.run(&fix));
    // Each rewrite is tried in each function, and what is not kept says why.
    let steps = report["steps"].as_array().unwrap();
    let of = |package: &str| {
        let names = steps.iter().map(|step| step["function"].as_str().unwrap());
        names.filter(|name| name.starts_with(package)).count()
    };
    assert!(
        of("chunk1.mlpackage/") > 0 && of("chunk2.mlpackage/") > 0,
        "{report}"
    );
    for step in steps {
        assert_eq!(step["kept"], step["proven"], "{step}");
        assert!(step["kept"] == true || step["reason"].is_string(), "{step}");
    }
    let answer = |folder: &Path| {
        let asked = [
            "run",
            text(folder),
            "--temperature",
            "0",
            "--max-tokens",
            "8",
        ];
        let output = home.run(&[&asked[..], &["Hello there"]].concat());
        assert_ends(&output, 0, &[]);
        stdout(&output)
    };
    assert_eq!(answer(&fixed), answer(&chunks));
    // Nothing is left of what was begun.
    let names: Vec<String> = std::fs::read_dir(fixed.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("partial"))
        .collect();
    assert!(names.is_empty(), "{names:?}");
}

/// Late chunking with a matrix of fixed height.
#[test]
fn a_package_of_chunks_pools_as_the_checkpoint_does() {
    let home = Home::new();
    let (path, output) = convert(&home, "qwen3-pplx", "chunks.mlpackage", &["--chunks"]);
    assert_ends(&output, 0, &[]);
    let file = home.path("documents.jsonl");
    std::fs::write(
        &file,
        "{\"text\": [\"a stone above the sea\", \"a cat\", \"and no more\"]}\n",
    )
    .unwrap();
    let chunks = |model: &Path| -> Vec<f32> {
        let flags = ["--json", "--chunks", "--format", "float"];
        let texts = ["--file", text(&file)];
        let args = [&["embed", text(model)][..], &flags, &texts].concat();
        let report = json(&home.run(&args));
        serde_json::from_value::<Vec<Vec<Vec<f32>>>>(report["embeddings"].clone()).unwrap()[0]
            .concat()
    };
    let (found, expected) = (chunks(&path), chunks(&model("qwen3-pplx")));
    assert!(found.len() == expected.len() && cosine(&found, &expected) >= 0.9995);
    let verified = json(&home.run(&["verify", "--json", text(&path)]));
    // Those that fit into one document of 48 tokens.
    assert_eq!(
        (
            &verified["passed"],
            verified["vectors"].as_array().unwrap().len()
        ),
        (&true.into(), 4),
        "{verified}"
    );
    let refused = home.run(&["embed", text(&path), "hello"]);
    assert_ends(
        &refused,
        2,
        &["gives vectors of chunks", "thane embed with the checkpoint"],
    );
}

#[test]
fn what_was_changed_does_not_pass() {
    let home = Home::new();
    let (folder, _) = convert(&home, "bert-mean", "folder", &["--layout", "folder"]);
    let manifest = folder.join("manifest.json");
    let whole = std::fs::read_to_string(&manifest).unwrap();
    let fails = |parts: &[&str]| assert_ends(&home.run(&["verify", text(&folder)]), 2, parts);
    std::fs::write(&manifest, whole.replace("\"schema\": 1", "\"schema\": 9")).unwrap();
    fails(&["expected schema 1, found 9"]);
    std::fs::write(&manifest, &whole[..whole.len() / 2]).unwrap();
    fails(&["manifest.json"]);
    std::fs::write(&manifest, &whole).unwrap();
    let weights = folder.join("L24.mlpackage").join(WEIGHTS);
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::remove_file(&weights).unwrap();
    std::fs::write(&weights, bytes).unwrap();
    fails(&[
        "L24.mlpackage/Data/com.apple.CoreML/weights/weight.bin` is not what manifest.json says",
    ]);
    std::fs::remove_dir_all(folder.join("L24.mlpackage")).unwrap();
    fails(&["L24.mlpackage", "convert again"]);
}

#[test]
fn a_bad_wish_is_refused_before_anything_is_written() {
    let home = Home::new();
    for (flags, parts) in [
        (
            &["--buckets", "0"][..],
            &["expected bucket lengths from 1 to 96"][..],
        ),
        (&["--buckets", "97"], &["97", "96"]),
        (&["--residual-divisor", "3"], &["a power of two"]),
    ] {
        let out = home.path("model.mlpackage");
        let name = model("bert-mean");
        let args = ["convert", "--task", "embed", text(&name), "-o", text(&out)];
        assert_ends(&home.run(&[&args[..], flags].concat()), 2, parts);
        assert!(!out.exists());
    }
    let (package, _) = convert(&home, "bert-mean", "model.mlpackage", &[]);
    let (_, again) = convert(&home, "bert-mean", "model.mlpackage", &[]);
    assert_ends(&again, 2, &["exists already", "--force"]);
    assert_ends(
        &convert(&home, "bert-mean", "model.mlpackage", &["--force"]).1,
        0,
        &[],
    );
    assert_ends(
        &home.run(&["run", text(&package), "hello"]),
        2,
        &["makes vectors of texts", "thane embed"],
    );
    let files = home.files("");
    assert!(!files.iter().any(|n| n.contains("partial")), "{files:?}");
    let stale = stdout(&home.run(&["embed", text(&package), "hello"]));
    assert!(stale.starts_with('['), "{stale}");
}
