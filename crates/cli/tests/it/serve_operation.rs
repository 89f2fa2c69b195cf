//! How `thane serve` is operated: names of models, its file, keys, TLS, models that come and go,
//! its log.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, chat_folder, let_time_pass, stderr, until};
use crate::serve_client::Server;

const INVALID: &str = "invalid_request_error";

fn hello() -> Value {
    json!([{"role": "user", "content": "hello"}])
}

#[test]
fn an_answer_ends_after_its_time() {
    let server = Server::start(&["--answer-time", "20ms"]);
    let fields = json!({"messages": hello(), "max_tokens": 400, "min_tokens": 400});
    let answer = server.chat(fields);
    if answer.status == 503 {
        // Its prompt was not there in time.
        assert_eq!(answer.json()["error"]["code"], "deadline_exceeded");
        return;
    }
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let n = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(n < 400, "{n} tokens");
}

/// Vectors, tokens and scores are whole or refused.
#[test]
fn what_takes_too_long_is_refused() {
    let models = [
        crate::embed::model("bert-mean"),
        crate::rerank::model("bert"),
    ];
    let server = Server::of_models(&models, &["--answer-time", "1ms"], &[]);
    let texts = vec!["the sea is deep and the cat sleeps"; 2000];
    let said = "expected the answer within 1ms";
    for (path, body) in [
        (
            "/v1/embeddings",
            json!({"model": "bert-mean", "input": texts}),
        ),
        (
            "/v1/rerank",
            json!({"model": "bert", "query": "cat", "documents": texts}),
        ),
    ] {
        let answer = server.post(path, &body.to_string(), "");
        assert_eq!(answer.status, 503, "{path}");
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "deadline_exceeded", "{error}");
        assert!(
            error["message"].as_str().unwrap().starts_with(said),
            "{error}"
        );
    }
    let inputs = json!({"inputs": texts}).to_string();
    assert_eq!(server.post("/tokenize", &inputs, "").status, 503);
    // Nobody works on what was refused.
    until("refused requests are forgotten", || {
        server.n_requests() == 0
    });
}

#[test]
fn a_model_answers_to_its_aliases() {
    let bert = crate::embed::model("bert-mean");
    let path = format!("ada={}", bert.display());
    let server = Server::start(&["--alias", "gpt-4o=tiny-chat", "--alias", &path]);
    let fields = json!({"model": "gpt-4o", "messages": hello(), "max_tokens": 1});
    assert_eq!(server.chat(fields).status, 200);
    let body = json!({"model": "ada", "input": "a cat"}).to_string();
    let found = server.post("/v1/embeddings", &body, "").json();
    assert_eq!(found["data"][0]["object"], "embedding", "{found}");
    // What an alias stands for is shown.
    let listed = server.get("/v1/models", "").json();
    let rows: Vec<(&Value, &Value)> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (&row["id"], &row["alias_of"]))
        .collect();
    let (chat, mean) = (json!("tiny-chat"), json!("bert-mean"));
    let (gpt, ada, none) = (json!("gpt-4o"), json!("ada"), Value::Null);
    assert_eq!(
        rows,
        [(&chat, &none), (&gpt, &chat), (&mean, &none), (&ada, &mean)]
    );
    let one = server.get("/v1/models/gpt-4o", "").json();
    assert_eq!((&one["id"], &one["alias_of"]), (&gpt, &chat));
    let tags = server.get("/api/tags", "").json();
    assert_eq!(tags["models"][1]["name"], "gpt-4o", "{tags}");
    assert_eq!(tags["models"][1]["details"]["parent_model"], "tiny-chat");
    let answer = server.get("/v1/models/gpt-4", "");
    let said = answer.refused(404, INVALID, json!("model"));
    let names = "expected one of tiny-chat, gpt-4o, bert-mean, ada, found `gpt-4`";
    assert_eq!(said, names);
    // A mistake is said before a model is loaded.
    let folder = chat_folder();
    let serve = ["serve", folder.to_str().unwrap(), "--port", "0"];
    for (alias, said) in [
        (
            "gpt-4o=tiny-chta",
            "found `tiny-chta`; did you mean tiny-chat?",
        ),
        ("gpt-4o", "expected NAME=MODEL"),
        ("tiny-chat=tiny-chat", "expected a name that is no model's"),
    ] {
        let output = Home::new().run(&[&serve[..], &["--alias", alias]].concat());
        assert_ends(&output, 2, &[said]);
    }
}

/// A file of options in a home of its own.
fn config(home: &Home, text: &str) -> String {
    let path = home.path("thane.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_says_what_flags_say() {
    let (chat, bert) = (chat_folder(), crate::embed::model("bert-mean"));
    let text = format!(
        "port = 0\nslots = 3\ndeterministic = true\nqueue = 7\n\n\
         [[models]]\nmodel = '{}'\nalias = ['gpt-4o', 'small']\ncontext = 256\nslots = 2\n\n\
         [[models]]\nmodel = '{}'\nalias = 'ada'\n",
        chat.display(),
        bert.display()
    );
    let home = Home::new();
    let file = config(&home, &text);
    let context = |server: &Server, id: &str| {
        let row = server.get(&format!("/v1/models/{id}"), "").json();
        row["max_tokens"].as_u64().unwrap()
    };
    let n_slots = |server: &Server| {
        let metrics = server.get("/metrics", "").text();
        let line = "thane_cache_slots{model=\"tiny-chat\"} ";
        let found = metrics.lines().find_map(|l| l.strip_prefix(line));
        found.unwrap().parse::<usize>().unwrap()
    };
    let server = Server::of_arguments(&["--config", &file], &[]);
    assert_eq!((context(&server, "gpt-4o"), n_slots(&server)), (256, 2));
    assert_eq!(context(&server, "ada"), 64);
    drop(server);
    // Flags and variables come first, and so do models; they keep what the file says of them.
    let flags = ["--config", &file, "--slots", "1", "gpt-4o"];
    let server = Server::of_arguments(&flags, &[("THANE_SERVE_CONTEXT", "128")]);
    assert_eq!((context(&server, "small"), n_slots(&server)), (128, 1));
    assert_eq!(server.get("/v1/models/ada", "").status, 404);
}

#[test]
fn a_file_with_a_mistake_is_refused_with_its_line() {
    let home = Home::new();
    for (text, said) in [
        (
            "port = 1\nprot = 2\n",
            "thane.toml:2: unknown key `prot`; did you mean port?",
        ),
        (
            "api_key = 'x'\n",
            "thane.toml:1: unknown key `api_key`; did you mean api-key?",
        ),
        (
            "\nport = 70000\n",
            "thane.toml:2: invalid value '70000' for '--port <N>'",
        ),
        (
            "slots = true",
            "thane.toml:1: expected a text or a number, found a value of type boolean",
        ),
        (
            "deterministic = 1",
            "thane.toml:1: expected true or false, found a value of type integer",
        ),
        ("port = 0\nport = 1\n", "thane.toml:2: duplicate key"),
        ("port = \n", "thane.toml:1: "),
        (
            "[[models]]\nport = 1\nmodel = 'x'\n",
            "thane.toml:2: `port` holds for all models",
        ),
        (
            "[[models]]\nmodel = 'x'\nsluts = 1\n",
            "thane.toml:3: a model has no key `sluts`",
        ),
        ("[[models]]\nslots = 1\n", "expected the key `model`"),
        (
            "[[models]]\nmodel = 'x'\nslots = 0\n",
            "thane.toml:3: invalid value '0' for '--slots",
        ),
        ("models = 'x'\n", "thane.toml:1: expected a list of models"),
        ("port = 0\n", "expected models, found none"),
        ("config = 'x'\n", "unknown key `config`"),
    ] {
        let file = config(&home, text);
        let output = home.run(&["serve", "--config", &file]);
        assert_ends(&output, 2, &[said]);
    }
    assert_ends(
        &home.run(&["serve", "--config", "gone.toml"]),
        2,
        &["gone.toml: No such file"],
    );
    std::fs::write(home.path("thane.toml"), vec![b' '; (1 << 20) + 1]).unwrap();
    let file = home.path("thane.toml");
    let output = home.run(&["serve", "--config", file.to_str().unwrap()]);
    assert_ends(&output, 2, &["expected at most 1048576 bytes, found more"]);
}

#[test]
fn keys_come_from_flags_and_files_and_have_rates_of_their_own() {
    let home = Home::new();
    let file = home.path("keys");
    std::fs::write(&file, "\u{feff}second \r\n# of the team\r\n\r\n  third\r\n").unwrap();
    let flags = [
        "--api-key-file",
        file.to_str().unwrap(),
        "--requests-per-minute",
        "2",
    ];
    let flags = [&["--host", "0.0.0.0", "--api-key", "first"][..], &flags].concat();
    let server = Server::start(&flags);
    let body = json!({"model": "bert-mean", "input": "a cat"}).to_string();
    let header = |key: &str| format!("Authorization: bearer {key}\r\n");
    let embed = |key: &str| server.post("/v1/embeddings", &body, &header(key));
    for key in ["# of the team", "", "fourth"] {
        embed(key).refused(401, "authentication_error", Value::Null);
    }
    for key in ["first", "second", "third"] {
        for _ in 0..2 {
            assert_eq!(embed(key).status, 200, "{key}");
        }
        // A server that is slow may have earned the key another request meanwhile.
        let mut answers = (0..20).map(|_| embed(key));
        let answer = answers.find(|answer| answer.status != 200).unwrap();
        let seconds = answer.head.split("retry-after: ").nth(1).unwrap();
        let seconds: u32 = seconds.split("\r\n").next().unwrap().parse().unwrap();
        assert!((1..=30).contains(&seconds), "{seconds}");
        let message = answer.refused(429, "rate_limit_error", Value::Null);
        assert!(
            message.contains("at most 2 requests per minute"),
            "{message}"
        );
    }
    // Each API has its own shape of the refusal, and whoever looks is not refused.
    for (path, field) in [("/v1/messages", "/error/type"), ("/embed", "/error_type")] {
        let mut answers = (0..20).map(|_| server.post(path, &body, &header("first")));
        let answer = answers.find(|answer| answer.status == 429).unwrap();
        assert!(answer.head.contains("retry-after: "), "{}", answer.head);
        let error = answer.json();
        let kind = error.pointer(field).and_then(Value::as_str).unwrap();
        assert!(
            ["rate_limit_error", "Overloaded"].contains(&kind),
            "{error}"
        );
    }
    assert_eq!(server.get("/v1/models", &header("first")).status, 200);
    drop(server);
    let folder = chat_folder();
    let serve = ["serve", folder.to_str().unwrap(), "--port", "0"];
    std::fs::write(&file, "# none\n").unwrap();
    let keys = ["--api-key-file", file.to_str().unwrap()];
    let output = home.run(&[&serve[..], &keys].concat());
    assert_ends(&output, 2, &["keys: expected keys, found none"]);
    // No header carries them, so that nobody would get in.
    for (text, at) in [
        ("first\nschl\u{fc}ssel\n", 2),
        ("k1\rk2\r", 1),
        ("a\tb\n", 1),
        ("a\0b", 1),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = home.run(&[&serve[..], &keys].concat());
        assert_ends(&output, 2, &[&format!("keys: key {at}: expected ASCII")]);
    }
    let output = home.run(&[&serve[..], &["--api-key", "\u{e9}"]].concat());
    assert_ends(&output, 2, &["--api-key: key 1: expected ASCII"]);
    let output = home.run(&[&serve[..], &["--api-key-file", "gone"]].concat());
    assert_ends(&output, 2, &["gone: No such file"]);
    let output = home.run(&[&serve[..], &["--requests-per-minute", "0"]].concat());
    assert_ends(&output, 2, &["--requests-per-minute"]);
}

/// A certificate for 127.0.0.1 and its key, made by `openssl`, if that is here.
pub fn certificate(home: &Home) -> Option<(String, String)> {
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("cert.pem"), path("key.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args(["-nodes", "-days", "2", "-subj", "/CN=thane"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &key, "-out", &certificate])
        .output();
    match made {
        Ok(output) => {
            assert!(output.status.success(), "{}", stderr(&output));
            Some((certificate, key))
        }
        Err(_) => {
            println!("skipped: no openssl here");
            None
        }
    }
}

#[test]
fn connections_can_be_encrypted() {
    let home = Home::new();
    let Some((certificate, key)) = certificate(&home) else {
        return;
    };
    let pair = ["--tls-cert", &certificate, "--tls-key", &key];
    let server = Server::start(&pair);
    let ask = |version: &str| {
        let mut client = Command::new("openssl")
            .args(["s_client", "-quiet", "-verify_return_error", version])
            .args(["-CAfile", &certificate, "-verify_ip", "127.0.0.1"])
            .args(["-connect", &server.address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let request = "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        let mut stdin = client.stdin.take().unwrap();
        stdin.write_all(request.as_bytes()).unwrap();
        let output = client.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for version in ["-tls1_2", "-tls1_3"] {
        let answer = ask(version);
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{version}: {answer}");
        assert!(answer.contains("tiny-chat"), "{answer}");
    }
    // Without TLS there is no answer, and the server goes on.
    let mut plain = TcpStream::connect(&server.address).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert!(ask("-tls1_3").contains("tiny-chat"));
    drop(server);
    let folder = chat_folder();
    let serve = ["serve", folder.to_str().unwrap(), "--port", "0"];
    let text = std::fs::read(&key).unwrap();
    std::fs::write(home.path("cut.pem"), &text[..text.len() / 2]).unwrap();
    let cut = home.path("cut.pem").to_str().unwrap().to_owned();
    let other = Home::new();
    let (_, other_key) = self::certificate(&other).unwrap();
    for (pair, said) in [
        (
            [&key, &key],
            "key.pem: expected certificates in PEM (BEGIN CERTIFICATE), found none",
        ),
        (
            [&certificate, &certificate],
            "cert.pem: expected a private key in PEM without a password",
        ),
        ([&certificate, &cut], "cut.pem: expected a private key"),
        ([&certificate, &other_key], "cannot be used together"),
        ([&certificate, &"gone".to_owned()], "gone: No such file"),
    ] {
        let flags = ["--tls-cert", pair[0], "--tls-key", pair[1]];
        let output = home.run(&[&serve[..], &flags].concat());
        assert_ends(&output, 2, &[said]);
    }
    let output = home.run(&[&serve[..], &["--tls-cert", &certificate]].concat());
    assert_ends(&output, 2, &["--tls-key"]);
}

/// Copies of the tiny language model with these names.
pub fn copies(home: &Home, names: &[&str]) -> Vec<PathBuf> {
    let copy = |name: &&str| {
        let folder = home.path(name);
        std::fs::create_dir(&folder).unwrap();
        for entry in std::fs::read_dir(chat_folder()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|end| end != "gguf") {
                std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
            }
        }
        folder
    };
    names.iter().map(copy).collect()
}

fn is_loaded(server: &Server, id: &str) -> bool {
    let row = server.get(&format!("/v1/models/{id}"), "").json();
    row["loaded"].as_bool().unwrap()
}

/// The greedy answer of a model.
pub fn answer(server: &Server, id: &str) -> String {
    let fields = json!({"model": id, "messages": hello(), "max_tokens": 8, "temperature": 0});
    let answer = server.chat(fields);
    assert_eq!(answer.status, 200, "{}", answer.head);
    let text = answer.json()["choices"][0]["message"]["content"].clone();
    text.as_str().unwrap().to_owned()
}

#[test]
fn models_come_when_they_are_asked_for_and_go_when_nobody_asks() {
    let server = Server::start(&["--lazy", "--numerics", "f32"]);
    let before = server.get("/v1/models/tiny-chat", "").json();
    assert_eq!(
        (&before["loaded"], &before["max_tokens"]),
        (&json!(false), &Value::Null)
    );
    assert_eq!(
        (&before["task"], server.get("/ready", "").status),
        (&json!("generate"), 200)
    );
    // Many ask at once for what is not there; it is loaded once.
    let texts: Vec<String> = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| answer(&server, "tiny-chat"));
        let asked: Vec<_> = (0..8).map(|_| ask()).collect();
        asked
            .into_iter()
            .map(|asked| asked.join().unwrap())
            .collect()
    });
    assert!(
        texts
            .iter()
            .all(|text| *text == texts[0] && !text.is_empty())
    );
    assert!(is_loaded(&server, "tiny-chat") && !is_loaded(&server, "bert-mean"));
    let metrics = server.get("/metrics", "").text();
    let line = "\nthane_model_loaded{model=\"bert-mean\"} 0\n";
    assert!(metrics.contains(line), "{metrics}");
    // Text Embeddings Inference asks for the one embedding model, loaded or not.
    let body = json!({"inputs": "a cat"}).to_string();
    assert_eq!(server.post("/embed", &body, "").status, 200);
    assert!(is_loaded(&server, "bert-mean"));
    drop(server);
    let server = Server::start(&["--keep-alive", "10ms", "--numerics", "f32"]);
    for _ in 0..2 {
        until("the model is unloaded", || !is_loaded(&server, "tiny-chat"));
        let after = server.get("/v1/models/tiny-chat", "").json();
        assert_eq!(after["max_tokens"], 512);
        assert_eq!(answer(&server, "tiny-chat"), texts[0]);
    }
}

#[test]
fn a_running_answer_keeps_its_model() {
    // These numerics are slow.
    let flags = ["--keep-alive", "10ms", "--numerics", "ane", "--slots", "1"];
    let server = Server::start(&flags);
    let body = json!({"model": "tiny-chat", "prompt": "sky", "max_tokens": 400, "stream": true});
    let events = server
        .post("/v1/completions", &body.to_string(), "")
        .events();
    let last = events.last().unwrap();
    let is_over = last["choices"][0]["finish_reason"].is_string();
    assert!(events.len() > 100 && is_over, "{last}");
    until("the model is unloaded", || !is_loaded(&server, "tiny-chat"));
}

#[test]
fn clients_of_ollama_say_how_long_a_model_stays() {
    let server = Server::start(&["--keep-alive", "1h"]);
    let post = |path: &str, fields: Value| server.post(path, &fields.to_string(), "");
    let ask = |keep_alive: Value| {
        post(
            "/api/generate",
            json!({"model": "tiny-chat", "keep_alive": keep_alive}),
        )
    };
    assert_eq!(ask(json!("5x")).status, 400);
    assert!(is_loaded(&server, "tiny-chat"));
    assert_eq!(ask(json!(0)).status, 200);
    until("the model is unloaded", || !is_loaded(&server, "tiny-chat"));
    assert_eq!(
        server.get("/api/ps", "").json()["models"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    // An empty prompt loads the model, here for good.
    assert_eq!(ask(json!(-1)).json()["done_reason"], "load");
    let fields = json!({"model": "bert-mean", "input": "a cat", "keep_alive": 0});
    assert_eq!(post("/api/embed", fields).status, 200);
    until("the other is unloaded", || !is_loaded(&server, "bert-mean"));
    assert!(is_loaded(&server, "tiny-chat"));
    drop(server);
    // Where no model is unloaded, clients cannot do it.
    let server = Server::start(&[]);
    let body = json!({"model": "tiny-chat", "keep_alive": 0}).to_string();
    assert_eq!(server.post("/api/generate", &body, "").status, 200);
    let_time_pass();
    assert!(is_loaded(&server, "tiny-chat"));
}

#[test]
fn a_model_that_cannot_be_loaded_is_told_and_tried_again() {
    let home = Home::new();
    let models = copies(&home, &["one"]);
    let mut server = Server::of_models(&models, &["--lazy"], &[]);
    let weights = models[0].join("model.safetensors");
    std::fs::rename(&weights, home.path("away")).unwrap();
    let fields = json!({"model": "one", "messages": hello(), "max_tokens": 1});
    let message = server
        .chat(fields)
        .refused(500, "server_error", Value::Null);
    // The client is told no path.
    assert_eq!(
        message,
        "the model could not be loaded: the server's log says why"
    );
    std::fs::rename(home.path("away"), &weights).unwrap();
    assert!(!answer(&server, "one").is_empty());
    server.interrupt();
    let mut said = String::new();
    server
        .child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(
        said.contains("thane: one: ") && said.contains("model.safetensors"),
        "{said}"
    );
    // A model that is loaded at start must be there.
    std::fs::remove_file(&weights).unwrap();
    let output = home.run(&["serve", models[0].to_str().unwrap(), "--port", "0"]);
    assert_ends(&output, 2, &["one"]);
}

#[test]
fn models_make_room_for_each_other() {
    let home = Home::new();
    let models = copies(&home, &["one", "two"]);
    // One fits with its caches, two do not; three times as much would do.
    let numerics = ["--numerics", "f32", "--memory", "3MB"];
    let server = Server::of_models(&models, &[&["--lazy"][..], &numerics].concat(), &[]);
    for (asked, other) in [("one", "two"), ("two", "one"), ("one", "two")] {
        assert!(!answer(&server, asked).is_empty());
        assert!(is_loaded(&server, asked) && !is_loaded(&server, other));
    }
    drop(server);
    let arguments: Vec<&str> = models.iter().map(|m| m.to_str().unwrap()).collect();
    let fixed = ["--port", "0", "--context", "512"];
    let all = [&["serve"][..], &arguments, &fixed, &numerics].concat();
    assert_ends(&home.run(&all), 2, &["there is too little memory"]);
    // What fits never is refused.
    let numerics = ["--numerics", "f32", "--memory", "300kB"];
    let server = Server::of_models(&models, &[&["--lazy"][..], &numerics].concat(), &[]);
    let answer = server.chat(json!({"model": "one", "messages": hello()}));
    let message = answer.refused(500, "server_error", Value::Null);
    assert!(message.contains("the server's log says why"), "{message}");
}

/// A model is loaded into what can be made again, and unloads another one, before it takes data.
#[test]
fn loading_spares_stored_responses() {
    let home = Home::new();
    let models = copies(&home, &["one", "two"]);
    let flags = ["--lazy", "--numerics", "f32", "--memory", "3MB"];
    let server = Server::of_models(&models, &flags, &[]);
    // Each takes some of the memory.
    let pairs = (0..16).map(|i| (format!("k{i}"), Value::from("v".repeat(512))));
    let metadata: Value = pairs.collect::<serde_json::Map<_, _>>().into();
    let ask = |model: &str| {
        let fields = json!({"model": model, "input": "hello", "max_output_tokens": 2,
            "metadata": metadata});
        let answer = server.post("/v1/responses", &fields.to_string(), "");
        assert_eq!(answer.status, 200, "{}", answer.head);
        answer.json()["id"].as_str().unwrap().to_owned()
    };
    let kept: Vec<String> = (0..10).map(|_| ask("one")).collect();
    let n_kept = || {
        let status = |id: &String| server.get(&format!("/v1/responses/{id}"), "").status;
        kept.iter().filter(|id| status(id) == 200).count()
    };
    assert_eq!(n_kept(), 10);
    for (asked, other) in [("two", "one"), ("one", "two")] {
        assert!(!answer(&server, asked).is_empty());
        assert!(is_loaded(&server, asked) && !is_loaded(&server, other));
        assert_eq!(n_kept(), 10, "{asked}");
    }
}

#[test]
fn what_is_packaged_is_taken() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let read = |name: &str| std::fs::read_to_string(packaging.join(name)).unwrap();
    let home = Home::new();
    // Keys that are comments are keys, and the models are known, but not here.
    let text = read("thane.toml");
    let keys = text.lines().filter_map(|line| line.strip_prefix("# "));
    let keys: String = keys
        .filter(|line| line.contains(" = "))
        .map(|k| format!("{k}\n"))
        .collect();
    assert!(
        keys.contains("tls-key") && keys.contains("api-key-file"),
        "{keys}"
    );
    let keys = keys.replace("/run/credentials/thane.service/keys", "gone");
    let keys = format!("{keys}models = ['smollm2-135m']\n");
    let output = home.run(&["serve", "--config", &config(&home, &keys)]);
    assert_ends(&output, 2, &["gone: No such file"]);
    let file = config(&home, &text);
    let output = home.run(&["serve", "--config", &file, "--port", "0", "--offline"]);
    assert_ends(&output, 5, &["smollm2-135m"]);
    // The unit starts what there is.
    let unit = read("thane.service");
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/thane "));
    let flags: Vec<&str> = start.unwrap().split(' ').collect();
    assert_eq!(
        flags,
        ["serve", "--config", "/etc/thane/thane.toml", "--log", "-"]
    );
    let path = home.path("thane.service");
    std::fs::write(&path, unit.replace("/usr/local/bin/thane", "/bin/true")).unwrap();
    match Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
    {
        Ok(output) => assert_ends(&output, 0, &[]),
        Err(_) => println!("skipped: no systemd-analyze here"),
    }
}
