//! Reads `tokenizer.bin` of llama2.c: the vocabulary of a SentencePiece model, in a form for C.
//!
//! The file has the greatest length of a token, and for each token a score (f32), a length (u32)
//! and its bytes. Spaces are spaces, not U+2581. The ids are those of SentencePiece: 0 is unknown,
//! 1 begins a text, 2 ends one, and 3 to 258 are the bytes `<0x00>` to `<0xFF>`; the first version
//! of the format wrote these as characters.

use std::path::Path;

use super::super::error::CheckpointError;
use super::super::map;

/// Largest accepted file; the one of Llama 2 has 434 KB.
const MAX_BYTES: u64 = 64 << 20;
/// The id of the byte 0.
const FIRST_BYTE: usize = 3;

/// One token of a vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Llama2cToken {
    /// The text as in a SentencePiece vocabulary.
    pub text: String,
    /// The score: of two pairs, the one with the greater score is joined first.
    pub score: f32,
    /// The kind, by its number in SentencePiece: 1 normal, 2 unknown, 3 control, 6 byte.
    pub kind: i32,
}

/// Reads the vocabulary of a model with `n_tokens` tokens.
///
/// # Errors
///
/// The file cannot be read, or ends before the last token, or has more bytes.
pub fn read_tokenizer(path: &Path, n_tokens: usize) -> Result<Vec<Llama2cToken>, CheckpointError> {
    let bytes = map::read_small(path, MAX_BYTES)?;
    parse(&bytes, n_tokens).map_err(|reason| CheckpointError::Unusable {
        path: path.to_owned(),
        reason,
    })
}

fn parse(bytes: &[u8], n_tokens: usize) -> Result<Vec<Llama2cToken>, String> {
    let mut rest = bytes;
    let number = |rest: &mut &[u8], id: usize| -> Result<[u8; 4], String> {
        let (number, after) = rest.split_first_chunk::<4>().ok_or_else(|| {
            format!(
                "expected {n_tokens} tokens, as the model has, but the file ends within token \
                 {id}: use the tokenizer.bin of the model"
            )
        })?;
        *rest = after;
        Ok(*number)
    };
    let longest = u32::from_le_bytes(number(&mut rest, 0)?) as usize;
    let mut texts = Vec::new();
    let mut scores = Vec::new();
    for id in 0..n_tokens {
        scores.push(f32::from_le_bytes(number(&mut rest, id)?));
        let len = u32::from_le_bytes(number(&mut rest, id)?) as usize;
        if len > longest || len > rest.len() {
            return Err(format!(
                "token {id}: expected at most {} bytes, found {len}: the file is damaged, or it is \
                 not the tokenizer.bin of the model",
                longest.min(rest.len())
            ));
        }
        let (text, after) = rest.split_at(len);
        rest = after;
        let text = std::str::from_utf8(text)
            .map_err(|_| format!("token {id} is not valid UTF-8: the file is damaged"))?;
        texts.push(text);
    }
    if !rest.is_empty() {
        return Err(format!(
            "{} bytes follow the {n_tokens} tokens that the model has: use the tokenizer.bin of \
             the model",
            rest.len()
        ));
    }
    let is_first_version = byte_name(&texts, 0) == Some("\0");
    let tokens = texts.iter().zip(scores).enumerate();
    Ok(tokens
        .map(|(id, (text, score))| token(id, text, score, is_first_version))
        .collect())
}

/// The text of the token that stands for a byte.
fn byte_name<'a>(texts: &[&'a str], byte: u8) -> Option<&'a str> {
    texts.get(FIRST_BYTE + usize::from(byte)).copied()
}

fn token(id: usize, text: &str, score: f32, is_first_version: bool) -> Llama2cToken {
    let byte = id
        .checked_sub(FIRST_BYTE)
        .and_then(|byte| u8::try_from(byte).ok());
    let name = byte.map(|byte| format!("<0x{byte:02X}>"));
    let (text, kind) = match (id, name) {
        (0, _) => (text.to_owned(), 2),
        // Surrounded by line feeds in the file.
        (1 | 2, _) => (text.trim_matches('\n').to_owned(), 3),
        (_, Some(name)) if is_first_version || name == text => (name, 6),
        _ => (text.replace(' ', "\u{2581}"), 1),
    };
    Llama2cToken { text, score, kind }
}
