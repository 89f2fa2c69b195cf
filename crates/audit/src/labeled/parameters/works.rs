//! The works that numbers cite.

use std::sync::LazyLock;

use crate::labeled::csv::Table;

/// A work that sources of numbers name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// How sources name it.
    pub name: String,
    /// Its files of which the tables have rows, without the commit. Other files of the same
    /// repository may be a test.
    pub files: Vec<String>,
    /// What it is, where it has no rows.
    pub document: String,
}

/// Every work, from `data/works.csv`: a row for each of its files, or for its document.
pub static WORKS: LazyLock<Vec<Work>> = LazyLock::new(|| {
    let table = Table::parse(include_str!("../../../data/works.csv"));
    let table = table.expect("the carried table is read by tests");
    let mut works: Vec<Work> = Vec::new();
    for row in table.rows() {
        let [name, file, document] = ["work", "file", "document"].map(|c| table.text(row, c));
        if works.last().is_none_or(|last| last.name != name) {
            works.push(Work {
                name,
                document,
                ..Work::default()
            });
        }
        if let (Some(work), false) = (works.last_mut(), file.is_empty()) {
            work.files.push(file);
        }
    }
    works
});
