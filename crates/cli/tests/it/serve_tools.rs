//! Tools, thoughts and log probabilities in Anthropic's API, Ollama's and that of responses. What
//! the model is told must be what the same conversation tells it in OpenAI's chats.

use serde_json::{Value, json};

use crate::serve_client::{Server, named_events, with};
use crate::serve_openai::{weather, with_tools};

pub fn start() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let models = [with_tools(folder.path())];
    let server = Server::of_models(&models, &["--numerics", "f32"], &[]);
    (folder, server)
}

pub fn hello() -> Value {
    json!([{"role": "user", "content": "hello"}])
}

pub fn post(server: &Server, path: &str, fields: Value) -> Value {
    let body = with(json!({"model": "tiny-chat"}), fields);
    let answer = server.post(path, &body.to_string(), "");
    let status = answer.status;
    let found = answer.json();
    assert_eq!(status, 200, "{found}");
    found
}

fn stream(server: &Server, path: &str, fields: Value) -> Vec<Value> {
    let body = with(json!({"model": "tiny-chat", "stream": true}), fields);
    named_events(server.post(path, &body.to_string(), ""))
}

/// What a request is refused with.
fn refusal(server: &Server, path: &str, fields: Value) -> String {
    let body = with(json!({"model": "tiny-chat"}), fields);
    let answer = server.post(path, &body.to_string(), "");
    let status = answer.status;
    let found = answer.json();
    assert_eq!(status, 400, "{found}");
    let error = &found["error"];
    error["message"]
        .as_str()
        .or(error.as_str())
        .unwrap()
        .to_owned()
}

/// Tokens of the prompt of a chat.
fn n_of_chat(server: &Server, fields: Value) -> u64 {
    let answer = server.chat(with(json!({"max_tokens": 1}), fields)).json();
    answer["usage"]["prompt_tokens"].as_u64().unwrap()
}

/// The conversation of all tests: a thought, a call and its result.
fn talk() -> Value {
    json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "so", "reasoning_content": "a rainy day?", "tool_calls": [{
            "id": "c1", "type": "function",
            "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\", \"days\": 2}"},
        }]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "user", "content": "and then?"},
    ])
}

pub fn assert_weather(arguments: &Value) {
    let city = &arguments["city"];
    assert!(city == "Rome" || city == "Oslo", "{arguments}");
    let days = arguments["days"].as_i64().unwrap();
    assert!((1..=9).contains(&days), "{arguments}");
}

/// The tools as Anthropic's API has them.
pub fn anthropic_tools() -> Value {
    let tools = weather();
    let function = &tools[0]["function"];
    json!([
        {"name": "weather", "description": "Rain?", "input_schema": function["parameters"]},
        {"name": "ping", "input_schema": {"type": "object"}},
    ])
}

#[test]
fn anthropic_messages_call_tools() {
    let (_folder, server) = start();
    let base = json!({"messages": hello(), "tools": anthropic_tools(), "max_tokens": 200,
        "temperature": 1.2});
    let named = json!({"tool_choice": {"type": "tool", "name": "weather"}});
    let answer = post(&server, "/v1/messages", with(base.clone(), named.clone()));
    let blocks = answer["content"].as_array().unwrap();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    assert_eq!((blocks.len(), &blocks[0]["type"]), (1, &json!("tool_use")));
    assert_eq!(blocks[0]["name"], "weather");
    assert!(blocks[0]["id"].as_str().unwrap().starts_with("toolu_"));
    assert_weather(&blocks[0]["input"]);

    let events = stream(&server, "/v1/messages", with(base.clone(), named));
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    let due = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds, due, "{events:?}");
    assert_eq!(events[1]["content_block"]["input"], json!({}));
    assert_eq!(events[2]["delta"]["type"], "input_json_delta");
    let partial = events[2]["delta"]["partial_json"].as_str().unwrap();
    assert_weather(&serde_json::from_str(partial).unwrap());
    assert_eq!(events[4]["delta"]["stop_reason"], "tool_use");

    let any = json!({"tool_choice": {"type": "any", "disable_parallel_tool_use": true}});
    let answer = post(&server, "/v1/messages", with(base, any));
    assert_eq!(answer["content"].as_array().unwrap().len(), 1, "{answer}");
}

#[test]
fn anthropic_messages_tell_the_model_what_chats_do() {
    let (_folder, server) = start();
    let count = |fields: Value| {
        let counted = post(&server, "/v1/messages/count_tokens", fields);
        counted["input_tokens"].as_u64().unwrap()
    };
    let plain = n_of_chat(&server, json!({"messages": hello()}));
    let told = n_of_chat(&server, json!({"messages": hello(), "tools": weather()}));
    let tools = anthropic_tools();
    let mut tools = tools.as_array().unwrap().clone();
    tools[1].as_object_mut().unwrap().remove("input_schema");
    assert_eq!(count(json!({"messages": hello(), "tools": tools})), told);
    let untold = json!({"messages": hello(), "tools": tools, "tool_choice": {"type": "none"}});
    assert_eq!(count(untold), plain);
    // Examples are told as those of the schema.
    let mut shown = tools.clone();
    shown[0]["allowed_callers"] = json!(["direct"]);
    assert_eq!(count(json!({"messages": hello(), "tools": shown})), told);
    let examples = json!([{"city": "Oslo", "days": 1}]);
    shown[0]["input_examples"] = examples.clone();
    let mut functions = weather();
    functions[0]["function"]["parameters"]["examples"] = examples;
    let told = n_of_chat(&server, json!({"messages": hello(), "tools": functions}));
    assert_eq!(count(json!({"messages": hello(), "tools": shown})), told);
    let blocks = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "a rainy day?", "signature": "x"},
            {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo", "days": 2}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "is_error": false,
                "content": [{"type": "text", "text": "rain"}]},
            {"type": "text", "text": "and then?"},
        ]},
    ]);
    assert_eq!(
        count(json!({"messages": blocks})),
        n_of_chat(&server, json!({"messages": talk()}))
    );
}

#[test]
fn anthropic_thoughts_are_blocks() {
    let (_folder, server) = start();
    let chat = server.chat(
        json!({"messages": hello(), "max_tokens": 12, "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": true}}),
    );
    let thoughts = chat.json()["choices"][0]["message"]["reasoning_content"].clone();
    let base = json!({"messages": hello(), "max_tokens": 12, "temperature": 0});
    let thinking = with(base.clone(), json!({"thinking": {"type": "adaptive"}}));
    let answer = post(&server, "/v1/messages", thinking.clone());
    let block = json!({"type": "thinking", "thinking": thoughts, "signature": ""});
    assert_eq!(answer["content"], json!([block]), "{answer}");
    assert_eq!(answer["stop_reason"], "max_tokens");
    let events = stream(&server, "/v1/messages", thinking.clone());
    let pieces = events
        .iter()
        .filter_map(|e| e["delta"]["thinking"].as_str());
    assert_eq!(json!(pieces.collect::<String>()), thoughts);
    assert_eq!(events[1]["content_block"]["type"], "thinking");
    let hidden = json!({"thinking": {"type": "adaptive", "display": "omitted"}});
    let answer = post(&server, "/v1/messages", with(base.clone(), hidden.clone()));
    assert_eq!(answer["content"][0]["thinking"], "", "{answer}");
    let events = stream(&server, "/v1/messages", with(base.clone(), hidden));
    assert!(
        events.iter().all(|e| e["delta"]["thinking"].is_null()),
        "{events:?}"
    );
    // Who does not ask for thoughts gets none.
    let answer = post(&server, "/v1/messages", base.clone());
    assert_eq!(answer["content"][0]["type"], "text", "{answer}");
}

#[test]
fn anthropic_answers_can_be_begun() {
    let (_folder, server) = start();
    let prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nthe se";
    let body = json!({"prompt": prompt, "max_tokens": 9, "temperature": 0});
    let due = post(&server, "/v1/completions", body)["choices"][0]["text"].clone();
    let begun = json!([{"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "text", "text": "the se"}]}]);
    let fields = json!({"messages": begun, "max_tokens": 9, "temperature": 0});
    let answer = post(&server, "/v1/messages", fields.clone());
    assert_eq!(answer["content"][0]["text"], due, "{answer}");
    let n = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
    assert!(answer["usage"]["input_tokens"].as_u64().unwrap() > 0, "{n}");
    let thinks = with(fields, json!({"thinking": {"type": "adaptive"}}));
    let said = refusal(&server, "/v1/messages", thinks);
    assert!(
        said.contains("no thoughts where the client begins the answer"),
        "{said}"
    );
}

#[test]
fn anthropic_refuses_tools_by_place() {
    let (_folder, server) = start();
    let result = json!({"type": "tool_result", "tool_use_id": "c9", "content": "x"});
    let call = json!({"type": "tool_use", "id": "c1", "name": "f", "input": "{}"});
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    for (fields, said) in [
        (
            json!({"messages": [{"role": "user", "content": [result]}]}),
            "`messages`: expected results of calls that come before them, found a result for `c9`",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [call]}, {"role": "user", "content": "x"}]}),
            "`messages[0].content[0].input`: invalid type: string",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c1", "name": "f", "input": {}}]}]}),
            "found other blocks: calls of tools need their results behind them",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}),
            "`messages[0].content[0].type`: expected text, found `tool_use`",
        ),
        (
            json!({"messages": hello(), "tools": [tool, tool]}),
            "`tools[1]`: expected tools with different names, found `f` twice",
        ),
        (
            json!({"messages": hello(), "tools": [{"type": "bash_20250124", "name": "bash"}]}),
            "`tools[0].type`: expected custom, found bash_20250124",
        ),
        (
            json!({"messages": hello(), "tools": [with(tool.clone(), json!({"defer_loading": true}))]}),
            "`tools[0].defer_loading`: expected false, found true",
        ),
        (
            json!({"messages": hello(), "tools": [with(tool.clone(), json!({"allowed_callers": ["x"]}))]}),
            "`tools[0].allowed_callers`: expected [\"direct\"], found a list",
        ),
        (
            json!({"messages": hello(), "thread": {"type": "create"}}),
            "the field `thread` is not supported: send all messages with each request",
        ),
        (
            json!({"messages": hello(), "tools": [tool], "tool_choice": {"type": "tool", "name": "g"}}),
            "`tool_choice`: expected a tool of `tools`, found `g`",
        ),
        (
            json!({"messages": hello(), "thinking": {"type": "enabled", "budget_tokens": 3}}),
            "`thinking.budget_tokens`: expected at least 1024",
        ),
    ] {
        let found = refusal(
            &server,
            "/v1/messages",
            with(json!({"max_tokens": 4}), fields),
        );
        assert!(found.contains(said), "{found}");
    }
    assert_eq!(server.n_requests(), 0);
}

/// The tools as responses have them.
pub fn response_tools() -> Value {
    let tools = weather();
    let parameters = &tools[0]["function"]["parameters"];
    json!([
        {"type": "function", "name": "weather", "description": "Rain?", "parameters": parameters,
            "strict": true},
        {"type": "function", "name": "ping", "parameters": null, "strict": null},
    ])
}

#[test]
fn responses_call_functions_and_go_on_with_their_outputs() {
    let (_folder, server) = start();
    let named = json!({"type": "function", "name": "weather"});
    let fields = json!({"input": "hello", "tools": response_tools(), "tool_choice": named,
        "temperature": 1.2});
    let answer = post(&server, "/v1/responses", fields.clone());
    assert_eq!(answer["status"], "completed", "{answer}");
    let items = answer["output"].as_array().unwrap();
    assert_eq!(
        (items.len(), &items[0]["type"]),
        (1, &json!("function_call"))
    );
    let arguments = items[0]["arguments"].as_str().unwrap();
    assert_weather(&serde_json::from_str(arguments).unwrap());
    assert_eq!(
        (&answer["tools"], &answer["tool_choice"]),
        (&response_tools(), &named)
    );

    // With the output of the call, as a response that goes on, and as a list of items.
    let output =
        json!({"type": "function_call_output", "call_id": items[0]["call_id"], "output": "rain"});
    let next = json!({"previous_response_id": answer["id"], "input": [output],
        "max_output_tokens": 4});
    let kept = post(&server, "/v1/responses", next);
    let list = json!({"input": [{"role": "user", "content": "hello"}, items[0], output],
        "max_output_tokens": 4});
    let listed = post(&server, "/v1/responses", list);
    assert_eq!(
        kept["usage"]["input_tokens"],
        listed["usage"]["input_tokens"]
    );
    // A call that is kept can be named instead of repeated.
    let reference = json!({"type": "item_reference", "id": items[0]["id"]});
    let named = json!({"input": [{"role": "user", "content": "hello"}, reference, output]});
    let counted = post(&server, "/v1/responses/input_tokens", named);
    let n = &kept["usage"]["input_tokens"];
    assert_eq!(
        counted,
        json!({"object": "response.input_tokens", "input_tokens": n})
    );
    let talk = json!([{"role": "user", "content": "hello"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "weather", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"}]);
    assert_eq!(
        kept["usage"]["input_tokens"],
        n_of_chat(&server, json!({"messages": talk}))
    );

    let events = stream(&server, "/v1/responses", fields);
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    let due = [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    .map(|name| format!("response.{name}"));
    assert_eq!(kinds, due);
    let numbers: Vec<&Value> = events.iter().map(|e| &e["sequence_number"]).collect();
    assert_eq!(json!(numbers), json!([0, 1, 2, 3, 4, 5, 6]));
    assert_eq!(events[3]["item_id"], events[2]["item"]["id"]);
    assert_eq!(events[6]["response"]["output"][0], events[5]["item"]);
}

#[test]
fn responses_tell_the_model_what_chats_do() {
    let (_folder, server) = start();
    let n = |fields: Value| {
        let answer = post(
            &server,
            "/v1/responses",
            with(json!({"max_output_tokens": 1}), fields),
        );
        answer["usage"]["input_tokens"].as_u64().unwrap()
    };
    let told = n_of_chat(&server, json!({"messages": hello(), "tools": weather()}));
    assert_eq!(
        n(json!({"input": "hello", "tools": response_tools()})),
        told
    );
    let untold = json!({"input": "hello", "tools": response_tools(), "tool_choice": "none"});
    assert_eq!(n(untold), n_of_chat(&server, json!({"messages": hello()})));
    let items = json!([
        {"role": "user", "content": "hello"},
        {"type": "reasoning", "id": "rs_1", "summary": [],
            "content": [{"type": "reasoning_text", "text": "a rainy day?"}]},
        {"role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "c1", "name": "weather",
            "arguments": "{\"city\": \"Oslo\", \"days\": 2}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"role": "user", "content": "and then?"},
    ]);
    assert_eq!(
        n(json!({"input": items})),
        n_of_chat(&server, json!({"messages": talk()}))
    );
    for (fields, said) in [
        (
            json!({"input": [{"type": "function_call_output", "call_id": "c9", "output": "x"}]}),
            "`input`: expected results of calls that come before them, found a result for `c9`",
        ),
        (
            json!({"input": "x", "tools": [{"type": "web_search"}]}),
            "`tools[0].type`: expected function, found web_search",
        ),
        (
            json!({"input": "x", "reasoning": {"effort": "high"}}),
            "`reasoning.effort`: expected none, because the chat template",
        ),
        (
            json!({"input": "x", "reasoning": {"summary": "auto"}}),
            "the field `reasoning.summary` is not supported",
        ),
        (
            json!({"input": "x", "include": ["file_search_call.results"]}),
            "`include`: expected message.output_text.logprobs, found `file_search_call.results`",
        ),
        (
            json!({"input": "x", "top_logprobs": 3}),
            "`top_logprobs` needs `include`",
        ),
    ] {
        let found = refusal(&server, "/v1/responses", fields);
        assert!(found.contains(said), "{found}");
    }
}

#[test]
fn responses_show_log_probabilities_of_the_text() {
    let (_folder, server) = start();
    let chat = json!({"messages": hello(), "max_tokens": 6, "temperature": 0, "logprobs": true,
        "top_logprobs": 2});
    let due = server.chat(chat).json()["choices"][0]["logprobs"]["content"].clone();
    let fields = json!({"input": "hello", "max_output_tokens": 6, "temperature": 0,
        "include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let answer = post(&server, "/v1/responses", fields.clone());
    let shown = &answer["output"][0]["content"][0]["logprobs"];
    let tokens = |list: &Value| -> Vec<Value> {
        let list = list.as_array().unwrap().iter();
        list.map(|t| {
            json!([
                t["token"],
                t["bytes"],
                t["top_logprobs"].as_array().unwrap().len()
            ])
        })
        .collect()
    };
    assert_eq!(tokens(shown), tokens(&due), "{answer}");
    let events = stream(&server, "/v1/responses", fields);
    let deltas = events
        .iter()
        .filter(|e| e["type"] == "response.output_text.delta");
    let streamed: Vec<Value> = deltas.flat_map(|e| tokens(&e["logprobs"])).collect();
    assert_eq!(streamed, tokens(&due));
    let done = events
        .iter()
        .find(|e| e["type"] == "response.output_text.done")
        .unwrap();
    assert_eq!(tokens(&done["logprobs"]), streamed);
}

#[test]
fn ollama_shows_thoughts_and_log_probabilities() {
    let (_folder, server) = start();
    let base = json!({"messages": hello(), "stream": false,
        "options": {"temperature": 0, "num_predict": 12}});
    let chat = server.chat(
        json!({"messages": hello(), "max_tokens": 12, "temperature": 0,
        "logprobs": true, "top_logprobs": 2, "chat_template_kwargs": {"enable_thinking": true}}),
    );
    let chat = chat.json()["choices"][0].clone();
    let thinking = json!({"think": true, "logprobs": true, "top_logprobs": 2});
    let answer = post(&server, "/api/chat", with(base.clone(), thinking.clone()));
    let message = json!({"role": "assistant", "content": "",
        "thinking": chat["message"]["reasoning_content"]});
    assert_eq!(answer["message"], message, "{answer}");
    let tokens = |list: &Value| -> Vec<Value> {
        let list = list.as_array().unwrap().iter();
        list.map(|t| t["token"].clone()).collect()
    };
    assert_eq!(
        tokens(&answer["logprobs"]),
        tokens(&chat["logprobs"]["content"])
    );
    assert_eq!(
        answer["logprobs"][0]["top_logprobs"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let body = with(
        with(json!({"model": "tiny-chat"}), base.clone()),
        thinking.clone(),
    );
    let body = with(body, json!({"stream": true}));
    let lines = server.post("/api/chat", &body.to_string(), "").text();
    let lines: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let streamed = lines
        .iter()
        .filter_map(|l| l["message"]["thinking"].as_str());
    assert_eq!(json!(streamed.collect::<String>()), message["thinking"]);
    let shown: Vec<Value> = lines
        .iter()
        .filter(|l| !l["logprobs"].is_null())
        .flat_map(|l| tokens(&l["logprobs"]))
        .collect();
    assert_eq!(shown, tokens(&answer["logprobs"]));
    let generate = json!({"prompt": "hello", "think": true, "stream": false,
        "options": {"temperature": 0, "num_predict": 12}});
    let answer = post(&server, "/api/generate", generate);
    assert_eq!(
        (&answer["thinking"], &answer["response"]),
        (&message["thinking"], &json!(""))
    );
    let shown = post(&server, "/api/show", json!({}));
    assert_eq!(
        shown["capabilities"],
        json!(["completion", "tools", "thinking"])
    );
}

#[test]
fn ollama_chats_tell_the_model_what_chats_do() {
    let (_folder, server) = start();
    let n = |fields: Value| {
        let one = json!({"stream": false, "options": {"num_predict": 1}});
        post(&server, "/api/chat", with(one, fields))["prompt_eval_count"]
            .as_u64()
            .unwrap()
    };
    let told = n_of_chat(&server, json!({"messages": hello(), "tools": weather()}));
    assert_eq!(n(json!({"messages": hello(), "tools": weather()})), told);
    let said = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "so", "thinking": "a rainy day?", "tool_calls": [
            {"function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2}}},
        ]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
        {"role": "user", "content": "and then?"},
    ]);
    let due = n_of_chat(&server, json!({"messages": talk()}));
    assert_eq!(n(json!({"messages": said})), due);
    // A result may name its call; it need not, where calls have no names.
    let mut named = said.clone();
    named[2] = json!({"role": "tool", "tool_call_id": "c1", "content": "rain"});
    named[1]["tool_calls"][0]["id"] = json!("c1");
    assert_eq!(n(json!({"messages": named})), due);
    let mut unnamed = said;
    unnamed[2]["tool_call_id"] = json!("c1");
    assert_eq!(n(json!({"messages": unnamed})), due);
    named[2]["tool_call_id"] = json!("c2");
    let found = refusal(&server, "/api/chat", json!({"messages": named}));
    assert!(found.contains("found a result for `c2`"), "{found}");
}

#[test]
fn ollama_chats_refuse_fields_by_place() {
    let (_folder, server) = start();
    let base = json!({"messages": hello(), "stream": false});
    for (fields, said) in [
        (
            json!({"think": "high"}),
            "`think`: expected true or false, found `high`",
        ),
        (
            json!({"top_logprobs": 2}),
            "`top_logprobs` needs `logprobs` to be true",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}),
            "`messages[0].tool_calls`: expected none for \"user\", found a list",
        ),
        (
            json!({"messages": [{"role": "tool", "tool_name": 5, "content": "x"}]}),
            "`messages[0].tool_name`: expected a string, found a number",
        ),
    ] {
        let found = refusal(&server, "/api/chat", with(base.clone(), fields));
        assert!(found.contains(said), "{found}");
    }
    let plain = Server::start(&[]);
    let found = refusal(&plain, "/api/chat", with(base, json!({"think": true})));
    assert!(
        found.contains("whose chat template has no thoughts"),
        "{found}"
    );
}

/// The arguments of a call are an object.
#[test]
fn tools_without_an_object_cannot_be_forced() {
    let (_folder, server) = start();
    for parameters in [
        json!({"type": "string"}),
        json!({"type": ["null", "array"]}),
        json!({"enum": [1, "a"]}),
        json!({"anyOf": [{"const": 1}, {"type": "object", "allOf": [{"type": "number"}]}]}),
    ] {
        let tools =
            json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
        let fields = json!({"messages": hello(), "tools": tools, "tool_choice": "required"});
        let said = refusal(&server, "/v1/chat/completions", fields);
        let expected = "`tool_choice`: expected forced tools whose parameters can be an object, \
                        found `f`, whose parameters cannot";
        assert_eq!(said, expected, "{parameters}");
    }
}
