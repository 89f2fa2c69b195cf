//! How many tokens a key may have in a day.

use serde_json::{Value, json};

use crate::serve_client::Server;

#[test]
fn a_key_has_its_tokens_in_a_day() {
    let keys = [
        "--api-key",
        "first",
        "--api-key",
        "second",
        "--api-key",
        "third",
    ];
    let flags = [&keys[..], &["--tokens-per-day", "60"]].concat();
    let server = Server::start(&flags);
    let header = |key: &str| format!("Authorization: Bearer {key}\r\n");
    let chat = json!({"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 60, "min_tokens": 60})
    .to_string();
    let ask = |key: &str| server.post("/v1/chat/completions", &chat, &header(key));
    // A request that was taken runs to its end.
    let usage = ask("first").json()["usage"].clone();
    let n_tokens = usage["total_tokens"].as_u64().unwrap();
    assert!(n_tokens > 60, "{usage}");
    let refused = ask("first");
    assert_eq!(refused.status, 429);
    let after = refused.head.split("retry-after: ").nth(1).unwrap();
    let after: u64 = after.split("\r\n").next().unwrap().parse().unwrap();
    // One token each 24 minutes.
    let due = (n_tokens - 60 + 1) * 24 * 60;
    assert!(after <= due && after + 24 * 60 > due, "{after} {due}");
    let error = refused.json()["error"].clone();
    assert_eq!(error["type"], "rate_limit_error", "{error}");
    let said = error["message"].as_str().unwrap();
    assert!(
        said.contains("at most 60 tokens per day of this client"),
        "{said}"
    );
    for (path, field) in [
        ("/v1/messages", "/error/type"),
        ("/api/chat", "/error"),
        ("/embed", "/error_type"),
    ] {
        let answer = server.post(path, "{}", &header("first"));
        assert_eq!(answer.status, 429, "{path}");
        assert!(answer.head.contains("retry-after: "), "{}", answer.head);
        assert!(
            answer.json().pointer(field).is_some_and(Value::is_string),
            "{path}"
        );
    }
    // Whoever looks is not refused, nor is another key.
    assert_eq!(server.get("/v1/models", &header("first")).status, 200);
    assert_eq!(ask("second").status, 200);
    // Embedded texts count too.
    let texts = vec!["the sea is deep and the air is thin"; 16];
    let embed = json!({"model": "bert-mean", "input": texts}).to_string();
    let embed = || server.post("/v1/embeddings", &embed, &header("third"));
    let n_tokens = embed().json()["usage"]["total_tokens"].as_u64().unwrap();
    assert!(n_tokens >= 60, "{n_tokens}");
    assert_eq!(embed().status, 429);
}

/// Several answers to a prompt count its tokens once, as `usage` says.
#[test]
fn a_prompt_of_several_answers_counts_once() {
    let server = Server::start(&["--api-key", "key", "--tokens-per-day", "200"]);
    let header = "Authorization: Bearer key\r\n";
    let prompt = "the sea is deep and the air is thin ".repeat(3);
    let body = json!({"model": "tiny-chat", "prompt": prompt, "n": 4, "max_tokens": 1});
    let ask = || server.post("/v1/completions", &body.to_string(), header);
    let usage = ask().json()["usage"].clone();
    let n_tokens = usage["total_tokens"].as_u64().unwrap();
    assert!((70..200).contains(&n_tokens), "{usage}");
    assert_eq!(ask().status, 200);
}
