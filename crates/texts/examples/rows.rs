//! Prints the texts of a file: `cargo run -p thane-texts --example rows FILE.jsonl`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::path::Path;

use thane_mil::budget::Budget;
use thane_texts::row::Fields;
use thane_texts::rows::{Source, Texts};

fn main() -> Result<(), anyhow::Error> {
    let file = std::env::args()
        .nth(1)
        .ok_or_else(|| anyhow::anyhow!("usage: rows FILE.txt|.jsonl|.csv|.tsv|.parquet|.gz"))?;
    // Rows that are read ahead take at most this much memory.
    let budget = Budget::new(64 << 20);
    let source = Source::file(Path::new(&file))?;
    let texts = Texts::new(source, Fields::text("text"), false, &budget)?;
    for row in texts.rows() {
        println!("{}", row?.texts.join("\n"));
    }
    Ok(())
}
