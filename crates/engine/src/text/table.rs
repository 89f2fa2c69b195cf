//! The bytes of each token, in one arena for the whole vocabulary.

use std::collections::HashMap;

use super::TextError;
use super::hf::JsonTokenizer;
use super::texts::Spelled;
use super::vocab::TokenKind;

/// How a file spells the bytes of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's alphabet: one printable character for each byte.
    ByteLevel,
    /// SentencePiece: U+2581 stands for a space and `<0xXX>` for a single byte.
    SentencePiece,
    /// WordPiece: words, and continuations of words after `##`. The text between words is not
    /// stored; one space stands for it.
    WordPiece,
}

/// The bytes and the kind of every token, without an allocation for each token.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// `ends[id]` is the end of the bytes of token `id`.
    ends: Vec<u32>,
    kinds: Vec<u8>,
}

impl TokenTable {
    pub(super) fn with_capacity(n_tokens: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(n_tokens * 6),
            ends: Vec::with_capacity(n_tokens),
            kinds: Vec::with_capacity(n_tokens),
        }
    }

    /// The bytes and kinds of all tokens of a `tokenizer.json`.
    pub(super) fn of_json(
        hf: &JsonTokenizer,
        spelling: Spelling,
        n_vocab: usize,
    ) -> Result<Self, TextError> {
        let by_token: HashMap<String, u32> = hf.get_vocab(true);
        let n_tokens = by_token.values().max().map_or(0, |&id| id as usize + 1);
        if n_tokens > n_vocab {
            return Err(TextError::VocabSize {
                tokenizer: n_tokens,
                model: n_vocab,
            });
        }
        let mut tokens = vec![""; n_tokens];
        for (token, &id) in &by_token {
            tokens[id as usize] = token;
        }
        let added = hf.get_added_tokens_decoder();
        let mut table = Self::with_capacity(n_tokens);
        for (id, token) in tokens.into_iter().enumerate() {
            let kind = match added.get(&(id as u32)) {
                Some(added) if added.special => TokenKind::Control,
                Some(_) => TokenKind::UserDefined,
                None if spelling == Spelling::SentencePiece && byte_of_piece(token).is_some() => {
                    TokenKind::Byte
                }
                None => TokenKind::Normal,
            };
            table.push(token, kind, spelling);
        }
        table.shrink();
        Ok(table)
    }

    /// Appends the next token, spelled as in the file.
    pub(super) fn push(&mut self, text: &str, kind: TokenKind, spelling: Spelling) {
        match kind {
            TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown => {
                // Plain text, except that U+2581 is a space in SentencePiece's user-defined tokens.
                if spelling == Spelling::SentencePiece {
                    self.push_pieces(text);
                } else {
                    self.bytes.extend_from_slice(text.as_bytes());
                }
            }
            TokenKind::Byte => match byte_of_piece(text) {
                Some(byte) => self.bytes.push(byte),
                None => self.bytes.extend_from_slice(text.as_bytes()),
            },
            TokenKind::Normal | TokenKind::Unused => match spelling {
                Spelling::ByteLevel => push_byte_level(text, &mut self.bytes),
                Spelling::SentencePiece => self.push_pieces(text),
                Spelling::WordPiece => match text.strip_prefix("##") {
                    Some(rest) => self.bytes.extend_from_slice(rest.as_bytes()),
                    None => self.bytes.extend(b" ".iter().chain(text.as_bytes())),
                },
            },
        }
        self.ends
            .push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        self.kinds.push(kind as u8);
    }

    fn push_pieces(&mut self, text: &str) {
        for (index, part) in text.split('\u{2581}').enumerate() {
            if index > 0 {
                self.bytes.push(b' ');
            }
            self.bytes.extend_from_slice(part.as_bytes());
        }
    }

    /// The bytes of a token; empty for an id without a token (a padded embedding row).
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        self.bytes.get(start as usize..end as usize).unwrap_or(&[])
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.kinds.get(id as usize).is_some_and(|&kind| {
            kind == TokenKind::Control as u8 || kind == TokenKind::Unknown as u8
        })
    }

    /// The bytes that occur in valid UTF-8 and have no token of their own.
    pub(super) fn missing_bytes(&self) -> Vec<u8> {
        let mut found = [false; 256];
        // 0xc0, 0xc1 and 0xf5 to 0xff never occur.
        for byte in [0xc0, 0xc1].into_iter().chain(0xf5..=0xff) {
            found[byte] = true;
        }
        for id in 0..self.ends.len() as u32 {
            if let [byte] = self.get(id) {
                found[*byte as usize] = true;
            }
        }
        (0..=255).filter(|&byte| !found[byte as usize]).collect()
    }

    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.kinds.shrink_to_fit();
    }
}

impl Spelled for TokenTable {
    fn spelled(&self, id: u32) -> &[u8] {
        self.get(id)
    }
}

/// The byte that a SentencePiece token `<0xXX>` stands for.
pub(super) fn byte_of_piece(piece: &str) -> Option<u8> {
    let hex = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || hex.starts_with('+') {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

/// Appends the bytes of a token in GPT-2's alphabet, or the token's UTF-8 if a character is not in
/// that alphabet (added tokens are stored as plain text).
fn push_byte_level(token: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for c in token.chars() {
        let Some(byte) = byte_of_char(c) else {
            bytes.truncate(start);
            bytes.extend_from_slice(token.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}

/// GPT-2's alphabet writes the printable bytes of Latin-1 as themselves and maps the other 68 to
/// U+0100 and up, in ascending order.
fn byte_of_char(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte_level(token: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_byte_level(token, &mut bytes);
        bytes
    }

    #[test]
    fn byte_alphabet_is_a_bijection() {
        let mut bytes: Vec<u8> = (0..0x180)
            .filter_map(char::from_u32)
            .filter_map(byte_of_char)
            .collect();
        assert_eq!(bytes.len(), 256);
        bytes.sort_unstable();
        assert!(
            bytes
                .iter()
                .enumerate()
                .all(|(index, &byte)| index == byte as usize)
        );
        // Known points of the alphabet: space, newline, no-break space, soft hyphen.
        for (text, byte) in [
            ("Ġ", 0x20),
            ("Ċ", 0x0a),
            ("ł", 0xa0),
            ("Ń", 0xad),
            ("ġ", 0x7f),
        ] {
            assert_eq!(byte_level(text), [byte], "{text}");
        }
        assert_eq!(byte_level("a｜"), "a｜".as_bytes());
    }

    #[test]
    fn byte_pieces() {
        for (piece, byte) in [
            ("<0x00>", Some(0)),
            ("<0xFF>", Some(255)),
            ("<0xfF>", Some(255)),
            ("<0x+F>", None),
            ("<0x1>", None),
            ("<0x100>", None),
            ("0x10", None),
        ] {
            assert_eq!(byte_of_piece(piece), byte, "{piece}");
        }
    }

    #[test]
    fn table_prints_what_tokens_mean() {
        let mut table = TokenTable::with_capacity(4);
        table.push(
            "\u{2581}a\u{2581}",
            TokenKind::Normal,
            Spelling::SentencePiece,
        );
        table.push("<0x0A>", TokenKind::Byte, Spelling::SentencePiece);
        table.push("<s>", TokenKind::Control, Spelling::SentencePiece);
        table.push("Ġb", TokenKind::Normal, Spelling::ByteLevel);
        assert_eq!(table.get(0), b" a ");
        assert_eq!(table.get(1), b"\n");
        assert_eq!(table.get(2), b"<s>");
        assert_eq!(table.get(3), b" b");
        assert_eq!(table.get(4), b"");
        assert!(table.is_special(2) && !table.is_special(3) && !table.is_special(9));
    }
}
