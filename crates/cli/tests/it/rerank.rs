//! `thane rerank` from end to end, on tiny models whose scores sentence-transformers computed
//! (`tests/models/README.md`).

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, json as report, stdout};

const NAMES: [&str; 7] = [
    "bert",
    "distilbert",
    "modernbert",
    "modernbert-saved",
    "qwen3-labels",
    "qwen3-yes-no",
    "xlm-roberta",
];

pub fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models/tiny-rerank")
        .join(name)
        .canonicalize()
        .unwrap()
}

pub fn golden(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(model(name).join("golden.json")).unwrap()).unwrap()
}

fn rerank(home: &Home, name: &str, flags: &[&str]) -> Output {
    let model = model(name);
    home.run(&[&["rerank", model.to_str().unwrap()], flags].concat())
}

/// The golden's texts as JSON lines with ids.
fn with_texts(golden: &Value) -> (Home, String) {
    let home = Home::new();
    let file = home.path("texts.jsonl");
    let texts = golden["texts"].as_array().unwrap().iter();
    let lines: String = texts
        .map(|t| format!("{}\n", json!({"text": t["text"], "id": t["name"]})))
        .collect();
    std::fs::write(&file, lines).unwrap();
    (home, file.to_str().unwrap().to_owned())
}

#[test]
fn scores_and_their_order_are_those_of_the_reference() {
    for name in NAMES {
        let golden = golden(name);
        let (home, file) = with_texts(&golden);
        let query = golden["query"].as_str().unwrap();
        let flags = [query, "--file", &file, "--numerics", "f32", "--json"];
        let found = report(&rerank(&home, name, &flags));
        let texts = golden["texts"].as_array().unwrap();
        assert_eq!(found["texts"], texts.len(), "{name}");
        let n_cut = texts.iter().filter(|t| t["cut"] == true).count();
        assert!(n_cut > 0, "{name}");
        assert_eq!(found["truncated"], n_cut, "{name}");
        let n_tokens: usize = texts
            .iter()
            .map(|t| t["ids"].as_array().unwrap().len())
            .sum();
        assert_eq!(found["tokens"], n_tokens, "{name}");
        let results = found["results"].as_array().unwrap();
        let order: Vec<&Value> = results.iter().map(|r| &r["index"]).collect();
        let expected: Vec<&Value> = golden["order"].as_array().unwrap().iter().collect();
        assert_eq!(order, expected, "{name}");
        for row in results {
            let text = &texts[row["index"].as_u64().unwrap() as usize];
            assert_eq!((&row["text"], &row["id"]), (&text["text"], &text["name"]));
            for key in ["logit", "score"] {
                let error = (row[key].as_f64().unwrap() - text[key].as_f64().unwrap()).abs();
                assert!(error < 1e-5, "{name}, {}, {key}: {error}", text["name"]);
            }
        }
    }
}

#[test]
fn the_best_texts_are_printed_first() {
    let home = Home::new();
    let texts = ["the sea", "a cat sleeps", "a station on the ridge"];
    let all = rerank(&home, "bert", &[&["a cat"], &texts[..]].concat());
    assert_ends(&all, 0, &[]);
    let lines: Vec<Vec<String>> = stdout(&all)
        .lines()
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect();
    assert_eq!(lines.len(), 3);
    let scores: Vec<f64> = lines.iter().map(|line| line[0].parse().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    for line in &lines {
        let number: usize = line[1].parse().unwrap();
        assert_eq!(line[2..].join(" "), texts[number - 1]);
    }
    let first = rerank(
        &home,
        "bert",
        &[&["a cat"], &texts[..], &["--top", "1"]].concat(),
    );
    assert_eq!(stdout(&first).lines().next(), stdout(&all).lines().next());
    assert_eq!(stdout(&first).lines().count(), 1);
}

/// Files have what `--json` prints, and are not replaced unless that is asked for.
#[test]
fn scores_are_written_to_files() {
    let golden = golden("bert");
    let (home, file) = with_texts(&golden);
    let query = golden["query"].as_str().unwrap();
    let expected = report(&rerank(&home, "bert", &[query, "--file", &file, "--json"]));
    let results = expected["results"].as_array().unwrap();
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let write = |name: &str, more: &[&str]| {
        let args = [query, "--file", &file, "-o", &path(name)];
        rerank(&home, "bert", &[&args[..], more].concat())
    };
    let written = write("a.jsonl", &[]);
    assert_ends(&written, 0, &[]);
    assert_eq!(stdout(&written), format!("{}\n", path("a.jsonl")));
    let lines = std::fs::read_to_string(path("a.jsonl")).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(&lines, results);
    assert_ends(&write("a.jsonl", &[]), 2, &["exists already", "--force"]);
    let replaced = report(&write("a.jsonl", &["--force", "--top", "2", "--json"]));
    assert_eq!(replaced["out"], path("a.jsonl"));
    assert_eq!(replaced["results"], Value::Null);
    let lines = std::fs::read_to_string(path("a.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 2);

    assert_ends(&write("a.npy", &[]), 0, &[]);
    let bytes = std::fs::read(path("a.npy")).unwrap();
    let scores = bytes[bytes.len() - 4 * results.len()..]
        .as_chunks()
        .0
        .iter();
    for (i, score) in scores.map(|b| f32::from_le_bytes(*b)).enumerate() {
        let row = results.iter().find(|row| row["index"] == i).unwrap();
        assert!(
            (row["score"].as_f64().unwrap() - f64::from(score)).abs() < 1e-6,
            "{i}"
        );
    }

    // A Parquet file is read back as texts with ids.
    assert_ends(&write("a.parquet", &[]), 0, &[]);
    let again = ["--file", &path("a.parquet"), "--json"];
    let again = report(&rerank(&home, "bert", &[&[query], &again[..]].concat()));
    let pairs = |rows: &Value| -> Vec<(Value, Value)> {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| (row["text"].clone(), row["id"].clone()))
            .collect()
    };
    assert_eq!(pairs(&again["results"]), pairs(&expected["results"]));

    for (name, more, says) in [
        (
            "b.csv",
            &[][..],
            "scores are written to .jsonl, .parquet and .npy",
        ),
        ("b.npy", &["--top", "2"], "it has scores alone"),
    ] {
        assert_ends(&write(name, more), 2, &[says]);
        assert!(!home.path(name).exists());
    }
}

#[test]
fn texts_come_from_stdin_too() {
    use std::io::Write;
    use std::process::Stdio;
    let home = Home::new();
    let model = model("bert");
    let mut command = home.thane(&["rerank", model.to_str().unwrap(), "a cat"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"the sea\na cat sleeps\n").unwrap();
    drop(stdin);
    let piped = child.wait_with_output().unwrap();
    let given = rerank(&home, "bert", &["a cat", "the sea", "a cat sleeps"]);
    assert_eq!(stdout(&piped), stdout(&given));
}

#[test]
fn models_and_flags_that_do_not_fit_are_refused() {
    let home = Home::new();
    let embedder = crate::embed::model("bert-mean");
    let embedder = embedder.to_str().unwrap();
    let found = home.run(&["rerank", embedder, "a query", "a text"]);
    assert_ends(
        &found,
        2,
        &[
            "architecture `bert`",
            "expected a sequence classifier",
            "thane embed",
        ],
    );
    let reranker = model("bert");
    let reranker = reranker.to_str().unwrap();
    let found = home.run(&["embed", reranker, "a text"]);
    assert_ends(&found, 2, &["sequence classifier (`bert`)", "thane rerank"]);
    let package = home.path("a.mlpackage");
    let found = home.run(&["convert", reranker, "-o", package.to_str().unwrap()]);
    assert_ends(&found, 2, &["found a reranker", "thane rerank"]);
    for (flags, parts) in [
        (["--max-length", "57"], "the model has 56 positions"),
        (
            ["--max-length", "2"],
            "a pair of texts needs 3 special tokens",
        ),
        (["--top", "0"], "--top"),
    ] {
        let found = rerank(
            &home,
            "bert",
            &[&["a query", "a text"], &flags[..]].concat(),
        );
        assert_ends(&found, 2, &[parts]);
    }
}

/// What a file says of scores is no obstacle to vectors.
#[test]
fn the_encoder_of_a_reranker_gives_vectors_with_a_pooling() {
    let home = Home::new();
    for name in NAMES {
        let model = model(name);
        let args = [
            "embed",
            "--pooling",
            "mean",
            model.to_str().unwrap(),
            "a cat",
        ];
        assert_ends(&home.run(&args), 0, &[]);
    }
}

/// Ids and short texts take memory too.
#[test]
fn all_texts_count_against_the_memory() {
    let home = Home::new();
    let id = "i".repeat(1_000_000);
    let ids: String = (0..40)
        .map(|_| format!("{{\"text\": \"a\", \"id\": \"{id}\"}}\n"))
        .collect();
    let short = "a\n".repeat(200_000);
    for (name, lines) in [("ids.jsonl", ids), ("short.txt", short)] {
        std::fs::write(home.path(name), lines).unwrap();
        let file = home.path(name);
        let flags = ["q", "--file", file.to_str().unwrap(), "--memory", "30MB"];
        // The last reservation that did not fit may be that of a tokenizer.
        let said = [" needs ", " of the allowed 30.0 MB", "--memory SIZE"];
        assert_ends(&rerank(&home, "bert", &flags), 2, &said);
    }
}
