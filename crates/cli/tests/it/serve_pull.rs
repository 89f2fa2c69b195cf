//! Models that clients of `thane serve --allow-pull` have downloaded.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::chat_folder;
use crate::serve_client::Server;
use crate::server::{Hub, Reply};

/// The files of a folder, and of the folders in it, by their names from there.
fn files(folder: &Path, before: &str) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let of_entry = |entry: fs::DirEntry| {
        let name = format!("{before}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => files(&entry.path(), &format!("{name}/")),
            false => vec![(name, fs::read(entry.path()).unwrap())],
        }
    };
    entries.flat_map(of_entry).collect()
}

fn pull(server: &Server, body: Value) -> (u16, Vec<Value>) {
    let answer = server.post("/api/pull", &body.to_string(), "");
    let (status, text) = (answer.status, answer.text());
    let lines = text.lines().filter(|line| !line.is_empty());
    let parsed = lines.map(|line| serde_json::from_str(line).unwrap());
    (status, parsed.collect())
}

#[test]
fn a_pulled_model_is_served() {
    let files = files(&chat_folder(), "");
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), &b[..])).collect();
    let hub = Hub::of(&files);
    let bert = crate::embed::model("bert-mean");
    let variables = [("HF_ENDPOINT", hub.api.url.as_str())];
    let server = Server::of_models(&[bert], &["--allow-pull"], &variables);
    let ask = |model: &str| {
        let body = json!({"model": model, "prompt": "the sea", "max_tokens": 3});
        server.post("/v1/completions", &body.to_string(), "").status
    };
    assert_eq!(ask("hf:org/name"), 404);

    let (status, lines) = pull(&server, json!({"model": "hf:org/name:latest"}));
    assert_eq!(status, 200, "{lines:?}");
    assert_eq!(lines[0], json!({"status": "pulling manifest"}));
    assert_eq!(lines.last(), Some(&json!({"status": "success"})));
    assert!(
        lines.iter().any(|line| line["completed"].is_u64()),
        "{lines:?}"
    );
    assert_eq!([ask("hf:org/name"), ask("name")], [200, 200]);
    let listed = server.get("/api/tags", "").json();
    let names = listed["models"].as_array().unwrap().iter();
    let names: Vec<&str> = names.filter_map(|model| model["name"].as_str()).collect();
    assert_eq!(names, ["bert-mean", "hf:org/name"]);

    // What is there is not asked for again.
    let n_requests = hub.api.requests().len();
    let again = pull(&server, json!({"name": "hf:org/name", "stream": false}));
    assert_eq!(again, (200, vec![json!({"status": "success"})]));
    assert_eq!(hub.api.requests().len(), n_requests);

    // Neither what is not there, nor files of this machine.
    let path = chat_folder().display().to_string();
    for name in ["hf:org/none", "no-such-model", &path] {
        let (status, lines) = pull(&server, json!({"model": name}));
        let error = lines.last().unwrap()["error"].as_str().unwrap();
        assert_eq!(status, 200);
        assert_eq!(
            error,
            "the model could not be pulled: the server's log says why"
        );
        assert_eq!(
            pull(&server, json!({"model": name, "stream": false})).0,
            500
        );
        assert_eq!(ask(name), 404);
    }
}

/// A download ends when its client leaves, and the next one goes on where it ended.
#[test]
fn a_pull_that_nobody_waits_for_ends() {
    let files = files(&chat_folder(), "");
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), &b[..])).collect();
    // The first file takes minutes.
    let slow = |nth: usize, reply: Reply| match nth {
        0 => reply.slowly(Duration::from_millis(2)),
        _ => reply,
    };
    let hub = Hub::start(&files, Box::new(move |_, nth, reply| slow(nth, reply)));
    let bert = crate::embed::model("bert-mean");
    let variables = [("HF_ENDPOINT", hub.api.url.as_str())];
    let server = Server::of_models(&[bert], &["--allow-pull"], &variables);
    let body = json!({"model": "hf:org/name"});
    let mut answer = server.post("/api/pull", &body.to_string(), "");
    while hub.store.requests().is_empty() {
        answer.chunk().unwrap();
    }
    let begun = |line: String| line.contains("safetensors") && !line.contains("\"completed\":0");
    while !begun(answer.chunk().unwrap()) {}
    drop(answer);
    let again = (0..1_000_000).map(|_| pull(&server, body.clone()));
    let (status, lines) = again
        .into_iter()
        .find(|(status, _)| *status != 429)
        .unwrap();
    assert_eq!(status, 200, "{lines:?}");
    assert_eq!(lines.last(), Some(&json!({"status": "success"})));
    let asked = hub.store.requests();
    assert!(asked[1].headers.contains_key("range"), "{:?}", asked[1]);
}

/// A hub may ask to wait for minutes, which nobody does who has left.
#[test]
fn a_pull_that_nobody_waits_for_waits_for_nobody() {
    let files = files(&chat_folder(), "");
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), &b[..])).collect();
    let busy = |nth: usize, reply: Reply| match nth {
        0 => Reply::new(429, "").with("Retry-After", "100"),
        _ => reply,
    };
    let as_it_is = Box::new(|_: &_, _, reply| reply);
    let hub = Hub::with_api(
        &files,
        as_it_is,
        Box::new(move |_, nth, reply| busy(nth, reply)),
    );
    let bert = crate::embed::model("bert-mean");
    let variables = [("HF_ENDPOINT", hub.api.url.as_str())];
    let server = Server::of_models(&[bert], &["--allow-pull"], &variables);
    let body = json!({"model": "hf:org/name"});
    let mut answer = server.post("/api/pull", &body.to_string(), "");
    while hub.api.requests().is_empty() {
        answer.chunk().unwrap();
    }
    drop(answer);
    let mut again = (0..1_000_000).map(|_| pull(&server, body.clone()));
    let (status, lines) = again.find(|(status, _)| *status != 429).unwrap();
    assert_eq!(
        (status, lines.last()),
        (200, Some(&json!({"status": "success"})))
    );
    let requests = hub.api.requests();
    let listings = requests
        .iter()
        .filter(|request| request.path == requests[0].path);
    assert_eq!(listings.count(), 2, "the first pull did not ask again");
}

#[test]
fn names_of_clients_forge_no_lines() {
    let bert = crate::embed::model("bert-mean");
    let mut server = Server::of_models(&[bert], &["--allow-pull"], &[]);
    let names = [
        "x\nthane: forged",
        "hf:org/name@\u{1b}[2J\r\u{85}\nthane: forged",
    ];
    for name in names {
        assert_eq!(
            pull(&server, json!({"model": name, "stream": false})).0,
            500
        );
    }
    server.interrupt();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    let mut stderr = server.child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("forged"))
        .collect();
    assert_eq!(lines.len(), names.len(), "{said}");
    assert!(
        lines[0].starts_with("thane: pull x\\nthane: forged: "),
        "{said}"
    );
    assert!(
        lines[1].starts_with(r"thane: pull hf:org/name@\u{1b}[2J\r\u{85}\nthane: forged: "),
        "{said}"
    );
}
