//! `thane diff`: in what two packages differ: structure, constants, numbers.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_mil::backend::{Backend, View};
use thane_mil::literal::{Literal, f16_to_f32};
use thane_mil::package::Package;
use thane_mil::program::{Arg, Function, Program};
use thane_mil::types::{DType, Type};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::model::{NumericsFlag, cpu};
use crate::output::counted;
use crate::tensors;

/// Compare two Core ML packages: structure, constants, and what they compute.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An .mlpackage or .mlmodelc folder.
    a: PathBuf,
    /// Another.
    b: PathBuf,
    /// Made-up inputs follow from this number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    random_seed: u64,
    /// Do not run the functions.
    #[arg(long, value_parser = clap::builder::FalseyValueParser::new())]
    no_run: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    a: &'a Path,
    b: &'a Path,
    /// Whether nothing differs.
    equal: bool,
    /// Functions, inputs, outputs, ops.
    structure: Vec<String>,
    /// Constants of one name with other types or numbers.
    constants: Vec<String>,
    /// Outputs of functions on the same made-up inputs.
    numbers: Vec<Numbers>,
}

/// How far the two results of one output are from each other.
#[derive(Serialize)]
struct Numbers {
    function: String,
    output: String,
    /// The largest difference of two elements; JSON has null where it is infinite.
    max_error: f64,
    /// The norm of the difference over the norm of the first; JSON has null where it is no number.
    relative_error: f64,
    /// Why they cannot be compared; null where they can.
    reason: Option<String>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let open = |path: &Path| Package::open(path).map_err(|e| Failure::new(Code::Usage, e));
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let mut report = Report {
        a: &args.a,
        b: &args.b,
        equal: false,
        structure: Vec::new(),
        constants: Vec::new(),
        numbers: Vec::new(),
    };
    let names = |p: &Package| p.program.functions().iter().map(|f| f.name.clone()).collect::<Vec<_>>();
    let only = |x: &Package, y: &Package, which: &str| -> Vec<String> {
        let missing = names(x).into_iter().filter(|n| y.program.function(n).is_none());
        missing.map(|n| format!("function `{n}` is in {which} only")).collect()
    };
    report.structure.extend(only(&a, &b, "the first"));
    report.structure.extend(only(&b, &a, "the second"));
    for f in a.program.functions() {
        let Some(g) = b.program.function(&f.name) else { continue };
        structure(f, g, &mut report.structure);
        constants(f, g, &mut report.constants);
        if !args.no_run {
            report.numbers.extend(numbers(f, g, [&a, &b], args.random_seed, app));
        }
    }
    let same = |n: &Numbers| n.max_error == 0.0 && n.reason.is_none();
    let whole = thane_mil::program::difference(&a.program, &b.program);
    if report.structure.is_empty() && report.constants.is_empty() {
        report.structure.extend(whole);
    }
    report.equal = report.structure.is_empty() && report.constants.is_empty() && report.numbers.iter().all(same);
    if app.output.is_json() {
        app.output.json(&report)?;
    } else {
        app.output.data(&text(&report))?;
    }
    // As of diff(1): what differs is no success.
    if report.equal { Ok(()) } else { Err(Failure::new(Code::Other, anyhow::anyhow!("the packages differ"))) }
}

/// Inputs, outputs, and how many ops there are of each kind.
fn structure(f: &Function, g: &Function, out: &mut Vec<String>) {
    let mut say = |what: String| out.push(format!("{}: {what}", f.name));
    if f.opset != g.opset {
        say(format!("opset {} and {}", f.opset.name(), g.opset.name()));
    }
    let ports = |f: &Function, values: &[thane_mil::program::ValueId]| -> BTreeMap<String, String> {
        values.iter().map(|v| (f.value(*v).name.clone(), f.value(*v).ty.to_string())).collect()
    };
    for (what, x, y) in [
        ("input", ports(f, &f.body().inputs), ports(g, &g.body().inputs)),
        ("output", ports(f, &f.body().outputs), ports(g, &g.body().outputs)),
    ] {
        for (name, x, y) in pairs(&x, &y) {
            let show = |ty: Option<&String>| ty.map_or("missing".to_owned(), Clone::clone);
            say(format!("{what} `{name}`: {} and {}", show(x), show(y)));
        }
    }
    let ops = |f: &Function| -> BTreeMap<&'static str, usize> {
        let mut out = BTreeMap::new();
        f.all_ops().into_iter().for_each(|id| *out.entry(f.op(id).def.name).or_insert(0) += 1);
        out
    };
    for (op, x, y) in pairs(&ops(f), &ops(g)) {
        let show = |n: Option<&usize>| n.copied().unwrap_or(0);
        say(format!("op `{op}`: {} and {}", counted(show(x), "time"), counted(show(y), "time")));
    }
}

/// The entries of two tables that are not the same in both.
fn pairs<'a, K: Ord, V: PartialEq>(
    x: &'a BTreeMap<K, V>,
    y: &'a BTreeMap<K, V>,
) -> Vec<(&'a K, Option<&'a V>, Option<&'a V>)> {
    let mut keys: Vec<&K> = x.keys().chain(y.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter().map(|k| (k, x.get(k), y.get(k))).filter(|(_, a, b)| a != b).collect()
}

fn constants(f: &Function, g: &Function, out: &mut Vec<String>) {
    let table = |f: &'_ Function| -> HashMap<String, Literal> {
        let consts = f.all_ops().into_iter().map(|id| f.op(id)).filter(|op| op.def.is_const());
        let named = consts.filter_map(|op| match op.args.first() {
            Some(Some(Arg::Literal(l))) => Some((f.value(op.results[0]).name.clone(), l.clone())),
            _ => None,
        });
        named.collect()
    };
    let others = table(g);
    let mut mine: Vec<(String, Literal)> = table(f).into_iter().collect();
    mine.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, literal) in mine {
        match others.get(&name) {
            Some(other) if other.ty() != literal.ty() => {
                out.push(format!("{}: `{name}` is {} and {}", f.name, literal.ty(), other.ty()));
            }
            Some(other) if *other != literal => out.push(format!("{}: the numbers of `{name}` differ", f.name)),
            _ => {}
        }
    }
}

fn numbers(f: &Function, g: &Function, packages: [&Package; 2], seed: u64, app: &App) -> Vec<Numbers> {
    let failed = |reason: String| {
        let function = f.name.clone();
        vec![Numbers { function, output: String::new(), max_error: 0.0, relative_error: 0.0, reason: Some(reason) }]
    };
    let run = |f: &Function, package| results(f, package, seed, app);
    match (run(f, packages[0]), run(g, packages[1])) {
        (Ok(x), Ok(y)) => x.iter().filter_map(|(name, a)| Some(compare(f, name, a, y.get(name)?))).collect(),
        (Err(e), _) => failed(format!("the first does not run: {e:#}")),
        (_, Err(e)) => failed(format!("the second does not run: {e:#}")),
    }
}

fn compare(f: &Function, output: &str, a: &[f64], b: &[f64]) -> Numbers {
    let sums = a.iter().zip(b).fold((0.0f64, 0.0f64, 0.0f64), |(most, error, norm), (x, y)| {
        let d = if x == y || x.is_nan() && y.is_nan() { 0.0 } else { (x - y).abs() };
        (if d.is_nan() { f64::INFINITY } else { most.max(d) }, error + d * d, norm + x * x)
    });
    let (max_error, error, norm) = sums;
    let relative_error = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
    let reason =
        (a.len() != b.len()).then(|| format!("{} and {}", counted(a.len(), "element"), counted(b.len(), "element")));
    Numbers { function: f.name.clone(), output: output.to_owned(), max_error, relative_error, reason }
}

/// The outputs of a function on made-up inputs.
fn results(f: &Function, package: &Package, seed: u64, app: &App) -> anyhow::Result<BTreeMap<String, Vec<f64>>> {
    let executable = cpu(NumericsFlag::F32, None, app).load(&Program::new(vec![f.clone()]))?;
    let mut instance = executable.instantiate()?;
    for value in f.body().inputs.iter().map(|v| f.value(*v)) {
        let Type::Tensor(ty) = &value.ty else { continue };
        let feature = package.interfaces.get(&f.name).and_then(|i| i.features.get(&value.name));
        let default = feature.and_then(|f| f.shape.default_shape());
        let shape = tensors::shape(ty, None, default)
            .unwrap_or_else(|| ty.shape.iter().map(|d| d.known().unwrap_or(1)).collect());
        let bytes = tensors::random(seed, &value.name, ty.dtype, &shape)
            .ok_or_else(|| anyhow::anyhow!("input `{}` of {ty} cannot be made up", value.name))?;
        instance.input(&value.name, &shape)?.copy_from_slice(&bytes);
    }
    instance.run(&f.name)?;
    let outputs = f.body().outputs.iter().map(|v| &f.value(*v).name);
    outputs.map(|name| Ok((name.clone(), floats(instance.output(name)?)))).collect()
}

fn floats(view: View<'_>) -> Vec<f64> {
    match view.dtype {
        DType::Fp32 => view.bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        DType::Fp16 => view.bytes.as_chunks().0.iter().map(|b| f64::from(f16_to_f32(u16::from_le_bytes(*b)))).collect(),
        DType::Int32 => view.bytes.as_chunks().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect(),
        DType::Int16 => view.bytes.as_chunks().0.iter().map(|b| f64::from(i16::from_le_bytes(*b))).collect(),
        DType::Uint16 => view.bytes.as_chunks().0.iter().map(|b| f64::from(u16::from_le_bytes(*b))).collect(),
        DType::Int8 => view.bytes.iter().map(|b| f64::from(b.cast_signed())).collect(),
        _ => view.bytes.iter().map(|b| f64::from(*b)).collect(),
    }
}

fn text(r: &Report<'_>) -> String {
    let mut lines: Vec<String> = r.structure.iter().chain(&r.constants).cloned().collect();
    for n in &r.numbers {
        lines.push(match &n.reason {
            Some(reason) => format!("{}: {reason}", n.function),
            None if n.max_error == 0.0 => format!("{}: `{}` has the same numbers", n.function, n.output),
            None => format!(
                "{}: `{}` differs by {:.3e} at most, {:.3e} relative",
                n.function, n.output, n.max_error, n.relative_error
            ),
        });
    }
    if r.equal {
        lines.push("the packages are equal".to_owned());
    }
    lines.join("\n") + "\n"
}
