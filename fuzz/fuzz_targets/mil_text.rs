//! MIL text: parsed; what the validator accepts is printed, read back equal, and run.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use thane_fuzz::{Rng, change_text, resolve, run};
use thane_mil::program::{Program, difference};
use thane_mil::text::{Blobs, parse, print};
use thane_mil::types::TensorType;
use thane_mil::valid;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(program) = parse(text, &resolve) else {
        return;
    };
    if valid::check(&program).is_ok() {
        reads_back(&program);
        run(&program, &mut Rng::new(data));
    }
});

fn reads_back(program: &Program) {
    let mut blobs = Blobs::default();
    let text = print(program, &mut blobs);
    let stored = |_: &str, offset: u64, ty: &TensorType| blobs.get(offset, ty);
    let back = parse(&text, &stored).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(difference(program, &back), None, "{text}");
    assert_eq!(valid::check(&back), Ok(()), "{text}");
    assert_eq!(print(&back, &mut Blobs::default()), text);
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    change_text(data, size, max_size, seed)
});
