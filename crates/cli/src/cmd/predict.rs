//! `thane predict`: runs a function of a package once, from files to files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use thane_cpu::ane::{self, Effects};
use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Instance, View};
use thane_mil::program::{Function, Program};
use thane_mil::types::Type;

use crate::app::App;
use crate::call::{self, CallFlags, Given, Input, Row};
use crate::exit::{Failure, Outcome, usage};
use crate::interrupt::Writing;
use crate::model::{NumericsFlag, cpu};
use crate::npy::{self, Array};
use crate::{out, source};

/// Run a function of a Core ML package once, from .npy files to .npy files.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An .mlpackage or .mlmodelc folder, or a .mil file with its weights.
    package: PathBuf,
    #[command(flatten)]
    call: CallFlags,
    /// Numerics.
    ///
    /// f32 is the reference, ane rounds like the Apple Neural Engine.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NumericsFlag::F32)]
    numerics: NumericsFlag,
    /// Turn an effect of the Neural Engine on or off, such as flush-subnormals=on; docs/numerics.md
    /// lists the effects.
    #[arg(long, value_name = "NAME=on|off", value_parser = effect)]
    effect: Vec<(String, bool)>,
    /// With ane: least relative error against f32 that is reported as a loss of accuracy.
    #[arg(long, value_name = "X", default_value_t = ane::Options::default().tolerance,
        value_parser = crate::tensors::at_least_zero)]
    tolerance: f64,
    /// Number of threads [default: the physical cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Folder for the results, with NAME.npy for each output and state.
    #[arg(short, long, value_name = "FOLDER")]
    out: PathBuf,
    /// Replace results that exist.
    #[arg(long)]
    force: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    package: &'a Path,
    function: &'a str,
    inputs: &'a [Input],
    outputs: Vec<Row>,
    /// The states after the run.
    states: Vec<Row>,
    /// With `--numerics ane`: where the numbers diverge from f32; otherwise null.
    ane: Option<Parting>,
}

/// The first ops whose numbers diverge from f32: result, layer, weight and reason.
#[derive(Serialize)]
struct Parting {
    /// Null if nothing overflows.
    first_overflow: Option<String>,
    /// Null if no error exceeds the tolerance.
    first_loss: Option<String>,
    /// The residual stream behind each layer.
    layers: Vec<Layer>,
}

/// The last result of a layer, and how far it is from f32.
#[derive(Serialize)]
struct Layer {
    /// The module of the checkpoint, such as `model.layers.3`.
    layer: String,
    result: String,
    /// The norm of the difference over the norm of the result in f32.
    drift: f64,
    /// The largest magnitude in f32.
    largest: f64,
}

/// Parses `NAME=on` or `NAME=off`.
fn effect(text: &str) -> Result<(String, bool), String> {
    let (name, on) = match text.split_once('=') {
        Some((name, "on")) => (name, true),
        Some((name, "off")) => (name, false),
        _ => return Err(format!("`{text}` is not NAME=on or NAME=off")),
    };
    let set = Effects::default().set(name, on);
    set.map_err(|e| e.to_string())?;
    Ok((name.to_owned(), on))
}

pub fn run(args: &Args, app: &App) -> Outcome {
    if !args.effect.is_empty() && args.numerics != NumericsFlag::Ane {
        return Err(usage!("--effect is about --numerics ane only").remedy("--numerics ane"));
    }
    let package = source::open_whole(&args.package, app)?;
    let f = args.call.function(&package)?;
    check_outputs(f, args)?;
    let (alone, mut instance) = call::start(f, &backend(args, app))?;
    let given = args.call.fill(instance.as_mut(), f, &package, app)?;
    call::say_made_up(&given.rows, app);
    let mut report = Report {
        package: &args.package,
        function: &f.name,
        inputs: &given.rows,
        outputs: Vec::new(),
        states: Vec::new(),
        ane: None,
    };
    app.output.busy(&format!("running `{}`", f.name));
    let ran = instance.run(&f.name);
    ran.map_err(|e| call::failed(e, &given.rows))?;
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    store_all(instance.as_ref(), f, &mut report, args, app)?;
    if args.numerics == NumericsFlag::Ane {
        app.output.busy("comparing with f32, op by op");
        report.ane = Some(parting(&alone, &f.name, &given, args, app)?);
    }
    say(&report, app)
}

fn outputs(f: &Function) -> impl Iterator<Item = &String> {
    f.body().outputs.iter().map(|v| &f.value(*v).name)
}

fn states(f: &Function) -> impl Iterator<Item = &String> {
    let inputs = f.body().inputs.iter().map(|v| f.value(*v));
    let states = inputs.filter(|v| matches!(v.ty, Type::State(_)));
    states.map(|v| &v.name)
}

/// Writes outputs and states to files.
fn store_all(
    instance: &dyn Instance,
    f: &Function,
    report: &mut Report<'_>,
    args: &Args,
    app: &App,
) -> Outcome {
    let mut pending = Vec::new();
    for name in outputs(f) {
        let view = instance.output(name).map_err(usage)?;
        report
            .outputs
            .push(store(args, name, view, &mut pending, app)?);
    }
    for name in states(f) {
        let view = instance.state(name).map_err(usage)?;
        report
            .states
            .push(store(args, name, view, &mut pending, app)?);
    }
    // All results are written before the first one is renamed.
    for Pending { path, file, .. } in pending {
        file.put(args.force).map_err(|e| out::unwritten(&path, e))?;
    }
    Ok(())
}

fn say(report: &Report<'_>, app: &App) -> Outcome {
    if app.output.is_json() {
        return Ok(app.output.json(report)?);
    }
    if let Some(parting) = &report.ane {
        let say = |found: &Option<String>, what: &str| match found {
            Some(found) => app.output.say(found),
            None => app.output.say(&format!("nothing {what}")),
        };
        say(&parting.first_overflow, "overflows");
        say(&parting.first_loss, "loses accuracy");
        for Layer {
            layer,
            drift,
            largest,
            ..
        } in &parting.layers
        {
            let line = format!("{layer}: drift {drift:.1e}, at most {largest:.4}");
            app.output.say(&line);
        }
    }
    let rows = report.outputs.iter().chain(&report.states);
    let line = |r: &Row| {
        let file = r.file.as_deref().unwrap_or(Path::new("")).display();
        format!("{file}  {} {:?}\n", r.dtype, r.shape)
    };
    Ok(app.output.data(&rows.map(line).collect::<String>())?)
}

fn effects(args: &Args) -> Effects {
    let mut effects = Effects::default();
    for (name, on) in &args.effect {
        effects.set(name, *on).expect("the flag was parsed");
    }
    effects
}

fn backend(args: &Args, app: &App) -> Cpu {
    let cpu = cpu(args.numerics, args.threads, app);
    match args.numerics {
        NumericsFlag::Ane => Cpu {
            numerics: Numerics::Ane(effects(args)),
            ..cpu
        },
        _ => cpu,
    }
}

/// Runs the function in f32 and in the engine's numerics, and compares op by op.
fn parting(
    program: &Program,
    function: &str,
    given: &Given,
    args: &Args,
    app: &App,
) -> Result<Parting, Failure> {
    fn views(arrays: &[(String, Array)]) -> Vec<(&str, View<'_>)> {
        let views = arrays.iter().map(|(name, a)| (name.as_str(), a.view()));
        views.collect()
    }
    let options = ane::Options {
        effects: effects(args),
        tolerance: args.tolerance,
        n_threads: backend(args, app).n_threads,
        isa: app.isa,
        budget: app.budget.clone(),
        ..ane::Options::default()
    };
    let (inputs, states) = (views(&given.inputs), views(&given.states));
    let report = ane::compare(program, function, &inputs, &states, &options).map_err(usage)?;
    let say = |what: &str, found: &Option<ane::Finding>| {
        let found = found.as_ref()?;
        let (op, cause) = (report.op(found), &found.cause);
        Some(format!("the first that {what}: {op}; {cause}"))
    };
    let layers = report.layers().into_iter().map(|(layer, last)| Layer {
        layer: layer.to_owned(),
        result: last.result.clone(),
        drift: last.drift,
        largest: last.largest,
    });
    Ok(Parting {
        layers: layers.collect(),
        first_overflow: say("overflows", &report.first_overflow),
        first_loss: say("loses accuracy", &report.first_loss),
    })
}

fn result_path(args: &Args, name: &str) -> PathBuf {
    args.out.join(format!("{name}.npy"))
}

/// Refuses to replace existing results, before anything is computed.
fn check_outputs(f: &Function, args: &Args) -> Outcome {
    if args.out.exists() && !args.out.is_dir() {
        return Err(usage!(
            "{} is not a folder; the results are files in one",
            args.out.display()
        )
        .remedy("another path for --out"));
    }
    let given = args.call.input.iter().chain(&args.call.state);
    let given = given.map(|named| named.value.as_path());
    let read: Vec<&Path> = given.chain([args.package.as_path()]).collect();
    let mut written = outputs(f).chain(states(f));
    written.try_for_each(|name| out::check(&result_path(args, name), args.force, &read))
}

/// A result that was written and not renamed yet.
struct Pending<'a> {
    path: PathBuf,
    file: out::Pending,
    _writing: Writing<'a>,
}

/// Writes a result beside `NAME.npy`; it is renamed when all results are written.
fn store<'a>(
    args: &Args,
    name: &str,
    view: View<'_>,
    pending: &mut Vec<Pending<'a>>,
    app: &'a App,
) -> Result<Row, Failure> {
    let path = result_path(args, name);
    let writing = app.interrupt.writing(&path);
    let file = out::Pending::new(&path, |file| {
        npy::write(file, view.dtype, view.shape, view.bytes)
    });
    let file = file.map_err(|e| out::unwritten(&path, e))?;
    pending.push(Pending {
        path: path.clone(),
        file,
        _writing: writing,
    });
    Ok(Row {
        name: name.to_owned(),
        dtype: view.dtype.name(),
        shape: view.shape.to_vec(),
        file: Some(path),
    })
}
