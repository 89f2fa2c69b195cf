//! Tools beside a form of answers, and calls that are cut, in all APIs.

use std::path::Path;

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
/// Templates without tools, and one whose calls nobody knows. Two have no system messages.
const OTHERS: [&str; 4] = [
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\
     {% endfor %}{{ '<|im_start|>assistant\\n' }}",
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
     {% for m in messages %}{{ m.role + m.content }}{% endfor %}",
    "{% for m in messages %}{% if (m.role == 'user') != loop.first and m.role != 'assistant' %}\
     {{ raise_exception('Roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in messages if m.role != 'system' %}{{ m.role + ': ' + m.content }}{% endfor %}",
];

/// What a model whose template has no tools is told of `ping`.
const TOLD: &str = "You can call these tools, each with the JSON schema of its arguments:\n\
    <tools>\n{\"name\": \"ping\"}\n</tools>\n\nTo call a tool, answer with its name and arguments as \
    JSON:\n<tool_call>\n{\"name\": \"...\", \"arguments\": {...}}\n</tool_call>\n\
    For several calls, write several blocks. If no tool helps, answer with text.";

/// A server with room for what is told of tools, which has many tokens of this small vocabulary.
fn with_room(model: &Path) -> Server {
    let fixed = ["--port", "0", "--context", "2048", "--numerics", "f32"];
    Server::of_arguments(&[&[model.to_str().unwrap()], &fixed[..]].concat(), &[])
}

#[test]
fn tools_need_no_template_that_knows_them() {
    for (at, template) in OTHERS.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let server = with_room(&with_template(folder.path(), template));
        let n_prompt = |fields: Value| {
            let answer = server.chat(with(json!({"max_tokens": 1}), fields)).json();
            answer["usage"]["prompt_tokens"]
                .as_u64()
                .unwrap_or_else(|| panic!("{answer}"))
        };
        // What is told is what the same text tells, of the system or before that of the user.
        let texts = match at {
            0 | 1 => {
                json!([{"role": "system", "content": TOLD}, {"role": "user", "content": "hello"}])
            }
            _ => json!([{"role": "user", "content": format!("{TOLD}\n\nhello")}]),
        };
        let ping = json!([weather()[1]]);
        let told = n_prompt(json!({"messages": hello(), "tools": ping}));
        assert_eq!(told, n_prompt(json!({"messages": texts})), "{template}");
        let none = json!({"messages": hello(), "tools": ping, "tool_choice": "none"});
        assert_eq!(
            n_prompt(none),
            n_prompt(json!({"messages": hello()})),
            "{template}"
        );

        let base = json!({"messages": hello(), "tools": [weather()[0]], "temperature": 1.2,
            "max_tokens": 200});
        let required = json!({"tool_choice": "required", "seed": 3});
        let answer = server.chat(with(base.clone(), required)).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        // Several only where the client asks.
        assert_eq!(
            choice["message"]["tool_calls"].as_array().unwrap().len(),
            1,
            "{answer}"
        );
        let named = json!({"type": "function", "function": {"name": "weather"}});
        let fields = with(base, json!({"tool_choice": named}));
        let answer = server.chat(fields.clone()).json();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_weather(&serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap());
        let events = server.chat(with(fields, json!({"stream": true}))).events();
        let ended = &events.last().unwrap()["choices"][0]["finish_reason"];
        assert_eq!(ended, "tool_calls", "{events:?}");
    }
}

#[test]
fn calls_and_results_are_texts_where_the_template_has_no_tools() {
    let server = Server::start(&["--numerics", "f32"]);
    let chat = |messages: Value| {
        let fields = json!({"messages": messages, "max_tokens": 1});
        server.chat(fields).json()["usage"]["prompt_tokens"].clone()
    };
    let arguments = json!({"city": "Oslo", "days": 2});
    let talk = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "so", "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "weather", "arguments": arguments.to_string()}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "user", "content": "and then?"},
    ]);
    let texts = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "so\n<tool_call>\n{\"name\": \"weather\", \"arguments\": \
            {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>"},
        {"role": "user", "content":
            "<tool_response name=\"weather\">\nrain\n</tool_response>\nand then?"},
    ]);
    let n = chat(talk);
    assert!(n.as_u64().unwrap() > 60, "{n}");
    assert_eq!(n, chat(texts));
    // The same in the words of the other APIs.
    let blocks = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "text", "text": "so"},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": arguments}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "rain"},
            {"type": "text", "text": "and then?"}]},
    ]);
    let counted = post(
        &server,
        "/v1/messages/count_tokens",
        json!({"messages": blocks}),
    );
    assert_eq!(counted["input_tokens"], n);
    let items = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "c1", "name": "weather",
            "arguments": arguments.to_string()},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"role": "user", "content": "and then?"},
    ]);
    let counted = post(
        &server,
        "/v1/responses/input_tokens",
        json!({"input": items}),
    );
    assert_eq!(counted["input_tokens"], n);
    let messages = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "so", "tool_calls": [
            {"function": {"name": "weather", "arguments": arguments}}]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
        {"role": "user", "content": "and then?"},
    ]);
    let fields = json!({"messages": messages, "stream": false, "options": {"num_predict": 1}});
    assert_eq!(post(&server, "/api/chat", fields)["prompt_eval_count"], n);
}

#[test]
fn every_api_calls_tools_without_a_template_that_knows_them() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_room(&with_template(folder.path(), OTHERS[0]));
    let any = json!({"messages": hello(), "tools": anthropic_tools(), "max_tokens": 200,
        "tool_choice": {"type": "tool", "name": "weather"}});
    let answer = post(&server, "/v1/messages", any);
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    assert_weather(&answer["content"][0]["input"]);
    let named = json!({"type": "function", "name": "weather"});
    let fields = json!({"input": "hello", "tools": response_tools(), "tool_choice": named});
    let answer = post(&server, "/v1/responses", fields);
    let arguments = answer["output"][0]["arguments"].as_str().unwrap();
    assert_weather(&serde_json::from_str(arguments).unwrap());
    // What an answer called is cached for the next, in which the call is the same text.
    let cached = |answer: &Value| answer["usage"]["input_tokens_details"]["cached_tokens"].clone();
    let output = json!({"type": "function_call_output", "call_id": answer["output"][0]["call_id"],
        "output": "rain"});
    let next = json!({"previous_response_id": answer["id"], "input": [output],
        "tools": response_tools(), "max_output_tokens": 4});
    let next = post(&server, "/v1/responses", next);
    let n_before = answer["usage"]["total_tokens"].as_u64().unwrap();
    assert!(
        cached(&next).as_u64().unwrap() + 16 >= n_before,
        "{answer} {next}"
    );
    let fields = json!({"messages": hello(), "tools": [weather()[0]], "format": {"const": 5},
        "stream": false});
    let message = post(&server, "/api/chat", fields)["message"].clone();
    match message["tool_calls"].as_array() {
        Some(calls) => assert_weather(&calls[0]["function"]["arguments"]),
        None => assert_eq!(message["content"], "5", "{message}"),
    }
    let shown = post(&server, "/api/show", json!({}));
    assert_eq!(
        shown["capabilities"],
        json!(["completion", "tools"]),
        "{shown}"
    );
}
