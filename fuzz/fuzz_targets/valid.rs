//! The validator's promise: after its Ok nothing panics: no opset, no pass, no package, no way to
//! run.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use thane_fuzz::{Rng, change_text, resolve, run};
use thane_mil::lower::with_opset;
use thane_mil::opset::Opset;
use thane_mil::package::{self, Package};
use thane_mil::text::parse;
use thane_mil::valid;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(program) = parse(text, &resolve) else {
        return;
    };
    if valid::check(&program).is_err() {
        return;
    }
    for opset in Opset::ALL {
        if let Ok(other) = with_opset(&program, *opset) {
            assert_eq!(valid::check(&other), Ok(()), "{text}");
        }
    }
    // Whatever it says, it says it.
    let _ = package::check(&Package::new(program.clone()));
    let passes = thane_compile::Options {
        verify: true,
        stop_after: None,
    };
    let (better, _) =
        thane_compile::run(program.clone(), &passes).unwrap_or_else(|e| panic!("{e}\n{text}"));
    run(&better, &mut Rng::new(data));
    run(&program, &mut Rng::new(data));
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    change_text(data, size, max_size, seed)
});
