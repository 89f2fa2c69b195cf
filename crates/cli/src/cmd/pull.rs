//! `thane pull`: downloads a model, or brings it up to date.

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use crate::app::App;
use crate::cmd::push::FormatFlag;
use crate::exit::{Failure, Outcome};
use crate::output::bytes;
use thane_hub::{Asked, Check, HubError, PublicKey, Selection};

/// Download a model into the cache, or bring it up to date.
///
/// A repository with packages has a list of its files. Each file is downloaded once, and a package
/// is all or nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A name of the catalog, or hf:org/name[/file][@revision].
    model: String,
    /// Only the packages for these lengths in tokens, such as 512,1024.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    buckets: Vec<u64>,
    /// Form: mlpackage or mlmodelc [default: mlpackage if there is one].
    #[arg(long, value_name = "FORM", hide_possible_values = true, value_enum)]
    format: Option<FormatFlag>,
    /// Copy the model to this path, as files that belong to nobody else.
    #[arg(long, value_name = "PATH")]
    to: Option<PathBuf>,
    /// Refuse packages whose list of files is not signed with this key.
    ///
    /// The key is a PEM file with a public key of ed25519, or its 32 bytes in base64. Every byte is
    /// compared with the hash in the signed list, also of files that were in the cache.
    #[arg(long, value_name = "KEY")]
    require_signature: Option<String>,
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
    let asked = asked(args)?;
    if let Some(to) = args.to.as_ref().filter(|to| to.symlink_metadata().is_ok()) {
        let exists = HubError::Exists { path: to.clone() };
        return Err(exists.into());
    }
    let mut files = app.hub.pull_part(&args.model, check, &asked)?;
    if let Some(to) = &args.to {
        app.hub.copy(&files, to)?;
        files.path.clone_from(to);
    }
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

fn asked(args: &Args) -> Result<Asked, Failure> {
    let key = args.require_signature.as_deref();
    let mut buckets = args.buckets.clone();
    buckets.sort_unstable();
    buckets.dedup();
    Ok(Asked {
        key: key.map(PublicKey::parse).transpose()?,
        selection: Selection {
            buckets,
            format: args.format.map(FormatFlag::into),
        },
    })
}
