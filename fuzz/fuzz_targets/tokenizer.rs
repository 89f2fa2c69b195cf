//! A `tokenizer.json`: read, and texts turned into tokens and back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thane_engine::text::{EncodeOptions, Tokenizer, TokenizerConfig};

const TEXTS: [&str; 4] = [
    "hello world",
    "<|im_start|>The 12 quick\t\u{e9} \u{65e5}\u{672c}\0",
    "",
    "aaaaaaaaaaaaaaaaaaaaaaaa",
];

fuzz_target!(|data: &[u8]| {
    thane_fuzz::pass_guarded_panics();
    let Ok(tokenizer) = Tokenizer::from_json(data, TokenizerConfig::default()) else {
        return;
    };
    let _ = std::hint::black_box(tokenizer.special_tokens());
    for (text, special) in TEXTS.into_iter().zip([true, false, true, false]) {
        let options = EncodeOptions {
            add_special: special,
            parse_special: special,
        };
        let Ok(tokens) = tokenizer.encode(text, options) else {
            continue;
        };
        for id in &tokens {
            assert!((*id as usize) < tokenizer.n_vocab(), "{text}: token {id}");
        }
        std::hint::black_box(tokenizer.decode(&tokens, special));
    }
});
