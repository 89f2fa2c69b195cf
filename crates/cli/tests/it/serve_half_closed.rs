//! Clients that are done with sending, and clients that have gone: both end what the server reads.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use serde_json::{Value, json};

use crate::fixture::{PATIENCE, chat_folder, until};
use crate::serve::{ENDLESS, endless_server};
use crate::serve_client::{Answer, Server};
use crate::serve_page::metric;

/// Sends requests.
fn send(server: &Server, requests: &[(&str, Value)]) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for (line, body) in requests {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let head = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            server.address,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
    }
    stream
}

/// The answer for a client that ends its side of the connection behind its request.
fn half_closed(server: &Server, line: &str, body: Value) -> Answer {
    let stream = send(server, &[(line, body)]);
    stream.shutdown(Shutdown::Write).unwrap();
    Answer::read(stream)
}

#[test]
fn a_client_that_is_done_with_sending_gets_its_answers() {
    let models = [
        chat_folder(),
        crate::embed::model("bert-mean"),
        crate::rerank::model("bert"),
    ];
    let server = Server::of_models(&models, &[], &[]);
    let chat = json!({"model": "tiny-chat", "max_tokens": 9, "temperature": 0,
        "messages": [{"role": "user", "content": "hello"}]});
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    let vectors = json!({"model": "bert-mean", "input": ["a cat", "the sea"]});
    let ranks = json!({"model": "bert", "query": "a cat", "documents": ["the sea", "a dog"]});
    let models = half_closed(&server, "GET /v1/models", Value::Null);
    assert_eq!(models.json()["data"].as_array().unwrap().len(), 3);
    for (path, body, place) in [
        ("/v1/chat/completions", chat.clone(), "/choices/0/message"),
        ("/v1/embeddings", vectors, "/data"),
        ("/v1/rerank", ranks, "/results"),
    ] {
        let whole = server.post(path, &body.to_string(), "").json();
        let found = half_closed(&server, &format!("POST {path}"), body);
        assert_eq!(found.status, 200, "{path}");
        let found = found.json();
        assert!(found.pointer(place).is_some(), "{found}");
        assert_eq!(found.pointer(place), whole.pointer(place), "{path}");
    }
    let text = |events: Vec<Value>| -> String {
        let pieces = events
            .iter()
            .map(|event| event["choices"][0]["delta"]["content"].clone());
        pieces
            .filter_map(|piece| Some(piece.as_str()?.to_owned()))
            .collect()
    };
    let whole = server.post("/v1/chat/completions", &streamed.to_string(), "");
    let whole = text(whole.events());
    let found = half_closed(&server, "POST /v1/chat/completions", streamed);
    assert_eq!(text(found.events()), whole);
    assert!(!whole.is_empty());
    // Requests behind one another, and what is none.
    let mut stream = send(
        &server,
        &[
            ("GET /v1/models", Value::Null),
            ("GET /health", Value::Null),
        ],
    );
    stream.write_all(b"GET /v1/mod").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{text}");
    assert_eq!(server.n_requests(), 0);
}

/// Answers that take long enough for the server to find out whether their clients are there.
#[test]
fn a_client_that_is_done_with_sending_gets_long_answers_as_they_are() {
    let server = endless_server(&[]);
    let ask = |stream: bool| {
        let body = json!({"model": ENDLESS, "prompt": "sky", "max_tokens": 1_000,
            "temperature": 0, "stream": stream});
        half_closed(&server, "POST /v1/completions", body)
    };
    let whole = ask(false);
    assert_eq!(whole.status, 200);
    let whole = whole.json();
    assert_eq!(whole["usage"]["completion_tokens"], 1_000);
    let pieces = ask(true).events();
    let pieces = pieces
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(
        Some(&*pieces.collect::<String>()),
        whole["choices"][0]["text"].as_str()
    );
}

/// One slot: a client that has gone makes room, whether its answer is running, is waiting, or is
/// sent as a whole.
#[test]
fn a_client_that_has_gone_ends_its_work() {
    let server = endless_server(&["--queue", "20"]);
    let ask = |stream: bool| {
        let body = json!({"model": ENDLESS, "prompt": "sky", "max_tokens": 90_000,
            "stream": stream});
        ("POST /v1/completions", body)
    };
    let running = send(&server, &[ask(false)]);
    until("the first runs", || server.n_requests() == 1);
    let waiting = [send(&server, &[ask(true)]), send(&server, &[ask(false)])];
    until("two wait", || server.n_requests() == 3);
    // An answer that nobody reads makes of closing a reset.
    let reset = send(&server, &[("GET /health", Value::Null), ask(false)]);
    until("another waits", || server.n_requests() == 4);
    // What ends both sides one after the other ends in the same state as what closes.
    let ended = send(&server, &[ask(false)]);
    until("the last waits", || server.n_requests() == 5);
    ended.shutdown(Shutdown::Write).unwrap();
    drop((running, waiting, reset, ended));
    until("all are cancelled", || server.n_requests() == 0);
    let metrics = server.get("/metrics", "").text();
    let cancelled = format!("thane_requests_total{{model=\"{ENDLESS}\",outcome=\"cancelled\"}}");
    assert_eq!(metric(&metrics, &cancelled), 5.0);
}
