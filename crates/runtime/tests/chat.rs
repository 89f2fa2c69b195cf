//! Thoughts and calls of tools in answers: the syntaxes of the families, whole and in pieces.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use thane_engine::choose::{Chooser, Grammar};
use thane_engine::sample::SampleOptions;
use thane_engine::text::{Tokenizer, TokenizerConfig};
use thane_models::chat::{CALL_SYNTAXES, CallSyntax, GENERIC_CALLS, THOUGHT_SYNTAXES};
use thane_runtime::chat::{AnswerParser, ChatSyntax, Part, Tool, ToolCall};
use thane_runtime::{GrammarSource, Grammars};

const N_VOCAB: usize = 282;

fn tokenizer() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-chat");
    let json = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let config = std::fs::read(folder.join("tokenizer_config.json")).unwrap();
    let config = TokenizerConfig::from_tokenizer_config(&config, N_VOCAB).unwrap();
    Arc::new(Tokenizer::from_json(&json, config).unwrap())
}

fn tools() -> Vec<Tool> {
    let tool = |name: &str, parameters: Value| Tool {
        name: name.to_owned(),
        parameters,
    };
    vec![
        tool(
            "get_weather",
            json!({
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "where": {"$ref": "#/$defs/place"},
                },
                "required": ["city", "days"],
                "additionalProperties": false,
                "$defs": {"place": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
            }),
        ),
        tool(
            "ping",
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
        ),
    ]
}

fn syntaxes() -> impl Iterator<Item = &'static CallSyntax> {
    CALL_SYNTAXES.iter().chain([&GENERIC_CALLS])
}

fn syntax(marker: &str) -> CallSyntax {
    *syntaxes().find(|s| s.marker == marker).unwrap()
}

fn call(name: &str, arguments: Value) -> Part {
    let Value::Object(arguments) = arguments else {
        panic!("{arguments}")
    };
    Part::Call(ToolCall {
        name: name.to_owned(),
        arguments,
    })
}

/// The parts of an answer, with neighbors of one kind joined.
fn parts(syntax: &ChatSyntax, prompt: &str, pieces: &[&str]) -> Vec<Part> {
    let parser = AnswerParser::new(syntax.clone(), tools(), prompt);
    parts_of(parser, pieces, AnswerParser::finish)
}

fn parts_of(
    mut parser: AnswerParser,
    pieces: &[&str],
    finish: fn(&mut AnswerParser) -> Vec<Part>,
) -> Vec<Part> {
    let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(finish(&mut parser));
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(Part::Text(text)), Part::Text(more)) => text.push_str(&more),
            (Some(Part::Thought(text)), Part::Thought(more)) => text.push_str(&more),
            (_, part) => joined.push(part),
        }
    }
    let has_calls = joined.iter().any(|part| matches!(part, Part::Call(_)));
    assert_eq!(parser.has_calls(), has_calls);
    joined
}

/// Marker of the syntax, end of the prompt, answer, and its parts.
type Case = (&'static str, &'static str, String, Vec<Part>);

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn thought(text: &str) -> Part {
    Part::Thought(text.to_owned())
}

fn weather() -> Part {
    call("get_weather", json!({"city": "Paris, \"TX\"", "days": 3}))
}

fn ping() -> Part {
    call("ping", json!({}))
}

fn cases_with_json_in_tags() -> Vec<Case> {
    let hermes = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris, \\\"TX\\\"\", \
                  \"days\": 3}}\n</tool_call>";
    vec![
        ("<tool_call>", "", hermes.to_owned(), vec![weather()]),
        (
            "<tool_call>",
            "",
            format!("<think>\nHm.\n</think>\n\nI look. \n{hermes}\n{hermes}\n"),
            vec![thought("Hm.\n"), text("I look."), weather(), weather()],
        ),
        (
            "<tool_call>",
            "<think>\n",
            "So.</think>Hi <tool".to_owned(),
            vec![thought("So."), text("Hi <tool")],
        ),
        (
            "<tool_call>",
            "",
            "a < b <think> c\n".to_owned(),
            vec![text("a < b <think> c\n")],
        ),
        (
            "<tool_call>",
            "",
            "<tool_call>no json</tool_call>".to_owned(),
            vec![text("<tool_call>no json</tool_call>")],
        ),
        // An end that the model left out.
        (
            "<tool_call>",
            "",
            "<tool_call>{\"name\": \"ping\"}".to_owned(),
            vec![ping()],
        ),
    ]
}

/// Values that spell the mark behind a call, and strings that have no end.
fn cases_with_marks_in_values() -> Vec<Case> {
    let city = |city: &str| call("get_weather", json!({"city": city, "days": 3}));
    let hermes = |city: &str| {
        let arguments = format!("{{\"city\": {city}, \"days\": 3}}");
        let call = format!("{{\"name\": \"get_weather\", \"arguments\": {arguments}}}");
        format!("<tool_call>\n{call}\n</tool_call>")
    };
    let mark = "a</tool_call>\\\"b</tool_call>";
    let open = "<tool_call>{\"name\": \"x}</tool_call>";
    vec![
        (
            "<tool_call>",
            "",
            hermes(&format!("\"{mark}\"")) + &hermes("\"Rome\""),
            vec![city("a</tool_call>\"b</tool_call>"), city("Rome")],
        ),
        (
            "<tool_call>",
            "",
            format!("{open} and so on"),
            vec![text(&format!("{open} and so on"))],
        ),
        (
            "<function=",
            "",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\na</tool_call>\n</parameter>\n\
             <parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
                .to_owned(),
            vec![city("a</tool_call>")],
        ),
        (
            "<|tool_call_start|>",
            "",
            "<|tool_call_start|>[get_weather(city='<|tool_call_end|>', days=3)]<|tool_call_end|>"
                .to_owned(),
            vec![city("<|tool_call_end|>")],
        ),
        (
            "<start_function_call>",
            "",
            "<start_function_call>call:get_weather{city:<escape>\"<end_function_call><escape>,\
             days:3}<end_function_call>"
                .to_owned(),
            vec![city("\"<end_function_call>")],
        ),
    ]
}

fn cases_of_other_syntaxes() -> Vec<Case> {
    let all = json!({"a": [1, -2.5e3, true, null], "b": {"c": "d'"}});
    vec![
        (
            "<function=",
            "",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis, \"TX\"\n</parameter>\n\
             <parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
                .to_owned(),
            vec![weather()],
        ),
        (
            "<|tool_call_start|>",
            "",
            "<|tool_call_start|>[get_weather(city='Paris, \"TX\"', days=3), ping()]<|tool_call_end|>Done."
                .to_owned(),
            vec![weather(), ping(), text("Done.")],
        ),
        (
            "<|tool_call_start|>",
            "",
            "<|tool_call_start|>[f(a=[1, -2.5e3, True, None], b={'c': \"d'\"})]<|tool_call_end|>".to_owned(),
            vec![call("f", all.clone())],
        ),
        (
            "<|tool_call_start|>",
            "",
            "<|tool_call_start|>[{\"name\": \"ping\", \"arguments\": {}}]<|tool_call_end|>".to_owned(),
            vec![ping()],
        ),
        (
            "<start_function_call>",
            "",
            "<start_function_call>call:get_weather{city:<escape>Paris, \"TX\"<escape>,days:3}<end_function_call>"
                .to_owned(),
            vec![weather()],
        ),
        (
            "<|tool_call>",
            "",
            "<|channel>thought\nHm<channel|><|tool_call>call:f{a:[1,-2.5e3,true,null],b:{c:<|\"|>d'<|\"|>}}<tool_call|>"
                .to_owned(),
            vec![thought("Hm"), call("f", all)],
        ),
        (
            "<|python_tag|>",
            "",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris, \\\"TX\\\"\", \"days\": 3}}; \
             {\"name\": \"ping\", \"parameters\": {}}"
                .to_owned(),
            vec![weather(), ping()],
        ),
        (
            "<|python_tag|>",
            "",
            "<|python_tag|>{\"name\": \"ping\", \"parameters\": {}}".to_owned(),
            vec![ping()],
        ),
        ("<|python_tag|>", "", "{x} is a set".to_owned(), vec![text("{x} is a set")]),
        ("<|python_tag|>", "", "It is {\"name\"".to_owned(), vec![text("It is {\"name\"")]),
        // The generic syntax, and what models make of it.
        (
            "",
            "",
            "I look.\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>".to_owned(),
            vec![text("I look."), ping()],
        ),
        (
            "",
            "",
            "<tool_call>[{\"name\": \"ping\"}, {\"name\": \"ping\"}]</tool_call>".to_owned(),
            vec![ping(), ping()],
        ),
        ("", "", "\n{\"name\": \"ping\", \"arguments\": {}}".to_owned(), vec![ping()]),
        ("", "", "{\"name\": \"Ann\"}".to_owned(), vec![text("{\"name\": \"Ann\"}")]),
        ("", "", "{x} is a set".to_owned(), vec![text("{x} is a set")]),
    ]
}

#[test]
fn calls_and_thoughts_are_found_in_pieces_of_any_size() {
    for (marker, prompt, answer, due) in cases_with_json_in_tags()
        .into_iter()
        .chain(cases_with_marks_in_values())
        .chain(cases_of_other_syntaxes())
    {
        let thoughts = THOUGHT_SYNTAXES[usize::from(marker == "<|tool_call>")];
        let syntax = ChatSyntax {
            calls: Some(syntax(marker)),
            thoughts: Some(thoughts),
        };
        assert_eq!(parts(&syntax, prompt, &[&answer]), due, "{answer}");
        for n in [1, 2, 3, 7] {
            let chars: Vec<String> = answer.chars().map(String::from).collect();
            let pieces: Vec<String> = chars.chunks(n).map(<[String]>::concat).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(parts(&syntax, prompt, &pieces), due, "{answer} by {n}");
        }
    }
}

#[test]
fn a_call_that_was_cut_is_no_text() {
    let whole = "<tool_call>\n{\"name\": \"ping\"}\n</tool_call>";
    let cases: Vec<(&str, String, Vec<Part>)> = vec![
        (
            "<tool_call>",
            "<tool_call>\n{\"name\": \"w\",".to_owned(),
            vec![],
        ),
        (
            "<tool_call>",
            "I look.\n<tool_call>".to_owned(),
            vec![text("I look.")],
        ),
        (
            "<tool_call>",
            "I look.\n<tool_c".to_owned(),
            vec![text("I look.")],
        ),
        ("<tool_call>", "<tool_c".to_owned(), vec![]),
        ("<tool_call>", "<".to_owned(), vec![]),
        // One character is a text more often than a call.
        ("<tool_call>", "a <".to_owned(), vec![text("a <")]),
        ("<tool_call>", "a <b".to_owned(), vec![text("a <b")]),
        (
            "<tool_call>",
            format!("{whole}\n<tool_call>{{"),
            vec![ping()],
        ),
        (
            "<tool_call>",
            "<tool_call>{\"name\": \"ping\"}".to_owned(),
            vec![ping()],
        ),
        (
            "<tool_call>",
            "<think>So <tool_call>{".to_owned(),
            vec![thought("So <tool_call>{")],
        ),
        ("<function=", "<tool_call>\n".to_owned(), vec![]),
        (
            "<|tool_call_start|>",
            "<|tool_call_start|>[f(x=".to_owned(),
            vec![],
        ),
        (
            "<start_function_call>",
            "<start_function_call>call:f{".to_owned(),
            vec![],
        ),
        ("<|python_tag|>", "{\"name\": \"get_wea".to_owned(), vec![]),
        ("<|python_tag|>", "{\"na".to_owned(), vec![]),
        ("<|python_tag|>", "<|python_tag|>{".to_owned(), vec![]),
        ("<|python_tag|>", "{x} is".to_owned(), vec![text("{x} is")]),
        (
            "<|python_tag|>",
            "{\"name\": \"ping\"}".to_owned(),
            vec![ping()],
        ),
        ("", "{\"name\": \"get_wea".to_owned(), vec![]),
        ("", "I look.\n<tool_c".to_owned(), vec![text("I look.")]),
        ("", "{x} is".to_owned(), vec![text("{x} is")]),
    ];
    for (marker, answer, due) in cases {
        let syntax = ChatSyntax {
            calls: Some(syntax(marker)),
            thoughts: Some(THOUGHT_SYNTAXES[0]),
        };
        let chars: Vec<String> = answer.chars().map(String::from).collect();
        for n in [1, 4, 100] {
            let pieces: Vec<String> = chars.chunks(n).map(<[String]>::concat).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let parser = AnswerParser::new(syntax.clone(), tools(), "");
            let found = parts_of(parser, &pieces, AnswerParser::finish_cut);
            assert_eq!(found, due, "{answer} by {n}");
        }
    }
}

#[test]
fn calls_that_are_nested_without_end_are_text() {
    for (marker, body) in [
        (
            "<|tool_call_start|>",
            format!("[f(a={}", "[".repeat(100_000)),
        ),
        (
            "<start_function_call>",
            format!("call:f{{a:{}", "{a:".repeat(100_000)),
        ),
        ("<tool_call>", "[".repeat(100_000)),
    ] {
        let calls = syntax(marker);
        let answer = [calls.begin, &body, calls.end].concat();
        let syntax = ChatSyntax {
            calls: Some(calls),
            thoughts: None,
        };
        assert_eq!(parts(&syntax, "", &[&answer]), [Part::Text(answer.clone())]);
    }
}

#[test]
fn a_forced_call_of_random_tokens_has_arguments_that_validate() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(Arc::clone(&tokenizer));
    for calls in syntaxes() {
        let source = Tool::grammar(&tools(), calls, &tokenizer, true);
        let grammar = grammars
            .compile(&source, &|| false)
            .unwrap_or_else(|e| panic!("{source:?}: {e}"));
        let (mut n_calls, mut n_weather, mut n_answers) = (0, 0, 0);
        for text in drawn(&grammar, &tokenizer) {
            n_answers += 1;
            let syntax = ChatSyntax {
                calls: Some(*calls),
                thoughts: None,
            };
            for part in parts(&syntax, "", &[&text]) {
                let Part::Call(call) = part else {
                    panic!("{}: {part:?} in {text}", calls.marker)
                };
                n_calls += 1;
                if call.name == "get_weather" {
                    n_weather += 1;
                    check_weather(&call.arguments, &text);
                } else {
                    assert_eq!((call.name.as_str(), call.arguments.len()), ("ping", 0));
                }
            }
        }
        assert!(
            n_answers >= 8 && n_calls >= n_answers,
            "{}: {n_answers}",
            calls.marker
        );
        assert!(n_weather > 0, "{}", calls.marker);
    }
}

/// Answers of random tokens that ended.
fn drawn(grammar: &Arc<dyn Grammar>, tokenizer: &Tokenizer) -> Vec<String> {
    let answer = |seed: u64| {
        let options = SampleOptions {
            temperature: 1.0,
            seed,
            ..SampleOptions::default()
        };
        let mut chooser = Chooser::new(options).unwrap();
        chooser.set_grammar(Some(Arc::clone(grammar)));
        chooser.begin().unwrap();
        let mut tokens = Vec::new();
        let mut is_over = false;
        while !is_over && tokens.len() < 400 {
            let mut logits = vec![0.0; N_VOCAB];
            // What ends texts and answers comes sooner than among random tokens.
            for (id, logit) in logits.iter_mut().enumerate() {
                let is_end = [&b"\""[..], b"<", b"}"].contains(&tokenizer.token_bytes(id as u32));
                *logit = if is_end || tokenizer.is_end(id as u32) {
                    4.0
                } else {
                    0.0
                };
            }
            let chosen = chooser.choose(&mut logits, &tokens, &[]).unwrap();
            for (token, is_complete) in chosen.tokens() {
                is_over |= tokenizer.is_end(token) || is_complete;
                tokens.push(token);
            }
        }
        is_over.then(|| tokenizer.decode(&tokens, true))
    };
    (1..20).filter_map(answer).collect()
}

#[test]
fn an_answer_is_calls_or_a_text_of_the_form() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(Arc::clone(&tokenizer));
    // A text of the form may spell what begins a call.
    let schema = json!({"type": "object", "properties": {
        "name": {"enum": ["<tool_call>{}</tool_call>", "b"]}, "n": {"type": "integer", "maximum": 9, "minimum": 0},
    }, "required": ["name", "n"], "additionalProperties": false});
    let forms = [
        GrammarSource::JsonSchema(schema),
        GrammarSource::Regex("(x|y/){2,4}".to_owned()),
        GrammarSource::choice(&["yes".to_owned(), "no".to_owned()]),
        GrammarSource::Lark("start: calls\ncalls: \"a\" calls | \"b\"".to_owned()),
    ];
    for calls in syntaxes() {
        for (idx, form) in forms.iter().enumerate() {
            let either = Tool::grammar_or(&tools(), calls, &tokenizer, true, form.clone());
            let Some(either) = either else {
                assert_eq!(calls.marker, "<|python_tag|>");
                continue;
            };
            let grammar = grammars.compile(&either, &|| false);
            let grammar = grammar.unwrap_or_else(|e| panic!("{either:?}: {e}"));
            let (mut n_calls, mut n_texts) = (0, 0);
            for answer in drawn(&grammar, &tokenizer) {
                let syntax = ChatSyntax {
                    calls: Some(*calls),
                    thoughts: None,
                };
                let parser = AnswerParser::new(syntax, tools(), "").of_form();
                let pieces: Vec<String> = answer.chars().map(String::from).collect();
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                let found = parts_of(parser, &pieces, AnswerParser::finish);
                match &found[..] {
                    [Part::Text(text)] => {
                        n_texts += 1;
                        let value = serde_json::from_str::<Value>(text);
                        let is_form = match idx {
                            0 => value.unwrap()["n"].is_number(),
                            1 => text.replace("y/", "x").trim_matches('x').is_empty(),
                            2 => ["yes", "no"].contains(&text.as_str()),
                            _ => text.trim_start_matches('a') == "b",
                        };
                        assert!(is_form, "{}: {text}", calls.marker);
                    }
                    parts => {
                        let are_calls = parts.iter().all(|part| matches!(part, Part::Call(_)));
                        assert!(are_calls && !parts.is_empty(), "{answer}: {parts:?}");
                        n_calls += 1;
                    }
                }
            }
            // `<` is drawn more often than what begins a text of a form.
            assert!(
                n_calls > 0 && n_calls + n_texts > 6,
                "{}: {n_calls}",
                calls.marker
            );
        }
    }
}

fn check_weather(arguments: &Map<String, Value>, text: &str) {
    assert!(arguments["city"].is_string(), "{text}");
    let days = arguments["days"].as_f64().unwrap();
    assert!((1.0..=9.0).contains(&days) && days.fract() == 0.0, "{text}");
    for (name, value) in arguments {
        let is_valid = match name.as_str() {
            "city" | "days" => true,
            "unit" => value == "C" || value == "F",
            "where" => value.as_array().is_some_and(|list| list.len() <= 2),
            _ => false,
        };
        assert!(is_valid, "{name} in {text}");
    }
}

#[test]
fn the_template_names_the_syntax() {
    let tokenizer = tokenizer();
    let of = |template: &str| ChatSyntax::of(template, &tokenizer);
    assert_eq!(of("{{ messages }}").calls, Some(GENERIC_CALLS));
    assert_eq!(of("{{ tools }}").calls, Some(GENERIC_CALLS));
    let found = of("{% if tools %}<tool_call>{% endif %}<think>");
    assert_eq!(found.calls.map(|s| s.marker), Some("<tool_call>"));
    assert_eq!(found.thoughts.map(|s| s.end), Some("</think>"));
    let found = of("{% if tools %}<tool_call>\n<function={{ x }}>{% endif %}");
    assert_eq!(found.calls.map(|s| s.marker), Some("<function="));
    assert_eq!(of("<tool_call>").calls, Some(GENERIC_CALLS));
}

/// Each argument of a tool repeats the schema of all.
#[test]
fn a_grammar_of_many_arguments_ends_where_it_is_too_long() {
    let properties: Vec<(String, Value)> = (0..2000)
        .map(|n| (format!("argument_{n}"), json!({"type": "integer"})))
        .collect();
    let parameters = json!({"type": "object", "properties": Value::from_iter(properties)});
    let n_schema = parameters.to_string().len();
    let tool = Tool {
        name: "f".to_owned(),
        parameters,
    };
    let tokenizer = tokenizer();
    for calls in syntaxes() {
        let GrammarSource::Lark(lark) =
            Tool::grammar(std::slice::from_ref(&tool), calls, &tokenizer, true)
        else {
            panic!("{calls:?}");
        };
        // One that is refused, but not 2,000 schemas.
        assert!(lark.len() > 64 << 10, "{calls:?}: {}", lark.len());
        assert!(lark.len() < 5 * n_schema, "{calls:?}: {}", lark.len());
    }
}
