//! A real model from the folder in the variable THANE_MODELS. Without the variable the test prints
//! that it is skipped.

use std::path::PathBuf;

use thane_models::checkpoint::Checkpoint;

#[test]
fn smollm2_is_read() {
    let Some(models) = std::env::var_os("THANE_MODELS").map(PathBuf::from) else {
        println!("skipped: THANE_MODELS names no folder; scripts/models.sh makes one");
        return;
    };
    let checkpoint = Checkpoint::open(&models.join("SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap();
    let gguf = checkpoint.gguf().unwrap();
    assert_eq!((checkpoint.tensors.len(), gguf.metadata.len()), (272, 33));
    assert_eq!(gguf.str("general.architecture").unwrap(), "llama");
    assert_eq!(gguf.strings("tokenizer.ggml.tokens").unwrap().len(), 49152);
    assert_eq!(checkpoint.tensors["token_embd.weight"].shape, [49152, 576]);
}
