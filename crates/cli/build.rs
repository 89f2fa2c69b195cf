//! Links a smaller program where the linker and the loader of this machine can: 2.5 MB less.
//!
//! Relative relocations take one bit instead of 24 bytes, which glibc knows from 2.36 on, and LLD
//! merges functions and constants with the same bytes. An empty program that is linked so shows
//! whether each works. A cross build sets no flags.
//!
//! A program with packed relocations does not start on an older glibc than 2.36. `THANE_LINK=plain`
//! in the environment of the build leaves both out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Linker arguments that are of use together.
const WANTED: [&[&str]; 2] = [
    &["-Wl,-z,pack-relative-relocs"],
    &["-Wl,--icf=all", "-Wl,--ignore-data-address-equality"],
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=THANE_LINK");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_native = variable("HOST") == variable("TARGET");
    let is_plain = variable("THANE_LINK") == "plain";
    if is_plain || !is_native || variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let folder = PathBuf::from(variable("OUT_DIR"));
    for flags in WANTED {
        if starts(&folder, flags) {
            for flag in flags {
                println!("cargo:rustc-link-arg-bins={flag}");
            }
        }
    }
}

/// Whether an empty program that is linked with these flags starts.
fn starts(folder: &Path, flags: &[&str]) -> bool {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (source, program) = (folder.join("empty.rs"), folder.join("empty"));
    let mut rustc = Command::new(variable("RUSTC"));
    let given = variable("CARGO_ENCODED_RUSTFLAGS");
    rustc.args(given.split('\u{1f}').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    for flag in flags {
        rustc.arg("-C").arg(format!("link-arg={flag}"));
    }
    rustc.arg("-o").arg(&program).arg(&source);
    std::fs::write(&source, "fn main() {}").is_ok()
        && ends_well(&mut rustc)
        && ends_well(&mut Command::new(program))
}

fn ends_well(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
