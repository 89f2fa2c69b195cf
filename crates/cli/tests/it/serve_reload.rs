//! Signals to a running server: models that are loaded again, and its end.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::fixture::{Home, until};
use crate::serve_client::Server;
use crate::serve_operation::{answer, copies};

/// Puts a changed file into the place of the weights. A file that is mapped is not written into.
fn change(model: &Path, change: impl Fn(&mut [u8])) {
    let file = model.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let n_header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    change(&mut bytes[8 + n_header..]);
    let new = model.join("new");
    std::fs::write(&new, bytes).unwrap();
    std::fs::rename(&new, &file).unwrap();
}

fn send(signal: &str, server: &Server) {
    let id = server.child.id().to_string();
    let status = Command::new("kill").args([signal, &id]).status();
    assert!(status.unwrap().success());
}

fn hang_up(server: &Server) {
    send("-HUP", server);
}

/// A log that was moved away is continued there until SIGHUP, and then begins again, for this user
/// alone.
#[cfg(unix)]
#[test]
fn sighup_opens_the_log_again() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let (log, moved) = (home.path("log"), home.path("log.1"));
    let server = Server::start(&["--log", log.to_str().unwrap()]);
    let ask = |name: &str| {
        let header = format!("X-Request-Id: {name}\r\n");
        assert_eq!(server.get("/health", &header).status, 200);
    };
    let has = |file: &Path, name: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.contains(&format!("\"request\":\"{name}\""))
    };
    std::fs::rename(&log, &moved).unwrap();
    ask("before");
    until("a line is where the log was", || has(&moved, "before"));
    assert!(!log.exists());
    hang_up(&server);
    until("the log begins again", || log.exists());
    ask("after");
    until("a line is in the new log", || has(&log, "after"));
    assert!(!has(&moved, "after") && !has(&log, "before"));
    assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

/// To be loaded again is no use of a model, so that its time goes on.
#[test]
fn sighup_does_not_keep_models_loaded() {
    let server = Server::start(&["--keep-alive", "3s"]);
    until("the model is unloaded", || {
        hang_up(&server);
        server.get("/v1/models/tiny-chat", "").json()["loaded"] == false
    });
}

/// What the log has of models that were loaded again.
fn reloads(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .filter(|line: &Value| line["event"] == "reloaded")
        .collect()
}

/// The text of a streamed answer that takes long with these numerics.
fn long(events: Vec<Value>) -> String {
    let pieces = events
        .iter()
        .filter_map(|e| e["choices"][0]["text"].as_str());
    pieces.collect()
}

#[test]
fn sighup_loads_models_again_beside_running_answers() {
    let home = Home::new();
    let model = copies(&home, &["tiny"]).remove(0);
    let log = home.path("log");
    let flags = [
        "--numerics",
        "ane",
        "--slots",
        "1",
        "--log",
        log.to_str().unwrap(),
    ];
    let server = Server::of_models(std::slice::from_ref(&model), &flags, &[]);
    let before = answer(&server, "tiny");
    let body = json!({"model": "tiny", "prompt": "sky", "max_tokens": 300, "stream": true});
    let ask = || server.post("/v1/completions", &body.to_string(), "");
    let expected = long(ask().events());

    // The other sign for each weight, which is fp16.
    change(&model, |weights| {
        weights
            .iter_mut()
            .skip(1)
            .step_by(2)
            .for_each(|byte| *byte ^= 0x80);
    });
    let running = ask();
    hang_up(&server);
    until("the model is loaded again", || reloads(&log).len() == 1);
    let found = reloads(&log).remove(0);
    assert_eq!(
        (&found["model"], &found["error"]),
        (&json!("tiny"), &Value::Null)
    );
    let after = answer(&server, "tiny");
    assert_ne!(after, before);
    assert_eq!(long(running.events()), expected);
    assert_eq!(
        answer(
            &Server::of_models(std::slice::from_ref(&model), &flags[..4], &[]),
            "tiny"
        ),
        after
    );

    // Weights that are no numbers, and a file that is none.
    change(&model, |weights| weights.fill(0x7e));
    hang_up(&server);
    until("weights without numbers are refused", || {
        reloads(&log).len() == 2
    });
    std::fs::write(model.join("new"), "nothing").unwrap();
    std::fs::rename(model.join("new"), model.join("model.safetensors")).unwrap();
    hang_up(&server);
    until("a damaged file is refused", || reloads(&log).len() == 3);
    for line in &reloads(&log)[1..] {
        assert!(
            line["error"].as_str().is_some_and(|e| !e.is_empty()),
            "{line}"
        );
    }
    assert_eq!(answer(&server, "tiny"), after);
    assert_eq!(server.get("/ready", "").status, 200);
    // SIGTERM still ends the server.
    let mut server = server;
    send("-TERM", &server);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_signal_ends_a_server_at_once() {
    for signal in ["-INT", "-TERM"] {
        let mut server = Server::start(&[]);
        let mut client = TcpStream::connect(&server.address).unwrap();
        let head = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n\
                    Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
        client.write_all(head.as_bytes()).unwrap();
        // Once another request has its answer, the server waits for the rest of this one.
        assert_eq!(server.get("/ready", "").status, 200);
        send(signal, &server);
        // The client has 10 seconds after one signal.
        let mut said = String::new();
        let stderr = server.child.stderr.as_mut().unwrap();
        BufReader::new(stderr).read_line(&mut said).unwrap();
        assert!(said.starts_with("thane: stopping"), "{said}");
        send(signal, &server);
        assert_eq!(server.child.wait().unwrap().code(), Some(130));
    }
}
