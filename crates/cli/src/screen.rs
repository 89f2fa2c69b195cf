//! Makes text safe for a terminal: text of a model, a file or a server never moves the cursor,
//! changes colors, titles or the clipboard, or reorders letters.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar;

/// The symbol for a character that controls a terminal or reorders text.
fn stand_in(c: char) -> Option<char> {
    match c {
        '\n' | '\t' => None,
        '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32),
        '\u{7f}' => Some('\u{2421}'),
        '\u{80}'..='\u{9f}' => Some(char::REPLACEMENT_CHARACTER),
        // Bidirectional marks, embeddings, overrides and isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            Some(char::REPLACEMENT_CHARACTER)
        }
        _ => None,
    }
}

/// `text` with a visible symbol for each control character. Characters are replaced one by one, so
/// a sequence that comes in parts is harmless too.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| stand_in(c).is_none()) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| stand_in(c).unwrap_or(c)).collect())
}

/// Text for a row of a table, without line breaks.
pub fn in_a_row(text: &str) -> String {
    text.replace('\n', "\\n").replace('\r', "\\r")
}

/// As [`printable`], for text that this program colored: sequences for color and weight stay.
pub fn printable_painted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\u{1b}[") {
        let (before, sequence) = rest.split_at(at);
        out.push_str(&printable(before));
        let len = sequence[2..]
            .find(|c: char| !c.is_ascii_digit() && c != ';')
            .map_or(0, |len| len + 2);
        let end = if sequence[len..].starts_with('m') {
            len + 1
        } else {
            0
        };
        out.push_str(&sequence[..end]);
        let skipped = end.max(1);
        if end == 0 {
            out.push_str(&printable(&sequence[..skipped]));
        }
        rest = &sequence[skipped..];
    }
    out.push_str(&printable(rest));
    out
}

/// `painted`, or the plain text where it has an escape sequence, such as that of a file's name,
/// which nobody could tell from paint.
pub fn painted_unless_escaped(plain: &str, painted: impl FnOnce() -> String) -> String {
    if plain.contains('\u{1b}') {
        printable(plain).into_owned()
    } else {
        painted()
    }
}

/// Wraps lines between words while text arrives in pieces.
pub struct Wrap {
    width: usize,
    column: usize,
    spaces: String,
    word: String,
    word_width: usize,
}

impl Wrap {
    pub fn new(width: usize) -> Self {
        Self {
            width,
            column: 0,
            spaces: String::new(),
            word: String::new(),
            word_width: 0,
        }
    }

    /// Adds text and returns what can be shown now.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            match c {
                '\n' => {
                    self.end_word(&mut out);
                    out.push_str(&self.spaces);
                    out.push('\n');
                    self.spaces.clear();
                    self.column = 0;
                }
                ' ' | '\t' => {
                    self.end_word(&mut out);
                    self.spaces.push(c);
                }
                // A character of two columns, as in Chinese, is a word of its own.
                c if c.width().unwrap_or(0) == 2 => {
                    self.end_word(&mut out);
                    self.add(c, 2);
                    self.end_word(&mut out);
                }
                c => self.add(c, c.width().unwrap_or(0)),
            }
        }
        out
    }

    /// The text that is still held back.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.end_word(&mut out);
        out.push_str(&std::mem::take(&mut self.spaces));
        out
    }

    fn add(&mut self, c: char, width: usize) {
        self.word.push(c);
        self.word_width += width;
    }

    fn end_word(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let spaces: usize = self
            .spaces
            .chars()
            .map(|c| if c == '\t' { 8 - self.column % 8 } else { 1 })
            .sum();
        if self.column > 0 && self.column + spaces + self.word_width > self.width {
            out.push('\n');
            self.column = 0;
        } else {
            out.push_str(&self.spaces);
            self.column += spaces;
        }
        out.push_str(&self.word);
        self.column += self.word_width;
        self.spaces.clear();
        self.word.clear();
        self.word_width = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 30, 3.6.
    #[test]
    fn control_characters_are_shown_and_not_done() {
        let cases = [
            ("a\tb\nc é 語 🙂", "a\tb\nc é 語 🙂"),
            (
                "\u{1b}[2J\u{1b}]0;title\u{7}",
                "\u{241b}[2J\u{241b}]0;title\u{2407}",
            ),
            ("a\rb\u{8}\u{7f}\0", "a\u{240d}b\u{2408}\u{2421}\u{2400}"),
            ("\u{9b}31m\u{85}", "\u{fffd}31m\u{fffd}"),
            (
                "\u{202e}txt.exe\u{2066}\u{200f}",
                "\u{fffd}txt.exe\u{fffd}\u{fffd}",
            ),
        ];
        for (text, shown) in cases {
            assert_eq!(printable(text), shown, "{text:?}");
            // In parts of one character each.
            let parts: String = text
                .chars()
                .map(|c| printable(&c.to_string()).into_owned())
                .collect();
            assert_eq!(parts, shown, "{text:?}");
        }
        assert!(matches!(printable("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn colors_stay_in_painted_text() {
        let painted = "\u{1b}[1;31mx\u{1b}[0m \u{1b}[2Jy\u{1b}[31\u{1b}\u{1b}[0m\u{1b}[";
        assert_eq!(
            printable_painted(painted),
            "\u{1b}[1;31mx\u{1b}[0m \u{241b}[2Jy\u{241b}[31\u{241b}\u{1b}[0m\u{241b}["
        );
    }

    #[test]
    fn text_with_escape_sequences_is_not_painted() {
        for (plain, shown) in [("x", "red x"), ("\u{1b}[31mx", "\u{241b}[31mx")] {
            let painted = || format!("red {plain}");
            assert_eq!(painted_unless_escaped(plain, painted), shown);
        }
    }

    #[test]
    fn lines_break_between_words() {
        let cases = [
            ("one two three four", 9, "one two\nthree\nfour"),
            ("one\ntwo three", 20, "one\ntwo three"),
            ("    indented code", 12, "    indented\ncode"),
            ("averyveryverylongword x", 8, "averyveryverylongword\nx"),
            ("語語語語語", 6, "語語語\n語語"),
            ("a  b ", 10, "a  b "),
        ];
        for (text, width, wrapped) in cases {
            for step in [1, 3, 100] {
                let mut wrap = Wrap::new(width);
                let chars: Vec<char> = text.chars().collect();
                let mut out: String = chars
                    .chunks(step)
                    .map(|c| wrap.push(&c.iter().collect::<String>()))
                    .collect();
                out += &wrap.finish();
                assert_eq!(out, wrapped, "{text:?} {step}");
            }
        }
    }
}
