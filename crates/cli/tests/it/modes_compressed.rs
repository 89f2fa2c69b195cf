//! Programs of all families and modes of the form for the Neural Engine, with compressed weights,
//! give the tokens of programs with the decompressed weights, in f32.

use std::sync::Arc;

use thane_calls::CacheForm;
use thane_compile::compress::Scale;
use thane_compile::compress::job::Memory;
use thane_compile::compress::program::{Compression, Settings};
use thane_mil::program::Program;
use thane_runtime::LanguageModel;

use crate::decoder::{cases, has_one_state, model, sequences};
use crate::decompress::decompressed;
use crate::modes::{direct_modes, is_recurrent, modes, session};

/// Tried in turn: each family has several, and each is in several modes.
const ENCODINGS: [(&str, Option<Scale>); 10] = [
    ("pal4", None),
    ("int8", None),
    ("pal4g2", Some(Scale::None)),
    ("2x16", Some(Scale::None)),
    ("pal6", Some(Scale::Inside)),
    ("int4", None),
    ("pal3", Some(Scale::Behind)),
    ("sparse50+pal4", None),
    ("2x16", Some(Scale::Behind)),
    ("sparse30", None),
];

/// Prompt and answer.
const TOKENS: [usize; 2] = [9, 5];

fn compressed(program: &Program, (text, scale): (&str, Option<Scale>)) -> (Program, usize) {
    let settings = Settings {
        encoding: text.parse().unwrap(),
        scale,
        // Weights of these models are small.
        least: 64,
        ..Settings::default()
    };
    let store = Arc::new(Memory::default());
    let compression = Compression::new(program, settings, store).unwrap();
    compression.run(1, &|_, _| {}).unwrap();
    let (program, report) = compression.apply(program).unwrap();
    (program, report.rows.len())
}

/// The greedy answer to a prompt, and the last logits.
fn answer(model: &LanguageModel, prompt: &[u32]) -> (Vec<u32>, Vec<f32>) {
    let mut session = session(model);
    let mut ids = prompt.to_vec();
    let mut logits = session.feed(&ids, &|| false).unwrap().unwrap().to_vec();
    for _ in 0..TOKENS[1] {
        let greatest = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        let id = greatest.unwrap() as u32;
        ids.push(id);
        logits = session.decode(id).unwrap().into_owned();
    }
    (ids.split_off(prompt.len()), logits)
}

#[test]
fn tokens_of_all_modes_are_those_of_the_decompressed_weights() {
    let mut bad = Vec::new();
    let mut n_programs = 0;
    for (at, (name, file)) in cases().iter().enumerate() {
        let (ids, _) = sequences(name).pop().unwrap();
        let prompt = &ids[..TOKENS[0].min(ids.len())];
        let n_layers = model(name, file, None).info.n_layers;
        for (k, (mode, form)) in modes(n_layers)
            .into_iter()
            .chain(direct_modes(n_layers))
            .enumerate()
        {
            let is_impossible = form.cache == CacheForm::State && !has_one_state(name)
                || form.direct.is_some() && is_recurrent(name);
            // A third of the modes of each family, all of them over three families.
            if is_impossible || k % 3 != at % 3 {
                continue;
            }
            let encoding = ENCODINGS[(at + k) % ENCODINGS.len()];
            let case = format!("{name}, {mode}, {encoding:?}");
            let mut small = model(name, file, Some(form.into()));
            let (program, n_rows) = compressed(&small.program, encoding);
            small.program = program;
            let ours = answer(&small, prompt);
            small.program = decompressed(&small.program);
            let theirs = answer(&small, prompt);
            n_programs += 1;
            if ours.0 != theirs.0 {
                bad.push(format!("{case}: {:?} {:?}", ours.0, theirs.0));
            }
            assert!(n_rows > n_layers, "{case}: {n_rows}");
        }
    }
    assert!(bad.is_empty() && n_programs > 100, "{n_programs} {bad:#?}");
}
