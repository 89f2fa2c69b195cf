//! Prompts that `thane serve` keeps beside its slots, in memory and in a folder.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::fixture::{Home, assert_ends, until};
use crate::serve_client::Server;

/// Token ids of a prompt; those of different `seed` begin differently.
fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|k| (seed + k * k * 5 + 31) % 97 + 9).collect()
}

/// Tokens of the prompt that were cached, and the answer.
fn ask(server: &Server, prompt: &[u32]) -> (u64, String) {
    let body = json!({
        "model": "tiny-chat", "prompt": prompt, "max_tokens": 6, "temperature": 0,
    });
    let answer = server.post("/v1/completions", &body.to_string(), "").json();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    let text = answer["choices"][0]["text"].as_str();
    (cached.as_u64().unwrap(), text.unwrap().to_owned())
}

/// The pages in a folder; waits until there are `n`.
fn pages(folder: &Path, n: usize) -> Vec<PathBuf> {
    let is_page = |path: &PathBuf| path.extension().is_some_and(|e| e == "page");
    let mut found = Vec::new();
    until("pages are kept", || {
        let models = list(folder);
        found = models.iter().flat_map(|model| list(model)).collect();
        found.len() == n && found.iter().all(is_page)
    });
    found
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_prompt_is_found_after_others_had_the_only_slot() {
    let server = Server::start(&["--slots", "1", "--numerics", "f32"]);
    let (first, answer) = ask(&server, &prompt(1, 300));
    assert_eq!(first, 0);
    assert_eq!(ask(&server, &prompt(2, 100)).0, 0);
    // Its whole cache comes back; the last token is always computed.
    assert_eq!(ask(&server, &prompt(1, 300)), (299, answer));
    // What both begin with: a page, and a part of one.
    let half = [&prompt(1, 100)[..], &prompt(2, 100)].concat();
    assert_eq!(ask(&server, &half).0, 100);
    ask(&server, &prompt(2, 100));
    // The cache of a longer prompt stays as it is.
    assert_eq!(ask(&server, &prompt(1, 70)).0, 64);
    assert_eq!(ask(&server, &prompt(1, 300)).0, 299);
    let server = Server::start(&["--slots", "1", "--prompt-memory", "0"]);
    ask(&server, &prompt(1, 300));
    ask(&server, &prompt(2, 100));
    assert_eq!(ask(&server, &prompt(1, 300)).0, 0);
}

#[test]
fn prompts_outlive_the_server_in_a_folder() {
    let home = Home::new();
    let folder = home.path("prompts");
    let flags = ["--slots", "1", "--prompt-cache", folder.to_str().unwrap()];
    let f32 = [&flags[..], &["--numerics", "f32"]].concat();
    let server = Server::start(&f32);
    let (_, answer) = ask(&server, &prompt(1, 300));
    // 306 tokens, the last of which no cache holds.
    let files = pages(&folder, 4);
    drop(server); // kill -9
    let server = Server::start(&f32);
    assert_eq!(ask(&server, &prompt(1, 300)), (256, answer.clone()));
    drop(server);
    // Other arithmetic has pages of its own.
    let server = Server::start(&flags);
    assert_eq!(ask(&server, &prompt(1, 300)).0, 0);
    pages(&folder, 8);
    drop(server);
    // What is damaged is computed, and kept again.
    let flip = |file: &PathBuf| {
        let mut bytes = fs::read(file).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 64;
        fs::write(file, &bytes).unwrap();
        bytes
    };
    let damaged: Vec<Vec<u8>> = files.iter().map(flip).collect();
    let server = Server::start(&f32);
    assert_eq!(ask(&server, &prompt(1, 300)), (0, answer.clone()));
    until("no damaged page is left", || {
        let mut all = files.iter().zip(&damaged);
        !all.any(|(file, bytes)| fs::read(file).is_ok_and(|now| now == *bytes))
    });
    pages(&folder, 8);
    drop(server);
    let server = Server::start(&f32);
    assert_eq!(ask(&server, &prompt(1, 300)), (256, answer));
}

#[test]
fn a_folder_that_cannot_be_one_is_refused() {
    let home = Home::new();
    let file = home.path("file");
    fs::write(&file, "not a folder").unwrap();
    let model = crate::fixture::chat_folder();
    let run = |flags: &[&str]| {
        let fixed = ["serve", model.to_str().unwrap(), "--port", "0"];
        home.run(&[&fixed[..], flags].concat())
    };
    let folder = file.to_str().unwrap();
    assert_ends(&run(&["--prompt-cache", folder]), 2, &[folder]);
    assert_ends(&run(&["--prompt-memory", "much"]), 2, &["such as 4GB"]);
    assert_ends(
        &run(&["--prompt-cache-size", "1GB"]),
        2,
        &["--prompt-cache"],
    );
}
