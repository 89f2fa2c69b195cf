//! Sequences side by side give what each gives alone.

use thane_cpu::{Cpu, Numerics};
use thane_engine::sessions::Sessions;
use thane_mil::types::DType;
use thane_models::{CacheForm, DecoderEngine, Head, Lookup, Split};

use crate::decoder::{BLOCK, CONTEXT, cases, error, model, models, sequences};
use crate::fixture::{Home, assert_ends, chat_folder, json};

/// Bound of the relative difference, whose sums have other orders.
const BOUND: f64 = 1e-5;

/// Bound of the relative difference from transformers.
const REFERENCE_BOUND: f64 = 1e-3;

fn engine() -> DecoderEngine {
    DecoderEngine {
        block: Some(BLOCK),
        float: DType::Fp32,
        cache: CacheForm::Explicit,
        ..DecoderEngine::default()
    }
}

/// The forms with lanes.
fn forms() -> [(&'static str, DecoderEngine); 3] {
    let lanes = Some(4);
    [
        ("whole", DecoderEngine { lanes, ..engine() }),
        (
            "host, contexts, two chunks",
            DecoderEngine {
                lanes,
                lookup: Lookup::Host,
                contexts: vec![9, 24],
                split: Split::Into(2),
                ..engine()
            },
        ),
        (
            "a head in parts, logits on the host",
            DecoderEngine {
                lanes,
                split: Split::Within(4096),
                head: Head::Host,
                ..engine()
            },
        ),
    ]
}

/// Layers that hold all tokens together, which lanes are refused for.
fn is_recurrent(name: &str) -> bool {
    ["lfm2", "qwen3_5"]
        .iter()
        .any(|family| name.contains(family))
}

#[test]
fn each_lane_of_all_families_is_that_sequence_alone() {
    let mut bad = Vec::new();
    for (name, file) in &cases() {
        if is_recurrent(name) {
            continue;
        }
        let (ids, golden) = sequences(name).pop().unwrap();
        // Five sequences of different tokens and lengths: one more than there are lanes.
        let texts: Vec<&[u32]> = (0..5).map(|i| &ids[i..ids.len() - 2 * i]).collect();
        let cpu = Cpu::new(Numerics::F32, 1);
        let mut alone = model(name, file, Some(engine())).session(&cpu).unwrap();
        let expected: Vec<Vec<Vec<f32>>> = texts
            .iter()
            .map(|text| {
                alone.reset();
                let logits = text
                    .iter()
                    .map(|id| alone.decode(*id).unwrap().into_owned());
                logits.collect()
            })
            .collect();
        // The reference is transformers itself.
        let reference = golden.chunks(golden.len() / ids.len());
        for (found, golden) in expected[0].iter().zip(reference) {
            assert!(error(found, golden) < REFERENCE_BOUND, "{name}");
        }
        for (form, engine) in forms() {
            let model = model(name, file, Some(engine));
            let mut sessions = model.sessions(&cpu, texts.len()).unwrap();
            let found = worst(&mut sessions, &texts, &expected);
            if found > BOUND {
                bad.push(format!("{name}, {form}: {found:.1e}"));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Prompts of different lengths, then a token each in every step, as long as a text has one; then
/// back to a shorter prompt.
fn worst(sessions: &mut Sessions, texts: &[&[u32]], expected: &[Vec<Vec<f32>>]) -> f64 {
    let mut worst = 0.0f64;
    for (first, more) in [(1, 3), (2, 1)] {
        let length = |i: usize| (first + more * i).min(texts[i].len());
        let mut lengths: Vec<usize> = (0..texts.len()).map(length).collect();
        let prompts = (0..texts.len()).map(|i| (i, &texts[i][..lengths[i]]));
        let prompts: Vec<(usize, &[u32])> = prompts.collect();
        assert!(sessions.feed(&prompts, &|| false).unwrap());
        loop {
            for (i, n) in lengths.iter().enumerate() {
                let found = sessions.logits(i).unwrap();
                worst = worst.max(error(&found, &expected[i][n - 1]));
            }
            let next = lengths.iter().enumerate();
            let next = next.filter_map(|(i, n)| Some((i, *texts[i].get(*n)?)));
            let next: Vec<(usize, u32)> = next.collect();
            if next.is_empty() {
                break;
            }
            sessions.decode(&next, None).unwrap();
            next.iter().for_each(|(i, _)| lengths[*i] += 1);
        }
    }
    worst
}

/// The sequences that are not in a call keep their caches.
#[test]
fn lanes_that_are_not_in_a_call_stay_as_they_were() {
    let name = "tiny/qwen3";
    let (ids, _) = sequences(name).pop().unwrap();
    let cpu = Cpu::new(Numerics::F32, 1);
    let engine = DecoderEngine {
        lanes: Some(3),
        head: Head::Argmax,
        ..engine()
    };
    let model = model(name, "", Some(engine));
    let (mut sessions, mut alone) = (
        model.sessions(&cpu, 3).unwrap(),
        model.session(&cpu).unwrap(),
    );
    let prompts: Vec<(usize, &[u32])> = (0..3).map(|i| (i, &ids[i..i + 4])).collect();
    sessions.feed(&prompts, &|| false).unwrap();
    for _ in 0..3 {
        sessions.decode(&[(2, 5), (0, 7)], None).unwrap();
    }
    sessions.decode(&[(1, 9), (2, 8)], None).unwrap();
    let after = [
        [&ids[..4], &[7, 7, 7]].concat(),
        [&ids[1..5], &[9]].concat(),
        [&ids[2..6], &[5, 5, 5, 8]].concat(),
    ];
    for (i, tokens) in after.iter().enumerate() {
        let expected = alone.feed(tokens, &|| false).unwrap().unwrap();
        let found = sessions.logits(i).unwrap();
        let likeliest = |row: &[f32]| row.iter().position(|x| *x != f32::NEG_INFINITY);
        assert_eq!(likeliest(&found), likeliest(&expected), "{i}");
    }
}

#[test]
fn packages_with_lanes_are_written_measured_and_refused() {
    let (home, checkpoint) = (Home::new(), chat_folder());
    let package = home.path("lanes.mlpackage");
    let (checkpoint, out) = (checkpoint.to_str().unwrap(), package.to_str().unwrap());
    let convert = |model: &str, more: &[&str]| {
        let context = CONTEXT.to_string();
        let fixed = [
            "convert",
            model,
            "--form",
            "engine",
            "--context",
            &context,
            "-o",
            out,
        ];
        home.run(&[&fixed[..], &["--force", "--block", "8"], more].concat())
    };
    let explicit = ["--kv", "explicit", "--lanes", "4"];
    assert_ends(&convert(checkpoint, &explicit), 0, &["decode_lanes"]);
    assert_ends(&home.run(&["check", out]), 0, &[]);
    let bench = [
        "bench", "batch", out, "--batch", "4", "--rounds", "1", "--json",
    ];
    let lengths = ["--lengths", "8", "--tokens", "4"];
    let measured = home.run(&[&bench[..], &lengths].concat());
    assert_ends(&measured, 0, &[]);
    assert_eq!(json(&measured)["figures"][0]["batch"], 4);
    let measured = home.run(&[&bench[..7], &lengths, &["--profile"]].concat());
    assert_ends(&measured, 0, &["decode_la"]);
    // A folder of packages is measured likewise.
    let folder = home.path("chunks");
    let folder = folder.to_str().unwrap();
    let context = CONTEXT.to_string();
    let cut = [
        "convert",
        checkpoint,
        "--form",
        "engine",
        "--context",
        &context,
        "-o",
        folder,
    ];
    let output = home.run(&[&cut[..], &explicit, &["--block", "8", "--split", "2"]].concat());
    assert_ends(&output, 0, &[]);
    let of_folder = [&bench[..2], &[folder], &bench[3..], &lengths].concat();
    assert_ends(&home.run(&of_folder), 0, &[]);
    for (model, more, said) in [
        (checkpoint, &["--lanes", "4"][..], "--kv explicit"),
        (
            checkpoint,
            &["--kv", "explicit", "--lanes", "1"],
            "--lanes 2 to 128",
        ),
        (
            checkpoint,
            &["--kv", "explicit", "--lanes", "129"],
            "--lanes 2 to 128",
        ),
        (
            models().join("tiny/lfm2").to_str().unwrap(),
            &["--kv", "explicit", "--lanes", "4"],
            "have no lanes yet",
        ),
    ] {
        assert_ends(&convert(model, more), 2, &[said]);
    }
}
