//! Long work shows how far it is on a terminal, and nothing in a pipe.

use crate::fixture::{Home, assert_ends, chat_gguf, stderr};
use crate::talk::{on_a_terminal, until};

#[test]
fn long_silent_work_shows_progress_on_terminals_only() {
    let (home, model) = (Home::new(), chat_gguf());
    let text = home.path("text");
    std::fs::write(&text, "the air and the sea ".repeat(20)).unwrap();
    let args = [
        "perplexity",
        model.to_str().unwrap(),
        "--file",
        text.to_str().unwrap(),
        "--numerics",
        "ane",
    ];
    let piped = home.run(&args);
    assert_ends(&piped, 0, &[]);
    assert_eq!(stderr(&piped), "");
    let Some(mut child) = on_a_terminal(&home, &args) else {
        return;
    };
    // The bar counts tokens, of all of them.
    let total = String::from_utf8(piped.stdout)
        .unwrap()
        .split_whitespace()
        .nth(2)
        .unwrap()
        .to_owned();
    until(&mut child, &format!("/{total} "));
    child.wait().unwrap();
    // One call of the program that takes long has no count, and says what it is at.
    let prompt = "the-sea-".repeat(40);
    let args = [
        "run",
        model.to_str().unwrap(),
        &prompt,
        "--numerics",
        "ane",
        "--max-tokens",
        "2",
    ];
    let piped = home.run(&args);
    assert_ends(&piped, 0, &[]);
    assert_eq!(
        stderr(&piped),
        "thane: the answer was cut after --max-tokens 2\n"
    );
}
