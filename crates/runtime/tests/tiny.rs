//! The library's own path from a model's name to answers and vectors, on tiny models whose answers
//! transformers computed.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use thane_audit::plan::form::{Goal, Pinned};
use thane_audit::target::Target;
use thane_calls::{Form, Lookup};
use thane_cpu::{Cpu, Numerics, Profile};
use thane_engine::pages::PageForm;
use thane_engine::sample::SampleOptions;
use thane_engine::text::EncodeOptions;
use thane_hub::{Hub, Places};
use thane_mil::backend::Backend;
use thane_mil::budget::Budget;
use thane_models::AneDecoder;
use thane_runtime::{
    BundleOptions, LanguageOptions, Message, Model, PackageOptions, PageOptions, PlanOptions,
    RuntimeError, Task,
};

fn model(path: &Path) -> Model {
    let hub = Hub {
        offline: true,
        ..Hub::new(Places::in_folder("no-cache"))
    };
    Model::open(path.to_str().unwrap(), &hub, &()).unwrap()
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

fn backend() -> Arc<dyn Backend> {
    Arc::new(Cpu::new(Numerics::F32, 2))
}

/// Each conversation of `tiny-chat/expected.json`: messages, and the answer of transformers.
fn conversations() -> Vec<(Vec<Message>, String)> {
    let text = std::fs::read(models().join("tiny-chat/expected.json")).unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    let conversations = json["conversations"].as_array().unwrap();
    conversations
        .iter()
        .map(|c| {
            let messages = serde_json::from_value(c["messages"].clone()).unwrap();
            (messages, c["text"].as_str().unwrap().to_owned())
        })
        .collect()
}

#[test]
fn a_conversation_is_answered_as_transformers_does() {
    let mut chat = model(&models().join("tiny-chat"))
        .generator(&*backend())
        .unwrap();
    for (messages, expected) in conversations() {
        let mut text = String::new();
        let answer = chat
            .answer(&messages, |piece| text.push_str(piece))
            .unwrap();
        assert_eq!((answer.text, text), (expected.clone(), expected));
    }
}

#[test]
fn a_package_answers_like_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("chat.mlpackage");
    let language = model(&models().join("tiny-chat"))
        .language_model(&Default::default(), &())
        .unwrap();
    let written = language
        .write(&package, &PackageOptions::default(), &())
        .unwrap();
    assert_eq!(written.functions, ["prefill", "decode"]);
    let opened = model(&package);
    assert_eq!(opened.task().unwrap(), Task::Generate);
    let mut chat = opened.generator(&*backend()).unwrap();
    let (messages, expected) = conversations().swap_remove(0);
    assert_eq!(chat.answer(&messages, |_| {}).unwrap().text, expected);
    let error = model(&package).embedder(&*backend()).err().unwrap();
    assert!(
        matches!(error, RuntimeError::GeneratesOnly { .. }),
        "{error}"
    );
}

/// Greedy sampling needs one logit, which checkpoints are lowered for and packages may have.
#[test]
fn greedy_sampling_decodes_the_greatest_logit() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("chat.mlpackage");
    let options = LanguageOptions::default().with_sampling(&SampleOptions::default());
    assert_eq!(options.top, Some(1));
    let language = model(&models().join("tiny-chat"))
        .language_model(&options, &())
        .unwrap();
    let written = language
        .write(&package, &PackageOptions::default(), &())
        .unwrap();
    assert_eq!(written.functions, ["prefill", "decode", "decode_top"]);
    let (messages, expected) = conversations().swap_remove(0);
    let many = SampleOptions {
        temperature: 1.0,
        top_k: 300,
        ..SampleOptions::default()
    };
    assert_eq!(LanguageOptions::default().with_sampling(&many).top, None);
    for path in [package, models().join("tiny-chat")] {
        let profile = Arc::new(Profile::default());
        let cpu = Cpu::new(Numerics::F32, 2).with_profile(Some(Arc::clone(&profile)));
        let mut chat = model(&path).generator(&cpu).unwrap();
        let mut functions = || {
            profile.clear();
            let answer = chat.answer(&messages, |_| {}).unwrap();
            let rows = profile.rows();
            let ran = |name| rows.iter().any(|row| row.function == name);
            let ran = ["decode", "decode_top"].map(ran);
            chat.set_sampling(many.clone()).unwrap();
            (answer.text, ran)
        };
        assert_eq!(functions(), (expected.clone(), [false, true]));
        assert_eq!(functions().1, [true, false]);
    }
}

/// A page without what a short convolution remembers would give wrong answers.
#[test]
fn pages_hold_attention_only() {
    for (name, is_kept) in [
        ("tiny/gemma3", true),
        ("tiny/lfm2", false),
        ("tiny/qwen3_5", false),
    ] {
        let options = LanguageOptions::default();
        let language = model(&models().join(name)).language_model(&options, &());
        let language = language.unwrap();
        let mut session = language.session(backend().as_ref()).unwrap();
        let pages = PageOptions {
            most_bytes: 1 << 20,
            budget: Budget::unlimited(),
            form: PageForm::Exact,
            store: None,
        };
        let kept = language.keep_prompts(&mut session, pages).unwrap();
        assert_eq!(kept, is_kept, "{name}");
    }
}

#[test]
fn a_bundle_embeds_like_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("bert.mlpackage");
    let checkpoint = model(&models().join("tiny-embed/bert-mean"));
    let options = BundleOptions {
        buckets: vec![16],
        ..BundleOptions::default()
    };
    let written = checkpoint
        .write_bundle(&package, &options, &*backend(), &())
        .unwrap();
    assert_eq!((written.buckets, written.flexible), (vec![16], true));
    let texts = ["a cat", "the quick brown fox"];
    let mut first = checkpoint.embedder(&*backend()).unwrap();
    let mut second = model(&package).embedder(&*backend()).unwrap();
    let (a, b) = (
        first.embed(&texts, None).unwrap(),
        second.embed(&texts, None).unwrap(),
    );
    for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
        // fp16 in the package.
        assert!((a - b).abs() < 2e-3, "{a} {b}");
    }
    assert_eq!(a.len(), 2);
    let error = model(&package).generator(&*backend()).err().unwrap();
    assert!(matches!(error, RuntimeError::EmbedsOnly { .. }), "{error}");
}

#[test]
fn the_tokens_of_llama2c_are_those_of_sentencepiece() {
    let folder = models().join("tiny/llama2c-v2");
    let options = LanguageOptions::default();
    let language = model(&folder.join("model.bin"))
        .language_model(&options, &())
        .unwrap()
        .language(&Budget::unlimited())
        .unwrap();
    let golden = std::fs::read(folder.join("tokens.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let lines = golden["lines"].as_array().unwrap();
    assert!(lines.len() > 40, "{}", lines.len());
    let encode = |text: &str| {
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        let mut found = language.tokenizer.encode(text, options).unwrap();
        // Encoding puts the token before the text, as `run.c` does.
        assert_eq!(found.remove(0), 1);
        found
    };
    for line in lines {
        let text = line["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(line["ids"].clone()).unwrap();
        assert_eq!(encode(text), expected, "{text:?}");
    }
    let mixed = models().join("../../crates/engine/tests/data/mixed.jsonl");
    let mixed = std::fs::read_to_string(mixed).unwrap();
    let sums: Vec<u32> = serde_json::from_value(golden["mixed"].clone()).unwrap();
    assert_eq!((mixed.lines().count(), sums.len()), (2000, 2000));
    for (line, sum) in mixed.lines().zip(sums) {
        let text: String = serde_json::from_str(line).unwrap();
        let ids = encode(&text);
        assert_eq!(id_sum(&ids), sum, "{text:?}: {ids:?}");
    }
}

/// FNV-1a of ids, 32 bits little-endian each.
fn id_sum(ids: &[u32]) -> u32 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    bytes.fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[test]
fn a_library_plans_what_is_not_pinned() {
    let form = Form {
        lookup: Lookup::HostInt8,
        contexts: vec![16],
        ..Form::default()
    };
    let options = PlanOptions {
        context: Some(64),
        decoder: &AneDecoder::from(form),
        pinned: Pinned {
            lookup: true,
            contexts: true,
            ..Pinned::default()
        },
        targets: &[Target::usual()],
        goal: Goal::Latency,
        compress: None,
    };
    let choice = model(&models().join("tiny-chat")).plan(&options, &());
    let choices = choice.unwrap();
    let [choice] = &choices[..] else {
        panic!("{} targets", choices.len())
    };
    let chosen = &choice.chosen.form;
    assert_eq!(chosen.lookup, Lookup::HostInt8);
    assert_eq!(chosen.contexts, [16]);
    assert_eq!(chosen.block, Some(16), "the longest that fits");
    let decided: Vec<&str> = choice.steps.iter().map(|step| step.what).collect();
    assert_eq!(decided, ["cache and tables", "head"]);
    let decode = choice.chosen.calls.decode().unwrap();
    assert_eq!(decode.call.functions, ["decode_64"]);
    assert_eq!((decode.call.tokens, decode.call.context), (1, 64));
}
