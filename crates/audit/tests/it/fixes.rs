//! The fixes of the audit: `tests/fixes/*.mil`, one file a fix, each function of which it must
//! rewrite; the programs in their docs; and the same over random lengths, no two of them alike.
//!
//! After `// after:` a file has what the fix makes of it and what it says of that; `BLESS=1` writes
//! that part anew, to be read before it is committed. Constants come from no file: a `BLOBFILE`
//! names what it is filled with, and a seed.

use std::path::{Path, PathBuf};

use thane_audit::View;
use thane_audit::fix::{self, FIXES, Fix, Forms, Numbers, Options, Proof, Prover, Report, Verdict};
use thane_audit::rules::{all, find};
use thane_audit::target::{Route, Target, Units};
use thane_cpu::OpByOp;
use thane_mil::program::{Function, Program};
use thane_mil::text::{Blobs, parse, print};
use thane_mil::valid;
use thane_prove::{ByRunning, Settings};

use crate::constants::constant;

const MARK: &str = "// after:\n";

/// The CPU, as the command uses it without `--lossy`.
pub fn on_cpu() -> ByRunning<'static, OpByOp> {
    ByRunning::new(
        OpByOp::new(1, None),
        Settings {
            ..Settings::default()
        },
    )
}

/// The CPU, as the command uses it with `--lossy`.
pub fn within(max_error: f64) -> ByRunning<'static, OpByOp> {
    ByRunning::new(
        OpByOp::new(1, None),
        Settings {
            max_error: Some(max_error),
            ..Settings::default()
        },
    )
}

/// What fixtures of lossy rewrites are allowed.
const LOSSY: f64 = 0.02;

fn prover(numbers: Numbers) -> ByRunning<'static, OpByOp> {
    if numbers == Numbers::Exact {
        on_cpu()
    } else {
        within(LOSSY)
    }
}

/// Whether one rewrite of a function computes what the function does.
pub fn prove(before: &Function, after: &Function, numbers: Numbers) -> Proof {
    prover(numbers).prove(
        &Forms {
            original: before,
            before,
            after,
            is_lossy: false,
        },
        numbers,
    )
}

/// Whether a proof is what the numbers of a fix ask for.
pub fn is_proof(proof: &Proof, numbers: Numbers) -> bool {
    match (proof, numbers) {
        (Proof::Equal(how), Numbers::Exact) => !how.is_empty(),
        (Proof::Lossy { error, how }, Numbers::Lossy) => *error <= LOSSY && how.contains("off by"),
        _ => false,
    }
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn program(text: &str) -> Program {
    let program = parse(text, &constant).unwrap_or_else(|e| panic!("{e}\n{text}"));
    valid::check(&program).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    program
}

/// What a first line `// target: m1+macos15 direct` says.
fn target(text: &str) -> Target {
    let line = text
        .lines()
        .find_map(|l| l.trim().strip_prefix("// target: "))
        .unwrap_or("m4+macos27");
    let mut words = line.split(' ');
    let (name, route) = (words.next().unwrap(), words.next());
    let route = if route == Some("direct") {
        Route::Direct
    } else {
        Route::CoreMl
    };
    Target::parse(name, Units::default(), route).unwrap()
}

fn apply(fix: &Fix, program: &Program, target: &Target) -> (Program, Report) {
    let options = Options {
        only: Some(fix.name),
        ..Options::default()
    };
    let (program, report) =
        fix::run(program.clone(), target, &options, &mut prover(fix.numbers)).unwrap();
    valid::check(&program).unwrap_or_else(|e| panic!("{}: {e:?}", fix.name));
    (program, report)
}

/// Whether each function was changed, and every change proven.
fn is_fixed(fix: &Fix, program: &Program, report: &Report) -> Result<(), String> {
    for f in program.functions() {
        let mut kept = report
            .kept()
            .filter(|s| s.function == f.name && s.fix == fix.name);
        let Some(step) = kept.next() else {
            let why: Vec<String> = report
                .rejected()
                .map(|s| format!("{}: {:?}", s.function, s.verdict))
                .collect();
            return Err(format!(
                "{} left {} as it is:\n{report}\n{}",
                fix.name,
                f.name,
                why.join("\n")
            ));
        };
        if !matches!(&step.verdict, Verdict::Kept(proof) if is_proof(proof, fix.numbers)) {
            return Err(format!("{}: {}: not proven:\n{report}", fix.name, f.name));
        }
    }
    match report.rejected().next() {
        None => Ok(()),
        Some(step) => Err(format!("{}: {step}", fix.name)),
    }
}

/// How often the rules of a fix fire in a function.
fn n_fired(fix: &Fix, program: &Program, function: &str, target: &Target) -> usize {
    let view = View::new(program, program.function(function).unwrap(), target);
    find(&view)
        .iter()
        .filter(|f| fix.rules.contains(&f.rule.id))
        .count()
}

/// Takes ten seconds or so: attention is tiled from 1,500 positions on, outputs are split above
/// 16,384, and the engine's numbers are made op by op.
#[test]
fn fixes_do_what_their_files_say() {
    let mut wrong = Vec::new();
    for fix in FIXES {
        let path = folder()
            .join("tests/fixes")
            .join(fix.name)
            .with_extension("mil");
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (source, expected) = text.split_once(MARK).unwrap_or((&text, ""));
        let (before, target) = (program(source), target(source));
        let (after, report) = apply(fix, &before, &target);
        if let Err(why) = is_fixed(fix, &before, &report) {
            wrong.push(why);
            continue;
        }
        for f in before.functions() {
            // Of outputs that are split the join remains.
            let (n, m) = (
                n_fired(fix, &before, &f.name, &target),
                n_fired(fix, &after, &f.name, &target),
            );
            assert!(
                n > 0 && (m < n || fix.name == "split_outputs"),
                "{}: {}: {n} findings, then {m}",
                fix.name,
                f.name
            );
        }
        let found: String = print(&after, &mut Blobs::default())
            .lines()
            .map(|l| format!("// {l}\n"))
            .collect();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, format!("{source}{MARK}{found}")).unwrap();
        } else {
            assert_eq!(found, expected, "{}; BLESS=1 rewrites it", path.display());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fix_has_a_file_and_answers_rules_that_there_are() {
    let read = std::fs::read_dir(folder().join("tests/fixes")).unwrap();
    let mut files: Vec<String> = read
        .map(|e| {
            e.unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    files.sort();
    let mut names: Vec<&str> = FIXES.iter().map(|f| f.name).collect();
    names.sort_unstable();
    assert_eq!(files, names, "a file each, and a fix for each file");
    for id in FIXES.iter().flat_map(|f| f.rules) {
        assert!(all().any(|r| r.id == *id), "no rule {id}");
    }
}

/// The first block fenced as text in the doc of a source file.
fn doc_block(source: &str) -> String {
    let doc: Vec<&str> = source
        .lines()
        .map_while(|l| l.strip_prefix("//!"))
        .collect();
    let mut parts = doc.split(|l| l.trim().starts_with("```"));
    parts.nth(1).unwrap_or_default().join("\n")
}

/// What docs show is legal, and the fix has an answer where a rule of it fires.
#[test]
fn docs_of_fixes_show_programs_that_they_rewrite() {
    for fix in FIXES {
        let path = folder()
            .join("crates/compile/src/fixes")
            .join(fix.name)
            .with_extension("rs");
        let block = doc_block(&std::fs::read_to_string(&path).unwrap());
        let before = program(&format!("program(1.3) {{ {block} }}"));
        let file = std::fs::read_to_string(
            folder()
                .join("tests/fixes")
                .join(fix.name)
                .with_extension("mil"),
        )
        .unwrap();
        let target = target(&file);
        let view = View::new(&before, &before.functions()[0], &target);
        let answers = before.functions()[0]
            .body()
            .ops
            .iter()
            .filter(|op| fix.answer(&view, fix::limits(&target), **op).is_ok())
            .count();
        assert!(
            answers > 0,
            "{}: the fix has no answer for the program of its doc",
            fix.name
        );
    }
}

/// Lengths without a pattern, no two alike in one program.
struct Lengths {
    state: u64,
    taken: Vec<usize>,
}

impl Lengths {
    fn draw(&mut self, from: usize, to: usize) -> usize {
        loop {
            self.state = self
                .state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let n = from + (self.state >> 33) as usize % (to - from);
            if !self.taken.contains(&n) {
                self.taken.push(n);
                return n;
            }
        }
    }
}

/// A body with letters in braces for lengths: `{a:2-9}` where one is drawn, `{a}` and sums such as
/// `{a+3}`, `{a*b}` after it.
fn filled(template: &str, seed: u64) -> String {
    let mut lengths = Lengths {
        state: seed,
        taken: Vec::new(),
    };
    let mut drawn: Vec<(String, usize)> = vec![("seed".to_owned(), seed as usize)];
    let mut out = String::new();
    for part in template.split('{') {
        let Some((inside, rest)) = part.split_once('}') else {
            out.push_str(part);
            continue;
        };
        if let Some((name, range)) = inside.split_once(':') {
            let (from, to) = range.split_once('-').unwrap();
            drawn.push((
                name.to_owned(),
                lengths.draw(from.parse().unwrap(), to.parse().unwrap()),
            ));
            out.push_str(&drawn.last().unwrap().1.to_string());
        } else {
            let value = |word: &str| {
                drawn
                    .iter()
                    .find(|(n, _)| n == word)
                    .map(|d| d.1)
                    .or_else(|| word.parse().ok())
            };
            let product = |term: &str| {
                term.split('*')
                    .map(|word| value(word).unwrap())
                    .product::<usize>()
            };
            let n = inside.split('+').map(product).sum::<usize>();
            out.push_str(&n.to_string());
        }
        out.push_str(rest);
    }
    out
}

/// Fixes whose answers depend on lengths: a program of which each op that the fix answers is
/// rewritten at once.
const TEMPLATES: &[(&str, &str)] = &[
    ("lower_matmul", "tensor<fp16, [{a:2-9}, {b:2-9}, {k:9-40}]> x | y
        tensor<fp16, [{n:40-70}, {k}]> w = const()[val = tensor<fp16, [{n}, {k}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))];
        tensor<fp16, [{n}]> b = const()[val = tensor<fp16, [{n}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+9})))];
        tensor<fp16, [{n}, {m:70-99}]> v = const()[val = tensor<fp16, [{n}, {m}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+1})))];
        tensor<fp16, [{a}, {b}, {n}]> h = linear(x = x, weight = w, bias = b);
        tensor<fp16, [{a}, {b}, {n}]> g = gelu(x = h, mode = string(\"TANH_APPROXIMATION\"));
        tensor<fp16, [{a}, {b}, {m}]> y = matmul(x = g, y = v);"),
    ("split_contraction", "tensor<fp16, [2, {k:4100-4999}, {h:2-4}, {w:4-6}]> x, tensor<fp16, [{r:9-14}, {k}]> z, tensor<fp16, [{c:14-20}, {k}]> u | y, q, t
        tensor<fp16, [2, {k}, {h}, {w}]> xc = clip(x = x, alpha = fp16(-0x1p+1), beta = fp16(0x1p+1));
        tensor<fp16, [{r}, {k}]> zc = clip(x = z, alpha = fp16(-0x1p+1), beta = fp16(0x1p+1));
        tensor<fp16, [{c}, {k}]> uc = clip(x = u, alpha = fp16(-0x1p+1), beta = fp16(0x1p+1));
        tensor<fp16, [{n:20-24}, {k}, 2, 1]> f = const()[val = tensor<fp16, [{n}, {k}, 2, 1]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))];
        tensor<fp16, [{n}]> b = const()[val = tensor<fp16, [{n}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+9})))];
        tensor<fp16, [{m:30-40}, {k}]> g = const()[val = tensor<fp16, [{m}, {k}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+1})))];
        tensor<fp16, [2, {n}, {h+1}, {w}]> y = conv(x = xc, weight = f, bias = b, pad = tensor<int32, [4]>([1, 1, 0, 0]), pad_type = string(\"custom\"));
        tensor<fp16, [{r}, {m}]> q = linear(x = zc, weight = g);
        tensor<fp16, [{r}, {c}]> t = matmul(x = zc, y = uc, transpose_y = bool(true));"),
    ("group_heads", "tensor<fp16, [{b:2-4}]> one, tensor<fp16, [{n:3-5}]> two, tensor<fp16, [{g:5-8}]> three, tensor<fp16, [{b}, {n*g}, {t:9-14}, {d:14-20}]> q, tensor<fp16, [{b}, {n}, {s:20-30}, {d}]> k | y
        tensor<fp16, [{b}, {n}, 1, {s}, {d}]> e = reshape(x = k, shape = tensor<int32, [5]>([{b}, {n}, 1, {s}, {d}]));
        tensor<fp16, [{b}, {n}, {g}, {s}, {d}]> c = tile(x = e, reps = tensor<int32, [5]>([1, 1, {g}, 1, 1]));
        tensor<fp16, [{b}, {n*g}, {s}, {d}]> r = reshape(x = c, shape = tensor<int32, [4]>([{b}, {n*g}, {s}, {d}]));
        tensor<fp16, [{b}, {n*g}, {t}, {s}]> y = matmul(x = q, y = r, transpose_y = bool(true));"),
    ("pad_channels", "tensor<fp16, [{a:2-9}, {b:9-14}, {k:14-30}]> x, tensor<fp16, [{m:1-4}]> one | y, h, z
        tensor<fp16, [{n:40-60}, {k}]> w = const()[val = tensor<fp16, [{n}, {k}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))];
        tensor<fp16, [{n}]> g = const()[val = tensor<fp16, [{n}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+9})))];
        tensor<fp16, [{n}, {m*32}]> v = const()[val = tensor<fp16, [{n}, {m*32}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+1})))];
        tensor<fp16, [{a}, {b}, {n}]> h = linear(x = x, weight = w, bias = g);
        tensor<fp16, [{a}, {b}, {n}]> e = silu(x = h);
        tensor<fp16, [{a}, {b}, {n}]> s = mul(x = g, y = e);
        tensor<fp16, [{a}, {b}, {n}]> t = maximum(x = s, y = fp16(-0x1p-2));
        tensor<fp16, [{a}, {b}, {m*32}]> y = matmul(x = t, y = v);
        tensor<fp16, [{a}, {b}]> z = reduce_max(x = t, axes = tensor<int32, [1]>([2]), keep_dims = bool(false));"),
    ("tile_attention", "tensor<fp16, [2, {h:3-5}, {r:513-700}, {d:6-9}]> q, tensor<fp16, [2, {h}, {c:9-30}, {d}]> k, tensor<fp16, [2, {h}, {c}, {e:30-40}]> v, tensor<fp16, [{r}, {c}]> mask | y, z
        tensor<fp16, [2, {h}, {r}, {e}]> y = scaled_dot_product_attention(query = q, key = k, value = v, attn_mask = mask);
        tensor<fp16, [2, {h}, {r}, {c}]> s = matmul(x = q, y = k, transpose_y = bool(true));
        tensor<fp16, [2, {h}, {r}, {c}]> m = add(x = mask, y = s);
        tensor<fp16, [2, {h}, {r}, {c}]> p = softmax(x = m, axis = int32(3));
        tensor<fp16, [2, {h}, {r}, {e}]> z = matmul(x = p, y = v);"),
    ("expand_softmax", "tensor<fp16, [2, {h:3-5}, {r:5-70}, {d:6-9}]> x, tensor<fp16, [2, {h}, {c:80-90}, {d}]> k, tensor<fp16, [2, {h}, {c}, {e:30-40}]> v, tensor<fp16, [{r}, {c}]> mask | y
        tensor<fp16, [2, {h}, {r}, {d}]> q = clip(x = x, alpha = fp16(-0x1p+1), beta = fp16(0x1p+1));
        tensor<fp16, [2, {h}, {c}, {d}]> j = clip(x = k, alpha = fp16(-0x1p+1), beta = fp16(0x1p+1));
        tensor<fp16, [{r}, {c}]> n = clip(x = mask, alpha = fp16(-0x1p+4), beta = fp16(0x0p+0));
        tensor<fp16, [2, {h}, {r}, {c}]> s = matmul(x = q, y = j, transpose_y = bool(true));
        tensor<fp16, [2, {h}, {r}, {c}]> m = add(x = n, y = s);
        tensor<fp16, [2, {h}, {r}, {c}]> p = softmax(x = m, axis = int32(3));
        tensor<fp16, [2, {h}, {r}, {e}]> y = matmul(x = p, y = v);"),
    ("split_outputs", "tensor<fp16, [{a:2-5}, {k:5-9}]> x, tensor<fp16, [1, {c:9-14}, 1, 2]> z | y, t, q
        tensor<fp16, [{n:16400-17000}, {k}]> w = const()[val = tensor<fp16, [{n}, {k}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))];
        tensor<fp16, [{n}]> b = const()[val = tensor<fp16, [{n}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+9})))];
        tensor<fp16, [{k}, {m:17000-18000}]> v = const()[val = tensor<fp16, [{k}, {m}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+1})))];
        tensor<fp16, [{o:65537-66000}, {c}, 1, 1]> f = const()[val = tensor<fp16, [{o}, {c}, 1, 1]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+2})))];
        tensor<fp16, [{a}, {n}]> y = linear(x = x, weight = w, bias = b);
        tensor<fp16, [{a}, {m}]> t = matmul(x = x, y = v);
        tensor<fp16, [1, {o}, 1, 2]> q = conv(x = z, weight = f);"),
    ("split_kernel", "tensor<fp16, [{a:2-4}, {c:4-7}, {h:20-24}, {w:31-40}]> x | y
        tensor<fp16, [{a}, {c}, {h}, {w}]> k = clip(x = x, alpha = fp16(-0x1p+1), beta = fp16(0x1p+1));
        tensor<fp16, [{n:7-9}, {c}, {i:9-12}, {j:12-30}]> f = const()[val = tensor<fp16, [{n}, {c}, {i}, {j}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))];
        tensor<fp16, [{n}]> b = const()[val = tensor<fp16, [{n}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+9})))];
        tensor<fp16, [{a}, {n}, {h}, {w}]> y = conv(x = k, weight = f, bias = b, pad_type = string(\"same\"));"),
    ("split_pool", "tensor<fp16, [{a:2-4}, {c:4-7}, {h:40-60}, {w:70-99}]> x | y, z
        tensor<fp16, [{a}, {c}, {h}, {w}]> y = max_pool(x = x, kernel_sizes = tensor<int32, [2]>([{i:7-30}, {j:31-40}]), strides = tensor<int32, [2]>([1, 1]), pad_type = string(\"same\"));
        tensor<fp16, [{a}, {c}, {h}, {w}]> z = max_pool(x = x, kernel_sizes = tensor<int32, [2]>([1, {m:9-29}]), strides = tensor<int32, [2]>([1, 1]), pad_type = string(\"same_lower\"));"),
    ("scale_rms_norm", "tensor<fp16, [{a:2-9}, {k:64-200}, {b:9-14}]> x | y
        tensor<fp16, [{k}, 1]> w = const()[val = tensor<fp16, [{k}, 1]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))];
        tensor<fp16, [{a}, {k}, {b}]> q = square(x = x);
        tensor<fp16, [{a}, 1, {b}]> m = reduce_mean(x = q, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));
        tensor<fp16, [{a}, 1, {b}]> e = add(x = m, y = fp16(0x1p-10));
        tensor<fp16, [{a}, 1, {b}]> r = rsqrt(x = e, epsilon = fp16(0x0p+0));
        tensor<fp16, [{a}, {k}, {b}]> n = mul(x = r, y = x);
        tensor<fp16, [{a}, {k}, {b}]> y = mul(x = n, y = w);"),
    ("expand_cumsum", "tensor<fp16, [{a:2-9}, {k:9-40}, {b:40-50}]> x | y, z
        tensor<fp16, [{a}, {k}, {b}]> y = cumsum(x = x, axis = int32(1), exclusive = bool(true), reverse = bool(false));
        tensor<fp16, [{a}, {k}, {b}]> z = cumsum(x = x, axis = int32(2), exclusive = bool(false), reverse = bool(true));"),
    ("expand_argmax", "tensor<fp16, [{a:2-9}, {k:9-400}, {b:20-40}]> x | y, z
        tensor<int32, [{a}, {b}]> y = reduce_argmax(x = x, axis = int32(1), keep_dims = bool(false));
        tensor<int32, [1, {k}, {b}]> z = reduce_argmin(x = x, axis = int32(0), keep_dims = bool(true));"),
    ("lower_gather", "tensor<int32, [{a:2-9}, {b:9-14}]> i | y
        tensor<fp16, [{v:50-900}, {k:14-30}]> t = const()[val = tensor<fp16, [{v}, {k}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))];
        tensor<fp16, [{a}, {b}, {k}]> y = gather(x = t, indices = i, axis = int32(0));"),
    ("expand_reduce", "tensor<fp16, [{a:2-9}, {k:9-16}, {b:16-30}]> x | y, z
        tensor<fp16, [{a}, {b}]> y = reduce_max(x = x, axes = tensor<int32, [1]>([1]), keep_dims = bool(false));
        tensor<fp16, [1, {k}, {b}]> z = reduce_min(x = x, axes = tensor<int32, [1]>([0]), keep_dims = bool(true));"),
    ("lower_reduce", "tensor<fp16, [{a:2-9}, {k:9-40}, {b:90-120}]> x | y
        tensor<fp16, [{a}, {k}, {b}]> c = clip(x = x, alpha = fp16(-0x1p+5), beta = fp16(0x1p+5));
        tensor<fp16, [{a}, {b}]> y = reduce_mean(x = c, axes = tensor<int32, [1]>([1]), keep_dims = bool(false));"),
    ("merge_batch_axes", "tensor<fp16, [{a:2-5}, {b:5-7}, {c:7-9}, {d:9-12}, {k:12-20}]> x, tensor<fp16, [{a}, {b}, 1, {k}, {e:20-30}]> z | y
        tensor<fp16, [{a}, {b}, {c}, {d}, {e}]> y = matmul(x = x, y = z);"),
    ("fold_transpose", "tensor<fp16, [{a:2-5}, {b:5-7}, {k:7-20}]> x, tensor<fp16, [{a}, {c:20-30}, {k}]> z | y
        tensor<fp16, [{a}, {k}, {c}]> t = transpose(x = z, perm = tensor<int32, [3]>([0, -1, 1]));
        tensor<fp16, [{a}, {b}, {c}]> y = matmul(x = x, y = t);"),
    ("narrow_floats", "tensor<fp32, [{a:2-5}, {b:5-7}, {k:7-20}]> z | y
        tensor<fp32, [{a}, {b}, {k}]> x = clip(x = z, alpha = fp32(-0x1p+2), beta = fp32(0x1p+2));
        tensor<fp32, [{n:20-30}, {k}]> w = const()[val = tensor<fp32, [{n}, {k}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))];
        tensor<fp32, [{n}]> g = const()[val = tensor<fp32, [{n}]>(BLOBFILE(path = string(\"noise\"), offset = uint64({seed+9})))];
        tensor<fp32, [{a}, {b}, {n}]> h = linear(x = x, weight = w, bias = g);
        tensor<fp32, [{a}, {b}, {n}]> l = layer_norm(x = h, axes = tensor<int32, [1]>([2]), gamma = g, epsilon = fp32(0x1p-17));
        tensor<fp32, [{a}, {b}, {n}]> y = silu(x = l);"),
];

/// Whatever the lengths are: the rewrite of every op that has one, at once, computes the same.
#[test]
fn rewrites_of_any_lengths_compute_the_same() {
    // The chip with the shortest axes.
    let target = Target::parse("m1", Units::default(), Route::default()).unwrap();
    for (name, template) in TEMPLATES {
        let fix = FIXES.iter().find(|f| f.name == *name).unwrap();
        for seed in 1..=4 {
            let text = filled(template, seed);
            let (inputs, rest) = text.split_once('|').unwrap();
            let (outputs, body) = rest.split_once('\n').unwrap();
            let before = program(&format!(
                "program(1.3) {{ func f<ios18>({inputs}) {{ {body} }} -> ({outputs}); }}"
            ));
            let f = &before.functions()[0];
            let view = View::new(&before, f, &target);
            let mut whole = thane_mil::edit::Patch::new();
            let answers = f
                .body()
                .ops
                .iter()
                .filter(|id| !f.op(**id).def.is_const())
                .filter_map(|id| fix.answer(&view, fix::limits(&target), *id).ok());
            answers.for_each(|patch| whole.append(patch));
            assert!(!whole.is_empty(), "{name}: no answer for\n{text}");
            let mut after = f.clone();
            whole
                .apply(&mut after)
                .unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
            valid::check(&Program::new(vec![after.clone()]))
                .unwrap_or_else(|e| panic!("{name}: {e:?}\n{text}"));
            let proof = prove(f, &after, fix.numbers);
            assert!(is_proof(&proof, fix.numbers), "{name}: {proof:?}\n{text}");
        }
    }
}
