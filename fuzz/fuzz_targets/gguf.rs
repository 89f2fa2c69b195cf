//! A GGUF file from its bytes: parsed, every key asked for in every type, made a program, and that
//! run.
#![no_main]

use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use thane_fuzz::{Rng, run_model};
use thane_mil::data::Bytes;
use thane_models::checkpoint::gguf::{self, Gguf};
use thane_models::checkpoint::{Checkpoint, Source};

fuzz_target!(|data: &[u8]| {
    let Ok((gguf, tensors)) = gguf::parse(&Bytes::new(data.to_vec())) else {
        return;
    };
    for (name, tensor) in &tensors {
        assert_eq!(*name, tensor.name);
        assert_eq!(
            tensor.ty.byte_len(tensor.element_count()),
            Some(tensor.bytes.len()),
            "{name}"
        );
    }
    ask(&gguf);
    let checkpoint = Checkpoint {
        notes: Vec::new(),
        path: PathBuf::new(),
        source: Source::Gguf(gguf),
        tensors,
    };
    run_model(&checkpoint, &mut Rng::new(data));
});

/// Every getter on every key, whatever its type.
fn ask(gguf: &Gguf) {
    for key in gguf.metadata.keys() {
        let n = [
            gguf.opt_u32(key).is_ok(),
            gguf.opt_u64(key).is_ok(),
            gguf.opt_f32(key).is_ok(),
            gguf.opt_bool(key).is_ok(),
            gguf.opt_str(key).is_ok(),
            gguf.opt_strings(key).is_ok(),
            gguf.opt_byte_strings(key)
                .map(|strings| strings.map_or(0, Iterator::count))
                .is_ok(),
            gguf.opt_f32s(key).is_ok(),
            gguf.opt_i32s(key).is_ok(),
            gguf.opt_bools(key).is_ok(),
        ];
        std::hint::black_box(n);
        if let Some(value) = gguf.value(key) {
            std::hint::black_box((value.type_name(), value.as_integer(), value.as_float()));
        }
    }
    assert!(gguf.unread("").is_empty(), "every key was read");
}
