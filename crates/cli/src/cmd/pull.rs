//! `thane pull`: downloads a model, or brings it up to date.

use std::time::Instant;

use serde::Serialize;

use crate::app::App;
use crate::exit::Outcome;
use crate::output::bytes;
use thane_hub::Check;

/// Download a model into the cache, or bring it up to date.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A name of the catalog, or hf:org/name[/file][@revision].
    model: String,
    /// Read every byte of a model in the cache and compare its hash.
    #[arg(long)]
    check: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    path: &'a std::path::Path,
    /// Length of the file, or of all files of the folder.
    bytes: u64,
    /// Bytes that were downloaded now; 0 if the model was in the cache.
    fetched_bytes: u64,
    seconds: f64,
    /// License of a model of the catalog, otherwise null.
    license: Option<&'a str>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let started = Instant::now();
    let check = if args.check {
        Check::Bytes
    } else {
        Check::Record
    };
    let files = app.hub.pull(&args.model, check)?;
    let length = thane_hub::model_bytes(&files.path);
    let seconds = started.elapsed().as_secs_f64();
    let report = Report {
        model: &files.name,
        path: &files.path,
        bytes: length,
        fetched_bytes: files.downloaded_bytes,
        seconds,
        license: files.license.as_deref(),
    };
    let how = match files.downloaded_bytes {
        0 if args.check => "was there already; every byte was checked".to_owned(),
        0 => "was there already".to_owned(),
        n => format!("{} fetched in {seconds:.1} s", bytes(n)),
    };
    Ok(app.output.report(&report, |report| {
        app.output
            .say(&format!("{}: {} ({how})", report.model, bytes(length)));
        format!("{}\n", report.path.display())
    })?)
}
