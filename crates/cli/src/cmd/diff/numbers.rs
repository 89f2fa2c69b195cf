//! Runs both packages on the same inputs and compares the numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;
use thane_mil::backend::{Backend, Limits, View};
use thane_mil::budget::{OverBudget, Reservation};
use thane_mil::literal::f16_to_f32;
use thane_mil::package::{Feature, Package};
use thane_mil::program::{Function, Program};
use thane_mil::types::{DType, TensorType, Type};

use super::flags::Args;
use crate::app::App;
use crate::call;
use crate::decoder_inputs::DecoderCall;
use crate::exit::{Failure, usage, usage_in};
use crate::image;
use crate::model::{NumericsFlag, cpu};
use crate::npy::Array;
use crate::out::file_name;
use crate::output::counted;
use crate::tensors;

/// The difference between the two results of one output.
#[derive(Serialize)]
pub struct Numbers {
    pub function: String,
    pub output: String,
    /// Largest difference of two elements; null in JSON if it is infinite.
    pub max_error: f64,
    /// Norm of the difference divided by the norm of the first result; null in JSON if it is NaN.
    pub relative_error: f64,
    /// Largest finite magnitude of the first result.
    pub largest: f64,
    /// Whether `max_error` is within the tolerances, which are 0 by default.
    pub within: bool,
    /// Why the results cannot be compared; null if they can.
    pub reason: Option<String>,
    /// Whether the reason is that a function does not run, which is no difference.
    #[serde(skip)]
    pub is_failure: bool,
}

/// An input that a function does not take, which is a fault of the input and no difference between
/// the packages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BadInput(String);

/// What both packages are run with.
pub struct Runs<'a> {
    pub args: &'a Args,
    /// The files of `--inputs`, by the name of their input or state.
    pub given: &'a BTreeMap<String, PathBuf>,
    pub app: &'a App,
}

/// Extensions of files that are inputs.
const INPUTS: [&str; 4] = ["npy", "png", "jpg", "jpeg"];

/// The files of `--inputs`. A file that belongs to no input is an error.
pub fn given(args: &Args, packages: [&Package; 2]) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let Some(folder) = &args.inputs else {
        return Ok(BTreeMap::new());
    };
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(usage_in(folder))? {
        let path = entry.map_err(usage_in(folder))?.path();
        let is_input = |end: &OsStr| INPUTS.iter().any(|known| end.eq_ignore_ascii_case(known));
        let is_input = path.extension().is_some_and(is_input);
        if let Some(name) = path.file_stem().filter(|_| is_input) {
            let name = name.to_string_lossy().into_owned();
            if let Some(other) = files.insert(name.clone(), path.clone()) {
                let (a, b) = (other.display(), path.display());
                return Err(usage_in(folder)(anyhow::anyhow!(
                    "`{name}` has two files: {a} and {b}"
                )));
            }
        }
    }
    let functions = packages.iter().flat_map(|p| p.program.functions());
    let known: BTreeSet<&str> = functions
        .flat_map(|f| f.body().inputs.iter().map(|v| f.value(*v).name.as_str()))
        .collect();
    if files.is_empty() {
        return Err(usage_in(folder)(anyhow::anyhow!(
            "expected a .npy, PNG or JPEG file, found none; numpy.save writes the first"
        )));
    }
    match files.keys().find(|name| !known.contains(name.as_str())) {
        Some(name) => {
            let names: Vec<&str> = known.into_iter().collect();
            Err(usage_in(folder)(anyhow::anyhow!(
                "no function has an input `{name}` for {}; there are {}",
                file_name(&files[name]),
                names.join(", ")
            )))
        }
        None => Ok(files),
    }
}

/// What the package says of an input.
fn feature<'a>(f: &Function, name: &str, package: &'a Package) -> Option<&'a Feature> {
    package.interfaces.get(&f.name)?.features.get(name)
}

pub fn numbers(
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
            return Err(usage(e));
        }
        (Err(e), _) => return failed(format!("the first does not run: {e:#}")),
        (_, Err(e)) => return failed(format!("the second does not run: {e:#}")),
    };
    let inputs = f.body().inputs.iter().map(|v| f.value(*v));
    let tensors = inputs.filter(|v| matches!(v.ty, Type::Tensor(_)));
    let names = tensors.map(|v| v.name.as_str());
    let made_up: Vec<&str> = names.filter(|n| !runs.given.contains_key(*n)).collect();
    if !made_up.is_empty() {
        let (names, seed) = (made_up.join(", "), runs.args.seed);
        let is_image = |n: &&str| feature(f, n, packages[0]).is_some_and(|i| i.image.is_some());
        let pixels = match made_up.iter().any(is_image) {
            true => ", pixels from 0 to 255",
            false => "",
        };
        let line = format!(
            "{}: made up, floats from -1 to 1, integers 0 or 1{pixels}, seed {seed}: {names}",
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
    let (mut max_error, mut error, mut norm) = (0.0f64, 0.0f64, 0.0f64);
    for (x, y) in a.iter().zip(b) {
        let d = match x == y || x.is_nan() && y.is_nan() {
            true => 0.0,
            false => (x - y).abs(),
        };
        max_error = if d.is_nan() {
            f64::INFINITY
        } else {
            max_error.max(d)
        };
        error += d * d;
        norm += x * x;
    }
    let relative_error = if error == 0.0 {
        0.0
    } else {
        (error / norm).sqrt()
    };
    let magnitudes = a.iter().map(|v| v.abs()).filter(|v| v.is_finite());
    let largest = magnitudes.fold(0.0, f64::max);
    let most = args.absolute_tolerance.unwrap_or(0.0) + args.tolerance.unwrap_or(0.0) * largest;
    let (n, m) = (counted(a.len(), "element"), counted(b.len(), "element"));
    let lens = || format!("`{output}` has {n} and {m}");
    let reason = (a.len() != b.len()).then(lens);
    let within = max_error <= most && reason.is_none();
    Numbers {
        function: f.name.clone(),
        output: output.to_owned(),
        max_error,
        relative_error,
        largest,
        within,
        reason,
        is_failure: false,
    }
}

/// An output as numbers, with its memory.
struct Output {
    numbers: Vec<f64>,
    _held: Reservation,
}

/// A generated input.
fn made_up(
    f: &Function,
    name: &str,
    ty: &TensorType,
    package: &Package,
    runs: &Runs<'_>,
) -> anyhow::Result<Array> {
    let budget = &runs.app.budget;
    let decoder = DecoderCall::of(f);
    if let Some(value) = decoder.and_then(|call| call.value(name, ty)) {
        return tensors::known(ty, value.bytes, budget);
    }
    let feature = feature(f, name, package);
    if let Some(image) = feature.and_then(|f| f.image.as_ref()) {
        return image::made_up(runs.args.seed, name, ty, image, None, budget)
            .with_context(|| format!("input `{name}`"));
    }
    let default = feature.and_then(|f| f.shape.default_shape());
    let shape = tensors::shape(ty, None, default)
        .unwrap_or_else(|| ty.shape.iter().map(|d| d.known().unwrap_or(1)).collect());
    let made_up = tensors::made_up(runs.args.seed, name, ty, shape, budget);
    made_up.with_context(|| format!("input `{name}`"))
}

/// Runs a function on given or generated inputs and returns its outputs.
fn results(
    f: &Function,
    package: &Package,
    runs: &Runs<'_>,
) -> anyhow::Result<BTreeMap<String, Output>> {
    let Runs { given, app, .. } = runs;
    let alone = Program::new(vec![f.clone()]);
    Limits::default().check_states(&alone)?;
    let executable = cpu(NumericsFlag::F32, None, app).load(&alone)?;
    let mut instance = executable.instantiate()?;
    for value in f.body().inputs.iter().map(|v| f.value(*v)) {
        let name = &value.name;
        let image = feature(f, name, package).and_then(|f| f.image.as_ref());
        let read = |path: &PathBuf, ty| match image {
            Some(image) => call::image_from_file(path, image, ty, &app.budget),
            None => tensors::from_file(path, ty, &app.budget),
        };
        let file = |ty| given.get(name).map(|path| read(path, ty)).transpose();
        match &value.ty {
            Type::Tensor(ty) => {
                let array = match file(ty).with_context(|| BadInput(format!("input `{name}`")))? {
                    Some(array) => array,
                    None => made_up(f, name, ty, package, runs)?,
                };
                let filled = instance.input(name, &array.shape)?;
                filled.copy_from_slice(&array.bytes);
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
        let n_bytes = n.saturating_mul(size_of::<f64>());
        let _held = app.budget.reserve(n_bytes, what)?;
        let numbers = floats(view);
        Ok((name.clone(), Output { numbers, _held }))
    };
    outputs.map(output).collect()
}

fn floats(view: View<'_>) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks().0.iter().map(|b| number(*b)).collect()
    }
    let bytes = view.bytes;
    match view.dtype {
        DType::Fp32 => each(bytes, |b| f32::from_le_bytes(b).into()),
        DType::Fp16 => each(bytes, |b| f16_to_f32(u16::from_le_bytes(b)).into()),
        DType::Int32 => each(bytes, |b| i32::from_le_bytes(b).into()),
        DType::Int16 => each(bytes, |b| i16::from_le_bytes(b).into()),
        DType::Uint16 => each(bytes, |b| u16::from_le_bytes(b).into()),
        DType::Int8 => each(bytes, |b| i8::from_le_bytes(b).into()),
        _ => each(bytes, |[byte]| byte.into()),
    }
}
