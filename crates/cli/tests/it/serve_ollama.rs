//! Ollama's API as clients of `thane serve` meet it. `tests/oracle/check_serve.py` runs the
//! official client.

use std::path::Path;

use serde_json::{Value, json};

use crate::codes::copy;
use crate::fixture::Home;
use crate::serve::{assert_near, conversations, floats};
use crate::serve_client::{Answer, Server, with};

/// Posts an object to a route of the API.
fn post(server: &Server, route: &str, body: Value) -> Answer {
    server.post(&format!("/api/{route}"), &body.to_string(), "")
}

/// The objects of a stream, one a line.
fn lines(answer: Answer) -> Vec<Value> {
    let kind = "content-type: application/x-ndjson";
    assert!(answer.head.contains(kind), "{}", answer.head);
    let text = answer.text();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn answers_are_those_of_transformers() {
    let server = Server::start(&["--numerics", "f32"]);
    for case in conversations() {
        let n_tokens = case["tokens"].as_array().unwrap().len();
        let n_prompt = case["ids"].as_array().unwrap().len();
        let options = json!({"temperature": 0, "num_predict": n_tokens, "num_thread": 1});
        let body = json!({"model": "tiny-chat:latest", "messages": case["messages"],
            "options": options, "keep_alive": "5m"});
        let streamed = lines(post(&server, "chat", body.clone()));
        let (last, pieces) = streamed.split_last().unwrap();
        let text: String = pieces
            .iter()
            .map(|piece| piece["message"]["content"].as_str().unwrap())
            .collect();
        assert_eq!(text, case["text"], "{streamed:?}");
        assert!(pieces.iter().all(|piece| piece["done"] == false));
        assert_eq!(
            (&last["done"], &last["done_reason"]),
            (&json!(true), &json!("length"))
        );
        assert_eq!(last["prompt_eval_count"], n_prompt, "{last}");
        assert_eq!(last["eval_count"], n_tokens, "{last}");
        let ns = |field: &str| last[field].as_u64().unwrap();
        assert_eq!(
            ns("total_duration"),
            ns("prompt_eval_duration") + ns("eval_duration")
        );
        assert!(
            last["created_at"].as_str().unwrap().ends_with('Z'),
            "{last}"
        );
        let whole = post(&server, "chat", with(body, json!({"stream": false}))).json();
        let message = json!({"role": "assistant", "content": case["text"]});
        assert_eq!(whole["message"], message, "{whole}");
        // The time of the prompt ends with the first token, also where all of them come at once.
        let ns = |field: &str| whole[field].as_u64().unwrap();
        let total = ns("prompt_eval_duration") + ns("eval_duration");
        assert_eq!(ns("total_duration"), total);
        assert!(
            n_tokens == 1 || ns("eval_duration") * 100 > total,
            "{whole}"
        );

        // A prompt and a system prompt are a conversation too.
        let messages = case["messages"].as_array().unwrap();
        let (user, system) = match &messages[..] {
            [user] => (user, json!("")),
            [system, user] => (user, system["content"].clone()),
            _ => continue,
        };
        let body = json!({"model": "tiny-chat", "prompt": user["content"], "system": system,
            "options": options, "stream": false});
        let whole = post(&server, "generate", body).json();
        assert_eq!(whole["response"], case["text"], "{whole}");
    }
}

#[test]
fn a_raw_prompt_is_continued_without_the_template() {
    let server = Server::start(&["--numerics", "f32"]);
    let body = json!({"model": "tiny-chat", "prompt": "the sea", "max_tokens": 12});
    let expected = server.post("/v1/completions", &body.to_string(), "").json();
    let body = json!({"model": "tiny-chat", "prompt": "the sea", "raw": true, "stream": false,
        "options": {"num_predict": 12}});
    let whole = post(&server, "generate", body.clone()).json();
    assert_eq!(whole["response"], expected["choices"][0]["text"], "{whole}");
    let streamed = lines(post(
        &server,
        "generate",
        with(body, json!({"stream": true})),
    ));
    let text: String = streamed
        .iter()
        .map(|o| o["response"].as_str().unwrap())
        .collect();
    assert_eq!(text, whole["response"]);
    // Without a prompt, the client wants the model to be loaded.
    for route in ["generate", "chat"] {
        let loaded = post(&server, route, json!({"model": "tiny-chat"})).json();
        assert_eq!(
            (&loaded["done"], &loaded["done_reason"]),
            (&json!(true), &json!("load"))
        );
    }
}

#[test]
fn vectors_are_those_of_the_other_route() {
    let server = Server::start(&["--numerics", "f32"]);
    let texts = json!(["a cat", "the sea is deep"]);
    let body = json!({"model": "bert-mean", "input": texts});
    let expected = server.post("/v1/embeddings", &body.to_string(), "").json();
    let row = |idx: usize| expected["data"][idx]["embedding"].clone();
    let found = post(&server, "embed", body.clone()).json();
    assert_eq!(
        floats(&found["embeddings"]),
        floats(&json!([row(0), row(1)]))
    );
    assert_eq!(
        found["prompt_eval_count"],
        expected["usage"]["prompt_tokens"]
    );
    let shorter = post(&server, "embed", with(body, json!({"dimensions": 4}))).json();
    assert_eq!(shorter["embeddings"][1].as_array().unwrap().len(), 4);
    let old = post(
        &server,
        "embeddings",
        json!({"model": "bert-mean", "prompt": "a cat"}),
    )
    .json();
    assert_near(&json!([old["embedding"]]), &json!([row(0)]));
    // Long texts are cut, unless the client does not want it.
    let long = json!({"model": "bert-mean", "input": "word ".repeat(400)});
    let cut = post(&server, "embed", long.clone()).json();
    assert_eq!(cut["prompt_eval_count"], 64, "{cut}");
    let answer = post(&server, "embed", with(long, json!({"truncate": false})));
    assert_eq!(answer.status, 400);
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("expected at most 64 tokens"), "{error}");
}

/// Requests name no side, so the model's files do.
#[test]
fn long_texts_are_cut_where_the_model_says() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models");
    let golden = std::fs::read(models.join("text-settings.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let rows = golden["rows"].as_array().unwrap();
    let named = ("tiny-embed/bert-mean", "cut at the left");
    let is_it = |row: &&Value| row["model"] == named.0 && row["label"] == named.1;
    let row = rows.iter().find(is_it).unwrap();
    let home = Home::new();
    let folder = home.path("left");
    copy(&models.join(named.0), &folder);
    let path = folder.join("tokenizer_config.json");
    let keys: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let keys = with(keys, row["files"]["tokenizer_config.json"].clone());
    std::fs::write(&path, keys.to_string()).unwrap();
    let server = Server::of_models(&[folder], &["--numerics", "f32"], &[]);
    let body = json!({"model": "left", "input": golden["texts"]});
    let found = post(&server, "embed", body).json();
    assert_near(&found["embeddings"], &row["vectors"]);
    let body = json!({"model": "left", "prompt": golden["texts"][3]});
    let found = post(&server, "embeddings", body).json();
    assert_near(&json!([found["embedding"]]), &json!([row["vectors"][3]]));
}

#[test]
fn models_are_listed_and_shown() {
    let server = Server::start(&[]);
    for (route, field, n) in [("tags", "modified_at", 2), ("ps", "context_length", 2)] {
        let listed = server.get(&format!("/api/{route}"), "").json();
        let models = listed["models"].as_array().unwrap();
        assert_eq!(models.len(), n);
        assert!(
            models.iter().all(|model| !model[field].is_null()),
            "{listed}"
        );
        assert_eq!(
            (&models[0]["name"], &models[1]["model"]),
            (&json!("tiny-chat"), &json!("bert-mean"))
        );
    }
    let shown = post(&server, "show", json!({"model": "tiny-chat"})).json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert_eq!(shown["model_info"]["llama.context_length"], 512, "{shown}");
    assert!(shown["template"].as_str().unwrap().contains("<|im_start|>"));
    let shown = post(&server, "show", json!({"model": "bert-mean:latest"})).json();
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    let version = server.get("/api/version", "").json();
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
}

#[test]
fn errors_are_one_text() {
    let server = Server::start(&[]);
    let hello = json!([{"role": "user", "content": "hello"}]);
    let chat = |fields: Value| {
        let body = json!({"model": "tiny-chat", "messages": hello});
        post(&server, "chat", with(body, fields))
    };
    for (answer, status, said) in [
        (
            chat(json!({"model": "x"})),
            404,
            "expected one of tiny-chat, bert-mean",
        ),
        (
            chat(json!({"model": "bert-mean"})),
            400,
            "is an embedding model",
        ),
        (
            chat(json!({"format": "xml"})),
            400,
            "`format`: expected json or a JSON schema",
        ),
        (
            chat(json!({"tools": [{}]})),
            400,
            "`tools[0].function`: expected an object, found none",
        ),
        (
            chat(json!({"options": {"magic": 1}})),
            400,
            "the field `options.magic`",
        ),
        (
            chat(json!({"options": {"tfs_z": 2}})),
            400,
            "`options.tfs_z`: expected 1, found 2",
        ),
        (
            chat(json!({"options": {"num_ctx": 9999}})),
            400,
            "`options.num_ctx`: expected at most 512",
        ),
        (
            chat(json!({"options": {"num_predict": -3}})),
            400,
            "`options.num_predict`: expected",
        ),
        (
            chat(json!({"options": {"temperature": "hot"}})),
            400,
            "`options.temperature`: invalid",
        ),
        (
            chat(json!({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]})),
            400,
            "the field `messages[0].images` is not supported",
        ),
        (
            post(&server, "pull", json!({"model": "x"})),
            403,
            "models cannot be pulled",
        ),
        (
            post(&server, "nothing", json!({})),
            404,
            "there is no such route",
        ),
    ] {
        assert_eq!(answer.status, status, "{said}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(said), "{error}");
    }
}

/// A schema with few answers, which the tiny model can finish.
pub fn schema() -> Value {
    json!({"type": "object", "properties": {"sky": {"enum": ["blue", "gray"]}},
        "required": ["sky"], "additionalProperties": false})
}

#[track_caller]
pub fn assert_fits_schema(text: &Value) {
    let found: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert!(
        ["blue", "gray"]
            .map(|sky| json!({"sky": sky}))
            .contains(&found),
        "{found}"
    );
}

#[test]
fn answers_have_the_form_that_is_asked_for() {
    let server = Server::start(&[]);
    let hello = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "tiny-chat", "messages": hello, "stream": false, "format": schema(),
        "options": {"typical_p": 0.9, "repeat_last_n": -1, "repeat_penalty": 1.1}});
    let answer = post(&server, "chat", body).json();
    assert_fits_schema(&answer["message"]["content"]);
    let body =
        json!({"model": "tiny-chat", "prompt": "hello", "stream": false, "format": schema()});
    assert_fits_schema(&post(&server, "generate", body).json()["response"]);
}
