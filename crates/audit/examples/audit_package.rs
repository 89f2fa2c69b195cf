//! Audit a Core ML package from the bytes of its files: where its ops run on a chip, and how long a
//! call takes.
//!
//! ```text
//! cargo run -p thane-audit --example audit_package -- model.mlpackage m4+macos15
//! ```
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use thane_audit::report::files::{self, Opened};
use thane_audit::report::{Scope, build};
use thane_audit::target::{Route, Target, Units};
use thane_mil::data::Bytes;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let default = "tests/packages/ios16_half.mlpackage";
    let path = args.next().unwrap_or_else(|| default.to_owned());
    let target = args.next().unwrap_or_else(|| "m4".to_owned());

    let mut found = BTreeMap::new();
    read(Path::new(&path), Path::new(""), &mut found)?;
    let Opened { subject, .. } = files::package(&path, &found, &|| false)?;
    let target = Target::parse(&target, Units::default(), Route::default())?;
    let report = build(&subject, &[target], Scope::default());
    for function in &report.targets[0].functions {
        println!(
            "{}: {} of {} ops on the Neural Engine, {} ms",
            function.name,
            function.ane_ops,
            function.ops,
            function.latency.interval()
        );
    }
    for finding in &report.targets[0].findings {
        println!("{} {}: {}", finding.severity, finding.rule, finding.message);
    }
    Ok(())
}

/// Collect the files below a folder by their paths in it, as a page in a browser would receive
/// them.
fn read(folder: &Path, inside: &Path, files: &mut BTreeMap<String, Bytes>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder.join(inside))? {
        let inner = inside.join(entry?.file_name());
        let path = folder.join(&inner);
        if path.is_dir() {
            read(folder, &inner, files)?;
        } else {
            let bytes = Bytes::new(std::fs::read(path)?);
            files.insert(inner.to_string_lossy().replace('\\', "/"), bytes);
        }
    }
    Ok(())
}
