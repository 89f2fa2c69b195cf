//! Chat templates: read, and rendered for a short conversation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thane_engine::text::{ChatTemplate, Message};

fuzz_target!(|data: &[u8]| {
    thane_fuzz::pass_guarded_panics();
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(template) = ChatTemplate::new(text, "<s>", "</s>") else {
        return;
    };
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "Hello\n{{ 1 }} <s>"),
    ];
    for n in [1, 2] {
        // Whatever it says, it says it.
        let _ = std::hint::black_box(template.render(&messages[2 - n..], n == 2));
    }
});
