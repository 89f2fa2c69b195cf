//! The vocabulary of BERT in a GGUF file, as a `tokenizer.json`.
//!
//! llama.cpp's converter marks the beginning of a word by `▁` and leaves out the `##` of BERT's
//! other tokens (conversion/bert.py). The file says no more of how text is normalized than whether
//! letters are lowercased and lose their accents, and nothing of how texts are surrounded, because
//! the rest is the same for every BERT.

use serde_json::{Map, Value, json};

use super::vocab::TokenKind;
use super::{TextError, TokenizerConfig, Vocab};

const WORD: char = '\u{2581}';
const CONTINUATION: &str = "##";

/// The bytes of a `tokenizer.json` and the settings beside it.
pub(super) fn tokenizer_json(
    vocab: &Vocab,
    kinds: &[TokenKind],
) -> Result<(Vec<u8>, TokenizerConfig), TextError> {
    let (mut ids, mut added) = (Map::new(), Vec::new());
    for (id, (token, kind)) in vocab.tokens.iter().zip(kinds).enumerate() {
        let spelled = match (kind, token.strip_prefix(WORD)) {
            (TokenKind::Control, _) => token.to_owned(),
            (_, Some(word)) => word.to_owned(),
            (_, None) => format!("{CONTINUATION}{token}"),
        };
        if *kind == TokenKind::Control {
            added.push(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }));
        }
        if ids.insert(spelled.clone(), json!(id)).is_some() {
            return Err(TextError::BadToken {
                id,
                token: spelled,
                reason: "expected each token once".to_owned(),
            });
        }
    }
    // Some files name a token only by its spelling.
    let spelled = |token: &str| {
        let is_it =
            |(known, kind): (&str, &TokenKind)| known == token && *kind == TokenKind::Control;
        let at = vocab.tokens.iter().zip(kinds).position(is_it)?;
        u32::try_from(at).ok()
    };
    let named = |id: Option<u32>, spelling, what| -> Result<(u32, &str), TextError> {
        let id = id
            .or_else(|| spelled(spelling))
            .ok_or(TextError::Missing(what))?;
        let token = vocab.tokens.get(id as usize);
        token
            .map(|token| (id, token))
            .ok_or(TextError::IdOutOfRange {
                what,
                id,
                n_vocab: vocab.tokens.len(),
            })
    };
    let cls = named(vocab.cls.or(vocab.bos), "[CLS]", "cls_token_id")?;
    let sep = named(vocab.sep.or(vocab.eos), "[SEP]", "seperator_token_id")?;
    let unk = named(vocab.unk, "[UNK]", "unknown_token_id")?;
    let lowercase = vocab.lowercase.unwrap_or(true);
    let document = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": vocab.strip_accents.unwrap_or(lowercase), "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template(cls, sep),
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": unk.1, "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": 100, "vocab": Value::Object(ids),
        },
    });
    let config = TokenizerConfig {
        sep_token: Some(sep.1.to_owned()),
        n_vocab: vocab.n_vocab,
        ..TokenizerConfig::default()
    };
    Ok((document.to_string().into_bytes(), config))
}

/// BERT's tokens around a text, and around two.
fn template(cls: (u32, &str), sep: (u32, &str)) -> Value {
    let special = |(_, token): (u32, &str), kind: u32| json!({"SpecialToken": {"id": token, "type_id": kind}});
    let text = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
    let first = [special(cls, 0), text("A", 0), special(sep, 0)];
    let pair = [&first[..], &[text("B", 1), special(sep, 1)]].concat();
    let tokens: Map<String, Value> = [cls, sep]
        .into_iter()
        .map(|(id, token)| {
            let row = json!({"id": token, "ids": [id], "tokens": [token]});
            (token.to_owned(), row)
        })
        .collect();
    json!({
        "type": "TemplateProcessing", "single": first, "pair": pair,
        "special_tokens": tokens,
    })
}
