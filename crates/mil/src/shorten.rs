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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a text quotes is not in its error as a whole.
    #[test]
    fn errors_quote_little_of_a_long_text() {
        let long = "q".repeat(5000);
        let fault = |body: String| {
            let text = format!(
                "program(1.3)\n{{ func main<ios18>(tensor<fp16, [4]> x) {{ {body} }} -> (x);\n}}"
            );
            crate::text::parse(&text, &|_, _, _| None)
                .unwrap_err()
                .to_string()
        };
        for (body, expected) in [
            (
                format!(
                    "tensor<fp16, [4]> y = einsum(values = (x, x), equation = string(\"{long}\"));"
                ),
                "`equation`: expected the form",
            ),
            (
                format!("tensor<fp16, [4]> y = {long}(x = x);"),
                "has no op `qqq",
            ),
            (format!("{long} y = tan(x = x);"), "unknown type `qqq"),
            (format!("int32 {long} = tan(x = x);"), "`qqq"),
        ] {
            let found = fault(body);
            assert!(found.len() < 500 && found.contains(expected), "{found}");
        }
    }

    #[test]
    fn long_messages_lose_their_middle() {
        let whole = |n: usize| "é".repeat(n);
        assert_eq!(
            shorten(format_args!("a{}b", whole(398))),
            format!("a{}b", whole(398))
        );
        let cut = format!("a{}..{}b", whole(199), whole(99));
        for n in [399, 450, 10_000] {
            assert_eq!(shorten(format_args!("a{}b", whole(n))), cut, "{n}");
        }
        let mut kept = Kept::default();
        for _ in 0..1000 {
            write!(kept, "{}", whole(1000)).unwrap();
        }
        assert!(kept.head.capacity() + kept.tail.capacity() < 10_000);
    }
}
