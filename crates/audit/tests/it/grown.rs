//! Whole models at their published sizes, judged: the tiny checkpoints of `tests/models`, grown.
//! Their weights are holes in files, which nothing reads.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thane_audit::place::Backend;
use thane_audit::target::{Route, Target, Units};
use thane_audit::{Audit, Effect, Finding, Severity, audit};
use thane_calls::Lookup;
use thane_compile::cut::cut;
use thane_mil::program::{Function, OpId, Program};
use thane_mil::text::{Blobs, parse, print};
use thane_models::checkpoint::Checkpoint;
use thane_models::{
    AneDecoder, AneEncoder, EncoderOptions, NormForm, Options, build, build_encoder,
};

/// A tiny checkpoint and what makes it a published model.
struct Growth {
    tiny: &'static str,
    layers: usize,
    /// A length of an axis in the tiny one, and in the published one; they are all different in the
    /// tiny one.
    axes: &'static [(usize, usize)],
    config: fn(&mut Value),
}

/// pplx-embed 0.6B, which has the shape of Qwen3-0.6B.
const PPLX: Growth = Growth {
    tiny: "tiny-embed/qwen3-pplx",
    layers: 28,
    axes: &[
        (42, 1024),
        (51, 3072),
        (60, 2048),
        (20, 1024),
        (10, 128),
        (318, 151_936),
    ],
    config: |config| {
        config["hidden_size"] = json!(1024);
        config["intermediate_size"] = json!(3072);
        config["num_attention_heads"] = json!(16);
        config["num_key_value_heads"] = json!(8);
        config["head_dim"] = json!(128);
        config["vocab_size"] = json!(151_936);
        config["max_position_embeddings"] = json!(32_768);
        config["layer_types"] = json!(vec!["full_attention"; 28]);
    },
};

/// EmbeddingGemma 300M.
const GEMMA: Growth = Growth {
    tiny: "tiny-embed/embeddinggemma",
    layers: 24,
    axes: &[
        (36, 768),
        (29, 1152),
        (42, 768),
        (14, 256),
        (449, 262_144),
        (74, 3072),
        (31, 768),
    ],
    config: |config| {
        config["hidden_size"] = json!(768);
        config["intermediate_size"] = json!(1152);
        config["head_dim"] = json!(256);
        config["vocab_size"] = json!(262_144);
        config["max_position_embeddings"] = json!(2048);
        config["sliding_window"] = json!(512);
        let kinds = ["sliding_attention", "full_attention"];
        config["layer_types"] = (0..24).map(|i| kinds[usize::from(i % 6 == 5)]).collect();
    },
};

/// Qwen3-0.6B, the decoder.
const QWEN: Growth = Growth {
    tiny: "tiny/qwen3",
    layers: 28,
    axes: &[
        (46, 1024),
        (59, 3072),
        (72, 2048),
        (24, 1024),
        (12, 128),
        (149, 151_936),
    ],
    config: PPLX.config,
};

/// Gemma 3 1B.
const GEMMA_1B: Growth = Growth {
    tiny: "tiny/gemma3",
    layers: 26,
    axes: &[
        (44, 1152),
        (31, 6912),
        (56, 1024),
        (14, 256),
        (149, 262_144),
    ],
    config: |config| {
        config["hidden_size"] = json!(1152);
        config["intermediate_size"] = json!(6912);
        config["head_dim"] = json!(256);
        config["vocab_size"] = json!(262_144);
        config["max_position_embeddings"] = json!(32_768);
        config["sliding_window"] = json!(512);
        let kinds = ["sliding_attention", "full_attention"];
        config["layer_types"] = (0..26).map(|i| kinds[usize::from(i % 6 == 5)]).collect();
    },
};

fn grow(growth: &Growth) -> tempfile::TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models")
        .join(growth.tiny);
    let to = tempfile::tempdir().unwrap();
    copy(growth, &from, to.path());
    to
}

fn copy(growth: &Growth, from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        let target = to.join(&name);
        match name.to_str().unwrap() {
            _ if path.is_dir() => {
                fs::create_dir(&target).unwrap();
                copy(growth, &path, &target);
            }
            "model.safetensors" => tensors(growth, &path, &target),
            "config.json" => {
                let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
                for key in ["in_features", "out_features", "word_embedding_dimension"] {
                    if let Some(n) = config.get(key).and_then(Value::as_u64) {
                        config[key] = json!(grown(growth, n as usize));
                    }
                }
                if config.get("hidden_size").is_some() {
                    (growth.config)(&mut config);
                    config["num_hidden_layers"] = json!(growth.layers);
                }
                fs::write(&target, config.to_string()).unwrap();
            }
            _ => drop(fs::copy(&path, &target).unwrap()),
        }
    }
}

fn grown(growth: &Growth, axis: usize) -> usize {
    growth
        .axes
        .iter()
        .find(|(tiny, _)| *tiny == axis)
        .unwrap_or_else(|| panic!("axis of {axis}"))
        .1
}

/// The header of larger tensors, and a hole for them.
fn tensors(growth: &Growth, from: &Path, to: &Path) {
    let file = fs::read(from).unwrap();
    let (len, rest) = file.split_first_chunk().unwrap();
    let header: HashMap<String, Value> =
        serde_json::from_slice(&rest[..u64::from_le_bytes(*len) as usize]).unwrap();
    let mut names: Vec<(String, Vec<usize>)> = Vec::new();
    for (name, tensor) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let axes = tensor["shape"].as_array().unwrap().iter();
        let shape: Vec<usize> = axes
            .map(|n| grown(growth, n.as_u64().unwrap() as usize))
            .collect();
        let of_layer = name
            .split_once("layers.")
            .and_then(|(base, rest)| Some((base, rest.split_once('.')?)));
        match of_layer {
            Some((base, ("0", rest))) => {
                names.extend(
                    (0..growth.layers).map(|i| (format!("{base}layers.{i}.{rest}"), shape.clone())),
                );
            }
            Some(_) => {}
            None => names.push((name.clone(), shape)),
        }
    }
    let mut end = 0;
    let mut grown = serde_json::Map::new();
    for (name, shape) in names {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        grown.insert(
            name,
            json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] }),
        );
    }
    let header = serde_json::to_vec(&grown).unwrap();
    let mut out = File::create(to).unwrap();
    out.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    out.write_all(&header).unwrap();
    out.set_len((8 + header.len() + end) as u64).unwrap();
}

/// The program for the engine, with a function for each of these lengths.
fn program(growth: &Growth, lengths: &[usize]) -> (tempfile::TempDir, Program) {
    let folder = grow(growth);
    let checkpoint = Checkpoint::open(&PathBuf::from(folder.path())).unwrap();
    let engine = AneEncoder {
        buckets: lengths.to_vec(),
        flexible: false,
        residual_divisor: None,
        norm: NormForm::Scaled,
        lookup: Lookup::Inside,
    };
    let options = EncoderOptions {
        target: thane_models::Target::Ane(engine),
        ..EncoderOptions::default()
    };
    let program = build_encoder(&checkpoint, &options).unwrap().program;
    let (program, _) = thane_compile::run(program, &thane_compile::Options::default()).unwrap();
    (folder, program)
}

/// The decoder for the engine, with a context of 2,048 tokens.
fn decoder(growth: &Growth) -> (tempfile::TempDir, Program) {
    let folder = grow(growth);
    let checkpoint = Checkpoint::open(&PathBuf::from(folder.path())).unwrap();
    let options = Options {
        context: Some(2048),
        ane: Some(AneDecoder::default()),
        ..Options::default()
    };
    let program = build(&checkpoint, &options).unwrap().program;
    let (program, _) = thane_compile::run(program, &thane_compile::Options::default()).unwrap();
    (folder, program)
}

fn judge(program: &Program, target: &str) -> Audit {
    audit(
        program,
        &Target::parse(target, Units::default(), Route::default()).unwrap(),
    )
}

/// The ops that do not run on the engine, by name.
fn elsewhere(f: &Function, audit: &Audit) -> Vec<&'static str> {
    let judged = audit
        .functions
        .iter()
        .find(|judged| judged.name == f.name)
        .unwrap();
    judged
        .placement
        .ops
        .iter()
        .filter(|op| op.chosen != Backend::Ane)
        .map(|op| f.op(op.op).def.name)
        .collect()
}

#[test]
fn encoders_live_on_the_engine_as_published() {
    // pplx-embed 0.6B on M4 Max, macOS 26: 99.3 to 99.8 % (CoreML-LLM, pull request 169), with
    // look-ups of words and positions inside, as here. EmbeddingGemma 300M: 1950 of 1954 ops (its
    // README), whose masks and positions come from the host; here they are computed inside, 25 ops
    // of integers and look-ups among 2,213.
    for (growth, length, least) in [(PPLX, 512, 0.993), (GEMMA, 128, 0.988)] {
        let (_folder, program) = program(&growth, &[length]);
        let audit = judge(&program, "m4-max+macos26");
        let f = &program.functions()[0];
        let residency = audit.functions[0].placement.residency();
        let outside = elsewhere(f, &audit);
        println!(
            "{}: {residency:.4} of {}, outside {outside:?}",
            growth.tiny,
            audit.functions[0].placement.ops.len()
        );
        assert!(
            residency >= least && residency < 1.0,
            "{}: {residency}, outside {outside:?}",
            growth.tiny
        );
        let attention = [
            "matmul",
            "conv",
            "linear",
            "softmax",
            "layer_norm",
            "reduce_mean",
            "rsqrt",
        ];
        assert!(
            outside.iter().all(|op| !attention.contains(op)),
            "{}: {outside:?}",
            growth.tiny
        );
        // What nobody disputes would make it fail.
        let fails = |f: &&Finding| f.rule.severity == Severity::Error;
        let failing: Vec<_> = audit.functions[0].findings.iter().filter(fails).collect();
        assert!(failing.is_empty(), "{}: {failing:?}", growth.tiny);
    }
}

#[test]
fn scores_of_8192_positions_fail_at_run_time() {
    let (_folder, program) = program(&PPLX, &[4096, 8192]);
    let audit = judge(&program, "m4-max+macos26");
    let failing = |name: &str| -> Vec<String> {
        let judged = audit.functions.iter().find(|f| f.name == name).unwrap();
        let runs = judged
            .findings
            .iter()
            .filter(|f| f.rule.effect == Effect::RunFails(Some("0x15")));
        runs.map(|f| f.message.clone()).collect()
    };
    assert_eq!(failing("encode_4096"), Vec::<String>::new());
    let found = failing("encode_8192");
    println!("{found:?}");
    assert!(
        !found.is_empty() && found.iter().all(|m| m.contains("8192")),
        "{found:?}"
    );
}

#[test]
fn a_decoder_lives_on_the_engine_but_for_its_look_ups() {
    let (_folder, program) = decoder(&QWEN);
    let audit = judge(&program, "m4-max+macos26");
    for (f, judged) in program.functions().iter().zip(&audit.functions) {
        let outside = elsewhere(f, &audit);
        println!(
            "{}: {:.4}, outside {outside:?}",
            f.name,
            judged.placement.residency()
        );
        // Embeddings, cosines and sines are looked up; the head has 151,936 outputs, which only the
        // convolution itself may.
        let looked_up =
            |op: &&str| ["gather", "transpose", "reshape", "expand_dims", "mul"].contains(op);
        assert!(
            outside.iter().all(looked_up) && outside.len() <= 8,
            "{}: {outside:?}",
            f.name
        );
        assert_eq!(
            judged.placement.n_dispatches(),
            1,
            "{}: {:?}",
            f.name,
            judged.placement.segments
        );
        let failing = judged
            .findings
            .iter()
            .filter(|f| f.rule.severity == Severity::Error)
            .count();
        assert_eq!(failing, 0, "{}", f.name);
    }
}

/// The place of an op in a decoder that is cut into chunks.
#[derive(Debug, PartialEq)]
enum Place {
    Host,
    Layer(usize),
    Head,
}

/// As CoreML-LLM cuts: embeddings, rotary angles and the caches come from the host, and what is new
/// of the caches goes back.
fn place(f: &Function, op: OpId) -> Place {
    let module: &str = &f.op(op).origin.place;
    let of_layer = module
        .split_once("layers.")
        .and_then(|(_, rest)| rest.split('.').next()?.parse().ok());
    let of_state = |name: &str| {
        name == "read_state" || name == "coreml_update_state" || name == "slice_update"
    };
    let reads = f
        .op(op)
        .value_arg("x")
        .and_then(|x| f.definer(x))
        .is_some_and(|by| by.def.name == "read_state");
    match of_layer {
        _ if of_state(f.op(op).def.name) || reads => Place::Host,
        Some(layer) => Place::Layer(layer),
        None if module == "model.norm" || f.op(op).def.name == "conv" => Place::Head,
        None => Place::Host,
    }
}

/// What CoreML-LLM puts behind the head: a softcap, the likeliest token and its logit.
const TAIL: &str = "
        tensor<fp16, [1, 262144, 1, 1]> small = mul(x = HEAD, y = fp16(0.0333));
        tensor<fp16, [1, 262144, 1, 1]> bent = tanh(x = small);
        tensor<fp16, [1, 262144, 1, 1]> capped = mul(x = bent, y = fp16(30));
        tensor<fp16, [1, 262144, 1]> column = squeeze(x = capped, axes = tensor<int32, [1]>([3]));
        tensor<fp16, [1, 262144]> row = squeeze(x = column, axes = tensor<int32, [1]>([2]));
        tensor<int32, [1]> token_id = reduce_argmax(x = row, axis = int32(1), keep_dims = bool(false));
        tensor<int32, [1, 1]> place = expand_dims(x = token_id, axes = tensor<int32, [1]>([1]));
        tensor<fp16, [1, 1]> token_logit = gather_along_axis(x = row, indices = place, axis = int32(1));
    } -> (token_id, token_logit";

fn with_tail(chunk: Function) -> Program {
    let mut blobs = Blobs::default();
    let text = print(&Program::new(vec![chunk]), &mut blobs);
    let (body, outputs) = text.rsplit_once("} -> (").unwrap();
    let (outputs, end) = outputs.split_once(");").unwrap();
    let head = outputs
        .split(", ")
        .find(|name| name.starts_with("lm_head"))
        .unwrap();
    let others: String = outputs
        .split(", ")
        .filter(|name| *name != head)
        .map(|name| format!(", {name}"))
        .collect();
    let text = format!("{body}{}{others});{end}", TAIL.replace("HEAD", head));
    let program =
        parse(&text, &|_, offset, ty| blobs.get(offset, ty)).unwrap_or_else(|e| panic!("{e}"));
    thane_mil::valid::check(&program).unwrap();
    program
}

/// CoreML-LLM's four chunks of Gemma 4 E2B: 1058 of 1058, 914 of 914, 824 of 825 and 832 of 841 ops
/// on the engine, and on the CPU the tail behind the head: tanh, two mul, two squeeze,
/// reduce_argmax, expand_dims and gather_along_axis.
#[test]
fn four_chunks_of_a_decoder_live_on_the_engine_as_published() {
    let (_folder, program) = decoder(&GEMMA_1B);
    let f = program
        .functions()
        .iter()
        .find(|f| f.name == "decode")
        .unwrap();
    let ends = [7, 14, 20, 26];
    for (chunk, end) in ends.into_iter().enumerate() {
        let start = if chunk == 0 { 0 } else { ends[chunk - 1] };
        let is_last = end == GEMMA_1B.layers;
        let belongs = |op: &OpId| match place(f, *op) {
            Place::Host => false,
            Place::Layer(layer) => (start..end).contains(&layer),
            Place::Head => is_last,
        };
        let ops: HashSet<OpId> = f.body().ops.iter().copied().filter(belongs).collect();
        let part = cut(f, &ops).unwrap().unwrap();
        let program = if is_last {
            with_tail(part)
        } else {
            Program::new(vec![part])
        };
        for target in ["m4-max+macos26", "a19-pro+ios26"] {
            let audit = judge(&program, target);
            let outside = elsewhere(&program.functions()[0], &audit);
            let n_ops = audit.functions[0].placement.ops.len();
            println!(
                "chunk {chunk} on {target}: {} of {n_ops}, outside {outside:?}",
                n_ops - outside.len()
            );
            let tail = [
                "mul",
                "tanh",
                "mul",
                "squeeze",
                "squeeze",
                "reduce_argmax",
                "expand_dims",
                "gather_along_axis",
            ];
            let expected: &[&str] = if is_last { &tail } else { &[] };
            assert_eq!(outside, expected, "chunk {chunk} on {target}");
            let failing =
                |f: &&Finding| f.rule.severity == Severity::Error && f.rule.disputed.is_empty();
            let failing: Vec<_> = audit.functions[0].findings.iter().filter(failing).collect();
            assert!(failing.is_empty(), "chunk {chunk} on {target}: {failing:?}");
        }
    }
}
