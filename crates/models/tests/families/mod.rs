//! Checkpoints that the families accept or reject. Every error names the key or the tensor.

mod encoders;
mod gguf;
mod gguf_families;
mod gguf_hybrids;
mod gguf_tokenizer;
mod hugging_face;
mod keys;
mod list;
mod mixtures;
mod numbers;
mod quantized;
mod recurrent;
mod rerankers;
mod settings;
mod tensors;

use thane_models::checkpoint::Checkpoint;
use thane_models::{Model, ModelError, Options, build};

use crate::checkpoint::builder::{Folder, assert_says};

const LLAMA: &str = "llama-bias";
const GEMMA: &str = "gemma3";
const IMAGE: &str = "gemma3-image";

/// Lowers the checkpoint `name` in the folder.
fn lower(folder: &Folder, name: &str, options: &Options) -> Result<Model, ModelError> {
    let checkpoint: Checkpoint = folder.open(name)?;
    build(&checkpoint, options)
}

/// Asserts that this is an error whose message contains each part.
fn assert_refused(what: &str, model: Result<Model, ModelError>, parts: &[&str]) {
    match model {
        Ok(_) => panic!("{what}: expected an error, found a model"),
        Err(error) => assert_says(&error.to_string(), parts),
    }
}

/// The faults of the tensors, one string for each.
fn faults(model: Result<Model, ModelError>) -> Vec<String> {
    match model {
        Err(ModelError::Tensors(faults)) => faults,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("expected an error about tensors, found a model"),
    }
}
