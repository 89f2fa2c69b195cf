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

/// The files of `--inputs`. A file that belongs to no input is an error.
pub fn given(args: &Args, packages: [&Package; 2]) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let Some(folder) = &args.inputs else {
        return Ok(BTreeMap::new());
    };
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(usage_in(folder))? {
        let path = entry.map_err(usage_in(folder))?.path();
        if let Some(name) = path
            .file_stem()
            .filter(|_| path.extension().is_some_and(is_input))
        {
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

/// Whether files with this extension are inputs.
fn is_input(extension: &OsStr) -> bool {
    ["npy", "png", "jpg", "jpeg"]
        .iter()
        .any(|known| extension.eq_ignore_ascii_case(known))
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
