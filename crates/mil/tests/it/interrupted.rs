//! Reading a package that is in memory ends where nobody waits for it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

use thane_mil::data::Bytes;
use thane_mil::package::{Package, PackageError};
use thane_mil::text::parse;

const N_OPS: usize = 20_000;

fn package() -> Package {
    let op = |idx| format!("tensor<fp16, [4]> y{idx} = tan(x = x);\n");
    let ops: String = (0..N_OPS).map(op).collect();
    let text =
        format!("program(1.3) {{ func main<ios18>(tensor<fp16, [4]> x) {{\n{ops} }} -> (y9); }}");
    Package::new(parse(&text, &|_, _, _| None).unwrap())
}

fn read_in(folder: &Path, root: &Path, files: &mut BTreeMap<String, Bytes>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_in(&path, root, files);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        let bytes = Bytes::new(std::fs::read(&path).unwrap());
        files.insert(name.replace('\\', "/"), bytes);
    }
}

/// The files of a package and of a compiled model.
fn both() -> [(&'static str, BTreeMap<String, Bytes>); 2] {
    let (package, folder) = (package(), tempfile::tempdir().unwrap());
    ["m.mlpackage", "m.mlmodelc"].map(|name| {
        let path = folder.path().join(name);
        match name {
            "m.mlpackage" => package.write(&path, &[]),
            _ => package.write_compiled(&path),
        }
        .unwrap();
        let mut files = BTreeMap::new();
        read_in(&path, &path, &mut files);
        (name, files)
    })
}

type Asks<'a> = &'a dyn Fn() -> bool;

/// How often `work` asks in all, and that it ends at once where the answer is yes.
fn ends_when_asked<T>(what: &str, work: &dyn Fn(Asks<'_>) -> Result<T, PackageError>) -> usize {
    let asked = Cell::new(0);
    let answer = |yes_at: usize| {
        asked.set(0);
        work(&|| asked.replace(asked.get() + 1) == yes_at)
    };
    assert!(answer(usize::MAX).is_ok(), "{what}");
    let n = asked.get();
    for yes_at in [0, n / 2, n - 1] {
        let error = answer(yes_at).err();
        let is_end = matches!(error, Some(PackageError::Interrupted { .. }));
        assert!(is_end, "{what}, at {yes_at} of {n}: {error:?}");
        assert_eq!(asked.get(), yes_at + 1, "{what}");
    }
    n
}

/// A text has some 15 tokens for each op, and a model file has messages; both are asked about once
/// in 4,096, and a package a few times more.
#[test]
fn reading_ends_soon_after_it_is_interrupted() {
    for (name, files) in both() {
        let is_text = name == "m.mlmodelc";
        let read = ends_when_asked(name, &|interrupted| {
            Package::from_files_until(name, &files, interrupted)
        });
        let counted = ends_when_asked(name, &|interrupted| {
            Package::bytes_of_files(name, &files, interrupted)
        });
        let least = if is_text { N_OPS * 15 } else { N_OPS } / 4096;
        assert!(read >= least, "{name}: asked {read} times");
        assert!(
            !is_text || counted >= least,
            "{name}: asked {counted} times"
        );
    }
}
