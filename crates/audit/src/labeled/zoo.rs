//! Programs of published models: their ops and shapes, with zeros for weights.
//!
//! `tests/oracle/make_zoo.py` makes them with coremltools; each is a function of one model file.

use std::collections::HashMap;
use std::io::Read;
use std::sync::LazyLock;

use thane_mil::package::program_without_weights;
use thane_mil::program::{Function, Program};

/// The model file, compressed by zstd.
const CARRIED: &[u8] = include_bytes!("../../data/zoo.mlmodel.zst");

/// Functions by name, or why the file cannot be read.
static FUNCTIONS: LazyLock<Result<HashMap<String, Function>, String>> = LazyLock::new(|| {
    let mut model = Vec::new();
    zstd::Decoder::new(CARRIED)
        .and_then(|mut decoder| decoder.read_to_end(&mut model))
        .map_err(|e| e.to_string())?;
    let program = program_without_weights("zoo.mlmodel", &model).map_err(|e| e.to_string())?;
    let functions = program.functions().iter().cloned();
    Ok(functions.map(|f| (f.name.clone(), f)).collect())
});

/// The program of a name.
pub fn program(name: &str) -> Result<Program, String> {
    let functions = FUNCTIONS.as_ref().map_err(Clone::clone)?;
    let function = functions
        .get(name)
        .ok_or_else(|| format!("the zoo has no {name:?}"))?;
    Ok(Program::new(vec![function.clone()]))
}
