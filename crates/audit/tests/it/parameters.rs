//! Which rows and documents the numbers of the model were chosen with.

use std::collections::BTreeSet;

use thane_audit::labeled::csv::Table;
use thane_audit::labeled::parameters::{WORKS, cited, dangling, parameters, works};
use thane_audit::labeled::score::CARRIED;

#[test]
fn every_number_cites_a_known_work() {
    let rows = parameters();
    let unknown: Vec<String> = rows
        .iter()
        .filter(|row| !dangling(row.source).is_empty() || row.works.is_empty())
        .map(|row| {
            format!(
                "{} of {:?}: {:?}",
                row.name,
                row.chips,
                dangling(row.source)
            )
        })
        .collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(
        rows.iter()
            .all(|row| row.low <= row.value && row.value <= row.high)
    );
    // A work that nobody wrote down is noticed, also beside one that is.
    assert_eq!(dangling("M6 study: 1; a blog: 2"), ["a blog: 2"]);
    let used: BTreeSet<&str> = rows.iter().flat_map(|r| r.works.clone()).collect();
    let unused: Vec<&str> = WORKS
        .iter()
        .map(|w| w.name.as_str())
        .filter(|n| !used.contains(n))
        .collect();
    assert!(unused.is_empty(), "no number cites {unused:?}");
}

/// A cited file has rows, and none of them is a test.
#[test]
fn no_number_cites_a_test() {
    let found = works(&CARRIED).unwrap();
    for (work, row) in WORKS.iter().zip(&found) {
        assert!(
            work.files.is_empty() != work.document.is_empty(),
            "{}",
            work.name
        );
        for file in &work.files {
            let of_file: Vec<_> = row.files.iter().filter(|f| f.file == *file).collect();
            assert!(
                of_file.iter().any(|f| f.rows > 0),
                "{}: no row is of {file}",
                work.name
            );
            for f in of_file {
                let is_test = f.splits.iter().any(|split| split == "test");
                assert!(!is_test, "{} cites {file}, which is a test", work.name);
            }
        }
    }
    // Words of one source may name several works, and of each the rows are known.
    assert_eq!(cited("anemll-bench 64.2, M6 study 67").count(), 2);
}

/// Rows whose split is `constants` are those of works that numbers cite.
#[test]
fn constants_are_cited() {
    let cited: BTreeSet<&str> = WORKS
        .iter()
        .flat_map(|w| &w.files)
        .map(String::as_str)
        .collect();
    for (name, text) in CARRIED {
        let table = Table::parse(text).unwrap();
        let (Ok(source), Ok(split)) = (table.column("source"), table.column("split")) else {
            continue;
        };
        for row in table.rows().iter().filter(|row| row[split] == "constants") {
            let file = row[source].split('@').next().unwrap();
            assert!(cited.contains(file), "{name}: no number cites {file}");
        }
    }
}
