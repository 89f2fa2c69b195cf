//! Checkpoints that the families take and refuse: every refusal names the key or the tensor.

mod gguf;
mod hugging_face;
mod tensors;

use thane_models::checkpoint::Checkpoint;
use thane_models::{Model, ModelError, Options, build};

use crate::checkpoint::builder::{Folder, assert_says};

const LLAMA: &str = "llama-bias";
const GEMMA: &str = "gemma3";
const IMAGE: &str = "gemma3-image";

/// What `name` in the folder is lowered to.
fn lower(folder: &Folder, name: &str, options: &Options) -> Result<Model, ModelError> {
    let checkpoint: Checkpoint = folder.open(name)?;
    build(&checkpoint, options)
}

/// Asserts that this is an error whose message holds each part.
fn assert_refused(what: &str, model: Result<Model, ModelError>, parts: &[&str]) {
    match model {
        Ok(_) => panic!("{what} is taken"),
        Err(error) => assert_says(&error.to_string(), parts),
    }
}

/// The faults of the tensors, one line each.
fn faults(model: Result<Model, ModelError>) -> Vec<String> {
    match model {
        Err(ModelError::Tensors(faults)) => faults,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the tensors are taken"),
    }
}
