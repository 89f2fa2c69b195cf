//! What the keys of `thane serve` have to themselves.

use serde_json::{Value, json};

use crate::fixture::{let_time_pass, until};
use crate::serve_client::{Answer, Server, with};

const KEYS: [&str; 4] = ["--api-key", "first", "--api-key", "second"];

fn header(key: &str) -> String {
    format!("Authorization: Bearer {key}\r\n")
}

/// The status and body of an answer in which `id` is written as a dash.
fn without(id: &str, answer: Answer) -> (u16, String) {
    (answer.status, answer.text().replace(id, "-"))
}

/// A request about a stored response: key, response id, item id.
type Way<'a> = &'a dyn Fn(&str, &str, &str) -> Answer;

#[test]
fn responses_are_those_of_the_key_that_made_them() {
    let server = Server::start(&KEYS);
    let create = |key: &str, fields: Value| {
        let body = with(
            json!({"model": "tiny-chat", "max_output_tokens": 2}),
            fields,
        );
        server.post("/v1/responses", &body.to_string(), &header(key))
    };
    let made: Vec<Value> = (0..3)
        .map(|n| create("first", json!({"input": format!("secret {n}")})).json())
        .collect();
    let ids: Vec<&str> = made
        .iter()
        .map(|made| made["id"].as_str().unwrap())
        .collect();
    for (n, id) in ids.iter().enumerate() {
        let digits = id.strip_prefix("resp_").unwrap();
        assert_eq!(digits.len(), 48, "{id}");
        assert!(digits.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        // Nothing of an id can be had by counting.
        assert!(
            ids[..n].iter().all(|other| other[5..13] != id[5..13]),
            "{ids:?}"
        );
    }
    let item = made[0]["output"][0]["id"].as_str().unwrap();
    let read = |key: &str, method: &str, path: String| {
        let (host, key) = (&server.address, header(key));
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{key}Connection: close\r\n\r\n");
        server.send(&head, "")
    };
    let ways: [Way<'_>; 6] = [
        &|key, id, _| read(key, "GET", format!("/v1/responses/{id}")),
        &|key, id, _| read(key, "GET", format!("/v1/responses/{id}/input_items")),
        &|key, id, _| create(key, json!({"previous_response_id": id, "input": "go on"})),
        &|key, id, _| {
            let body = json!({"model": "tiny-chat", "previous_response_id": id, "input": "go on"});
            let path = "/v1/responses/input_tokens";
            server.post(path, &body.to_string(), &header(key))
        },
        &|key, _, item| {
            let named = json!([{"type": "item_reference", "id": item},
                {"role": "user", "content": "go on"}]);
            create(key, json!({"input": named}))
        },
        &|key, id, _| read(key, "DELETE", format!("/v1/responses/{id}")),
    ];
    let (none, no_item) = (format!("resp_{}", "0".repeat(48)), "msg_0".to_owned());
    for (n, way) in ways.iter().enumerate() {
        let unknown = way("second", &none, &no_item);
        let unknown = without(&no_item, unknown);
        let unknown = (unknown.0, unknown.1.replace(&none, "-"));
        let foreign = without(item, way("second", ids[0], item));
        let foreign = (foreign.0, foreign.1.replace(ids[0], "-"));
        assert_eq!((foreign.0, &foreign), (404, &unknown), "way {n}");
        assert_eq!(way("first", ids[0], item).status, 200, "way {n}");
    }
    // What is gone is the one that was dropped.
    let status = |id: &str| read("first", "GET", format!("/v1/responses/{id}")).status;
    assert_eq!([status(ids[0]), status(ids[1])], [404, 200]);
}

/// Of a prompt that another key has asked, a key is told as much as of a new one.
#[test]
fn prompts_are_cached_for_the_key_that_asked() {
    let server = Server::start(&KEYS);
    let text = "the sea is deep and the air is thin ".repeat(8);
    let chat = |key: &str| {
        let messages = json!([{"role": "user", "content": text}]);
        let body = json!({"model": "tiny-chat", "messages": messages, "max_tokens": 1});
        let path = "/v1/chat/completions";
        let usage = server.post(path, &body.to_string(), &header(key)).json()["usage"].clone();
        let details = &usage["prompt_tokens_details"];
        details["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!([chat("first"), chat("second")], [0, 0]);
    assert!(chat("first") > 64 && chat("second") > 64);
    let message = |key: &str| {
        let text = format!("not that {text}");
        let messages = json!([{"role": "user", "content": text}]);
        let body = json!({"model": "tiny-chat", "messages": messages, "max_tokens": 1});
        let answer = server.post("/v1/messages", &body.to_string(), &header(key));
        let usage = answer.json()["usage"].clone();
        usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    let before = message("first");
    assert_eq!(message("second"), before, "what its own prompts begin with");
    assert!(message("first") > before + 64);
}

#[test]
fn a_key_keeps_models_loaded_and_takes_none_from_others() {
    let key = header("first");
    let asked = |keys: &[&str], given: Value| {
        let server = Server::start(&[keys, &["--keep-alive", "1h"]].concat());
        let ask = json!({"model": "tiny-chat", "keep_alive": given}).to_string();
        assert_eq!(server.post("/api/generate", &ask, &key).status, 200);
        server
    };
    let is_loaded = |server: &Server| {
        let row = server.get("/v1/models/tiny-chat", &key).json();
        row["loaded"].as_bool().unwrap()
    };
    let server = asked(&KEYS, json!(0));
    let_time_pass();
    assert!(is_loaded(&server));
    // One key is nobody's neighbor.
    let server = asked(&KEYS[..2], json!(0));
    until("the model is unloaded", || !is_loaded(&server));
}
