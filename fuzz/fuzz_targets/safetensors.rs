//! A safetensors file from its bytes; with a `config.json` in its metadata it is a model, which is
//! run.
#![no_main]

use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use thane_fuzz::{Rng, run_model};
use thane_mil::data::Bytes;
use thane_models::checkpoint::{Checkpoint, Config, HuggingFace, Source, safetensors};

fuzz_target!(|data: &[u8]| {
    let Ok(file) = safetensors::parse(&Bytes::new(data.to_vec())) else {
        return;
    };
    for (name, tensor) in &file.tensors {
        assert_eq!(*name, tensor.name);
        assert_eq!(
            tensor.ty.byte_len(tensor.element_count()),
            Some(tensor.bytes.len()),
            "{name}"
        );
    }
    let Some(Ok(config)) = file
        .metadata
        .get("config.json")
        .map(|text| Config::parse(text.as_bytes()))
    else {
        return;
    };
    let folder = HuggingFace {
        folder: PathBuf::new(),
        config,
        generation_config: None,
        tokenizer_json: None,
        tokenizer_config: None,
        tokenizer_model: None,
        tokenizer_bin: None,
        chat_template: None,
    };
    std::hint::black_box(folder.eos_token_ids().is_ok());
    let checkpoint = Checkpoint {
        notes: Vec::new(),
        path: PathBuf::new(),
        source: Source::HuggingFace(folder),
        tensors: file.tensors,
    };
    run_model(&checkpoint, &mut Rng::new(data));
});
