//! `/v1/responses` and `/openapi.json` of `thane serve`. `tests/oracle/check_serve.py` runs the
//! official client.

use serde_json::{Value, json};

use crate::serve::conversations;
use crate::serve_client::{Answer, Server, named_events, with};
use crate::serve_ollama::{assert_fits_schema, schema};

fn post(server: &Server, fields: Value) -> Answer {
    let body = with(json!({"model": "tiny-chat", "temperature": 0}), fields);
    server.post("/v1/responses", &body.to_string(), "")
}

fn text_of(response: &Value) -> &Value {
    &response["output"][0]["content"][0]["text"]
}

#[test]
fn answers_are_those_of_transformers_and_can_be_continued() {
    let server = Server::start(&["--numerics", "f32"]);
    let cases = conversations();
    let n_tokens = |case: &Value| case["tokens"].as_array().unwrap().len();
    let fields = json!({"input": "hello", "max_output_tokens": n_tokens(&cases[0])});
    let first = post(&server, fields).json();
    assert_eq!(*text_of(&first), cases[0]["text"], "{first}");
    assert_eq!(
        (&first["object"], &first["status"]),
        (&json!("response"), &json!("incomplete"))
    );
    assert_eq!(first["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(first["usage"]["output_tokens"], n_tokens(&cases[0]));
    assert_eq!(
        first["usage"]["input_tokens"],
        cases[0]["ids"].as_array().unwrap().len()
    );
    // The second conversation is the first one, continued.
    let next = json!({"previous_response_id": first["id"], "max_output_tokens": n_tokens(&cases[1]),
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "and the sea?"}]}]});
    let second = post(&server, next).json();
    assert_eq!(*text_of(&second), cases[1]["text"], "{second}");
    assert_eq!(second["previous_response_id"], first["id"]);
    // So is the list of what was said.
    let said = json!([{"role": "user", "content": "hello"}, first["output"][0],
        {"type": "message", "role": "user", "content": "and the sea?"}]);
    let listed = json!({"input": said, "max_output_tokens": n_tokens(&cases[1])});
    assert_eq!(
        text_of(&post(&server, listed.clone()).json()),
        text_of(&second)
    );
    // An item that is kept can be named, with or without its type.
    let id = &first["output"][0]["id"];
    for reference in [
        json!({"type": "item_reference", "id": id}),
        json!({"id": id}),
    ] {
        let mut named = listed.clone();
        named["input"][1] = reference;
        assert_eq!(text_of(&post(&server, named).json()), text_of(&second));
    }
    let unknown = json!([{"type": "item_reference", "id": "msg_1"}]);
    let refused = post(&server, json!({"input": unknown}));
    let message = refused.refused(404, "invalid_request_error", json!("input[0]"));
    assert!(
        message.starts_with("Item with id 'msg_1' not found"),
        "{message}"
    );
    let body = with(
        json!({"model": "tiny-chat"}),
        json!({"input": listed["input"]}),
    );
    let counted = server
        .post("/v1/responses/input_tokens", &body.to_string(), "")
        .json();
    assert_eq!(counted["input_tokens"], second["usage"]["input_tokens"]);
    // Instructions are a system prompt, and those of another request are not kept.
    let fields = json!({"instructions": "Be brief.", "input": "Why is the sky blue?",
        "max_output_tokens": n_tokens(&cases[2])});
    let third = post(&server, fields).json();
    assert_eq!(*text_of(&third), cases[2]["text"], "{third}");
}

#[test]
fn responses_that_are_kept_are_read_and_dropped() {
    let server = Server::start(&[]);
    let first = post(&server, json!({"input": "hello", "max_output_tokens": 4})).json();
    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    assert_eq!(server.get(&path, "").json(), first);
    assert_eq!(
        server.get(&format!("{path}?stream=false"), "").json(),
        first
    );
    let streamed = server.get(&format!("{path}?stream=true"), "");
    let message = streamed.refused(400, "invalid_request_error", json!("stream"));
    assert!(message.contains("comes in one piece"), "{message}");
    let host = &server.address;
    let delete = format!("DELETE {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    assert_eq!(server.send(&delete, "").json()["deleted"], true);
    let message = server
        .get(&path, "")
        .refused(404, "invalid_request_error", Value::Null);
    assert!(message.contains("a response that is kept"), "{message}");
    let next = json!({"previous_response_id": first["id"], "input": "and the sea?"});
    let gone = post(&server, next);
    let message = gone.refused(404, "invalid_request_error", json!("previous_response_id"));
    assert!(
        message.contains("expected the id of a response that is kept"),
        "{message}"
    );
    let fields = json!({"input": "hello", "store": false, "max_output_tokens": 1});
    let unkept = post(&server, fields).json();
    let path = format!("/v1/responses/{}", unkept["id"].as_str().unwrap());
    assert_eq!(server.get(&path, "").status, 404);
}

#[test]
fn events_come_in_order_and_hold_the_response() {
    let server = Server::start(&["--numerics", "f32"]);
    let case = &conversations()[0];
    let n_tokens = case["tokens"].as_array().unwrap().len();
    let fields = json!({"input": "hello", "max_output_tokens": n_tokens, "stream": true});
    let events = named_events(post(&server, fields));
    let numbers: Vec<u64> = events
        .iter()
        .map(|e| e["sequence_number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    let begin = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
    ];
    let end = [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ];
    let named = |names: [&str; 4]| names.map(|name| format!("response.{name}"));
    assert_eq!(kinds[..4], named(begin));
    assert_eq!(kinds[kinds.len() - 4..], named(end));
    let deltas = events[4..events.len() - 4].iter();
    let text: String = deltas
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(text, case["text"], "{kinds:?}");
    let last = &events[events.len() - 1]["response"];
    assert_eq!(*text_of(last), case["text"]);
    let path = format!("/v1/responses/{}", last["id"].as_str().unwrap());
    assert_eq!(
        server.get(&path, "").json(),
        *last,
        "a streamed response is kept too"
    );
}

#[test]
fn fields_are_refused_by_name() {
    let server = Server::start(&[]);
    for (name, value, said) in [
        ("input", Value::Null, "expected the field `input`"),
        ("input", json!([]), "at least one message"),
        ("tools", json!(5), "`tools`: invalid type"),
        (
            "conversation",
            json!("c"),
            "the field `conversation` is not supported",
        ),
        ("background", json!(true), "`background`: expected false"),
        (
            "text.verbosity",
            json!("low"),
            "`text.verbosity`: expected \"medium\", found \"low\"",
        ),
        (
            "text.format",
            json!({"type": "grammar"}),
            "`text.format`: unknown variant",
        ),
        ("model", json!("bert-mean"), "use /v1/embeddings"),
    ] {
        let given = match name.strip_prefix("text.") {
            Some(field) => json!({"text": {field: value}}),
            None => json!({name: value}),
        };
        let fields = with(json!({"input": "hello"}), given);
        let message = post(&server, fields).refused(400, "invalid_request_error", json!(name));
        assert!(message.contains(said), "{message}");
    }
    let search = json!([{"type": "web_search_call", "id": "c"}]);
    let refused = post(&server, json!({"input": search}));
    let message = refused.refused(400, "invalid_request_error", json!("input[0].type"));
    assert!(
        message.contains("expected message, function_call, function_call_output, reasoning or"),
        "{message}"
    );
}

#[test]
fn the_document_has_each_route_and_no_other() {
    let server = Server::start(&[]);
    let document = server.get("/openapi.json", "").json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 25, "{paths:?}");
    for (path, item) in paths {
        let path = path
            .replace("{id}", "tiny-chat")
            .replace("{path}", "bert-mean/info");
        for method in item.as_object().unwrap().keys() {
            let body = if method == "post" { "{}" } else { "" };
            let head = format!(
                "{} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n",
                method.to_uppercase(),
                server.address,
                body.len()
            );
            let answer = server.send(&head, body);
            let (status, text) = (answer.status, answer.text());
            let unserved = [
                "there is no such route",
                "the route does not take this method",
            ];
            assert!(
                unserved.iter().all(|said| !text.contains(said)),
                "{method} {path}: {text}"
            );
            assert!(status < 500, "{method} {path}: {text}");
        }
    }
    for (path, method) in [
        ("/v1/chat/completions", "post"),
        ("/v1/messages", "post"),
        ("/api/chat", "post"),
        ("/perplexity/v1/contextualizedembeddings", "post"),
        ("/embed", "post"),
        ("/v1/responses/{id}", "delete"),
    ] {
        assert!(paths[path][method]["summary"].is_string(), "{path}");
    }
    let required = &paths["/v1/messages"]["post"]["requestBody"]["content"];
    let required = &required["application/json"]["schema"]["required"];
    assert_eq!(*required, json!(["model", "messages", "max_tokens"]));
}

#[test]
fn answers_have_the_form_that_is_asked_for() {
    let server = Server::start(&[]);
    let format = json!({"type": "json_schema", "name": "sky", "schema": schema(), "strict": true});
    let fields = json!({"input": "hello", "text": {"format": format, "verbosity": "medium"}});
    let answer = post(&server, fields).json();
    assert_fits_schema(text_of(&answer));
    assert_eq!(answer["text"]["format"], format, "{answer}");
    let format = json!({"type": "json_schema", "schema": schema()});
    let hello = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "tiny-chat", "max_tokens": 100, "messages": hello,
        "output_config": {"format": format}});
    let answer = server.post("/v1/messages", &body.to_string(), "").json();
    assert_fits_schema(&answer["content"][0]["text"]);
    assert_eq!(answer["stop_reason"], "end_turn", "{answer}");
}
