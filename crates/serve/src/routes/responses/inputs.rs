//! `GET /v1/responses/{id}/input_items`: what a response that is kept answered, page by page.

use axum::extract::{Path, RawQuery, State};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::super::Shared;
use super::items::reference;
use crate::body::refused;
use crate::error::{Answered, ApiError};
use crate::kept::{Kept, Responses};
use crate::written::json_answer;

/// Most items of a page.
const MAX_ITEMS: usize = 100;

/// A page of items.
#[derive(Serialize)]
struct Page<'k> {
    object: &'static str,
    data: Vec<&'k Value>,
    first_id: &'k Value,
    last_id: &'k Value,
    has_more: bool,
}

/// The items before an answer: those of the previous response with its output, then the input.
/// Items without an id get one that ends with `id`. `input` has been read as messages before.
pub(super) fn before_answer(
    previous: Option<&str>,
    input: &Value,
    kept: &Responses,
    id: &str,
) -> Vec<Value> {
    let previous = previous.and_then(|id| kept.get(id));
    let mut items = previous.map_or_else(Vec::new, |previous| {
        let items = previous.input.iter().chain(&previous.output);
        items.cloned().collect()
    });
    match input {
        Value::Array(list) => {
            for item in list.iter().filter_map(Value::as_object) {
                match reference(item, "input") {
                    Ok(Some(named)) => items.extend(kept.item(&named)),
                    _ => items.push(whole(item.clone(), items.len(), id)),
                }
            }
        }
        text => {
            let item = json!({"role": "user", "content": text});
            let item = item.as_object().cloned().unwrap_or_default();
            items.push(whole(item, items.len(), id));
        }
    }
    items
}

/// An item with the fields that clients may leave out.
fn whole(mut item: Map<String, Value>, at: usize, id: &str) -> Value {
    let kind = item.get("type").and_then(Value::as_str);
    let kind = kind.unwrap_or("message").to_owned();
    let mark = match kind.as_str() {
        "message" => "msg",
        "reasoning" => "rs",
        _ => "fc",
    };
    let mut set = |name: &str, value: Value| {
        if item.get(name).is_none_or(Value::is_null) {
            item.insert(name.to_owned(), value);
        }
    };
    set("type", kind.as_str().into());
    set("id", format!("{mark}_{id}_{at}").into());
    set("status", "completed".into());
    if kind == "reasoning" {
        set("summary", json!([]));
    }
    if kind == "message" {
        let is_answer = item.get("role").is_some_and(|role| role == "assistant");
        if let Some(text) = item.get("content").filter(|content| content.is_string()) {
            let part = match is_answer {
                true => json!({"type": "output_text", "text": text, "annotations": []}),
                false => json!({"type": "input_text", "text": text}),
            };
            item.insert("content".to_owned(), json!([part]));
        }
    }
    Value::Object(item)
}

/// What the query of the request asks for.
#[derive(Debug, PartialEq)]
struct Wish<'q> {
    after: Option<&'q str>,
    limit: usize,
    oldest_first: bool,
}

impl<'q> Wish<'q> {
    fn parse(query: &'q str) -> Result<Self, ApiError> {
        let mut wish = Self {
            after: None,
            limit: 20,
            oldest_first: false,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (name, value) {
                ("after", id) => wish.after = Some(id),
                ("limit", n) => {
                    let n = n.parse().ok().filter(|n| (1..=MAX_ITEMS).contains(n));
                    let wrong = || refused("limit", "1 to 100", format!("`{value}`"));
                    wish.limit = n.ok_or_else(wrong)?;
                }
                ("order", "asc") => wish.oldest_first = true,
                ("order", "desc") => wish.oldest_first = false,
                ("order", _) => {
                    return Err(refused("order", "asc or desc", format!("`{value}`")));
                }
                // Items are always given with all that the server has of them.
                ("include" | "include[]" | "include%5B%5D", _) => {}
                _ => {
                    let message = format!("the field `{name}` is not supported");
                    return Err(ApiError::field(name, message));
                }
            }
        }
        Ok(wish)
    }

    /// A page of the items of a response.
    fn page<'k>(&self, kept: &'k Kept) -> Result<Page<'k>, ApiError> {
        let mut items: Vec<&Value> = kept.input.iter().collect();
        if !self.oldest_first {
            items.reverse();
        }
        let start = match self.after {
            Some(id) => {
                let at = items.iter().position(|item| item["id"] == id);
                let wrong = || refused("after", "the id of an item", format!("`{id}`"));
                at.ok_or_else(wrong)? + 1
            }
            None => 0,
        };
        let rest = &items[start..];
        let page = &rest[..self.limit.min(rest.len())];
        let id = |item: Option<&&'k Value>| item.map_or(&Value::Null, |item| &item["id"]);
        Ok(Page {
            object: "list",
            data: page.to_vec(),
            first_id: id(page.first()),
            last_id: id(page.last()),
            has_more: page.len() < rest.len(),
        })
    }
}

pub(super) async fn list(
    State(app): Shared,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answered {
    let wish = Wish::parse(query.as_deref().unwrap_or_default())?;
    let kept = app
        .responses()
        .get(&id)
        .ok_or_else(|| super::unknown(&id))?;
    json_answer(&wish.page(&kept)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn items_are_those_of_all_turns() {
        let kept = Responses::default();
        let input = before_answer(None, &json!("hi"), &kept, "1");
        let first = json!({"type": "message", "role": "user", "id": "msg_1_0",
            "status": "completed", "content": [{"type": "input_text", "text": "hi"}]});
        assert_eq!(input, vec![first.clone()]);
        let call = json!({"type": "function_call", "id": "fc_9", "call_id": "a", "name": "f",
            "arguments": "{}", "status": "completed"});
        kept.keep(Kept {
            id: "resp_1".to_owned(),
            messages: Vec::new(),
            input,
            output: vec![call.clone()],
            response: Arc::default(),
        });
        let more = json!([
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"role": "assistant", "content": "well"},
            {"type": "item_reference", "id": "fc_9"},
        ]);
        let items = before_answer(Some("resp_1"), &more, &kept, "2");
        let ids: Vec<&str> = items.iter().filter_map(|i| i["id"].as_str()).collect();
        assert_eq!(ids, ["msg_1_0", "fc_9", "fc_2_2", "msg_2_3", "fc_9"]);
        assert_eq!((&items[0], &items[1]), (&first, &call));
        let part = json!({"type": "output_text", "text": "well", "annotations": []});
        assert_eq!(items[3]["content"], json!([part]));
    }

    #[test]
    fn pages_begin_with_the_newest() {
        let input: Vec<Value> = (0..5).map(|n| json!({"id": format!("i{n}")})).collect();
        let kept = Kept {
            id: "resp_1".to_owned(),
            messages: Vec::new(),
            input,
            output: Vec::new(),
            response: Arc::default(),
        };
        for (query, ids, has_more) in [
            ("", "i4 i3 i2 i1 i0", false),
            ("order=asc&limit=2", "i0 i1", true),
            ("limit=2&after=i3", "i2 i1", true),
            ("order=asc&after=i3&include%5B%5D=x", "i4", false),
            ("after=i0", "", false),
        ] {
            let page = json!(Wish::parse(query).unwrap().page(&kept).unwrap());
            let found = page["data"].as_array().unwrap().iter();
            let found: Vec<&str> = found.filter_map(|item| item["id"].as_str()).collect();
            assert_eq!(found.join(" "), ids, "{query}");
            assert_eq!(page["has_more"], has_more, "{query}");
            let last = found.last().map_or(Value::Null, |id| (*id).into());
            assert_eq!(page["last_id"], last, "{query}");
        }
        for (query, said) in [
            ("limit=0", "`limit`: expected 1 to 100, found `0`"),
            ("limit=101", "`limit`: expected 1 to 100, found `101`"),
            ("order=up", "`order`: expected asc or desc, found `up`"),
            ("before=i1", "the field `before` is not supported"),
            ("after=x", "`after`: expected the id of an item, found `x`"),
        ] {
            let page = Wish::parse(query).and_then(|wish| wish.page(&kept).map(|_| ()));
            assert_eq!(page.unwrap_err().message, said);
        }
    }
}
