//! Vocabularies of GGUF files, compared with llama.cpp: `tests/oracle/make_gguf_text.py`.

use crate::data;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use thane_engine::text::{EncodeOptions, Rendered, Tokenizer, Vocab};

const PARSE: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

#[derive(Deserialize)]
struct Goldens {
    /// Names of pre-tokenizers; `None` is a file without a name.
    pre: Vec<Option<String>>,
    phi3: Phi3,
    wordpiece: WordPiece,
}

#[derive(Deserialize)]
struct Phi3 {
    tokens: Vec<String>,
    token_types: Vec<i32>,
    texts: Vec<String>,
    ids: BTreeMap<String, Vec<Vec<u32>>>,
}

#[derive(Deserialize)]
struct WordPiece {
    tokens: Vec<String>,
    token_types: Vec<i32>,
    texts: Vec<String>,
    cases: Vec<WordPieceCase>,
}

#[derive(Deserialize)]
struct WordPieceCase {
    lowercase: Option<bool>,
    strip_accents: Option<bool>,
    ids: Vec<Vec<u32>>,
}

fn goldens() -> Goldens {
    data::json("gguf_text.json")
}

/// The pre-tokenizers, and a file that names none.
#[test]
fn pre_tokenizers_split_as_in_llama_cpp() {
    let case: Value = data::json("byte_level.json");
    let list = |key: &str| -> Vec<String> { serde_json::from_value(case[key].clone()).unwrap() };
    let (tokens, merges) = (list("tokens"), list("merges"));
    let lines = data::mixed_lines();
    let (names, sums) = (goldens().pre, data::id_sums("gguf_text.sums"));
    assert_eq!((names.len(), sums.len()), (13, 13));
    for (pre, sums) in names.iter().zip(sums) {
        let tokenizer = Tokenizer::from_vocab(Vocab {
            model: "gpt2".into(),
            n_vocab: tokens.len(),
            tokens: tokens.iter().collect(),
            merges: Some(merges.iter().collect()),
            token_types: serde_json::from_value(case["token_types"].clone()).unwrap(),
            pre: pre.clone(),
            bos: Some(0),
            ..Vocab::default()
        })
        .unwrap();
        for (line, sum) in lines.iter().zip(sums) {
            let ids = tokenizer.encode(line, PARSE).unwrap();
            assert_eq!(data::id_sum(&ids), sum, "{pre:?}: {line:?}: {ids:?}");
        }
        let begins = matches!(pre.as_deref(), Some("falcon3" | "lfm2" | "pixtral"));
        assert_eq!(tokenizer.adds_bos(), begins, "{pre:?}");
    }
}

/// Control tokens of Phi-3 take the white space behind them, that of messages too.
#[test]
fn control_tokens_take_the_white_space_behind_them() {
    let Phi3 {
        tokens,
        token_types,
        texts,
        ids,
    } = goldens().phi3;
    let is_kept = |token: &str| matches!(token, "<unk>" | "<s>" | "<|endoftext|>");
    let takes = |(_, token): &(u32, &String)| {
        (token.starts_with("<|") || *token == "</s>") && !is_kept(token)
    };
    let rstrip: Vec<u32> = (0..).zip(&tokens).filter(takes).map(|(id, _)| id).collect();
    let vocab = |rstrip| Vocab {
        model: "llama".into(),
        n_vocab: tokens.len(),
        tokens: tokens.iter().collect(),
        scores: Some((0..tokens.len()).map(|id| -(id as f32)).collect()),
        token_types: Some(token_types.clone()),
        unk: Some(0),
        bos: Some(1),
        rstrip,
        ..Vocab::default()
    };
    assert_eq!(ids.len(), 3);
    for (name, ids) in ids {
        let rstrip = if name == "Other" {
            Vec::new()
        } else {
            rstrip.clone()
        };
        let tokenizer = Tokenizer::from_vocab(vocab(rstrip)).unwrap();
        for (text, ids) in texts.iter().zip(&ids) {
            assert_eq!(
                &tokenizer.encode(text, PARSE).unwrap(),
                ids,
                "{name}: {text:?}"
            );
        }
    }
    let tokenizer = Tokenizer::from_vocab(vocab(rstrip)).unwrap();
    let rendered = |text: &str, from_messages| Rendered {
        text: text.to_owned(),
        from_messages: vec![from_messages],
    };
    let text = "<|user|>\n a<|end|>\n";
    let ids = tokenizer.encode_rendered(&rendered(text, 9..11)).unwrap();
    assert_eq!(ids, tokenizer.encode(text, PARSE).unwrap());
    assert_eq!(ids.len(), 4);
}

/// An unknown id is refused.
#[test]
fn a_token_that_takes_white_space_exists() {
    let vocab = Vocab {
        model: "llama".into(),
        n_vocab: 1,
        tokens: ["a"].into_iter().collect(),
        rstrip: vec![1],
        ..Vocab::default()
    };
    let error = Tokenizer::from_vocab(vocab).unwrap_err().to_string();
    let expected = "rstrip: expected a token id below 1, the number of tokens, found 1";
    assert_eq!(error, expected);
}

/// Whether texts are lowercased does not follow from the vocabulary, which has capitals.
#[test]
fn wordpiece_normalizes_as_the_file_says() {
    let case = goldens().wordpiece;
    assert_eq!(case.cases.len(), 9);
    for setting in case.cases {
        let tokenizer = Tokenizer::from_vocab(Vocab {
            model: "bert".into(),
            n_vocab: case.tokens.len(),
            tokens: case.tokens.iter().collect(),
            token_types: Some(case.token_types.clone()),
            cls: Some(2),
            sep: Some(3),
            unk: Some(1),
            pad: Some(0),
            lowercase: setting.lowercase,
            strip_accents: setting.strip_accents,
            ..Vocab::default()
        })
        .unwrap();
        let is = (setting.lowercase, setting.strip_accents);
        for (text, ids) in case.texts.iter().zip(&setting.ids) {
            assert_eq!(
                &tokenizer.encode(text, PARSE).unwrap(),
                ids,
                "{is:?}: {text:?}"
            );
        }
    }
}
