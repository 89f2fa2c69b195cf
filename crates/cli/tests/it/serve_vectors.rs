//! Embedding models of `thane serve` under requests that come together.

use serde_json::{Value, json};

use crate::fixture::{json as report, until};
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
    // An answer is there before its request is counted as over.
    until("no request runs", || server.n_requests() == 0);
}

/// A model that keeps a part of its vectors, and one that leaves prompts out of its pooling, answer
/// as `thane embed` does, whoever asks beside them.
#[test]
fn settings_of_a_model_hold_in_answers() {
    // The prompt takes half of what the model can.
    let short = &texts()[..8];
    let names = ["bert-steps", "bert-prompt"];
    let models = names.map(crate::embed::model);
    let server = Server::of_models(&models, &["--numerics", "f32"], &[]);
    for (name, dim, whole) in [("bert-steps", 19, 38), ("bert-prompt", 40, 42)] {
        let ask = |more: Value| {
            let mut body = json!({"model": name, "input": short});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let answer = server.post("/v1/embeddings", &body.to_string(), "").json();
            let rows = answer["data"]
                .as_array()
                .unwrap_or_else(|| panic!("{answer}"));
            json!(rows.iter().map(|row| &row["embedding"]).collect::<Vec<_>>())
        };
        let path = crate::embed::model(name);
        let embedded = |flags: &[&str]| {
            let args = [
                "embed",
                path.to_str().unwrap(),
                "--json",
                "--numerics",
                "f32",
            ];
            let texts: Vec<&str> = short.iter().map(String::as_str).collect();
            report(&server.home.run(&[&args[..], flags, &texts].concat()))["embeddings"].clone()
        };
        let found = ask(json!({}));
        assert_eq!(found[0].as_array().unwrap().len(), dim, "{name}");
        assert_near(&found, &embedded(&[]));
        let asked = ask(json!({"dimensions": whole}));
        assert_eq!(asked[0].as_array().unwrap().len(), whole, "{name}");
        assert_near(&asked, &embedded(&["--dimensions", &whole.to_string()]));
        let listed = server.get(&format!("/v1/models/{name}"), "").json();
        assert_eq!(listed["dimensions"], dim, "{name}");
        let body = json!({"inputs": "the sea"}).to_string();
        let unit = server.post(&format!("/tei/{name}/embed"), &body, "").json();
        let length: f64 = floats(&unit)[0].iter().map(|v| f64::from(v * v)).sum();
        assert!((length - 1.0).abs() < 1e-5, "{name}: {length}");
    }
}

#[test]
fn deterministic_vectors_have_the_same_bits_in_any_company() {
    let server = Server::start(&["--deterministic"]);
    let alone: Vec<Value> = texts().iter().map(|t| embed(&server, &json!(t))).collect();
    for _ in 0..3 {
        assert_eq!(floats(&json!(together(&server))), floats(&json!(alone)));
    }
}
