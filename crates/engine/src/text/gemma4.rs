//! The vocabulary of Gemma 4 in a GGUF file, as a `tokenizer.json`.
//!
//! llama.cpp's converter writes the tokens and merges of the published `tokenizer.json` under the
//! model `gemma4`. The file does not say how text is prepared, because that is the same for every
//! Gemma: spaces become `▁`, and a character without a token becomes its bytes.

use serde_json::{Map, Value, json};

use super::vocab::TokenKind;
use super::{TextError, TokenizerConfig, Vocab};

const SPACE: &str = "\u{2581}";

/// The bytes of a `tokenizer.json` and the settings beside it.
pub(super) fn tokenizer_json(
    vocab: &Vocab,
    kinds: &[TokenKind],
) -> Result<(Vec<u8>, TokenizerConfig), TextError> {
    let (mut ids, mut added) = (Map::new(), Vec::new());
    for (id, (token, kind)) in vocab.tokens.iter().zip(kinds).enumerate() {
        let special = *kind == TokenKind::Control;
        if special || *kind == TokenKind::UserDefined {
            added.push(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            }));
        }
        // Among tokens with the same text, the lowest id wins.
        ids.entry(token).or_insert_with(|| json!(id));
    }
    let text = |id: Option<u32>| -> Option<String> {
        let token = vocab.tokens.get(id? as usize)?;
        Some(token.to_owned())
    };
    let unk = text(vocab.unk).ok_or(TextError::Missing("unknown_token_id"))?;
    let split = json!({"String": " "});
    let document = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": split, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split", "pattern": split, "behavior": "MergedWithPrevious", "invert": false,
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE", "unk_token": unk, "fuse_unk": true, "byte_fallback": true,
            "vocab": Value::Object(ids), "merges": merges(vocab)?,
        },
    });
    let ends = [vocab.eos, vocab.eot, vocab.eom].into_iter().flatten();
    let config = TokenizerConfig {
        bos_token: text(vocab.bos),
        eos_token: text(vocab.eos),
        // llama.cpp adds the token, whatever the file says.
        add_bos_token: Some(true),
        add_eos_token: vocab.add_eos,
        chat_template: vocab.chat_template.clone(),
        eos_ids: ends.chain(vocab.ends.iter().copied()).collect(),
        n_vocab: vocab.n_vocab,
        ..TokenizerConfig::default()
    };
    Ok((document.to_string().into_bytes(), config))
}

/// Pairs of tokens, best first.
fn merges(vocab: &Vocab) -> Result<Vec<[&str; 2]>, TextError> {
    let merges = vocab.merges.as_ref().ok_or(TextError::Missing("merges"))?;
    let mut pairs = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => {
                pairs.push([left, right]);
            }
            _ => {
                return Err(TextError::BadMerge {
                    index,
                    merge: merge.to_owned(),
                    reason: "expected two tokens separated by one space".to_owned(),
                });
            }
        }
    }
    Ok(pairs)
}
