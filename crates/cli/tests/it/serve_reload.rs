//! Models that a running server loads again.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::fixture::Home;
use crate::serve_client::Server;
use crate::serve_operation::{answer, copies, until};

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

fn hang_up(server: &Server) {
    let id = server.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-HUP", &id])
            .status()
            .unwrap()
            .success()
    );
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
    let id = server.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}
