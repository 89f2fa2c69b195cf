//! What is reserved while the files of a tokenizer are read, and while it is made, is at least what
//! that takes. A program of its own, for it has an allocator that counts.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used, unsafe_code)]

#[path = "../../../tests/support/heap_peak.rs"]
mod heap_peak;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use heap_peak::counted;
use serde_json::{Value, json};
use thane_mil::budget::{Budget, OverBudget};
use thane_models::checkpoint::Checkpoint;
use thane_runtime::{Language, LanguageData, LanguageError};

type Make<'a> = &'a dyn Fn(&Budget) -> Result<Language, LanguageError>;

/// Checks that a tokenizer is refused where there is a byte less than it takes at most, that what
/// it holds then is what it takes, and that no more than `times` as much counts.
fn check(name: &str, times: f64, make: Make) {
    let (language, peak, left) = counted(|| make(&Budget::unlimited()));
    let error = make(&Budget::new(peak - 1)).err();
    let cause = error.as_ref().and_then(std::error::Error::source);
    let is_refused = cause.is_some_and(|cause| cause.is::<OverBudget>());
    assert!(is_refused, "{name}: {peak} bytes, {error:?}");
    let Ok(language) = language else { return };
    let held = language.tokenizer.held_bytes();
    assert!(held >= left, "{name}: counted {held}, found {left}");
    let most = |found: usize| (found as f64 * times) as usize;
    assert!(held <= most(left), "{name}: counted {held}, found {left}");
    let within = make(&Budget::new(most(peak)));
    assert!(within.is_ok(), "{name}: {peak} bytes, {:?}", within.err());
}

/// A `tokenizer.model` of pieces of some kinds; a unigram model is one of type 1.
fn pieces(model_type: u8, pieces: impl Iterator<Item = (String, u8)>) -> Vec<u8> {
    let first = [("<unk>", 2), ("<s>", 3), ("</s>", 3)].map(|(text, kind)| (text.to_owned(), kind));
    let mut out = Vec::new();
    let field = |tag: u8, bytes: &[u8]| {
        let mut field = vec![tag << 3 | 2];
        prost::encoding::encode_varint(bytes.len() as u64, &mut field);
        [field, bytes.to_vec()].concat()
    };
    for (text, kind) in first.into_iter().chain(pieces) {
        let score = [&[0x15][..], &(-2.5f32).to_le_bytes()].concat();
        out.extend(field(
            1,
            &[field(1, text.as_bytes()), score, vec![0x18, kind]].concat(),
        ));
    }
    out.extend(field(2, &[0x18, model_type]));
    out
}

fn made(folder: &Path, n_vocab: usize, budget: &Budget) -> Result<Language, LanguageError> {
    let data = LanguageData::from_folder(folder, n_vocab, budget)?;
    data.unwrap().into_language(budget)
}

#[test]
fn pieces_count_as_what_reading_and_using_them_takes() {
    const BPE: u8 = 2;
    const UNIGRAM: u8 = 1;
    let short = || (0..60_000).map(|n| (format!("{n:05x}"), 1));
    let nested = || (1..600).map(|n| ("h".repeat(n), 1));
    let letter = |n: usize| char::from(b'a' + (n * n % 7919 % 26) as u8);
    let random = || (0..4000).map(|n| ((0..20).map(|at| letter(n * 64 + at)).collect(), 1));
    let special = || (0..5000).map(|n| (format!("<{n:030}>"), if n < 1000 { 4 } else { 3 }));
    let escaped = || (0..20_000).map(|n| (format!("\u{1}\u{2}\u{3}{n:05x}"), 1));
    let list: Vec<String> = (0..20_000).map(|n| format!("{n:06}")).collect();
    let many = json!({"additional_special_tokens": list});
    let empty = json!({"x": vec![json!([]); 200_000]});
    let cases: Vec<(&str, Vec<u8>, &str, Value, f64)> = vec![
        (
            "short, merged by ids",
            pieces(BPE, short()),
            "llama",
            json!({}),
            1.6,
        ),
        (
            "short, merged by scores",
            pieces(BPE, short()),
            "x",
            json!({}),
            1.6,
        ),
        (
            "nested, merged by ids",
            pieces(BPE, nested()),
            "llama",
            json!({}),
            1.6,
        ),
        (
            "nested, merged by scores",
            pieces(BPE, nested()),
            "x",
            json!({}),
            1.6,
        ),
        ("unigram", pieces(UNIGRAM, short()), "x", json!({}), 1.6),
        (
            "unigram of random texts",
            pieces(UNIGRAM, random()),
            "x",
            json!({}),
            1.6,
        ),
        ("special", pieces(BPE, special()), "llama", json!({}), 20.0),
        ("escaped", pieces(BPE, escaped()), "x", json!({}), 1.6),
        (
            "a list of tokens",
            pieces(BPE, random()),
            "llama",
            many,
            20.0,
        ),
        (
            "a list of lists",
            pieces(BPE, random()),
            "llama",
            empty,
            3.0,
        ),
    ];
    for (name, model, model_type, settings, times) in cases {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        write("tokenizer.model", &model);
        write(
            "config.json",
            json!({"model_type": model_type}).to_string().as_bytes(),
        );
        write("tokenizer_config.json", settings.to_string().as_bytes());
        check(name, times, &|budget| made(folder.path(), 200_000, budget));
    }
}

/// What counts for published tokenizers is less than twice what they take.
#[test]
fn published_tokenizers_count_about_as_what_they_take() {
    let names = [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", 49_152),
        ("gemma-3-270m-q4_k_m.gguf", 262_144),
        ("all-MiniLM-L6-v2", 30_522),
    ];
    for (name, n_vocab) in names {
        let folder = std::env::var_os("THANE_MODELS").map(PathBuf::from);
        let path = folder.map(|folder| folder.join(name));
        let Some(path) = path.filter(|path| path.exists()) else {
            let text = format!("skipped: {name} is not in the folder THANE_MODELS");
            let _ = writeln!(std::io::stderr(), "{text}");
            continue;
        };
        let checkpoint = Checkpoint::open(&path).unwrap();
        check(name, 2.0, &|budget| {
            let data = LanguageData::from_checkpoint(&checkpoint, n_vocab, budget)?;
            data.unwrap().into_language(budget)
        });
    }
}
