//! Sequences side by side give what each gives alone.

use thane_calls::{CacheForm, Form, Head, Lookup, Split};
use thane_cpu::{Cpu, Numerics};
use thane_engine::sessions::Sessions;
use thane_mil::backend::Backend;
use thane_mil::program::ValueId;
use thane_mil::types::{DType, TensorType};
use thane_runtime::{LanguageModel, LanguageOptions, Model};

use crate::decoder::{BLOCK, CONTEXT, cases, error, files, fp32, model, models, sequences};
use crate::fixture::{Home, assert_ends, chat_folder, json};

/// Bound of the relative difference, whose sums have other orders.
const BOUND: f64 = 1e-5;

/// Bound of the relative difference from transformers: 1e-3 with native norms. Scaled norms have
/// one epsilon for all rows, which the small rows of delta nets show.
const REFERENCE_BOUND: f64 = 4e-3;

fn engine() -> Form {
    Form {
        block: Some(BLOCK),
        cache: CacheForm::Explicit,
        ..Form::default()
    }
}

/// The forms with lanes.
fn forms() -> [(&'static str, Form); 3] {
    let lanes = Some(4);
    [
        ("whole", Form { lanes, ..engine() }),
        (
            "host, contexts, two chunks, verify 3",
            Form {
                lanes,
                verify: vec![3],
                lookup: Lookup::Host,
                contexts: vec![9, 24],
                split: Split::Into(2),
                ..engine()
            },
        ),
        (
            "a head in parts, logits on the host",
            Form {
                lanes,
                split: Split::Within(4096),
                head: Head::Host(()),
                ..engine()
            },
        ),
    ]
}

#[test]
fn each_lane_of_all_families_is_that_sequence_alone() {
    let mut bad = Vec::new();
    for (name, file) in &cases() {
        let (ids, golden) = sequences(name).pop().unwrap();
        // Five sequences of different tokens and lengths: one more than there are lanes.
        let texts: Vec<&[u32]> = (0..5).map(|i| &ids[i..ids.len() - 2 * i]).collect();
        let cpu = Cpu::new(Numerics::F32, 1);
        let mut alone = model(name, file, Some(fp32(engine())))
            .session(&cpu)
            .unwrap();
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
            let error = error(found, golden);
            if error > REFERENCE_BOUND {
                bad.push(format!("{name}, reference: {error:.1e}"));
            }
        }
        for (form, engine) in forms() {
            let model = model(name, file, Some(fp32(engine)));
            let mut sessions = model.sessions(&cpu, texts.len()).unwrap();
            let together = worst(&mut sessions, &texts, &expected);
            // The sequences are reused.
            let one_by_one = worst_of_beginners(&mut sessions, &texts, &expected);
            if together.max(one_by_one) > BOUND {
                bad.push(format!("{name}, {form}: {together:.1e}, {one_by_one:.1e}"));
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

/// Each sequence gets the text of another, and begins two steps after the one before.
fn worst_of_beginners(
    sessions: &mut Sessions,
    texts: &[&[u32]],
    expected: &[Vec<Vec<f32>>],
) -> f64 {
    let (n, mut worst) = (texts.len(), 0.0f64);
    for t in 0..2 * n + texts[0].len() {
        let begun = (0..n).filter_map(|i| Some((i, (i + 1) % n, t.checked_sub(2 * i)? + 1)));
        let begun: Vec<_> = begun
            .filter(|(_, text, end)| *end <= texts[*text].len())
            .collect();
        let targets: Vec<(usize, &[u32])> = begun
            .iter()
            .map(|(i, text, end)| (*i, &texts[*text][..*end]))
            .collect();
        sessions.step(&targets, None).unwrap();
        for (i, text, end) in begun {
            let found = sessions.logits(i).unwrap();
            worst = worst.max(error(&found, &expected[text][end - 1]));
        }
    }
    worst
}

/// The sequences that are not in a call keep their caches.
#[test]
fn lanes_that_are_not_in_a_call_stay_as_they_were() {
    for name in WITH_STATES {
        stay_as_they_were(name);
    }
}

/// With keys and values only, with convolutions, and with delta nets.
const WITH_STATES: [&str; 3] = ["tiny/qwen3", "tiny/lfm2", "tiny/qwen3_5"];

fn stay_as_they_were(name: &str) {
    let (ids, _) = sequences(name).pop().unwrap();
    let cpu = Cpu::new(Numerics::F32, 1);
    let engine = Form {
        lanes: Some(3),
        head: Head::Greatest(1),
        ..engine()
    };
    let model = model(name, "", Some(fp32(engine)));
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
        assert_eq!(likeliest(&found), likeliest(&expected), "{name} {i}");
    }
}

/// What the others of a call are makes no bit of a sequence another, not even if they are NaN.
#[test]
fn lanes_of_a_call_do_not_see_each_other() {
    const LANES: usize = 3;
    for name in WITH_STATES {
        let lanes = Some(LANES);
        let model = model(name, "", Some(fp32(Form { lanes, ..engine() })));
        let cpu = Cpu::new(Numerics::F32, 1);
        let f = model.program.function("decode_lanes").unwrap();
        let types = |values: &[ValueId]| -> Vec<(String, TensorType)> {
            let values = values.iter().map(|v| f.value(*v));
            values
                .map(|v| (v.name.clone(), v.ty.tensor().unwrap().clone()))
                .collect()
        };
        let (inputs, outputs) = (types(&f.body().inputs), types(&f.body().outputs));
        // The outputs, lane by lane, where the numbers of lane 1 depend on `kind`.
        let run = |kind: usize| -> Vec<Vec<Vec<u8>>> {
            let executable = cpu.load(&model.program).unwrap();
            let mut instance = executable.instantiate().unwrap();
            for (name, ty) in &inputs {
                let shape = ty.shape.iter().map(|dim| dim.known().unwrap());
                let shape: Vec<usize> = shape.collect();
                let cells = instance.input(name, &shape).unwrap().as_chunks_mut::<4>().0;
                let per_lane = cells.len() / LANES;
                for (at, cell) in cells.iter_mut().enumerate() {
                    let kind = if at / per_lane == 1 { kind } else { 0 };
                    let number = ((at + 1) * (kind + 1) * 7919 % 101) as f32 / 101.0 - 0.4;
                    *cell = match (ty.dtype, kind) {
                        (DType::Int32, _) => {
                            (3 + kind as i32 + (at / per_lane) as i32).to_ne_bytes()
                        }
                        (_, 2) => f32::NAN.to_ne_bytes(),
                        _ => number.to_ne_bytes(),
                    };
                }
            }
            instance.run("decode_lanes").unwrap();
            let given = outputs.iter().map(|(name, _)| {
                let bytes = instance.output(name).unwrap().bytes;
                bytes
                    .chunks(bytes.len() / LANES)
                    .map(<[u8]>::to_vec)
                    .collect()
            });
            given.collect()
        };
        let reference = run(0);
        for kind in [1, 2] {
            for ((name_of, _), (found, expected)) in
                outputs.iter().zip(run(kind).iter().zip(&reference))
            {
                for lane in 0..LANES {
                    let is_same = found[lane] == expected[lane];
                    assert_eq!(is_same, lane != 1, "{name} {name_of}, lane {lane}, {kind}");
                }
            }
        }
    }
}

/// The model that `convert` writes.
fn half(name: &str) -> LanguageModel {
    let engine = Form {
        block: Some(8),
        lanes: Some(4),
        ..engine()
    };
    model(name, "", Some(engine.into()))
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are commands")]
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
            "ane",
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
        "ane",
        "--context",
        &context,
        "-o",
        folder,
    ];
    let output = home.run(&[&cut[..], &explicit, &["--block", "8", "--split", "2"]].concat());
    assert_ends(&output, 0, &[]);
    let of_folder = [&bench[..2], &[folder], &bench[3..], &lengths].concat();
    assert_ends(&home.run(&of_folder), 0, &[]);
    // So are convolutions and delta nets.
    for name in ["tiny/lfm2", "tiny/qwen3_5"] {
        let model = models().join(name);
        assert_ends(&convert(model.to_str().unwrap(), &explicit), 0, &[]);
        assert_ends(&home.run(&["check", out]), 0, &[]);
        let written = Model::from_files(files(package.clone())).unwrap();
        let written = written.language_model(&LanguageOptions::default(), &());
        let cpu = Cpu::new(Numerics::F32, 1);
        let [mut ours, mut theirs] =
            [half(name), written.unwrap()].map(|model| model.sessions(&cpu, 3).unwrap());
        let (ids, _) = sequences(name).pop().unwrap();
        for end in [5, 6, 7] {
            for sessions in [&mut ours, &mut theirs] {
                let prompts: Vec<(usize, &[u32])> = (0..3).map(|i| (i, &ids[i..end])).collect();
                assert!(sessions.feed(&prompts, &|| false).unwrap());
            }
            for i in 0..3 {
                let (a, b) = (ours.logits(i).unwrap(), theirs.logits(i).unwrap());
                assert!(error(&b, &a) < 1e-6, "{name} {i}");
            }
        }
    }
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
    ] {
        assert_ends(&convert(model, more), 2, &[said]);
    }
}
