//! A package audited from the bytes of its files gives the report of the same package on disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use thane_audit::format::json;
use thane_audit::report::files::package;
use thane_audit::report::{Part, Scope, Subject, build};
use thane_audit::target::Target;
use thane_mil::data::Bytes;
use thane_mil::package::{Package, read_source};

/// Every file below a folder, by its path in it.
fn files_in(folder: &Path) -> BTreeMap<String, Bytes> {
    let (mut files, mut pending) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
            files.insert(
                name.replace('\\', "/"),
                Bytes::new(fs::read(&path).unwrap()),
            );
        }
    }
    files
}

fn print(subject: &Subject) -> String {
    let report = build(subject, &[Target::usual()], Scope::default());
    json::print(&report).unwrap()
}

/// Compare the reports; whether there is a weight file.
fn compare(path: &Path, kind: &'static str) -> bool {
    let files = files_in(path);
    let part = Part::from(Package::open(path).unwrap());
    let from_disk = Subject {
        disk_bytes: files.values().map(|bytes| bytes.len() as u64).sum(),
        ..Subject::new("x", kind, vec![part])
    };
    let from_bytes = package("x", &files, &|| false).unwrap().subject;
    assert_eq!(print(&from_bytes), print(&from_disk), "{}", path.display());
    files.keys().any(|name| name.ends_with("weight.bin"))
}

#[test]
fn packages_and_compiled_models_are_audited_from_bytes() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packages");
    let (mut n, mut n_with_weights) = (0, 0);
    for entry in fs::read_dir(cases).unwrap() {
        let path = entry.unwrap().path();
        let Ok(opened) = Package::open(&path) else {
            continue;
        };
        n += 1;
        n_with_weights += usize::from(compare(&path, "package"));
        let dir = tempfile::tempdir().unwrap();
        let compiled = dir.path().join("a.mlmodelc");
        // Not every package has a compiled form.
        if opened.write_compiled(&compiled).is_ok() {
            compare(&compiled, "compiled");
        }
    }
    assert!(
        n > 10 && n_with_weights > 0,
        "{n} packages, {n_with_weights} with weights"
    );
}

#[test]
fn a_package_without_its_files_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/audit/ANE001.mil");
    let path = dir.path().join("a.mlpackage");
    let written = Package::new(read_source(&case).unwrap().program);
    written.write(&path, &[]).unwrap();
    let whole = files_in(&path);
    package("a", &whole, &|| false).unwrap();
    for missing in ["Manifest.json", "Data/com.apple.CoreML/model.mlmodel"] {
        let mut files = whole.clone();
        files.remove(missing).unwrap();
        let error = package("a", &files, &|| false).unwrap_err().to_string();
        assert!(error.starts_with("a has no"), "{missing}: {error}");
    }
    let mut files = whole;
    let manifest = files["Manifest.json"].as_slice();
    let outside = String::from_utf8(manifest.to_vec())
        .unwrap()
        .replace("com.apple.CoreML/model.mlmodel", "../model.mlmodel");
    files.insert("Manifest.json".to_owned(), Bytes::new(outside.into_bytes()));
    assert!(package("a", &files, &|| false).is_err());
}
