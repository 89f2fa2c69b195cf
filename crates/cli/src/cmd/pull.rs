//! `thane pull`: fetch a model, or bring it up to date.

use std::time::Instant;

use serde::Serialize;

use crate::app::App;
use crate::exit::Outcome;
use crate::hub::{self, Check};
use crate::output::bytes;

/// Fetch a model into the cache, or bring it up to date.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A name of the catalogue, or hf:org/name[/file][@revision].
    model: String,
    /// Read every byte of a model that is there and compare its sha256.
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
    /// What came over the network this time; 0 when the model was there.
    fetched_bytes: u64,
    seconds: f64,
    /// Known for the catalogue's models, otherwise null.
    licence: Option<&'a str>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let started = Instant::now();
    let check = if args.check {
        Check::Bytes
    } else {
        Check::Record
    };
    let files = hub::pull(&args.model, check, &app.hub)?;
    let length = hub::bytes_of(&files.path);
    let seconds = started.elapsed().as_secs_f64();
    if app.output.is_json() {
        return Ok(app.output.json(&Report {
            model: &files.name,
            path: &files.path,
            bytes: length,
            fetched_bytes: files.fetched,
            seconds,
            licence: files.licence.as_deref(),
        })?);
    }
    let how = match files.fetched {
        0 if args.check => "was there already; every byte was checked".to_owned(),
        0 => "was there already".to_owned(),
        n => format!("{} fetched in {seconds:.1} s", bytes(n)),
    };
    app.output
        .say(&format!("{}: {} ({how})", files.name, bytes(length)));
    Ok(app.output.data(&format!("{}\n", files.path.display()))?)
}
