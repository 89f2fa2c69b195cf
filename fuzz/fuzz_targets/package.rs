//! Packages: the model file and the weight file of one, read; what is accepted is run, written and
//! read back equal.
//!
//! An input is the length of the model file (u32, little-endian), the model file and the weight
//! file.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use thane_fuzz::{Rng, run};
use thane_mil::package::Package;
use thane_mil::program::difference;

const MANIFEST: &str = r#"{"fileFormatVersion": "1.0.0", "itemInfoEntries": {
    "a": {"author": "com.apple.CoreML", "description": "", "name": "model.mlmodel", "path": "com.apple.CoreML/model.mlmodel"},
    "b": {"author": "com.apple.CoreML", "description": "", "name": "weights", "path": "com.apple.CoreML/weights"}},
    "rootModelIdentifier": "a"}"#;

fuzz_target!(|data: &[u8]| {
    let Some((len, rest)) = data.split_first_chunk::<4>() else {
        return;
    };
    let (model, weights) = rest.split_at((u32::from_le_bytes(*len) as usize).min(rest.len()));
    let folder = folder();
    let core_ml = folder.join("Data/com.apple.CoreML");
    let written = fs::write(core_ml.join("model.mlmodel"), model)
        .and_then(|()| fs::write(core_ml.join("weights/weight.bin"), weights));
    written.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let Ok(package) = Package::open(folder) else {
        return;
    };
    run(&package.program, &mut Rng::new(data));
    let copy = folder.with_extension("copy");
    if package.replace(&copy, &[]).is_ok() {
        let back = Package::open(&copy).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(difference(&package.program, &back.program), None);
    }
});

/// A folder of this process with everything but the two files.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder =
            std::env::temp_dir().join(format!("thane-fuzz-{}.mlpackage", std::process::id()));
        let made = fs::create_dir_all(folder.join("Data/com.apple.CoreML/weights"))
            .and_then(|()| fs::write(folder.join("Manifest.json"), MANIFEST));
        made.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        folder
    })
}
