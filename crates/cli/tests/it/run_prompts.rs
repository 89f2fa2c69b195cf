//! Prompts that `thane run --prompt-cache` keeps, alone and beside `thane serve`.

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, chat_folder, conversion, json};
use crate::serve_client::Server;

/// Tokens of the prompt, those that were computed, and the answer.
fn ask(home: &Home, words: usize, flags: &[&str]) -> (u64, u64, Value) {
    let model = chat_folder();
    let prompt = "the air and the sea ".repeat(words) + "now";
    let fixed = [
        "run",
        model.to_str().unwrap(),
        &prompt,
        "--raw",
        "--max-tokens",
        "6",
        "--json",
    ];
    let fixed = [
        &fixed[..],
        &["--context", "512", "--temperature", "0"],
        flags,
    ]
    .concat();
    let output = home.run(&fixed);
    assert_ends(&output, 0, &[]);
    let report = json(&output);
    let n = report["prompt_tokens"].as_array().unwrap().len() as u64;
    let computed = report["timings"]["prefill_tokens"].as_u64().unwrap();
    (n, computed, report["tokens"].clone())
}

#[test]
fn a_later_run_computes_what_is_new() {
    let home = Home::new();
    let folder = home.path("prompts");
    let flags = [
        "--prompt-cache",
        folder.to_str().unwrap(),
        "--numerics",
        "f32",
    ];
    let (n, computed, answer) = ask(&home, 40, &flags);
    assert!(n > 150 && computed == n, "{n} {computed}");
    let alone = ask(&home, 40, &flags[2..]);
    assert_eq!(alone, (n, n, answer.clone()));
    let kept = (n + 5) / 64 * 64;
    let rest = |n: u64, kept: u64| n - kept.min(n - 1);
    assert_eq!(ask(&home, 40, &flags), (n, rest(n, kept), answer));
    // A longer text begins alike; so does a shorter one.
    for words in [50, 20] {
        let (n, computed, answer) = ask(&home, words, &flags);
        assert!(n - computed >= 64, "{words}: {computed} of {n}");
        assert_eq!(answer, ask(&home, words, &flags[2..]).2, "{words}");
    }
    // Other arithmetic has pages of its own.
    let (n, computed, _) = ask(&home, 40, &flags[..2]);
    assert_eq!(n, computed);
    // A damaged page is computed.
    for entry in std::fs::read_dir(&folder).unwrap() {
        for page in std::fs::read_dir(entry.unwrap().path()).unwrap() {
            std::fs::write(page.unwrap().path(), "THANEKV1 and more").unwrap();
        }
    }
    let (n, computed, again) = ask(&home, 40, &flags);
    assert_eq!((computed, again), (n, alone.2));
}

#[test]
fn run_and_serve_share_a_folder() {
    let home = Home::new();
    let folder = home.path("prompts");
    let flags = ["--prompt-cache", folder.to_str().unwrap()];
    ask(&home, 40, &flags);
    let server = Server::start(&flags);
    let prompt = "the air and the sea ".repeat(40) + "now";
    let body = json!({"model": "tiny-chat", "prompt": prompt, "max_tokens": 2});
    let answer = server.post("/v1/completions", &body.to_string(), "").json();
    let usage = &answer["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!(cached >= 128, "{usage}");
}

#[test]
fn models_without_pages_and_bad_folders_are_told() {
    let home = Home::new();
    let model = chat_folder();
    let model = model.to_str().unwrap();
    let file = home.path("file");
    std::fs::write(&file, "").unwrap();
    let run = |model: &str, rest: &[&str]| home.run(&[&["run", model, "hi"], rest].concat());
    let file = file.to_str().unwrap();
    assert_ends(&run(model, &["--prompt-cache", file]), 2, &[file]);
    assert_ends(
        &run(model, &["--prompt-cache-size", "1GB"]),
        2,
        &["--prompt-cache"],
    );
    let package = home.path("p.mlpackage");
    let package = package.to_str().unwrap();
    let args = conversion(model, package, "--form ane --context 64");
    assert_ends(&home.run(&args), 0, &[]);
    let folder = home.path("prompts");
    let flags = [
        "--prompt-cache",
        folder.to_str().unwrap(),
        "--max-tokens",
        "2",
    ];
    assert_ends(
        &run(package, &flags),
        0,
        &["--prompt-cache keeps nothing of this model"],
    );
}
