//! Reads `tokenizer.model`, the vocabulary that the SentencePiece library writes, where a
//! checkpoint has no `tokenizer.json`.

use prost::Message;
use thane_engine::text::{Texts, TokenizerConfig, Vocab};

use crate::error::LanguageError;

/// The fields of SentencePiece's `ModelProto` that decide how text is encoded. Source:
/// sentencepiece_model.proto.
#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    /// The same numbers as `tokenizer.ggml.token_type` in GGUF.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    treat_whitespace_as_suffix: Option<bool>,
    #[prost(int32, optional, tag = "40")]
    unk_id: Option<i32>,
    #[prost(int32, optional, tag = "41")]
    bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42")]
    eos_id: Option<i32>,
    #[prost(int32, optional, tag = "43")]
    pad_id: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    escape_whitespaces: Option<bool>,
}

/// `TrainerSpec.ModelType`.
const UNIGRAM: i32 = 1;
const BPE: i32 = 2;
/// `ModelProto.SentencePiece.Type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// A token that `tokenizer_config.json` adds to the vocabulary.
pub struct Added {
    /// Its id.
    pub id: usize,
    /// Its text.
    pub text: String,
    /// Whether it controls the model and stands for no text.
    pub special: bool,
}

/// The vocabulary in the bytes of a `tokenizer.model`, with the settings of the files beside it.
/// Rows of the embedding without a piece become unused tokens.
pub fn vocabulary(
    bytes: &[u8],
    config: &TokenizerConfig,
    added: &[Added],
) -> Result<Vocab, LanguageError> {
    let refused = |reason: String| LanguageError::SentencePiece(reason);
    let model = Model::decode(bytes).map_err(|fault| refused(fault.to_string()))?;
    let trainer = model.trainer.unwrap_or_default();
    let normalizer = model.normalizer.unwrap_or_default();
    refuse_other_forms(&trainer, &normalizer).map_err(refused)?;
    let n_vocab = config.n_vocab;
    let n_pieces = model.pieces.len();
    if n_pieces > n_vocab {
        return Err(refused(format!(
            "expected at most {n_vocab} pieces, the rows of the model's embedding, found {n_pieces}"
        )));
    }
    let mut pieces: Vec<(String, f32, i32)> = model.pieces.into_iter().map(of_piece).collect();
    let user_defined = pieces
        .iter()
        .zip(0..)
        .filter(|((.., kind), _)| *kind == USER_DEFINED);
    let inner = user_defined.map(|(_, id)| id).collect();
    let unused = |i: usize| (format!("[unused {i}]"), 0.0, UNUSED);
    pieces.extend((n_pieces..n_vocab).map(unused));
    for token in added {
        let kind = if token.special { CONTROL } else { USER_DEFINED };
        match pieces.get_mut(token.id) {
            // The file has it already, and says what it is.
            Some((text, ..)) if *text == token.text => {}
            Some(piece) if token.id >= n_pieces => *piece = (token.text.clone(), 0.0, kind),
            _ => {
                return Err(refused(format!(
                    "tokenizer_config.json adds the token {:?} as {}, which the {n_pieces} pieces \
                     and {n_vocab} rows of the embedding do not allow",
                    token.text, token.id
                )));
            }
        }
    }
    let named = |name: &Option<String>, id: Option<i32>| {
        let found = name
            .as_ref()
            .and_then(|name| pieces.iter().position(|(text, ..)| text == name));
        let found = found.or_else(|| usize::try_from(id?).ok().filter(|id| *id < n_vocab));
        found.and_then(|id| u32::try_from(id).ok())
    };
    Ok(Vocab {
        model: "llama".to_owned(),
        bos: named(&config.bos_token, trainer.bos_id.or(Some(1))),
        eos: named(&config.eos_token, trainer.eos_id.or(Some(2))),
        unk: named(&config.unk_token, trainer.unk_id.or(Some(0))),
        pad: named(&config.pad_token, trainer.pad_id),
        ends: config.eos_ids.clone(),
        add_bos: config.add_bos_token,
        add_eos: config.add_eos_token,
        add_space_prefix: Some(normalizer.add_dummy_prefix.unwrap_or(true)),
        remove_extra_whitespaces: Some(normalizer.remove_extra_whitespaces.unwrap_or(true)),
        inner,
        chat_template: config.chat_template.clone(),
        n_vocab,
        scores: Some(pieces.iter().map(|(_, score, _)| *score).collect()),
        token_types: Some(pieces.iter().map(|(.., kind)| *kind).collect()),
        tokens: pieces
            .iter()
            .map(|(text, ..)| text.as_str())
            .collect::<Texts>(),
        ..Vocab::default()
    })
}

/// Refuses models that encode by rules that are not supported.
fn refuse_other_forms(trainer: &Trainer, normalizer: &Normalizer) -> Result<(), String> {
    match trainer.model_type.unwrap_or(UNIGRAM) {
        BPE => {}
        UNIGRAM => return Err("expected BPE, found a unigram model".to_owned()),
        other => return Err(format!("expected BPE, found model type {other}")),
    }
    if trainer.treat_whitespace_as_suffix.unwrap_or(false) {
        return Err("expected spaces before words, found treat_whitespace_as_suffix".to_owned());
    }
    if normalizer
        .charsmap
        .as_ref()
        .is_some_and(|map| !map.is_empty())
    {
        let name = normalizer.name.as_deref().unwrap_or_default();
        return Err(format!(
            "expected the normalization `identity`, found `{name}`"
        ));
    }
    if !normalizer.escape_whitespaces.unwrap_or(true) {
        let found = "expected spaces that become U+2581, found escape_whitespaces = false";
        return Err(found.to_owned());
    }
    Ok(())
}

/// The text of a piece as GGUF spells it: spaces in user-defined pieces are spaces. The library
/// never finds a piece that was made with a space instead of U+2581, so such a piece is unknown.
fn of_piece(piece: Piece) -> (String, f32, i32) {
    let (text, kind) = (piece.text.unwrap_or_default(), piece.kind.unwrap_or(NORMAL));
    if text.contains(' ') && matches!(kind, NORMAL | USER_DEFINED | UNUSED) {
        return (text, piece.score.unwrap_or_default(), UNKNOWN);
    }
    let text = if kind == USER_DEFINED {
        text.replace('\u{2581}', " ")
    } else {
        text
    };
    (text, piece.score.unwrap_or_default(), kind)
}
