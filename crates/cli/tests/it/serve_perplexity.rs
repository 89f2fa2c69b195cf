//! Perplexity's API as clients of `thane serve` meet it, and its encodings of vectors.
//! `tests/oracle/check_serve.py` runs the official client.

use serde_json::{Value, json};

use crate::embed::model;
use crate::fixture::{assert_ends, json as report};
use crate::serve::decoded;
use crate::serve_client::{Answer, Server, with};

const CONTEXT: &str = "qwen3-pplx-context";

fn server() -> Server {
    let models = [model(CONTEXT), model("bert-mean")];
    Server::of_models(&models, &["--numerics", "f32"], &[])
}

fn post(server: &Server, route: &str, fields: Value) -> Answer {
    let body = with(json!({"model": CONTEXT}), fields);
    server.post(&format!("/perplexity/v1/{route}"), &body.to_string(), "")
}

/// The rows of `thane embed`, as bytes.
fn embedded(server: &Server, model_name: &str, flags: &[&str], texts: &[&str]) -> Vec<Vec<u8>> {
    let path = model(model_name);
    let first = [
        "embed",
        path.to_str().unwrap(),
        "--json",
        "--numerics",
        "f32",
    ];
    let output = server.home.run(&[&first[..], flags, texts].concat());
    assert_ends(&output, 0, &[]);
    let mut rows = report(&output)["embeddings"].clone();
    if flags.contains(&"--chunks") {
        rows = rows[0].clone();
    }
    let row = |row: &Value| {
        let numbers = row.as_array().unwrap().iter();
        numbers.map(|n| n.as_i64().unwrap() as u8).collect()
    };
    rows.as_array().unwrap().iter().map(row).collect()
}

fn rows(data: &Value) -> Vec<Vec<u8>> {
    let objects = data.as_array().unwrap().iter().enumerate();
    let row = |(idx, object): (usize, &Value)| {
        assert_eq!(
            (&object["object"], &object["index"]),
            (&json!("embedding"), &json!(idx))
        );
        decoded(object["embedding"].as_str().unwrap())
    };
    objects.map(row).collect()
}

const INT8: &[&str] = &["--format", "int8"];
const BITS: &[&str] = &["--format", "ubinary", "--packing", "lsb"];

#[test]
fn encodings_are_those_of_embed_on_both_routes() {
    let server = server();
    let texts = ["a cat", "the sea is deep"];
    for (encoding, flags) in [("base64_int8", INT8), ("base64_binary", BITS)] {
        let fields = json!({"input": texts, "encoding_format": encoding, "dimensions": 16});
        let flags = [flags, &["--dimensions", "16"]].concat();
        let found = post(&server, "embeddings", fields.clone()).json();
        let expected = embedded(&server, CONTEXT, &flags, &texts);
        assert_eq!(rows(&found["data"]), expected, "{found}");
        let n = found["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(n > 0 && found["usage"]["total_tokens"] == n, "{found}");
        let body = with(json!({"model": "bert-mean"}), fields).to_string();
        let found = server.post("/v1/embeddings", &body, "").json();
        let expected = embedded(&server, "bert-mean", &flags, &texts);
        assert_eq!(rows(&found["data"]), expected, "{found}");
    }
    let whole = post(&server, "embeddings", json!({"input": texts[0]})).json();
    let expected = embedded(&server, CONTEXT, INT8, &texts[..1]);
    assert_eq!(rows(&whole["data"]), expected, "int8 is the default");
}

#[test]
fn chunks_know_their_document() {
    let server = server();
    let documents = [vec!["a cat", "a dog", "the sea"], vec!["the sky"]];
    for (encoding, flags) in [(Value::Null, INT8), (json!("base64_binary"), BITS)] {
        let fields = json!({"input": documents, "encoding_format": encoding});
        let found = post(&server, "contextualizedembeddings", fields).json();
        let data = found["data"].as_array().unwrap();
        assert_eq!(data.len(), documents.len());
        for (idx, chunks) in documents.iter().enumerate() {
            assert_eq!(data[idx]["index"], idx);
            let flags = [flags, &["--chunks"]].concat();
            let expected = embedded(&server, CONTEXT, &flags, chunks);
            assert_eq!(rows(&data[idx]["data"]), expected, "{found}");
        }
    }
}

#[test]
fn what_the_api_refuses_is_refused_in_its_shape() {
    let server = server();
    let long = "word ".repeat(4000);
    for (route, fields, status, said) in [
        (
            "embeddings",
            json!({"input": ["a", ""]}),
            400,
            "`input[1]`: expected a text that is",
        ),
        (
            "embeddings",
            json!({"input": []}),
            400,
            "expected 1 to 512 inputs, found 0",
        ),
        (
            "embeddings",
            json!({"input": vec!["a"; 513]}),
            400,
            "expected 1 to 512 inputs",
        ),
        (
            "embeddings",
            json!({"input": [1, 2]}),
            400,
            "a string or a list of strings",
        ),
        (
            "embeddings",
            json!({"input": "a", "encoding_format": "float"}),
            400,
            "expected base64_int8 or base64_binary, found `float`",
        ),
        (
            "embeddings",
            json!({"input": "a", "user": "u"}),
            400,
            "the field `user`",
        ),
        (
            "embeddings",
            json!({"input": long}),
            400,
            "input[0]: expected at most",
        ),
        (
            "embeddings",
            json!({"input": "a", "model": "x"}),
            404,
            "expected one of",
        ),
        (
            "contextualizedembeddings",
            json!({"input": [[]]}),
            400,
            "expected 1 to 16000 inputs",
        ),
        (
            "contextualizedembeddings",
            json!({"input": [["a"], ["b", ""]]}),
            400,
            "`input[1][1]`: expected a text",
        ),
        (
            "contextualizedembeddings",
            json!({"input": ["a"]}),
            400,
            "`input`: invalid type",
        ),
    ] {
        let answer = post(&server, route, fields);
        assert_eq!(answer.status, status, "{said}");
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], status, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(said), "{message}");
    }
}
