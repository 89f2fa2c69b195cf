//! Tools beside a form of answers, and calls that are cut, in all APIs.

use serde_json::{Value, json};

use crate::fixture::chat_folder;
use crate::serve_client::{Server, with};
use crate::serve_openai::{weather, with_template, with_tools};
use crate::serve_tools::{anthropic_tools, assert_weather, hello, post, response_tools, start};

#[test]
fn an_answer_with_tools_and_a_form_is_either() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_models(&[with_tools(folder.path())], &["--numerics", "f32"], &[]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "sky", "schema": {
        "type": "object", "properties": {"sky": {"enum": ["blue", "gray"]}}, "required": ["sky"],
        "additionalProperties": false}}});
    let base = json!({"messages": hello(), "tools": [weather()[0]], "response_format": format,
        "temperature": 1.5, "max_tokens": 300});
    let (mut n_calls, mut n_texts) = (0, 0);
    let mut ask = |fields: Value| {
        let answer = server.chat(with(base.clone(), fields)).json();
        let choice = &answer["choices"][0];
        let message = &choice["message"];
        match message["tool_calls"].as_array() {
            Some(calls) => {
                let arguments = calls[0]["function"]["arguments"].as_str().unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                assert!(arguments["days"].is_number(), "{answer}");
                assert_eq!(message["content"], Value::Null, "{answer}");
                assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
                n_calls += 1;
            }
            None => {
                let text = message["content"].as_str().unwrap();
                let sky: Value = serde_json::from_str(text).unwrap();
                assert!(sky["sky"] == "blue" || sky["sky"] == "gray", "{answer}");
                assert_eq!(choice["finish_reason"], "stop", "{answer}");
                n_texts += 1;
            }
        }
        (n_calls, n_texts)
    };
    let single = json!({"parallel_tool_calls": false});
    // What the model prefers as its first token decides.
    let tokenizer = std::fs::read(chat_folder().join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    let preferring = |text: &str| {
        let id = tokenizer["model"]["vocab"][text]
            .as_u64()
            .unwrap()
            .to_string();
        with(single.clone(), json!({"logit_bias": {id: 100}}))
    };
    for seed in 0..3 {
        let seeded = |text: &str| with(preferring(text), json!({"seed": seed}));
        assert_eq!(ask(seeded("<")), (seed + 1, seed));
        assert_eq!(ask(seeded("{")), (seed + 1, seed + 1));
    }
    // With none, the form; with a call that is required, calls alone.
    let none = with(preferring("<"), json!({"tool_choice": "none"}));
    assert_eq!(ask(none), (3, 4));
    let required = with(preferring("{"), json!({"tool_choice": "required"}));
    assert_eq!(ask(required), (4, 4));
    // Calls that nothing marks cannot be told from texts that are JSON.
    let other = tempfile::tempdir().unwrap();
    let llama = with_template(
        other.path(),
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ messages[0].content }}\
         {# <|python_tag|> #}",
    );
    let llama = Server::of_models(&[llama], &[], &[]);
    let said =
        llama
            .chat(base.clone())
            .refused(400, "invalid_request_error", json!("response_format"));
    assert!(
        said.contains("found both: this model writes calls as JSON"),
        "{said}"
    );
    let required = with(base, json!({"tool_choice": "required", "max_tokens": 1}));
    assert_eq!(llama.chat(required).status, 200);
}

#[test]
fn tools_and_forms_go_together_in_each_api() {
    let (_folder, server) = start();
    let schema = json!({"const": 5});
    let format = json!({"type": "json_schema", "name": "x", "schema": schema});
    let mut plain = format.clone();
    plain.as_object_mut().unwrap().remove("name");
    let (named, none) = (
        json!({"type": "tool", "name": "weather"}),
        json!({"type": "none"}),
    );
    let base = json!({"messages": hello(), "tools": anthropic_tools(), "max_tokens": 200,
        "output_config": {"format": plain}});
    let answer = post(
        &server,
        "/v1/messages",
        with(base.clone(), json!({"tool_choice": named})),
    );
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    assert_weather(&answer["content"][0]["input"]);
    let answer = post(
        &server,
        "/v1/messages",
        with(base.clone(), json!({"tool_choice": none})),
    );
    assert_eq!(answer["content"][0]["text"], "5", "{answer}");
    let base = json!({"input": "hello", "tools": response_tools(), "text": {"format": format}});
    let answer = post(
        &server,
        "/v1/responses",
        with(base, json!({"tool_choice": "none"})),
    );
    assert_eq!(answer["output"][0]["content"][0]["text"], "5", "{answer}");
    // A client of Ollama cannot say which.
    let fields =
        json!({"messages": hello(), "tools": [weather()[0]], "format": schema, "stream": false});
    let message = post(&server, "/api/chat", fields)["message"].clone();
    match message["tool_calls"].as_array() {
        Some(calls) => assert_weather(&calls[0]["function"]["arguments"]),
        None => assert_eq!(message["content"], "5", "{message}"),
    }
}

#[test]
fn a_call_that_is_cut_leaves_no_markup() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_models(&[with_tools(folder.path())], &["--numerics", "f32"], &[]);
    let base = json!({"messages": hello(), "tools": weather(), "tool_choice": "required"});
    for n in [1, 4, 15, 30] {
        let fields = with(base.clone(), json!({"max_tokens": n}));
        let answer = server.chat(fields.clone()).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        assert_eq!(choice["message"]["content"], "", "{answer}");
        let events = server.chat(with(fields, json!({"stream": true}))).events();
        let pieces = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(pieces.collect::<String>(), "", "{events:?}");
    }
}

#[test]
fn calls_that_are_cut_leave_no_markup_in_other_apis() {
    let (_folder, server) = start();
    let fields = json!({"messages": hello(), "tools": anthropic_tools(), "max_tokens": 12,
        "tool_choice": {"type": "any"}});
    let answer = post(&server, "/v1/messages", fields);
    assert_eq!(
        answer["content"],
        json!([{"type": "text", "text": ""}]),
        "{answer}"
    );
    assert_eq!(answer["stop_reason"], "max_tokens");
    let fields = json!({"input": "hello", "tools": response_tools(), "max_output_tokens": 12,
        "tool_choice": "required"});
    let answer = post(&server, "/v1/responses", fields);
    assert_eq!(answer["output"][0]["content"][0]["text"], "", "{answer}");
    assert_eq!(answer["status"], "incomplete");
}

/// The model is told of tools, and may call them as it likes: nobody can tell its calls from text.
#[test]
fn calls_of_an_unknown_format_are_text() {
    let folder = tempfile::tempdir().unwrap();
    let template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
                    {% for m in messages %}{{ m.content }}{% endfor %}";
    let model = with_template(folder.path(), template);
    let server = Server::of_models(&[model], &["--numerics", "f32"], &[]);
    let base = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6,
        "temperature": 0});
    let plain = server.chat(base.clone()).json();
    let base = with(base, json!({"tools": weather()}));
    let answer = server.chat(base.clone()).json();
    let n_prompt = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(n_prompt(&answer) > n_prompt(&plain) + 50, "{answer}");
    let choice = &answer["choices"][0];
    assert!(choice["message"]["content"].is_string(), "{answer}");
    assert!(choice["message"]["tool_calls"].is_null(), "{answer}");
    assert_ne!(choice["finish_reason"], "tool_calls");
    // A form holds for all of the text.
    let form = json!({"structured_outputs": {"choice": ["well"]}});
    let answer = server.chat(with(base.clone(), form)).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "well");
    // Nobody can hold the model to a call.
    for choice in [
        json!("required"),
        json!({"type": "function", "function": {"name": "ping"}}),
    ] {
        let said = server
            .chat(with(base.clone(), json!({"tool_choice": choice})))
            .refused(400, "invalid_request_error", json!("tool_choice"));
        assert!(said.contains("format"), "{said}");
    }
}
