//! Tiny random rerankers, against what sentence-transformers computes (`tests/models/README.md`).

use std::cell::Cell;
use std::path::{Path, PathBuf};

use serde_json::Value;
use thane_calls::Lookup;
use thane_cpu::Numerics;
use thane_mil::backend::{Instance, RunError};
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;
use thane_mil::valid;
use thane_models::checkpoint::Checkpoint;
use thane_models::{AneEncoder, Classifier, NormForm, Target, build_classifier};

use crate::golden::{folder, ids, instance, on_each_isa};

const NAMES: [&str; 9] = [
    "bert",
    "distilbert",
    "modernbert",
    "modernbert-saved",
    "qwen3-labels",
    "qwen3-pairs",
    "qwen3-token",
    "qwen3-yes-no",
    "xlm-roberta",
];

fn path(name: &str) -> PathBuf {
    folder().join("tiny-rerank").join(name)
}

fn golden(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path.join("golden.json")).unwrap()).unwrap()
}

fn built(name: &str, target: &Target) -> Classifier {
    build_classifier(&Checkpoint::open(&path(name)).unwrap(), target).unwrap()
}

/// Pairs as ids and types, padded to `width`.
fn feed(instance: &mut dyn Instance, pairs: &[[Vec<u32>; 2]], width: usize, built: &Classifier) {
    let shape = [pairs.len(), width];
    let mut set = |input: &str, value: &dyn Fn(&[Vec<u32>; 2], usize) -> u32| {
        let bytes: Vec<u8> = pairs
            .iter()
            .flat_map(|pair| (0..width).flat_map(|i| value(pair, i).to_ne_bytes()))
            .collect();
        instance
            .input(input, &shape)
            .unwrap()
            .copy_from_slice(&bytes);
    };
    set("input_ids", &|[ids, _], i| ids.get(i).copied().unwrap_or(3));
    if built.info.token_types {
        set("token_type_ids", &|[_, types], i| {
            types.get(i).copied().unwrap_or(0)
        });
    }
    let is_half = built.program.functions()[0].name != "classify";
    if !is_half {
        set("attention_mask", &|[ids, _], i| u32::from(i < ids.len()));
        return;
    }
    let mask = pairs.iter().flat_map(|[ids, _]| {
        (0..width).flat_map(|i| f64_to_f16(f64::from(u8::from(i < ids.len()))).to_ne_bytes())
    });
    let mask: Vec<u8> = mask.collect();
    instance
        .input("attention_mask", &shape)
        .unwrap()
        .copy_from_slice(&mask);
}

fn logits(instance: &dyn Instance) -> Vec<f32> {
    let view = instance.output("logits").unwrap();
    if view.dtype == DType::Fp16 {
        let halves = view.bytes.as_chunks().0.iter();
        return halves.map(|b| f16_to_f32(u16::from_ne_bytes(*b))).collect();
    }
    let floats = view.bytes.as_chunks().0.iter();
    floats.map(|b| f32::from_ne_bytes(*b)).collect()
}

fn pairs(golden: &Value) -> (Vec<[Vec<u32>; 2]>, Vec<f64>) {
    let texts = golden["texts"].as_array().unwrap();
    let pair = |text: &Value| [ids(&text["ids"]), ids(&text["types"])];
    let logit = |text: &Value| text["logit"].as_f64().unwrap();
    (
        texts.iter().map(pair).collect(),
        texts.iter().map(logit).collect(),
    )
}

#[test]
fn logits_are_those_of_the_reference() {
    for name in NAMES {
        let golden = golden(&path(name));
        let built = built(name, &Target::Portable);
        assert_eq!(built.info.n_labels, 1, "{name}");
        assert_eq!(built.info.max_tokens as u64, golden["max_tokens"], "{name}");
        assert_eq!(built.info.token_types, name == "bert", "{name}");
        let first = &golden["texts"][0];
        let number = |key: &str| first[key].as_f64().unwrap();
        let score = f64::from(built.info.activation.score(number("logit") as f32));
        assert!((score - number("score")).abs() < 1e-6, "{name}: {score}");
        let (pairs, expected) = pairs(&golden);
        for (isa, mut instance) in on_each_isa(&built.program, Numerics::F32, 2) {
            let longest = pairs.iter().map(|[ids, _]| ids.len()).max().unwrap();
            feed(instance.as_mut(), &pairs, longest, &built);
            instance.run("classify").unwrap();
            for (found, expected) in logits(instance.as_ref()).iter().zip(&expected) {
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 1e-5, "{name}, {isa}: {found} is not {expected}");
            }
            for (pair, expected) in pairs.iter().zip(&expected) {
                feed(
                    instance.as_mut(),
                    std::slice::from_ref(pair),
                    pair[0].len(),
                    &built,
                );
                instance.run("classify").unwrap();
                let error = (f64::from(logits(instance.as_ref())[0]) - expected).abs();
                assert!(
                    error < 1e-5,
                    "{name}, {isa}, {} tokens: {error}",
                    pair[0].len()
                );
            }
        }
    }
}

/// The form for the Neural Engine: fp16, features in channels, padded to a bucket.
#[test]
fn the_engine_s_program_gives_the_same_logits() {
    for name in NAMES {
        let golden = golden(&path(name));
        let most = golden["max_tokens"].as_u64().unwrap() as usize;
        let engine = AneEncoder {
            buckets: vec![most],
            flexible: true,
            residual_divisor: None,
            norm: NormForm::Scaled,
            lookup: Lookup::Inside,
        };
        let built = built(name, &Target::Ane(engine));
        valid::check(&built.program).unwrap();
        let (pairs, expected) = pairs(&golden);
        let mut instance = instance(&built.program, Numerics::F32, 2);
        for (pair, expected) in pairs.iter().zip(&expected) {
            for (function, width) in [
                (format!("classify_{most}"), most),
                ("classify".to_owned(), pair[0].len()),
            ] {
                feed(instance.as_mut(), std::slice::from_ref(pair), width, &built);
                instance.run(&function).unwrap();
                let error = (f64::from(logits(instance.as_ref())[0]) - expected).abs();
                assert!(error < 3e-2, "{name}, {function}: {error}");
            }
        }
    }
}

/// A call ends between two ops when its caller wants no more, and the instance goes on.
#[test]
fn a_call_can_be_interrupted() {
    let golden = golden(&path("bert"));
    let built = built("bert", &Target::Portable);
    let (pairs, expected) = pairs(&golden);
    let mut instance = instance(&built.program, Numerics::F32, 2);
    let (pair, width) = (std::slice::from_ref(&pairs[0]), pairs[0][0].len());
    let n_asked = Cell::new(0);
    let after = |n: usize| {
        n_asked.set(n_asked.get() + 1);
        n_asked.get() > n
    };
    feed(instance.as_mut(), pair, width, &built);
    instance
        .run_until("classify", &|| after(usize::MAX))
        .unwrap();
    let n_steps = n_asked.replace(0);
    assert!(n_steps > 10, "{n_steps}");
    for n in [0, n_steps / 2, n_steps - 1] {
        let ended = instance.run_until("classify", &|| after(n));
        assert!(matches!(ended, Err(RunError::Interrupted)), "{n}");
        assert_eq!(n_asked.replace(0), n + 1);
    }
    instance.run("classify").unwrap();
    let error = (f64::from(logits(instance.as_ref())[0]) - expected[0]).abs();
    assert!(error < 1e-5, "{error}");
}
