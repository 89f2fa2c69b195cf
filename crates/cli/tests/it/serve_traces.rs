//! Traces of requests, as a collector of OpenTelemetry gets them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::fixture::{Home, NOWHERE, PATIENCE, assert_ends, chat_folder};
use crate::serve_client::Server;

/// A collector on a port of this machine: the heads and spans of what it is sent.
fn collector() -> (String, Receiver<(String, Value)>) {
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    collector_that(answer)
}

/// A collector that answers so each time.
fn collector_that(answer: &'static str) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if reader.read_line(&mut head).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let head = head.to_lowercase();
                    let n = head.split("content-length: ").nth(1).unwrap();
                    let n = n.split("\r\n").next().unwrap().parse().unwrap();
                    let mut body = vec![0; n];
                    reader.read_exact(&mut body).unwrap();
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    (&stream).write_all(answer.as_bytes()).unwrap();
                    if sender.send((head, body)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, received)
}

fn attribute<'s>(span: &'s Value, key: &str) -> &'s Value {
    let list = span["attributes"].as_array().unwrap();
    let found = list.iter().find(|attribute| attribute["key"] == key);
    &found.unwrap_or_else(|| panic!("{key} in {span}"))["value"]
}

fn ns(span: &Value, field: &str) -> u128 {
    span[field].as_str().unwrap().parse().unwrap()
}

#[test]
fn a_request_is_a_span_of_its_clients_trace() {
    let (url, received) = collector();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue"),
        ("OTEL_SERVICE_NAME", "answers"),
    ];
    let server = Server::start_with(&[], &variables);
    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let parent = |flags: &str| format!("traceparent: 00-{trace}-{span}-{flags}\r\n");
    let chat = json!({"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5, "min_tokens": 5})
    .to_string();
    let headers = format!("{}tracestate: a=1\r\nX-Request-Id: mine\r\n", parent("01"));
    let answer = server.post("/v1/chat/completions", &chat, &headers);
    let usage = answer.json()["usage"].clone();
    // Not recorded by the client, and so not here.
    assert_eq!(server.get("/v1/models", &parent("00")).status, 200);
    assert_eq!(
        server.get("/health", "traceparent: nonsense\r\n").status,
        200
    );
    let mut spans = Vec::new();
    while spans.len() < 2 {
        let (head, body) = received.recv_timeout(PATIENCE).unwrap();
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(head.contains("x-team: blue"), "{head}");
        let resource = &body["resourceSpans"][0];
        assert_eq!(
            attribute(&resource["resource"], "service.name")["stringValue"],
            "answers"
        );
        spans.extend(
            resource["scopeSpans"][0]["spans"]
                .as_array()
                .unwrap()
                .clone(),
        );
    }
    let found = &spans[0];
    assert_eq!(found["name"], "POST /v1/chat/completions");
    assert_eq!(
        (&found["traceId"], &found["parentSpanId"]),
        (&json!(trace), &json!(span))
    );
    assert_eq!(
        (&found["traceState"], &found["kind"]),
        (&json!("a=1"), &json!(2))
    );
    assert_eq!(found["spanId"].as_str().unwrap().len(), 16);
    assert_eq!(
        attribute(found, "http.response.status_code")["intValue"],
        "200"
    );
    assert_eq!(attribute(found, "thane.request_id")["stringValue"], "mine");
    for (key, field) in [("input", "prompt_tokens"), ("output", "completion_tokens")] {
        let n = &attribute(found, &format!("gen_ai.usage.{key}_tokens"))["intValue"];
        assert_eq!(*n, usage[field].to_string(), "{found}");
    }
    let (start, end) = (ns(found, "startTimeUnixNano"), ns(found, "endTimeUnixNano"));
    let first = ns(&found["events"][0], "timeUnixNano");
    assert!(start < first && first <= end, "{found}");
    // A request whose parent cannot be read begins a trace.
    let own = &spans[1];
    assert_eq!(own["name"], "GET /health", "{own}");
    assert!(own["parentSpanId"].is_null(), "{own}");
    let id = own["traceId"].as_str().unwrap();
    assert!(id.len() == 32 && id != trace, "{own}");
    assert!(received.try_recv().is_err());
}

#[test]
fn requests_are_answered_without_a_collector() {
    let collector = NOWHERE.replace("://", "://me:secret@");
    let mut server = Server::start(&["--otlp-endpoint", &collector]);
    for _ in 0..3 {
        assert_eq!(server.get("/v1/models", "").status, 200);
    }
    let mut stderr = BufReader::new(server.child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("takes no traces") {
        assert!(stderr.read_line(&mut said).unwrap() > 0, "{said}");
    }
    // Another failure is not told: this one's, or that of the last spans at the end.
    assert_eq!(server.get("/v1/models", "").status, 200);
    server.interrupt();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("takes no traces").count(), 1, "{said}");
    assert!(
        said.contains("http://***@127") && !said.contains("secret"),
        "{said}"
    );
    let home = Home::new();
    let chat = chat_folder();
    let flags = ["--port", "0", "--otlp-endpoint", "localhost:4318"];
    let output = home.run(&[&["serve", chat.to_str().unwrap()], &flags[..]].concat());
    assert_ends(
        &output,
        2,
        &[
            "expected the address of a collector",
            "--otlp-endpoint http://",
        ],
    );
    let flags = ["--port", "0", "--otlp-endpoint", "me:secret@localhost"];
    let output = home.run(&[&["serve", chat.to_str().unwrap()], &flags[..]].concat());
    assert_ends(&output, 2, &["found `***@localhost`"]);
}

/// A redirect takes no spans, and a collector that asks for a rest gets one.
#[test]
fn a_collector_that_refuses_is_told_of_and_rests() {
    for (answer, said) in [
        (
            "HTTP/1.1 302 Found\r\nLocation: http://me:secret@127.0.0.1:9/x\r\n\
             Retry-After: 3600\r\nContent-Length: 0\r\n\r\n",
            "takes no traces: it redirects to http://***@127.0.0.1:9/x\n",
        ),
        (
            "HTTP/1.1 429 Slow\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n",
            "takes no traces: http status: 429\n",
        ),
    ] {
        let (url, received) = collector_that(answer);
        let mut server = Server::start(&["--otlp-endpoint", &url]);
        assert_eq!(server.get("/health", "").status, 200);
        let mut stderr = BufReader::new(server.child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains(said) {
            assert!(stderr.read_line(&mut line).unwrap() > 0, "{line}");
        }
        assert_eq!(server.get("/health", "").status, 200);
        server.interrupt();
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert_eq!(received.try_iter().count(), 1, "{said}");
    }
}

/// A method may be as long as the head of a request, and thousands of spans wait.
#[test]
fn methods_of_clients_are_not_kept() {
    let (url, received) = collector();
    let server = Server::start(&["--otlp-endpoint", &url]);
    let method = "A".repeat(30_000);
    let head = format!("{method} /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(server.send(&head, "").status, 405);
    let (_, body) = received.recv_timeout(PATIENCE).unwrap();
    let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!(span["name"], "HTTP /health");
    let method = attribute(span, "http.request.method");
    assert_eq!(method["stringValue"], "_OTHER");
}

#[test]
fn a_collector_that_never_answers_does_not_hold_up_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut server = Server::start(&["--otlp-endpoint", &url]);
    assert_eq!(server.get("/health", "").status, 200);
    let _silent = listener.accept().unwrap();
    // Its span waits behind the one that is being sent.
    assert_eq!(server.get("/health", "").status, 200);
    server.interrupt();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    let mut stderr = server.child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    let line = "the last traces are lost: the collector does not answer";
    assert!(said.contains(line), "{said}");
}
