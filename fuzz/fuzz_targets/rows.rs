//! Files of texts, as `thane embed` reads them. An input is the letter of a kind (`j`, `t`, `c`,
//! `p`, or `z` for JSON lines in gzip) and the file.
#![no_main]

use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use thane_mil::budget::Budget;
use thane_texts::row::Fields;
use thane_texts::rows::{Source, Texts};

/// Rows that are looked at.
const MOST_ROWS: usize = 1000;
/// What rows may take, far below what the fuzzer allows the process.
const MOST_BYTES: usize = 64 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    let end = match kind {
        b'j' => "jsonl",
        b't' => "txt",
        b'c' => "csv",
        b'p' => "parquet",
        b'z' => "jsonl.gz",
        _ => return,
    };
    let path = file(end);
    std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for chunks in [false, true] {
        let Ok(from) = Source::file(&path) else {
            return;
        };
        let budget = Budget::new(MOST_BYTES);
        let Ok(texts) = Texts::new(from, Fields::text("text"), chunks, &budget) else {
            continue;
        };
        let mut last = 0;
        for row in texts.rows().take(MOST_ROWS).flatten() {
            let number = row.place.number;
            // A carriage return alone ends a row of CSV, and no line; rows have numbers of lines.
            let shares_line = *kind == b'c' && number == last;
            assert!(
                number > last || shares_line,
                "row {number} comes behind row {last}"
            );
            last = number;
        }
    }
});

/// A file of this process.
fn file(end: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thane-fuzz-{}.{end}", std::process::id()))
}
