//! The log of `thane serve`, and the verbs that look after servers.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, chat_folder};
use crate::serve_client::Server;

fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines().map(serde_json::from_str);
    lines.map(|line| line.unwrap()).collect()
}

fn header(head: &str) -> &str {
    let found = head.split("\r\nx-request-id: ").nth(1).unwrap();
    found.split("\r\n").next().unwrap()
}

#[test]
fn each_request_has_a_line_without_its_text() {
    let home = Home::new();
    let file = home.path("log");
    std::fs::write(&file, "{\"event\":\"before\"}\n").unwrap();
    let mut server = Server::start(&["--log", file.to_str().unwrap(), "-v"]);
    let hello = json!([{"role": "user", "content": "secret"}]);
    let chat = json!({"model": "tiny-chat", "messages": hello, "max_tokens": 3, "temperature": 0});
    let named = |name: &str| {
        let id = format!("X-Request-Id: {name}\r\n");
        let answer = server.post("/v1/chat/completions?q=secret", &chat.to_string(), &id);
        let given = header(&answer.head).to_owned();
        (given, answer.json())
    };
    // A client's name is kept if it is a short word.
    let (id, answer) = named("abc-1.x");
    assert_eq!(id, "abc-1.x");
    let others = ["a b", "", &"x".repeat(65), "{}"].map(|name| named(name).0);
    for (idx, id) in others.iter().enumerate() {
        assert!(id.len() > 8 && !others[..idx].contains(id), "{others:?}");
    }
    let mut streamed = chat.clone();
    streamed["stream"] = json!(true);
    let stream = server.post(
        "/v1/chat/completions",
        &streamed.to_string(),
        "X-Request-Id: s\r\n",
    );
    stream.text();
    let body = json!({"model": "bert-mean", "input": "a secret"}).to_string();
    server
        .post("/v1/embeddings", &body, "X-Request-Id: e\r\n")
        .text();
    server.get("/secret", "X-Request-Id: n\r\n").text();
    // A client that leaves early.
    let mut long = streamed.clone();
    long["max_tokens"] = json!(400);
    drop(server.post(
        "/v1/chat/completions",
        &long.to_string(),
        "X-Request-Id: gone\r\n",
    ));
    server.interrupt();
    assert!(server.child.wait().unwrap().success());
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("secret"), "{text}");
    let lines = lines(&text);
    assert_eq!(lines[0]["event"], "before", "the log is continued");
    assert_eq!(
        (&lines[1]["event"], &lines.last().unwrap()["event"]),
        (&json!("started"), &json!("stopped"))
    );
    assert_eq!(lines[1]["address"], format!("http://{}", server.address));
    let of = |id: &str| {
        let found = lines.iter().find(|line| line["request"] == id);
        found.unwrap_or_else(|| panic!("{id} is not in {text}"))
    };
    for id in ["abc-1.x", "s"] {
        let line = of(id);
        assert_eq!(
            (&line["method"], &line["route"]),
            (&json!("POST"), &json!("/v1/chat/completions"))
        );
        assert_eq!(
            (&line["status"], &line["whole"]),
            (&json!(200), &json!(true)),
            "{line}"
        );
        assert_eq!(
            line["prompt_tokens"], answer["usage"]["prompt_tokens"],
            "{line}"
        );
        assert_eq!(
            line["answer_tokens"], answer["usage"]["completion_tokens"],
            "{line}"
        );
        assert!(line["ms"].as_f64().unwrap() > 0.0 && line["time"].is_string());
    }
    assert!(of("e")["prompt_tokens"].as_u64().unwrap() > 1);
    let unknown = of("n");
    assert_eq!(
        (&unknown["status"], &unknown["route"]),
        (&json!(404), &json!("-"))
    );
    assert_eq!(of("gone")["whole"], false);
    // With -v, a terminal has them too.
    let mut said = String::new();
    server
        .child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(said.contains("POST /v1/chat/completions: 200, "), "{said}");
    assert!(
        said.contains(" ms, ") && said.contains(" + 3 tokens, abc-1.x"),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
    let model = chat_folder();
    let output = home.run(&[
        "serve",
        model.to_str().unwrap(),
        "--port",
        "0",
        "--log",
        "gone/log",
    ]);
    assert_ends(&output, 1, &["gone/log: the log cannot be written"]);
}

#[test]
fn a_log_on_stdout_begins_with_the_address() {
    let home = Home::new();
    let model = chat_folder();
    let mut child = home
        .thane(&[
            "serve",
            model.to_str().unwrap(),
            "--port",
            "0",
            "--log",
            "-",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let address = first["address"].as_str().unwrap();
    let address = address.strip_prefix("http://").unwrap().to_owned();
    let server = Server {
        child,
        address,
        home,
    };
    server.get("/v1/models", "").text();
    let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(
        (&line["route"], &line["status"]),
        (&json!("/v1/models"), &json!(200))
    );
}
