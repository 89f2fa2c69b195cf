//! Text that fits a terminal.

/// Columns that reports are written for.
pub const COLUMNS: usize = 80;

/// The column at which text after a label begins.
pub const INDENT: usize = 12;

/// Words of a text in lines behind an indent; the first line has a head instead. A word that is
/// longer than a line is not cut.
pub fn wrap(head: &str, indent: usize, text: &str) -> String {
    let mut out = format!("{head:<indent$}");
    let mut column = out.chars().count();
    let start = column;
    let mut fresh = true;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if !fresh && column + 1 + len > COLUMNS {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
            fresh = true;
        }
        if !fresh || column == start && column > indent && !out.ends_with(' ') {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
        fresh = false;
    }
    out.push('\n');
    out
}

/// A text behind its label.
pub fn item(label: &str, text: &str) -> String {
    wrap(&format!("  {label}"), INDENT, text)
}

/// A text of at most `most` characters, the middle left out.
pub fn shorten(text: &str, most: usize) -> String {
    let n = text.chars().count();
    if n <= most || most < 5 {
        return text.to_owned();
    }
    let head = (most - 2) / 2;
    let tail = most - 2 - head;
    let first: String = text.chars().take(head).collect();
    let last: String = text.chars().skip(n - tail).collect();
    format!("{first}..{last}")
}

/// The name of a function, behind its package where there are several, in about `most` characters:
/// first the ending of the package is left out, then the middle of its name. The function is whole.
pub fn shorten_function(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let Some((package, function)) = name.split_once('/') else {
        return shorten(name, most);
    };
    let endings = [".mlpackage", ".mlmodelc"];
    let stem = endings.iter().find_map(|end| package.strip_suffix(end));
    let room = most.saturating_sub(function.chars().count() + 1);
    let stem = shorten(stem.unwrap_or(package), room.max(8));
    format!("{stem}/{function}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_keep_their_names() {
        let cases = [
            ("chunk1.mlpackage/prefill", 20, "chunk1/prefill"),
            ("chunk1.mlpackage/prefill", 24, "chunk1.mlpackage/prefill"),
            ("chunk12.mlmodelc/decode_lanes", 20, "chunk12/decode_lanes"),
            (
                "an_embedding_model.mlpackage/encode_256",
                20,
                "an_..odel/encode_256",
            ),
            (
                "chunk1.mlpackage/a_function_that_has_a_name",
                20,
                "chunk1/a_function_that_has_a_name",
            ),
            ("a_function_without_a_package", 20, "a_functio..a_package"),
            ("main", 20, "main"),
        ];
        for (name, most, short) in cases {
            assert_eq!(shorten_function(name, most), short);
        }
    }

    #[test]
    fn lines_fit() {
        let text = "word ".repeat(60);
        let wrapped = wrap("  why", 12, &text);
        assert!(
            wrapped.lines().all(|l| l.chars().count() <= COLUMNS),
            "{wrapped}"
        );
        assert!(
            wrapped.starts_with("  why       word word") && wrapped.matches("word").count() == 60
        );
        assert_eq!(wrap("a", 2, ""), "a \n");
        assert_eq!(wrap("long head", 2, "b"), "long head b\n");
        let long = "x".repeat(100);
        assert_eq!(wrap("", 4, &long), format!("    {long}\n"));
    }

    #[test]
    fn names_are_shortened_in_the_middle() {
        assert_eq!(shorten("abcdefghij", 8), "abc..hij");
        assert_eq!(shorten("abc", 8), "abc");
    }
}
