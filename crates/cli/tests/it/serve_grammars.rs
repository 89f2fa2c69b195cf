//! Grammars that take any time or memory: each is refused, and nobody waits for it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::fixture::{Home, assert_ends, chat_folder, stderr, until};
use crate::serve_client::{Server, with};

/// Compiles without end, for each `n`.
fn endless(n: usize) -> Value {
    json!({"type": "integer", "multipleOf": 123_456_789 + n})
}

/// Requests that ask for such a grammar: as a form in two APIs, and for the call of a tool.
fn asked(n: usize) -> [(&'static str, Value); 3] {
    let schema = endless(n);
    let form = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let parameters = json!({"type": "object", "properties": {"n": schema}, "required": ["n"]});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let hello = json!([{"role": "user", "content": "hello"}]);
    let chat = json!({"model": "tiny-chat", "messages": hello});
    let path = "/v1/chat/completions";
    [
        (path, with(chat.clone(), json!({"response_format": form}))),
        (
            path,
            with(chat, json!({"tools": [tool], "tool_choice": "required"})),
        ),
        (
            "/models/tiny-chat",
            json!({"inputs": "a", "parameters": {"grammar": {"type": "json", "value": schema}}}),
        ),
    ]
}

/// The processes that a server has for grammars.
fn processes(server: &Server) -> Vec<String> {
    let tasks = format!("/proc/{}/task", server.child.id());
    let Ok(tasks) = std::fs::read_dir(tasks) else {
        return Vec::new();
    };
    let children = tasks.filter_map(|task| {
        let children = std::fs::read_to_string(task.ok()?.path().join("children"));
        Some(
            children
                .ok()?
                .split(' ')
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    });
    children.flatten().filter(|id| !id.is_empty()).collect()
}

/// A server that is killed says nothing to its processes, which may compute and not read.
#[cfg(target_os = "linux")]
#[test]
fn no_process_outlives_a_server_that_was_killed() {
    let mut server = Server::start(&[]);
    let (path, body) = &asked(7)[0];
    let body = body.to_string();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let n = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {n}\r\n\r\n{body}",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut started = Vec::new();
    until("a grammar is compiled", || {
        started = processes(&server);
        !started.is_empty()
    });
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", started[0]));
    let mut limits = String::new();
    until("its memory is bounded", || {
        limits = file("limits").unwrap_or_default();
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max data size"));
        line.is_some_and(|line| {
            !line["Max data size".len()..]
                .trim()
                .starts_with("unlimited")
        })
    });
    let bound = ((512 + 384 + 128) << 20).to_string();
    assert!(limits.contains(&bound), "{limits}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    // Hundredths of a second; the limit of the system is ten seconds.
    let mut n_ticks = 0;
    until("the process has ended", || {
        let stat = file("stat").unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let [state, .., _] = fields[..] else {
            return true;
        };
        let time = fields.get(11).and_then(|n| n.parse().ok());
        n_ticks = time.unwrap_or(n_ticks);
        ["", "Z"].contains(&state)
    });
    assert!(n_ticks < 500, "{n_ticks} ticks");
}

#[test]
fn a_grammar_that_compiles_without_end_is_refused_however_it_comes() {
    let (_folder, server) = crate::serve_tools::start();
    for (at, (path, body)) in asked(0).into_iter().enumerate() {
        let answer = server.post(path, &body.to_string(), "");
        // The second API has a status of its own for fields.
        let status = if path.starts_with("/v1/") { 400 } else { 422 };
        assert_eq!(answer.status, status, "{at} {path}: {}", answer.head);
        let found = answer.text();
        let said = "expected one that takes less than";
        assert!(found.contains(said), "{at} {path}: {found}");
    }
    assert_eq!(server.n_requests(), 0);
    until("each process ends", || processes(&server).is_empty());
}

/// Compiling is a part of the time of an answer.
#[test]
fn a_grammar_that_is_not_compiled_in_time_is_refused() {
    let server = Server::start(&["--answer-time", "300ms"]);
    let [(path, body), ..] = asked(0);
    let answer = server.post(path, &body.to_string(), "");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "deadline_exceeded");
    until("the process ends", || processes(&server).is_empty());
}

/// A bug of the compiler is told in words for users.
#[test]
fn a_grammar_on_which_the_compiler_fails_is_refused() {
    let server = Server::start(&[]);
    let lark = "start: a b\na[lazy]: /(.|\\n)*/\nb: \"x\"\n";
    let answer = server.chat(json!({
        "messages": [{"role": "user", "content": "hi"}],
        "structured_outputs": {"grammar": lark},
    }));
    let (status, found) = (answer.status, answer.text());
    assert_eq!(status, 400, "{found}");
    assert!(
        found.contains("write it in another way") && !found.contains("panic"),
        "{found}"
    );
}

#[test]
fn nobody_else_waits_for_grammars_that_compile_without_end() {
    let server = Server::start(&[]);
    let n_refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for n in 1..4 {
            let (server, n_refused) = (&server, &n_refused);
            scope.spawn(move || {
                let [(path, body), ..] = asked(n);
                let answer = server.post(path, &body.to_string(), "");
                n_refused.fetch_add(1, Ordering::Relaxed);
                assert_eq!(answer.status, 400);
            });
        }
        until("grammars are compiled", || server.n_requests() == 3);
        // Texts for another model, and prompts for the same one, are still tokenized.
        let texts = json!({"model": "bert-mean", "input": ["a cat", "the sea"]});
        let vectors = server.post("/v1/embeddings", &texts.to_string(), "");
        assert_eq!(vectors.status, 200);
        let hello = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2});
        assert_eq!(server.chat(hello).status, 200);
        assert!(
            n_refused.load(Ordering::Relaxed) < 3,
            "grammars were compiled meanwhile"
        );
    });
}

#[test]
fn compiling_ends_when_its_client_leaves() {
    let server = Server::start(&[]);
    let [(path, body), ..] = asked(0);
    let body = body.to_string();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let n = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {n}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    if cfg!(target_os = "linux") {
        until("a process compiles", || !processes(&server).is_empty());
    }
    // Nothing was answered yet.
    stream.set_nonblocking(true).unwrap();
    assert!(stream.read(&mut [0]).is_err());
    drop(stream);
    until("compiling ends", || {
        processes(&server).is_empty() && server.n_requests() == 0
    });
}

#[test]
fn compiled_grammars_count_as_memory_and_make_room_for_others() {
    let form = |n: usize| {
        let schema = json!({"type": "string", "maxLength": n});
        json!({
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 4,
            "structured_outputs": {"json": schema},
        })
    };
    // A process takes some 20 MB.
    let server = Server::start(&["--memory", "60MB", "--prompt-memory", "0"]);
    for n in 1..7 {
        let answer = server.chat(form(n));
        assert_eq!((answer.status, n), (200, n));
    }
    let server = Server::start(&["--memory", "12MB", "--prompt-memory", "0"]);
    let answer = server.chat(form(1));
    assert!(answer.head.contains("retry-after"), "{}", answer.head);
    let said = answer.refused(503, "server_error", "structured_outputs".into());
    assert!(said.contains("a grammar needs"), "{said}");
}

#[test]
fn the_command_line_refuses_such_grammars_too() {
    let home = Home::new();
    let model = chat_folder();
    let schema = endless(0).to_string();
    let flags = [
        "run",
        model.to_str().unwrap(),
        "hello",
        "--json-schema",
        &schema,
    ];
    let output = home.run(&flags);
    assert_ends(&output, 2, &[]);
    let said = "the grammar: expected one that takes less than";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
}
