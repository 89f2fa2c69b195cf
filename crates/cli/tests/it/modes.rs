//! The modes of a decoder's form for the Neural Engine give the same logits: calls of one token, of
//! a block and of several tokens with logits for each, a cache in a state or held by the caller,
//! several context lengths, and layers in chunks.

use std::fs;
use std::sync::Arc;

use serde_json::Value;
use thane_calls::{AttentionForm, CacheForm, Form, Head, Lookup, Split, Streaming};
use thane_cpu::{Cpu, Numerics};
use thane_engine::generate::Session;
use thane_mil::backend::{Executable, Instance};
use thane_mil::literal::f16_to_f32;
use thane_models::{AneDecoder, NormForm};
use thane_runtime::{LanguageModel, LanguageOptions, Model, PackageOptions};

use crate::decoder::{
    BLOCK, CONTEXT, cases, error, files, fp32, has_one_state, model, models, sequences,
};
use crate::fixture::{Home, assert_ends};

/// Bound of the relative difference between modes, whose sums have other orders.
const BOUND: f64 = 1e-5;

/// Each mode with its name. The first is what the others are compared with.
pub fn modes(n_layers: usize) -> Vec<(&'static str, Form)> {
    let plain = Form {
        block: Some(BLOCK),
        ..Form::default()
    };
    let each = (0..n_layers).map(|i| i..i + 1).collect();
    let explicit = CacheForm::Explicit;
    vec![
        ("state", plain.clone()),
        (
            "explicit, verify 5",
            Form {
                cache: explicit,
                verify: vec![5],
                ..plain.clone()
            },
        ),
        (
            "explicit, host, contexts, a chunk for each layer, verify 3",
            Form {
                cache: explicit,
                lookup: Lookup::Host,
                contexts: vec![9, 24],
                split: Split::Ranges {
                    layers: each,
                    head: true,
                },
                verify: vec![3],
                ..plain.clone()
            },
        ),
        (
            "state, contexts, two chunks, verify 2, 4 and 8",
            Form {
                contexts: vec![9, 24],
                // So few bytes that the head is several parts.
                split: Split::Within(4096),
                verify: vec![8, 2, 4, 2],
                ..plain.clone()
            },
        ),
        (
            "explicit, tiles",
            Form {
                cache: explicit,
                attention: AttentionForm {
                    tile: Some(32),
                    ..AttentionForm::default()
                },
                ..plain.clone()
            },
        ),
        (
            "state, host, block 16",
            Form {
                lookup: Lookup::Host,
                block: Some(16),
                ..plain.clone()
            },
        ),
        (
            "explicit, logits on the host, two chunks, verify 4",
            Form {
                cache: explicit,
                head: Head::Host(()),
                split: Split::Into(2),
                verify: vec![4],
                ..plain.clone()
            },
        ),
        (
            "explicit, tables and logits on the host",
            Form {
                cache: explicit,
                lookup: Lookup::Host,
                head: Head::Host(()),
                ..plain
            },
        ),
    ]
}

/// Modes without Core ML.
pub fn direct_modes(n_layers: usize) -> [(&'static str, Form); 2] {
    let plain = Form {
        cache: CacheForm::Explicit,
        lookup: Lookup::Host,
        direct: Some(96),
        ..Form::default()
    };
    [
        (
            "without Core ML, two chunks",
            Form {
                split: Split::Into(2),
                ..plain.clone()
            },
        ),
        (
            "without Core ML, a chunk for the head, verify 32",
            Form {
                split: Split::Ranges {
                    layers: std::iter::once(0..n_layers).collect(),
                    head: true,
                },
                verify: vec![32],
                ..plain
            },
        ),
    ]
}

pub fn session(model: &LanguageModel) -> Session {
    model.session(&Cpu::new(Numerics::F32, 1)).unwrap()
}

/// Compares all ways to process `ids` with `expected`, the logits of each token.
fn worst(session: &mut Session, ids: &[u32], expected: &[Vec<f32>]) -> f64 {
    let mut worst = 0.0f64;
    let mut judge = |found: &[f32], i: usize| worst = worst.max(error(found, &expected[i]));
    // Prompts, of which some begin with what is in the cache, and go back.
    for n in [ids.len(), 2, BLOCK + 1, ids.len() / 2, ids.len() - 1] {
        let n = n.clamp(1, ids.len());
        judge(&session.feed(&ids[..n], &|| false).unwrap().unwrap(), n - 1);
    }
    // Tokens one by one, from a place that is not the start of a block.
    let start = ids.len() / 3;
    if start > 0 {
        session.feed(&ids[..start], &|| false).unwrap();
    } else {
        session.reset();
    }
    for (i, id) in ids.iter().enumerate().skip(start) {
        judge(&session.decode(*id).unwrap(), i);
    }
    // Several tokens with logits for each. Wrong tokens follow, and are not accepted.
    session.reset();
    let mut done = 0;
    while done < ids.len() {
        let n = (1 + done % 6).min(ids.len() - done);
        let n_wrong = 2.min(CONTEXT - done - n);
        let guess = [&ids[done..done + n], &[3, 4][..n_wrong]].concat();
        let logits = session.verify(&guess).unwrap();
        let vocab = logits.len() / guess.len();
        for (i, row) in logits.chunks(vocab).take(n).enumerate() {
            judge(row, done + i);
        }
        done += n;
        if done < ids.len() {
            // Goes back to the accepted tokens, the last of which is computed again.
            let found = session.feed(&ids[..done], &|| false).unwrap().unwrap();
            judge(&found, done - 1);
        }
    }
    worst
}

/// Whether layers remember all tokens so far together, so that calls have no padding.
pub fn is_recurrent(name: &str) -> bool {
    ["lfm2", "qwen3_5", "qwen3.5"]
        .iter()
        .any(|family| name.contains(family))
}

#[test]
fn all_modes_of_all_families_give_the_same_logits() {
    let mut bad = Vec::new();
    for (name, file) in &cases() {
        let (ids, _) = sequences(name).pop().unwrap();
        let whole = model(name, file, None);
        let n_layers = whole.info.n_layers;
        let mut expected: Vec<Vec<f32>> = Vec::new();
        for (mode, engine) in modes(n_layers).into_iter().chain(direct_modes(n_layers)) {
            if engine.cache == CacheForm::State && !has_one_state(name) {
                continue;
            }
            if engine.direct.is_some() && is_recurrent(name) {
                continue;
            }
            let mut session = session(&model(name, file, Some(fp32(engine))));
            if expected.is_empty() {
                let logits = ids
                    .iter()
                    .map(|id| session.decode(*id).unwrap().into_owned());
                expected = logits.collect();
            }
            let found = worst(&mut session, &ids, &expected);
            if found > BOUND {
                bad.push(format!("{name}, {mode}: {found:.1e}"));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Recurrent layers: what is written and read back is called as the contract says, and gives the
/// same logits.
#[test]
fn packages_of_recurrent_layers_give_the_same_logits() {
    let home = Home::new();
    for (name, more, split) in [
        ("tiny/lfm2", "--kv explicit --lookup host --split 2", 2),
        ("tiny/qwen3_5", "--kv explicit", 1),
        ("tiny/qwen3_5", "--split 2", 2),
    ] {
        let path = home.path(&format!("{}{}", name.replace('/', "-"), more.len()));
        let path = if split == 1 {
            path.with_extension("mlpackage")
        } else {
            path
        };
        let checkpoint = models().join(name);
        let fixed = format!("convert --form ane --context {CONTEXT} --block {BLOCK} {more} -o");
        let mut args: Vec<&str> = fixed.split(' ').collect();
        args.extend([path.to_str().unwrap(), checkpoint.to_str().unwrap()]);
        assert_ends(&home.run(&args), 0, &[]);
        if split > 1 {
            // As coremltools leaves it when it opens a package.
            let list = path.join("chunk1.mlpackage/Manifest.json");
            let value: Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
            fs::write(&list, format!("{value:#}\n")).unwrap();
        }
        let (explicit, host) = (more.contains("explicit"), more.contains("host"));
        let engine = Form {
            block: Some(BLOCK),
            cache: [CacheForm::State, CacheForm::Explicit][usize::from(explicit)],
            lookup: [Lookup::Inside, Lookup::Host][usize::from(host)],
            split: Split::Into(split),
            ..Form::default()
        };
        let read = Model::from_files(files(path)).unwrap();
        let read = read.language_model(&LanguageOptions::default(), &());
        let (mut ours, mut theirs) = (
            session(&model(name, "", Some(engine.into()))),
            session(&read.unwrap()),
        );
        let (ids, _) = sequences(name).pop().unwrap();
        // The second prompt continues the first, and the third begins again.
        for n in [BLOCK + 2, ids.len(), 2 * BLOCK] {
            let [a, b] = [&mut ours, &mut theirs]
                .map(|session| session.feed(&ids[..n], &|| false).unwrap().unwrap());
            assert!(error(&b, &a) < 1e-6, "{name} {more}, {n} tokens");
        }
    }
}

fn instance(model: &LanguageModel) -> Box<dyn Instance> {
    let executable: Arc<dyn Executable> = model.load(&Cpu::new(Numerics::F32, 1)).unwrap();
    executable.instantiate().unwrap()
}

fn call(instance: &mut dyn Instance, function: &str, position: i32, ids: &[u32]) {
    let input = instance.input("input_ids", &[1, ids.len()]).unwrap();
    let cells = input.as_chunks_mut::<4>().0;
    cells
        .iter_mut()
        .zip(ids)
        .for_each(|(cell, id)| *cell = id.to_ne_bytes());
    let at = instance.input("position", &[1]).unwrap();
    at.copy_from_slice(&position.to_ne_bytes());
    instance.run(function).unwrap();
}

/// The caller stores only what it accepts: the rows of tokens that a later call goes back behind
/// are never written.
#[test]
fn rows_that_are_not_accepted_leave_the_cache_as_it_was() {
    let engine = Form {
        block: Some(BLOCK),
        cache: CacheForm::Explicit,
        verify: vec![5],
        ..Form::default()
    };
    for name in [
        "tiny/gemma3",
        "tiny/gemma4",
        "tiny/qwen3",
        "tiny-gguf/llama-quantised",
    ] {
        let file = if name.contains("gguf") { "gguf" } else { "" };
        let model = model(name, file, Some(engine.clone().into()));
        let (ids, _) = sequences(name).pop().unwrap();
        let (mut serial, mut verified) = (instance(&model), instance(&model));
        let n = 12;
        for (i, id) in ids[..n + 1].iter().enumerate() {
            call(serial.as_mut(), "decode", i as i32, &[*id]);
        }
        call(verified.as_mut(), "prefill", 0, &ids[..n - 3]);
        // Two of five are accepted, then one.
        for (start, accepted) in [(n - 3, 2), (n - 1, 1)] {
            let guess = [&ids[start..start + accepted], &[5, 6, 7, 8][..5 - accepted]].concat();
            call(verified.as_mut(), "verify", start as i32, &guess);
        }
        call(verified.as_mut(), "decode", n as i32, &ids[n..n + 1]);
        let mut n_rings = 0;
        for layer in 0..model.info.n_layers {
            for part in ["k", "v"] {
                let cache = format!("{part}_cache_{layer}");
                // A layer may have the cache of another one.
                let Ok(a) = serial.state(&cache) else {
                    continue;
                };
                let b = verified.state(&cache).unwrap();
                let (heads, context, row) = (a.shape[1], a.shape[2], a.shape[3]);
                n_rings += usize::from(context < CONTEXT);
                for head in 0..heads {
                    let rows = |bytes: &[u8], range: std::ops::Range<usize>| {
                        let at = |i: usize| 2 * (head * context + i) * row;
                        bytes[at(range.start)..at(range.end)].to_vec()
                    };
                    let [ours, theirs] = [a, b].map(|view| {
                        let cells = rows(view.bytes, 0..n);
                        let cells = cells.as_chunks::<2>().0.to_vec();
                        cells
                            .iter()
                            .map(|c| f16_to_f32(u16::from_ne_bytes(*c)))
                            .collect::<Vec<f32>>()
                    });
                    assert!(error(&ours, &theirs) < 1e-3, "{name} {cache}");
                    assert!(ours.iter().any(|x| *x != 0.0), "{name} {cache}");
                    let zeros = vec![0; 2 * (context - n) * row];
                    assert_eq!(rows(b.bytes, n..context), zeros, "{name} {cache}");
                }
            }
        }
        // Sliding-window layers keep the last tokens only.
        assert_eq!(n_rings > 0, name.contains("gemma"), "{name}");
    }
}

/// Each part of the output head gives a part of the vocabulary, also from packages.
#[test]
fn heads_in_parts_are_written_and_read() {
    let home = Home::new();
    for name in ["tiny/qwen3", "tiny/gemma4", "tiny/lfm2"] {
        let engine = Form {
            block: Some(BLOCK),
            cache: CacheForm::Explicit,
            verify: vec![3],
            split: Split::Within(4096),
            ..Form::default()
        };
        let built = model(name, "", Some(engine.into()));
        let heads = built.program.functions().iter().filter(|f| {
            let outputs = f.body().outputs.iter();
            f.name.ends_with("_decode") && outputs.clone().any(|v| f.value(*v).name == "logits")
        });
        assert!(heads.count() > 1, "{name}");
        let path = home.path(&name.replace('/', "-"));
        built.write(&path, &PackageOptions::default(), &()).unwrap();
        assert_ends(&home.run(&["check", path.to_str().unwrap()]), 0, &[]);
        let read = Model::from_files(files(path)).unwrap();
        let read = read.language_model(&LanguageOptions::default(), &());
        let (mut ours, mut theirs) = (session(&built), session(&read.unwrap()));
        let (ids, _) = sequences(name).pop().unwrap();
        let [a, b] = [&mut ours, &mut theirs].map(|session| session.verify(&ids[..11]).unwrap());
        assert!(error(&b, &a) < 1e-6, "{name}");
    }
}

/// int8 rows of embeddings are the nearest multiples of a 127th of the row's greatest number, and
/// read as they are written.
#[test]
fn tables_of_int8_are_near_those_of_fp16() {
    let home = Home::new();
    for name in ["tiny/qwen3", "tiny/gemma4"] {
        let engine = |lookup| Form {
            block: Some(BLOCK),
            cache: CacheForm::Explicit,
            lookup,
            ..Form::default()
        };
        let [exact, built] = [Lookup::Host, Lookup::HostInt8]
            .map(|lookup| model(name, "", Some(engine(lookup).into())));
        let by_token = |model: &LanguageModel| {
            let tables = model.made_tables.iter().filter(|table| table.by_token);
            tables.cloned().collect::<Vec<_>>()
        };
        let (halves, codes) = (by_token(&exact), by_token(&built));
        assert_eq!(halves.len(), 1 + usize::from(name.contains("gemma4")));
        for (halves, codes) in halves.iter().zip(&codes) {
            let half = |b: &[u8; 2]| f16_to_f32(u16::from_le_bytes(*b));
            let exact = halves.parts[0].to_vec();
            let exact = exact.as_chunks().0.iter().map(half);
            let exact: Vec<f32> = exact.map(|x| x * halves.factor).collect();
            let scales = codes.scales.as_ref().unwrap().to_vec();
            let scales: Vec<f32> = scales.as_chunks().0.iter().map(half).collect();
            let rows = exact.chunks(halves.n_columns);
            let ints = codes.parts[0].to_vec();
            assert_eq!(scales.len(), halves.n_rows);
            for ((row, ints), scale) in rows.zip(ints.chunks(halves.n_columns)).zip(&scales) {
                let most = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                assert!((most / 127.0 - scale).abs() <= most / 127.0 / 1024.0);
                for (x, code) in row.iter().zip(ints) {
                    let off = (x - f32::from(code.cast_signed()) * scale).abs();
                    assert!(off <= 0.51 * scale + most / 1024.0, "{name}: {x}, {code}");
                }
            }
        }
        let path = home
            .path(&name.replace('/', "-"))
            .with_extension("mlpackage");
        built.write(&path, &PackageOptions::default(), &()).unwrap();
        assert_ends(&home.run(&["check", path.to_str().unwrap()]), 0, &[]);
        let read = Model::from_files(files(path)).unwrap();
        let read = read.language_model(&LanguageOptions::default(), &());
        let (ids, _) = sequences(name).pop().unwrap();
        let logits = |model: &LanguageModel| session(model).verify(&ids).unwrap();
        let [near, exact, read] = [logits(&built), logits(&exact), logits(&read.unwrap())];
        assert_eq!(read, near);
        let off = error(&near, &exact);
        assert!(0.0 < off && off < 0.1, "{name}: {off}");
    }
}

/// Attention that sees a part of the tokens, as transformers computes it with the same rules
/// (`tests/oracle/make_attention.py`), in all ways to process tokens.
#[test]
fn attention_to_a_part_of_the_tokens_is_that_of_transformers() {
    let number = |json: &Value, key: &str| json[key].as_u64().map(|n| n as usize);
    let folder = models().join("attention");
    let mut n_cases = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        n_cases += 1;
        let case: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let stem = format!("attention/{}", path.file_stem().unwrap().to_str().unwrap());
        let (ids, logits) = sequences(&stem).pop().unwrap();
        let rows = logits.chunks(logits.len() / ids.len());
        let expected: Vec<Vec<f32>> = rows.map(<[f32]>::to_vec).collect();
        let retrieval = case["retrieval"].as_array().cloned().unwrap_or_default();
        let heads = retrieval.iter().map(|layer| {
            let heads = layer.as_array().unwrap().iter();
            heads.map(|head| head.as_u64() == Some(1)).collect()
        });
        let attention = AttentionForm {
            tile: None,
            streaming: Some(Streaming {
                sinks: number(&case, "sinks").unwrap(),
                window: number(&case, "window").unwrap(),
                pool: number(&case, "pool"),
            }),
            retrieval_heads: heads.collect(),
        };
        let plain = Form {
            block: Some(BLOCK),
            cache: CacheForm::Explicit,
            attention,
            ..Form::default()
        };
        let other = Form {
            lookup: Lookup::Host,
            contexts: vec![24, 48],
            split: Split::Into(2),
            verify: vec![5],
            attention: AttentionForm {
                tile: Some(32),
                ..plain.attention.clone()
            },
            ..plain.clone()
        };
        let name = format!("tiny/{}", case["checkpoint"].as_str().unwrap());
        for form in [plain, other] {
            // The epsilon of scaled norms is not exact.
            let exact = AneDecoder {
                norm: NormForm::Native,
                ..fp32(form)
            };
            let mut session = session(&model(&name, "", Some(exact)));
            let found = worst(&mut session, &ids, &expected);
            assert!(found < 2e-5, "{stem}: {found:.1e}");
        }
    }
    assert!(n_cases >= 5, "{n_cases}");
}
