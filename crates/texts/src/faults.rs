//! Counts what is wrong with rows: the first faults are shown, and the same fault is said once.

/// Most faults that one error lists; the others are counted.
const MAX_FAULTS: usize = 8;

/// Faults of rows, of which the same one is said once.
#[derive(Debug, Default)]
pub struct Faults {
    /// The first of each kind, what it says without the row, and how many more say so.
    shown: Vec<(String, String, u64)>,
    /// Rows with others.
    n_more: u64,
}

impl Faults {
    /// Adds the fault of a row, whose outermost context is the row.
    pub fn add(&mut self, fault: &anyhow::Error) {
        let causes: Vec<String> = fault.chain().skip(1).map(ToString::to_string).collect();
        let what = causes.join(": ");
        let is_room = self.shown.len() < MAX_FAULTS;
        let mut shown = self.shown.iter_mut();
        match shown.find(|(_, known, _)| !what.is_empty() && *known == what) {
            Some((_, _, n)) => *n += 1,
            None if is_room => {
                self.shown.push((format!("{fault:#}"), what, 0));
            }
            None => self.n_more += 1,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// A line for each that is shown, and the number of the others.
    pub fn text(&self) -> String {
        let rows = |n: u64| if n == 1 { "row" } else { "rows" };
        let mut lines: Vec<String> = Vec::new();
        for (said, _, n) in &self.shown {
            lines.push(match n {
                0 => said.clone(),
                n => format!("{said}; the same in {n} more {}", rows(*n)),
            });
        }
        if self.n_more > 0 {
            lines.push(format!("and {} more {}", self.n_more, rows(self.n_more)));
        }
        lines.join("\n  ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_fault_is_said_once_and_many_are_counted() {
        let mut faults = Faults::default();
        let fault =
            |what: &str, row: usize| anyhow::anyhow!("{what}").context(format!("row {row}"));
        for row in 1..=3 {
            faults.add(&fault("no text", row));
        }
        assert_eq!(faults.text(), "row 1: no text; the same in 2 more rows");
        for row in 4..=12 {
            faults.add(&fault(&format!("no number {row}"), row));
        }
        let text = faults.text();
        assert_eq!(text.lines().count(), 9, "{text}");
        assert!(
            text.ends_with("row 10: no number 10\n  and 2 more rows"),
            "{text}"
        );
    }
}
