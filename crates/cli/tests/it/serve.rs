//! `thane serve` as clients meet it: a process, and requests over sockets.

use std::io::Read;
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, chat_folder, json as report, stderr, until};
use crate::serve_client::{Answer, Server, with};

pub fn conversations() -> Vec<Value> {
    let text = std::fs::read(chat_folder().join("expected.json")).unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    json["conversations"].as_array().unwrap().clone()
}

fn hello() -> Value {
    json!([{"role": "user", "content": "hello"}])
}

#[test]
fn answers_are_those_of_transformers_with_and_without_a_stream() {
    let server = Server::start(&["--numerics", "f32", "--slots", "2"]);
    for case in conversations() {
        let n_tokens = case["tokens"].as_array().unwrap().len();
        let n_prompt = case["ids"].as_array().unwrap().len();
        let fields = json!({"messages": case["messages"], "max_completion_tokens": n_tokens, "temperature": 0});
        let answer = server.chat(fields.clone());
        assert_eq!(answer.status, 200);
        let whole = answer.json();
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"], case["text"], "{whole}");
        assert_eq!(choice["message"]["role"], "assistant");
        assert_eq!(whole["object"], "chat.completion");
        let usage = &whole["usage"];
        assert_eq!(usage["prompt_tokens"], n_prompt, "{whole}");
        assert_eq!(usage["completion_tokens"], n_tokens, "{whole}");
        assert_eq!(usage["total_tokens"], n_prompt + n_tokens, "{whole}");
        let mut streamed = fields;
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let events = server.chat(streamed).events();
        let text: String = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(text, case["text"], "{events:?}");
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let [.., last, of_usage] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(last["choices"][0]["finish_reason"], choice["finish_reason"]);
        assert_eq!(of_usage["usage"]["completion_tokens"], n_tokens);
        // The cache of the slot holds the prompt from before.
        let cached = &of_usage["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(cached, n_prompt - 1, "{of_usage}");
        assert_eq!(of_usage["choices"], json!([]));
    }
}

#[test]
fn a_text_is_continued_as_run_continues_it() {
    let server = Server::start(&["--numerics", "f32"]);
    let model = chat_folder();
    let args = ["run", model.to_str().unwrap(), "the sea", "--raw", "--json"];
    let run = server
        .home
        .run(&[&args[..], &["--numerics", "f32", "--max-tokens", "12"]].concat());
    assert_ends(&run, 0, &[]);
    let run = report(&run);
    let complete = |fields: Value| {
        let body = with(json!({"model": "tiny-chat", "max_tokens": 12}), fields);
        server.post("/v1/completions", &body.to_string(), "").json()
    };
    let text = run["text"].as_str().unwrap();
    for prompt in [
        json!("the sea"),
        json!(["the sea"]),
        run["prompt_tokens"].clone(),
    ] {
        let found = complete(json!({"prompt": prompt}));
        assert_eq!(found["choices"][0]["text"], text, "{found}");
        assert_eq!(found["choices"][0]["finish_reason"], "length");
        assert_eq!(found["object"], "text_completion");
    }
    // A stop text ends the answer before it.
    let stop: String = text.chars().skip(3).take(2).collect();
    let found = complete(json!({"prompt": "the sea", "stop": stop}));
    let before = text.split(&stop).next().unwrap();
    assert_eq!(found["choices"][0]["text"], before, "{found}");
    assert_eq!(found["choices"][0]["finish_reason"], "stop");
    // The same seed gives the same text, and each request has a seed of its own.
    let sampled = |seed: Value| {
        let fields = json!({"prompt": "the sea", "temperature": 2, "seed": seed});
        complete(fields)["choices"][0]["text"].clone()
    };
    assert_eq!(sampled(json!(5)), sampled(json!(5)));
    assert_ne!(sampled(Value::Null), sampled(Value::Null));
}

#[test]
fn vectors_are_those_of_embed() {
    let server = Server::start(&["--numerics", "f32"]);
    let bert = crate::embed::model("bert-mean");
    let texts = ["a cat", "the sea is deep"];
    let embedded = |flags: &[&str]| {
        let args = [
            "embed",
            bert.to_str().unwrap(),
            "--json",
            "--numerics",
            "f32",
        ];
        let output = server.home.run(&[&args[..], flags, &texts].concat());
        assert_ends(&output, 0, &[]);
        floats(&report(&output)["embeddings"])
    };
    let ask = |fields: Value| embed(&server, fields);
    let rows = |answer: &Value| {
        floats(
            &answer["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| row["embedding"].clone())
                .collect(),
        )
    };
    let found = ask(json!({"input": texts})).json();
    assert_eq!(rows(&found), embedded(&[]));
    assert_eq!(found["data"][1]["index"], 1);
    let shorter = ask(json!({"input": texts, "dimensions": 5})).json();
    assert_eq!(rows(&shorter), embedded(&["--dimensions", "5"]));
    let packed = ask(json!({"input": texts, "encoding_format": "base64"})).json();
    let first = packed["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(unpacked(first), rows(&found)[0]);
    // A text alone, and its tokens.
    let one = ask(json!({"input": texts[0]})).json();
    assert_eq!(rows(&one).len(), 1);
    let n = one["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(n > 2 && one["usage"]["total_tokens"] == n, "{one}");
    let ids = ask(json!({"input": [[2, 5, 3], [2, 9, 8, 3]]})).json();
    assert_eq!(
        (rows(&ids).len(), &ids["usage"]["prompt_tokens"]),
        (2, &json!(7))
    );
}

/// Asks for vectors.
fn embed(server: &Server, fields: Value) -> Answer {
    let body = with(json!({"model": "bert-mean"}), fields);
    server.post("/v1/embeddings", &body.to_string(), "")
}

const INVALID: &str = "invalid_request_error";

#[test]
fn inputs_that_have_no_vectors_are_refused() {
    let server = Server::start(&[]);
    let texts = ["a cat"];
    let long = vec!["word"; 400].join(" ");
    for (fields, param, said) in [
        (
            json!({"input": texts, "dimensions": 100_000}),
            "dimensions",
            "`dimensions`: expected 1 to",
        ),
        (
            json!({"input": []}),
            "input",
            "expected 1 to 2048 inputs, found 0",
        ),
        (
            json!({"input": [[1, 999_999]]}),
            "input",
            "input[0]: expected token ids below",
        ),
        (
            json!({"input": ["a", long]}),
            "input",
            "input[1]: expected at most 64 tokens, found",
        ),
        (
            json!({"input": 5}),
            "input",
            "expected a string, a list of strings",
        ),
        (
            json!({"input": "a", "encoding_format": "int8"}),
            "encoding_format",
            "int8",
        ),
        (
            json!({"input": "a", "model": "tiny-chat"}),
            "model",
            "use /v1/chat/completions",
        ),
    ] {
        let message = embed(&server, fields).refused(400, INVALID, json!(param));
        assert!(message.contains(said), "{message}");
    }
}

/// Requires rows to differ by rounding only: what a text is embedded with changes last digits.
#[track_caller]
pub fn assert_near(found: &Value, expected: &Value) {
    let (found, expected) = (floats(found), floats(expected));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.len(), expected.len());
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let most = differences.fold(0.0, f32::max);
        assert!(most < 2e-6, "{most}: {found:?}");
    }
}

pub fn floats(rows: &Value) -> Vec<Vec<f32>> {
    let row = |row: &Value| {
        row.as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_f64().unwrap() as f32)
            .collect()
    };
    rows.as_array().unwrap().iter().map(row).collect()
}

/// fp32 numbers in base64.
fn unpacked(text: &str) -> Vec<f32> {
    let bytes = decoded(text);
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|b| f32::from_le_bytes(*b)).collect()
}

/// Bytes in base64.
pub fn decoded(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bits = 0u64;
    let mut n = 0;
    let mut bytes = Vec::new();
    for c in text.bytes().filter(|c| *c != b'=') {
        bits = bits << 6 | u64::from(digit(c));
        n += 6;
        if n >= 8 {
            n -= 8;
            bytes.push((bits >> n) as u8);
        }
    }
    bytes
}

#[test]
fn bodies_that_are_not_json_are_refused() {
    let server = Server::start(&[]);
    let post = |body: &str| server.post("/v1/chat/completions", body, "");
    for body in ["", "{", "[1]", "\"x\"", "\u{0}", "{\"model\": 1e999}"] {
        assert_eq!(post(body).status, 400, "{body}");
    }
    let message = post("{\"model\":").refused(400, INVALID, Value::Null);
    assert!(message.starts_with("the body is not JSON: "), "{message}");
    let deep = "[".repeat(100_000);
    assert_eq!(post(&deep).status, 400);
}

#[test]
fn fields_are_refused_by_name() {
    let server = Server::start(&[]);
    let message = server
        .chat(json!({}))
        .refused(400, INVALID, json!("messages"));
    assert_eq!(message, "expected the field `messages`, found none");
    for (name, value, said) in [
        ("messages", json!([]), "at least one message"),
        ("n", json!(0), "`n`: expected 1 to 128, found 0"),
        ("top_logprobs", json!(2), "needs `logprobs`"),
        (
            "logit_bias",
            json!({"x": 1}),
            "expected token ids below 282, found `x`",
        ),
        (
            "logit_bias",
            json!({"5": 200}),
            "expected numbers from -100 to 100, found 200",
        ),
        ("mirostat", json!(1), "`mirostat`: expected 0 or 2, found 1"),
        ("typical_p", json!(0), "`typical_p`: expected above 0"),
        ("tool_choice", json!("required"), "expected `tools` with it"),
        (
            "structured_outputs",
            json!({"regex": "("}),
            "unclosed group",
        ),
        (
            "structured_outputs",
            json!({"choice": []}),
            "expected at least one text",
        ),
        ("magic", json!(1), "the field `magic` is not supported"),
        ("temperature", json!(-1), "`temperature`: expected"),
        ("temperature", json!("hot"), "`temperature`: invalid"),
        ("max_tokens", json!(-1), "`max_tokens`"),
        ("stop", json!(["a", "b", "c", "d", "e"]), "at most 4 texts"),
        ("stream_options", json!({}), "needs `stream`"),
        ("model", json!("bert-mean"), "use /v1/embeddings"),
        ("response_format", json!({"type": "xml"}), "xml"),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}),
            "the grammar: Invalid type: thing",
        ),
    ] {
        let fields = with(json!({"messages": hello()}), json!({name: value}));
        let message = server.chat(fields).refused(400, INVALID, json!(name));
        assert!(message.contains(said), "{message}");
    }
    let long = json!([{"role": "user", "content": "x ".repeat(2000)}]);
    let answer = server.chat(json!({"messages": long}));
    let message = answer.refused(400, INVALID, json!("messages"));
    assert!(
        message.contains("shorter than the context of 512 tokens"),
        "{message}"
    );
    let answer = server.chat(json!({"messages": hello(), "model": "gpt-4o"}));
    let message = answer.refused(404, INVALID, json!("model"));
    assert!(
        message.contains("expected one of tiny-chat, bert-mean"),
        "{message}"
    );
    assert_eq!(
        server
            .get("/v1/nothing", "")
            .refused(404, INVALID, Value::Null),
        "there is no such route"
    );
    server
        .get("/v1/embeddings", "")
        .refused(405, INVALID, Value::Null);
}

#[test]
fn bodies_that_no_route_takes_are_refused() {
    let server = Server::start(&[]);
    // Nothing of the body is needed to refuse it.
    let head = |rest: &str| {
        format!(
            "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{rest}\r\n\r\n"
        )
    };
    let large = head("Content-Type: application/json\r\nContent-Length: 100000000");
    let message = server.send(&large, "").refused(413, INVALID, Value::Null);
    assert!(message.contains("at most 4194304 bytes"), "{message}");
    let chunked = head("Content-Type: application/json\r\nTransfer-Encoding: chunked");
    let chunk = format!("{:x}\r\n{}\r\n", 4 << 20, " ".repeat(4 << 20));
    server
        .send(&chunked, chunk + "1\r\nx\r\n")
        .refused(413, INVALID, Value::Null);
    let form = head("Content-Type: text/plain\r\nOrigin: null\r\nContent-Length: 2");
    server.send(&form, "{}").refused(415, INVALID, Value::Null);
    // Nothing that was refused holds a place.
    assert_eq!(server.n_requests(), 0);
    assert_eq!(
        server
            .chat(json!({"messages": hello(), "max_tokens": 1}))
            .status,
        200
    );
}

#[test]
fn other_sites_and_clients_without_the_key_are_refused() {
    let server = Server::start(&[]);
    let evil = "evil.example";
    for (first, hosts, status) in [
        ("/v1/models", vec![evil], 403),
        ("/v1/models", vec!["localhost", evil], 400),
        ("/v1/models", vec![], 400),
        ("http://evil.example/v1/models", vec!["localhost"], 403),
    ] {
        let hosts: String = hosts.iter().map(|h| format!("Host: {h}\r\n")).collect();
        let head = format!("GET {first} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        let message = server.send(&head, "").refused(status, INVALID, Value::Null);
        assert!(message.contains("Host header"), "{message}");
    }
    // No site may read the answer.
    let from_page = "Origin: http://evil.example\r\n";
    let answer = server.get("/v1/models", from_page);
    assert!(
        !answer.head.contains("access-control-allow"),
        "{}",
        answer.head
    );
    drop(server);
    let server = Server::start_with(&["--host", "0.0.0.0"], &[("THANE_SERVE_API_KEY", "secret")]);
    let kind = "authentication_error";
    for headers in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: secret\r\n",
    ] {
        let answer = server.get("/v1/models", headers);
        assert!(
            answer.head.contains("www-authenticate: bearer"),
            "{}",
            answer.head
        );
        answer.refused(401, kind, Value::Null);
    }
    server
        .post("/v1/embeddings", "{}", "")
        .refused(401, kind, Value::Null);
    let models = server
        .get("/v1/models", "Authorization: Bearer secret\r\n")
        .json();
    let ids: Vec<&str> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["tiny-chat", "bert-mean"]);
    let one = server
        .get("/v1/models/bert-mean", "Authorization: Bearer secret\r\n")
        .json();
    assert_eq!(
        (&one["object"], &one["task"]),
        (&json!("model"), &json!("embed"))
    );
    // Whoever watches the server has no key.
    assert_eq!(server.get("/health", "").status, 200);
}

/// A model each answer of which takes minutes.
pub const ENDLESS: &str = "endless.gguf";

/// A server of [`ENDLESS`] and `bert-mean`.
pub fn endless_server(flags: &[&str]) -> Server {
    let home = Home::new();
    let (model, bert) = (
        crate::talk::endless(&home),
        crate::embed::model("bert-mean"),
    );
    let fixed = ["--port", "0", "--context", "100000", "--numerics", "ane"];
    let models = [model.as_str(), bert.to_str().unwrap()];
    Server::of_arguments(
        &[&models[..], &fixed, &["--slots", "1"], flags].concat(),
        &[],
    )
}

/// A stream of an answer.
pub fn stream(server: &Server, model: &str, max_tokens: usize) -> Answer {
    let body = json!({"model": model, "prompt": "sky", "max_tokens": max_tokens, "stream": true});
    server.post("/v1/completions", &body.to_string(), "")
}

#[test]
fn a_full_queue_refuses_and_a_client_that_leaves_makes_room() {
    let server = endless_server(&["--queue", "20"]);
    let ask = || stream(&server, ENDLESS, 90_000);
    let mut streams: Vec<Answer> = (0..21).map(|_| ask()).collect();
    assert!(streams.iter().all(|stream| stream.status == 200));
    assert!(streams[0].chunk().unwrap().starts_with("data: {"));
    let answer = ask();
    assert!(
        answer.head.contains("\r\nretry-after: 1\r\n"),
        "{}",
        answer.head
    );
    answer.refused(429, "rate_limit_error", Value::Null);
    // The embedding model has a queue of its own.
    let body = json!({"model": "bert-mean", "input": "a"}).to_string();
    assert_eq!(server.post("/v1/embeddings", &body, "").status, 200);
    drop(streams);
    until("21 answers are cancelled", || server.n_requests() == 0);
    assert!(stream(&server, ENDLESS, 2).events().len() > 1);
}

#[test]
fn an_interrupted_server_finishes_its_answers() {
    let mut server = Server::start(&["--slots", "1"]);
    let mut running = stream(&server, "tiny-chat", 400);
    running.chunk().unwrap();
    server.interrupt();
    let mut text = String::new();
    while let Some(chunk) = running.chunk() {
        text += &chunk;
    }
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(TcpStream::connect(&server.address).is_err());
    let mut said = String::new();
    let mut stderr = server.child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(said, "thane: stopping; running answers finish first\n");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let server = Server::start(&[]);
    let port = server.address.rsplit(':').next().unwrap();
    let model = chat_folder();
    let run = |flags: &[&str]| {
        let args = ["serve", model.to_str().unwrap()];
        server.home.run(&[&args[..], flags].concat())
    };
    for (flags, said) in [
        (&["--port", port][..], "is in use by another program"),
        (&["--host", "0.0.0.0", "--port", "0"], "expected a key"),
        (
            &["--host", "192.0.2.1", "--api-key", "x"],
            "expected an address of this machine",
        ),
        (&["--api-key", " ", "--port", "0"], "an empty --api-key"),
        (
            &[model.to_str().unwrap(), "--port", "0"],
            "found `tiny-chat` twice",
        ),
    ] {
        let output = run(flags);
        assert_ends(&output, 2, &[]);
        let error = stderr(&output);
        assert!(
            error.contains(said) && error.contains("\n  try: "),
            "{error}"
        );
    }
}
