//! Messages that quote a program, whose names may be as long as the program.

use std::fmt::{self, Write};

/// Longest message in characters; longer ones usually list names.
const MAX_CHARS: usize = 400;
/// Characters at the start and the end that are kept of a longer one.
const HEAD_CHARS: usize = MAX_CHARS / 2;
const TAIL_CHARS: usize = MAX_CHARS / 4;

/// A message without its middle if it is long. The whole message is never in memory.
pub(crate) fn shorten(message: impl fmt::Display) -> String {
    let mut kept = Kept::default();
    // Writing to it does not fail; a `Display` that does gives what it wrote.
    let _ = write!(kept, "{message}");
    if kept.tail.is_empty() {
        return kept.head;
    }
    let all = kept.head + &kept.tail;
    let head = &all[..nth_char(&all, HEAD_CHARS)];
    format!("{head}..{}", last_chars(&all, TAIL_CHARS))
}

/// The first [`MAX_CHARS`] characters, and the last [`TAIL_CHARS`] of those after them.
#[derive(Default)]
struct Kept {
    head: String,
    n_head: usize,
    tail: String,
}

impl Write for Kept {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let (head, rest) = text.split_at(nth_char(text, MAX_CHARS - self.n_head));
        self.head.push_str(head);
        self.n_head += head.chars().count();
        self.tail.push_str(last_chars(rest, TAIL_CHARS));
        let n_cut = self.tail.len() - last_chars(&self.tail, TAIL_CHARS).len();
        self.tail.drain(..n_cut);
        Ok(())
    }
}

/// Where the character with this number begins, or the text ends.
fn nth_char(text: &str, n: usize) -> usize {
    text.char_indices().nth(n).map_or(text.len(), |(at, _)| at)
}

fn last_chars(text: &str, n: usize) -> &str {
    let first = text.char_indices().rev().take(n).last();
    &text[first.map_or(text.len(), |(at, _)| at)..]
}
