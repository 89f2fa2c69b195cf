//! The log of `thane serve`, and the verbs that look after servers.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, chat_folder, json as json_of};
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
    let mut server = Server::start(&["--log", file.to_str().unwrap(), "-v", "--numerics", "ane"]);
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
    // A client that leaves early. These numerics are slow.
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

#[test]
fn servers_are_listed_stopped_and_their_logs_read() {
    let home = Home::new();
    let model = chat_folder();
    let log = home.path("log").to_str().unwrap().to_owned();
    let serve = |flags: &[&str]| {
        let fixed = ["serve", model.to_str().unwrap(), "--port", "0"];
        let mut command = home.thane(&[&fixed[..], flags].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        (child, line.trim().to_owned())
    };
    assert_ends(&home.run(&["ps"]), 0, &["no server runs"]);
    assert_ends(
        &home.run(&["stop"]),
        1,
        &["expected a running server, found none"],
    );
    let (mut first, address) = serve(&["--log", &log]);
    let (mut second, other) = serve(&[]);
    // What is no server is not listed, and one that was killed neither.
    let (mut killed, _) = serve(&[]);
    killed.kill().unwrap();
    std::fs::write(home.path("cache/servers/1.json"), "{}").unwrap();
    let listed = json_of(&home.run(&["ps", "--json"]));
    killed.wait().unwrap();
    let mut report = listed.clone();
    report["servers"].as_array_mut().unwrap().truncate(1);
    crate::schema::agrees("ps", &report);
    let addresses: Vec<&Value> = listed["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["address"])
        .collect();
    assert_eq!(addresses.len(), 2, "{listed}");
    assert!(addresses.contains(&&json!(address)) && addresses.contains(&&json!(other)));
    let shown = home.run(&["ps"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        text.contains(&address) && text.contains("tiny-chat"),
        "{text}"
    );
    // With two, one must be named.
    assert_ends(
        &home.run(&["logs"]),
        2,
        &["expected one of the servers", &other],
    );
    assert_ends(&home.run(&["stop", "nobody"]), 1, &["found `nobody`"]);
    assert_ends(
        &home.run(&["logs", &other]),
        1,
        &["expected a log in a file, found none"],
    );
    let server = Server {
        child: killed,
        address: address.replace("http://", ""),
        home: Home::new(),
    };
    for _ in 0..3 {
        server.get("/v1/models", "").text();
    }
    let port = address.rsplit(':').next().unwrap();
    let of_log = |flags: &[&str]| {
        let output = home.run(&[&["logs", port][..], flags].concat());
        assert_ends(&output, 0, &[]);
        lines(&String::from_utf8(output.stdout).unwrap())
    };
    // The log is written beside the answers.
    let start = std::time::Instant::now();
    while of_log(&[]).len() < 4 && start.elapsed().as_secs() < 20 {}
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
    let followed = home
        .thane(&["logs", port, "--follow", "-n", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stopped = json_of(&home.run(&["stop", &address, "--json"]));
    crate::schema::agrees("stop", &stopped);
    assert_eq!(stopped["pid"], first.id());
    assert!(first.wait().unwrap().success());
    let followed = followed.wait_with_output().unwrap();
    let text = String::from_utf8(followed.stdout).unwrap();
    assert_eq!(lines(&text).last().unwrap()["event"], "stopped", "{text}");
    assert_ends(&home.run(&["stop"]), 0, &[]);
    assert!(second.wait().unwrap().success());
    assert_eq!(
        home.files("cache/servers"),
        ["1.json".to_owned(), format!("{}.json", stale(&home))]
    );
}

/// The process of the server that was killed, whose file is left.
fn stale(home: &Home) -> String {
    let files = home.files("cache/servers");
    let left = files.iter().filter_map(|name| name.strip_suffix(".json"));
    left.filter(|pid| *pid != "1")
        .map(str::to_owned)
        .next()
        .unwrap()
}
