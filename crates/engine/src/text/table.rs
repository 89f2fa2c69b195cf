//! What each token prints: one arena of bytes for the whole vocabulary.

use super::texts::Spelled;
use super::vocab::TokenKind;

/// How the file spells the bytes of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's alphabet: one printable character per byte.
    ByteLevel,
    /// SentencePiece: text with U+2581 for a space, and `<0xXX>` for single bytes.
    SentencePiece,
    /// Words and, behind `##`, what goes on a word. What was between words is not kept: one space
    /// stands for it.
    WordPiece,
}

/// Raw bytes and kind of every token, without an allocation per token.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of token `id` end.
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

    /// Appends the next token, as the file spells it.
    pub(super) fn push(&mut self, text: &str, kind: TokenKind, spelling: Spelling) {
        match kind {
            TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown => {
                // Text as it is, but SentencePiece's user-defined runs of U+2581 are spaces.
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

    /// The bytes that a token prints; empty for an id without token (a padded embedding row).
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

    /// The bytes that valid UTF-8 can have and that are no token by themselves.
    pub(super) fn missing_bytes(&self) -> Vec<u8> {
        let mut found = [false; 256];
        // 0xc0, 0xc1 and from 0xf5 on never occur.
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

/// The byte that a SentencePiece byte piece `<0xXX>` stands for.
pub(super) fn byte_of_piece(piece: &str) -> Option<u8> {
    let hex = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || hex.starts_with('+') {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

/// Appends the bytes of a token in GPT-2's alphabet; its UTF-8 where a character is not of that
/// alphabet (added tokens are stored as plain text).
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

/// GPT-2's alphabet writes the printable bytes of Latin-1 as themselves; the other 68 follow from
/// U+0100 on, in the order of their values.
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
