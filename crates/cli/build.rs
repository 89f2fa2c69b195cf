//! Links a smaller program where the linker and the loader of this machine can: 2.5 MB less.
//!
//! Places that the loader fixes up take a bit each instead of 24 bytes (glibc from 2.36 on knows
//! that), and functions and constants with the same bytes are there once (LLD). Whether both are
//! so, a program of nothing tells; where it is built for another machine, nothing is asked for.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const WANTED: [&str; 3] = [
    "-Wl,-z,pack-relative-relocs",
    "-Wl,--icf=all",
    "-Wl,--ignore-data-address-equality",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_native = variable("HOST") == variable("TARGET");
    if !is_native || variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let folder = PathBuf::from(variable("OUT_DIR"));
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    if runs(&mut rustc, &folder) {
        for flag in WANTED {
            println!("cargo:rustc-link-arg-bins={flag}");
        }
    }
}

/// Whether a program that is linked so starts.
fn runs(rustc: &mut Command, folder: &Path) -> bool {
    let (source, program) = (folder.join("nothing.rs"), folder.join("nothing"));
    let is_built = std::fs::write(&source, "fn main() {}").is_ok() && {
        for flag in WANTED {
            rustc.arg("-C").arg(format!("link-arg={flag}"));
        }
        rustc.arg("-o").arg(&program).arg(&source);
        ends_well(rustc)
    };
    is_built && ends_well(&mut Command::new(program))
}

fn ends_well(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
