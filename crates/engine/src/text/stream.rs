//! Converts generated tokens to text that can be shown immediately.
//!
//! Three things delay text: an incomplete character, the space that SentencePiece puts before a
//! text, and a suffix that may become a stop string.

use super::Tokenizer;

/// What a [`TextStream`] shows and where it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOptions {
    /// The text ends before the first occurrence of any of these; empty strings are ignored.
    pub stop: Vec<String>,
    /// Hides control tokens.
    pub skip_special: bool,
    /// Control tokens that are shown although others are hidden, such as those around tool calls.
    pub shown: Vec<u32>,
    /// Drops the first space if encoding adds one before a text. On for an answer, off if the text
    /// continues a prompt.
    pub strip_space_prefix: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            stop: Vec::new(),
            skip_special: true,
            shown: Vec::new(),
            strip_space_prefix: true,
        }
    }
}

/// Converts token ids to text, piece by piece.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    stop: Vec<String>,
    skip_special: bool,
    shown: Vec<u32>,
    /// The next byte is the first, and a space there is dropped.
    at_start: bool,
    /// The first bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Text that may turn out to begin a stop string.
    held: String,
    stopped: bool,
    stop_idx: Option<usize>,
}

impl<'a> TextStream<'a> {
    /// A stream at the start of a text.
    pub fn new(tokenizer: &'a Tokenizer, options: StreamOptions) -> Self {
        Self {
            tokenizer,
            stop: options.stop,
            skip_special: options.skip_special,
            shown: options.shown,
            at_start: options.strip_space_prefix && tokenizer.has_space_prefix(),
            bytes: Vec::new(),
            held: String::new(),
            stopped: false,
            stop_idx: None,
        }
    }

    /// Appends a token; returns the text that no later token can change, if there is any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        self.append(id)?;
        self.release(false)
    }

    /// As [`Self::push`], for a token before which the text shall not end: stop strings are not
    /// looked for in what it completes.
    pub fn push_early(&mut self, id: u32) -> Option<String> {
        self.append(id)?;
        let text = std::mem::take(&mut self.held);
        (!text.is_empty()).then_some(text)
    }

    /// Appends the characters that a token completes; `None` if it adds no text.
    fn append(&mut self, id: u32) -> Option<()> {
        let is_hidden =
            |id| self.skip_special && self.tokenizer.is_special(id) && !self.shown.contains(&id);
        if self.stopped || is_hidden(id) {
            return None;
        }
        let mut token = self.tokenizer.token_bytes(id);
        if token.is_empty() {
            return None;
        }
        if std::mem::take(&mut self.at_start) {
            token = token.strip_prefix(b" ").unwrap_or(token);
        }
        self.bytes.extend_from_slice(token);
        self.take_characters();
        Some(())
    }

    /// Returns the delayed text and ends the stream.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        if !self.bytes.is_empty() {
            self.held.push(char::REPLACEMENT_CHARACTER);
            self.bytes.clear();
        }
        let text = self.release(true).unwrap_or_default();
        self.stopped = true;
        text
    }

    /// Whether a stop string occurred or the stream was finished: no more text will come.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Index of the stop string that ended the text: of two at one place, the first.
    pub fn stop_idx(&self) -> Option<usize> {
        self.stop_idx
    }

    /// Moves complete characters from `bytes` to `held`; bytes that cannot become a character
    /// become U+FFFD.
    fn take_characters(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut rest = bytes.as_slice();
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.held.push_str(text);
                    return;
                }
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            self.held.push_str(&String::from_utf8_lossy(valid));
            let Some(invalid) = error.error_len() else {
                self.bytes = after.to_vec();
                return;
            };
            self.held.push(char::REPLACEMENT_CHARACTER);
            rest = &after[invalid..];
        }
    }

    /// Returns the text that can be shown, or `all` text.
    fn release(&mut self, all: bool) -> Option<String> {
        let stops = self.stop.iter().enumerate();
        let found = stops
            .filter(|(_, stop)| !stop.is_empty())
            .filter_map(|(idx, stop)| Some((self.held.find(stop.as_str())?, idx)))
            .min();
        if let Some((at, idx)) = found {
            self.held.truncate(at);
            self.stopped = true;
            self.stop_idx = Some(idx);
        }
        let keep = if all || self.stopped {
            0
        } else {
            self.longest_open_stop()
        };
        let rest = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, rest);
        Some(text).filter(|text| !text.is_empty())
    }

    /// Length in bytes of the longest suffix of the text that begins a stop string.
    fn longest_open_stop(&self) -> usize {
        let held = self.held.as_bytes();
        let open = |stop: &String| {
            let longest = held.len().min(stop.len().saturating_sub(1));
            (1..=longest).rev().find(|&len| {
                held.ends_with(&stop.as_bytes()[..len])
                    && self.held.is_char_boundary(held.len() - len)
            })
        };
        self.stop.iter().filter_map(open).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Vocab;
    use super::*;

    /// A SentencePiece vocabulary of all bytes (ids 0 to 255) and the given pieces.
    fn tokenizer(pieces: &[&str]) -> Tokenizer {
        let mut vocab = Vocab {
            model: "llama".into(),
            ..Vocab::default()
        };
        let mut types = vec![6; 256];
        vocab.tokens = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
        for piece in pieces {
            vocab.tokens.push(piece);
            types.push(if piece.starts_with('<') { 3 } else { 1 });
        }
        vocab.n_vocab = vocab.tokens.len();
        vocab.scores = Some(vec![0.0; vocab.n_vocab]);
        vocab.token_types = Some(types);
        Tokenizer::from_vocab(vocab).unwrap()
    }

    fn pieces(
        tokenizer: &Tokenizer,
        stop: &[&str],
        ids: impl IntoIterator<Item = u32>,
    ) -> (Vec<String>, bool) {
        let stop = stop.iter().map(|&stop| stop.to_owned()).collect();
        let mut stream = TextStream::new(
            tokenizer,
            StreamOptions {
                stop,
                ..StreamOptions::default()
            },
        );
        let mut out: Vec<String> = ids
            .into_iter()
            .map(|id| stream.push(id).unwrap_or_default())
            .collect();
        let stopped = stream.stopped();
        out.push(stream.finish());
        (out, stopped)
    }

    #[test]
    fn characters_come_whole() {
        let tokenizer = tokenizer(&[]);
        for text in ["é", "語", "🙂", "a🙂b語é"] {
            let (out, _) = pieces(&tokenizer, &[], text.bytes().map(u32::from));
            assert_eq!(out.concat(), text);
            assert!(!out.concat().contains('\u{fffd}'));
            let shown: Vec<&String> = out.iter().filter(|piece| !piece.is_empty()).collect();
            assert_eq!(shown.len(), text.chars().count());
        }
    }

    #[test]
    fn broken_bytes_become_replacement_characters_once_certain() {
        let tokenizer = tokenizer(&[]);
        let cases: &[(&[u8], &str)] = &[
            (b"a\xffb", "a\u{fffd}b"),
            (b"\xe8\xaa", "\u{fffd}"),
            (b"\xe8\xaax", "\u{fffd}x"),
            (b"\xf0\x9f\xf0\x9f\x99\x82", "\u{fffd}🙂"),
            (b"\x80\x80", "\u{fffd}\u{fffd}"),
        ];
        for (bytes, text) in cases {
            let (out, _) = pieces(&tokenizer, &[], bytes.iter().map(|&byte| u32::from(byte)));
            assert_eq!(out.concat(), *text, "{bytes:x?}");
            assert_eq!(out.concat(), String::from_utf8_lossy(bytes), "{bytes:x?}");
        }
        let (out, _) = pieces(&tokenizer, &[], [0x61, 0xff, 0x62]);
        assert_eq!(out, ["a", "\u{fffd}", "b", ""]);
    }

    #[test]
    fn stop_strings_across_tokens() {
        let tokenizer = tokenizer(&["\u{2581}Hello", "\nUs", "er", ":", "<s>", "語"]);
        let [hello, us, er, colon, special, kanji] = [256, 257, 258, 259, 260, 261];
        let cases: &[(&[&str], &[u32], &str, bool)] = &[
            (&["\nUser:"], &[hello, us, er, colon, hello], "Hello", true),
            (
                &["\nUser:"],
                &[hello, us, er, hello],
                "Hello\nUser Hello",
                false,
            ),
            (&["\nUser:"], &[hello, us, er], "Hello\nUser", false),
            (
                &["\nUser:"],
                &[hello, us, special, er, colon],
                "Hello",
                true,
            ),
            (&["er", "\nUser"], &[hello, us, er], "Hello", true),
            (&["H"], &[hello], "", true),
            (&["", "ll"], &[hello, hello], "He", true),
            (&["語x"], &[kanji, kanji, 0x78, kanji], "語", true),
            (&["\u{fffd}"], &[hello, 0xe8, colon], "Hello", true),
            (&[], &[special], "", false),
        ];
        for (stop, ids, text, stopped) in cases {
            let (out, did_stop) = pieces(&tokenizer, stop, ids.iter().copied());
            assert_eq!(
                (out.concat().as_str(), did_stop),
                (*text, *stopped),
                "{stop:?} {ids:?}"
            );
        }
        // Text is shown as soon as it can no longer begin the stop string.
        let (out, _) = pieces(&tokenizer, &["\nUser:"], [hello, us, hello]);
        assert_eq!(out, ["Hello", "", "\nUs Hello", ""]);
    }

    #[test]
    fn the_stop_string_that_came_first_is_known() {
        let tokenizer = tokenizer(&[]);
        for (stop, idx) in [
            (vec!["", "c", "b"], Some(2)),
            (vec!["bc", "b"], Some(1)),
            (vec!["x"], None),
        ] {
            let options = StreamOptions {
                stop: stop.iter().map(|&stop| stop.to_owned()).collect(),
                ..StreamOptions::default()
            };
            let mut stream = TextStream::new(&tokenizer, options);
            for byte in *b"abc" {
                stream.push(u32::from(byte));
            }
            stream.finish();
            assert_eq!(stream.stop_idx(), idx, "{stop:?}");
        }
    }

    #[test]
    fn space_prefix_is_dropped_once_and_only_if_asked() {
        let tokenizer = tokenizer(&["\u{2581}Hello"]);
        let (out, _) = pieces(&tokenizer, &[], [256, 256]);
        assert_eq!(out.concat(), "Hello Hello");
        let options = StreamOptions {
            strip_space_prefix: false,
            ..StreamOptions::default()
        };
        let mut stream = TextStream::new(&tokenizer, options);
        assert_eq!(stream.push(256).as_deref(), Some(" Hello"));
    }
}
