//! What `thane serve` has beside its API: metrics.

use serde_json::{Value, json};

use crate::serve_client::Server;

/// The value of a line of the metrics.
#[track_caller]
fn metric(text: &str, line: &str) -> f64 {
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
