//! Log probabilities of tokens as JSON: OpenAI's `logprobs` of chats and responses, and Ollama's.

use serde_json::{Value, json};
use thane_engine::sample::TokenLogprob;
use thane_runtime::PromptEncoder;

/// A token with its bytes, its log probability, and those of the likely tokens in its place.
pub(crate) fn tokens_json(tokens: &[TokenLogprob], prompts: &PromptEncoder) -> Vec<Value> {
    let one = |id: u32, logprob: Option<f32>| {
        let bytes = prompts.tokenizer().token_bytes(id);
        json!({"token": spelled(bytes, ""), "logprob": number(logprob), "bytes": bytes})
    };
    let token = |token: &TokenLogprob| {
        let top = token.top.iter();
        let top = top.map(|(id, logprob)| one(*id, Some(*logprob)));
        let mut shown = one(token.token, token.logprob);
        shown["top_logprobs"] = top.collect::<Vec<Value>>().into();
        shown
    };
    tokens.iter().map(token).collect()
}

/// The text of a token. Bytes that are no text are spelled, as in OpenAI's API: `\xe2\x82` behind
/// `mark`.
pub(crate) fn spelled(bytes: &[u8], mark: &str) -> String {
    if let Ok(text) = str::from_utf8(bytes) {
        return text.to_owned();
    }
    let bytes = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
    mark.to_owned() + &bytes.collect::<String>()
}

/// A place in a text, whose tokens may begin and end within a character.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Characters that have begun.
    n_chars: usize,
    /// Bytes that the last of them lacks.
    n_lacking: usize,
}

impl Place {
    /// Goes behind a token; returns the number of characters before the one in which it begins.
    pub fn pass(&mut self, bytes: &[u8]) -> usize {
        let mut start = None;
        for &byte in bytes {
            match (byte, self.n_lacking) {
                (0x80..=0xbf, 1..) => self.n_lacking -= 1,
                _ => {
                    self.n_chars += 1;
                    self.n_lacking = match byte {
                        0xc2..=0xdf => 1,
                        0xe0..=0xef => 2,
                        0xf0..=0xf4 => 3,
                        _ => 0,
                    };
                }
            }
            start.get_or_insert(self.n_chars - 1);
        }
        start.unwrap_or(self.n_chars)
    }
}

/// JSON has no infinity; OpenAI's API has this number for it.
pub(crate) fn number(logprob: Option<f32>) -> Value {
    logprob.map_or(Value::Null, |x| json!(x.max(-9999.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_spelled() {
        let cases: [(&[u8], &str); 5] = [
            ("a\n\u{20ac}".as_bytes(), "a\n\u{20ac}"),
            (b"", ""),
            (b"\xe2\x82", "bytes:\\xe2\\x82"),
            (b" \xc3", "bytes:\\x20\\xc3"),
            (b"\x82\x0a", "bytes:\\x82\\x0a"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(spelled(bytes, "bytes:"), expected);
        }
    }

    #[test]
    fn tokens_begin_where_their_first_character_does() {
        let tokens: [(&[u8], usize); 9] = [
            (b"a", 0),
            (b"\xc3", 1),
            (b"\xa4", 1),
            (b"b\xf0\x9f", 2),
            (b"", 4),
            (b"\x98", 3),
            (b"\x80c", 3),
            // Neither of these is a part of a character.
            (b"\x80", 5),
            (b"\xff", 6),
        ];
        let mut place = Place::default();
        for (bytes, start) in tokens {
            assert_eq!(place.pass(bytes), start, "{bytes:?}");
        }
        assert_eq!(place.pass(b"d"), 7);
    }
}
