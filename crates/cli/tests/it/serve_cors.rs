//! `thane serve --cors`: pages of other sites.

use crate::fixture::{Home, assert_ends, chat_folder};
use crate::serve_client::{Answer, Server};

const OWN: &str = "https://example.com";

fn ask(server: &Server, first: &str, host: &str, headers: &str) -> Answer {
    let head = format!(
        "{first} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: 0\r\n\r\n"
    );
    server.send(&head, "")
}

/// The headers of CORS in an answer, in the order of their names.
fn of_cors(answer: &Answer) -> Vec<&str> {
    let is_of_cors = |line: &&str| line.starts_with("access-control") || line.starts_with("vary");
    let mut found: Vec<&str> = answer.head.lines().filter(is_of_cors).collect();
    found.sort_unstable();
    found
}

#[test]
fn pages_of_allowed_origins_may_ask() {
    let server = Server::start(&["--api-key", "secret", "--cors", OWN, "--cors", "app://x"]);
    let preflight = |origin: &str| {
        format!(
            "Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: authorization,content-type\r\n"
        )
    };
    let chat = "OPTIONS /v1/chat/completions";
    for origin in [OWN, "app://x"] {
        let answer = ask(&server, chat, "localhost", &preflight(origin));
        assert_eq!(answer.status, 204, "{}", answer.head);
        let expected = [
            "access-control-allow-headers: authorization,content-type".to_owned(),
            "access-control-allow-methods: get, post, delete".to_owned(),
            format!("access-control-allow-origin: {origin}"),
            "vary: origin".to_owned(),
        ];
        assert_eq!(of_cors(&answer), expected);
    }
    let readable = [
        "access-control-allow-origin: https://example.com",
        "access-control-expose-headers: x-request-id, retry-after",
        "vary: origin",
    ];
    // An answer, the error of a missing key, and that of a missing route.
    let own = format!("Origin: {OWN}\r\n");
    let key = format!("{own}Authorization: Bearer secret\r\n");
    for (path, headers, status) in [
        ("GET /v1/models", &key, 200),
        ("GET /v1/models", &own, 401),
        ("GET /none", &key, 404),
        // No preflight: the method is missing.
        ("OPTIONS /v1/models", &key, 405),
    ] {
        let answer = ask(&server, path, "localhost", headers);
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(of_cors(&answer), readable, "{path}");
    }
    // A stream, and errors of bodies.
    for (body, status) in [
        (
            r#"{"model": "tiny-chat", "prompt": "a", "max_tokens": 2, "stream": true}"#,
            200,
        ),
        (r#"{"model": "none", "prompt": "a"}"#, 404),
        ("{", 400),
    ] {
        let answer = server.post("/v1/completions", body, &key);
        assert_eq!(answer.status, status, "{body}");
        assert_eq!(of_cors(&answer), readable, "{body}");
    }
    for origin in [
        "https://evil.example",
        "http://example.com",
        "null",
        "https://example.com:444",
    ] {
        let answer = ask(&server, chat, "localhost", &preflight(origin));
        assert_eq!(
            (answer.status, of_cors(&answer)),
            (401, vec!["vary: origin"]),
            "{origin}"
        );
    }
    let twice = preflight(OWN) + "Origin: https://evil.example\r\n";
    assert_eq!(
        of_cors(&ask(&server, chat, "localhost", &twice)),
        ["vary: origin"]
    );
    // A page that reaches the server under a name of its own.
    for (first, headers) in [(chat, preflight(OWN)), ("GET /v1/models", key.clone())] {
        let answer = ask(&server, first, "evil.example", &headers);
        assert_eq!(
            (answer.status, of_cors(&answer)),
            (403, vec!["vary: origin"]),
            "{first}"
        );
    }
}

#[test]
fn all_origins_are_allowed_without_keys_alone() {
    let server = Server::start(&["--cors", "*"]);
    let answer = ask(&server, "GET /v1/models", "localhost", "Origin: null\r\n");
    assert_eq!(answer.status, 200);
    assert_eq!(of_cors(&answer)[0], "access-control-allow-origin: *");
    let page = "Origin: http://evil.example\r\n";
    assert_eq!(
        ask(&server, "GET /v1/models", "evil.example", page).status,
        403
    );
    let (home, chat) = (Home::new(), chat_folder());
    for (flags, said) in [
        (
            &["--cors", "*", "--api-key", "k"][..],
            "where clients need keys, found `*`",
        ),
        (
            &["--cors", "example.com"],
            "expected an origin such as https://example.com",
        ),
        (&["--cors", "https://example.com/"], "without a path"),
    ] {
        let serve = ["serve", chat.to_str().unwrap(), "--port", "0"];
        assert_ends(&home.run(&[&serve, flags].concat()), 2, &[said]);
    }
}
