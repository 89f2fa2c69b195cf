//! What `thane serve` has beside its API: the page, audits of uploads, metrics. How the page works
//! is checked in a browser (`tests/oracle/check_serve_page.py`).

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::fixture::{assert_ends, chat_folder, stdout, until};
use crate::serve::{ENDLESS, endless_server, stream};
use crate::serve_client::{Answer, Server};
use crate::serve_openai::with_template;

const INVALID: &str = "invalid_request_error";
const PACKAGE: &str = "ios16_half.mlpackage";

fn packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packages")
}

/// Files below a folder, by their paths in it.
fn files(folder: &Path, inside: &str, out: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder.join(inside)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let inside = format!("{inside}/{name}");
        let path = folder.join(&inside);
        if path.is_dir() {
            files(folder, &inside, out);
        } else {
            out.push((inside, fs::read(path).unwrap()));
        }
    }
}

fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        let options = SimpleFileOptions::default();
        zip.start_file(name.as_str(), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// An archive as Finder makes it: the package, and a folder of what only Finder knows.
fn archive_of(package: &Path) -> Vec<u8> {
    let name = package.file_name().unwrap().to_str().unwrap();
    let mut found = Vec::new();
    files(package.parent().unwrap(), name, &mut found);
    found.push((format!("__MACOSX/{name}/._Manifest.json"), vec![1]));
    found.push((format!("{name}/.DS_Store"), vec![2]));
    archive(&found)
}

fn upload(server: &Server, query: &str, body: &[u8]) -> Answer {
    let head = format!(
        "POST /audit{query} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/zip\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    server.send(&head, body)
}

#[test]
fn an_uploaded_package_is_audited_as_audit_does() {
    let server = Server::start(&[]);
    // What Thane says of its own package beside the program counts too.
    let own = server.home.path("own.mlpackage");
    let (bert, own_path) = (crate::embed::model("bert-mean"), own.to_str().unwrap());
    let convert = ["convert", bert.to_str().unwrap(), "-o", own_path];
    let flags = ["--task", "embed", "--buckets", "8,24"];
    assert_ends(&server.home.run(&[&convert[..], &flags].concat()), 0, &[]);
    for package in [packages().join(PACKAGE), own] {
        let path = package.to_str().unwrap();
        let name = package.file_name().unwrap().to_str().unwrap();
        let expected = |format: &str| {
            let args = [
                "audit",
                path,
                "--target",
                "m4,a19+ios26",
                "--format",
                format,
            ];
            let output = server.home.run(&args);
            assert_ends(&output, 0, &[]);
            stdout(&output).replace(path, name)
        };
        let body = archive_of(&package);
        // A plus is a plus, spelled out or not.
        for query in ["m4,a19+ios26", "m4%2Ca19%2bios26&format=json"] {
            let answer = upload(&server, &format!("?target={query}"), &body);
            assert_eq!(answer.status, 200, "{query}");
            assert_eq!(answer.text(), expected("json"));
        }
        let answer = upload(&server, "?target=m4,a19+ios26&format=html", &body);
        let head = answer.head.clone();
        assert!(head.contains("content-type: text/html"), "{head}");
        assert!(head.contains("content-security-policy: sandbox"), "{head}");
        assert_eq!(answer.text(), expected("html"));
    }
}

/// A program takes many times the bytes of its file, which may be many times those of the archive:
/// its model has inputs of two bytes each, with a struct for each.
#[test]
fn a_program_without_room_is_refused_before_it_is_read() {
    let server = Server::start(&["--memory", "40MB", "--prompt-memory", "0"]);
    let package = packages().join(PACKAGE);
    let mut found = Vec::new();
    files(package.parent().unwrap(), PACKAGE, &mut found);
    let model = found
        .iter_mut()
        .find(|(name, _)| name.ends_with(".mlmodel"));
    let (_, model) = model.unwrap();
    // A description of 2^16 bytes, whose length is a number of three.
    model.extend([0x12, 0x80, 0x80, 0x04]);
    model.extend([0x0a, 0].repeat(1 << 15));
    assert!(model.len() < 100_000);
    let body = archive(&found);
    let answer = upload(&server, "", &body);
    let (status, found) = (answer.status, answer.text());
    assert_eq!(status, 413, "{found}");
    let said = "the program of a package needs";
    assert!(found.contains(said), "{found}");
    let body = archive_of(&packages().join(PACKAGE));
    assert_eq!(upload(&server, "", &body).status, 200);
}

#[test]
fn uploads_that_are_no_packages_are_refused() {
    let server = Server::start(&[]);
    let body = archive_of(&packages().join(PACKAGE));
    let nothing = archive(&[("readme.txt".to_owned(), vec![1])]);
    let broken = archive(&[("a.mlpackage/Manifest.json".to_owned(), b"{".to_vec())]);
    for (query, body, param, said) in [
        (
            "",
            &b"hello"[..],
            Value::Null,
            "expected a zip archive of a .mlpackage",
        ),
        ("", &nothing, Value::Null, "found neither file"),
        ("", &broken, Value::Null, "a.mlpackage/Manifest.json"),
        ("?target=m99", &body, json!("target"), "`target`: \"m99\""),
        (
            "?target=m4,m4,m4,m4,m4,m4,m4,m4,m4",
            &body,
            json!("target"),
            "at most 8",
        ),
        (
            "?format=pdf",
            &body,
            json!("format"),
            "expected json or html",
        ),
        ("?fix=1", &body, json!("fix"), "`fix` is not supported"),
    ] {
        let message = upload(&server, query, body).refused(400, INVALID, param);
        assert!(message.contains(said), "{query}: {message}");
    }
    let message = server
        .post("/audit", "{}", "")
        .refused(415, INVALID, Value::Null);
    assert!(
        message.contains("Content-Type: application/zip"),
        "{message}"
    );
    let head = |rest: &str| {
        format!(
            "POST /audit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/zip\r\n{rest}\r\n\r\n"
        )
    };
    let large = head("Content-Length: 600000000");
    let message = server.send(&large, "").refused(413, INVALID, Value::Null);
    assert!(message.contains("at most 512 MiB"), "{message}");
    let chunked = head("Transfer-Encoding: chunked");
    server.send(&chunked, "").refused(411, INVALID, Value::Null);
    // What is left of --memory bounds an upload too.
    let small = Server::start(&["--memory", "100MB"]);
    let large = head("Content-Length: 200000000");
    let message = small.send(&large, "").refused(413, INVALID, Value::Null);
    assert!(message.contains("a body needs"), "{message}");
    // None of them keeps the turn.
    assert_eq!(upload(&server, "", &body).status, 200);
}

#[test]
fn the_page_needs_no_key_and_the_rest_does() {
    let server = Server::start_with(&["--host", "0.0.0.0"], &[("THANE_SERVE_API_KEY", "secret")]);
    let page = server.get("/", "");
    let head = page.head.clone();
    for header in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; script-src 'self' 'sha256-",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    let page = page.text();
    // What the page names is there, and nothing else.
    let linked: Vec<&str> = page
        .split("\"/page/")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert_eq!(linked, ["style.css", "main.js"]);
    for name in linked {
        assert_eq!(server.get(&format!("/page/{name}"), "").status, 200);
    }
    for path in ["/page/nothing.js", "/page/..%2findex.html"] {
        server.get(path, "").refused(404, INVALID, Value::Null);
    }
    for path in ["/metrics", "/page", "/v1/models"] {
        server
            .get(path, "")
            .refused(401, "authentication_error", Value::Null);
    }
    assert_eq!(server.post("/", "{}", "").status, 401);
    let key = "Authorization: Bearer secret\r\n";
    assert_eq!(server.get("/metrics", key).status, 200);
}

/// The page lists the models that can chat, which are those with a chat template.
#[test]
fn models_say_whether_they_can_chat() {
    let folder = tempfile::tempdir().unwrap();
    let base = with_template(folder.path(), "");
    let config = base.join("tokenizer_config.json");
    let mut fields: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    fields.as_object_mut().unwrap().remove("chat_template");
    fs::write(config, fields.to_string()).unwrap();
    for (flags, due) in [
        (&[][..], [json!(true), json!(false)]),
        (&["--lazy"], [Value::Null, Value::Null]),
    ] {
        for (model, due) in [chat_folder(), base.clone()].into_iter().zip(due) {
            let server = Server::of_models(&[model], flags, &[]);
            assert_eq!(server.get("/v1/models/tiny-chat", "").json()["chat"], due);
        }
    }
}

/// The value of a line of the metrics.
#[track_caller]
pub fn metric(text: &str, line: &str) -> f64 {
    let found = text
        .lines()
        .find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
    found
        .unwrap_or_else(|| panic!("{line}: {text}"))
        .parse()
        .unwrap()
}

#[test]
fn metrics_count_what_passes() {
    let server = Server::start(&["--slots", "2"]);
    let fields = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 7,
        "temperature": 0});
    let usage = |_| server.chat(fields.clone()).json()["usage"].clone();
    let usages: Vec<Value> = (0..2).map(usage).collect();
    let sum = |field: &str| {
        let numbers = usages.iter().map(|usage| usage.pointer(field).unwrap());
        numbers.map(|n| n.as_f64().unwrap()).sum::<f64>()
    };
    let body = json!({"model": "bert-mean", "input": ["a cat", "the sea"]}).to_string();
    let embedded = server.post("/v1/embeddings", &body, "").json();
    let text = server.get("/metrics", "").text();
    let value = |line: &str| metric(&text, line);
    let of_chat = |name: &str| value(&format!("thane_{name}{{model=\"tiny-chat\"}}"));
    assert_eq!(of_chat("generated_tokens_total"), sum("/completion_tokens"));
    assert_eq!(of_chat("prompt_tokens_total"), sum("/prompt_tokens"));
    let cached = sum("/prompt_tokens_details/cached_tokens");
    assert!(cached > 0.0, "{usages:?}");
    assert_eq!(of_chat("prompt_tokens_cached_total"), cached);
    assert_eq!(of_chat("cache_slots"), 2.0);
    assert_eq!(
        of_chat("requests_running") + of_chat("requests_waiting"),
        0.0
    );
    assert_eq!(of_chat("time_to_first_token_seconds_count"), 2.0);
    assert!(of_chat("time_to_first_token_seconds_sum") > 0.0);
    // Every token is a step, beside those that only read a prompt.
    assert!(of_chat("step_seconds_count") >= sum("/completion_tokens"));
    let ended = "thane_requests_total{model=\"tiny-chat\",outcome=\"completed\"}";
    assert_eq!(value(ended), 2.0);
    let tokens = value("thane_prompt_tokens_total{model=\"bert-mean\"}");
    assert_eq!(Some(tokens), embedded["usage"]["prompt_tokens"].as_f64());
    assert_eq!(
        value("thane_embed_seconds_bucket{model=\"bert-mean\",le=\"+Inf\"}"),
        1.0
    );
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(
        !text.contains("thane_cache_slots{model=\"bert-mean\"}"),
        "{text}"
    );
}

#[test]
fn metrics_count_a_prompt_once_as_usage_does() {
    let server = Server::start(&["--slots", "3"]);
    let fields = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4,
        "min_tokens": 4, "n": 3});
    let usage = server.chat(fields).json()["usage"].clone();
    let text = server.get("/metrics", "").text();
    let of_chat = |name: &str| metric(&text, &format!("thane_{name}{{model=\"tiny-chat\"}}"));
    for (name, field) in [
        ("prompt_tokens_total", "/prompt_tokens"),
        (
            "prompt_tokens_cached_total",
            "/prompt_tokens_details/cached_tokens",
        ),
        ("generated_tokens_total", "/completion_tokens"),
    ] {
        let expected = usage.pointer(field).unwrap().as_f64().unwrap();
        assert_eq!(of_chat(name), expected, "{name}: {usage}");
    }
    assert_eq!(of_chat("generated_tokens_total"), 12.0);
}

#[test]
fn a_client_that_leaves_is_counted_and_runs_no_more() {
    let server = endless_server(&[]);
    let mut answer = stream(&server, ENDLESS, 90_000);
    answer.chunk().unwrap();
    let until = |line: &str, expected: f64| {
        until(line, || {
            metric(&server.get("/metrics", "").text(), line) == expected
        });
    };
    let running = "thane_requests_running{model=\"endless.gguf\"}";
    until(running, 1.0);
    drop(answer);
    until(
        "thane_requests_total{model=\"endless.gguf\",outcome=\"cancelled\"}",
        1.0,
    );
    until(running, 0.0);
}
