//! Runs the tests of the Python module, with the library that Cargo built for this test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of this test, in which Cargo puts the library, and the one above, which has programs.
fn folders() -> [PathBuf; 2] {
    let test = std::env::current_exe().expect("a test has a path");
    let above = |path: &Path| path.parent().expect("it lies in a folder").to_owned();
    let folder = above(&test);
    [folder.clone(), above(&folder)]
}

fn library() -> Option<PathBuf> {
    let names = ["lib_thane.so", "lib_thane.dylib", "_thane.dll"];
    let [folder, _] = folders();
    let mut paths = names.iter().map(|name| folder.join(name));
    paths.find(|path| path.is_file())
}

/// The Python that has numpy: $THANE_TEST_PYTHON, or the first on the path.
fn python() -> Option<String> {
    let python = std::env::var("THANE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_numpy = Command::new(&python).args(["-c", "import numpy"]).output();
    has_numpy
        .is_ok_and(|run| run.status.success())
        .then_some(python)
}

#[test]
fn the_module_does_what_its_tests_say() {
    let Some(python) = python() else {
        println!("skipped: no Python with numpy; name one in THANE_TEST_PYTHON");
        return;
    };
    let library = library().expect("Cargo builds the library for tests");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = Command::new(python)
        .arg(folder.join("tests/run.py"))
        .arg(library)
        .arg(folders()[1].join("thane"))
        .current_dir(folder.join("../.."))
        .output()
        .expect("Python starts");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");
}
