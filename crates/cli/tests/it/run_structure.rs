//! `thane run` with forms of answers and log probabilities.

use crate::fixture::{Home, assert_ends, chat_folder, json, stderr, stdout};

#[test]
fn an_answer_has_the_form_of_its_schema_or_grammar() {
    let (home, model) = (Home::new(), chat_folder());
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 1,
        "maximum": 50}, "s": {"enum": ["a", "b"]}}, "required": ["n", "s"],
        "additionalProperties": false}"#;
    std::fs::write(home.path("schema.json"), schema).unwrap();
    std::fs::write(home.path("digits.lark"), "start: /[0-9]{5}/ \"!\"").unwrap();
    let run = |flags: &[&str]| {
        let args = [
            "run",
            model.to_str().unwrap(),
            "hello",
            "--temperature",
            "1.5",
        ];
        home.run(&[&args[..], flags].concat())
    };
    let file = home.path("schema.json");
    for given in [schema, file.to_str().unwrap()] {
        let output = run(&["--json-schema", given]);
        assert_ends(&output, 0, &[]);
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!((1..=50).contains(&value["n"].as_i64().unwrap()), "{value}");
        assert!(value["s"] == "a" || value["s"] == "b", "{value}");
    }
    let lark = home.path("digits.lark");
    let output = run(&["--grammar", lark.to_str().unwrap(), "--json"]);
    assert_ends(&output, 0, &[]);
    let report = json(&output);
    let text = report["text"].as_str().unwrap();
    let (digits, end) = text.split_at(5);
    assert!(
        digits.bytes().all(|b| b.is_ascii_digit()) && end == "!",
        "{text}"
    );
    assert_eq!(report["finish_reason"], "stop");
    for (flags, said) in [
        (
            &["--json-schema", "{\"type\""][..],
            "expected a JSON schema",
        ),
        (&["--json-schema", "no-such-file"], "no-such-file"),
        (
            &["--json-schema", "{\"type\": \"thing\"}"],
            "the grammar: Invalid type: thing",
        ),
        (
            &["--json-schema", "{\"$ref\": \"#\"}"],
            "the grammar: expected a grammar that an answer can follow",
        ),
        (&["--grammar", "no-such-file"], "no-such-file"),
        (&["--logprobs", "2"], "--logprobs needs --json"),
    ] {
        let output = run(flags);
        assert_ends(&output, 2, &[]);
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn log_probabilities_are_printed_with_the_tokens() {
    let (home, model) = (Home::new(), chat_folder());
    let args = [
        "run",
        model.to_str().unwrap(),
        "hello",
        "--max-tokens",
        "5",
        "--json",
    ];
    let plain = json(&home.run(&args));
    assert!(plain["logprobs"].is_null());
    let found = json(&home.run(&[&args[..], &["--logprobs", "3"]].concat()));
    assert_eq!(found["tokens"], plain["tokens"]);
    let logprobs = found["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), found["tokens"].as_array().unwrap().len());
    for (logprob, token) in logprobs.iter().zip(found["tokens"].as_array().unwrap()) {
        assert_eq!(&logprob["token"], token);
        assert_eq!(logprob["top"].as_array().unwrap().len(), 3);
        // Greedy: the token is the likeliest.
        assert_eq!(&logprob["top"][0]["token"], token);
        assert_eq!(logprob["top"][0]["logprob"], logprob["logprob"]);
        assert!(logprob["logprob"].as_f64().unwrap() <= 0.0);
    }
}
