//! Lowers a checkpoint and prints the functions of its program.
//!
//!     cargo run -p thane-models --example functions -- FOLDER_OR_GGUF_FILE
//!
//! Without an argument it lowers a tiny random checkpoint of the tests.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::PathBuf;

use thane_models::checkpoint::Checkpoint;
use thane_models::{Options, build};

const TINY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/models/tiny/gemma3"
);

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os()
        .nth(1)
        .map_or_else(|| PathBuf::from(TINY), PathBuf::from);
    let checkpoint = Checkpoint::open(&path)?;
    let model = build(&checkpoint, &Options::default())?;
    println!(
        "{}: {} layers, {} tokens in the vocabulary, a context of {} tokens",
        model.info.architecture, model.info.n_layers, model.info.vocab_size, model.info.context
    );
    for function in model.program.functions() {
        let inputs: Vec<&str> = function
            .body()
            .inputs
            .iter()
            .map(|input| function.value(*input).name.as_str())
            .collect();
        println!("{}({})", function.name, inputs.join(", "));
    }
    Ok(())
}
