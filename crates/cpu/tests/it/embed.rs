//! Tiny random embedding models, against what sentence-transformers and transformers compute (`tests/models/README.md`).

use std::path::PathBuf;

use serde_json::Value;
use thane_cpu::Numerics;
use thane_mil::backend::Instance;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Encoder, EncoderOptions, Encoding, Pooling, build_encoder};

use crate::golden::{Golden, folder, ids, instance, relative_error};

const NAMES: [&str; 2] = ["bert-mean", "bert-cls"];

fn path(name: &str) -> PathBuf {
    folder().join("tiny-embed").join(name)
}

fn built(name: &str, options: &EncoderOptions) -> Encoder {
    let checkpoint = Checkpoint::open(&path(name)).unwrap();
    build_encoder(&checkpoint, options).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Set the inputs of texts padded to the longest, and `more` behind it.
fn feed(instance: &mut dyn Instance, texts: &[Vec<u32>], more: usize) {
    let width = texts.iter().map(Vec::len).max().unwrap() + more;
    let shape = [texts.len(), width];
    let padded = |fill: &dyn Fn(&[u32], usize) -> u32| -> Vec<u8> {
        texts.iter().flat_map(|t| (0..width).flat_map(|i| fill(t, i).to_ne_bytes())).collect()
    };
    // Any token may stand where padding is.
    let tokens = padded(&|t, i| t.get(i).copied().unwrap_or(1 + (i % 3) as u32));
    let mask = padded(&|t, i| u32::from(i < t.len()));
    instance.input("input_ids", &shape).unwrap().copy_from_slice(&tokens);
    instance.input("attention_mask", &shape).unwrap().copy_from_slice(&mask);
}

fn floats(instance: &dyn Instance, output: &str) -> Vec<f32> {
    instance.output(output).unwrap().bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

fn texts(golden: &Golden) -> Vec<(String, Vec<u32>, Value)> {
    let texts = golden.json["texts"].as_array().unwrap();
    texts.iter().map(|t| (t["name"].as_str().unwrap().to_owned(), ids(&t["ids"]), t.clone())).collect()
}

/// A cosine of 0.99999 is a relative error of 4e-3; this is far closer.
const BOUND: f64 = 2e-5;

#[test]
fn embeddings_are_those_of_the_reference() {
    for name in NAMES {
        let golden = Golden::read(&path(name).join("golden"));
        let encoder = built(name, &EncoderOptions::default());
        assert_eq!(encoder.info.dim as u64, golden.json["dimension"], "{name}");
        assert_eq!(encoder.info.normalize, golden.json["normalized"].as_bool().unwrap(), "{name}");
        assert_eq!(encoder.info.max_tokens as u64, golden.json["max_seq_len"], "{name}");
        let mut instance = instance(&encoder.program, Numerics::F32, 2);
        let texts = texts(&golden);
        for (text, ids, at) in &texts {
            feed(instance.as_mut(), std::slice::from_ref(ids), 0);
            instance.run("encode").unwrap();
            let found = floats(instance.as_ref(), "embedding");
            let error = relative_error(&found, golden.array(&at["embedding"]));
            assert!(error <= BOUND, "{name}, {text}: {error:e}");
        }
        // Padding beside other texts, and more of it, changes nothing.
        let all: Vec<Vec<u32>> = texts.iter().map(|(_, ids, _)| ids.clone()).collect();
        for more in [0, 3] {
            feed(instance.as_mut(), &all, more);
            instance.run("encode").unwrap();
            let found = floats(instance.as_ref(), "embedding");
            for (row, (text, _, at)) in found.chunks(encoder.info.dim).zip(&texts) {
                let error = relative_error(row, golden.array(&at["embedding"]));
                assert!(error <= BOUND, "{name}, {text} in a batch with {more} more: {error:e}");
            }
        }
    }
}

#[test]
fn every_pooling_and_the_vectors_of_tokens_are_those_of_the_reference() {
    for name in NAMES {
        let golden = Golden::read(&path(name).join("golden"));
        let texts = texts(&golden);
        let all: Vec<Vec<u32>> = texts.iter().map(|(_, ids, _)| ids.clone()).collect();
        for pooling in Pooling::ALL {
            let options =
                EncoderOptions { pooling: Some(pooling), normalize: Some(false), ..EncoderOptions::default() };
            let encoder = built(name, &options);
            let mut instance = instance(&encoder.program, Numerics::F32, 1);
            feed(instance.as_mut(), &all, 2);
            instance.run("encode").unwrap();
            let found = floats(instance.as_ref(), "embedding");
            for (row, (text, _, at)) in
                found.chunks(encoder.info.dim).zip(&texts).filter(|(_, t)| !t.2["pooled"][pooling.name()].is_null())
            {
                let error = relative_error(row, golden.array(&at["pooled"][pooling.name()]));
                assert!(error <= BOUND, "{name}, {text}, {}: {error:e}", pooling.name());
            }
        }
        let options =
            EncoderOptions { encoding: Encoding::Tokens, normalize: Some(false), ..EncoderOptions::default() };
        let encoder = built(name, &options);
        let mut instance = instance(&encoder.program, Numerics::F32, 1);
        for (text, ids, at) in texts.iter().filter(|t| !t.2["hidden"].is_null()) {
            feed(instance.as_mut(), std::slice::from_ref(ids), 0);
            instance.run("encode_tokens").unwrap();
            let error = relative_error(&floats(instance.as_ref(), "token_embeddings"), golden.array(&at["hidden"]));
            assert!(error <= BOUND, "{name}, {text}: {error:e}");
        }
    }
}
