//! Refusals that come before the work: flags before a download, a form before a text is computed.

use std::path::Path;

use thane_calls::{CacheForm, Head, Lookup};
use thane_mil::opset::Opset;
use thane_models::AneDecoder;
use thane_runtime::{RuntimeError, STATES_NEED};

use super::output::{check_out, is_compiled};
use super::{Args, Task};
use crate::app::App;
use crate::embed::bundle;
use crate::exit::{Failure, Outcome, usage};
use crate::form::FormFlag;
use crate::runtime::unknown_function;

/// Parses an opset.
pub(super) fn opset(name: &str) -> Result<Opset, String> {
    let names: Vec<&str> = Opset::ALL.iter().map(|opset| opset.name()).collect();
    Opset::from_name(name).ok_or_else(|| format!("the opsets are {}", names.join(", ")))
}

/// Parses a system. macOS 12 has the opset of iOS 15, and so on.
pub fn system(name: &str) -> Result<Opset, String> {
    let ios = match name.strip_prefix("macos").map(str::parse::<u32>) {
        Some(Ok(version)) => format!("ios{}", version.saturating_add(3)),
        _ => name.to_owned(),
    };
    Opset::from_name(&ios).ok_or_else(|| {
        "expected ios15 to ios18, or macos12 to macos15; later systems run a program for ios18"
            .to_owned()
    })
}

/// Refuses what no language model can have, whichever it is, once it is known to be one, and
/// encodings of weights that nothing takes.
pub(super) fn check_flags(args: &Args, task: Option<Task>) -> Outcome {
    check_compression(args)?;
    if task == Some(Task::Embed) && args.compression.quantizes_activations() {
        return Err(usage!(
            "--compress with activations of 8 bits needs the form that the model is written in"
        )
        .remedy("thane convert without --compress, and thane compress of the package"));
    }
    if task != Some(Task::Generate) || args.foreign().is_some() {
        return Ok(());
    }
    let form = &args.embedding.form;
    let is_planned = args.form.is_none() && !args.target.is_empty();
    let may_be_explicit = match args.form {
        Some(FormFlag::Ane) => form.decoder().form.cache == CacheForm::Explicit,
        _ => is_planned && form.kv != Some(CacheForm::State),
    };
    check_opset(args, may_be_explicit)?;
    let has_tables = form.direct
        || matches!(form.lookup, Some(Lookup::Host | Lookup::HostInt8))
        || matches!(form.head, Some(Head::Host(())));
    if is_compiled(&args.out) && has_tables {
        return Err(tables_of_compiled(args));
    }
    Ok(())
}

/// Refuses encodings that a target, a system or a bundle does not take.
fn check_compression(args: &Args) -> Outcome {
    args.compression().check(&args.target)?;
    args.compression().check_text(args.calibrate.as_ref())?;
    match (args.compression.compress, args.foreign()) {
        (Some(_), Some(writer)) => Err(usage!(
            "--compress: {} bundles are written with fp16 weights",
            writer.project
        )
        .remedy("thane compress FOLDER -o FOLDER, of the bundle that is written without it")),
        _ => Ok(()),
    }
}

/// The flags, with what an output of one compiled model decides of a form that is planned: it has
/// no place for tables.
pub(super) fn pinned_by_out(args: &Args) -> bundle::Flags {
    let mut flags = args.embedding.clone();
    if is_compiled(&args.out) && !flags.form.direct {
        flags.form.lookup.get_or_insert(Lookup::Inside);
        flags.form.head.get_or_insert(Head::Logits);
    }
    flags
}

/// Refuses a form that was chosen and cannot be written as the flags say, and says where several
/// packages go.
pub(super) fn check_form(
    args: &Args,
    (ane, built): (&AneDecoder, &thane_models::Model),
    from: &Path,
    app: &App,
) -> Outcome {
    check_opset(args, ane.form.cache == CacheForm::Explicit)?;
    if is_compiled(&args.out) && !built.tables.is_empty() {
        return Err(tables_of_compiled(args));
    }
    let calls = built.info.fixed.iter().flat_map(|fixed| &fixed.calls);
    let n_packages = calls.map(|call| call.functions.len()).max().unwrap_or(1);
    check_out(args, n_packages, from)?;
    if n_packages > 1 {
        if !args.functions.is_empty() {
            return Err(
                Failure::from(RuntimeError::FunctionsOfChunks).remedy("leave --functions out")
            );
        }
        let out = args.out.display();
        let said = format!("{out} will be a folder of {n_packages} packages, as the model is cut");
        app.output.say(&said);
    }
    let known: Vec<String> = built
        .program
        .functions()
        .iter()
        .map(|f| f.name.clone())
        .collect();
    match args.functions.iter().find(|name| !known.contains(name)) {
        Some(name) => Err(unknown_function(name, &known)),
        None => Ok(()),
    }
}

/// Refuses an opset that has neither states nor several functions, if the package needs them.
fn check_opset(args: &Args, is_explicit: bool) -> Outcome {
    let asked = args.opset.or(args.min_os);
    let Some(asked) = asked.filter(|opset| *opset < Opset::CoreMl8) else {
        return Ok(());
    };
    let needs = match (is_explicit, args.functions.len()) {
        (false, _) => STATES_NEED,
        (true, 1) => return Ok(()),
        (true, _) => "several functions in one package need iOS 18 or macOS 15",
    };
    let failure = usage!(
        "opset {} cannot express a language model: {needs}",
        asked.name()
    );
    let newer = match args.min_os {
        Some(_) => format!("--min-os {}", systems(Opset::CoreMl8.name())),
        None => format!("--opset {}", Opset::CoreMl8.name()),
    };
    Err(failure.remedy(newer).remedy(
        "--form ane --kv explicit --functions decode, a package of one function without states",
    ))
}

fn tables_of_compiled(args: &Args) -> Failure {
    let package = args.out.with_extension("mlpackage");
    Failure::from(RuntimeError::TablesOfCompiled)
        .remedy(format!("-o {}", package.display()))
        .remedy("--lookup inside, without --direct and --head host")
}

/// Names the flag by which the opset was chosen.
pub(super) fn unwritten(error: RuntimeError, args: &Args) -> Failure {
    match error {
        RuntimeError::Opset(error) if args.min_os.is_some() => {
            let lowest = error.lowest;
            let failure = usage(*error);
            match lowest {
                Some(lowest) => failure.remedy(format!("--min-os {}", systems(lowest))),
                None => failure,
            }
        }
        error @ RuntimeError::Compress(_) => {
            usage(anyhow::Error::new(error).context(args.model.clone()))
        }
        error => error.into(),
    }
}

/// The oldest systems that have an opset: `macos15 or ios18`.
fn systems(ios: &str) -> String {
    let version = ios.strip_prefix("ios").and_then(|n| n.parse::<u32>().ok());
    match version {
        Some(n) => format!("macos{} or {ios}", n.saturating_sub(3)),
        None => ios.to_owned(),
    }
}
