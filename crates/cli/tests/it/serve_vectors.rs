//! Embedding models of `thane serve` under requests that come together.

use serde_json::{Value, json};

use crate::serve::{assert_near, floats};
use crate::serve_client::Server;

/// Texts of different lengths.
fn texts() -> Vec<String> {
    let words = ["sea", "cat", "sky", "deep", "a", "blue", "and"];
    let text = |n: usize| {
        (0..=n)
            .map(|i| words[i * n % 7])
            .collect::<Vec<_>>()
            .join(" ")
    };
    (0..24).map(|n| text(n % 11)).collect()
}

fn embed(server: &Server, input: &Value) -> Value {
    let body = json!({"model": "bert-mean", "input": input}).to_string();
    let answer = server.post("/v1/embeddings", &body, "").json();
    assert!(answer["data"].is_array(), "{answer}");
    answer["data"][0]["embedding"].clone()
}

/// Embeds each text in a request of its own, all at the same time.
fn together(server: &Server) -> Vec<Value> {
    std::thread::scope(|scope| {
        let texts = texts().into_iter();
        let asked: Vec<_> = texts
            .map(|text| scope.spawn(move || embed(server, &json!(text))))
            .collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn requests_that_come_together_share_calls_within_the_tolerance() {
    let server = Server::start(&["--numerics", "f32"]);
    let alone: Vec<Value> = texts().iter().map(|t| embed(&server, &json!(t))).collect();
    assert_near(&json!(together(&server)), &json!(alone));
    // A request that fails does not fail those beside it, and long ones are whole.
    let all = json!({"model": "bert-mean", "input": texts()}).to_string();
    let refused = json!({"model": "bert-mean", "input": [[1, 999_999]]}).to_string();
    std::thread::scope(|scope| {
        let many: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| server.post("/v1/embeddings", &all, "").json()))
            .collect();
        assert_eq!(server.post("/v1/embeddings", &refused, "").status, 400);
        for answer in many {
            let answer = answer.join().unwrap();
            let rows = answer["data"].as_array().unwrap().iter();
            let rows: Vec<&Value> = rows.map(|row| &row["embedding"]).collect();
            assert_near(&json!(rows), &json!(alone));
        }
    });
    assert_eq!(server.n_requests(), 0);
}

#[test]
fn deterministic_vectors_have_the_same_bits_in_any_company() {
    let server = Server::start(&["--deterministic"]);
    let alone: Vec<Value> = texts().iter().map(|t| embed(&server, &json!(t))).collect();
    for _ in 0..3 {
        assert_eq!(floats(&json!(together(&server))), floats(&json!(alone)));
    }
}
