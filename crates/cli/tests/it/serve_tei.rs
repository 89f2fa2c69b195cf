//! The API of Text Embeddings Inference, and rerankers, as clients of `thane serve` meet them.
//! `tests/oracle/check_serve.py` runs the client of `huggingface_hub`.

use serde_json::{Value, json};

use crate::embed::model;
use crate::fixture::chat_folder;
use crate::rerank::{golden, model as reranker};
use crate::serve::{assert_near, floats};
use crate::serve_client::{Answer, Server, with};

fn server() -> Server {
    let models = [model("bert-mean"), reranker("bert"), chat_folder()];
    Server::of_models(&models, &["--numerics", "f32"], &[])
}

fn post(server: &Server, path: &str, body: Value) -> Answer {
    server.post(path, &body.to_string(), "")
}

/// Requires an error of the API's shape.
fn assert_refused(answer: Answer, status: u16, kind: &str, said: &str) {
    assert_eq!(answer.status, status, "{said}");
    let error = answer.json();
    assert_eq!(error["error_type"], kind, "{error}");
    let message = error["error"].as_str().unwrap();
    assert!(message.contains(said), "{message}");
}

#[test]
fn vectors_are_those_of_the_other_route() {
    let server = server();
    let texts = json!(["a cat", "the sea is deep"]);
    let body = json!({"model": "bert-mean", "input": texts});
    let expected = post(&server, "/v1/embeddings", body).json();
    let rows = expected["data"].as_array().unwrap().iter();
    let expected = json!(rows.map(|row| row["embedding"].clone()).collect::<Vec<_>>());
    for path in [
        "/embed",
        "/",
        "/tei/bert-mean/embed",
        "/tei/bert-mean",
        "/models/bert-mean",
        "/models/bert-mean/pipeline/feature-extraction",
    ] {
        let found = post(&server, path, json!({"inputs": texts})).json();
        assert_near(&found, &expected);
        let one = post(&server, path, json!({"inputs": texts[0], "truncate": true})).json();
        assert_near(&one, &json!([expected[0]]));
    }
    let shorter = post(&server, "/embed", json!({"inputs": texts, "dimensions": 4})).json();
    let norm: f32 = floats(&shorter)[1].iter().map(|x| x * x).sum();
    assert!(
        floats(&shorter)[1].len() == 4 && (norm - 1.0).abs() < 1e-5,
        "{shorter}"
    );
    // The vectors of a text's tokens, whose mean is that of the text.
    let all = post(&server, "/embed_all", json!({"inputs": texts})).json();
    let tokens = post(&server, "/tokenize", json!({"inputs": texts})).json();
    for (rows, tokens) in all
        .as_array()
        .unwrap()
        .iter()
        .zip(tokens.as_array().unwrap())
    {
        assert_eq!(floats(rows).len(), tokens.as_array().unwrap().len());
    }
}

#[test]
fn similarities_are_cosines() {
    let server = server();
    let (one, others) = ("a cat", ["a cat", "the sea is deep"]);
    let body = json!({"inputs": {"source_sentence": one, "sentences": others}});
    for path in [
        "/similarity",
        "/",
        "/models/bert-mean/pipeline/sentence-similarity",
    ] {
        let found = post(&server, path, body.clone()).json();
        let rows = floats(&post(&server, "/embed", json!({"inputs": others})).json());
        let cosine: f32 = rows[0].iter().zip(&rows[1]).map(|(a, b)| a * b).sum();
        assert_near(&json!([found]), &json!([[1.0, cosine]]));
    }
}

/// Ids and texts are those of transformers 5.24.
#[test]
fn texts_become_tokens_and_tokens_texts() {
    let server = server();
    let text = "The cats sleeping, deep";
    let ids = [
        3, 222, 36, 197, 144, 52, 208, 130, 141, 206, 13, 37, 221, 141, 4,
    ];
    let found = post(&server, "/tokenize", json!({"inputs": text})).json();
    let tokens = found[0].as_array().unwrap();
    let found: Vec<u64> = tokens.iter().map(|t| t["id"].as_u64().unwrap()).collect();
    assert_eq!(found, ids);
    let special: Vec<&Value> = tokens.iter().filter(|t| t["special"] == true).collect();
    let special: Vec<&Value> = special.iter().map(|t| &t["text"]).collect();
    assert_eq!(special, ["[CLS]", "[SEP]"]);
    let bare = json!({"inputs": text, "add_special_tokens": false});
    let bare = post(&server, "/tei/bert-mean/tokenize", bare).json();
    assert_eq!(bare[0].as_array().unwrap().len(), ids.len() - 2);
    let decoded = post(&server, "/decode", json!({"ids": ids})).json();
    // transformers also joins English punctuation to the word before it.
    assert_eq!(decoded, json!(["the cats sleeping , deep"]));
    let two = post(&server, "/decode", json!({"ids": [[222], [36, 197]]})).json();
    assert_eq!(two, json!(["the", "cat"]));
}

#[test]
fn ranks_are_those_of_the_reference() {
    let server = server();
    let golden = golden("bert");
    let rows = golden["texts"].as_array().unwrap();
    let texts: Vec<&Value> = rows.iter().map(|row| &row["text"]).collect();
    let order: Vec<&Value> = golden["order"].as_array().unwrap().iter().collect();
    let sigmoid = |logit: &Value| 1.0 / (1.0 + (-logit.as_f64().unwrap()).exp());
    let body = json!({"query": golden["query"], "texts": texts, "truncate": true});
    for path in ["/rerank", "/tei/bert/rerank", "/tei/bert", "/models/bert"] {
        let found = post(&server, path, body.clone()).json();
        let found = found.as_array().unwrap();
        let indices: Vec<&Value> = found.iter().map(|row| &row["index"]).collect();
        assert_eq!(indices, order, "{path}");
        for row in found {
            let logit = &rows[row["index"].as_u64().unwrap() as usize]["logit"];
            let error = row["score"].as_f64().unwrap() - sigmoid(logit);
            assert!(error.abs() < 1e-5, "{row}");
        }
    }
    let raw = with(
        body.clone(),
        json!({"raw_scores": true, "return_text": true}),
    );
    let raw = post(&server, "/rerank", raw).json();
    let best = &rows[order[0].as_u64().unwrap() as usize];
    let error = raw[0]["score"].as_f64().unwrap() - best["logit"].as_f64().unwrap();
    assert!(
        error.abs() < 1e-5 && raw[0]["text"] == best["text"],
        "{raw}"
    );
    let cut = with(body, json!({"truncate": false}));
    assert_refused(
        post(&server, "/rerank", cut),
        413,
        "Validation",
        "expected at most 48 tokens",
    );

    let documents = json!({"model": "bert", "query": golden["query"], "documents": texts,
        "top_n": 3, "return_documents": true});
    let found = post(&server, "/v1/rerank", documents.clone()).json();
    let newer = post(&server, "/v2/rerank", documents).json();
    assert_eq!(newer["results"], found["results"]);
    let results = found["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    for (result, index) in results.iter().zip(order) {
        let row = &rows[index.as_u64().unwrap() as usize];
        assert_eq!(
            (&result["index"], &result["document"]["text"]),
            (index, &row["text"])
        );
        let error = result["relevance_score"].as_f64().unwrap() - sigmoid(&row["logit"]);
        assert!(error.abs() < 1e-5, "{result}");
    }
    let n_tokens: usize = rows
        .iter()
        .map(|r| r["ids"].as_array().unwrap().len())
        .sum();
    assert_eq!(found["usage"]["total_tokens"], n_tokens);
}

/// Folders that sentence-transformers saved with `modules.json`, one of them of a language model.
#[test]
fn saved_rerankers_are_served_as_rerankers() {
    let names = ["modernbert-saved", "qwen3-yes-no"];
    let server = Server::of_models(&names.map(reranker), &["--numerics", "f32"], &[]);
    let models = server.get("/v1/models", "").json();
    for (i, name) in names.into_iter().enumerate() {
        assert_eq!(models["data"][i]["task"], "rerank", "{models}");
        let golden = golden(name);
        let rows = golden["texts"].as_array().unwrap();
        let texts: Vec<&Value> = rows.iter().map(|row| &row["text"]).collect();
        let body = json!({"model": name, "query": golden["query"], "documents": texts});
        let found = post(&server, "/v1/rerank", body).json();
        let results = found["results"].as_array().unwrap();
        let order: Vec<&Value> = results.iter().map(|result| &result["index"]).collect();
        let expected: Vec<&Value> = golden["order"].as_array().unwrap().iter().collect();
        assert_eq!(order, expected, "{name}");
        for result in results {
            let row = &rows[result["index"].as_u64().unwrap() as usize];
            let expected = 1.0 / (1.0 + (-row["logit"].as_f64().unwrap()).exp());
            let error = result["relevance_score"].as_f64().unwrap() - expected;
            assert!(error.abs() < 1e-5, "{name}: {result}");
        }
    }
}

#[test]
fn models_say_what_they_are() {
    let server = server();
    let about = server.get("/info", "").json();
    assert_eq!(about["model_id"], "bert-mean");
    assert_eq!(
        about["model_type"],
        json!({"embedding": {"pooling": "mean"}})
    );
    assert_eq!(about["max_input_length"], 64);
    let about = server.get("/tei/bert/info", "").json();
    assert!(about["model_type"]["reranker"].is_object(), "{about}");
    assert_eq!(server.get("/tei/bert-mean/health", "").status, 200);
    let models = server.get("/v1/models", "").json();
    assert_eq!(models["data"][1]["task"], "rerank", "{models}");
}

#[test]
fn errors_have_the_shape_of_the_api() {
    let server = server();
    let long = "word ".repeat(400);
    for (path, body, status, said) in [
        ("/embed", json!({}), 422, "expected the field `inputs`"),
        (
            "/embed",
            json!({"inputs": {"a": 1}}),
            422,
            "`inputs`: expected a string, a list",
        ),
        (
            "/embed",
            json!({"inputs": []}),
            422,
            "expected 1 to 2048 inputs, found 0",
        ),
        (
            "/embed",
            json!({"inputs": vec!["a"; 2049]}),
            413,
            "expected 1 to 2048 inputs",
        ),
        (
            "/embed",
            json!({"inputs": long}),
            413,
            "input[0]: expected at most 64 tokens",
        ),
        (
            "/embed",
            json!({"inputs": "a", "normalize": false}),
            422,
            "`normalize`: expected true",
        ),
        (
            "/embed",
            json!({"inputs": "a", "prompt_name": "x"}),
            422,
            "x",
        ),
        (
            "/embed",
            json!({"inputs": "a", "magic": 1}),
            422,
            "the field `magic`",
        ),
        (
            "/embed",
            json!({"inputs": "a", "truncation_direction": "up"}),
            422,
            "expected left or right, found up",
        ),
        (
            "/decode",
            json!({"ids": [999_999]}),
            422,
            "`ids`: expected token ids below",
        ),
    ] {
        assert_refused(post(&server, path, body), status, "Validation", said);
    }
}

#[test]
fn models_that_do_not_fit_are_refused() {
    let server = server();
    for (path, body, status, said) in [
        (
            "/tei/x/embed",
            json!({"inputs": "a"}),
            404,
            "expected one of bert-mean, bert",
        ),
        (
            "/tei/bert/embed",
            json!({"inputs": "a"}),
            422,
            "bert is a reranker",
        ),
        (
            "/tei/tiny-chat/embed",
            json!({"inputs": "a"}),
            422,
            "tiny-chat is a language model",
        ),
        (
            "/models/tiny-chat",
            json!({"inputs": "a", "parameters": {"details": true}}),
            422,
            "`parameters.details`: expected false",
        ),
        (
            "/rerank",
            json!({"query": "a", "texts": []}),
            422,
            "expected 1 to 2048 inputs",
        ),
        (
            "/rerank",
            json!({"query": "a", "texts": ["a"], "truncation_direction": "up"}),
            422,
            "`truncation_direction`: expected left or right, found up",
        ),
        (
            "/embed",
            json!({"inputs": "a", "encoding_format": "base64"}),
            422,
            "`encoding_format`: expected \"float\", found \"base64\"",
        ),
    ] {
        assert_refused(post(&server, path, body), status, "Validation", said);
    }
}

#[test]
fn the_side_and_the_number_of_cuts_are_told() {
    let server = server();
    let long = "word ".repeat(400);
    // A long text is cut at the side that the client names.
    for side in ["left", "Right"] {
        let body = json!({"inputs": long, "truncate": true, "truncation_direction": side});
        let answer = post(&server, "/embed", body);
        assert!(
            answer.head.contains("\r\nx-truncated-inputs: 1\r\n"),
            "{}",
            answer.head
        );
        assert_eq!(floats(&answer.json()).len(), 1);
    }
}

#[test]
fn pairs_are_cut_at_the_side_that_is_asked_for() {
    let server = server();
    let (cats, seas) = ("a cat sleeps ".repeat(60), "the sea is deep ".repeat(60));
    let texts = [
        cats.clone() + &seas,
        cats.clone() + &cats,
        seas.clone() + &seas,
    ];
    // What is left of a text decides its score.
    let scores = |side: &str| {
        let body = json!({"query": "a", "texts": texts, "truncate": true, "raw_scores": true,
            "truncation_direction": side});
        let answer = post(&server, "/rerank", body);
        assert!(
            answer.head.contains("\r\nx-truncated-inputs: 3\r\n"),
            "{}",
            answer.head
        );
        let rows = answer.json();
        [0, 1, 2].map(|index| {
            let mut rows = rows.as_array().unwrap().iter();
            rows.find(|row| row["index"] == index).unwrap()["score"].clone()
        })
    };
    for side in ["right", "Right"] {
        let [mixed, cats, seas] = scores(side);
        assert!(
            mixed == cats && mixed != seas,
            "{side}: {mixed} {cats} {seas}"
        );
    }
    for side in ["left", "Left"] {
        let [mixed, cats, seas] = scores(side);
        assert!(
            mixed == seas && mixed != cats,
            "{side}: {mixed} {cats} {seas}"
        );
    }
}

#[test]
fn the_root_is_for_the_one_model_that_fits() {
    let two = [model("bert-mean"), model("bert-cls")];
    let server = Server::of_models(&two, &[], &[]);
    let answer = post(&server, "/embed", json!({"inputs": "a"}));
    assert_refused(
        answer,
        404,
        "Validation",
        "expected one embedding model on this server, found 2",
    );
    let answer = post(&server, "/rerank", json!({"query": "a", "texts": ["a"]}));
    assert_refused(
        answer,
        404,
        "Validation",
        "expected one reranker on this server, found 0",
    );
}

#[test]
fn a_language_model_continues_texts() {
    let server = server();
    let body = json!({"model": "tiny-chat", "prompt": "the sea", "max_tokens": 9});
    let expected = post(&server, "/v1/completions", body).json();
    let text = &expected["choices"][0]["text"];
    let body =
        json!({"inputs": "the sea", "parameters": {"max_new_tokens": 9, "do_sample": false}});
    let found = post(&server, "/models/tiny-chat", body.clone()).json();
    assert_eq!(found, json!([{"generated_text": text}]));
    let streamed = with(body, json!({"stream": true}));
    let streamed = post(&server, "/tei/tiny-chat", streamed).text();
    let events = streamed.split_terminator("\n\n");
    let events: Vec<Value> = events
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    let pieces = events
        .iter()
        .map(|event| event["token"]["text"].as_str().unwrap());
    assert_eq!(pieces.collect::<String>(), text.as_str().unwrap());
    let last = events.last().unwrap();
    assert_eq!(last["generated_text"], *text);
    assert_eq!(
        (
            &last["details"]["finish_reason"],
            &last["details"]["generated_tokens"]
        ),
        (&json!("length"), &json!(9))
    );
}

/// The client of `huggingface_hub` names no model of a server: it sends one of two names.
#[test]
fn the_one_language_model_needs_no_name() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::os::unix::fs::symlink(chat_folder(), &other).unwrap();
    let two = Server::of_models(&[chat_folder(), other], &[], &[]);
    for name in ["dummy", "tgi"] {
        let hello = json!([{"role": "user", "content": "hello"}]);
        let body = json!({"model": name, "messages": hello, "max_tokens": 1});
        let answer = post(&server, "/v1/chat/completions", body.clone());
        assert_eq!(answer.json()["model"], "tiny-chat", "{name}");
        assert_eq!(
            post(&two, "/v1/chat/completions", body).status,
            404,
            "{name}"
        );
    }
}
