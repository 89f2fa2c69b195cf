//! Compressed programs compute what programs with the decompressed weights do, and cuts of
//! compressed weights are the cuts of the decompressed ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thane_compile::compress::job::{Made, Memory, Store};
use thane_compile::compress::program::{CompressError, Compression, Settings};
use thane_compile::compress::report::Report;
use thane_compile::compress::{Encoding, Scale};
use thane_compile::compressed::Weight;
use thane_compile::rewrite::{Rewrite, bytes_of};
use thane_mil::data::Data;
use thane_mil::graph::Graph;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::pattern::Match;
use thane_mil::program::Program;
use thane_mil::text::parse;
use thane_mil::types::DType;
use thane_mil::valid;

use crate::decompress::decompressed;
use crate::machine::{Noise, outputs};

/// Every kind of product, a table of tokens that is a kernel too, and constants that stay.
const BODY: &str = "
    tensor<fp16, [1, 32, 1, 6]> h = cast(x = x, dtype = string(\"fp16\"));
    tensor<fp16, [64, 32, 1, 1]> w1 = W[1](64, 32, 1, 1);
    tensor<fp16, [64]> b1 = W[2](64);
    tensor<fp16, [1, 64, 1, 6]> a = conv(x = h, weight = w1, bias = b1);
    tensor<fp16, [64, 1, 1, 3]> w2 = W[3](64, 1, 1, 3);
    tensor<fp16, [1, 64, 1, 4]> c = conv(x = a, weight = w2, groups = int32(64));
    tensor<fp16, [32, 64, 1, 2]> w3 = W[4](32, 64, 1, 2);
    tensor<fp16, [1, 32, 1, 3]> d = conv(x = c, weight = w3);
    tensor<fp16, [96, 32]> t = W[5](96, 32);
    tensor<fp16, [1, 5, 32]> rows = gather(x = t, indices = ids, axis = int32(0));
    tensor<fp16, [96, 32, 1, 1]> head = W[5](96, 32, 1, 1);
    tensor<fp16, [1, 96, 1, 3]> logits = conv(x = d, weight = head);
    tensor<fp16, [48, 32]> w6 = W[6](48, 32);
    tensor<fp16, [48]> b6 = W[7](48);
    tensor<fp16, [1, 5, 48]> e = linear(x = rows, weight = w6, bias = b6);
    tensor<fp16, [48, 64]> w8 = W[8](48, 64);
    tensor<fp16, [1, 5, 64]> f = matmul(x = e, y = w8);
    tensor<fp16, [32, 64]> w9 = W[9](32, 64);
    tensor<fp16, [1, 5, 32]> g = matmul(x = f, y = w9, transpose_y = bool(true));
    tensor<fp16, [32, 64, 1, 1]> w10 = W[10](32, 64, 1, 1);
    tensor<fp16, [1, 64, 1, 3]> i = conv_transpose(x = d, weight = w10);
    tensor<fp16, [64, 1, 1]> n = W[11](64, 1, 1);
    tensor<fp16, [1, 64, 1, 3]> j = mul(x = i, y = n);
";

/// The program in an opset; `W[K](shape)` is a constant of noise, whose channels differ in size.
fn program(opset: &str) -> Program {
    let mut body = String::new();
    for line in BODY.lines() {
        match line.split_once("W[") {
            None => body += line,
            Some((before, rest)) => {
                let (key, rest) = rest.split_once("](").unwrap();
                let shape = rest.trim_end_matches(");");
                body += &format!(
                    "{before}const()[val = tensor<fp16, [{shape}]>(BLOBFILE(path = \
                     string(\"noise\"), offset = uint64({key})))];"
                );
            }
        }
        body.push('\n');
    }
    let text = format!(
        "program(1.3) {{ func main<{opset}>(tensor<fp32, [1, 32, 1, 6]> x, tensor<int32, [1, 5]> \
         ids) {{ {body} }} -> (logits, g, j); }}"
    );
    let stored: Vec<Data> = (0..12)
        .map(|key| {
            let mut noise = Noise(key);
            let number = |i: usize| {
                let uniform = (noise.next() % 4096) as f32 / 4096.0 - 0.5;
                uniform * uniform * uniform * (1.0 + (i / 97 % 5) as f32)
            };
            Data::owned(bytes_of(DType::Fp16, (0..4096).map(number)))
        })
        .collect();
    let resolve = |_: &str, offset: u64, ty: &thane_mil::types::TensorType| {
        let Data::Bytes(bytes) = &stored[offset as usize] else {
            return None;
        };
        let len = ty.dtype.byte_len(ty.n_elements()?)?;
        Some(Data::Bytes(bytes.slice(0..len)?))
    };
    parse(&text, &resolve).unwrap()
}

fn compressed(
    program: &Program,
    text: &str,
    scale: Option<Scale>,
) -> Result<(Program, Report), CompressError> {
    let settings = Settings {
        encoding: text.parse().unwrap(),
        scale,
        least: 64,
        ..Settings::default()
    };
    let compression = Compression::new(program, settings, Arc::new(Memory::default()))?;
    compression.run(2, &|_, _| {})?;
    compression.apply(program)
}

fn floats(bytes: &[Vec<u8>]) -> Vec<Vec<f32>> {
    let numbers = |b: &Vec<u8>| {
        let cells = b.as_chunks::<4>().0.iter();
        cells.map(|c| f32::from_ne_bytes(*c)).collect()
    };
    bytes.iter().map(numbers).collect()
}

const ENCODINGS: [&str; 20] = [
    "pal1",
    "pal2",
    "pal3",
    "pal4",
    "pal6",
    "pal8",
    "pal4g8",
    "pal2g1",
    "2x16",
    "4x64",
    "16x16",
    "int8",
    "int8t",
    "int4",
    "int4t",
    "int4b32",
    "sparse50",
    "2:4",
    "sparse60+pal4",
    "2:4+int8",
];

#[test]
fn results_are_those_of_the_decompressed_weights() {
    for opset in ["ios16", "ios17", "ios18"] {
        let program = program(opset);
        let plain = floats(&outputs(&program, "main"));
        for text in ENCODINGS {
            let encoding: Encoding = text.parse().unwrap();
            for scale in [
                None,
                Some(Scale::None),
                Some(Scale::Inside),
                Some(Scale::Behind),
            ] {
                let case = format!("{opset} {text} {scale:?}");
                let needs = encoding.oldest_opset(scale.unwrap_or(Scale::Behind));
                let done = compressed(&program, text, scale);
                if Opset::from_name(opset).unwrap() < needs {
                    let refused = done.unwrap_err().to_string();
                    assert!(
                        refused.contains("expected an opset of ios18 or later"),
                        "{refused}"
                    );
                    continue;
                }
                let (small, report) = done.unwrap();
                valid::check(&small).unwrap_or_else(|e| panic!("{case}: {e:?}"));
                let dense = decompressed(&small);
                valid::check(&dense).unwrap_or_else(|e| panic!("{case}: {e:?}"));
                let (ours, theirs) = (
                    floats(&outputs(&small, "main")),
                    floats(&outputs(&dense, "main")),
                );
                let mut is_changed = false;
                for ((a, b), plain) in ours.iter().zip(&theirs).zip(&plain) {
                    let largest = b.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    let off = a.iter().zip(b).map(|(x, y)| (x - y).abs());
                    let off = off.fold(0.0, f32::max);
                    assert!(off <= 1e-5 * largest, "{case}: {off} of {largest}");
                    is_changed |= a != plain;
                }
                assert!(is_changed, "{case}");
                assert!(report.rows.len() >= 5, "{case}: {:?}", report.left);
            }
        }
    }
}

/// The error of the report is that of the constants that coremltools would decompress too.
#[test]
fn errors_are_those_of_the_values() {
    let program = program("ios18");
    let numbers = |program: &Program, name: &str| {
        let f = &program.functions()[0];
        let mut values = f.values().iter().filter_map(|v| {
            let is_it = v.name.starts_with(name);
            let id = f.all_ops().into_iter().find(|id| {
                f.op(*id)
                    .results
                    .first()
                    .is_some_and(|r| f.value(*r).name == v.name)
            })?;
            let literal = f.constant(f.op(id).results[0])?;
            is_it.then(|| literal.to_floats()).flatten()
        });
        // Several ops may compute it.
        values.next_back().unwrap()
    };
    let before = numbers(&program, "w6");
    let energy: f64 = before.iter().map(|w| f64::from(*w).powi(2)).sum();
    for text in ENCODINGS {
        let (small, report) = compressed(&program, text, Some(Scale::None)).unwrap();
        let Some(row) = report.rows.iter().find(|row| row.name == "w6") else {
            assert!(report.left.iter().any(|left| left.name == "w6"), "{text}");
            continue;
        };
        let dense = decompressed(&small);
        let after = numbers(&dense, "w6_constexpr");
        let off = before
            .iter()
            .zip(&after)
            .map(|(w, q)| f64::from(w - q).powi(2));
        let error = (off.sum::<f64>() / energy).sqrt();
        assert!(
            (error - row.error).abs() < 1e-3 * error + 1e-6,
            "{text}: {error} {}",
            row.error
        );
        assert!(row.bits < 16.0 && row.bytes < row.bytes_before, "{text}");
    }
}

#[test]
fn a_table_and_a_kernel_of_the_same_bytes_share_their_codes() {
    let (small, report) = compressed(&program("ios18"), "pal4", None).unwrap();
    let f = &small.functions()[0];
    let parts = |name: &str| {
        let ops = f.all_ops();
        let mut ops = ops.iter().map(|id| f.op(*id));
        let op = ops.find(|op| {
            let result = op.results.first();
            result.is_some_and(|r| f.value(*r).name.starts_with(name)) && !op.def.is_const()
        });
        ["indices", "lut"].map(|part| match f.literal_arg(op.unwrap(), part) {
            Some(Literal::Tensor(_, data)) => data.clone(),
            other => panic!("{other:?}"),
        })
    };
    let (table, head) = (parts("t_constexpr"), parts("head_constexpr"));
    assert!(table.iter().zip(&head).all(|(a, b)| a.is_same(b)));
    assert_eq!(
        report.rows.iter().filter(|row| row.shape[0] == 96).count(),
        1
    );
    // Rows that are looked up cannot be scaled behind a product.
    let row = report.rows.iter().find(|row| row.shape[0] == 96).unwrap();
    assert_eq!(row.scale, "none");
    assert!(report.rows.iter().any(|row| row.scale == "behind"));
}

/// A table and the kernel that has its bytes are stored in the encoding of tables.
#[test]
fn tables_have_an_encoding_of_their_own() {
    let program = program("ios18");
    let settings = Settings {
        tables: Some("int8".parse().unwrap()),
        head: Some("g"),
        least: 64,
        ..Settings::default()
    };
    let compression = Compression::new(&program, settings, Arc::new(Memory::default())).unwrap();
    let report = compression.apply(&program).unwrap().1;
    for row in &report.rows {
        // `g` is the result that w9 gives.
        let is_table = row.shape[0] == 96 || row.name == "w9";
        let expected = if is_table { "int8" } else { "pal4" };
        assert_eq!(row.encoding, expected, "{}", row.name);
    }
    assert!(report.rows.len() > 5);
}

/// A store that counts what is computed.
#[derive(Default)]
struct Counting(Memory, AtomicUsize);

impl Store for Counting {
    fn load(&self, key: &str) -> Option<Made> {
        self.0.load(key)
    }

    fn save(&self, key: &str, made: Made) -> Made {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.save(key, made)
    }
}

/// Nothing is computed before it is read, and what a store has is not computed again.
#[test]
fn tensors_are_computed_late_and_once() {
    let program = program("ios18");
    let store = Arc::new(Counting::default());
    let settings = Settings {
        scale: Some(Scale::None),
        least: 64,
        ..Settings::default()
    };
    let compression = |program: &Program| {
        Compression::new(program, settings, Arc::clone(&store) as Arc<dyn Store>).unwrap()
    };
    let first = compression(&program);
    let lazy = first.written(&program).unwrap();
    assert_eq!(store.1.load(Ordering::Relaxed), 0);
    let n = first.jobs().unwrap().len();
    let read = outputs(&lazy, "main");
    assert_eq!(store.1.load(Ordering::Relaxed), n);
    let again = compression(&program);
    again.run(2, &|_, _| {}).unwrap();
    assert_eq!(store.1.load(Ordering::Relaxed), n);
    let eager = again.apply(&program).unwrap().0;
    assert_eq!(outputs(&eager, "main"), read);
    assert_eq!(thane_mil::program::difference(&lazy, &eager), None);
}

#[test]
fn what_is_compressed_already_is_left() {
    let (small, _) = compressed(&program("ios18"), "pal4", Some(Scale::Inside)).unwrap();
    let (same, report) = compressed(&small, "pal2", None).unwrap();
    assert!(report.rows.is_empty());
    let again = report
        .left
        .iter()
        .filter(|left| left.reason == "it is compressed already");
    assert!(again.count() >= 8);
    assert_eq!(thane_mil::program::difference(&small, &same), None);
}

/// Any cut of a compressed weight that is not refused is that of its values.
#[test]
fn cuts_are_those_of_the_values() {
    let program = program("ios18");
    for text in ENCODINGS {
        for scale in [Scale::None, Scale::Inside] {
            let (small, _) = compressed(&program, text, Some(scale)).unwrap();
            let dense = decompressed(&small);
            let mut n_cut = 0;
            for (axis, begin, len) in [(0, 0, 16), (0, 16, 32), (1, 0, 32), (0, 3, 7)] {
                let [ours, theirs] = [&small, &dense].map(|program| cut(program, axis, begin, len));
                let Ok(ours) = ours else { continue };
                n_cut += 1;
                let case = format!("{text} {scale:?} {axis} {begin}..+{len}");
                assert_eq!(ours, theirs.unwrap(), "{case}");
            }
            assert!(n_cut >= 2, "{text}: {n_cut}");
        }
    }
}

/// The numbers of a part of the weight of the linear op.
fn cut(program: &Program, axis: usize, begin: usize, len: usize) -> Result<Vec<f32>, &'static str> {
    let f = &program.functions()[0];
    let graph = Graph::new(f);
    let ops = f.all_ops();
    let linear = *ops
        .iter()
        .find(|id| f.op(**id).def.name == "linear")
        .unwrap();
    let part = Weight::of(&graph, f.op(linear), "weight")?.slice(axis, begin, len)?;
    let rewrite = Rewrite::new(&graph, Match::of(f, linear), "cut");
    part.write(&rewrite);
    let mut out = program.clone();
    rewrite.finish().apply_to(&mut out, 0).unwrap();
    // New ops stand before the op, the last of them computes the part.
    let f = &out.functions()[0];
    let ops = f.all_ops();
    let at = ops.iter().position(|id| *id == linear).unwrap();
    let name = f.value(f.op(ops[at - 1]).results[0]).name.clone();
    let dense = decompressed(&out);
    let f = &dense.functions()[0];
    let is_it = |of: &str| of == name || of == format!("{name}_dense");
    let found = f.all_ops().into_iter().find_map(|id| {
        let result = *f.op(id).results.first()?;
        is_it(&f.value(result).name).then(|| f.constant(result)?.to_floats())?
    });
    Ok(found.unwrap())
}
