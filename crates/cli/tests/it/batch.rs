//! `thane batch`: answers are the server's, and a run that was killed loses and repeats none.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, chat_folder, json, stderr, until};
use crate::serve::assert_near;
use crate::serve_client::{Server, with};

/// A line of a file of requests.
pub fn line(custom_id: &str, url: &str, body: Value) -> String {
    json!({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).to_string()
}

fn chat(idx: usize, max_tokens: usize) -> String {
    let content = format!("{idx} the air and the sea");
    let body = json!({
        "model": "gpt-4o", "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens, "temperature": 0, "logit_bias": {"2": -100},
    });
    line(&format!("c{idx}"), "/v1/chat/completions", body)
}

/// The arguments of a batch over the tiny models.
fn args(home: &Home, rest: &[&str]) -> Vec<String> {
    let chat = format!("gpt-4o={}", chat_folder().display());
    let bert = crate::embed::model("bert-mean").display().to_string();
    let [file, out] = ["in.jsonl", "out.jsonl"].map(|name| home.path(name).display().to_string());
    let fixed = [
        "batch", &file, "-o", &out, "--model", &chat, "--model", &bert,
    ];
    let fixed = fixed
        .iter()
        .chain(&["--context", "512", "--numerics", "f32"]);
    fixed.chain(rest).map(|arg| (*arg).to_owned()).collect()
}

fn batch(home: &Home, rest: &[&str]) -> Command {
    let args = args(home, rest);
    home.thane(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn rows(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What no two runs have in common left out.
fn lasting(mut row: Value) -> Value {
    if let Some(body) = row["response"]["body"].as_object_mut() {
        body.retain(|field, _| !["id", "created", "usage"].contains(&field.as_str()));
    }
    row
}

fn text() -> Value {
    json!({"model": "gpt-4o", "prompt": "the sea", "max_tokens": 5, "temperature": 0})
}

fn vector() -> Value {
    json!({"model": "bert-mean", "input": ["the sea", "a cat"]})
}

#[test]
fn answers_are_those_of_the_server() {
    let home = Home::new();
    let lines = [
        chat(0, 8),
        line("t", "/v1/completions", text()),
        line("v", "/v1/embeddings", vector()),
    ];
    fs::write(home.path("in.jsonl"), lines.join("\n")).unwrap();
    assert_ends(&batch(&home, &[]).output().unwrap(), 0, &["3 requests\n"]);
    let rows = rows(&home.path("out.jsonl"));
    let server = Server::start(&["--numerics", "f32"]);
    let asked: Value = serde_json::from_str(&chat(0, 8)).unwrap();
    let named = |body: Value| with(body, json!({"model": "tiny-chat"}));
    let chat = server.chat(named(asked["body"].clone()));
    let text = server.post("/v1/completions", &named(text()).to_string(), "");
    for (row, answer) in rows.iter().zip([chat, text]) {
        let response = &row["response"];
        let answer = answer.json();
        assert_eq!(response["status_code"], 200);
        for field in ["choices", "model", "object", "usage"] {
            assert_eq!(response["body"][field], answer[field], "{row}");
        }
    }
    let answer = server.post("/v1/embeddings", &vector().to_string(), "");
    let answer = answer.json();
    for i in 0..2 {
        let found = &rows[2]["response"]["body"]["data"][i]["embedding"];
        assert_near(&json!([found]), &json!([answer["data"][i]["embedding"]]));
    }
}

#[test]
fn lines_without_an_answer_say_why() {
    let home = Home::new();
    let lines = [
        line("v", "/v1/embeddings", vector()),
        String::new(),
        "{\"custom_id\": 3}".to_owned(),
        line("v", "/v1/embeddings", vector()),
        line(
            "w",
            "/v1/embeddings",
            with(vector(), json!({"dimensions": 0})),
        ),
        line(
            "m",
            "/v1/embeddings",
            with(vector(), json!({"model": "gone"})),
        ),
        line(
            "s",
            "/v1/completions",
            with(text(), json!({"stream": true})),
        ),
        line("u", "/v1/images", json!({})),
    ];
    fs::write(home.path("in.jsonl"), lines.join("\n")).unwrap();
    let output = batch(&home, &["--json"]).output().unwrap();
    assert_ends(
        &output,
        1,
        &["out.jsonl: 6 requests without an answer; their rows say why"],
    );
    let report = json(&output);
    let counts = (&report["requests"], &report["failed"]);
    assert_eq!(counts, (&json!(7), &json!(6)));
    let rows = rows(&home.path("out.jsonl"));
    let ids: Vec<&Value> = rows.iter().map(|row| &row["custom_id"]).collect();
    assert_eq!(json!(ids), json!(["v", null, "v", "w", "m", "s", "u"]));
    for (row, line) in rows.iter().zip([1, 3, 4, 5, 6, 7, 8]) {
        assert_eq!(row["id"], format!("batch_req_{line}"));
        let fields: Vec<&String> = row.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["id", "custom_id", "response", "error"]);
    }
    for (row, code, message) in [
        (
            1,
            "invalid_custom_id",
            "line 3: expected a string as `custom_id`",
        ),
        (
            2,
            "duplicate_custom_id",
            "line 4: expected a `custom_id` that no line before has",
        ),
        (
            5,
            "invalid_request",
            "line 7: expected `stream` to be false",
        ),
        (
            6,
            "invalid_url",
            "line 8: expected a `url` of /v1/chat/completions",
        ),
    ] {
        let error = &rows[row]["error"];
        let found = (&error["code"], &rows[row]["response"]);
        assert_eq!(found, (&json!(code), &Value::Null));
        assert!(
            error["message"].as_str().unwrap().starts_with(message),
            "{error}"
        );
    }
    for (row, status, param) in [(3, 400, "dimensions"), (4, 404, "model")] {
        let response = &rows[row]["response"];
        assert_eq!(response["status_code"], status, "{response}");
        assert_eq!(response["body"]["error"]["param"], param, "{response}");
        assert_eq!(rows[row]["error"], Value::Null);
    }
}

/// Waits until the journal has a number of lines, its head included.
fn wait(journal: &Path, n: usize, child: &mut Child) {
    let n_lines = || {
        let bytes = fs::read(journal).unwrap_or_default();
        bytes.iter().filter(|b| **b == b'\n').count()
    };
    until("the journal grows", || {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "it ended before it was stopped: {ended:?}");
        n_lines() >= n
    });
}

#[test]
fn a_run_that_is_stopped_at_any_time_loses_and_repeats_no_row() {
    let whole = Home::new();
    // The last take longest, so that no run ends before it is stopped.
    let max_tokens = |idx| if idx < 120 { 60 + idx % 7 * 20 } else { 400 };
    let mut lines: Vec<String> = (0..150).map(|idx| chat(idx, max_tokens(idx))).collect();
    lines[70] = "no JSON".to_owned();
    let lines = lines.join("\n");
    fs::write(whole.path("in.jsonl"), &lines).unwrap();
    assert_ends(
        &batch(&whole, &[]).output().unwrap(),
        1,
        &["150 requests", "1 request without"],
    );
    let expected: Vec<Value> = rows(&whole.path("out.jsonl"))
        .into_iter()
        .map(lasting)
        .collect();
    assert_eq!(expected.len(), 150);
    let home = Home::new();
    fs::write(home.path("in.jsonl"), &lines).unwrap();
    let journal = home.path("out.jsonl.partial");
    for n in [2, 20, 45, 90] {
        let mut child = batch(&home, &["-q"]).spawn().unwrap();
        wait(&journal, n, &mut child);
        child.kill().unwrap(); // kill -9
        child.wait().unwrap();
        assert!(!home.path("out.jsonl").exists());
    }
    // A row that was cut by a crash of the machine.
    let bytes = fs::read(&journal).unwrap();
    fs::write(&journal, &bytes[..bytes.len() - 7]).unwrap();
    // Ctrl-C.
    let piped = std::process::Stdio::piped();
    let mut child = batch(&home, &[]).stderr(piped).spawn().unwrap();
    wait(&journal, 110, &mut child);
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert_ends(
        &output,
        130,
        &["interrupted", "the same command, which resumes after 1"],
    );
    assert!(fs::read(&journal).unwrap().ends_with(b"}\n"));
    // Other settings are other answers.
    let mut args = args(&home, &[]);
    args.retain(|arg| arg != "--numerics" && arg != "f32");
    let other = home.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_ends(
        &other,
        2,
        &["--numerics was f32, now it is fast", "to start over"],
    );
    let output = batch(&home, &["--slots", "3"]).output().unwrap();
    assert_ends(
        &output,
        1,
        &["resuming after 1", "1 request without an answer"],
    );
    let found: Vec<Value> = rows(&home.path("out.jsonl"))
        .into_iter()
        .map(lasting)
        .collect();
    assert_eq!(found, expected);
    assert!(!journal.exists());
    let again = batch(&home, &[]).output().unwrap();
    assert_ends(&again, 2, &["out.jsonl exists already", "--force"]);
}

#[test]
fn requests_name_their_models() {
    let home = Home::new();
    let file = home.path("in.jsonl");
    let run = |rest: &[&str]| {
        let out = home.path("out.jsonl").display().to_string();
        home.run(&[&["batch", file.to_str().unwrap(), "-o", &out], rest].concat())
    };
    assert_ends(&run(&[]), 2, &["in.jsonl"]);
    fs::write(&file, "\n").unwrap();
    assert_ends(&run(&[]), 2, &["there are no requests"]);
    fs::write(&file, "{}").unwrap();
    assert_ends(
        &run(&[]),
        2,
        &["expected requests that name a model, found none"],
    );
    let bert = crate::embed::model("bert-mean").display().to_string();
    let ask = |model: &str| {
        let body = json!({"model": model, "input": "the sea", "dimensions": 3});
        line("a", "/v1/embeddings", body)
    };
    fs::write(&file, ask(&bert)).unwrap();
    assert_ends(&run(&[]), 0, &["1 request"]);
    let rows = rows(&home.path("out.jsonl"));
    assert_eq!(
        rows[0]["response"]["body"]["data"][0]["embedding"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    fs::write(&file, ask("gpt-4o")).unwrap();
    let remedy = "--model gpt-4o=MODEL, for requests that name gpt-4o";
    assert_ends(&run(&["--force"]), 2, &[remedy]);
    let many: Vec<String> = (0..17)
        .map(|i| ask(&format!("m{i}")).replace("\"a\"", &format!("\"{i}\"")))
        .collect();
    fs::write(&file, many.join("\n")).unwrap();
    let output = run(&["--force"]);
    assert_ends(
        &output,
        2,
        &["line 17: expected at most 16 models, found `m16`"],
    );
    assert!(!stderr(&output).contains("panicked"));
}
