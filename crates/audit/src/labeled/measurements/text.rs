//! Reads numbers from the free text of measurements: `x[1,2048]@W[2048,2048]`, `512ch H1 W16`,
//! `2560<->16384`, `x16 chain`.

/// A text in lower case, and the numbers in it.
pub struct Text {
    text: String,
    numbers: Vec<Number>,
}

#[derive(Clone, Copy)]
struct Number {
    start: usize,
    end: usize,
    value: f64,
}

impl Text {
    /// Find the numbers of a text.
    pub fn new(text: &str) -> Self {
        let text = text.to_lowercase();
        let bytes = text.as_bytes();
        let mut numbers = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            if !bytes[at].is_ascii_digit() {
                at += 1;
                continue;
            }
            let start = at;
            let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
            while digit(at) || (bytes.get(at) == Some(&b'.') && digit(at + 1)) {
                at += 1;
            }
            if let Ok(value) = text[start..at].parse() {
                numbers.push(Number {
                    start,
                    end: at,
                    value,
                });
            }
        }
        Self { text, numbers }
    }

    /// Whether a word or part of one is in it.
    pub fn has(&self, part: &str) -> bool {
        self.text.contains(part)
    }

    /// The first number right behind `prefix`, where that begins a word.
    pub fn after(&self, prefix: &str) -> Option<f64> {
        let fits = |n: &&Number| {
            let before = self.text[..n.start].strip_suffix(prefix);
            before.is_some_and(|b| !b.ends_with(|c: char| c.is_ascii_alphanumeric()))
        };
        self.numbers.iter().find(fits).map(|n| n.value)
    }

    /// The first number right before `suffix`, where that ends a word.
    pub fn before(&self, suffix: &str) -> Option<f64> {
        let fits = |n: &&Number| {
            let after = self.text[n.end..].strip_prefix(suffix);
            let ends = !suffix.ends_with(|c: char| c.is_ascii_alphanumeric());
            after.is_some_and(|a| ends || !a.starts_with(|c: char| c.is_ascii_alphanumeric()))
        };
        self.numbers.iter().find(fits).map(|n| n.value)
    }

    /// The first numbers that `separator` joins, two or more.
    pub fn joined(&self, separator: &str) -> Option<Vec<f64>> {
        let mut run: Vec<f64> = Vec::new();
        let mut end = None;
        for n in &self.numbers {
            if end.is_some_and(|end: usize| self.text.get(end..n.start) == Some(separator)) {
                run.push(n.value);
            } else if run.len() > 1 {
                break;
            } else {
                run = vec![n.value];
            }
            end = Some(n.end);
        }
        Some(run).filter(|r| r.len() > 1)
    }

    /// What stands in the first brackets of a kind, letters as none.
    pub fn bracket(&self, open: char, close: char) -> Option<Vec<Option<f64>>> {
        let start = self.text.find(open)? + open.len_utf8();
        let inside = &self.text[start..start + self.text[start..].find(close)?];
        Some(inside.split(',').map(|n| n.trim().parse().ok()).collect())
    }

    /// The text behind the first `mark`.
    pub fn behind(&self, mark: &str) -> Option<Self> {
        self.text.split_once(mark).map(|(_, rest)| Self::new(rest))
    }

    /// The text, in lower case.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_what_stands_around_them() {
        let text = Text::new("conv1x1 x16 chain 512ch H1 W16, S=32, 2560<->16384, 2.5 MB");
        assert_eq!(text.after("x"), Some(16.0), "conv1x1 is a word of its own");
        assert_eq!(text.before("ch"), Some(512.0));
        assert_eq!(text.after("w"), Some(16.0));
        assert_eq!(text.after("s="), Some(32.0));
        assert_eq!(text.joined("<->"), Some(vec![2560.0, 16384.0]));
        assert_eq!(text.before(" mb"), Some(2.5));
        assert_eq!(text.joined("->"), None);
        assert_eq!(
            Text::new("MLP 2560-9216-2560 x4").joined("-"),
            Some(vec![2560.0, 9216.0, 2560.0])
        );
        assert_eq!(
            Text::new("[1,C,1,128]").bracket('[', ']'),
            Some(vec![Some(1.0), None, Some(1.0), Some(128.0)])
        );
        assert_eq!(
            Text::new("x[1,2]@W[3,4]")
                .behind("@")
                .and_then(|t| t.bracket('[', ']')),
            Some(vec![Some(3.0), Some(4.0)])
        );
        assert_eq!(Text::new("[1,2").bracket('[', ']'), None);
        assert_eq!(Text::new("").joined("x"), None);
    }
}
