//! `thane convert --task embed`.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use thane_audit::target::Target;
use thane_mil::opset::Opset;
use thane_runtime::{
    BundleOptions, CompressOptions, Model, Task as ModelTask, WrittenBundle, check_opset,
    encoder_subject, lower_for_ane,
};

use super::{Args, audited, measured, say_compressed, target_names};
use crate::app::App;
use crate::audit::verdict::Verdict;
use crate::calibrate::weighed_embedder;
use crate::cmd::quality;
use crate::codes::{self, Compressing};
use crate::compress;
use crate::embed::bundle;
use crate::exit::{Failure, Outcome};
use crate::form::FormFlag;
use crate::model::{NumericsFlag, cpu};
use crate::output::bytes;

/// What `--json` prints with `--task embed`.
#[derive(Serialize)]
struct Embeds<'a> {
    model: &'a str,
    out: &'a Path,
    /// Lengths that have a function, ascending.
    buckets: &'a [usize],
    /// Whether there is a function of any length.
    flexible: bool,
    /// `inside`, `host` or `host-int8`.
    lookup: &'static str,
    /// Number of packages.
    packages: usize,
    /// Bytes of all files.
    bytes: u64,
    /// Bytes that the files take on the disk: hard links to one file count once.
    disk_bytes: u64,
    audits: Vec<Verdict>,
    /// What was compressed; null without `--compress`.
    compression: Option<compress::Printed>,
    /// What `--quality` found; null without it.
    quality: Option<quality::Report>,
}

pub(super) fn write(args: &Args, model: &Model, app: &App) -> Outcome {
    if args.form.is_some_and(|form| !matches!(form, FormFlag::Ane)) {
        return Err(
            usage!("packages of embedding models are written for the Neural Engine only")
                .remedy("--form ane, which is what --task embed writes"),
        );
    }
    // Golden vectors are computed in fp32.
    let reference = cpu(NumericsFlag::F32, None, app);
    let usual = [Target::usual()];
    let targets = match &args.target[..] {
        [] => &usual[..],
        given => given,
    };
    let (flags, checkpoint) = (&args.embedding, model.checkpoint()?);
    let newest = newest_opset(args);
    if newest.is_some_and(|opset| opset < Opset::CoreMl8) {
        let options = BundleOptions {
            newest,
            ..flags.options(args.force)
        };
        let made = lower_for_ane(checkpoint, &options, app.output.as_ref())?;
        check_opset(&made.program, &options)?;
    }
    let (options, priced) = flags.priced(checkpoint, targets, &args.compression(), app)?;
    if let Some(compress) = &options.compress {
        let made = lower_for_ane(checkpoint, &options, app.output.as_ref())?;
        let make = |way: Option<&CompressOptions>| encoder_subject("", &made, way);
        args.compression.check_faults(compress, &make, targets)?;
    }
    let compress = options.compress.as_ref();
    let begin = |c: &CompressOptions| Compressing::begin(c.settings, &args.out, &app.budget);
    let mut compressing = compress.map(begin).transpose()?;
    if let Some(compressing) = &mut compressing
        && let Some(found) = weighed_embedder(&args.model, args.calibrate.as_ref(), app)?
    {
        compressing.options.importance = Arc::new(found);
    }
    let options = BundleOptions {
        replace: args.force,
        targets: target_names(args),
        compress: compressing.as_ref().map(|c| c.options.clone()),
        newest,
        ..options
    };
    if !app.output.is_json() {
        let lines = bundle::sentences(&priced, targets);
        lines.iter().for_each(|line| app.output.say(line));
    }
    let written = model.write_bundle(&args.out, &options, &reference, app.output.as_ref());
    let written = codes::finished(compressing, written.map_err(Failure::from))?;
    say(args, &model.name, options.lookup.name(), &written, app)
}

/// Says what was written, audits it and measures it.
fn say(
    args: &Args,
    name: &str,
    lookup: &'static str,
    written: &WrittenBundle,
    app: &App,
) -> Outcome {
    let mut report = Embeds {
        model: name,
        out: &args.out,
        buckets: &written.buckets,
        flexible: written.flexible,
        lookup,
        packages: written.packages,
        bytes: written.bytes,
        disk_bytes: written.disk_bytes,
        audits: Vec::new(),
        compression: written.compressed.as_ref().map(compress::Printed::from),
        quality: None,
    };
    if app.output.is_json() {
        report.audits = audited(args, false, app);
        report.quality = measured(args, ModelTask::Embed, app)?;
        return Ok(app.output.json(&report)?);
    }
    say_compressed(written.compressed.as_ref(), app);
    let lengths: Vec<String> = written.buckets.iter().map(usize::to_string).collect();
    let any = if written.flexible {
        ", and any length"
    } else {
        ""
    };
    let disk = match written.disk_bytes == written.bytes {
        true => String::new(),
        false => format!(", {} on disk", bytes(written.disk_bytes)),
    };
    app.output.say(&format!(
        "{}: {}{disk}, lengths {}{any}",
        name,
        bytes(written.bytes),
        lengths.join(", ")
    ));
    audited(args, false, app);
    measured(args, ModelTask::Embed, app)?;
    Ok(app.output.data(&format!("{}\n", args.out.display()))?)
}

/// The newest opset that the systems of all targets read, and the oldest system to support.
fn newest_opset(args: &Args) -> Option<Opset> {
    let targets = args.target.iter().map(|target| target.release.opset);
    targets.chain(args.min_os).min()
}
