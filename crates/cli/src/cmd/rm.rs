//! `thane rm`: removes a model from the cache.

use std::path::Path;

use serde::Serialize;

use crate::app::App;
use crate::exit::Outcome;
use crate::output::bytes;

/// Remove a model from the cache, also an incomplete one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A name that `thane ls` shows: of the catalog, hf:org/name, or hf:org/name/file.
    model: String,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    path: &'a Path,
    freed_bytes: u64,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let removed = app.hub.remove(&args.model)?;
    let report = Report {
        model: &removed.name,
        path: &removed.path,
        freed_bytes: removed.freed_bytes,
    };
    Ok(app.output.report(&report, |report| {
        format!("{}: {} freed\n", report.model, bytes(report.freed_bytes))
    })?)
}
