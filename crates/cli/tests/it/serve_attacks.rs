//! Requests that attack `thane serve`: each is refused with a status, or gets no more than any
//! other, and the server goes on.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::fixture::{PATIENCE, until};
use crate::serve_client::{Server, with};

const JSON: &str = "Content-Type: application/json\r\n";
/// What an attacker hides behind a body.
const HIDDEN: &str = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// All that the server sends until it closes the connection.
fn exchange(server: &Server, request: impl AsRef<[u8]>) -> String {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may refuse what it has not read to its end.
    let _ = stream.write_all(request.as_ref());
    let mut found = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut piece) {
        found.extend_from_slice(&piece[..n]);
    }
    String::from_utf8(found).unwrap()
}

/// The statuses of responses.
fn statuses(found: &str) -> Vec<u16> {
    let heads = found.split("HTTP/1.1 ").skip(1);
    heads.map(|head| head[..3].parse().unwrap()).collect()
}

/// Requires one response, an error in JSON or without a body that names no path and no stack.
fn assert_refused(found: &str, status: u16, case: &str) {
    assert_eq!(statuses(found), [status], "{case}: {found}");
    let (head, body) = found.split_once("\r\n\r\n").unwrap();
    let is_json = head.contains("content-type: application/json");
    assert!(
        body.is_empty() || is_json && body.starts_with("{\"error\""),
        "{case}: {found}"
    );
    for said in ["/crates/", ".rs:", "panicked", "/tests/", "backtrace"] {
        assert!(!body.contains(said), "{case}: {body}");
    }
    assert!(body.len() < 5000, "{case}: {} bytes", body.len());
}

fn head(line: &str, headers: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")
}

/// The head of a request after which the server closes the connection.
fn last_head(line: &str, headers: &str) -> String {
    head(line, &format!("{headers}Connection: close\r\n"))
}

#[test]
fn nothing_is_smuggled_behind_a_body() {
    let server = Server::start(&[]);
    let ambiguous = [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Content-Length : 5\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Content-Length: 5\r\n folded: 1\r\n",
        "X: a\rContent-Length: 5\r\n",
        "X: a\0b\r\n",
    ];
    for headers in ambiguous {
        let head = head("POST /v1/embeddings", &format!("{JSON}{headers}"));
        let found = exchange(&server, head + "0\r\n\r\n" + HIDDEN);
        assert_refused(&found, 400, headers);
    }
    let long = format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "x".repeat(100_000));
    let trailers = format!("0\r\n{}\r\n", "A: b\r\n".repeat(5000));
    for chunks in [
        "zz\r\n{}\r\n0\r\n\r\n",
        "-2\r\n{}\r\n0\r\n\r\n",
        "+2\r\n{}\r\n0\r\n\r\n",
        "fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        "2\n{}\n0\n\n",
        "2\r\n{}GET0\r\n\r\n",
        &long,
        &trailers,
    ] {
        let headers = format!("{JSON}Transfer-Encoding: chunked\r\n");
        let head = head("POST /v1/embeddings", &headers);
        let found = exchange(&server, head + chunks + HIDDEN);
        assert_refused(&found, 400, &chunks[..chunks.len().min(40)]);
    }
    // A request that follows a complete one is another one.
    let two = head("GET /health", "") + &last_head("GET /health", "");
    assert_eq!(statuses(&exchange(&server, two)), [200, 200]);
}

#[test]
fn heads_are_bounded_and_complete() {
    let server = Server::start(&[]);
    let lines = |n: usize, len: usize| -> String {
        let value = "a".repeat(len);
        (0..n).map(|k| format!("X-{k}: {value}\r\n")).collect()
    };
    for (request, status) in [
        (last_head("GET /health", &lines(98, 10)), 200),
        (last_head("GET /health", &lines(200, 10)), 431),
        (last_head("GET /health", &lines(100_000, 10)), 431),
        (last_head("GET /health", &lines(1, 200_000)), 431),
        (last_head("GET /health", &lines(90, 5000)), 431),
        (last_head(&format!("GET /{}", "a".repeat(70_000)), ""), 414),
        (last_head(&format!("GET /{}", "a".repeat(50_000)), ""), 404),
        (
            "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            400,
        ),
        (
            "GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n".to_owned(),
            400,
        ),
        (
            "GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
            400,
        ),
        ("\u{16}\u{3}\u{1}\0\0".to_owned(), 400),
        (last_head("TRACE /health", ""), 405),
        (last_head("CONNECT localhost:80", ""), 404),
        (
            last_head("OPTIONS /v1/models", "Origin: http://evil.example\r\n"),
            405,
        ),
    ] {
        let found = exchange(&server, &request);
        let case = &request[..request.len().min(60)];
        assert_eq!(statuses(&found), [status], "{case}: {found}");
        assert!(!found.contains("access-control"), "{case}: {found}");
        if status >= 400 {
            assert_refused(&found, status, case);
        }
    }
}

#[test]
fn paths_lead_nowhere() {
    let server = Server::start(&[]);
    let long = format!("/v1/models/{}", "a".repeat(50_000));
    for (path, status) in [
        ("/v1/models/..%2f..%2f..%2fetc%2fpasswd", 404),
        ("/v1/models/../../../etc/passwd", 404),
        ("/v1/models/%00", 404),
        ("/v1/models/%ff", 400),
        ("/v1/models/%", 404),
        ("/v1/models/tiny-chat%20", 404),
        (&long, 404),
        ("/v1/responses/%ff", 400),
        ("/v1/responses/..%2f", 404),
        ("/page/..%2fpage%2findex.html", 404),
        ("/page/%2e%2e/Cargo.toml", 404),
        ("/page/%ff", 400),
        ("//v1/models", 404),
        ("/V1/models", 404),
        ("/models/%ff", 405),
        ("/tei/%ff/info", 400),
        ("/tei/..%2f/info", 404),
    ] {
        let found = exchange(&server, last_head(&format!("GET {path}"), ""));
        let status = match status {
            // Text Embeddings Inference has another for requests at fault.
            400 if path.starts_with("/tei") => 422,
            other => other,
        };
        assert_refused(&found, status, path);
    }
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
    let server = Server::start(&[]);
    let deep = |open: &str, n: usize| open.repeat(n).into_bytes();
    for (body, said) in [
        (deep("[", 1_000_000), "recursion limit"),
        (deep("{\"a\":", 500_000), "recursion limit"),
        (b"{\"model\": \"\xff\"}".to_vec(), "invalid unicode"),
        (b"{\"model\": \"\\ud800\"}".to_vec(), "hex escape"),
        (b"\xef\xbb\xbf{}".to_vec(), "expected value"),
        (b"{\"model\": 1e999}".to_vec(), "number out of range"),
        (b"{\"model\": NaN}".to_vec(), "expected"),
        (b"{} {}".to_vec(), "trailing"),
        (b"\0".to_vec(), "expected value"),
        (Vec::new(), "EOF"),
        (b"null".to_vec(), "expected a JSON object, found null"),
        (b"{\"model\": [\"tiny-chat\"]}".to_vec(), "invalid type"),
        (
            b"{\"model\": \"tiny-chat\", \"model\": {}}".to_vec(),
            "invalid type",
        ),
    ] {
        let headers = format!(
            "{JSON}Content-Length: {}\r\nConnection: close\r\n",
            body.len()
        );
        for path in [
            "/v1/chat/completions",
            "/v1/messages",
            "/api/chat",
            "/tei/bert-mean/embed",
        ] {
            let answer = server.send(&head(&format!("POST {path}"), &headers), &body);
            let status = if path.starts_with("/tei") { 422 } else { 400 };
            assert_eq!(answer.status, status, "{path}: {said}");
            let found = answer.text();
            // TEI's routes name the model in the path.
            let is_read = found.contains(said) || path.starts_with("/tei");
            assert!(is_read && found.len() < 5000, "{path}: {said}: {found}");
        }
    }
    for kind in ["application/jsonp", "multipart/form-data", ""] {
        let headers = format!("Content-Type: {kind}\r\nContent-Length: 2\r\nConnection: close\r\n");
        let found = exchange(&server, head("POST /v1/embeddings", &headers) + "{}");
        assert_refused(&found, 415, kind);
    }
}

/// What a page of another site can send without a question must not be taken from one. Clients that
/// are no browsers send the same types, without the headers of a page.
#[test]
fn bodies_that_a_page_can_send_are_taken_from_no_page() {
    let server = Server::start(&[]);
    let body = json!({"model": "bert-mean", "input": "a cat"}).to_string();
    let post = |path: &str, headers: &str| {
        let n = body.len();
        let headers = format!("{headers}Content-Length: {n}\r\nConnection: close\r\n");
        exchange(&server, head(&format!("POST {path}"), &headers) + &body)
    };
    for kind in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: text/plain; charset=UTF-8\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
    ] {
        let found = post("/v1/embeddings", kind);
        assert_eq!(statuses(&found), [200], "{kind}: {found}");
        for page in [
            "Origin: http://evil.example",
            "Origin: null",
            "Referer: http://evil.example/",
            "Sec-Fetch-Site: cross-site",
            "sec-fetch-site: same-origin",
        ] {
            let found = post("/v1/embeddings", &format!("{kind}{page}\r\n"));
            assert_refused(&found, 415, &format!("{kind} {page}"));
            let name = page.split(':').next().unwrap().to_lowercase();
            assert!(
                found.contains(&format!("the header {name}, as a page's")),
                "{found}"
            );
        }
        // An archive is one.
        let found = post("/audit", kind);
        assert_refused(&found, 415, kind);
    }
    let found = post(
        "/v1/embeddings",
        &format!("{JSON}Origin: http://evil.example\r\n"),
    );
    assert_eq!(statuses(&found), [200], "the browser has asked: {found}");
}

/// Fields of a chat that ask for too much, and what the refusal says.
fn greedy_fields() -> Vec<(Value, &'static str)> {
    let biases = |n: usize| -> Value {
        let all = (0..n).map(|token| (token.to_string(), json!(1)));
        Value::Object(all.collect())
    };
    let words = "word ".repeat(100_000);
    vec![
        (json!({"n": 129}), "`n`: expected 1 to 128"),
        (json!({"n": 128}), "expected at most 68 answers"),
        (json!({"n": -1}), "`n`: invalid value"),
        (json!({"n": 1.5}), "`n`: invalid type"),
        (json!({"n": 1e30}), "`n`: invalid type"),
        (json!({"max_tokens": -1}), "`max_tokens`: invalid value"),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "expected at most 20",
        ),
        (
            json!({"logprobs": true, "top_logprobs": u64::MAX}),
            "expected at most 20",
        ),
        (json!({"temperature": 1e300}), "`temperature`: expected"),
        (
            json!({"temperature": "x".repeat(3_000_000)}),
            "`temperature`: invalid type",
        ),
        (
            json!({"repetition_penalty": 0}),
            "`repetition_penalty`: expected",
        ),
        (
            json!({"stop": ["a", "b", "c", "d", "e"]}),
            "expected at most 4 texts, found 5",
        ),
        (
            json!({"stop": "x".repeat(1025)}),
            "texts of at most 1024 bytes, found 1025",
        ),
        (
            json!({"stop_token_ids": vec![1; 1025]}),
            "expected at most 1024 tokens, found 1025",
        ),
        (
            json!({"logit_bias": biases(200_000)}),
            "`logit_bias`: expected token ids below",
        ),
        (json!({"logit_bias": {"01": 1}}), "found `01`"),
        (
            json!({"logit_bias": {"1": 101}}),
            "expected numbers from -100 to 100",
        ),
        (
            json!({"dry_multiplier": 1, "dry_sequence_breakers": vec!["a"; 17]}),
            "at most 16 texts",
        ),
        (
            json!({"messages": [{"role": "user", "content": words}]}),
            "context of 512 tokens",
        ),
        (json!({"model": "m".repeat(3_000_000)}), "expected one of"),
        (json!({"x".repeat(3_000_000): 1}), "is not supported"),
    ]
}

/// Grammars that are too large, or none.
fn greedy_grammars() -> Vec<(Value, &'static str)> {
    let form = |key: &str, value: Value| json!({"structured_outputs": {key: value}});
    vec![
        (
            form("regex", json!("(a?){5000}a{5000}")),
            "too many expressions",
        ),
        (
            form("regex", json!("a".repeat(70_000))),
            "expected at most 65536 bytes",
        ),
        (form("grammar", json!("start: start")), "grammar"),
        (form("grammar", json!("%import /etc/passwd")), "grammar"),
        (
            form("choice", json!(vec!["long choice"; 10_000])),
            "expected at most 65536 bytes",
        ),
        (
            form("json", json!({"$ref": "file:///etc/passwd"})),
            "grammar",
        ),
        (
            form("json", json!({"$ref": "http://127.0.0.1:1/x"})),
            "grammar",
        ),
        (
            form("json", json!({"enum": vec!["x"; 80_000]})),
            "expected at most 262144 bytes",
        ),
    ]
}

#[test]
fn fields_that_ask_for_too_much_are_refused() {
    let server = Server::start(&[]);
    let hello = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2});
    for (fields, said) in greedy_fields().into_iter().chain(greedy_grammars()) {
        let answer = server.chat(with(hello.clone(), fields));
        let status = if said.contains("one of") { 404 } else { 400 };
        assert_eq!(answer.status, status, "{said}");
        let error = answer.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(said), "{said}: {message}");
        assert!(error.to_string().len() < 5000, "{said}");
    }
    // Extremes that ask for nothing impossible are taken.
    for fields in [
        json!({"max_tokens": u64::MAX, "stop": "e"}),
        json!({"top_k": u64::MAX}),
        json!({"seed": i64::MIN}),
        json!({"repeat_last_n": i64::MAX, "repetition_penalty": 1.1}),
        json!({"temperature": 1e-320}),
    ] {
        assert_eq!(server.chat(with(hello.clone(), fields)).status, 200);
    }
    assert_eq!(server.n_requests(), 0);
}

/// Small bodies whose answers, or work, would be many times as large.
#[test]
fn requests_that_amplify_are_refused() {
    let bert = crate::embed::model("bert-mean");
    let ranker = crate::rerank::model("bert");
    let server = Server::of_models(&[bert, ranker], &[], &[]);
    let documents = vec!["a"; 2000];
    let query = "a ".repeat(10_000);
    for (path, body, status, said) in [
        (
            "/tokenize",
            json!({"inputs": "a ".repeat(200_000)}),
            413,
            "at most 131072 tokens",
        ),
        (
            "/decode",
            json!({"ids": vec![5; 200_000]}),
            413,
            "at most 131072 tokens",
        ),
        (
            "/rerank",
            json!({"query": query, "texts": documents}),
            413,
            "16777216 bytes",
        ),
        (
            "/v1/rerank",
            json!({"model": "bert", "query": query, "documents": documents}),
            400,
            "16777216 bytes",
        ),
    ] {
        let answer = server.post(path, &body.to_string(), "");
        assert_eq!(answer.status, status, "{path}");
        let found = answer.text();
        assert!(found.contains(said), "{path}: {found}");
    }
    let body = json!({"inputs": ["a cat", "the sea"]}).to_string();
    let tokens = server.post("/tokenize", &body, "").json();
    assert_eq!(tokens[0][0]["special"], true, "{tokens}");
    assert_eq!(tokens[0][0]["start"], Value::Null, "{tokens}");
    assert_eq!(server.n_requests(), 0);
}

/// Its tokens would take seconds: no tokenization of so many bytes fits the context.
#[test]
fn a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let server = Server::start(&[]);
    let long = "the sea is deep and the air is thin ".repeat(100_000);
    let message = json!([{"role": "user", "content": long}]);
    for (path, fields, place) in [
        (
            "/v1/chat/completions",
            json!({"messages": message}),
            "/error/message",
        ),
        ("/v1/completions", json!({"prompt": long}), "/error/message"),
        ("/v1/responses", json!({"input": long}), "/error/message"),
        (
            "/v1/messages",
            json!({"messages": message, "max_tokens": 1}),
            "/error/message",
        ),
        (
            "/v1/messages/count_tokens",
            json!({"messages": message}),
            "/error/message",
        ),
        (
            "/api/generate",
            json!({"prompt": long, "raw": true}),
            "/error",
        ),
        ("/models/tiny-chat", json!({"inputs": long}), "/error"),
    ] {
        let body = with(json!({"model": "tiny-chat"}), fields);
        let mut body = body;
        if path == "/models/tiny-chat" {
            body.as_object_mut().unwrap().remove("model");
        }
        let answer = server.post(path, &body.to_string(), "");
        assert!((400..500).contains(&answer.status), "{path}");
        let error = answer.json();
        let said = error.pointer(place).and_then(Value::as_str).unwrap();
        assert!(
            said.ends_with("found at least 512 tokens"),
            "{path}: {said}"
        );
    }
}

/// Chat templates look at all messages, and some at all of them for each.
#[test]
fn more_messages_than_a_conversation_may_have_are_refused() {
    let server = Server::start(&[]);
    let turn = |k: usize| json!({"role": (["user", "assistant"][k % 2]), "content": "x"});
    for (path, field) in [
        ("/v1/chat/completions", "messages"),
        ("/v1/responses", "input"),
        ("/v1/responses/input_tokens", "input"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "messages"),
        ("/api/chat", "messages"),
    ] {
        let refusal = |n: usize| {
            let turns: Vec<Value> = (0..n).map(turn).collect();
            let mut body = json!({"model": "tiny-chat", field: turns});
            if path == "/v1/messages" {
                body["max_tokens"] = json!(1);
            }
            let answer = server.post(path, &body.to_string(), "");
            assert_eq!(answer.status, 400, "{path}");
            let error = answer.json()["error"].clone();
            let message = error["message"].as_str().or(error.as_str());
            message.unwrap().to_owned()
        };
        let expected = format!("`{field}`: expected at most 2048 messages, found 2049");
        assert_eq!(refusal(2049), expected, "{path}");
        // So many are rendered, and are too long for this model.
        let said = refusal(2047);
        assert!(said.contains("shorter than the context"), "{path}: {said}");
    }
    assert_eq!(server.n_requests(), 0);
}

/// A query and a text that are both far longer than the model takes give what their beginnings do,
/// in memory that grows with their sum and not with their product.
#[test]
fn a_pair_of_long_texts_takes_little_memory() {
    let reranker = crate::rerank::model("bert");
    let server = Server::of_models(&[reranker], &["--memory", "500MB"], &[]);
    let scored = |n: usize| {
        let [query, text] = ["cat ", "dog "].map(|word| word.repeat(n));
        let body = json!({"model": "bert", "query": query, "documents": [text]});
        server.post("/v1/rerank", &body.to_string(), "").json()
    };
    let (long, short) = (scored(40_000), scored(100));
    assert_eq!(long["results"], short["results"], "{long}");
    assert_eq!(long["usage"], short["usage"]);
}

/// Some bytes of JSON take a hundred times as much as values. That counts before they are parsed,
/// also where they are the text of a call's arguments, and before a template copies them.
#[test]
fn values_count_as_memory_before_they_are_there() {
    let server = Server::start(&["--memory", "44MB", "--prompt-memory", "0"]);
    let lists = |n: usize| format!("[{}0]", "[[]],".repeat(n));
    let hello = json!({"role": "user", "content": "hello"});
    let call = |arguments: &str| {
        let function = json!({"name": "f", "arguments": arguments});
        let calls = json!([{"id": "c", "type": "function", "function": function}]);
        let called = json!({"role": "assistant", "content": "", "tool_calls": calls});
        json!({"model": "tiny-chat", "max_tokens": 1, "messages": [hello, called]}).to_string()
    };
    let item = |arguments: &str| {
        let call = json!({
            "type": "function_call", "call_id": "c", "name": "f", "arguments": arguments,
        });
        json!({"model": "tiny-chat", "max_output_tokens": 1, "input": [hello, call]}).to_string()
    };
    let nested = |n: usize| format!(r#"{{"a": {}}}"#, lists(n));
    let plain = json!({"model": "tiny-chat", "max_tokens": 1, "messages": [hello]}).to_string();
    let with_variable = |value: &str| {
        let body = plain.strip_suffix('}').unwrap();
        format!(r#"{body}, "chat_template_kwargs": {{"a": {value}}}}}"#)
    };
    let (chat, responses) = ("/v1/chat/completions", "/v1/responses");
    for (path, body, said) in [
        (chat, call(&nested(150_000)), "the arguments of a call"),
        (responses, item(&nested(150_000)), "the arguments of a call"),
        (chat, with_variable(&lists(150_000)), "the fields of a body"),
        // Nobody knows before it is parsed that this is no JSON.
        (chat, lists(150_000) + "}", "the fields of a body"),
    ] {
        let answer = server.post(path, &body, "");
        let (status, found) = (answer.status, answer.text());
        assert_eq!(status, 413, "{path}: {found}");
        assert!(found.contains(said), "{path}: {found}");
    }
    for body in [call(&nested(10)), with_variable(&lists(100))] {
        assert_eq!(server.post(chat, &body, "").status, 200);
    }
    let body = with_variable(&lists(60_000));
    let answer = server.post(chat, &body, "");
    let found = answer.text();
    assert!(found.contains("what the chat template is given"), "{found}");
    // Nothing of it counts any more.
    let body = with_variable(&lists(15_000));
    assert_eq!(server.post(chat, &body, "").status, 200);
}

/// What the tokens of a long text took goes back to the system, not to the heap of the thread.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn memory_of_long_texts_is_given_back() {
    let models = [
        crate::rerank::model("bert"),
        crate::embed::model("bert-mean"),
    ];
    let server = Server::of_models(&models, &[], &[]);
    let resident = || {
        let metrics = server.get("/metrics", "").text();
        let name = "process_resident_memory_bytes ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse::<usize>().unwrap()
    };
    let text = "##a ##b ".repeat(50_000);
    let rerank = json!({"model": "bert", "query": "x", "documents": [text]});
    let embed = json!({"model": "bert-mean", "input": text});
    let before = resident();
    for (path, body) in [("/v1/rerank", rerank), ("/v1/embeddings", embed)] {
        server.post(path, &body.to_string(), "").text();
        let after = resident();
        assert!(after < before + (48 << 20), "{path}: {before} {after}");
    }
}

/// What has come of bodies counts as memory. A request without room is told to come again.
#[test]
fn bodies_that_never_end_fill_memory_and_no_more() {
    let server = Server::start(&["--memory", "44MB", "--prompt-memory", "0"]);
    // 1 MB as text, 17 MB as values.
    let input = vec![0; 500_000];
    let body = json!({"model": "bert-mean", "input": input}).to_string();
    let ask = || server.post("/v1/embeddings", &body, "");
    assert_eq!(ask().status, 400, "too long for the model");
    let head = format!(
        "POST /v1/embeddings HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: 4000000\r\n\r\n",
        server.address
    );
    let unfinished: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            // Those for which there is no room are refused before they are sent.
            let _ = stream.write_all(&vec![b' '; 3_900_000]);
            stream
        })
        .collect();
    let mut refused = None;
    until("memory is full", || {
        refused = Some(ask()).filter(|answer| answer.status == 503);
        refused.is_some()
    });
    let refused = refused.unwrap();
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    let error = refused.json()["error"].clone();
    assert_eq!(error["code"], "memory_full", "{error}");
    drop(unfinished);
    until("memory is free again", || ask().status == 400);
}
