//! `thane push`, and what others and `thane pull` get of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::embed::model;
use crate::fixture::{Home, assert_ends, conversion, json, sha256};
use crate::publisher::Publisher;
use crate::schema::agree;

pub const REPO: &str = "hf:org/name";

/// An embedding model as a folder of six lengths, and one of any length.
pub fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUNDLE.get_or_init(|| {
        let home = Home::new();
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("bundle");
        let (from, to) = (model("bert-cls"), path.to_str().unwrap().to_owned());
        let flags = "--task embed --layout folder --buckets 8,16,24,32,40,48";
        let output = home.run(&conversion(from.to_str().unwrap(), &to, flags));
        assert_ends(&output, 0, &[]);
        (place, path)
    });
    path
}

/// Runs with a Hub and a token.
pub fn with(home: &Home, hub: &Publisher, args: &[&str]) -> Output {
    let mut command = home.thane(args);
    command.env("HF_ENDPOINT", &hub.api.url);
    command.env("HF_TOKEN", "hf_secret");
    command.output().unwrap()
}

/// Publishes the bundle.
pub fn push(home: &Home, hub: &Publisher, flags: &[&str]) -> Output {
    let args = ["push", bundle().to_str().unwrap(), REPO, "--json"];
    with(home, hub, &[&args[..], flags].concat())
}

/// The files below a folder with their bytes; links are followed.
pub fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
            all.insert(name.to_owned(), fs::read(&path).unwrap());
        }
    }
    all
}

/// Bytes of different files.
fn unique_bytes<'a>(files: impl Iterator<Item = &'a Vec<u8>>) -> usize {
    let different: BTreeMap<String, usize> = files.map(|f| (sha256(f), f.len())).collect();
    different.values().sum()
}

fn vectors(home: &Home, hub: &Publisher, model: &str) -> Value {
    let texts = ["a", "Hello there, world"];
    let args = [
        "embed",
        "--json",
        "--numerics",
        "f32",
        "--format",
        "float",
        model,
    ];
    let output = with(home, hub, &[&args[..], &texts].concat());
    assert_ends(&output, 0, &[]);
    json(&output)["embeddings"].clone()
}

#[test]
fn six_lengths_cross_the_wire_once_in_each_direction() {
    let (home, hub) = (Home::new(), Publisher::new());
    let planned = json(&push(&home, &hub, &["--dry-run"]));
    assert_eq!(
        (&planned["existed"], &planned["commit"]),
        (&false.into(), &Value::Null)
    );
    assert_eq!(hub.traffic(), [0, 0], "a dry run changes nothing");
    let output = push(&home, &hub, &[]);
    assert_ends(&output, 0, &[]);
    let pushed = json(&output);
    let files = hub.files("org/name", "main");
    let own: usize = files.values().map(Vec::len).sum();
    let unique = unique_bytes(files.values());
    assert!(unique * 2 < own, "{unique} of {own}");
    let [received, _] = hub.traffic();
    assert_eq!(pushed["wire_bytes"], received);
    assert_eq!(pushed["sent_bytes"], received);
    let stored: usize = hub
        .state
        .lock()
        .unwrap()
        .objects
        .values()
        .map(Vec::len)
        .sum();
    let n_uploads = hub
        .store
        .requests()
        .iter()
        .filter(|r| r.method == "PUT")
        .count();
    assert_eq!(
        n_uploads,
        hub.state.lock().unwrap().objects.len(),
        "each once"
    );
    // What is not in the store is in the commit, in base64.
    assert!(received < stored + (unique - stored) * 2 + files.len() * 200);
    for (name, bytes) in contents(bundle()) {
        assert_eq!(files[&name], bytes, "{name}");
    }

    let other = Home::new();
    let output = with(&other, &hub, &["pull", REPO, "--json"]);
    assert_ends(&output, 0, &[]);
    let pulled = json(&output);
    let [_, sent] = hub.traffic();
    let path = PathBuf::from(pulled["path"].as_str().unwrap());
    let there = contents(&path);
    // The list of files is asked for to know what to ask for; compiled models are not.
    assert_eq!(sent, unique_bytes(there.values()), "each blob once");
    assert!(!there.keys().any(|name| name.contains(".mlmodelc/")));
    for (name, bytes) in contents(bundle()) {
        assert_eq!(there[&name], bytes, "{name}");
    }
    assert_eq!(
        vectors(&other, &hub, REPO),
        vectors(&home, &hub, bundle().to_str().unwrap())
    );
    let again = json(&with(&other, &hub, &["pull", REPO, "--json"]));
    assert_eq!((&again["fetched_bytes"], hub.traffic()[1]), (&0.into(), 0));
}

#[test]
fn a_push_of_what_is_there_changes_nothing() {
    let (home, hub) = (Home::new(), Publisher::new());
    let first = json(&push(&home, &hub, &[]));
    hub.traffic();
    let output = push(&home, &hub, &[]);
    assert_ends(&output, 0, &[]);
    assert_eq!(
        (json(&output)["commit"].clone(), hub.traffic()),
        (Value::Null, [0, 0])
    );
    // With another license, only the lists change.
    let output = push(&home, &hub, &["--license", "MIT"]);
    let report = json(&output);
    let changed: Vec<&str> = report["files"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|file| file["state"] != "there")
        .map(|file| file["path"].as_str().unwrap())
        .collect();
    assert_eq!(changed, ["README.md", "thane.json"]);
    assert_ne!(first["commit"], report["commit"]);
}

#[test]
fn json_of_pushes_and_of_the_cache_is_documented() {
    let (home, hub) = (Home::new(), Publisher::new());
    let key = home.path("key.pem");
    let args = [
        "genpkey",
        "-algorithm",
        "ed25519",
        "-out",
        key.to_str().unwrap(),
    ];
    assert!(
        Command::new("openssl")
            .args(args)
            .status()
            .unwrap()
            .success()
    );
    let sign = ["--sign", key.to_str().unwrap()];
    let first = json(&push(&home, &hub, &[&sign[..], &["--pr"]].concat()));
    let second = json(&push(&home, &hub, &sign));
    agree("push", &[first, second]);
    let list = hub.files("org/name", "main")["thane.json"].clone();
    let list = serde_json::from_slice(&list).unwrap();
    agree("thane.json", &[list]);
    assert_ends(&with(&home, &hub, &["pull", REPO]), 0, &[]);
    let blobs = home.path("cache/hub/models--org--name/blobs");
    let ls = json(&with(&home, &hub, &["cache", "ls", "--json"]));
    agree("cache ls", &[ls]);
    let mut blob = fs::read_dir(&blobs).unwrap();
    fs::write(blob.next().unwrap().unwrap().path(), "x").unwrap();
    fs::remove_file(blob.next().unwrap().unwrap().path()).unwrap();
    fs::write(blobs.join("0.incomplete"), "x").unwrap();
    let verified = with(&home, &hub, &["cache", "verify", "--json"]);
    assert_ends(&verified, 1, &["damaged or missing"]);
    agree("cache verify", &[json(&verified)]);
    let prune = json(&with(&home, &hub, &["cache", "prune", "--json"]));
    agree("cache prune", &[prune]);
    let rm = json(&with(&home, &hub, &["cache", "rm", REPO, "--json"]));
    agree("cache prune", &[rm]);
}

/// One package, and a bundle of another project, come back under the name of their repository.
#[test]
fn packages_of_every_kind_run_by_name() {
    let home = Home::new();
    let chat = crate::fixture::chat_folder();
    let one = home.path("chat.mlpackage");
    let flags = "--form ane --context 64 --block 8";
    let convert = conversion(chat.to_str().unwrap(), one.to_str().unwrap(), flags);
    assert_ends(&home.run(&convert), 0, &[]);
    let foreign = crate::foreign::bundle("anemll-chat");
    let ask = ["--max-tokens", "3", "--temperature", "0", "--json", "Hello"];
    for bundle in [one.to_str().unwrap(), &foreign] {
        let hub = Publisher::new();
        let args = [
            "push",
            bundle,
            REPO,
            "--license",
            "Apache-2.0",
            "--base-model",
            "a/b",
        ];
        assert_ends(&with(&home, &hub, &args), 0, &[]);
        let card = String::from_utf8(hub.files("org/name", "main")["README.md"].clone()).unwrap();
        for line in [
            "library_name: coreml",
            "license: apache-2.0",
            "base_model: \"a/b\"",
        ] {
            assert!(card.lines().any(|other| other == line), "{line}:\n{card}");
        }
        assert!(
            card.contains("| tokens/s at ") || card.contains(", ms a call |"),
            "{card}"
        );
        let other = Home::new();
        let output = with(&other, &hub, &[&["run", REPO][..], &ask].concat());
        assert_ends(&output, 0, &[]);
        let local = home.run(&[&["run", bundle][..], &ask].concat());
        assert_eq!(json(&output)["tokens"], json(&local)["tokens"], "{bundle}");
    }
}
