//! Tiny random embedding models, against what sentence-transformers and transformers compute
//! (`tests/models/README.md`).

use std::path::{Path, PathBuf};

use serde_json::Value;
use thane_calls::Lookup;
use thane_cpu::Numerics;
use thane_cpu::ane::Effects;
use thane_mil::backend::Instance;
use thane_mil::data::Data;
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;
use thane_mil::valid;
use thane_models::checkpoint::Checkpoint;
use thane_models::{
    AneEncoder, Encoder, EncoderOptions, Encoding, NormForm, Pooling, Poolings, Table, Target,
    build_encoder,
};

use crate::golden::{
    Golden, embedding_models, folder, ids, instance, on_each_isa, relative_error, with_key,
    with_key_in, with_scaled,
};

const PPLX: &str = "qwen3-pplx";

fn path(name: &str) -> PathBuf {
    folder().join("tiny-embed").join(name)
}

fn built(name: &str, options: &EncoderOptions) -> Encoder {
    let checkpoint = Checkpoint::open(&path(name)).unwrap();
    build_encoder(&checkpoint, options).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Set the inputs of texts padded to the longest, and `more` behind it. A program that takes the
/// tokens to pool apart is given all.
fn feed(instance: &mut dyn Instance, texts: &[Vec<u32>], more: usize) {
    feed_behind(instance, texts, &vec![0; texts.len()], more);
}

/// The same with so many tokens of each text that are not pooled.
fn feed_behind(instance: &mut dyn Instance, texts: &[Vec<u32>], skipped: &[usize], more: usize) {
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
    if let Ok(input) = instance.input("pooling_mask", &shape) {
        let rows = texts.iter().zip(skipped);
        let pooled = rows.flat_map(|(t, n)| {
            (0..width).flat_map(move |i| u32::from((*n..t.len()).contains(&i)).to_ne_bytes())
        });
        input.copy_from_slice(&pooled.collect::<Vec<u8>>());
    }
}

/// How many tokens of a text are not pooled.
fn skipped(at: &Value) -> usize {
    at["n_skipped"].as_u64().unwrap_or(0) as usize
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
    // A text of no tokens has no vector.
    let texts = texts
        .iter()
        .filter(|t| !t["ids"].as_array().unwrap().is_empty());
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
        let whole = &golden.json["whole"];
        let whole = whole.as_u64().or(golden.json["dimension"].as_u64());
        assert_eq!(Some(encoder.info.dim as u64), whole, "{name}");
        let kept = golden.json["truncate_dim"].as_u64();
        assert_eq!(encoder.info.truncate_dim.map(|n| n as u64), kept, "{name}");
        let kept = kept.map_or(encoder.info.dim, |n| n as usize);
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
                let ids = std::slice::from_ref(ids);
                feed_behind(instance.as_mut(), ids, &[skipped(at)], 0);
                instance.run("encode").unwrap();
                let found = floats(instance.as_ref(), "embedding");
                let error = relative_error(&found[..kept], golden.array(&at["embedding"]));
                assert!(error <= BOUND, "{name}, {isa}, {text}: {error:e}");
            }
            // Padding beside other texts, and more of it, changes nothing.
            let n_skipped: Vec<usize> = texts.iter().map(|(_, _, at)| skipped(at)).collect();
            for more in [0, 3.min(spare(&encoder, &all))] {
                feed_behind(instance.as_mut(), &all, &n_skipped, more);
                instance.run("encode").unwrap();
                let found = floats(instance.as_ref(), "embedding");
                for (row, (text, _, at)) in found.chunks(encoder.info.dim).zip(&texts) {
                    let error = relative_error(&row[..kept], golden.array(&at["embedding"]));
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
        let n_skipped: Vec<usize> = texts.iter().map(|(_, _, at)| skipped(at)).collect();
        let kept = encoder.info.truncate_dim.unwrap_or(encoder.info.dim);
        for (isa, mut instance) in on_each_isa(&encoder.program, Numerics::Int8, 2) {
            let more = 3.min(spare(&encoder, &all));
            feed_behind(instance.as_mut(), &all, &n_skipped, more);
            instance.run("encode").unwrap();
            let found = floats(instance.as_ref(), "embedding");
            let mut sum = 0.0;
            for (row, (text, _, at)) in found.chunks(encoder.info.dim).zip(&texts) {
                let error = relative_error(&row[..kept], golden.array(&at["embedding"]));
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
    let has_dense = |name: &str| ["1_Dense", "2_Dense"].map(|d| path(name).join(d).exists());
    for name in embedding_models()
        .iter()
        .filter(|name| has_dense(name) == [false; 2])
    {
        let golden = Golden::read(&path(name).join("golden"));
        let texts = texts(&golden);
        let all: Vec<Vec<u32>> = texts.iter().map(|(_, ids, _)| ids.clone()).collect();
        let n_skipped: Vec<usize> = texts.iter().map(|(_, _, at)| skipped(at)).collect();
        for pooling in Pooling::ALL {
            let options = EncoderOptions {
                pooling: Some(pooling.into()),
                normalize: Some(false),
                ..EncoderOptions::default()
            };
            let encoder = built(name, &options);
            let mut instance = instance(&encoder.program, Numerics::F32, 1);
            let more = 2.min(spare(&encoder, &all));
            feed_behind(instance.as_mut(), &all, &n_skipped, more);
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
        for (norm, lookup) in [
            (NormForm::Native, Lookup::Inside),
            (NormForm::Cat, Lookup::Inside),
            (NormForm::Scaled, Lookup::Inside),
            (NormForm::Scaled, Lookup::Host),
            (NormForm::Scaled, Lookup::HostInt8),
        ] {
            let engine = AneEncoder {
                buckets: vec![24, most],
                flexible: true,
                residual_divisor: None,
                norm,
                lookup,
            };
            let options = EncoderOptions {
                target: Target::Ane(engine),
                ..EncoderOptions::default()
            };
            let encoder = built(name, &options);
            assert_eq!(
                encoder.tables.is_empty(),
                lookup == Lookup::Inside,
                "{name}"
            );
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
                    feed_half(instance.as_mut(), (&encoder, ids), skipped(at), width);
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
                    let expected = golden.array(&at["embedding"]);
                    let found: Vec<f32> = bits.take(expected.len()).collect();
                    let error = relative_error(&found, expected);
                    // fp16 has steps of 2^-11; a cosine of 0.999 is an error of 4.5e-2, one of
                    // 0.995 of 0.1. Rows of a few dozen columns average little of int8 out.
                    let bound = if lookup == Lookup::HostInt8 {
                        0.1
                    } else {
                        2e-2
                    };
                    assert!(
                        error <= bound,
                        "{name}, {text}, {function}, {norm:?}, {lookup:?}: {error:e}"
                    );
                }
            }
        }
    }
}

/// A text padded to `width`, its masks in fp16; if the encoder has tables, the rows of its tokens.
fn feed_half(
    instance: &mut dyn Instance,
    (encoder, ids): (&Encoder, &[u32]),
    n_skipped: usize,
    width: usize,
) {
    let padded: Vec<u32> = (0..width)
        .map(|i| ids.get(i).copied().unwrap_or(2))
        .collect();
    let tokens: Vec<u8> = padded.iter().flat_map(|id| id.to_ne_bytes()).collect();
    let mask = |from: usize| -> Vec<u8> {
        let bit = |i| f64::from(u8::from((from..ids.len()).contains(&i)));
        (0..width)
            .flat_map(|i| f64_to_f16(bit(i)).to_ne_bytes())
            .collect()
    };
    if encoder.tables.is_empty() {
        let input = instance.input("input_ids", &[1, width]).unwrap();
        input.copy_from_slice(&tokens);
    }
    for table in &encoder.tables {
        let rows = match table.by_token {
            true => padded.clone(),
            false => positions_of(&padded, encoder.info.padding_token.unwrap()),
        };
        let columns = columns(table, &rows);
        let shape = [1, table.n_columns, 1, width];
        let input = instance.input(&table.input, &shape).unwrap();
        input.copy_from_slice(&columns);
    }
    instance
        .input("attention_mask", &[1, width])
        .unwrap()
        .copy_from_slice(&mask(0));
    if let Ok(input) = instance.input("pooling_mask", &[1, width]) {
        input.copy_from_slice(&mask(n_skipped));
    }
}

/// Source: `create_position_ids_from_input_ids` of RoBERTa in transformers.
fn positions_of(ids: &[u32], padding: u32) -> Vec<u32> {
    let mut n = 0;
    let position = |id: &u32| {
        n += u32::from(*id != padding);
        if *id == padding { padding } else { padding + n }
    };
    ids.iter().map(position).collect()
}

/// The rows of a table as [columns, rows] in fp16.
fn columns(table: &Table, rows: &[u32]) -> Vec<u8> {
    let (data, scales) = (
        table.parts[0].to_vec(),
        table.scales.as_ref().map(Data::to_vec),
    );
    let half = |bytes: &[u8], at: usize| {
        f16_to_f32(u16::from_ne_bytes([bytes[2 * at], bytes[2 * at + 1]]))
    };
    let element = |column: usize, row: usize| match &scales {
        Some(scales) => {
            let code = data[row * table.n_columns + column].cast_signed();
            f64_to_f16(f64::from(f32::from(code) * half(scales, row)))
        }
        None => f64_to_f16(half(&data, row * table.n_columns + column).into()),
    };
    let all = (0..table.n_columns).flat_map(|c| rows.iter().map(move |r| (c, *r as usize)));
    all.flat_map(|(column, row)| element(column, row).to_ne_bytes())
        .collect()
}

/// Sums and counts over a long text stay within what fp16 holds and tells apart: the sum of all
/// positions, and the number of more than 2,048 tokens.
#[test]
fn the_engine_s_program_pools_long_texts() {
    let n = 2051;
    for (name, pooling) in [
        ("qwen3-embedding", Pooling::LastToken),
        ("qwen3-embedding", Pooling::WeightedMean),
        ("bert-weighted", Pooling::WeightedMean),
    ] {
        // A table of positions ends where its file does.
        let is_bert = name == "bert-weighted";
        let n = if is_bert { 512 } else { n };
        let folder = match is_bert {
            true => path(name),
            false => with_key(&path(name), "max_position_embeddings", &Value::from(n)),
        };
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let build = |target| {
            let options = EncoderOptions {
                pooling: (!is_bert).then(|| pooling.into()),
                target,
                ..EncoderOptions::default()
            };
            build_encoder(&checkpoint, &options).unwrap()
        };
        let portable = build(Target::Portable);
        let tokens: Vec<u32> = (0..n as u32)
            .map(|i| 5 + i * 7 % (portable.info.vocab_size as u32 - 9))
            .collect();
        let mut reference = instance(&portable.program, Numerics::F32, 2);
        feed(reference.as_mut(), std::slice::from_ref(&tokens), 0);
        reference.run("encode").unwrap();
        let expected = floats(reference.as_ref(), "embedding");
        let encoder = build(Target::Ane(AneEncoder {
            buckets: vec![n],
            flexible: false,
            residual_divisor: None,
            norm: NormForm::Scaled,
            lookup: Lookup::Inside,
        }));
        let mut instance = instance(&encoder.program, Numerics::Ane(Effects::default()), 2);
        feed_half(instance.as_mut(), (&encoder, &tokens), 0, n);
        instance.run(&format!("encode_{n}")).unwrap();
        let view = instance.output("embedding").unwrap();
        let found = view.bytes.as_chunks().0.iter();
        let found: Vec<f32> = found.map(|b| f16_to_f32(u16::from_ne_bytes(*b))).collect();
        let cosine = cosine(&found, &expected);
        assert!(cosine > 0.99, "{name}, {}: {cosine}", pooling.name());
    }
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
    let engine = AneEncoder {
        buckets: vec![most],
        flexible: false,
        residual_divisor: Some(divisor),
        norm,
        lookup: Lookup::Inside,
    };
    let options = EncoderOptions {
        target: Target::Ane(engine),
        ..EncoderOptions::default()
    };
    let encoder = build_encoder(&Checkpoint::open(path).unwrap(), &options).unwrap();
    let mut instance = instance(&encoder.program, numerics, 2);
    feed_half(instance.as_mut(), (&encoder, &ids), 0, most);
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

/// Every activation of transformers that has no weights of its own, and every one of torch.nn that
/// a dense layer can name.
#[test]
fn activations_are_those_of_the_reference() {
    // How many of them differ: all but the spellings of one function.
    for (name, file, key, n_differ) in [
        ("roberta", "config.json", "hidden_act", 13),
        (
            "bert-steps",
            "9_Dense/config.json",
            "activation_function",
            24,
        ),
    ] {
        let golden = Golden::read(&path(name).join("golden"));
        let (_, tokens, _) = texts(&golden)
            .into_iter()
            .find(|(name, ..)| name == "half")
            .unwrap();
        let activations = golden.json["activations"].as_object().unwrap();
        assert!(activations.len() > 20);
        let mut found = Vec::new();
        for (activation, expected) in activations {
            let full = if key == "hidden_act" {
                activation.clone()
            } else {
                format!("torch.nn.{activation}")
            };
            let folder = with_key_in(&path(name), file, key, &Value::from(full));
            let checkpoint = Checkpoint::open(&folder).unwrap();
            let encoder = build_encoder(&checkpoint, &EncoderOptions::default()).unwrap();
            let mut instance = instance(&encoder.program, Numerics::F32, 2);
            feed(instance.as_mut(), std::slice::from_ref(&tokens), 0);
            instance.run("encode").unwrap();
            let expected = golden.array(expected);
            let vector = floats(instance.as_ref(), "embedding");
            found.push(vector[..expected.len()].to_vec());
            let error = relative_error(found.last().unwrap(), expected);
            assert!(error <= BOUND, "{activation}: {error:e}");
        }
        // The activation matters, or nothing was tested.
        found.sort_by(|a, b| a.partial_cmp(b).unwrap());
        found.dedup_by(|a, b| relative_error(a, b) < 1e-6);
        assert!(
            found.len() >= n_differ,
            "{} activations differ",
            found.len()
        );
    }
}
