//! `thane inspect`: the program of a model, as MIL text.

use serde::Serialize;
use thane_mil::program::{Function, Program, ValueId};
use thane_mil::text::{Blobs, print};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::model::{self, ProgramFlags};

/// Print the program of a model as MIL text.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name with /file or @revision after it, or a name of the catalogue.
    model: String,
    /// Only this function: prefill or decode.
    #[arg(long, env = "THANE_FUNCTION", value_name = "NAME")]
    function: Option<String>,
    #[command(flatten)]
    flags: ProgramFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    functions: Vec<FunctionRow<'a>>,
    /// The program as MIL text.
    text: String,
}

/// One function.
#[derive(Serialize)]
struct FunctionRow<'a> {
    name: &'a str,
    opset: &'static str,
    /// Inputs and states.
    inputs: Vec<Port<'a>>,
    outputs: Vec<Port<'a>>,
    /// How many ops there are of each kind.
    ops: std::collections::BTreeMap<&'static str, usize>,
}

/// What goes in or comes out.
#[derive(Serialize)]
struct Port<'a> {
    name: &'a str,
    r#type: String,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let opened = model::open(&args.model, &args.flags.options(false), app)?;
    let program = match &args.function {
        None => opened.model.program,
        Some(name) => {
            let found = opened.model.program.function(name).cloned();
            Program::new(vec![found.ok_or_else(|| no_function(name, &opened.model.program))?])
        }
    };
    thane_mil::valid::check(&program).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::new(Code::Other, anyhow::anyhow!("the program is not legal:\n  {}", lines.join("\n  ")))
    })?;
    let text = print(&program, &mut Blobs::default());
    if !app.output.is_json() {
        return Ok(app.output.data(&text)?);
    }
    let functions = program.functions().iter().map(row).collect();
    Ok(app.output.json(&Report { model: &opened.name, functions, text })?)
}

fn no_function(name: &str, program: &Program) -> Failure {
    let names: Vec<&str> = program.functions().iter().map(|f| f.name.as_str()).collect();
    Failure::new(Code::Usage, anyhow::anyhow!("the program has no function `{name}`"))
        .remedy(format!("--function {}", names.join(" or ")))
}

fn row(f: &Function) -> FunctionRow<'_> {
    let named = |v: &ValueId| Port { name: &f.value(*v).name, r#type: f.value(*v).ty.to_string() };
    let mut ops = std::collections::BTreeMap::new();
    f.body().ops.iter().for_each(|o| *ops.entry(f.op(*o).def.name).or_insert(0) += 1);
    FunctionRow {
        name: &f.name,
        opset: f.opset.name(),
        inputs: f.body().inputs.iter().map(named).collect(),
        outputs: f.body().outputs.iter().map(named).collect(),
        ops,
    }
}
