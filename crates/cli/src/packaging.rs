//! What verbs that write packages share: the opset, the declared shapes, the files that weights come
//! from, and the failure of a package that was not written.

use std::path::{Path, PathBuf};

use thane_mil::lower;
use thane_mil::opset::Opset;
use thane_mil::package::{Feature, Interface, PackageError, Shape, SizeRange};
use thane_mil::program::{Function, Program};
use thane_mil::types::{Dim, Type};
use thane_models::checkpoint::Checkpoint;

use crate::exit::{Code, Failure};

/// The opset that the user asked for, and the flag that asked.
pub struct Wanted {
    pub opset: Opset,
    pub flag: &'static str,
}

/// The program in the opset that was asked for, else in the lowest that has every op.
pub fn in_opset(program: Program, asked: Option<Wanted>) -> Result<Program, Failure> {
    let lowest = lower::lowest_opset(&program);
    let wanted = asked
        .as_ref()
        .map(|asked| asked.opset)
        .or(lowest)
        .unwrap_or(Opset::CoreMl8);
    lower::with_opset(&program, wanted).map_err(|violations| {
        let lines: Vec<String> = violations
            .iter()
            .take(8)
            .map(|v| format!("\n  {v}"))
            .collect();
        let more = violations.len().saturating_sub(lines.len());
        let more = if more > 0 {
            format!("\n  and {more} more")
        } else {
            String::new()
        };
        let states = if has_states(&program) {
            format!(" {STATES_NEED};")
        } else {
            String::new()
        };
        let name = wanted.name();
        let error = anyhow::anyhow!(
            "opset {name} cannot say this program:{states}{}{more}",
            lines.concat()
        );
        let failure = Failure::new(Code::Usage, error);
        match (lowest, asked) {
            (
                Some(lowest),
                Some(Wanted {
                    flag: "--min-os", ..
                }),
            ) => failure.remedy(format!("--min-os {}", systems(lowest))),
            (Some(lowest), _) => failure.remedy(format!("--opset {}", lowest.name())),
            (None, _) => failure,
        }
    })
}

/// Why no older system runs a package with a cache.
pub const STATES_NEED: &str = "caches are states, which need iOS 18 or macOS 15";

/// Whether a program keeps state between calls.
pub fn has_states(program: &Program) -> bool {
    let is_state = |f: &Function| {
        f.body()
            .inputs
            .iter()
            .any(|v| matches!(f.value(*v).ty, Type::State(_)))
    };
    program.functions().iter().any(is_state)
}

/// The oldest systems that have an opset: `macos15 or ios18`.
fn systems(opset: Opset) -> String {
    let ios = opset.name();
    let version = ios.strip_prefix("ios").and_then(|n| n.parse::<u32>().ok());
    version.map_or_else(
        || ios.to_owned(),
        |n| format!("macos{} or {ios}", n.saturating_sub(3)),
    )
}

/// The files that the weights are read from.
pub fn weight_files(checkpoint: &Checkpoint) -> Result<Vec<PathBuf>, Failure> {
    if !checkpoint.path.is_dir() {
        return Ok(vec![checkpoint.path.clone()]);
    }
    let entries =
        std::fs::read_dir(&checkpoint.path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let unread = |e| {
        Failure::new(
            Code::Usage,
            anyhow::Error::new(e).context(checkpoint.path.display().to_string()),
        )
    };
    let entries = entries.map_err(unread)?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|e| e.path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "safetensors"));
    files.sort();
    Ok(files)
}

/// The declared shapes of a function: an open axis takes 1 to `context` tokens.
pub fn interface(f: &Function, context: usize) -> Interface {
    let open = f
        .body()
        .inputs
        .iter()
        .map(|v| f.value(*v))
        .filter_map(|v| match &v.ty {
            Type::Tensor(t) if t.known_shape().is_none() => Some((v.name.clone(), t)),
            _ => None,
        });
    let features = open.map(|(name, ty)| {
        let size = |d: &Dim| d.known().unwrap_or(1);
        let range = |d: &Dim| match d.known() {
            Some(n) => SizeRange {
                lower: n,
                upper: Some(n),
            },
            None => SizeRange {
                lower: 1,
                upper: Some(context),
            },
        };
        let shape = Shape::Ranges {
            default: ty.shape.iter().map(size).collect(),
            ranges: ty.shape.iter().map(range).collect(),
        };
        (
            name,
            Feature {
                shape,
                ..Feature::default()
            },
        )
    });
    Interface {
        features: features.collect(),
        ..Interface::default()
    }
}

/// The failure of a package that could not be written.
pub fn unwritten(error: PackageError, path: &Path) -> Failure {
    let code = match &error {
        PackageError::Io { fault, .. } if fault.kind() != std::io::ErrorKind::InvalidInput => {
            Code::Other
        }
        _ => Code::Usage,
    };
    Failure::new(
        code,
        anyhow::Error::new(error).context(format!("{} is not written", path.display())),
    )
}
