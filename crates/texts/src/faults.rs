//! Counts what is wrong with rows: the first faults are shown, and a fault of many rows is said
//! once.

/// Most lines of an error, and most rows whose same fault has a line each; the others are counted.
const MAX_FAULTS: usize = 8;

/// Faults of rows.
#[derive(Debug, Default)]
pub struct Faults {
    kinds: Vec<Kind>,
    /// Rows with faults of further kinds.
    n_more: u64,
}

/// The same fault of some rows.
#[derive(Debug)]
struct Kind {
    /// What is said without the row.
    what: String,
    /// What is said of the first rows.
    lines: Vec<String>,
    n_rows: u64,
}

impl Faults {
    /// Adds the fault of a row, whose outermost context is the row.
    pub fn add(&mut self, fault: &anyhow::Error) {
        let causes: Vec<String> = fault.chain().skip(1).map(ToString::to_string).collect();
        let what = causes.join(": ");
        let is_known = |kind: &Kind| !what.is_empty() && kind.what == what;
        match self.kinds.iter().position(is_known) {
            Some(at) => {
                let kind = &mut self.kinds[at];
                kind.n_rows += 1;
                if kind.lines.len() < MAX_FAULTS {
                    kind.lines.push(format!("{fault:#}"));
                }
            }
            None if self.kinds.len() < MAX_FAULTS => self.kinds.push(Kind {
                what,
                lines: vec![format!("{fault:#}")],
                n_rows: 1,
            }),
            None => self.n_more += 1,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// A line for each that is shown, and the number of the others.
    pub fn text(&self) -> String {
        let rows = |n: u64| if n == 1 { "row" } else { "rows" };
        let (mut lines, mut n_more): (Vec<String>, u64) = (Vec::new(), self.n_more);
        for kind in &self.kinds {
            let room = MAX_FAULTS - lines.len();
            if kind.n_rows > MAX_FAULTS as u64 && room > 0 {
                let (first, n) = (&kind.lines[0], kind.n_rows - 1);
                lines.push(format!("{first}; the same in {n} more {}", rows(n)));
                continue;
            }
            let n_shown = room.min(kind.lines.len());
            lines.extend(kind.lines[..n_shown].iter().cloned());
            n_more += kind.n_rows - n_shown as u64;
        }
        if n_more > 0 {
            lines.push(format!("and {n_more} more {}", rows(n_more)));
        }
        lines.join("\n  ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_fault_of_many_rows_is_said_once_and_others_are_counted() {
        let mut faults = Faults::default();
        let add = |faults: &mut Faults, what: &str, row: usize| {
            faults.add(&anyhow::anyhow!("{what}").context(format!("row {row}")));
        };
        for row in 1..=2 {
            add(&mut faults, "no text", row);
        }
        assert_eq!(faults.text(), "row 1: no text\n  row 2: no text");
        for row in 3..=50 {
            add(&mut faults, "no text", row);
        }
        assert_eq!(faults.text(), "row 1: no text; the same in 49 more rows");
        for row in 51..=60 {
            add(&mut faults, &format!("no number {row}"), row);
        }
        let text = faults.text();
        assert_eq!(text.lines().count(), 9, "{text}");
        assert!(
            text.ends_with("row 57: no number 57\n  and 3 more rows"),
            "{text}"
        );
    }
}
