//! What answers take of `--memory`: their log probabilities and their text count before they are
//! there, and until they are sent.

use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::fixture::until;
use crate::serve_client::{Server, with};

/// Long answers, each token with twenty others. Ends of answers are excluded.
fn scored(n: usize) -> Value {
    json!({"messages": [{"role": "user", "content": "hello"}], "n": n, "logprobs": true,
        "top_logprobs": 20, "temperature": 1.5, "min_tokens": 500})
}

/// The most memory that a server has had, in bytes.
#[cfg(target_os = "linux")]
fn peak(server: &Server) -> usize {
    let path = format!("/proc/{}/status", server.child.id());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: usize = line
        .unwrap()
        .trim()
        .strip_suffix(" kB")
        .unwrap()
        .parse()
        .unwrap();
    kib << 10
}

/// A request of some hundred bytes could have answers of any size.
#[test]
fn log_probabilities_are_refused_before_they_fill_memory() {
    let server = Server::start(&["--memory", "30MB", "--prompt-memory", "0"]);
    let ask = |fields: Value| server.chat(with(scored(64), fields));
    let answer = ask(json!({}));
    let (status, found) = (answer.status, answer.text());
    assert!([413, 503].contains(&status), "{status}: {found}");
    assert!(found.contains("the log probabilities of "), "{found}");
    // How many there will be is not known here.
    let answer = ask(json!({"min_tokens": 0, "logit_bias": {"0": -100, "1": -100, "2": -100}}));
    let (status, found) = (answer.status, answer.text());
    assert!([413, 503].contains(&status), "{status}: {found}");
    assert!(found.contains("an answer needs "), "{found}");
    let whole = server.chat(with(scored(2), json!({"max_tokens": 400})));
    assert_eq!(whole.status, 200);
    let choices = whole.json()["choices"].clone();
    let content = choices[1]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 400);
    assert_eq!(content[399]["top_logprobs"].as_array().unwrap().len(), 20);
    #[cfg(target_os = "linux")]
    assert!(peak(&server) < 200 << 20, "{} bytes", peak(&server));
    assert_eq!(server.n_requests(), 0);
}

/// A stream is written no sooner than it is read.
#[test]
fn a_stream_that_nobody_reads_fills_no_memory() {
    let server = Server::start(&["--memory", "40MB", "--prompt-memory", "0"]);
    let fields = json!({"model": "tiny-chat", "stream": true, "min_tokens": 0,
        "logit_bias": {"0": -100, "1": -100, "2": -100}});
    let body = with(scored(8), fields).to_string();
    let answer = server.post("/v1/chat/completions", &body, "");
    assert_eq!(answer.status, 200);
    #[cfg(target_os = "linux")]
    let before = peak(&server);
    until("all answers have ended", || server.n_requests() == 0);
    #[cfg(target_os = "linux")]
    assert!(
        peak(&server) < before + (20 << 20),
        "{} {before}",
        peak(&server)
    );
    let found = answer.text();
    assert!(found.len() > 3_000_000, "{} bytes", found.len());
    assert!(found.ends_with("data: [DONE]\n\n"));
}

/// What is read slowly counts until it is sent.
#[test]
fn answers_that_nobody_reads_fill_memory_and_no_more() {
    let server = Server::start(&["--memory", "60MB", "--prompt-memory", "0"]);
    let inputs = vec!["a b c d e f g h i j k l m n o p q r s t u v w x y z"; 1000];
    let body = json!({"inputs": inputs}).to_string();
    let ask = || server.post("/embed_all", &body, "");
    let whole = ask();
    assert_eq!(whole.status, 200);
    let n_bytes = whole.text().len();
    assert!(n_bytes > 4_000_000, "{n_bytes}");
    let head = format!(
        "POST /embed_all HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        server.address,
        body.len()
    );
    let mut unread = Vec::new();
    until("memory is full", || {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        unread.push(stream);
        let answer = ask();
        let is_full = answer.status == 503;
        if is_full {
            assert!(answer.text().contains("memory"));
        }
        is_full
    });
    #[cfg(target_os = "linux")]
    assert!(peak(&server) < 250 << 20, "{} bytes", peak(&server));
    drop(unread);
    until("memory is free again", || ask().status == 200);
}
