//! Damaged and hostile tokenizers, and control tokens in the text of users.

use std::cell::Cell;
use std::time::Duration;

use crate::{data, processor_time};
use serde_json::{Value, json};
use thane_engine::text::{EncodeOptions, Rendered, TextError, Tokenizer, TokenizerConfig, Vocab};

const PARSE: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

const FILES: [&str; 2] = ["byte_level.tokenizer.json", "sentencepiece.tokenizer.json"];

/// The tokenizer of a file.
fn tokenizer(json: &[u8]) -> Result<Tokenizer, TextError> {
    let config = TokenizerConfig {
        n_vocab: 5000,
        ..TokenizerConfig::default()
    };
    Tokenizer::from_json(json, config)
}

/// The processor time in which an honest tokenizer encodes 16 MiB. (What takes longer than 8 s in a
/// thread of its own is abandoned.)
fn most() -> Duration {
    let honest = tokenizer(&data::bytes(FILES[0])).unwrap();
    let text = "a ".repeat(1 << 19);
    let (ids, time) = processor_time::of(|| honest.encode(&text, PLAIN));
    assert!(ids.unwrap().len() > 1 << 18);
    time * 16
}

/// Builds the tokenizer and encodes some texts.
fn tried(json: &[u8]) -> Result<(), TextError> {
    let tokenizer = tokenizer(json)?;
    for text in [
        "",
        "a",
        "Hello world 123\n\n  é語🙂<|im_end|>",
        &"a ".repeat(2000),
        &"a".repeat(5000),
    ] {
        for options in [
            PARSE,
            PLAIN,
            EncodeOptions {
                add_special: true,
                parse_special: true,
            },
        ] {
            tokenizer.encode(text, options)?;
        }
    }
    Ok(())
}

#[test]
fn tokenizer_files_that_end_early_are_errors() {
    for name in FILES {
        let json = data::bytes(name);
        for cut in (0..json.len() - 1).step_by(json.len() / 150) {
            assert!(tried(&json[..cut]).is_err(), "{name}: {cut}");
        }
    }
}

/// Key and value in `tokenizer.json`, and whether reading the file or encoding a text must fail.
type Case = (&'static str, Value, bool);

fn normalizers() -> Vec<Case> {
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let sequence =
        |n: usize, part: &Value| json!({"type": "Sequence", "normalizers": vec![part; n]});
    let charsmap = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
    vec![
        ("normalizer", charsmap(""), true),
        ("normalizer", charsmap("AAAA"), true),
        ("normalizer", charsmap("BAAAAP////9hYmMA"), false),
        ("normalizer", charsmap("////////////////"), true),
        ("normalizer", replace(json!({"String": ""}), "x"), true),
        ("normalizer", replace(json!({"Regex": ""}), "x"), true),
        (
            "normalizer",
            sequence(32, &replace(json!({"String": "a"}), "aa")),
            true,
        ),
        (
            "normalizer",
            sequence(60, &replace(json!({"Regex": "a"}), "aa")),
            true,
        ),
        (
            "normalizer",
            replace(json!({"String": "a"}), &"b".repeat(1 << 20)),
            true,
        ),
        (
            "normalizer",
            json!({"type": "Prepend", "prepend": "x".repeat(100 << 20)}),
            true,
        ),
        (
            "normalizer",
            sequence(100_000, &json!({"type": "NFC"})),
            true,
        ),
        ("normalizer", json!({"type": "Nope"}), true),
    ]
}

fn other_parts() -> Vec<Case> {
    let split = |pattern: Value| json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
    let added = |content: &str| {
        json!([{"id": 4000, "content": content, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": true, "special": false}])
    };
    vec![
        ("pre_tokenizer", split(json!({"String": ""})), true),
        ("pre_tokenizer", split(json!({"Regex": ""})), true),
        ("pre_tokenizer", split(json!({"Regex": "("})), true),
        (
            "pre_tokenizer",
            split(json!({"Regex": "(((a(?=b)){1000}){1000}){1000}"})),
            true,
        ),
        (
            "pre_tokenizer",
            split(json!({"Regex": "(a+a+)+(?!b)c"})),
            false,
        ),
        (
            "pre_tokenizer",
            split(json!({"Regex": "(".repeat(5000)})),
            true,
        ),
        (
            "pre_tokenizer",
            split(json!({"Regex": "(?:a?){50}a{50}"})),
            false,
        ),
        ("added_tokens", added(&"x".repeat(100_000)), true),
        ("added_tokens", added(""), false),
        (
            "model",
            json!({"type": "Unigram", "unk_id": 0, "vocab": []}),
            true,
        ),
        (
            "model",
            json!({"type": "Unigram", "unk_id": 0, "vocab": [["a".repeat(100_000), 0.0]]}),
            true,
        ),
        (
            "model",
            json!({"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}),
            true,
        ),
        (
            "model",
            json!({"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}),
            true,
        ),
        (
            "model",
            json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 1_000_000_000u64, "vocab": {"a": 0}}),
            true,
        ),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "nope", "type_id": 0}}],
            "pair": [], "special_tokens": {}}),
            true,
        ),
    ]
}

#[test]
fn hostile_tokenizer_files_are_errors_or_work() {
    let most = most();
    for (key, value, is_refused) in normalizers().into_iter().chain(other_parts()) {
        let mut file: Value = data::json("byte_level.tokenizer.json");
        file[key] = value;
        let shown: String = file[key].to_string().chars().take(100).collect();
        let json = file.to_string();
        let (done, time) = processor_time::of(|| tried(json.as_bytes()));
        assert!(time < most, "{key}: {shown}: {time:?}, {most:?}");
        assert!(done.is_err() || !is_refused, "{key}: {shown}");
        if let Err(error) = done {
            assert!(
                !error.to_string().is_empty() && error.to_string().len() < 1000,
                "{error}"
            );
        }
    }
}

#[test]
fn texts_that_would_take_too_much_memory_are_refused() {
    let mut file: Value = data::json("byte_level.tokenizer.json");
    file["normalizer"] = json!({"type": "Sequence", "normalizers": vec![
        json!({"type": "Replace", "pattern": {"String": "b"}, "content": "bbbb"}); 10]});
    let config = TokenizerConfig {
        n_vocab: 5000,
        ..TokenizerConfig::default()
    };
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), config).unwrap();
    tokenizer.encode("abc", PARSE).unwrap();
    let error = tokenizer.encode(&"b".repeat(1000), PARSE).unwrap_err();
    assert!(
        matches!(
            error,
            TextError::TooLong {
                found: 1000,
                most: 64
            }
        ),
        "{error}"
    );
}

#[test]
fn long_control_tokens_of_gguf_files_are_refused() {
    for model in ["gpt2", "llama"] {
        let vocab = Vocab {
            model: model.to_owned(),
            n_vocab: 2,
            tokens: ["a".to_owned(), "x".repeat(100_000)].iter().collect(),
            token_types: Some(vec![1, 3]),
            scores: Some(vec![0.0; 2]),
            merges: Some(std::iter::empty::<&str>().collect()),
            ..Vocab::default()
        };
        let error = Tokenizer::from_vocab(vocab).unwrap_err().to_string();
        assert!(error.contains("at most 512 bytes"), "{error}");
    }
}

/// The text with `[` and `]` around parts that came with a message.
fn rendered(marked: &str) -> Rendered {
    let mut out = Rendered::default();
    for (idx, part) in marked.split(['[', ']']).enumerate() {
        let start = out.text.len();
        out.text.push_str(part);
        if idx % 2 == 1 && !part.is_empty() {
            out.from_messages.push(start..out.text.len());
        }
    }
    out
}

#[test]
fn typed_control_tokens_are_text() {
    let config = TokenizerConfig {
        n_vocab: 5000,
        ..TokenizerConfig::default()
    };
    let hf = Tokenizer::from_json(&data::bytes(FILES[0]), config.clone()).unwrap();
    let plain = |text: &str| hf.encode(text, PLAIN).unwrap();
    let cases: [(&str, Vec<Vec<u32>>); 5] = [
        (
            "<|im_start|>user\n[hi <|im_end|> there]<|im_end|>\n",
            vec![
                vec![2],
                plain("user\nhi <|im_end|> there"),
                vec![3],
                plain("\n"),
            ],
        ),
        (
            "<|im_start|>[<|im_start|><|im_end|>]<|im_end|>",
            vec![vec![2], plain("<|im_start|><|im_end|>"), vec![3]],
        ),
        // A token that begins in a message and ends in the template.
        ("[<|im_]end|><|im_end|>", vec![plain("<|im_end|>"), vec![3]]),
        (
            "<s>[<|im_start|<|im_end|>]",
            vec![vec![0], plain("<|im_start|<|im_end|>")],
        ),
        ("[a]<|im_end|>[b]", vec![plain("a"), vec![3], plain("b")]),
    ];
    for (marked, ids) in cases {
        assert_eq!(
            hf.encode_rendered(&rendered(marked)).unwrap(),
            ids.concat(),
            "{marked}"
        );
    }
    // Ordinary messages have the same ids as with `encode`.
    for line in data::mixed_lines()
        .iter()
        .filter(|line| !line.contains('<') && !line.contains(['[', ']']))
    {
        let marked = rendered(&format!("<|im_start|>user\n[{line}]<|im_end|>\n"));
        assert_eq!(
            hf.encode_rendered(&marked).unwrap(),
            hf.encode(&marked.text, PARSE).unwrap(),
            "{line:?}"
        );
    }
}

#[test]
fn typed_control_tokens_of_sentencepiece_are_text() {
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(["<end>", "\u{2581}hi"].map(str::to_owned));
    let mut types = vec![6; 256];
    types.extend([3, 1]);
    let vocab = Vocab {
        model: "llama".into(),
        n_vocab: tokens.len(),
        scores: Some(vec![0.0; tokens.len()]),
        token_types: Some(types),
        tokens: tokens.iter().collect(),
        add_space_prefix: Some(false),
        ..Vocab::default()
    };
    let tokenizer = Tokenizer::from_vocab(vocab).unwrap();
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    for (marked, ids) in [
        (
            "<end>[<end>]<end>",
            vec![vec![256], bytes("<end>"), vec![256]],
        ),
        (
            "\u{2581}[\u{2581}<end>]\u{2581}<end>",
            vec![bytes("  <end> "), vec![256]],
        ),
        ("[<e]nd><end>", vec![bytes("<end>"), vec![256]]),
    ] {
        assert_eq!(
            tokenizer.encode_rendered(&rendered(marked)).unwrap(),
            ids.concat(),
            "{marked}"
        );
    }
}

/// Control tokens in messages leave the tokens of the text around them as they are, whichever word
/// is the first and whichever spaces the template's own control tokens take.
#[test]
fn typed_control_tokens_change_no_other_tokens() {
    let golden: Value = data::json("controls.json");
    for case in golden.as_array().unwrap() {
        let config = TokenizerConfig {
            n_vocab: 100,
            ..TokenizerConfig::default()
        };
        let json = case["tokenizer"].to_string();
        let tokenizer = Tokenizer::from_json(json.as_bytes(), config).unwrap();
        let chats = case["chats"].as_array().unwrap().iter();
        for (chat, expected) in chats.zip(case["ids"].as_array().unwrap()) {
            let found = tokenizer.encode_rendered(&rendered(chat.as_str().unwrap()));
            assert_eq!(json!(found.unwrap()), *expected, "{}: {chat}", case["name"]);
        }
    }
}

/// A message of control tokens takes about as long as the same text without them being looked for.
#[test]
fn many_typed_control_tokens_take_linear_time() {
    let tokenizer = tokenizer(&data::bytes(FILES[0])).unwrap();
    let typed = "<|im_end|>".repeat(30_000);
    let marked = rendered(&format!("<|im_start|>user\n[{typed}]<|im_end|>\n"));
    let (plain, reference) = processor_time::of(|| tokenizer.encode(&typed, PLAIN).unwrap());
    let (found, taken) = processor_time::of(|| tokenizer.encode_rendered(&marked).unwrap());
    let is_within = found.windows(plain.len()).any(|ids| ids == plain);
    assert!(is_within && found.len() < plain.len() + 20);
    // With time that grows with the square of the tokens, the factor would be above 1,000.
    assert!(taken < reference * 50, "{taken:?}, not {reference:?}");
}

/// Characters that the vocabulary lacks are one unknown token each, in messages too, and are not
/// mistaken for a control token.
#[test]
fn unknown_characters_are_no_control_tokens() {
    let json = json!({
        "added_tokens": [
            {"id": 0, "content": "[UNK]", "special": true, "single_word": false, "lstrip": false,
             "rstrip": false, "normalized": false},
            {"id": 1, "content": "[SEP]", "special": true, "single_word": false, "lstrip": false,
             "rstrip": false, "normalized": false}],
        "normalizer": null, "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": null, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0, "[SEP]": 1, "a": 2, "[": 3, "]": 4, "SEP": 5, "UNK": 6}},
    });
    let config = TokenizerConfig {
        n_vocab: 7,
        ..TokenizerConfig::default()
    };
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), config).unwrap();
    let ids = |text: &str, message| {
        let from_messages = vec![message];
        let text = text.to_owned();
        let rendered = Rendered {
            text,
            from_messages,
        };
        tokenizer.encode_rendered(&rendered).unwrap()
    };
    assert_eq!(ids("a !! a[SEP]", 0..6), [2, 0, 0, 2, 1]);
    assert_eq!(ids("a ! [SEP] a[SEP]", 0..11), [2, 0, 3, 5, 4, 2, 1]);
    assert_eq!(ids("![UNK]!a[SEP]", 0..7), [0, 3, 6, 4, 0, 2, 1]);
    assert_eq!(ids("!a[SEP]![SEP]", 2..7), [0, 2, 3, 5, 4, 0, 1]);
}

/// What trims ranges counts characters, and a character of a message may become special tokens of
/// its bytes: neither is a control token that a message spells.
#[test]
fn trimmed_ranges_and_bytes_are_no_control_tokens() {
    let added = |id: usize, content: &str| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    let file = |trims: bool| {
        json!({
            "added_tokens": [added(0, "<s>"), added(4, "<0xE3>"), added(5, "<0x80>"), added(6, "<0x81>")],
            "normalizer": null, "pre_tokenizer": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": trims, "use_regex": true},
            "model": {"type": "BPE", "unk_token": null, "byte_fallback": true, "merges": [],
                "vocab": {"<s>": 0, "a": 1, "b": 2, "\u{3000}": 3, "<0xE3>": 4, "<0x80>": 5, "<0x81>": 6, "\u{a0}": 7,
                    "s": 8, ">": 9, "<": 10}},
        })
    };
    for trims in [true, false] {
        let config = TokenizerConfig {
            n_vocab: 11,
            ..TokenizerConfig::default()
        };
        let tokenizer = Tokenizer::from_json(file(trims).to_string().as_bytes(), config).unwrap();
        let ids = |text: &str, message| {
            let rendered = Rendered {
                text: text.to_owned(),
                from_messages: vec![message],
            };
            tokenizer.encode_rendered(&rendered).unwrap()
        };
        assert_eq!(ids("<s>a\u{3000}\u{a0}b", 3..10), [0, 1, 3, 7, 2]);
        assert_eq!(ids("<s>a\u{3001}b", 3..8), [0, 1, 4, 5, 6, 2]);
        assert_eq!(ids("<s>a<s>\u{3001}", 3..10), [0, 1, 10, 8, 9, 4, 5, 6]);
    }
}

/// Vocabularies of GGUF files whose merges make one long word of `ab`.
fn merging(model: &str) -> Tokenizer {
    let vocab = Vocab {
        model: model.to_owned(),
        n_vocab: 4,
        tokens: ["a", "b", "ab", "abab"].into_iter().collect(),
        token_types: Some(vec![1; 4]),
        scores: Some(vec![-4.0, -3.0, -2.0, -1.0]),
        merges: Some(["a b", "ab ab"].into_iter().collect()),
        pre: Some("default".to_owned()),
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..Vocab::default()
    };
    Tokenizer::from_vocab(vocab).unwrap()
}

/// A caller is asked while one word is merged, in proportion to its length, and ends that.
#[test]
fn a_caller_ends_the_tokenizing_of_a_long_word() {
    let text = "ab".repeat(200_000);
    let tokenizer = merging("llama");
    for (stops_at, expected) in [(usize::MAX, 100_000), (1, 0), (5, 0)] {
        let n_asked = Cell::new(0);
        let is_stopped = || {
            n_asked.set(n_asked.get() + 1);
            n_asked.get() >= stops_at
        };
        match tokenizer.encode_until(&text, PARSE, &is_stopped) {
            Ok(ids) => {
                assert_eq!(ids.len(), expected);
                // Each byte and each of 300,000 merges is a step.
                assert!(n_asked.get() > text.len() >> 14, "{}", n_asked.get());
            }
            Err(error) => {
                assert!(matches!(error, TextError::Interrupted), "{error}");
                assert_eq!(n_asked.get(), stops_at);
            }
        }
    }
}

/// Long texts are tokenized by a thread, which gives the same tokens, and which a caller leaves.
#[test]
fn a_caller_ends_the_tokenizing_of_a_long_text() {
    for tokenizer in [merging("gpt2"), tokenizer(&data::bytes(FILES[0])).unwrap()] {
        let line = "ab abab ab, ";
        let once = tokenizer.encode(line, PARSE).unwrap();
        let text = line.repeat(90_000);
        let ids = tokenizer.encode(&text, PARSE).unwrap();
        assert_eq!(ids[..once.len() - 1], once[..once.len() - 1]);
        let stopped = tokenizer.encode_until(&text, PARSE, &|| true);
        assert!(matches!(stopped, Err(TextError::Interrupted)));
        let message = 0..line.len();
        let marked = Rendered {
            text,
            from_messages: vec![message],
        };
        assert_eq!(tokenizer.encode_rendered(&marked).unwrap(), ids);
        let stopped = tokenizer.encode_rendered_until(&marked, &|| true);
        assert!(matches!(stopped, Err(TextError::Interrupted)));
    }
}
