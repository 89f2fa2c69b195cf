//! Small tokenizers that `sentencepiece` and `tokenizers` trained, compared with these libraries.

use crate::data;
use serde::Deserialize;
use std::collections::BTreeMap;
use thane_engine::text::{
    EncodeOptions, SpecialTokens, TextError, Texts, Tokenizer, TokenizerConfig, Vocab,
};

const PARSE: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

#[derive(Deserialize)]
struct SentencePiece {
    name: String,
    tokens: Vec<String>,
    scores: Vec<f32>,
    token_types: Vec<i32>,
    unk: u32,
    bos: u32,
    eos: u32,
    add_space_prefix: bool,
    lines: Vec<String>,
    ids: Vec<Vec<u32>>,
    plain: Vec<Vec<u32>>,
}

impl SentencePiece {
    fn vocab(&self) -> Vocab {
        Vocab {
            model: "llama".into(),
            n_vocab: self.tokens.len(),
            tokens: self.tokens.iter().collect(),
            scores: Some(self.scores.clone()),
            token_types: Some(self.token_types.clone()),
            unk: Some(self.unk),
            bos: Some(self.bos),
            eos: Some(self.eos),
            add_space_prefix: Some(self.add_space_prefix),
            ..Vocab::default()
        }
    }
}

#[derive(Deserialize)]
struct ByteLevel {
    tokens: Vec<String>,
    token_types: Vec<i32>,
    merges: Vec<String>,
    lines: Vec<String>,
    ids: BTreeMap<String, Vec<Vec<u32>>>,
}

impl ByteLevel {
    fn vocab(&self, pre: &str) -> Vocab {
        Vocab {
            model: "gpt2".into(),
            pre: Some(pre.to_owned()),
            n_vocab: self.tokens.len(),
            tokens: self.tokens.iter().collect(),
            token_types: Some(self.token_types.clone()),
            merges: Some(self.merges.iter().collect()),
            bos: Some(0),
            eos: Some(1),
            ..Vocab::default()
        }
    }
}

#[derive(Deserialize)]
struct Gemma4 {
    tokens: Vec<String>,
    token_types: Vec<i32>,
    merges: Vec<String>,
    lines: Vec<String>,
    ids: Vec<Vec<u32>>,
    decoded: Vec<String>,
}

impl Gemma4 {
    fn vocab(&self) -> Vocab {
        Vocab {
            model: "gemma4".into(),
            n_vocab: self.tokens.len(),
            tokens: self.tokens.iter().collect(),
            token_types: Some(self.token_types.clone()),
            merges: Some(self.merges.iter().collect()),
            bos: Some(2),
            eos: Some(1),
            eot: Some(6),
            unk: Some(3),
            ..Vocab::default()
        }
    }
}

/// Whether a tokenizer gives each of the 2,000 mixed lines the ids whose sums are given.
fn check_all_lines(name: &str, tokenizer: &Tokenizer, sums: &[u32], options: EncodeOptions) {
    assert_eq!(sums.len(), 2000, "{name}");
    for (line, sum) in data::mixed_lines().iter().zip(sums) {
        let ids = tokenizer.encode(line, options).unwrap();
        assert_eq!(data::id_sum(&ids), *sum, "{name}: {line:?}: {ids:?}");
    }
}

#[test]
fn gemma4_ids_equal_transformers() {
    let case: Gemma4 = data::json("gemma4.json");
    let tokenizer = Tokenizer::from_vocab(case.vocab()).unwrap();
    for ((line, ids), decoded) in case.lines.iter().zip(&case.ids).zip(&case.decoded) {
        assert_eq!(&tokenizer.encode(line, PARSE).unwrap(), ids, "{line:?}");
        assert_eq!(&tokenizer.decode(ids, false), decoded);
    }
    check_all_lines(
        "gemma4",
        &tokenizer,
        &data::id_sums("gemma4.sums")[0],
        PARSE,
    );
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    assert_eq!(tokenizer.encode("", options).unwrap(), [2]);
    assert_eq!(tokenizer.end_ids(), [1, 6]);
    let broken = Vocab {
        merges: Some(["ab"].into_iter().collect()),
        ..case.vocab()
    };
    let error = Tokenizer::from_vocab(broken).unwrap_err().to_string();
    assert!(
        error.contains("expected two tokens separated by one space"),
        "{error}"
    );
}

#[test]
fn sentencepiece_ids_equal_the_library() {
    let cases: Vec<SentencePiece> = data::json("sentencepiece.json");
    let sums = data::id_sums("sentencepiece.sums");
    assert_eq!((cases.len(), sums.len()), (4, 4));
    for (case, sums) in cases.iter().zip(&sums) {
        let tokenizer = Tokenizer::from_vocab(case.vocab()).unwrap();
        check_all_lines(&case.name, &tokenizer, sums, PLAIN);
        for ((line, ids), plain) in case.lines.iter().zip(&case.ids).zip(&case.plain) {
            assert_eq!(
                &tokenizer.encode(line, PARSE).unwrap(),
                ids,
                "{} {line:?}",
                case.name
            );
            assert_eq!(
                &tokenizer.encode(line, PLAIN).unwrap(),
                plain,
                "{} {line:?}",
                case.name
            );
            // With byte tokens no character is lost, but U+2581 becomes a space.
            if case.name != "no_bytes" {
                assert_eq!(
                    tokenizer.decode(plain, false),
                    line.replace('\u{2581}', " "),
                    "{}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn sentencepiece_adds_what_the_file_says() {
    let cases: Vec<SentencePiece> = data::json("sentencepiece.json");
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    for (add_bos, add_eos, ends) in [
        (None, None, (true, false)),
        (Some(false), Some(true), (false, true)),
        (Some(true), Some(true), (true, true)),
    ] {
        let tokenizer = Tokenizer::from_vocab(Vocab {
            add_bos,
            add_eos,
            ..cases[1].vocab()
        })
        .unwrap();
        let ids = tokenizer.encode("x", options).unwrap();
        assert_eq!(
            (ids[0] == 1, ids[ids.len() - 1] == 2),
            ends,
            "{add_bos:?} {add_eos:?}"
        );
        assert_eq!(tokenizer.decode(&ids, true), "x");
        assert_eq!(tokenizer.adds_bos(), ends.0);
    }
}

#[test]
fn byte_level_ids_equal_the_library_for_each_pre_tokenizer() {
    let case: ByteLevel = data::json("byte_level.json");
    let sums = data::id_sums("byte_level.sums");
    assert_eq!((case.ids.len(), sums.len()), (9, 9));
    for ((pre, expected), sums) in case.ids.iter().zip(&sums) {
        let tokenizer = Tokenizer::from_vocab(case.vocab(pre)).unwrap();
        check_all_lines(pre, &tokenizer, sums, PARSE);
        let composes = matches!(pre.as_str(), "qwen2" | "qwen35" | "command-r");
        for (line, ids) in case.lines.iter().zip(expected) {
            assert_eq!(
                &tokenizer.encode(line, PARSE).unwrap(),
                ids,
                "{pre} {line:?}"
            );
            assert_eq!(tokenizer.unencodable(line).next(), None);
            if !composes {
                assert_eq!(&tokenizer.decode(ids, false), line, "{pre}");
            }
        }
    }
    // The lines distinguish the rules: no two rules give the same ids.
    let rules: Vec<_> = case.ids.values().collect();
    for (index, a) in rules.iter().enumerate() {
        assert!(
            rules[..index].iter().all(|b| a != b),
            "{:?}",
            case.ids.keys().nth(index)
        );
    }
}

#[test]
fn control_tokens_are_text_unless_parsed() {
    let case: ByteLevel = data::json("byte_level.json");
    let tokenizer = Tokenizer::from_vocab(case.vocab("gpt-2")).unwrap();
    let text = "a<|im_end|>";
    assert_eq!(tokenizer.encode(text, PARSE).unwrap().last(), Some(&3));
    let plain = tokenizer.encode(text, PLAIN).unwrap();
    assert!(!plain.contains(&3));
    assert_eq!(tokenizer.decode(&plain, true), text);
    assert_eq!(
        tokenizer.decode(&tokenizer.encode(text, PARSE).unwrap(), true),
        "a"
    );
    assert_eq!(tokenizer.id_of("<|im_end|>"), Some(3));
    assert!(tokenizer.is_special(3) && !tokenizer.is_special(4));
}

#[test]
fn turn_ends_count_only_if_the_template_writes_them() {
    let case: ByteLevel = data::json("byte_level.json");
    for (template, eot, ends) in [
        (None, None, &[1][..]),
        (Some("{{ x }}<|im_end|>"), None, &[1, 3]),
        (Some("{{ x }}<|eot_id|>"), None, &[1]),
        (None, Some(2), &[1, 2]),
    ] {
        let chat_template = template.map(str::to_owned);
        let tokenizer = Tokenizer::from_vocab(Vocab {
            chat_template,
            eot,
            ..case.vocab("gpt-2")
        })
        .unwrap();
        assert_eq!(tokenizer.end_ids(), ends, "{template:?}");
        assert!(tokenizer.is_end(1) && !tokenizer.is_end(0));
    }
}

fn config(n_vocab: usize) -> TokenizerConfig {
    TokenizerConfig {
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        n_vocab,
        ..TokenizerConfig::default()
    }
}

#[test]
fn tokenizer_json_with_byte_level() {
    let case: ByteLevel = data::json("byte_level.json");
    let json = data::bytes("byte_level.tokenizer.json");
    let n_vocab = case.tokens.len();
    let tokenizer = Tokenizer::from_json(
        &json,
        TokenizerConfig {
            eos_ids: vec![3],
            ..config(n_vocab + 5)
        },
    )
    .unwrap();
    let from_vocab = Tokenizer::from_vocab(case.vocab("llama-bpe")).unwrap();
    for (line, ids) in case.lines.iter().zip(&case.ids["llama-bpe"]) {
        // The file asks for truncation to four tokens and padding to eight, which is ignored.
        assert_eq!(&tokenizer.encode(line, PARSE).unwrap(), ids, "{line:?}");
        assert_eq!(&tokenizer.decode(ids, false), line);
        assert_eq!(
            tokenizer.encode(line, PLAIN).unwrap(),
            from_vocab.encode(line, PLAIN).unwrap()
        );
    }
    let add = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    assert_eq!(tokenizer.encode("a", add).unwrap()[0], 0);
    assert_eq!(tokenizer.end_ids(), [1, 3]);
    assert_eq!(tokenizer.n_vocab(), n_vocab + 5);
    assert_eq!(
        (
            tokenizer.token_bytes(n_vocab as u32 + 1),
            tokenizer.token_bytes(0)
        ),
        (&b""[..], &b"<s>"[..])
    );
    // tokenizer_config.json decides only if there is no post-processor.
    let said = TokenizerConfig {
        add_bos_token: Some(false),
        add_eos_token: Some(true),
        ..config(n_vocab)
    };
    assert_eq!(
        Tokenizer::from_json(&json, said.clone())
            .unwrap()
            .encode("a", add)
            .unwrap()[0],
        0
    );
    let mut bare: serde_json::Value = serde_json::from_slice(&json).unwrap();
    bare["post_processor"] = serde_json::Value::Null;
    let tokenizer = Tokenizer::from_json(bare.to_string().as_bytes(), said).unwrap();
    let ids = tokenizer.encode("a", add).unwrap();
    assert_eq!((ids.len(), ids[1]), (2, 1));
    assert_eq!(
        tokenizer.special_tokens().unwrap(),
        SpecialTokens {
            before: vec![],
            after: vec![1]
        }
    );
}

/// Like BERT: lowercase words, `[CLS]` and `[SEP]` around a text, and no `bos_token` or `eos_token`
/// in the config.
#[test]
fn tokenizer_json_with_word_pieces() {
    let vocab = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "sea", "##s", "##ide", ",", "É", "é",
    ];
    let ids: serde_json::Map<_, _> = vocab
        .iter()
        .enumerate()
        .map(|(i, t)| ((*t).to_owned(), i.into()))
        .collect();
    let special = |id: usize| {
        serde_json::json!({"id": id, "content": vocab[id], "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0), special(1), special(2), special(3)],
        "normalizer": null,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids},
    });
    let config = TokenizerConfig {
        sep_token: Some("[SEP]".into()),
        n_vocab: 12,
        ..TokenizerConfig::default()
    };
    let mut tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), config).unwrap();
    let add = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    assert_eq!(
        tokenizer.encode("the seaside, É", add).unwrap(),
        [2, 4, 5, 6, 7, 8, 9, 3]
    );
    assert_eq!(tokenizer.encode("", add).unwrap(), [2, 3]);
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.sep()),
        (None, None, Some(3))
    );
    assert_eq!(
        tokenizer.special_tokens().unwrap(),
        SpecialTokens {
            before: vec![2],
            after: vec![3]
        }
    );
    assert_eq!(
        tokenizer.decode(&[2, 4, 5, 6, 7, 8, 3], true),
        "the seaside ,"
    );
    tokenizer.lower_case();
    assert_eq!(
        tokenizer.encode("THE SEA[SEP] É", add).unwrap(),
        [2, 4, 5, 3, 10, 3]
    );
}

#[test]
fn tokenizer_json_with_sentencepiece() {
    #[derive(Deserialize)]
    struct Case {
        lines: Vec<String>,
        ids: Vec<Vec<u32>>,
        decoded: Vec<String>,
    }
    let case: Case = data::json("sentencepiece_json.json");
    let tokenizer =
        Tokenizer::from_json(&data::bytes("sentencepiece.tokenizer.json"), config(1600)).unwrap();
    for ((line, ids), decoded) in case.lines.iter().zip(&case.ids).zip(&case.decoded) {
        assert_eq!(&tokenizer.encode(line, PARSE).unwrap(), ids, "{line:?}");
        assert_eq!(&tokenizer.decode(ids, true), decoded, "{line:?}");
    }
}

type Change = fn(&mut Vocab);

/// Replaces the text of one entry.
fn change(texts: &mut Texts, index: usize, text: &str) {
    *texts = texts
        .iter()
        .enumerate()
        .map(|(i, old)| if i == index { text } else { old })
        .collect();
}

/// Changes a vocabulary to an invalid one; returns the error message.
fn refusal(mut vocab: Vocab, change: Change) -> String {
    change(&mut vocab);
    Tokenizer::from_vocab(vocab).unwrap_err().to_string()
}

#[test]
fn a_sentencepiece_vocabulary_that_does_not_fit_is_refused() {
    let cases: Vec<SentencePiece> = data::json("sentencepiece.json");
    let changes: [(Change, &str); 11] = [
        (
            |v| v.n_vocab = 1800,
            "expected 1800 tokens in the tokenizer, the number of rows of the model's embedding, \
             found 1700",
        ),
        (
            |v| v.n_vocab = 5,
            "expected 5 tokens in the tokenizer, the number of rows of the model's embedding, \
             found 1700",
        ),
        (
            |v| v.model = "rwkv".into(),
            "expected a tokenizer of kind 'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE), \
             'gemma4' (BPE with bytes) or 'bert' (WordPiece), found 'rwkv'",
        ),
        (|v| v.scores = None, "the vocabulary has no scores"),
        (
            |v| v.token_types = None,
            "the vocabulary has no token types",
        ),
        (
            |v| v.scores = Some(vec![0.0; 3]),
            "the vocabulary: expected 1700 scores, one per token, found 3",
        ),
        (
            |v| v.eos = Some(1700),
            "eos_token_id: expected a token id below 1700, the number of tokens, found 1700",
        ),
        (
            |v| v.token_types.as_mut().unwrap()[3] = 9,
            "token 3 ('\n'): expected a token type from 0 to 6, found 9",
        ),
        (
            |v| v.scores.as_mut().unwrap()[3] = f32::NAN,
            "token 3 ('\n'): expected a score, found NaN",
        ),
        (
            |v| {
                change(&mut v.tokens, 20, "<0xGG>");
                v.token_types.as_mut().unwrap()[20] = 6;
            },
            "token 20 ('<0xGG>'): expected a byte token from <0x00> to <0xFF>",
        ),
        (
            |v| v.remove_extra_whitespaces = Some(true),
            "'tokenizer.ggml.remove_extra_whitespaces' is set, which is not supported for this \
             kind of tokenizer",
        ),
    ];
    for (change, expected) in changes {
        assert_eq!(refusal(cases[0].vocab(), change), expected);
    }
}

#[test]
fn a_byte_level_vocabulary_that_does_not_fit_is_refused() {
    let case: ByteLevel = data::json("byte_level.json");
    let changes: [(Change, &str); 5] = [
        (
            |v| v.n_vocab = 902,
            "expected 902 tokens in the tokenizer, the number of rows of the model's embedding, \
             found 901",
        ),
        (|v| v.merges = None, "the vocabulary has no merges"),
        (
            |v| v.token_types = Some(vec![]),
            "the vocabulary: expected 901 token types, one per token, found 0",
        ),
        (
            |v| change(v.merges.as_mut().unwrap(), 1, "abc"),
            "merge 1 ('abc'): expected two tokens separated by one space",
        ),
        (
            |v| change(v.merges.as_mut().unwrap(), 1, "a zzz"),
            "merge 1 ('a zzz'): the vocabulary has no token 'zzz'",
        ),
    ];
    for (change, expected) in changes {
        assert_eq!(refusal(case.vocab("gpt-2"), change), expected);
    }
    let message = refusal(case.vocab("no-such"), |_| ());
    assert!(
        message.starts_with("pre-tokenizer 'no-such' is not supported: expected one of "),
        "{message}"
    );
}

#[test]
fn a_tokenizer_json_that_does_not_fit_is_refused() {
    let json = data::bytes("byte_level.tokenizer.json");
    let refusal = |json: &[u8], config| Tokenizer::from_json(json, config).unwrap_err().to_string();
    let message = "expected 900 tokens in the tokenizer, the number of rows of the model's \
        embedding, found 901";
    assert_eq!(refusal(&json, config(900)), message);
    let strange = TokenizerConfig {
        bos_token: Some("<bos>".into()),
        ..config(901)
    };
    assert_eq!(
        refusal(&json, strange),
        "bos_token: expected a token of the vocabulary, found '<bos>'"
    );
    let error = Tokenizer::from_json(b"{}", config(901)).unwrap_err();
    assert!(
        matches!(
            error,
            TextError::Json {
                file: "tokenizer.json",
                ..
            }
        ),
        "{error}"
    );
    let mut other: serde_json::Value = serde_json::from_slice(&json).unwrap();
    other["decoder"] = serde_json::json!({"type": "WordPiece", "prefix": "@@", "cleanup": true});
    let message = refusal(other.to_string().as_bytes(), config(901));
    assert!(
        message.starts_with("tokenizer.json: decoder '{\"type\":\"WordPiece\""),
        "{message}"
    );
}

/// As in transformers, where no token has such an id.
#[test]
fn ids_beyond_the_vocabulary_end_nothing() {
    let json = data::bytes("byte_level.tokenizer.json");
    let named = Some("</s>".to_owned());
    for (ids, eos_token, expected) in [
        (&[901][..], None, &[][..]),
        (&[901], named.clone(), &[1]),
        (&[u32::MAX, 900], named, &[1, 900]),
    ] {
        let config = TokenizerConfig {
            eos_ids: ids.to_vec(),
            eos_token,
            ..config(901)
        };
        let tokenizer = Tokenizer::from_json(&json, config).unwrap();
        assert_eq!(tokenizer.end_ids(), expected, "{ids:?}");
    }
}

#[test]
fn text_without_any_token_is_an_error() {
    let cases: Vec<SentencePiece> = data::json("sentencepiece.json");
    let no_bytes = cases.iter().find(|case| case.name == "no_bytes").unwrap();
    let tokenizer = Tokenizer::from_vocab(Vocab {
        unk: None,
        ..no_bytes.vocab()
    })
    .unwrap();
    let message = tokenizer
        .encode("a\u{10ffff}", PLAIN)
        .unwrap_err()
        .to_string();
    let expected = "the tokenizer cannot express '\\u{10ffff}': it has no token for the character, no byte \
         tokens and no unknown token";
    assert_eq!(message, expected);
}

#[test]
fn long_text_does_not_cost_a_square() {
    // 2 MB without a word boundary: a quadratic merge would take hours.
    let cases: Vec<SentencePiece> = data::json("sentencepiece.json");
    let tokenizer = Tokenizer::from_vocab(cases[0].vocab()).unwrap();
    let text = "theinandtokens".repeat(150_000);
    let ids = tokenizer.encode(&text, PLAIN).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), text);
}
