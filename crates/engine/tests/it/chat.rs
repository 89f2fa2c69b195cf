//! Chat templates against jinja2, set up as transformers does it.

use crate::data;
use serde::Deserialize;
use std::collections::BTreeMap;
use thane_engine::text::{ChatTemplate, Message, TemplateError};

#[derive(Deserialize)]
struct Chat {
    now: i64,
    templates: BTreeMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

#[test]
fn templates_render_as_in_jinja2() {
    let chat: Chat = data::json("chat.json");
    let mut n_refused = 0;
    for case in &chat.cases {
        let template = ChatTemplate::new(&chat.templates[&case.name], "<s>", "</s>").unwrap().at(chat.now);
        let rendered = template.render(&case.messages, case.add_generation_prompt);
        match (rendered, &case.text) {
            (Ok(rendered), Some(text)) => assert_eq!(&rendered, text, "{} {:?}", case.name, case.messages),
            (Err(TemplateError::Refused(message)), None) => {
                assert_eq!(Some(&message), case.error.as_ref(), "{}", case.name);
                n_refused += 1;
            }
            (rendered, text) => panic!("{}: {rendered:?}, but jinja2 has {text:?}", case.name),
        }
    }
    assert!(chat.templates.contains_key("smollm2"));
    assert!(n_refused > 0);
}

#[test]
fn errors_say_what_is_wrong() {
    let messages = [Message::new("user", "hi")];
    let message = |source: &str| match ChatTemplate::new(source, "", "") {
        Ok(template) => template.render(&messages, true).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    let cases = [
        ("{{ raise_exception('No system role') }}", "the chat template refused the conversation: No system role"),
        ("a\n{% if x %}", "the chat template cannot be read: unexpected end of input, expected end of block (line 2)"),
        ("{{ nothing.x.y }}", "the chat template failed: undefined value (line 1)"),
        ("{{ x | no_such }}", "the chat template failed: unknown filter: filter no_such is unknown (line 1)"),
    ];
    for (source, expected) in cases {
        assert_eq!(message(source), expected, "{source}");
    }
    assert!(message("{{ strftime_now('%Q') }}").contains("'%Q' is not supported"));
}
