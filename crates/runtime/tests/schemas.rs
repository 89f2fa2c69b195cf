//! Packages with contracts of schemas 3 and 4 are read, and give what a package written now gives.
//!
//! Those of schema 3 are in `schema3`, written by the last commit that wrote this schema (d4875140)
//! with `thane convert CHECKPOINT --form engine --context 64` and the flags of the form. That of
//! schema 4 (02c2dfc4, `--form ane`) is a Gemma 3 with the output matrix and, times a number that
//! is no power of two, the table of embeddings: twice what is stored once now.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use thane_calls::{AttentionForm, CacheForm, Form, Head, Lookup, Split, Streaming};
use thane_cpu::{Cpu, Numerics};
use thane_hub::{Hub, Places};
use thane_mil::types::DType;
use thane_runtime::{LanguageModel, LanguageOptions, Model, PackageOptions};

const CONTEXT: usize = 64;

/// The name of each package, its checkpoint, and its form.
fn cases() -> [(&'static str, &'static str, Form); 11] {
    let state = Form {
        block: Some(8),
        ..Form::default()
    };
    let explicit = Form {
        cache: CacheForm::Explicit,
        ..state.clone()
    };
    let host = Form {
        lookup: Lookup::Host,
        ..explicit.clone()
    };
    let of_cohere = |name, form| (name, "cohere-plain", form);
    let chunks = Form {
        split: Split::Into(2),
        ..explicit.clone()
    };
    let argmax = Form {
        head: Head::Greatest(1),
        ..state.clone()
    };
    let head_host = Form {
        cache: CacheForm::State,
        head: Head::Host(()),
        ..host.clone()
    };
    let lanes = Form {
        lanes: Some(3),
        ..explicit.clone()
    };
    let streaming = Streaming {
        sinks: 4,
        window: 16,
        pool: None,
    };
    let window = Form {
        attention: AttentionForm {
            streaming: Some(streaming),
            ..AttentionForm::default()
        },
        ..explicit.clone()
    };
    let verify = Form {
        verify: vec![3],
        ..explicit.clone()
    };
    let direct = Form {
        block: None,
        direct: Some(1 << 16),
        ..host.clone()
    };
    [
        ("recurrent.mlpackage", "lfm2-plain", state.clone()),
        of_cohere("state.mlpackage", state),
        of_cohere("explicit.mlpackage", explicit),
        of_cohere("host.mlpackage", host),
        of_cohere("chunks", chunks),
        of_cohere("argmax.mlpackage", argmax),
        of_cohere("head-host.mlpackage", head_host),
        of_cohere("lanes.mlpackage", lanes),
        of_cohere("window.mlpackage", window),
        of_cohere("verify.mlpackage", verify),
        of_cohere("direct.mlpackage", direct),
    ]
}

fn opened(path: &Path, options: &LanguageOptions) -> LanguageModel {
    let hub = Hub {
        offline: true,
        ..Hub::new(Places::in_folder("no-cache"))
    };
    let model = Model::open(path.to_str().unwrap(), &hub, &()).unwrap();
    model.language_model(options, &()).unwrap()
}

/// The contract of a package, or of the first one of a folder.
fn contract(path: &Path) -> Value {
    let chunk = path.join("chunk1.mlpackage");
    let package = if chunk.is_dir() { &chunk } else { path };
    let text = fs::read(package.join("Data/ai.thane/contract.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Norm of the difference over the norm of what is expected. What is not known is minus infinity.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let known = |x: f32| (x != f32::NEG_INFINITY).then_some(f64::from(x));
    let (mut apart, mut whole) = (0.0, 0.0);
    for (found, expected) in found.iter().zip(expected) {
        let [found, expected] = [*found, *expected].map(known);
        assert_eq!(found.is_some(), expected.is_some());
        let [found, expected] = [found, expected].map(Option::unwrap_or_default);
        apart += (found - expected).powi(2);
        whole += expected.powi(2);
    }
    (apart / whole).sqrt()
}

/// The logits of prompts, of single tokens, of each of several tokens, and of sequences side by
/// side.
fn logits(model: &LanguageModel) -> Vec<Vec<f32>> {
    let cpu = Cpu::new(Numerics::F32, 1);
    let ids: Vec<u32> = (0..44).map(|i| (5 + 7 * i) % 90).collect();
    let mut all = Vec::new();
    let mut session = model.session(&cpu).unwrap();
    for n in [ids.len(), 5, 19] {
        let fed = session.feed(&ids[..n], &|| false).unwrap();
        all.push(fed.unwrap());
        all.push(session.decode(11).unwrap().into_owned());
    }
    all.push(session.verify(&[3, 4, 5, 6]).unwrap());
    let mut sessions = model.sessions(&cpu, 2).unwrap();
    sessions
        .feed(&[(0, &ids[..9]), (1, &ids[3..20])], &|| false)
        .unwrap();
    sessions.decode(&[(0, 8), (1, 2)], None).unwrap();
    all.extend([0, 1].map(|idx| sessions.logits(idx).unwrap().into_owned()));
    all
}

/// Compares a package with what is written now: logits may be as far apart as `bound`.
fn compare(old: &Path, (schema, bound): (u64, f64), checkpoint: &str, form: Form) {
    let checkpoints = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny");
    let folder = tempfile::tempdir().unwrap();
    let name = old.display();
    let options = LanguageOptions {
        context: Some(CONTEXT),
        cache: DType::Fp16,
        ane: Some(form.into()),
        ..LanguageOptions::default()
    };
    let written = folder.path().join(old.file_name().unwrap());
    let built = opened(&checkpoints.join(checkpoint), &options);
    built
        .write(&written, &PackageOptions::default(), &())
        .unwrap();
    assert_eq!(contract(old)["schema"], schema, "{name}");
    let now = contract(&written);
    assert_eq!(now["schema"], 5, "{name}");
    assert!(!now["model"]["fixed"]["head"].is_null(), "{name}");
    let options = LanguageOptions::default();
    let [old, now] = [old, &written].map(|path| opened(path, &options));
    let mut info = old.info.clone();
    if let (Some(old), Some(now)) = (&mut info.fixed, &now.info.fixed)
        && let (Head::Host(head), Head::Host(now)) = (&mut old.head, &now.head)
    {
        // A table that had the factor of embeddings in it was taken out again here.
        head.factor = now.factor;
    }
    assert_eq!(info, now.info, "{name}");
    for (old, now) in logits(&old).iter().zip(&logits(&now)) {
        let found = error(old, now);
        assert!(found < bound, "{name}: {found:.1e}");
    }
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

#[test]
fn packages_of_schema_3_give_what_those_of_today_give() {
    for (name, checkpoint, form) in cases() {
        let old = tests().join("schema3").join(name);
        compare(&old, (3, 1e-3), checkpoint, form);
    }
}

#[test]
fn two_copies_of_a_tied_matrix_give_what_one_gives() {
    let form = Form {
        block: Some(8),
        cache: CacheForm::Explicit,
        lookup: Lookup::Host,
        ..Form::default()
    };
    // One number of 8,940, which fp16 does not hold, has another last digit.
    let old = tests().join("schema4/host.mlpackage");
    compare(&old, (4, 1e-5), "gemma3-bf16", form);
}
