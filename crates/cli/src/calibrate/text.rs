//! The texts that models read for calibration, in pieces from all over each text.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;

use crate::small::refuse_named_pipe;

/// 83 KB in 12 languages and in code, for models that no other text is given for. The line before
/// each section says where the section is from: works whose authors died before 1940, speeches of
/// presidents of the United States, the Universal Declaration of Human Rights, and sentences and
/// code that were written for Thane. All are in the public domain or Thane's own, and no text of
/// the tests is among them.
const OWN: &str = include_str!("text.txt");

/// The start of the line before a section.
const SECTION: &str = "=== ";

/// Bytes of a piece, before its tokens are counted.
const PIECE_BYTES: usize = 400;

/// Bytes of a file that are read.
const MOST_BYTES: u64 = 1 << 16;

/// At most `most` pieces of Thane's own text, as many of each section as of others.
pub fn own(most: usize) -> Vec<&'static str> {
    let sections = OWN.split(SECTION).filter_map(|s| s.split_once('\n'));
    let sections: Vec<&str> = sections.map(|(_, text)| text.trim()).collect();
    let n = sections.len().max(1);
    let share = |i: usize| (i + 1) * most / n - i * most / n;
    let pieces = sections.iter().enumerate();
    pieces.flat_map(|(i, s)| pieces_of(s, share(i))).collect()
}

/// At most `most` pieces of about [`PIECE_BYTES`] bytes, evenly spread over a text.
pub fn pieces_of(text: &str, most: usize) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(piece_end(rest));
        all.push(piece);
        rest = behind;
    }
    let n = all.len().min(most);
    (0..n).map(|i| all[i * all.len() / n]).collect()
}

/// Where the first piece of a text ends: behind white space if there is some near its last byte.
fn piece_end(text: &str) -> usize {
    if text.len() <= PIECE_BYTES {
        return text.len();
    }
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let most = ends.take_while(|at| *at <= PIECE_BYTES).last().unwrap_or(0);
    let space = text[..most].rfind(char::is_whitespace);
    space.filter(|at| *at >= PIECE_BYTES / 2).unwrap_or(most)
}

/// The start of a file.
pub fn read_start(path: &Path) -> anyhow::Result<String> {
    let in_file = || path.display().to_string();
    let mut bytes = Vec::new();
    refuse_named_pipe(path).with_context(in_file)?;
    let mut file = File::open(path).with_context(in_file)?.take(MOST_BYTES);
    file.read_to_end(&mut bytes).with_context(in_file)?;
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
        && bytes.len() as u64 == MOST_BYTES
    {
        // A character goes on beyond what was read.
        bytes.truncate(error.valid_up_to());
    }
    let text = String::from_utf8(bytes).context("expected UTF-8 text");
    text.with_context(in_file)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Words in lower case; characters of scripts without spaces are words.
    fn words(text: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        for c in text.to_lowercase().chars() {
            let is_word = ('\u{3040}'..='\u{9fff}').contains(&c) || ('가'..='힣').contains(&c);
            if is_word || !c.is_alphanumeric() {
                words.push(String::new());
            }
            if c.is_alphanumeric() {
                words.last_mut().unwrap().push(c);
            }
            if is_word {
                words.push(String::new());
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    fn files_below(folder: PathBuf, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_text = ["txt", "json", "jsonl", "md"].map(Some);
            if path.is_dir() {
                files_below(path, found);
            } else if is_text.contains(&path.extension().and_then(|e| e.to_str())) {
                found.push(path);
            }
        }
    }

    /// A text that quality is measured on must not be a text that weights were fitted to.
    #[test]
    fn no_eight_words_are_those_of_a_text_of_the_tests() {
        const N: usize = 8;
        let own = words(OWN);
        let known: HashSet<&[String]> = own.windows(N).collect();
        let mut files = Vec::new();
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
        for folder in ["models", "quality", "embed"] {
            files_below(tests.join(folder), &mut files);
        }
        let mut n_words = 0;
        for file in files {
            // Other tokens of tokenizers than texts are no sequences of words.
            let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
            let words = words(&text);
            n_words += words.len();
            let both = words.windows(N).find(|words| known.contains(words));
            assert_eq!(both, None, "{}", file.display());
        }
        assert!(n_words > 10_000, "{n_words} words of tests");
        assert!(words("one two").len() == 2 && words("今天a b").len() == 4);
    }

    #[test]
    fn pieces_come_from_all_sections() {
        assert!((60_000..100_000).contains(&OWN.len()), "{}", OWN.len());
        let n_sections = OWN.matches(SECTION).count();
        assert_eq!(own(n_sections).len(), n_sections);
        let all = own(10_000);
        assert!(
            all.iter()
                .all(|piece| piece.len() <= PIECE_BYTES && !piece.contains(SECTION))
        );
        for known in [
            "Alice",
            "Gregor",
            "Болконск",
            "先生",
            "石头记",
            "الحق",
            "आख़िरी",
            "fn ",
        ] {
            assert!(all.iter().any(|piece| piece.contains(known)), "{known}");
        }
    }

    #[test]
    fn texts_are_cut_between_words_and_spread() {
        let text = "word ".repeat(1000);
        let pieces = pieces_of(&text, 4);
        assert_eq!(pieces.len(), 4);
        assert!(
            pieces
                .iter()
                .all(|piece| piece.trim().split(' ').all(|w| w == "word"))
        );
        assert_eq!(pieces_of("short", 4), ["short"]);
        assert!(pieces_of("", 4).is_empty());
        let long = "語".repeat(500);
        assert_eq!(pieces_of(&long, 9).concat(), long);
    }
}
