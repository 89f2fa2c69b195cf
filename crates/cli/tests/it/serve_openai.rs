//! What OpenAI's routes of `thane serve` have beside texts: log probabilities, several answers,
//! forms of answers, and tools.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::fixture::chat_folder;
use crate::serve_client::{Server, with};

fn hello() -> Value {
    json!([{"role": "user", "content": "hello"}])
}

fn complete(server: &Server, fields: Value) -> Value {
    let body = with(json!({"model": "tiny-chat", "max_tokens": 8}), fields);
    let answer = server.post("/v1/completions", &body.to_string(), "");
    assert_eq!(answer.status, 200);
    answer.json()
}

fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().unwrap();
    list.iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let server = Server::start(&["--numerics", "f32"]);
    // Greedy or not: what the model says before the temperature.
    let fields = json!({"prompt": "the sea", "logprobs": 2, "temperature": 0});
    let greedy = complete(&server, fields.clone());
    let shown = &greedy["choices"][0]["logprobs"];
    let logprobs = numbers(&shown["token_logprobs"]);
    assert_eq!(logprobs.len(), 8, "{greedy}");
    for (at, logprob) in logprobs.iter().enumerate() {
        let top = shown["top_logprobs"][at].as_object().unwrap();
        let most = top
            .values()
            .map(|x| x.as_f64().unwrap())
            .fold(f64::MIN, f64::max);
        assert_eq!(most, *logprob, "{shown}");
    }
    let text: String = shown["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    assert_eq!(text, greedy["choices"][0]["text"], "{greedy}");
    // The prompt with its answer, scored: the same numbers, at the places of their texts.
    let whole = format!("the sea{text}");
    let scored = complete(
        &server,
        json!({"prompt": whole, "echo": true, "logprobs": 0, "max_tokens": 0}),
    );
    let choice = &scored["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!(whole), &json!("length"))
    );
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    let prompt = &choice["logprobs"];
    assert_eq!(prompt["token_logprobs"][0], Value::Null);
    let n = scored["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(prompt["tokens"].as_array().unwrap().len(), n);
    let at = numbers(&prompt["text_offset"])[n - 1] as usize;
    assert!(
        whole[at..].starts_with(prompt["tokens"][n - 1].as_str().unwrap()),
        "{prompt}"
    );
    if prompt["tokens"].as_array().unwrap()[n - 8..] == shown["tokens"].as_array().unwrap()[..] {
        let due = numbers(&json!(
            prompt["token_logprobs"].as_array().unwrap()[n - 8..]
        ));
        for (found, due) in logprobs.iter().zip(due) {
            assert!((found - due).abs() < 1e-4, "{found} {due}");
        }
    }
    // With the prompt before the answer, in one piece and as a stream.
    let echoed = with(fields, json!({"echo": true}));
    let echo = complete(&server, echoed.clone());
    assert_eq!(echo["choices"][0]["text"], format!("the sea{text}"));
    let body = with(
        json!({"model": "tiny-chat", "max_tokens": 8, "stream": true}),
        echoed,
    );
    let events = server
        .post("/v1/completions", &body.to_string(), "")
        .events();
    let joined = |field: &str| -> Vec<Value> {
        let lists = events
            .iter()
            .filter_map(|e| e["choices"][0]["logprobs"][field].as_array());
        lists.flatten().cloned().collect()
    };
    for field in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        assert_eq!(
            json!(joined(field)),
            echo["choices"][0]["logprobs"][field],
            "{field}"
        );
    }
    let text: String = events
        .iter()
        .filter_map(|e| e["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(json!(text), echo["choices"][0]["text"]);
}

/// Most tokens of this model are single bytes, which are no text alone.
#[test]
fn tokens_that_are_no_text_have_log_probabilities_of_their_own() {
    let server = Server::start(&["--numerics", "f32"]);
    let fields = json!({"prompt": "x\u{e4}\u{20ac}y", "echo": true, "logprobs": 20,
        "max_tokens": 0});
    let choice = complete(&server, fields)["choices"][0].clone();
    let shown = &choice["logprobs"];
    let spelled = [
        "x",
        "bytes:\\xc3",
        "bytes:\\xa4",
        "bytes:\\xe2",
        "bytes:\\x82",
        "bytes:\\xac",
        "y",
    ];
    assert_eq!(shown["tokens"], json!(spelled), "{choice}");
    assert_eq!(shown["text_offset"], json!([0, 1, 1, 2, 2, 2, 3]));
    let tops = shown["top_logprobs"].as_array().unwrap();
    let n_shown = tops[1..].iter().map(|top| top.as_object().unwrap().len());
    assert_eq!(n_shown.collect::<Vec<_>>(), [20; 6], "{shown}");

    let fields = json!({"messages": hello(), "max_tokens": 9, "logprobs": true,
        "top_logprobs": 20});
    let answer = server.chat(fields).json();
    for place in answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
    {
        for token in place["top_logprobs"].as_array().unwrap() {
            let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
            let expected = String::from_utf8(bytes.clone())
                .unwrap_or_else(|_| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect());
            assert_eq!(token["token"], expected, "{answer}");
        }
    }
}

#[test]
fn a_chat_shows_log_probabilities_too() {
    let server = Server::start(&["--numerics", "f32"]);
    let fields = json!({"messages": hello(), "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 3});
    let whole = server.chat(fields.clone()).json();
    let content = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(content.len(), 6, "{whole}");
    for token in &content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["logprob"]), (3, &token["logprob"]));
        assert_eq!(
            (&top[0]["token"], &top[0]["bytes"]),
            (&token["token"], &token["bytes"])
        );
    }
    let events = server.chat(with(fields, json!({"stream": true}))).events();
    let streamed = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array());
    // The cache holds the prompt now, so its products add in another order.
    let streamed: Vec<&Value> = streamed.flatten().collect();
    assert_eq!(streamed.len(), content.len());
    for (found, due) in streamed.iter().zip(&content) {
        assert_eq!(
            (&found["token"], &found["bytes"]),
            (&due["token"], &due["bytes"])
        );
        let number = |token: &Value| token["logprob"].as_f64().unwrap();
        assert!((number(found) - number(due)).abs() < 1e-4, "{found} {due}");
    }
    let none = server
        .chat(json!({"messages": hello(), "max_tokens": 2}))
        .json();
    assert_eq!(none["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn several_answers_and_prompts_come_in_order() {
    let server = Server::start(&["--numerics", "f32", "--slots", "3"]);
    let sampled = json!({"temperature": 1.5, "seed": 7, "max_tokens": 10});
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap();
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], index);
        }
        choices
            .iter()
            .map(|c| c["text"].as_str().unwrap().to_owned())
            .collect()
    };
    let together = complete(
        &server,
        with(
            sampled.clone(),
            json!({"prompt": ["the sea", "sky"], "n": 3}),
        ),
    );
    let found = texts(&together);
    assert_eq!(found.len(), 6);
    let mut due = Vec::new();
    let mut n_prompt = 0;
    for prompt in [json!("the sea"), json!("sky")] {
        for seed in [7, 8, 9] {
            let one = complete(
                &server,
                with(sampled.clone(), json!({"prompt": prompt, "seed": seed})),
            );
            due.extend(texts(&one));
            n_prompt += one["usage"]["prompt_tokens"].as_u64().unwrap();
        }
    }
    assert_eq!(found, due);
    assert_ne!(found[0], found[1]);
    // The tokens of a prompt count once.
    assert_eq!(together["usage"]["prompt_tokens"], n_prompt / 3);
    let n_tokens: usize = together["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    assert!(n_tokens > 30 && n_tokens <= 60, "{together}");
    let chat = json!({"messages": hello(), "n": 2, "stream": true, "temperature": 0, "max_tokens": 5,
        "stream_options": {"include_usage": true}});
    let events = server.chat(chat).events();
    for index in 0..2 {
        let own = events.iter().filter(|e| e["choices"][0]["index"] == index);
        let ends = own.filter(|e| e["choices"][0]["finish_reason"] == "length");
        assert_eq!(ends.count(), 1, "{events:?}");
    }
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 10);
    assert_eq!(server.n_requests(), 0);
    let many = json!({"messages": hello(), "n": 100});
    server
        .chat(many)
        .refused(400, "invalid_request_error", json!("n"));
    assert_eq!(server.n_requests(), 0);
}

#[test]
fn fields_of_sampling_change_the_answer() {
    let server = Server::start(&["--numerics", "f32"]);
    let text = |fields: Value| {
        let fields = with(json!({"prompt": "the sea", "temperature": 0}), fields);
        complete(&server, fields)["choices"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let plain = text(json!({}));
    // A bias of 100 makes one token certain; -100 excludes it.
    let id = server.post(
        "/v1/completions",
        &json!({"model": "tiny-chat", "prompt": "the sea", "max_tokens": 1, "temperature": 0,
            "logit_bias": {"70": 100}})
        .to_string(),
        "",
    );
    let forced = id.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let biased = text(json!({"logit_bias": {"70": 100}}));
    assert_eq!(biased, forced.repeat(8));
    assert_ne!(biased, plain);
    // DRY ends the repetition of a token, within a bias that is no longer certain.
    let dry =
        text(json!({"logit_bias": {"70": 100}, "dry_multiplier": 20, "dry_allowed_length": 1}));
    assert_ne!(dry, biased);
    for (name, value) in [
        ("typical_p", json!(0.1)),
        ("xtc_probability", json!(1.0)),
        ("mirostat", json!(2)),
        ("repetition_penalty", json!(1.8)),
    ] {
        let fields = json!({"prompt": "the sea", "temperature": 1.5, "seed": 3, "max_tokens": 24,
            "xtc_threshold": 0.01, "mirostat_tau": 1.0});
        let without = complete(&server, fields.clone());
        let found = complete(&server, with(fields, json!({name: value})));
        assert_ne!(
            found["choices"][0]["text"], without["choices"][0]["text"],
            "{name}"
        );
    }
    // Every token ends the answer, but not before the minimum.
    let ends: Vec<u32> = (0..282).collect();
    let answer = |fields: Value| {
        let fields = with(
            json!({"prompt": "the sea", "stop_token_ids": ends, "temperature": 0}),
            fields,
        );
        complete(&server, fields)["choices"][0]["text"].clone()
    };
    assert_eq!(answer(json!({})), "");
    let barred: Vec<u32> = (0..280).collect();
    let fields = json!({"stop_token_ids": barred, "min_tokens": 3, "prompt": "the sea"});
    let found = complete(&server, fields);
    assert!(
        found["usage"]["completion_tokens"].as_u64().unwrap() >= 3,
        "{found}"
    );
}

#[test]
fn answers_have_the_form_that_was_asked_for() {
    let server = Server::start(&["--numerics", "f32"]);
    let schema = json!({
        "type": "object",
        "properties": {
            "color": {"enum": ["red", "green"]},
            "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99},
                "minItems": 1, "maxItems": 3},
            "ok": {"type": "boolean"},
        },
        "required": ["color", "sizes", "ok"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    for seed in 0..6 {
        let fields = json!({"messages": hello(), "seed": seed, "temperature": 1.5, "max_tokens": 200,
            "response_format": format});
        let answer = server.chat(fields.clone()).json();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["color", "sizes", "ok"], "{text}");
        assert!(
            value["color"] == "red" || value["color"] == "green",
            "{text}"
        );
        assert!(
            (1..=3).contains(&value["sizes"].as_array().unwrap().len()),
            "{text}"
        );
        assert!(value["ok"].is_boolean(), "{text}");
        let events = server.chat(with(fields, json!({"stream": true}))).events();
        let streamed: String = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(streamed, text);
    }
    let ask = |structure: Value| {
        let fields = json!({"prompt": "x", "temperature": 1.5, "seed": 1, "max_tokens": 100,
            "structured_outputs": structure});
        complete(&server, fields)["choices"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let text = ask(json!({"regex": "[0-9]{4}-(a|b)"}));
    assert!(
        text.len() == 6 && text[..4].bytes().all(|b| b.is_ascii_digit()),
        "{text}"
    );
    assert!(["yes", "no"].contains(&ask(json!({"choice": ["yes", "no"]})).as_str()));
    assert_eq!(
        ask(json!({"grammar": "start: \"a\" b\nb: \"c\" | \"c\""})),
        "ac"
    );
    assert_eq!(ask(json!({"json": "{\"const\": [1, 2]}"})), "[1, 2]");
    let any = server
        .chat(
            json!({"messages": hello(), "response_format": {"type": "json_object"},
        "temperature": 1.5, "seed": 2, "max_tokens": 300}),
        )
        .json();
    let content = any["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.starts_with('{'), "{any}");
}

/// The tiny language model with a template that knows tools and thoughts.
pub fn with_tools(folder: &std::path::Path) -> PathBuf {
    with_template(
        folder,
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
         {% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{{ m.name or '' }}{{ m.reasoning_content or '' }}{{ m.content }}\
         {% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>{% endfor %}\
         {{ '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}\
         {% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}",
    )
}

/// The tiny language model with another chat template.
pub fn with_template(folder: &std::path::Path, template: &str) -> PathBuf {
    let model = folder.join("tiny-chat");
    std::fs::create_dir(&model).unwrap();
    for name in ["model.safetensors", "tokenizer.json"] {
        std::fs::copy(chat_folder().join(name), model.join(name)).unwrap();
    }
    let config = std::fs::read(chat_folder().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["max_position_embeddings"] = json!(2048);
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    let config = std::fs::read(chat_folder().join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["chat_template"] = json!(template);
    std::fs::write(model.join("tokenizer_config.json"), config.to_string()).unwrap();
    model
}

pub fn weather() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "description": "Rain?", "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer",
            "minimum": 1, "maximum": 9}}, "required": ["city", "days"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "ping"}},
    ])
}

#[test]
fn tools_are_called_when_they_must_be() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_models(&[with_tools(folder.path())], &["--numerics", "f32"], &[]);
    let base =
        json!({"messages": hello(), "tools": weather(), "temperature": 1.2, "max_tokens": 200});
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for seed in 0..4 {
        let fields = with(base.clone(), json!({"tool_choice": named, "seed": seed}));
        let answer = server.chat(fields.clone()).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        assert_eq!(choice["message"]["content"], Value::Null, "{answer}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{answer}");
        let function = &calls[0]["function"];
        assert_eq!(function["name"], "weather");
        let arguments: Value =
            serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert!(
            arguments["city"] == "Rome" || arguments["city"] == "Oslo",
            "{arguments}"
        );
        assert!(
            (1..=9).contains(&arguments["days"].as_i64().unwrap()),
            "{arguments}"
        );
        let events = server.chat(with(fields, json!({"stream": true}))).events();
        let deltas: Vec<&Value> = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"].get("tool_calls"))
            .collect();
        assert_eq!(deltas.len(), 1, "{events:?}");
        assert_eq!(
            (&deltas[0][0]["index"], &deltas[0][0]["function"]),
            (&json!(0), function)
        );
        assert_eq!(
            events.last().unwrap()["choices"][0]["finish_reason"],
            "tool_calls"
        );
    }
    let required = json!({"tool_choice": "required", "parallel_tool_calls": false, "seed": 1});
    let answer = server.chat(with(base, required)).json();
    assert_eq!(
        answer["choices"][0]["message"]["tool_calls"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn the_template_is_told_of_tools_calls_and_results() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_models(&[with_tools(folder.path())], &["--numerics", "f32"], &[]);
    let n_prompt = |fields: Value| {
        let answer = server.chat(with(json!({"max_tokens": 1}), fields)).json();
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = n_prompt(json!({"messages": hello()}));
    assert!(n_prompt(json!({"messages": hello(), "tools": weather()})) > plain + 50);
    let untold = json!({"messages": hello(), "tools": weather(), "tool_choice": "none"});
    assert_eq!(n_prompt(untold), plain);
    let talk = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "ping", "arguments": "{\"x\": 1}"}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]);
    assert!(n_prompt(json!({"messages": talk})) > plain + 20);
    let named = |role: &str| json!([{"role": role, "content": "hello", "name": "Ann Elliot"}]);
    for role in ["system", "developer", "user", "assistant"] {
        let unnamed = json!([{"role": role, "content": "hello"}]);
        let n_unnamed = n_prompt(json!({"messages": unnamed}));
        assert!(
            n_prompt(json!({"messages": named(role)})) > n_unnamed,
            "{role}"
        );
    }
    // What asks for nothing changes nothing.
    let neutral = json!({"functions": [], "function_call": "none", "verbosity": "medium",
        "reasoning_effort": "none"});
    assert_eq!(n_prompt(with(json!({"messages": hello()}), neutral)), plain);
    for (fields, said) in [
        (
            json!({"function_call": "f"}),
            "`function_call`: expected \"none\" or \"auto\", found \"f\"",
        ),
        (
            json!({"verbosity": "low"}),
            "`verbosity`: expected \"medium\", found \"low\"",
        ),
        (
            json!({"reasoning_effort": "high"}),
            "`reasoning_effort`: expected none, because the chat template of the model has no",
        ),
    ] {
        let answer = server.chat(with(json!({"messages": hello()}), fields));
        assert_eq!(answer.status, 400);
        let message = answer.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.starts_with(said), "{message}");
    }
    for (tools, said) in [
        (
            json!([{"type": "web_search"}]),
            "`tools[0].type`: expected function",
        ),
        (
            json!([{"type": "function", "function": {"name": "a b"}}]),
            "1 to 64 letters",
        ),
    ] {
        let answer = server.chat(json!({"messages": hello(), "tools": tools}));
        assert_eq!(answer.status, 400);
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn thoughts_are_no_part_of_the_content() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_models(&[with_tools(folder.path())], &["--numerics", "f32"], &[]);
    let thinking = json!({"messages": hello(), "max_tokens": 12, "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": true}});
    // The model never ends its thoughts, so all of its answer is one.
    let answer = server.chat(thinking.clone()).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "", "{answer}");
    let thoughts = message["reasoning_content"].as_str().unwrap();
    assert!(!thoughts.is_empty());
    let events = server
        .chat(with(thinking.clone(), json!({"stream": true})))
        .events();
    let streamed: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str())
        .collect();
    assert_eq!(streamed, thoughts);
    // What has a form has no thoughts.
    let form = json!({"chat_template_kwargs": null, "response_format": {"type": "json_schema",
        "json_schema": {"name": "x", "schema": {"const": 5}}}});
    let answer = server.chat(with(thinking, form)).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "5", "{answer}");
}
