//! `thane diff`: in what two packages differ: structure, constants, numbers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use thane_mil::backend::{Backend, View};
use thane_mil::budget::{OverBudget, Reservation};
use thane_mil::literal::{Literal, f16_to_f32};
use thane_mil::package::Package;
use thane_mil::program::{Arg, Function, Program};
use thane_mil::types::{DType, Type};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::model::{NumericsFlag, cpu};
use crate::output::counted;
use crate::{source, tensors};

/// Compare two Core ML packages: structure, constants, and what they compute.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An .mlpackage or .mlmodelc folder, or a .mil file with its weights.
    a: PathBuf,
    /// Another.
    b: PathBuf,
    /// Made-up inputs follow from this number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    random_seed: u64,
    /// Give inputs and states from NAME.npy in this folder.
    ///
    /// Inputs without a file are made up, states are zeros.
    #[arg(long, value_name = "DIR")]
    inputs: Option<PathBuf>,
    /// Accept numbers that are near, whatever else differs.
    ///
    /// An output may differ by X times the largest magnitude that it has in the first package.
    #[arg(long, value_name = "X", value_parser = at_least_zero)]
    tolerance: Option<f64>,
    /// Accept numbers that differ by X, and by what --tolerance accepts besides.
    #[arg(long, value_name = "X", value_parser = at_least_zero)]
    absolute_tolerance: Option<f64>,
    /// Do not run the functions.
    #[arg(long, conflicts_with_all = ["inputs", "tolerance", "absolute_tolerance"])]
    no_run: bool,
}

/// Parses a tolerance.
pub fn at_least_zero(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|v: &f64| v.is_finite() && *v >= 0.0);
    number.ok_or_else(|| "expected a number of 0 or more, such as 1e-3".to_owned())
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
    /// Whether all numbers are as near as the tolerances ask for; null where none is given.
    within: Option<bool>,
    /// Outputs of functions on the same inputs.
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
    /// The largest magnitude of the first's elements that is finite.
    largest: f64,
    /// Whether `max_error` is as small as the tolerances ask for, 0 where none is given.
    within: bool,
    /// Why they cannot be compared; null where they can.
    reason: Option<String>,
    /// Whether that is because a function does not run, which is no difference.
    #[serde(skip)]
    is_failure: bool,
}

/// What a function is to be given and cannot be, which is the input's fault and no difference of
/// the packages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BadInput(String);

pub fn run(args: &Args, app: &App) -> Outcome {
    let (a, b) = (
        source::open_whole(&args.a, app)?,
        source::open_whole(&args.b, app)?,
    );
    let given = given(args, [&a, &b])?;
    let mut report = Report {
        a: &args.a,
        b: &args.b,
        equal: false,
        structure: Vec::new(),
        constants: Vec::new(),
        within: None,
        numbers: Vec::new(),
    };
    let names = |p: &Package| {
        p.program
            .functions()
            .iter()
            .map(|f| f.name.clone())
            .collect::<Vec<_>>()
    };
    let only = |x: &Package, y: &Package, which: &str| -> Vec<String> {
        let missing = names(x)
            .into_iter()
            .filter(|n| y.program.function(n).is_none());
        missing
            .map(|n| format!("function `{n}` is in {which} only"))
            .collect()
    };
    report.structure.extend(only(&a, &b, "the first"));
    report.structure.extend(only(&b, &a, "the second"));
    for f in a.program.functions() {
        let Some(g) = b.program.function(&f.name) else {
            continue;
        };
        structure(f, g, &mut report.structure);
        constants(f, g, &mut report.constants);
        if !args.no_run {
            app.output.busy(&format!("running `{}` of both", f.name));
            report.numbers.extend(numbers(
                f,
                g,
                [&a, &b],
                &Runs {
                    args,
                    given: &given,
                    app,
                },
            )?);
        }
    }
    let same = |n: &Numbers| n.max_error == 0.0 && n.reason.is_none();
    let whole = thane_mil::program::difference(&a.program, &b.program);
    if report.structure.is_empty() && report.constants.is_empty() {
        report.structure.extend(whole);
    }
    if args.tolerance.or(args.absolute_tolerance).is_some() {
        // A function that one of them lacks has no numbers that could be near.
        let are_alike = names(&a).len() == names(&b).len()
            && names(&a).iter().all(|n| b.program.function(n).is_some());
        report.within = Some(are_alike && report.numbers.iter().all(|n| n.within));
    }
    report.equal = report.structure.is_empty()
        && report.constants.is_empty()
        && report.numbers.iter().all(same);
    if app.output.is_json() {
        app.output.json(&report)?;
    } else {
        app.output.data(&text(&report))?;
    }
    if let Some(failed) = report.numbers.iter().find(|n| n.is_failure) {
        let error = anyhow::anyhow!(
            "the numbers cannot be compared: `{}` does not run",
            failed.function
        );
        let failure = Failure::new(Code::Usage, error)
            .remedy("--no-run, which compares structure and constants");
        return Err(
            failure.remedy("--inputs DIR, with NAME.npy of a shape that the function takes")
        );
    }
    // As of diff(1): what differs is no success, and what cannot be compared is another code.
    match report.within {
        None if report.equal => Ok(()),
        None => Err(Failure::new(
            Code::Other,
            anyhow::anyhow!("the packages differ"),
        )),
        Some(true) => Ok(()),
        Some(false) => Err(Failure::new(
            Code::Other,
            anyhow::anyhow!("the packages differ by more than the tolerance"),
        )),
    }
}

/// Inputs, outputs, and how many ops there are of each kind.
fn structure(f: &Function, g: &Function, out: &mut Vec<String>) {
    let mut say = |what: String| out.push(format!("{}: {what}", f.name));
    if f.opset != g.opset {
        say(format!("opset {} and {}", f.opset.name(), g.opset.name()));
    }
    let ports =
        |f: &Function, values: &[thane_mil::program::ValueId]| -> BTreeMap<String, String> {
            values
                .iter()
                .map(|v| (f.value(*v).name.clone(), f.value(*v).ty.to_string()))
                .collect()
        };
    for (what, x, y) in [
        (
            "input",
            ports(f, &f.body().inputs),
            ports(g, &g.body().inputs),
        ),
        (
            "output",
            ports(f, &f.body().outputs),
            ports(g, &g.body().outputs),
        ),
    ] {
        for (name, x, y) in pairs(&x, &y) {
            let show = |ty: Option<&String>| ty.map_or("missing".to_owned(), Clone::clone);
            say(format!("{what} `{name}`: {} and {}", show(x), show(y)));
        }
    }
    let ops = |f: &Function| -> BTreeMap<&'static str, usize> {
        let mut out = BTreeMap::new();
        f.all_ops()
            .into_iter()
            .for_each(|id| *out.entry(f.op(id).def.name).or_insert(0) += 1);
        out
    };
    for (op, x, y) in pairs(&ops(f), &ops(g)) {
        let show = |n: Option<&usize>| n.copied().unwrap_or(0);
        say(format!(
            "op `{op}`: {} and {}",
            counted(show(x), "time"),
            counted(show(y), "time")
        ));
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
    keys.into_iter()
        .map(|k| (k, x.get(k), y.get(k)))
        .filter(|(_, a, b)| a != b)
        .collect()
}

fn constants(f: &Function, g: &Function, out: &mut Vec<String>) {
    let table = |f: &'_ Function| -> HashMap<String, Literal> {
        let consts = f
            .all_ops()
            .into_iter()
            .map(|id| f.op(id))
            .filter(|op| op.def.is_const());
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
                out.push(format!(
                    "{}: `{name}` is {} and {}",
                    f.name,
                    literal.ty(),
                    other.ty()
                ));
            }
            Some(other) if *other != literal => {
                out.push(format!("{}: the numbers of `{name}` differ", f.name))
            }
            _ => {}
        }
    }
}

/// What both packages are run on.
struct Runs<'a> {
    args: &'a Args,
    /// The files of `--inputs`, by the names of what they are for.
    given: &'a BTreeMap<String, PathBuf>,
    app: &'a App,
}

/// The files of `--inputs`; one that is for nothing is a slip.
fn given(args: &Args, packages: [&Package; 2]) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let Some(folder) = &args.inputs else {
        return Ok(BTreeMap::new());
    };
    let usage =
        |e: anyhow::Error| Failure::new(Code::Usage, e.context(folder.display().to_string()));
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(|e| usage(e.into()))? {
        let path = entry.map_err(|e| usage(e.into()))?.path();
        if let Some(name) = path
            .file_stem()
            .filter(|_| path.extension().is_some_and(|e| e == "npy"))
        {
            files.insert(name.to_string_lossy().into_owned(), path.clone());
        }
    }
    let functions = packages.iter().flat_map(|p| p.program.functions());
    let known: BTreeSet<&str> = functions
        .flat_map(|f| f.body().inputs.iter().map(|v| f.value(*v).name.as_str()))
        .collect();
    if files.is_empty() {
        return Err(usage(anyhow::anyhow!(
            "it has no .npy file; numpy.save writes one"
        )));
    }
    match files.keys().find(|name| !known.contains(name.as_str())) {
        Some(name) => {
            let names: Vec<&str> = known.into_iter().collect();
            Err(usage(anyhow::anyhow!(
                "no function has an input `{name}` for {name}.npy; there are {}",
                names.join(", ")
            )))
        }
        None => Ok(files),
    }
}

fn numbers(
    f: &Function,
    g: &Function,
    packages: [&Package; 2],
    runs: &Runs<'_>,
) -> Result<Vec<Numbers>, Failure> {
    let one = |output: &str, reason: String| Numbers {
        function: f.name.clone(),
        output: output.to_owned(),
        max_error: 0.0,
        relative_error: 0.0,
        largest: 0.0,
        within: false,
        reason: Some(reason),
        is_failure: false,
    };
    let failed = |reason: String| {
        Ok(vec![Numbers {
            is_failure: true,
            ..one("", reason)
        }])
    };
    let (x, y) = match (results(f, packages[0], runs), results(g, packages[1], runs)) {
        (Ok(x), Ok(y)) => (x, y),
        (Err(e), _) | (_, Err(e))
            if e.is::<BadInput>() || e.chain().any(|cause| cause.is::<OverBudget>()) =>
        {
            return Err(Failure::new(Code::Usage, e));
        }
        (Err(e), _) => return failed(format!("the first does not run: {e:#}")),
        (_, Err(e)) => return failed(format!("the second does not run: {e:#}")),
    };
    let inputs = f
        .body()
        .inputs
        .iter()
        .map(|v| f.value(*v))
        .filter(|v| matches!(v.ty, Type::Tensor(_)));
    let made_up: Vec<&str> = inputs
        .map(|v| v.name.as_str())
        .filter(|n| !runs.given.contains_key(*n))
        .collect();
    if !made_up.is_empty() {
        let (names, seed) = (made_up.join(", "), runs.args.random_seed);
        let line = format!(
            "{}: made up, floats from -1 to 1, integers 0 or 1, seed {seed}: {names}",
            f.name
        );
        runs.app.output.say(&line);
    }
    let mut out: Vec<Numbers> = Vec::new();
    for (name, a) in &x {
        out.push(match y.get(name) {
            Some(b) => compare(f, name, &a.numbers, &b.numbers, runs.args),
            None => one(name, format!("the second has no output `{name}`")),
        });
    }
    let added = y.keys().filter(|name| !x.contains_key(*name));
    out.extend(added.map(|name| one(name, format!("the first has no output `{name}`"))));
    Ok(out)
}

fn compare(f: &Function, output: &str, a: &[f64], b: &[f64], args: &Args) -> Numbers {
    let sums = a
        .iter()
        .zip(b)
        .fold((0.0f64, 0.0f64, 0.0f64), |(most, error, norm), (x, y)| {
            let d = if x == y || x.is_nan() && y.is_nan() {
                0.0
            } else {
                (x - y).abs()
            };
            (
                if d.is_nan() {
                    f64::INFINITY
                } else {
                    most.max(d)
                },
                error + d * d,
                norm + x * x,
            )
        });
    let (max_error, error, norm) = sums;
    let relative_error = if error == 0.0 {
        0.0
    } else {
        (error / norm).sqrt()
    };
    let largest = a
        .iter()
        .map(|v| v.abs())
        .filter(|v| v.is_finite())
        .fold(0.0, f64::max);
    let most = args.absolute_tolerance.unwrap_or(0.0) + args.tolerance.unwrap_or(0.0) * largest;
    let lens = || {
        format!(
            "`{output}` has {} and {}",
            counted(a.len(), "element"),
            counted(b.len(), "element")
        )
    };
    let reason = (a.len() != b.len()).then(lens);
    let within = max_error <= most && reason.is_none();
    let (function, output) = (f.name.clone(), output.to_owned());
    Numbers {
        function,
        output,
        max_error,
        relative_error,
        largest,
        within,
        reason,
        is_failure: false,
    }
}

/// An output.
struct Output {
    numbers: Vec<f64>,
    _held: Reservation,
}

/// The outputs of a function on the inputs that are given or made up.
fn results(
    f: &Function,
    package: &Package,
    runs: &Runs<'_>,
) -> anyhow::Result<BTreeMap<String, Output>> {
    let Runs { args, given, app } = runs;
    let executable = cpu(NumericsFlag::F32, None, app).load(&Program::new(vec![f.clone()]))?;
    let mut instance = executable.instantiate()?;
    for value in f.body().inputs.iter().map(|v| f.value(*v)) {
        let name = &value.name;
        let file = |ty| {
            given
                .get(name)
                .map(|path| tensors::from_file(path, ty, &app.budget))
                .transpose()
        };
        match &value.ty {
            Type::Tensor(ty) => {
                let array = match file(ty).with_context(|| BadInput(format!("input `{name}`")))? {
                    Some(array) => array,
                    None => {
                        let feature = package
                            .interfaces
                            .get(&f.name)
                            .and_then(|i| i.features.get(name));
                        let default = feature.and_then(|f| f.shape.default_shape());
                        let shape = tensors::shape(ty, None, default).unwrap_or_else(|| {
                            ty.shape.iter().map(|d| d.known().unwrap_or(1)).collect()
                        });
                        let made_up =
                            tensors::made_up(args.random_seed, name, ty, shape, &app.budget);
                        made_up.with_context(|| format!("input `{name}`"))?
                    }
                };
                instance
                    .input(name, &array.shape)?
                    .copy_from_slice(&array.bytes);
            }
            Type::State(ty) => {
                if let Some(array) =
                    file(ty).with_context(|| BadInput(format!("state `{name}`")))?
                {
                    instance.state_mut(name)?.copy_from_slice(&array.bytes);
                }
            }
            _ => {}
        }
    }
    instance.run(&f.name)?;
    let outputs = f.body().outputs.iter().map(|v| &f.value(*v).name);
    let output = |name: &String| {
        let view = instance.output(name)?;
        let n: usize = view.shape.iter().product();
        let what = || format!("the numbers of the output `{name}`");
        let held = app
            .budget
            .reserve(n.saturating_mul(size_of::<f64>()), what)?;
        Ok((
            name.clone(),
            Output {
                numbers: floats(view),
                _held: held,
            },
        ))
    };
    outputs.map(output).collect()
}

fn floats(view: View<'_>) -> Vec<f64> {
    match view.dtype {
        DType::Fp32 => view
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(f32::from_le_bytes(*b)))
            .collect(),
        DType::Fp16 => view
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(f16_to_f32(u16::from_le_bytes(*b))))
            .collect(),
        DType::Int32 => view
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(i32::from_le_bytes(*b)))
            .collect(),
        DType::Int16 => view
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(i16::from_le_bytes(*b)))
            .collect(),
        DType::Uint16 => view
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(u16::from_le_bytes(*b)))
            .collect(),
        DType::Int8 => view
            .bytes
            .iter()
            .map(|b| f64::from(b.cast_signed()))
            .collect(),
        _ => view.bytes.iter().map(|b| f64::from(*b)).collect(),
    }
}

fn text(r: &Report<'_>) -> String {
    let mut lines: Vec<String> = r.structure.iter().chain(&r.constants).cloned().collect();
    for n in &r.numbers {
        lines.push(match &n.reason {
            Some(reason) => format!("{}: {reason}", n.function),
            None if n.max_error == 0.0 => {
                format!("{}: `{}` has the same numbers", n.function, n.output)
            }
            None => format!(
                "{}: `{}` differs by {:.3e} at most, of magnitudes up to {:.3e}; {:.3e} relative{}",
                n.function,
                n.output,
                n.max_error,
                n.largest,
                n.relative_error,
                if r.within.is_some() && !n.within {
                    ", more than the tolerance"
                } else {
                    ""
                }
            ),
        });
    }
    if r.equal {
        lines.push("the packages are equal".to_owned());
    } else if r.within == Some(true) {
        lines.push("the numbers are within the tolerance".to_owned());
    }
    lines.join("\n") + "\n"
}
