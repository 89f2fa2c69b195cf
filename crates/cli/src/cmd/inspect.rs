//! `thane inspect`: prints the program of a model or package as MIL text, or counts its ops.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::Serialize;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::package::{ColorSpace, Image, ImageSizes, Interface};
use thane_mil::program::{Arg, Function, Program, ValueId};
use thane_mil::text::{Blobs, print};
use thane_runtime::{ForeignLayout, is_package};

use crate::app::App;
use crate::exit::{Failure, Outcome, usage};
use crate::foreign::BundleRow;
use crate::model::{self, ProgramFlags};
use crate::out::has_extension;
use crate::output::bytes;
use crate::source;
use thane_mil::nearest::did_you_mean;

/// Print the program of a model or package as MIL text, or count what is in it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model (path, hf:org/name, catalog name), package, bundle, or .mil file.
    model: String,
    /// Print only this function, such as prefill or decode.
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Count functions, ops, states and constants instead of printing them.
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    flags: ProgramFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    /// The bundle of another project that the functions are of; null for anything else.
    bundle: Option<BundleRow>,
    functions: Vec<FunctionRow<'a>>,
    /// Constants of all functions by element type. A constant that functions share counts once.
    constants: BTreeMap<&'static str, Share>,
    /// The program as MIL text; null with --stats.
    text: Option<String>,
}

#[derive(Serialize)]
struct FunctionRow<'a> {
    name: &'a str,
    opset: &'static str,
    /// Inputs and states.
    inputs: Vec<Port<'a>>,
    outputs: Vec<Port<'a>>,
    /// Number of ops by kind, nested blocks included.
    ops: BTreeMap<&'static str, usize>,
}

/// An input, state or output.
#[derive(Serialize)]
struct Port<'a> {
    name: &'a str,
    r#type: String,
    /// What callers pass an image for: its pixel format and default size; null for a tensor.
    image: Option<String>,
}

/// The constants of one element type.
#[derive(Default, Serialize)]
struct Share {
    constants: usize,
    bytes: u64,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let path = Path::new(&args.model);
    let (name, program, interfaces, bundle) = if let Some(layout) = ForeignLayout::of(path) {
        let bundle = layout.open(path)?;
        let row = BundleRow::new(&bundle);
        let name = args.model.clone();
        (name, bundle.program, BTreeMap::new(), Some(row))
    } else {
        let (name, program, interfaces) = open(args, app)?;
        (name, program, interfaces, None)
    };
    let program = match &args.function {
        None => program,
        Some(name) => {
            let found = program.function(name).cloned();
            Program::new(vec![found.ok_or_else(|| no_function(name, &program))?])
        }
    };
    thane_mil::valid::check(&program).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        usage!("the program is not legal:\n  {}", lines.join("\n  "))
    })?;
    let text = (!args.stats).then(|| print(&program, &mut Blobs::default()));
    if let Some(text) = text.as_ref().filter(|_| !app.output.is_json()) {
        let lines = bundle.iter().flat_map(BundleRow::lines);
        lines.for_each(|line| app.output.say(&line));
        return Ok(app.output.data(text)?);
    }
    let functions = program.functions().iter();
    let functions = functions.map(|f| row(f, interfaces.get(&f.name))).collect();
    let report = Report {
        model: &name,
        bundle,
        functions,
        constants: constants(&program),
        text,
    };
    Ok(app.output.report(&report, stats)?)
}

/// The name, the program, and how a package describes inputs and outputs of its functions.
fn open(args: &Args, app: &App) -> Result<(String, Program, BTreeMap<String, Interface>), Failure> {
    let path = Path::new(&args.model);
    if has_extension(path, &["mlpackage", "mlmodelc", "mil"]) {
        source::expect(path, app)?;
    }
    if is_package(path) || source::is_text(path) || path.join("model.mil").is_file() {
        let source = source::open(path).map_err(usage)?;
        let package = source.package;
        return Ok((args.model.clone(), package.program, package.interfaces));
    }
    let opened = model::open(&args.model, &args.flags.options(false), app)?;
    Ok((opened.name, opened.program, BTreeMap::new()))
}

fn no_function(name: &str, program: &Program) -> Failure {
    let functions = program.functions().iter();
    let names: Vec<&str> = functions.map(|f| f.name.as_str()).collect();
    let hint = did_you_mean(name, names.iter().copied());
    usage!("the program has no function `{name}`{hint}")
        .remedy(format!("--function {}", names.join(" or ")))
}

fn row<'a>(f: &'a Function, interface: Option<&Interface>) -> FunctionRow<'a> {
    let named = |v: &ValueId| {
        let name = &f.value(*v).name;
        let feature = interface.and_then(|i| i.features.get(name));
        Port {
            name,
            r#type: f.value(*v).ty.to_string(),
            image: feature.and_then(|f| f.image.as_ref()).map(described),
        }
    };
    let mut ops = BTreeMap::new();
    for id in f.all_ops() {
        *ops.entry(f.op(id).def.name).or_insert(0) += 1;
    }
    FunctionRow {
        name: &f.name,
        opset: f.opset.name(),
        inputs: f.body().inputs.iter().map(named).collect(),
        outputs: f.body().outputs.iter().map(named).collect(),
        ops,
    }
}

/// An image in a few words.
fn described(image: &Image) -> String {
    let color = match image.color {
        ColorSpace::Grayscale => "grayscale",
        ColorSpace::GrayscaleFp16 => "fp16 grayscale",
        ColorSpace::Rgb => "RGB",
        ColorSpace::Bgr => "BGR",
    };
    let others = match image.sizes {
        ImageSizes::Fixed => "",
        _ => ", or other sizes",
    };
    format!("{color} image, {} x {}{others}", image.width, image.height)
}

fn constants(program: &Program) -> BTreeMap<&'static str, Share> {
    let mut out: BTreeMap<&'static str, Share> = BTreeMap::new();
    let mut seen = HashSet::new();
    for f in program.functions() {
        for op in f.all_ops().into_iter().map(|id| f.op(id)) {
            for arg in op.args.iter().flatten() {
                let Arg::Literal(Literal::Tensor(ty, data)) = arg else {
                    continue;
                };
                if !seen.insert((place(data), data.byte_len())) {
                    continue;
                }
                let share = out.entry(ty.dtype.name()).or_default();
                share.constants += 1;
                share.bytes += data.byte_len() as u64;
            }
        }
    }
    out
}

/// The address of a constant's bytes, which identifies it.
fn place(data: &Data) -> usize {
    match data {
        Data::Bytes(bytes) => bytes.as_slice().as_ptr().addr(),
        Data::Source(source) => std::sync::Arc::as_ptr(source).addr(),
    }
}

fn stats(r: &Report<'_>) -> String {
    let mut lines = vec![format!("model      {}", r.model)];
    lines.extend(r.bundle.iter().flat_map(BundleRow::lines));
    for f in &r.functions {
        lines.push(format!("function   {}, opset {}", f.name, f.opset));
        let is_state = |p: &&Port<'_>| p.r#type.starts_with("state<");
        let (states, inputs): (Vec<_>, Vec<_>) = f.inputs.iter().partition(is_state);
        for (what, ports) in [
            ("input", inputs),
            ("output", f.outputs.iter().collect()),
            ("state", states),
        ] {
            lines.extend(ports.iter().map(|p| {
                let image = p.image.iter().map(|image| format!("  {image}"));
                let image: String = image.collect();
                format!("  {what:<7}  {}  {}{image}", p.name, p.r#type)
            }));
        }
        let mut ops: Vec<_> = f.ops.iter().collect();
        ops.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), **name));
        lines.extend(ops.iter().map(|(name, n)| format!("  {n:>7}  {name}")));
    }
    lines.push("constants".to_owned());
    for (dtype, share) in &r.constants {
        let (n, size) = (share.constants, bytes(share.bytes));
        lines.push(format!("  {n:>7}  {dtype:<10} {size}"));
    }
    lines.join("\n") + "\n"
}
