//! Grammars over a real tokenizer: even tokens that are drawn by chance make what the grammar says.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use thane_engine::choose::{Chooser, Grammar};
use thane_engine::sample::SampleOptions;
use thane_engine::text::{Tokenizer, TokenizerConfig};
use thane_runtime::{GrammarSource, Grammars};

const N_VOCAB: usize = 282;

fn grammars() -> (Grammars, Arc<Tokenizer>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-chat");
    let json = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let config = std::fs::read(folder.join("tokenizer_config.json")).unwrap();
    let config = TokenizerConfig::from_tokenizer_config(&config, N_VOCAB).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_json(&json, config).unwrap());
    (Grammars::new(Arc::clone(&tokenizer)), tokenizer)
}

/// Draws an answer from random logits; `None` if it does not end within 300 tokens. Also the number
/// of tokens that were not drawn.
fn answer(grammar: &Arc<dyn Grammar>, tokenizer: &Tokenizer, seed: u64) -> (Option<String>, usize) {
    let options = SampleOptions {
        temperature: 1.0,
        seed,
        ..SampleOptions::default()
    };
    let mut chooser = Chooser::new(options).unwrap();
    chooser.set_grammar(Some(Arc::clone(grammar)));
    chooser.begin().unwrap();
    let (mut tokens, mut n_forced) = (Vec::new(), 0);
    let mut state = seed;
    while tokens.len() < 300 {
        let mut logits: Vec<f32> = (0..N_VOCAB)
            .map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 40) as f32 / (1 << 22) as f32
            })
            .collect();
        // What ends strings and answers comes sooner than among random tokens of text.
        for end in [b'"', b'}', b']'] {
            let is_end = |id: &usize| tokenizer.token_bytes(*id as u32) == [end];
            logits[(0..N_VOCAB).find(is_end).unwrap()] += 4.0;
        }
        let chosen = chooser.choose(&mut logits, &tokens, &[]).unwrap();
        n_forced += chosen.forced.len();
        for (token, is_complete) in chosen.tokens() {
            if tokenizer.is_end(token) {
                return (Some(tokenizer.decode(&tokens, true)), n_forced);
            }
            tokens.push(token);
            if is_complete {
                return (Some(tokenizer.decode(&tokens, true)), n_forced);
            }
        }
    }
    (None, n_forced)
}

/// Draws some answers; returns the whole ones.
fn answers(source: &GrammarSource) -> Vec<String> {
    let (grammars, tokenizer) = grammars();
    let grammar = grammars.compile(source, &|| false).unwrap();
    let drawn = (1..13).filter_map(|seed| answer(&grammar, &tokenizer, seed).0);
    drawn.collect()
}

/// Whether a value follows a schema.
type Check = fn(&Value) -> bool;

/// Draws answers to schemas and checks them.
fn check_answers(cases: &[(Value, Check)]) {
    for (schema, is_valid) in cases {
        let found = answers(&GrammarSource::JsonSchema(schema.clone()));
        assert!(found.len() >= 6, "{schema}: {} answers ended", found.len());
        for text in found {
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // Valid, but no fp64.
                Err(e) if e.to_string().starts_with("number out of range") => continue,
                Err(e) => panic!("{schema}: {e}: {text}"),
            };
            assert!(is_valid(&value), "{schema}: {text}");
        }
    }
}

#[test]
fn json_values_of_random_tokens_validate() {
    let cases: [(Value, Check); 9] = [
        (json!(true), |_| true),
        (json!({"type": "object"}), Value::is_object),
        (json!({"type": ["boolean", "null"]}), |v| {
            v.is_boolean() || v.is_null()
        }),
        (json!({"enum": ["a", 3, null, {"b": []}]}), |v| {
            [json!("a"), json!(3), json!(null), json!({"b": []})].contains(v)
        }),
        (json!({"const": {"k": [1, true]}}), |v| {
            *v == json!({"k": [1, true]})
        }),
        (
            json!({"type": "integer", "minimum": -5, "exclusiveMaximum": 12}),
            |v| {
                v.as_f64()
                    .is_some_and(|n| n.fract() == 0.0 && (-5.0..12.0).contains(&n))
            },
        ),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 5}),
            |v| {
                v.as_str()
                    .is_some_and(|s| (2..=5).contains(&s.chars().count()))
            },
        ),
        (
            json!({"type": "string", "pattern": "^[a-c]{3}-[0-9]+$"}),
            |v| {
                let (letters, digits) = v.as_str().unwrap().split_once('-').unwrap();
                letters.len() == 3
                    && letters.bytes().all(|b| (b'a'..=b'c').contains(&b))
                    && !digits.is_empty()
                    && digits.bytes().all(|b| b.is_ascii_digit())
            },
        ),
        (json!({"type": "string", "format": "date"}), |v| {
            v.as_str()
                .is_some_and(|s| s.len() == 10 && s.split('-').count() == 3)
        }),
    ];
    check_answers(&cases);
}

/// A format that nobody knows is an annotation, wherever a schema is.
#[test]
fn formats_hold_where_they_are_known() {
    let is_text = |v: &Value| v.is_string();
    let cases: [(Value, Check); 6] = [
        (
            json!({"type": "string", "format": "password", "maxLength": 9}),
            is_text,
        ),
        (
            json!({"anyOf": [{"type": "string", "format": "binary", "maxLength": 9}]}),
            is_text,
        ),
        (
            json!({"$ref": "#/$defs/path", "$defs": {"path": {"type": "string", "format": "path", "maxLength": 4}}}),
            is_text,
        ),
        // What is no schema stays as it is.
        (json!({"const": {"format": "password"}}), |v| {
            *v == json!({"format": "password"})
        }),
        (json!({"enum": [{"format": "x"}, [{"format": "y"}]]}), |v| {
            [json!({"format": "x"}), json!([{"format": "y"}])].contains(v)
        }),
        (
            json!({"type": "object", "properties": {
                "format": {"type": "string", "format": "phone", "maxLength": 3},
                "enum": {"type": "string", "format": "base64", "maxLength": 3},
            }, "required": ["format", "enum"], "additionalProperties": false}),
            |v| v["format"].is_string() && v["enum"].is_string(),
        ),
    ];
    check_answers(&cases);
    let (grammars, _) = grammars();
    for format in [
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "time",
        "uri",
        "uuid",
    ] {
        let schema = |more: Value| {
            let mut schema = json!({"type": "string", "format": format});
            schema
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            GrammarSource::JsonSchema(schema)
        };
        grammars.compile(&schema(json!({})), &|| false).unwrap();
        // No string has both.
        let other = schema(json!({"pattern": "^\\?!$"}));
        assert!(
            grammars.compile(&other, &|| false).is_err(),
            "{format} is not held"
        );
    }
}

#[test]
fn json_lists_and_objects_of_random_tokens_validate() {
    let cases: [(Value, Check); 3] = [
        (
            json!({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}),
            |v| {
                let list = v.as_array().unwrap();
                (1..=3).contains(&list.len()) && list.iter().all(Value::is_boolean)
            },
        ),
        (
            json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 8},
                    "age": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
                },
                "required": ["name", "age"],
                "additionalProperties": false,
                "$defs": {"tag": {"enum": ["x", "y"]}},
            }),
            |v| {
                let fields = v.as_object().unwrap();
                let known = ["name", "age", "tags"];
                fields["name"].is_string()
                    && (fields["age"].is_null()
                        || fields["age"].is_i64()
                        || fields["age"].is_u64()
                        || fields["age"].is_number())
                    && fields.keys().all(|key| known.contains(&key.as_str()))
            },
        ),
        (
            json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 4}]}),
            |v| [json!(3), json!(4)].contains(v),
        ),
    ];
    check_answers(&cases);
}

#[test]
fn other_grammars_hold_too() {
    let found = answers(&GrammarSource::Regex("(ab|c)+[0-9]{2}".to_owned()));
    assert!(found.len() >= 6);
    for text in found {
        let (letters, digits) = text.split_at(text.len() - 2);
        assert!(digits.bytes().all(|b| b.is_ascii_digit()), "{text}");
        assert_eq!(letters.replace("ab", "").replace('c', ""), "", "{text}");
    }
    let lark = "start: \"<\" tail\ntail: \">\" | \"x\" tail \"y\"";
    for text in answers(&GrammarSource::Lark(lark.to_owned())) {
        let n = text.matches('x').count();
        assert_eq!(text, format!("<{}>{}", "x".repeat(n), "y".repeat(n)));
    }
    let texts = ["yes \"sir\"".to_owned(), "no".to_owned()];
    for text in answers(&GrammarSource::choice(&texts)) {
        assert!(texts.contains(&text), "{text}");
    }
}

#[test]
fn tokens_that_must_follow_are_not_drawn() {
    let (grammars, tokenizer) = grammars();
    let schema = json!({"type": "object", "properties": {"temperature": {"type": "boolean"}},
        "required": ["temperature"], "additionalProperties": false});
    let source = GrammarSource::JsonSchema(schema);
    let grammar = grammars.compile(&source, &|| false).unwrap();
    let (text, n_forced) = answer(&grammar, &tokenizer, 3);
    assert!(text.unwrap().starts_with("{\"temperature\": "));
    assert!(n_forced >= 5, "{n_forced}");
    // The same grammar is not compiled again.
    assert!(Arc::ptr_eq(
        &grammar,
        &grammars.compile(&source, &|| false).unwrap()
    ));
}

#[test]
fn grammars_that_cannot_be_used_are_errors() {
    let (grammars, _) = grammars();
    let chain = |n: usize| {
        let rules = (0..n).map(|i| format!("r{i}: r{}\n", i + 1));
        format!("start: r0\n{}r{n}: \"a\"", rules.collect::<String>())
    };
    let many: Vec<String> = (0..50_000).map(|i| format!("\"a{i}\"")).collect();
    // Deep, but compiled on a stack that is deep enough.
    assert!(
        grammars
            .compile(&GrammarSource::Lark(chain(4000)), &|| false)
            .is_ok()
    );
    for (source, said) in [
        (GrammarSource::Lark(chain(50_000)), "at most 65536 bytes"),
        (
            GrammarSource::Lark(format!("start: {}", many.join(" "))),
            "at most 65536 bytes",
        ),
        (
            GrammarSource::Lark(format!("start: {}\"a\"", "(".repeat(9000))),
            "nested",
        ),
        (GrammarSource::Regex("(".to_owned()), "unclosed group"),
        (GrammarSource::Lark("start: x".to_owned()), "x"),
        (GrammarSource::Lark(String::new()), "start"),
        (GrammarSource::JsonSchema(json!({"type": "thing"})), "thing"),
        (GrammarSource::JsonSchema(json!(false)), "false"),
        (
            GrammarSource::JsonSchema(json!({"not": {"type": "null"}})),
            "not",
        ),
        (
            GrammarSource::JsonSchema(json!({"$ref": "https://example.org/x"})),
            "ref",
        ),
        (
            GrammarSource::JsonSchema(json!({"$ref": "#/$defs/none"})),
            "none",
        ),
    ] {
        let error = grammars
            .compile(&source, &|| false)
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("the grammar: "), "{error}");
        assert!(error.contains(said), "{source:?}: {error}");
        assert!(
            !error.contains("backtrace") && !error.contains('\n'),
            "{error}"
        );
    }
}

/// A grammar has doubles. What they would round is refused, or a limit becomes the next one within.
#[test]
fn whole_numbers_beyond_doubles_are_not_rounded() {
    let (grammars, tokenizer) = grammars();
    for schema in [
        json!({"enum": [1, 9_007_199_254_740_993_i64]}),
        json!({"const": {"id": [9_007_199_254_740_993_i64]}}),
        json!({"properties": {"a": {"const": -9_223_372_036_854_775_807_i64}}}),
        serde_json::from_str(r#"{"const": 18446744073709551617}"#).unwrap(),
    ] {
        let source = GrammarSource::JsonSchema(schema);
        let error = grammars.compile(&source, &|| false).err().unwrap();
        assert!(
            error
                .to_string()
                .contains("larger ones are exact as strings"),
            "{error}"
        );
    }
    // Names of properties are no keywords.
    for schema in [
        json!({"enum": [9_007_199_254_740_992_i64, 1.5, "x"]}),
        json!({"properties": {"const": {"type": "string"}}, "required": ["const"]}),
    ] {
        grammars
            .compile(&GrammarSource::JsonSchema(schema), &|| false)
            .unwrap();
    }
    let (least, most) = (1_234_567_890_123_456_789_i64, 1_234_567_890_123_459_999_i64);
    let schema = json!({"type": "integer", "minimum": least, "maximum": most});
    let grammar = grammars
        .compile(&GrammarSource::JsonSchema(schema), &|| false)
        .unwrap();
    for seed in 0..40 {
        let (text, _) = answer(&grammar, &tokenizer, seed);
        // JSON Schema counts 5.0 as an integer.
        let n: i64 = text
            .unwrap_or_else(|| panic!("seed {seed}"))
            .parse()
            .unwrap();
        assert!((least..=most).contains(&n), "{n}");
    }
}

/// By RFC 6901 and RFC 3986.
#[test]
fn references_may_have_escapes() {
    let (grammars, tokenizer) = grammars();
    for (schema, expected) in [
        (
            json!({"$defs": {"a/b~c": {"const": 3}}, "$ref": "#/$defs/a~1b~0c"}),
            "3",
        ),
        (
            json!({"definitions": {"A<b>": {"const": 4}}, "$ref": "#/definitions/A%3Cb%3E"}),
            "4",
        ),
        (
            json!({"$defs": {"a/b": {"enum": [7]}, "c~": {"type": "array", "minItems": 1, "maxItems": 1,
                "items": {"$ref": "#/$defs/a~1b"}}}, "anyOf": [{"$ref": "#/$defs/c~0"}]}),
            "[7]",
        ),
    ] {
        let grammar = grammars
            .compile(&GrammarSource::JsonSchema(schema), &|| false)
            .unwrap();
        assert_eq!(answer(&grammar, &tokenizer, 1).0.as_deref(), Some(expected));
    }
    let schema = json!({"$ref": "#/$defs/a~1b"});
    assert!(
        grammars
            .compile(&GrammarSource::JsonSchema(schema), &|| false)
            .is_err()
    );
}
