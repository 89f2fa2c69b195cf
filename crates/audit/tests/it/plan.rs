//! What the planner reads of a program: the work of an encoder at any length, from two lengths of
//! it.

use std::path::{Path, PathBuf};

use thane_audit::plan::cost::{Amount, Product, Work};
use thane_audit::weight::{Encoding, Stored};
use thane_calls::Lookup;
use thane_models::checkpoint::Checkpoint;
use thane_models::{AneEncoder, EncoderOptions, NormForm, Target, build_encoder};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models/tiny-embed")
        .join(name)
}

fn work(name: &str, n: usize) -> Work {
    let engine = AneEncoder {
        buckets: vec![n, 2 * n],
        flexible: false,
        residual_divisor: None,
        norm: NormForm::Scaled,
        lookup: Lookup::Inside,
    };
    let options = EncoderOptions {
        target: Target::Ane(engine),
        ..EncoderOptions::default()
    };
    let program = build_encoder(&Checkpoint::open(&folder(name)).unwrap(), &options)
        .unwrap()
        .program;
    let [short, long] = program.functions() else {
        panic!("{} functions", program.functions().len())
    };
    Work::between(n, short, long).unwrap()
}

#[test]
fn the_work_of_an_encoder() {
    let found = work("qwen3-pplx", 16);
    // Two layers of 6 heads and 2 of keys, 10 wide.
    let shapes = [
        (42, 60),
        (42, 20),
        (42, 20),
        (60, 42),
        (42, 51),
        (42, 51),
        (51, 42),
    ];
    let positions = Amount([0.0, 1.0, 0.0]);
    let stored = Stored {
        encoding: Encoding::Dense,
        bits: 16.0,
    };
    let product = |(inputs, outputs)| Product {
        inputs,
        outputs,
        stored,
        positions,
    };
    assert_eq!(
        found.products,
        [shapes.map(product), shapes.map(product)].concat()
    );
    // Scores and what is read by them, 2 flops each; the pooling is a product of the mask.
    assert_eq!(
        found.attention_flops,
        Amount([0.0, 2.0 * 42.0, 2.0 * 2.0 * 2.0 * 60.0])
    );
    // Scores, masked scores and their softmax, in fp16.
    assert_eq!(found.square_bytes, [12.0; 6]);
    assert_eq!(found.elements.0[2], 2.0 * 2.0 * 6.0);
}

/// Whatever the two lengths are, also where other sizes are as large.
#[test]
fn it_does_not_depend_on_the_lengths() {
    for name in [
        "bert-mean",
        "bert-cls",
        "modernbert-mean",
        "qwen3-embedding",
        "qwen3-pplx",
        "embeddinggemma",
    ] {
        let whole = work(name, 24);
        assert!(whole.products.len() >= 4, "{name}");
        for n in [1, 5, 10, 21] {
            assert_eq!(work(name, n), whole, "{name}, {n}");
        }
    }
}

#[test]
fn functions_that_are_not_one_are_told_apart() {
    let of = |name: &str| {
        let engine = AneEncoder {
            buckets: vec![8],
            flexible: false,
            residual_divisor: None,
            norm: NormForm::Scaled,
            lookup: Lookup::Inside,
        };
        let options = EncoderOptions {
            target: Target::Ane(engine),
            ..EncoderOptions::default()
        };
        build_encoder(&Checkpoint::open(&folder(name)).unwrap(), &options)
            .unwrap()
            .program
    };
    let (a, b) = (of("bert-mean"), of("qwen3-pplx"));
    let said = Work::between(8, &a.functions()[0], &b.functions()[0])
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("`encode_8` and `encode_8` are not one function at two lengths: op "),
        "{said}"
    );
}
