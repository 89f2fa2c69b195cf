//! Log probabilities of tokens as JSON: OpenAI's `logprobs` of chats and responses, and Ollama's.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, Serializer};
use thane_engine::sample::TokenLogprob;
use thane_runtime::PromptEncoder;

/// Bytes of memory of log probabilities in the place of a token, beside the event that has them.
pub(crate) fn logprob_bytes(n_top: usize) -> usize {
    // What the allocator keeps of a list.
    const HEADER: usize = 16;
    n_top * size_of::<(u32, f32)>() + HEADER
}

/// About the fewest bytes that so many tokens, each with `n_top` likely ones, take as JSON.
pub(crate) fn least_json_bytes(n_tokens: usize, n_top: usize) -> usize {
    const ONE: usize = r#"{"token":"a","logprob":-1.5,"bytes":[97]},"#.len();
    n_tokens.saturating_mul(ONE * (1 + n_top))
}

/// Tokens with their bytes, their log probabilities, and those of the likely tokens in their place.
/// They are written from lists that follow one another.
pub(crate) struct Tokens<'a> {
    pub lists: Vec<&'a [TokenLogprob]>,
    pub prompts: &'a PromptEncoder,
}

impl<'a> Tokens<'a> {
    pub fn new(list: &'a [TokenLogprob], prompts: &'a PromptEncoder) -> Self {
        let lists = vec![list];
        Self { lists, prompts }
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a TokenLogprob> {
        self.lists.clone().into_iter().flatten()
    }
}

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let prompts = self.prompts;
        serializer.collect_seq(self.iter().map(|token| Token {
            id: token.token,
            logprob: token.logprob,
            top: Some(&token.top),
            prompts,
        }))
    }
}

/// A token of an answer, or a likely one, which has no `top`.
struct Token<'a> {
    id: u32,
    logprob: Option<f32>,
    top: Option<&'a [(u32, f32)]>,
    prompts: &'a PromptEncoder,
}

impl Serialize for Token<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.prompts.tokenizer().token_bytes(self.id);
        let mut shown = serializer.serialize_map(None)?;
        shown.serialize_entry("token", &spelled(bytes, ""))?;
        shown.serialize_entry("logprob", &number(self.logprob))?;
        shown.serialize_entry("bytes", bytes)?;
        if let Some(top) = self.top {
            let likely = |(id, logprob): &(u32, f32)| Token {
                id: *id,
                logprob: Some(*logprob),
                top: None,
                prompts: self.prompts,
            };
            shown.serialize_entry("top_logprobs", &Listed(|| top.iter().map(likely)))?;
        }
        shown.end()
    }
}

/// Tokens as `/v1/completions` has them. The first begins at `place`.
pub(crate) struct TextTokens<'a> {
    pub tokens: Tokens<'a>,
    pub place: Place,
}

impl<'a> Serialize for TextTokens<'a> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (tokens, prompts) = (&self.tokens, self.tokens.prompts);
        let bytes = move |token: &TokenLogprob| prompts.tokenizer().token_bytes(token.token);
        let text = move |token| spelled(bytes(token), "bytes:");
        let mut place = self.place;
        let mut shown = serializer.serialize_map(None)?;
        let texts = Listed(move || tokens.iter().map(text));
        shown.serialize_entry("tokens", &texts)?;
        let numbers = Listed(move || tokens.iter().map(|token| number(token.logprob)));
        shown.serialize_entry("token_logprobs", &numbers)?;
        // The first token of a prompt follows nothing.
        let top = move |token: &'a TokenLogprob| {
            (!token.top.is_empty()).then_some(TopTexts(&token.top, prompts))
        };
        let tops = Listed(move || tokens.iter().map(top));
        shown.serialize_entry("top_logprobs", &tops)?;
        let offsets = tokens.iter().map(|token| place.pass(bytes(token)));
        shown.serialize_entry("text_offset", &offsets.collect::<Vec<_>>())?;
        shown.end()
    }
}

/// A list of what an iterator gives.
struct Listed<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Listed<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

/// Likely tokens by their texts; of those with one text the likeliest, which comes first.
struct TopTexts<'a>(&'a [(u32, f32)], &'a PromptEncoder);

impl Serialize for TopTexts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = |id: u32| self.1.tokenizer().token_bytes(id);
        let mut texts: Vec<Cow<'_, str>> = Vec::with_capacity(self.0.len());
        let mut shown = serializer.serialize_map(None)?;
        for (id, logprob) in self.0 {
            let text = spelled(bytes(*id), "bytes:");
            if !texts.contains(&text) {
                shown.serialize_entry(&text, &number(Some(*logprob)))?;
                texts.push(text);
            }
        }
        shown.end()
    }
}

/// The text of a token. Bytes that are no text are spelled, as in OpenAI's API: `\xe2\x82` behind
/// `mark`.
fn spelled<'b>(bytes: &'b [u8], mark: &str) -> Cow<'b, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return text.into();
    }
    let bytes = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
    (mark.to_owned() + &bytes.collect::<String>()).into()
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
    /// Goes behind tokens.
    pub fn pass_all(&mut self, tokens: &Tokens<'_>) {
        let tokenizer = tokens.prompts.tokenizer();
        for token in tokens.iter() {
            self.pass(tokenizer.token_bytes(token.token));
        }
    }

    /// Goes behind a token; returns the number of characters before the one in which it begins.
    fn pass(&mut self, bytes: &[u8]) -> usize {
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
fn number(logprob: Option<f32>) -> Option<f32> {
    logprob.map(|x| x.max(-9999.0))
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
