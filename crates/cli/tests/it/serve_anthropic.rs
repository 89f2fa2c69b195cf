//! Anthropic's API as clients of `thane serve` meet it. `tests/oracle/check_serve.py` runs the
//! official client.

use serde_json::{Value, json};

use crate::serve::conversations;
use crate::serve_client::{Server, named_events, with};

/// The fields of a conversation: the system prompt has a field of its own.
fn fields_of(case: &Value) -> Value {
    let mut messages = case["messages"].as_array().unwrap().clone();
    let n_tokens = case["tokens"].as_array().unwrap().len();
    let mut fields = json!({"max_tokens": n_tokens, "temperature": 0});
    if messages[0]["role"] == "system" {
        fields["system"] = messages.remove(0)["content"].clone();
    }
    with(fields, json!({"messages": messages}))
}

#[test]
fn answers_are_those_of_transformers() {
    let server = Server::start(&["--numerics", "f32", "--slots", "1"]);
    for case in conversations() {
        let n_tokens = case["tokens"].as_array().unwrap().len();
        let n_prompt = case["ids"].as_array().unwrap().len() as u64;
        let body = with(json!({"model": "tiny-chat"}), fields_of(&case));
        let whole = server.post("/v1/messages", &body.to_string(), "").json();
        let text = json!([{"type": "text", "text": case["text"]}]);
        assert_eq!(whole["content"], text, "{whole}");
        assert_eq!(
            (&whole["type"], &whole["role"]),
            (&json!("message"), &json!("assistant"))
        );
        assert_eq!(whole["stop_reason"], "max_tokens", "{whole}");
        let counted = |usage: &Value| {
            let n = |field: &str| usage[field].as_u64().unwrap();
            assert_eq!(n("output_tokens"), n_tokens as u64);
            n("input_tokens") + n("cache_read_input_tokens")
        };
        assert_eq!(counted(&whole["usage"]), n_prompt, "{whole}");

        let streamed = with(body.clone(), json!({"stream": true}));
        let events = named_events(server.post("/v1/messages", &streamed.to_string(), ""));
        let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
        let [first, start, .., stop, delta, last] = &kinds[..] else {
            panic!("{kinds:?}")
        };
        assert_eq!(
            [*first, *start, *stop, *delta, *last],
            [
                "message_start",
                "content_block_start",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ]
        );
        let pieces = events
            .iter()
            .filter_map(|event| event["delta"]["text"].as_str());
        assert_eq!(pieces.collect::<String>(), case["text"], "{events:?}");
        assert_eq!(events[0]["message"]["usage"]["input_tokens"], n_prompt);
        let delta = &events[events.len() - 2];
        assert_eq!(delta["delta"]["stop_reason"], "max_tokens");
        assert_eq!(counted(&delta["usage"]), n_prompt, "{delta}");
        // The cache of the slot holds the prompt from before.
        assert_eq!(delta["usage"]["input_tokens"], 1, "{delta}");

        let mut count = body;
        for field in ["max_tokens", "temperature"] {
            count.as_object_mut().unwrap().remove(field);
        }
        let path = "/v1/messages/count_tokens";
        let counted = server.post(path, &count.to_string(), "").json();
        assert_eq!(counted, json!({"input_tokens": n_prompt}));
    }
}

#[test]
fn the_sequence_that_ends_an_answer_is_named() {
    let server = Server::start(&["--numerics", "f32"]);
    let case = &conversations()[0];
    let whole = case["text"].as_str().unwrap();
    let stop: String = whole.chars().skip(3).take(2).collect();
    let stops = json!({"stop_sequences": ["\u{1f600}", stop]});
    let body = with(with(json!({"model": "tiny-chat"}), fields_of(case)), stops);
    let answer = server.post("/v1/messages", &body.to_string(), "").json();
    assert_eq!(
        answer["content"][0]["text"],
        whole.split(&stop).next().unwrap()
    );
    assert_eq!(answer["stop_reason"], "stop_sequence", "{answer}");
    assert_eq!(answer["stop_sequence"], stop);
    // Blocks, and turns of one role in a row, are the texts that they hold.
    let blocks = json!({"system": [{"type": "text", "text": "Be brief."}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Why is "}]},
        {"role": "user", "content": [{"type": "text", "text": "the sky blue?"}]},
    ]});
    let texts = json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why is \n\nthe sky blue?"},
    ]});
    let answer = |fields: Value| {
        let body = json!({"model": "tiny-chat", "max_tokens": 9, "temperature": 0});
        let answer = server
            .post("/v1/messages", &with(body, fields).to_string(), "")
            .json();
        answer["content"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(answer(blocks), answer(texts));
}

#[test]
fn errors_have_the_shape_of_the_api() {
    let server = Server::start(&["--api-key", "secret", "--queue", "0", "--slots", "1"]);
    let key = "x-api-key: secret\r\n";
    let hello = json!([{"role": "user", "content": "hello"}]);
    let whole = json!({"model": "tiny-chat", "max_tokens": 4, "messages": hello});
    let post = |fields: Value| {
        let body = with(whole.clone(), fields);
        server.post("/v1/messages", &body.to_string(), key)
    };
    assert_eq!(post(json!({})).status, 200);
    for (fields, status, kind, said) in [
        (
            json!({"max_tokens": null}),
            400,
            "invalid_request_error",
            "the field `max_tokens`",
        ),
        (
            json!({"model": "x"}),
            404,
            "not_found_error",
            "expected one of tiny-chat",
        ),
        (
            json!({"tools": [{}]}),
            400,
            "invalid_request_error",
            "`tools[0].name`: expected a string, found none",
        ),
        (
            json!({"thinking": {"type": "between_tools"}}),
            400,
            "invalid_request_error",
            "`thinking`: unknown variant `between_tools`",
        ),
        (
            json!({"container": "c"}),
            400,
            "invalid_request_error",
            "the field `container`",
        ),
        (
            json!({"stop_sequences": [""]}),
            400,
            "invalid_request_error",
            "`stop_sequences`: expected texts that are not empty",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "I"}]}),
            400,
            "invalid_request_error",
            "`messages`: expected a message of the user, or one of the assistant behind it",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x ".repeat(2000)}]}),
            400,
            "invalid_request_error",
            "expected a prompt shorter than the context of 512 tokens",
        ),
    ] {
        let answer = post(fields);
        assert_eq!(answer.status, status);
        let error = answer.json();
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!(kind))
        );
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(said), "{message}");
    }
    // Clients know by its details that the server keeps no conversations.
    let error = post(json!({"thread": {"type": "create"}})).json()["error"].clone();
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!(error["details"], details, "{error}");
    // Also of what is checked before any route.
    let answer = server.post("/v1/messages", "{}", "x-api-key: wrong\r\n");
    assert_eq!(answer.status, 401);
    assert_eq!(answer.json()["error"]["type"], "authentication_error");
    let answer = server.get("/v1/messages", key);
    assert_eq!(answer.status, 405);
    assert_eq!(answer.json()["type"], "error");
}
