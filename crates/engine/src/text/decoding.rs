//! The decoder of a `tokenizer.json`: how the bytes of tokens are spelled.

use serde_json::Value;

use super::TextError;
use super::table::Spelling;

/// What the decoder of a `tokenizer.json` stands for.
pub(super) struct Decoding {
    pub spelling: Spelling,
    /// Whether decoding drops the first space.
    pub space_prefix: bool,
}

impl Decoding {
    pub fn of(decoder: &Value) -> Result<Self, TextError> {
        let parts: Vec<&Value> = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"]
                .as_array()
                .map(|parts| parts.iter().collect())
                .unwrap_or_default(),
            _ => vec![decoder],
        };
        let mut decoding = Self {
            spelling: Spelling::SentencePiece,
            space_prefix: false,
        };
        for part in parts {
            match part["type"].as_str() {
                Some("ByteLevel") => decoding.spelling = Spelling::ByteLevel,
                Some("WordPiece") if part["prefix"] == "##" => {
                    decoding = Self {
                        spelling: Spelling::WordPiece,
                        space_prefix: true,
                    };
                }
                Some("ByteFallback" | "Fuse") => {}
                Some("Replace")
                    if part["pattern"]["String"] == "\u{2581}" && part["content"] == " " => {}
                Some("Strip")
                    if part["content"] == " " && part["start"] == 1 && part["stop"] == 0 =>
                {
                    decoding.space_prefix = true;
                }
                Some("Metaspace") if part["replacement"] == "\u{2581}" => {
                    decoding.space_prefix = part["prepend_scheme"] != "never";
                }
                _ => return Err(TextError::UnknownDecoder(part.to_string())),
            }
        }
        Ok(decoding)
    }
}
