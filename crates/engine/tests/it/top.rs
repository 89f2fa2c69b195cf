//! Decode steps of a caller that needs the greatest logits only.

use std::path::Path;

use thane_cpu::{Cpu, Numerics};
use thane_engine::generate::{GenerateError, Session};
use thane_engine::sample::{SampleError, SampleOptions, Sampler};
use thane_mil::backend::{Backend, Instance, RunError, View};
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Options, build};

const CONTEXT: usize = 64;

/// A session of a program whose function `decode_top` gives `top` logits.
fn session(top: Option<usize>) -> Session {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny/gemma3");
    let options = Options {
        context: Some(CONTEXT),
        top,
        ..Options::default()
    };
    let model = build(&Checkpoint::open(&folder).unwrap(), &options).unwrap();
    let loaded = Cpu::new(Numerics::F32, 2).load(&model.program).unwrap();
    let instance = loaded.instantiate().unwrap();
    Session::new(instance, CONTEXT, model.info.vocab_size).with_top(top)
}

/// The `n` greatest stay, and minus infinity takes the place of others.
fn only_greatest(logits: &[f32], n: usize) -> Vec<f32> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let mut row = vec![f32::NEG_INFINITY; logits.len()];
    order[..n].iter().for_each(|at| row[*at] = logits[*at]);
    row
}

#[test]
fn the_greatest_logits_are_those_of_decode() {
    let prompt = [3, 1, 4, 1, 5];
    let n_vocab = 149;
    let mut whole = session(None);
    for (top, asked, given) in [
        (Some(5), Some(1), 5),
        (Some(5), Some(5), 5),
        (Some(5), Some(6), n_vocab),
        (Some(5), None, n_vocab),
        (None, Some(1), n_vocab),
        (Some(n_vocab), Some(1 << 40), n_vocab),
    ] {
        let mut some = session(top);
        for session in [&mut whole, &mut some] {
            session.reset();
            session.feed(&prompt, &|| false).unwrap().unwrap();
        }
        // Every call forgets the tokens of the call before.
        for token in [9, 2, 6, 5] {
            let due = only_greatest(&whole.decode(token).unwrap(), given);
            let found = some.decode_greatest(token, asked).unwrap();
            assert_eq!(*found, due, "{top:?}, {asked:?}");
        }
        assert_eq!(some.tokens(), whole.tokens());
    }
}

/// A program that gives these outputs, whatever its inputs are.
struct Fake {
    ids: Vec<u8>,
    logits: (DType, Vec<u8>),
    tokens: (DType, Vec<u8>),
    shape: [usize; 3],
}

impl Fake {
    fn new(logits: &[f32], tokens: &[i32]) -> Self {
        Self {
            ids: vec![0; 4],
            logits: (
                DType::Fp32,
                logits.iter().flat_map(|v| v.to_ne_bytes()).collect(),
            ),
            tokens: (
                DType::Int32,
                tokens.iter().flat_map(|v| v.to_ne_bytes()).collect(),
            ),
            shape: [1, 1, tokens.len()],
        }
    }
}

impl Instance for Fake {
    fn input(&mut self, _: &str, _: &[usize]) -> Result<&mut [u8], RunError> {
        Ok(&mut self.ids)
    }

    fn run(&mut self, function: &str) -> Result<(), RunError> {
        assert_eq!(function, "decode_top");
        Ok(())
    }

    fn output(&self, name: &str) -> Result<View<'_>, RunError> {
        let (dtype, bytes) = match name {
            "top_logits" => &self.logits,
            "top_tokens" => &self.tokens,
            _ => return Err(RunError::NoOutput(name.to_owned())),
        };
        Ok(View {
            dtype: *dtype,
            shape: &self.shape,
            bytes,
        })
    }

    fn state(&self, name: &str) -> Result<View<'_>, RunError> {
        Err(RunError::NoState(name.to_owned()))
    }

    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError> {
        Err(RunError::NoState(name.to_owned()))
    }

    fn reset(&mut self) {}
}

fn session_of(fake: Fake) -> Session {
    Session::new(Box::new(fake), CONTEXT, 7).with_top(Some(2))
}

#[test]
fn numbers_that_are_not_finite_are_found() {
    let mut sampler = Sampler::new(SampleOptions::default()).unwrap();
    for value in [f32::NAN, f32::INFINITY] {
        let mut session = session_of(Fake::new(&[value, 1.0], &[4, 2]));
        let mut logits = session.decode_greatest(0, Some(1)).unwrap().into_owned();
        let found = sampler.sample(&mut logits, &[]);
        assert!(
            matches!(found, Err(SampleError::NotFinite { id: 4, .. })),
            "{found:?}"
        );
    }
}

#[test]
fn outputs_that_do_not_fit_are_refused() {
    let good = || Fake::new(&[2.0, 1.0], &[4, 2]);
    let halves = Fake {
        logits: (DType::Fp16, vec![0, 0x40, 0, 0x3c]),
        ..good()
    };
    let row = session_of(halves)
        .decode_greatest(0, Some(2))
        .unwrap()
        .into_owned();
    assert_eq!((row[4], row[2], row.len()), (2.0, 1.0, 7));
    let untyped = Fake {
        tokens: (DType::Uint32, good().tokens.1),
        ..good()
    };
    for (fake, found) in [
        (Fake::new(&[1.0], &[4]), "found 1 of fp32 and 1 of int32"),
        (Fake::new(&[2.0, 1.0], &[4, 7]), "found token 7"),
        (Fake::new(&[2.0, 1.0], &[-1, 2]), "found token -1"),
        (untyped, "found 2 of fp32 and 2 of uint32"),
    ] {
        let mut session = session_of(fake);
        let error = session.decode_greatest(0, Some(1)).unwrap_err();
        assert!(matches!(error, GenerateError::Top { .. }));
        assert!(error.to_string().ends_with(found), "{error}");
    }
}
