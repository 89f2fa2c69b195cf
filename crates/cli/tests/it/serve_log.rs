//! The log of `thane serve`, and the verbs that look after servers.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, chat_folder, json as report, until};
use crate::serve_client::{Server, with};

fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines().map(serde_json::from_str);
    lines.map(|line| line.unwrap()).collect()
}

fn header(head: &str) -> &str {
    let found = head.split("\r\nx-request-id: ").nth(1).unwrap();
    found.split("\r\n").next().unwrap()
}

/// A chat whose text shall be in no log.
fn secret_chat(more: Value) -> String {
    let messages = json!([{"role": "user", "content": "secret"}]);
    let chat =
        json!({"model": "tiny-chat", "messages": messages, "max_tokens": 3, "temperature": 0});
    with(chat, more).to_string()
}

fn id(name: &str) -> String {
    format!("X-Request-Id: {name}\r\n")
}

/// Stops a server; returns what its log has, and what it said.
fn log_of(mut server: Server, file: &Path) -> (Vec<Value>, String) {
    server.interrupt();
    assert!(server.child.wait().unwrap().success());
    let text = std::fs::read_to_string(file).unwrap();
    let mut said = String::new();
    let mut stderr = server.child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    for text in [&text, &said] {
        assert!(!text.contains("secret"), "{text}");
    }
    (lines(&text), said)
}

/// A disk without room, as Linux has one.
#[cfg(target_os = "linux")]
#[test]
fn that_lines_are_lost_is_said_once() {
    let server = Server::start(&["--log", "/dev/full"]);
    for _ in 0..3 {
        server.get("/v1/models", "").text();
    }
    let mut server = server;
    server.interrupt();
    assert!(server.child.wait().unwrap().success());
    let mut said = String::new();
    let mut stderr = server.child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    let line = "thane: /dev/full: lines of the log are lost: No space left on device\n";
    assert_eq!(said.matches(line).count(), 1, "{said}");
}

/// Opening a pipe would wait for its other end without a word.
#[cfg(unix)]
#[test]
fn pipes_are_no_files_of_a_server() {
    let home = Home::new();
    let pipe = home.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let (model, pipe) = (chat_folder(), pipe.to_str().unwrap());
    for flag in ["--log", "--api-key-file", "--config", "--tls-cert"] {
        let args = ["serve", model.to_str().unwrap(), "--port", "0", flag, pipe];
        let args = match flag {
            "--tls-cert" => [&args[..], &["--tls-key", pipe]].concat(),
            _ => args.to_vec(),
        };
        let code = if flag == "--log" { 1 } else { 2 };
        let said = "expected a regular file, found a pipe";
        assert_ends(&home.run(&args), code, &["pipe: ", said]);
    }
}

#[cfg(unix)]
#[test]
fn a_log_is_for_this_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let file = home.path("log");
    let server = Server::start(&["--log", file.to_str().unwrap()]);
    log_of(server, &file);
    let mode = file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn each_request_has_a_line_without_its_text() {
    let home = Home::new();
    let file = home.path("log");
    std::fs::write(&file, "{\"event\":\"before\"}\n").unwrap();
    // These numerics are slow.
    let flags = ["--log", file.to_str().unwrap(), "-v", "--numerics", "ane"];
    let server = Server::start(&flags);
    let address = server.address.clone();
    let chat = |more: Value, name: &str| {
        let path = "/v1/chat/completions?q=secret";
        server.post(path, &secret_chat(more), &id(name))
    };
    let usage = chat(json!({}), "whole").json()["usage"].clone();
    chat(json!({"stream": true}), "stream").text();
    let body = json!({"model": "bert-mean", "input": "a secret"}).to_string();
    server.post("/v1/embeddings", &body, &id("embed")).text();
    server.get("/secret", &id("unknown")).text();
    // A client that leaves early, behind the role and a piece.
    let mut left = chat(json!({"stream": true, "max_tokens": 400}), "gone");
    assert!(left.chunk().is_some() && left.chunk().is_some());
    drop(left);
    let (lines, said) = log_of(server, &file);
    assert_eq!(lines[0]["event"], "before", "the log is continued");
    assert_eq!(lines[1]["event"], "started");
    assert_eq!(lines[1]["address"], format!("http://{address}"));
    assert_eq!(lines.last().unwrap()["event"], "stopped");
    let of = |id: &str| {
        let found = lines.iter().find(|line| line["request"] == id);
        found.unwrap_or_else(|| panic!("{id} is not in {lines:?}"))
    };
    for id in ["whole", "stream"] {
        let line = of(id);
        assert_eq!(line["method"], "POST");
        assert_eq!(line["route"], "/v1/chat/completions");
        assert_eq!(line["status"], 200);
        assert_eq!(line["whole"], true, "{line}");
        assert_eq!(line["prompt_tokens"], usage["prompt_tokens"], "{line}");
        assert_eq!(line["answer_tokens"], usage["completion_tokens"], "{line}");
        assert!(line["ms"].as_f64().unwrap() > 0.0 && line["time"].is_string());
    }
    assert!(of("embed")["prompt_tokens"].as_u64().unwrap() > 1);
    let unknown = of("unknown");
    assert_eq!(unknown["status"], 404);
    assert_eq!(unknown["route"], "-");
    let gone = of("gone");
    assert_eq!(gone["whole"], false);
    assert_eq!(gone["prompt_tokens"], usage["prompt_tokens"], "{gone}");
    let n = gone["answer_tokens"].as_u64().unwrap();
    assert!((1..400).contains(&n), "{gone}");
    // With -v, a terminal has them too.
    let line = "POST /v1/chat/completions: 200, ";
    assert!(
        said.contains(line) && said.contains(" + 3 tokens, whole"),
        "{said}"
    );
}

#[test]
fn the_name_of_a_request_is_the_clients_if_it_is_a_word() {
    let server = Server::start(&[]);
    let named = |name: &str| header(&server.get("/v1/models", &id(name)).head).to_owned();
    for name in ["abc-1.x", "7", &"x".repeat(64)] {
        assert_eq!(named(name), name);
    }
    let others = ["a b", "", &"x".repeat(65), "{}"].map(named);
    for (idx, id) in others.iter().enumerate() {
        assert!(id.len() > 8 && !others[..idx].contains(id), "{others:?}");
    }
    let (home, model) = (Home::new(), chat_folder());
    let serve = [
        "serve",
        model.to_str().unwrap(),
        "--port",
        "0",
        "--log",
        "gone/log",
    ];
    assert_ends(
        &home.run(&serve),
        1,
        &["gone/log: the log cannot be written"],
    );
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

/// A server in a home that other servers have too, and its address.
fn start(home: &Home, flags: &[&str]) -> (Child, String) {
    let model = chat_folder();
    let fixed = ["serve", model.to_str().unwrap(), "--port", "0"];
    let mut command = home.thane(&[&fixed[..], flags].concat());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

#[test]
fn servers_are_listed_and_stopped() {
    let home = Home::new();
    assert_ends(&home.run(&["ps"]), 0, &["no server runs"]);
    assert_ends(
        &home.run(&["stop"]),
        1,
        &["expected a running server, found none"],
    );
    let (mut first, address) = start(&home, &[]);
    let (mut second, other) = start(&home, &[]);
    // What is no server is not listed, and one that was killed neither.
    let (mut killed, _) = start(&home, &[]);
    killed.kill().unwrap();
    std::fs::write(home.path("cache/servers/1.json"), "{}").unwrap();
    let listed = report(&home.run(&["ps", "--json"]));
    killed.wait().unwrap();
    crate::schema::agrees("ps", &listed);
    let servers = listed["servers"].as_array().unwrap();
    let addresses: Vec<&Value> = servers.iter().map(|server| &server["address"]).collect();
    let both = [&json!(address), &json!(other)];
    assert!(
        addresses.len() == 2 && both.iter().all(|a| addresses.contains(a)),
        "{listed}"
    );
    let shown = String::from_utf8(home.run(&["ps"]).stdout).unwrap();
    assert!(
        shown.contains(&address) && shown.contains("tiny-chat"),
        "{shown}"
    );
    // With two, one must be named.
    assert_ends(
        &home.run(&["stop"]),
        2,
        &["expected one of the servers", &other],
    );
    assert_ends(&home.run(&["stop", "nobody"]), 1, &["found `nobody`"]);
    let stopped = report(&home.run(&["stop", &address, "--json"]));
    crate::schema::agrees("stop", &stopped);
    assert_eq!(stopped["pid"], first.id());
    assert!(first.wait().unwrap().success());
    assert_ends(&home.run(&["stop"]), 0, &[]);
    assert!(second.wait().unwrap().success());
    let left = ["1.json".to_owned(), format!("{}.json", killed.id())];
    assert_eq!(home.files("cache/servers"), left);
}

#[test]
fn logs_of_servers_are_read_and_followed() {
    let home = Home::new();
    let (mut silent, address) = start(&home, &[]);
    assert_ends(
        &home.run(&["logs"]),
        1,
        &["expected a log in a file, found none"],
    );
    assert_ends(&home.run(&["stop", &address]), 0, &[]);
    silent.wait().unwrap();
    let log = home.path("log");
    let (child, address) = start(&home, &["--log", log.to_str().unwrap()]);
    let address = address.replace("http://", "");
    let mut server = Server {
        child,
        address,
        home: Home::new(),
    };
    for _ in 0..3 {
        server.get("/v1/models", "").text();
    }
    let port = server.address.rsplit(':').next().unwrap().to_owned();
    let of_log = |flags: &[&str]| {
        let output = home.run(&[&["logs", &port][..], flags].concat());
        assert_ends(&output, 0, &[]);
        lines(&String::from_utf8(output.stdout).unwrap())
    };
    // The log is written beside the answers.
    until("the requests are logged", || of_log(&[]).len() >= 4);
    let all = of_log(&[]);
    assert_eq!(
        (all.len(), &all[0]["event"]),
        (4, &json!("started")),
        "{all:?}"
    );
    let two = of_log(&["-n", "2"]);
    assert_eq!((two.len(), &two[1]["route"]), (2, &json!("/v1/models")));
    assert!(of_log(&["--lines", "0"]).is_empty());
    // One that is followed ends with its server.
    let mut follow = home.thane(&["logs", &port, "--follow", "-n", "1"]);
    let mut followed = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(followed.stdout.take().unwrap());
    let mut text = String::new();
    printed.read_line(&mut text).unwrap();
    server.interrupt();
    assert!(server.child.wait().unwrap().success());
    printed.read_to_string(&mut text).unwrap();
    assert!(followed.wait().unwrap().success());
    assert_eq!(lines(&text).last().unwrap()["event"], "stopped", "{text}");
}
