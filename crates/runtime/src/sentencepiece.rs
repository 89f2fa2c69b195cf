//! Reads `tokenizer.model`, the vocabulary that the SentencePiece library writes, where a
//! checkpoint has no `tokenizer.json`.

use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};
use thane_engine::text::TextError;
use thane_engine::text::class::{NamedPiece, Piece, PieceKind, SentencePiece};
use thane_mil::budget::Reservation;
use thane_mil::footprint::{list, piece};

use crate::error::LanguageError;

/// The fields of SentencePiece's `ModelProto` that decide how text is encoded. Each may
/// be absent, and counts as SentencePiece says then. Source:
/// sentencepiece_model.proto.
#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<PieceProto>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, Message)]
struct PieceProto {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "35")]
    byte_fallback: Option<bool>,
    #[prost(int32, optional, tag = "40")]
    unk_id: Option<i32>,
    #[prost(int32, optional, tag = "41")]
    bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42")]
    eos_id: Option<i32>,
    #[prost(string, optional, tag = "45")]
    unk_piece: Option<String>,
    #[prost(string, optional, tag = "46")]
    bos_piece: Option<String>,
    #[prost(string, optional, tag = "47")]
    eos_piece: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    escape_whitespaces: Option<bool>,
}

/// The tag of [`Model::pieces`].
const PIECES: u32 = 1;
/// `TrainerSpec.ModelType`, which is absent from unigram models.
const UNIGRAM: i32 = 1;
/// `ModelProto.SentencePiece.Type`.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// What the bytes of a `tokenizer.model` say, of a model with `n_vocab` tokens.
/// Its memory is added to `held` before.
pub fn parse(
    bytes: &[u8],
    n_vocab: usize,
    held: &mut Reservation,
) -> Result<SentencePiece, LanguageError> {
    let refused = |fault: DecodeError| LanguageError::SentencePiece(fault.to_string());
    let n_pieces = count_pieces(bytes).map_err(refused)?;
    if n_pieces > n_vocab {
        return Err(LanguageError::SentencePiece(format!(
            "expected at most {n_vocab} pieces, the rows of the model's embedding, found {n_pieces}"
        )));
    }
    let what = || "the pieces of tokenizer.model".to_owned();
    held.grow(pieces_bytes(n_pieces, bytes.len()), what)
        .map_err(TextError::from)?;
    let model = Model::decode(bytes).map_err(refused)?;
    let trainer = model.trainer.unwrap_or_default();
    let normalizer = model.normalizer.unwrap_or_default();
    let named = |id: Option<i32>, usual_id, text: Option<String>, usual: &str| NamedPiece {
        id: id.unwrap_or(usual_id),
        text: text.unwrap_or_else(|| usual.to_owned()),
    };
    Ok(SentencePiece {
        pieces: model.pieces.into_iter().map(of_proto).collect(),
        is_unigram: trainer.model_type.unwrap_or(UNIGRAM) == UNIGRAM,
        byte_fallback: trainer.byte_fallback.unwrap_or(false),
        unk: named(trainer.unk_id, 0, trainer.unk_piece, "<unk>"),
        bos: named(trainer.bos_id, 1, trainer.bos_piece, "<s>"),
        eos: named(trainer.eos_id, 2, trainer.eos_piece, "</s>"),
        charsmap: normalizer.charsmap.unwrap_or_default(),
        add_dummy_prefix: normalizer.add_dummy_prefix.unwrap_or(true),
        remove_extra_whitespaces: normalizer.remove_extra_whitespaces.unwrap_or(true),
        escape_whitespaces: normalizer.escape_whitespaces.unwrap_or(true),
    })
}

/// The number of pieces, each of which takes far more memory than its two bytes or more here.
fn count_pieces(mut bytes: &[u8]) -> Result<usize, DecodeError> {
    let mut n = 0;
    while !bytes.is_empty() {
        let (tag, wire) = decode_key(&mut bytes)?;
        n += usize::from(tag == PIECES);
        skip_field(wire, tag, &mut bytes, DecodeContext::default())?;
    }
    Ok(n)
}

/// At least as many bytes as the pieces of a file take, as messages in a list that grows and as
/// what they become, and all texts.
fn pieces_bytes(n_pieces: usize, file_len: usize) -> usize {
    let messages = list(n_pieces, size_of::<PieceProto>());
    let pieces = piece(n_pieces * size_of::<Piece>());
    messages + messages / 2 + pieces + n_pieces * piece(0) + 2 * file_len
}

fn of_proto(piece: PieceProto) -> Piece {
    Piece {
        text: piece.text.unwrap_or_default(),
        score: piece.score.unwrap_or_default(),
        kind: match piece.kind {
            Some(CONTROL) => PieceKind::Control,
            Some(USER_DEFINED) => PieceKind::UserDefined,
            Some(UNKNOWN | UNUSED | BYTE) => PieceKind::Other,
            // Numbers that the format does not define count as if they were absent.
            _ => PieceKind::Normal,
        },
    }
}
