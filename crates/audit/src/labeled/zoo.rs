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

/// Functions by name; none if the file is damaged, which a test excludes.
static FUNCTIONS: LazyLock<HashMap<String, Function>> = LazyLock::new(|| {
    let program = read().map_err(|e| { let t = format!("{e:?}"); eprintln!("{}", &t[..t.len().min(4000)]) }).ok().into_iter();
    program
        .flat_map(|p| p.functions().to_vec())
        .map(|f| (f.name.clone(), f))
        .collect()
});

fn read() -> Result<Program, Box<dyn std::error::Error>> {
    let mut model = Vec::new();
    zstd::Decoder::new(CARRIED)?.read_to_end(&mut model)?;
    Ok(program_without_weights("zoo.mlmodel", &model)?)
}

/// The program of a name.
pub fn program(name: &str) -> Option<Program> {
    FUNCTIONS
        .get(name)
        .map(|function| Program::new(vec![function.clone()]))
}
