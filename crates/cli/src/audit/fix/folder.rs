//! Fixes every package of a folder; weights that the packages share stay shared.

use std::path::{Path, PathBuf};
use std::{fs, io};

use thane_audit::fix::{Measure, Report};
use thane_mil::package::{create_folders, open_regular};
use thane_runtime::RuntimeError;
use thane_runtime::files::{hash, hash_tree, link_equal, walk};
use thane_runtime::manifest::{MANIFEST, Manifest, read_checked_manifest};

use super::{Request, of_package, unfit};
use crate::app::App;
use crate::audit::subject::packages_in;
use crate::exit::{Failure, other, usage};
use crate::out::file_name;

/// Path of the weights in a package.
const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

/// Fix the packages of a folder; either all of them are written or none, as where nothing is fixed.
pub fn run(request: &Request<'_>, app: &App) -> Result<Report, Failure> {
    let (from, to) = (request.from, request.to);
    let unwritten = |e: anyhow::Error| other(e.context(format!("{} is not written", to.display())));
    let found = if from.is_dir() {
        packages_in(from).map_err(usage)?
    } else {
        Vec::new()
    };
    if found.is_empty() || super::place::is_text(to) {
        return Err(unfit(from));
    }
    let manifest = manifest(from)?;
    let mut reports = Vec::new();
    super::place::write(to, request.force, |to| {
        for package in &found {
            let name = file_name(package);
            app.output.explain(&format!("fixing {name}"));
            reports.push(named(
                of_package(package, &to.join(&name), request, app, |_| false)?,
                &name,
            ));
        }
        if reports.iter().all(Report::is_unchanged) {
            return Ok(false);
        }
        finish(from, to, &found, manifest, app).map_err(unwritten)?;
        Ok(true)
    })?;
    reports
        .into_iter()
        .reduce(joined)
        .ok_or_else(|| unfit(from))
}

/// What packages share, what lies beside them, and their hashes.
fn finish(
    from: &Path,
    to: &Path,
    found: &[PathBuf],
    manifest: Option<Manifest>,
    app: &App,
) -> anyhow::Result<()> {
    for name in share(from, to, found)? {
        app.output.say(&format!(
            "{name}: its weights were those of another package; fixed otherwise, they no longer are"
        ));
    }
    copy_others(from, to, found)?;
    if let Some(manifest) = manifest {
        let files = hash_tree(to)?;
        // The quality was that of the packages before they were fixed.
        let manifest = Manifest {
            files,
            quality: None,
            ..manifest
        };
        let mut text = serde_json::to_vec_pretty(&manifest)?;
        text.push(b'\n');
        fs::write(to.join(MANIFEST), text)?;
    }
    Ok(())
}

/// The manifest of a folder that Thane wrote, after everything that it names was compared.
fn manifest(from: &Path) -> Result<Option<Manifest>, Failure> {
    Ok(read_checked_manifest(from)
        .map_err(RuntimeError::from)?
        .map(|(manifest, _)| manifest))
}

/// Make weights one file where they were one, or equal, before and are equal again; the packages
/// whose weights no longer are.
fn share(from: &Path, to: &Path, packages: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let (mut kept, mut apart): (Vec<(String, PathBuf)>, _) = (Vec::new(), Vec::new());
    let sha256_of = |path: &Path| hash(path, String::new()).map(|file| file.sha256);
    for package in packages {
        let name = package.strip_prefix(from)?;
        let (before, after) = (package.join(WEIGHTS), to.join(name).join(WEIGHTS));
        if !before.is_file() || !after.is_file() {
            continue;
        }
        let old = sha256_of(&before)?;
        match kept.iter().find(|(other, _)| *other == old) {
            None => kept.push((old, after)),
            Some((_, first)) if sha256_of(first)? == sha256_of(&after)? => {
                link_equal(first, &after)?
            }
            Some(_) => apart.push(name.display().to_string()),
        }
    }
    Ok(apart)
}

/// Copy the files beside the packages.
fn copy_others(from: &Path, to: &Path, packages: &[PathBuf]) -> anyhow::Result<()> {
    for (name, _) in walk(from)? {
        let path = from.join(&name);
        if name != MANIFEST && !packages.iter().any(|p| path.starts_with(p)) {
            let copy = to.join(&name);
            if let Some(parent) = copy.parent() {
                create_folders(parent)?;
            }
            io::copy(&mut open_regular(&path)?, &mut fs::File::create(copy)?)?;
        }
    }
    Ok(())
}

/// A report whose functions are told apart from those of other packages, as a report of the audit
/// tells them apart.
fn named(mut report: Report, package: &str) -> Report {
    let steps = report.steps.iter_mut().map(|s| &mut s.function);
    let left = report.left.iter_mut().map(|l| &mut l.function);
    let interface = report.interface.iter_mut().map(|c| &mut c.function);
    for function in steps.chain(left).chain(interface) {
        *function = if function.is_empty() {
            package.to_owned()
        } else {
            format!("{package}/{function}")
        };
    }
    report
}

fn joined(mut all: Report, next: Report) -> Report {
    all.before = Measure::total([all.before, next.before]);
    all.after = Measure::total([all.after, next.after]);
    all.steps.extend(next.steps);
    all.left.extend(next.left);
    all.interface.extend(next.interface);
    all
}
