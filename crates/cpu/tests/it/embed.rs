//! Tiny random embedding models, against what sentence-transformers and transformers compute
//! (`tests/models/README.md`).

use std::path::{Path, PathBuf};

use serde_json::Value;
use thane_cpu::Numerics;
use thane_cpu::ane::Effects;
use thane_mil::backend::Instance;
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;
use thane_mil::valid;
use thane_models::checkpoint::Checkpoint;
use thane_models::{
    Encoder, EncoderOptions, Encoding, Engine, NormForm, Pooling, Poolings, Target, build_encoder,
};

use crate::golden::{
    Golden, embedding_models, folder, ids, instance, on_each_isa, relative_error, with_key,
    with_scaled,
};

const PPLX: &str = "qwen3-pplx";

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
        texts
            .iter()
            .flat_map(|t| (0..width).flat_map(|i| fill(t, i).to_ne_bytes()))
            .collect()
    };
    // Any token may stand where padding is.
    let tokens = padded(&|t, i| t.get(i).copied().unwrap_or(1 + (i % 3) as u32));
    let mask = padded(&|t, i| u32::from(i < t.len()));
    instance
        .input("input_ids", &shape)
        .unwrap()
        .copy_from_slice(&tokens);
    instance
        .input("attention_mask", &shape)
        .unwrap()
        .copy_from_slice(&mask);
}

/// Positions that the model has beyond those of the longest text.
fn spare(encoder: &Encoder, texts: &[Vec<u32>]) -> usize {
    encoder.info.n_positions - texts.iter().map(Vec::len).max().unwrap()
}

fn floats(instance: &dyn Instance, output: &str) -> Vec<f32> {
    instance
        .output(output)
        .unwrap()
        .bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_ne_bytes(*b))
        .collect()
}

fn texts(golden: &Golden) -> Vec<(String, Vec<u32>, Value)> {
    let texts = golden.json["texts"].as_array().unwrap();
    // The one model with a default prompt does not pool the prompt's tokens, which is not
    // supported.
    let is_pooled = |t: &Value| {
        golden.json["default_prompt"].is_null()
            || t["prompt"]
                .as_str()
                .is_some_and(|prompt| golden.json["prompts"][prompt] == "")
    };
    // A text of no tokens has no vector.
    let texts = texts
        .iter()
        .filter(|t| !t["ids"].as_array().unwrap().is_empty() && is_pooled(t));
    texts
        .map(|t| {
            (
                t["name"].as_str().unwrap().to_owned(),
                ids(&t["ids"]),
                t.clone(),
            )
        })
        .collect()
}

/// A cosine of 0.99999 is a relative error of 4e-3; this is far closer.
const BOUND: f64 = 1e-5;
/// In the mean of a model's texts a cosine of 0.99, of each of 0.94: random weights have no
/// outliers, but rows of a few dozen columns average little out.
const INT8_BOUNDS: [f64; 2] = [0.14, 0.35];

#[test]
fn embeddings_are_those_of_the_reference() {
    for name in &embedding_models() {
        let golden = Golden::read(&path(name).join("golden"));
        let encoder = built(name, &EncoderOptions::default());
        assert_eq!(encoder.info.dim as u64, golden.json["dimension"], "{name}");
        assert_eq!(
            encoder.info.normalize,
            golden.json["normalized"].as_bool().unwrap(),
            "{name}"
        );
        assert_eq!(
            encoder.info.max_tokens as u64, golden.json["max_seq_len"],
            "{name}"
        );
        let texts = texts(&golden);
        let all: Vec<Vec<u32>> = texts.iter().map(|(_, ids, _)| ids.clone()).collect();
        for (isa, mut instance) in on_each_isa(&encoder.program, Numerics::F32, 2) {
            for (text, ids, at) in &texts {
                feed(instance.as_mut(), std::slice::from_ref(ids), 0);
                instance.run("encode").unwrap();
                let found = floats(instance.as_ref(), "embedding");
                let error = relative_error(&found, golden.array(&at["embedding"]));
                assert!(error <= BOUND, "{name}, {isa}, {text}: {error:e}");
            }
            // Padding beside other texts, and more of it, changes nothing.
            for more in [0, 3.min(spare(&encoder, &all))] {
                feed(instance.as_mut(), &all, more);
                instance.run("encode").unwrap();
                let found = floats(instance.as_ref(), "embedding");
                for (row, (text, _, at)) in found.chunks(encoder.info.dim).zip(&texts) {
                    let error = relative_error(row, golden.array(&at["embedding"]));
                    assert!(
                        error <= BOUND,
                        "{name}, {isa}, {text} in a batch with {more} more: {error:e}"
                    );
                }
            }
        }
    }
}

/// From one token to 512, or to the end of a shorter table of positions; one by one and padded
/// together.
#[test]
fn sequences_of_all_lengths_are_embedded_as_by_the_reference() {
    let mut n_whole = 0;
    for name in &embedding_models() {
        let golden = Golden::read(&path(name).join("lengths"));
        let folder = match golden.json["positions_key"].as_str() {
            Some(key) => with_key(&path(name), key, &golden.json["positions"]),
            None => path(name),
        };
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let encoder = build_encoder(&checkpoint, &EncoderOptions::default()).unwrap();
        let row = ids(&golden.json["ids"]);
        let lengths = ids(&golden.json["lengths"]);
        let texts = lengths.iter().map(|n| row[..*n as usize].to_vec());
        let texts: Vec<Vec<u32>> = texts.collect();
        let longest = *lengths.last().unwrap();
        assert!(encoder.info.n_positions >= longest as usize, "{name}");
        assert_eq!((lengths[0], row.len() as u32), (1, longest), "{name}");
        n_whole += usize::from(longest == 512);
        let expected = golden.array(&golden.json["embeddings"]);
        for (isa, mut instance) in on_each_isa(&encoder.program, Numerics::F32, 2) {
            let mut compare = |texts: &[Vec<u32>], expected: &[f32]| {
                feed(instance.as_mut(), texts, 0);
                instance.run("encode").unwrap();
                let found = floats(instance.as_ref(), "embedding");
                let rows = found.chunks(encoder.info.dim);
                for ((row, ids), expected) in rows.zip(texts).zip(expected.chunks(encoder.info.dim))
                {
                    let (n, together) = (ids.len(), texts.len());
                    let error = relative_error(row, expected);
                    assert!(
                        error <= BOUND,
                        "{name}, {isa}, {n} of {together}: {error:e}"
                    );
                }
            };
            for (text, expected) in texts.iter().zip(expected.chunks(encoder.info.dim)) {
                compare(std::slice::from_ref(text), expected);
            }
            compare(&texts, expected);
        }
    }
    assert!(
        n_whole >= 16,
        "{n_whole} models were compared on 512 tokens"
    );
}

/// Products of integers of 7 or 8 bits: near, and not the same.
#[test]
fn embeddings_of_rounded_weights_are_near_the_reference() {
    for name in &embedding_models() {
        let golden = Golden::read(&path(name).join("golden"));
        let encoder = built(name, &EncoderOptions::default());
        let texts = texts(&golden);
        let all: Vec<Vec<u32>> = texts.iter().map(|(_, ids, _)| ids.clone()).collect();
        for (isa, mut instance) in on_each_isa(&encoder.program, Numerics::Int8, 2) {
            feed(instance.as_mut(), &all, 3.min(spare(&encoder, &all)));
            instance.run("encode").unwrap();
            let found = floats(instance.as_ref(), "embedding");
            let mut sum = 0.0;
            for (row, (text, _, at)) in found.chunks(encoder.info.dim).zip(&texts) {
                let error = relative_error(row, golden.array(&at["embedding"]));
                assert!(
                    (1e-4..INT8_BOUNDS[1]).contains(&error),
                    "{name}, {isa}, {text}: {error:e}"
                );
                sum += error * error;
            }
            let mean = (sum / texts.len() as f64).sqrt();
            assert!(mean < INT8_BOUNDS[0], "{name}, {isa}: {mean:e} on average");
        }
    }
}

#[test]
fn every_pooling_and_the_vectors_of_tokens_are_those_of_the_reference() {
    // Dense layers compute on vectors before they can be seen.
    for name in embedding_models()
        .iter()
        .filter(|name| !path(name).join("2_Dense").exists())
    {
        let golden = Golden::read(&path(name).join("golden"));
        let texts = texts(&golden);
        let all: Vec<Vec<u32>> = texts.iter().map(|(_, ids, _)| ids.clone()).collect();
        for pooling in Pooling::ALL {
            let options = EncoderOptions {
                pooling: Some(pooling.into()),
                normalize: Some(false),
                ..EncoderOptions::default()
            };
            let encoder = built(name, &options);
            let mut instance = instance(&encoder.program, Numerics::F32, 1);
            feed(instance.as_mut(), &all, 2.min(spare(&encoder, &all)));
            instance.run("encode").unwrap();
            let found = floats(instance.as_ref(), "embedding");
            for (row, (text, _, at)) in found
                .chunks(encoder.info.dim)
                .zip(&texts)
                .filter(|(_, t)| !t.2["pooled"][pooling.name()].is_null())
            {
                let error = relative_error(row, golden.array(&at["pooled"][pooling.name()]));
                assert!(
                    error <= BOUND,
                    "{name}, {text}, {}: {error:e}",
                    pooling.name()
                );
            }
        }
        let options = EncoderOptions {
            encoding: Encoding::Tokens,
            normalize: Some(false),
            ..EncoderOptions::default()
        };
        let encoder = built(name, &options);
        let mut instance = instance(&encoder.program, Numerics::F32, 1);
        for (text, ids, at) in texts.iter().filter(|t| !t.2["hidden"].is_null()) {
            feed(instance.as_mut(), std::slice::from_ref(ids), 0);
            instance.run("encode_tokens").unwrap();
            let error = relative_error(
                &floats(instance.as_ref(), "token_embeddings"),
                golden.array(&at["hidden"]),
            );
            assert!(error <= BOUND, "{name}, {text}: {error:e}");
        }
    }
}

/// As many elements as all poolings have together, in the order in which they were named.
#[test]
fn joined_poolings_follow_each_other() {
    let name = "bert-mean";
    let golden = Golden::read(&path(name).join("golden"));
    for names in ["mean_sqrt_len_tokens+cls", "max+mean+lasttoken"] {
        let options = EncoderOptions {
            pooling: Poolings::from_name(names),
            normalize: Some(false),
            ..EncoderOptions::default()
        };
        let encoder = built(name, &options);
        assert_eq!(encoder.info.pooling.to_string(), names);
        let mut instance = instance(&encoder.program, Numerics::F32, 2);
        for (text, ids, at) in &texts(&golden) {
            feed(instance.as_mut(), std::slice::from_ref(ids), 1);
            instance.run("encode").unwrap();
            let pooled = names
                .split('+')
                .map(|mode| golden.array(&at["pooled"][mode]));
            let expected = pooled.collect::<Vec<_>>().concat();
            assert_eq!(encoder.info.dim, expected.len());
            let error = relative_error(&floats(instance.as_ref(), "embedding"), &expected);
            assert!(error <= BOUND, "{names}, {text}: {error:e}");
        }
    }
    for names in ["", "mean+", "mean+mean", "mean,max", "median"] {
        assert_eq!(Poolings::from_name(names), None, "{names}");
    }
}

/// Late chunking: one pass over a document, and the mean of each chunk's own tokens.
#[test]
fn chunks_of_a_document_are_those_of_the_reference() {
    chunks(PPLX);
    chunks("qwen3-pplx-context");
}

fn chunks(name: &str) {
    let golden = Golden::read(&path(name).join("golden"));
    let options = EncoderOptions {
        encoding: Encoding::Chunks,
        ..EncoderOptions::default()
    };
    let encoder = built(name, &options);
    let mut instance = instance(&encoder.program, Numerics::F32, 2);
    let documents = golden.json["documents"].as_array().unwrap();
    assert!(documents.len() > 3);
    for document in documents {
        let (name, tokens) = (&document["name"], ids(&document["ids"]));
        let spans: Vec<Vec<u32>> = document["spans"]
            .as_array()
            .unwrap()
            .iter()
            .map(ids)
            .collect();
        let padding = 2;
        let width = tokens.len() + padding;
        let mut matrix = vec![0f32; spans.len() * width];
        for (row, span) in matrix.chunks_mut(width).zip(&spans) {
            let span = span[0] as usize..span[1] as usize;
            let n = span.len();
            row[span].fill(1.0 / n as f32);
        }
        feed(instance.as_mut(), &[tokens], padding);
        let bytes: Vec<u8> = matrix.iter().flat_map(|v| v.to_ne_bytes()).collect();
        instance
            .input("pool_matrix", &[spans.len(), width])
            .unwrap()
            .copy_from_slice(&bytes);
        instance.run("encode_chunks").unwrap();
        let found = floats(instance.as_ref(), "embedding");
        let expected = golden.array(&document["embeddings"]);
        assert_eq!(found.len(), expected.len());
        for ((row, expected), span) in found
            .chunks(encoder.info.dim)
            .zip(expected.chunks(encoder.info.dim))
            .zip(&spans)
        {
            // The vector of an empty chunk is zeros.
            let is_empty = span[0] == span[1];
            assert!(
                if is_empty {
                    row == expected
                } else {
                    relative_error(row, expected) <= BOUND
                },
                "{name}, {span:?}"
            );
        }
    }
}

/// The program for the Neural Engine, of every family and spelling of norms: fp16, features in
/// channels, padded to a bucket.
#[test]
fn the_engine_s_program_gives_the_same_vectors() {
    for name in &embedding_models() {
        let golden = Golden::read(&path(name).join("golden"));
        let texts = texts(&golden);
        let most = golden.json["max_seq_len"].as_u64().unwrap() as usize;
        for norm in [NormForm::Native, NormForm::Cat, NormForm::Scaled] {
            let engine = Engine {
                buckets: vec![24, most],
                flexible: true,
                residual_divisor: None,
                norm,
            };
            let options = EncoderOptions {
                target: Target::Engine(engine),
                ..EncoderOptions::default()
            };
            let encoder = built(name, &options);
            let names: Vec<&str> = encoder
                .program
                .functions()
                .iter()
                .map(|f| f.name.as_str())
                .collect();
            assert_eq!(
                names,
                ["encode_24", &format!("encode_{most}"), "encode"],
                "{name}"
            );
            valid::check(&encoder.program).unwrap();
            let mut instance = instance(&encoder.program, Numerics::F32, 2);
            for (text, ids, at) in texts.iter().filter(|t| t.1.len() <= most) {
                for (function, width) in [(names[0], 24), (names[1], most), (names[2], ids.len())] {
                    if ids.len() > width {
                        continue;
                    }
                    feed_half(instance.as_mut(), ids, width);
                    instance.run(function).unwrap();
                    let view = instance.output("embedding").unwrap();
                    assert_eq!(
                        (view.dtype, view.shape),
                        (DType::Fp16, &[1, encoder.info.dim][..])
                    );
                    let bits = view
                        .bytes
                        .as_chunks()
                        .0
                        .iter()
                        .map(|b| f16_to_f32(u16::from_ne_bytes(*b)));
                    let error =
                        relative_error(&bits.collect::<Vec<_>>(), golden.array(&at["embedding"]));
                    // fp16 has steps of 2^-11; a cosine of 0.999 is an error of 4.5e-2.
                    assert!(
                        error <= 2e-2,
                        "{name}, {text}, {function}, {norm:?}: {error:e}"
                    );
                }
            }
        }
    }
}

/// A text padded to `width`, its mask in fp16.
fn feed_half(instance: &mut dyn Instance, ids: &[u32], width: usize) {
    let tokens: Vec<u8> = (0..width)
        .flat_map(|i| ids.get(i).copied().unwrap_or(2).to_ne_bytes())
        .collect();
    let mask: Vec<u8> = (0..width)
        .flat_map(|i| f64_to_f16(f64::from(u8::from(i < ids.len()))).to_ne_bytes())
        .collect();
    instance
        .input("input_ids", &[1, width])
        .unwrap()
        .copy_from_slice(&tokens);
    instance
        .input("attention_mask", &[1, width])
        .unwrap()
        .copy_from_slice(&mask);
}

/// The vector of the longest text in the engine's numbers, with a stream that is divided by
/// `divisor`.
fn in_half(path: &Path, divisor: f32, norm: NormForm, numerics: Numerics) -> Vec<f32> {
    let golden = Golden::read(&path.join("golden"));
    let ids = texts(&golden)
        .into_iter()
        .map(|t| t.1)
        .max_by_key(Vec::len)
        .unwrap();
    let most = ids.len();
    let engine = Engine {
        buckets: vec![most],
        flexible: false,
        residual_divisor: Some(divisor),
        norm,
    };
    let options = EncoderOptions {
        target: Target::Engine(engine),
        ..EncoderOptions::default()
    };
    let encoder = build_encoder(&Checkpoint::open(path).unwrap(), &options).unwrap();
    let mut instance = instance(&encoder.program, numerics, 2);
    feed_half(instance.as_mut(), &ids, most);
    instance.run(&format!("encode_{most}")).unwrap();
    let view = instance.output("embedding").unwrap();
    view.bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f16_to_f32(u16::from_ne_bytes(*b)))
        .collect()
}

/// A stream near the end of fp16, as Qwen3-0.6B has it: the engine's numbers overflow, unless the
/// stream is divided.
#[test]
fn a_residual_stream_that_overflows_is_cured_by_its_divisor() {
    let path = with_scaled(&path(PPLX), "layers.0.mlp.down_proj.weight", 35_000.0);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let reference = build_encoder(&checkpoint, &EncoderOptions::default()).unwrap();
    let golden = Golden::read(&path.join("golden"));
    let ids = texts(&golden)
        .into_iter()
        .map(|t| t.1)
        .max_by_key(Vec::len)
        .unwrap();
    let mut instance = instance(&reference.program, Numerics::F32, 2);
    feed(instance.as_mut(), &[ids], 0);
    instance.run("encode").unwrap();
    let expected = floats(instance.as_ref(), "embedding");
    let ane = Numerics::Ane(Effects::default());
    let cosine = |divisor, norm| cosine(&in_half(&path, divisor, norm, ane), &expected);
    for norm in [NormForm::Scaled, NormForm::Cat, NormForm::Native] {
        println!(
            "{norm:?}: K 1 {}, 4 {}, 8 {}, 16 {}",
            cosine(1.0, norm),
            cosine(4.0, norm),
            cosine(8.0, norm),
            cosine(16.0, norm)
        );
    }
    for norm in [NormForm::Scaled, NormForm::Cat] {
        let (whole, divided) = (cosine(1.0, norm), cosine(8.0, norm));
        // What overflowed is no number, or far off.
        assert!(
            (whole.is_nan() || whole < 0.99) && divided >= 0.998,
            "{norm:?}: {whole} and {divided}"
        );
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum::<f64>()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// GGUF files of the same weights. They do not say whether vectors are normalized, which is done
/// as in llama.cpp.
#[test]
fn embeddings_of_gguf_files_are_those_of_the_reference() {
    for (name, architecture) in [
        ("bert-cls", "bert"),
        ("nomic-bert", "nomic-bert"),
        ("qwen3-embedding", "qwen3"),
        ("embeddinggemma", "gemma-embedding"),
    ] {
        let golden = Golden::read(&path(name).join("golden"));
        let file = folder()
            .join("tiny-embed-gguf")
            .join(format!("{name}.gguf"));
        let checkpoint = Checkpoint::open(&file).unwrap();
        let encoder = build_encoder(&checkpoint, &EncoderOptions::default()).unwrap();
        assert_eq!(encoder.info.architecture, architecture);
        let of_folder = built(name, &EncoderOptions::default());
        assert_eq!(encoder.info.pooling, of_folder.info.pooling, "{name}");
        assert_eq!(
            encoder.info.n_positions, of_folder.info.n_positions,
            "{name}"
        );
        assert!(encoder.info.normalize, "{name}");
        let mut instance = instance(&encoder.program, Numerics::F32, 2);
        for (text, ids, at) in &texts(&golden) {
            feed(instance.as_mut(), std::slice::from_ref(ids), 1);
            instance.run("encode").unwrap();
            let expected = golden.array(&at["embedding"]);
            let length = expected.iter().map(|v| v * v).sum::<f32>().sqrt();
            let expected: Vec<f32> = expected.iter().map(|v| v / length).collect();
            let error = relative_error(&floats(instance.as_ref(), "embedding"), &expected);
            assert!(error <= BOUND, "{name}, {text}: {error:e}");
        }
    }
}

/// Every activation of transformers that has no weights of its own.
#[test]
fn activations_are_those_of_the_reference() {
    let name = "roberta";
    let golden = Golden::read(&path(name).join("golden"));
    let (_, tokens, _) = texts(&golden)
        .into_iter()
        .find(|(name, ..)| name == "half")
        .unwrap();
    let activations = golden.json["activations"].as_object().unwrap();
    assert!(activations.len() > 20);
    let mut found = Vec::new();
    for (activation, expected) in activations {
        let folder = with_key(&path(name), "hidden_act", &Value::from(activation.as_str()));
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let encoder = build_encoder(&checkpoint, &EncoderOptions::default()).unwrap();
        let mut instance = instance(&encoder.program, Numerics::F32, 2);
        feed(instance.as_mut(), std::slice::from_ref(&tokens), 0);
        instance.run("encode").unwrap();
        found.push(floats(instance.as_ref(), "embedding"));
        let error = relative_error(found.last().unwrap(), golden.array(expected));
        assert!(error <= BOUND, "{activation}: {error:e}");
    }
    // The activation matters, or nothing was tested: all but the spellings of one function differ.
    found.sort_by(|a, b| a.partial_cmp(b).unwrap());
    found.dedup_by(|a, b| relative_error(a, b) < 1e-6);
    assert!(found.len() >= 13, "{} activations differ", found.len());
}
