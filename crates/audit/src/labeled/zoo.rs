//! Programs of published models: their ops and shapes, with zeros for weights.
//!
//! `tests/oracle/make_zoo.py` makes them with coremltools; each is a function of one model file.

use std::collections::HashMap;
use std::io::Read;
use std::sync::LazyLock;

use prost::Message;
use thane_mil::package::program_without_weights;
use thane_mil::package::proto::{self, binding::Binding};
use thane_mil::program::{Function, Program};

/// The model file, compressed by zstd.
const CARRIED: &[u8] = include_bytes!("../../data/zoo.mlmodel.zst");

/// Functions by name, or why the file cannot be read.
static FUNCTIONS: LazyLock<Result<HashMap<String, Function>, String>> = LazyLock::new(|| {
    let mut model = Vec::new();
    zstd::Decoder::new(CARRIED)
        .and_then(|mut decoder| decoder.read_to_end(&mut model))
        .map_err(|e| e.to_string())?;
    let model = proto::Model::decode(model.as_slice()).map_err(|e| e.to_string())?;
    let mut program = model.ml_program.ok_or("the zoo has no program")?;
    for function in program.functions.values_mut() {
        name_values(function)?;
    }
    let program = program_without_weights("zoo.mlmodel", &program).map_err(|e| e.to_string())?;
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

/// Names values, which have numbers in the file, so that layers that are alike have the same bytes.
fn name_values(function: &mut proto::Function) -> Result<(), String> {
    let mut names = Names(0);
    function.inputs.iter_mut().for_each(|v| names.name(v));
    let mut blocks = function.block_specializations.values_mut();
    blocks.try_for_each(|block| names.name_block(block))
}

/// How many values have names.
struct Names(usize);

impl Names {
    fn name_block(&mut self, block: &mut proto::Block) -> Result<(), String> {
        block.inputs.iter_mut().for_each(|v| self.name(v));
        for op in &mut block.operations {
            let bindings = op.inputs.values_mut().flat_map(|a| &mut a.arguments);
            for binding in bindings {
                if let Some(Binding::Name(name)) = &mut binding.binding {
                    *name = self.named(name)?;
                }
            }
            for block in &mut op.blocks {
                self.name_block(block)?;
            }
            op.outputs.iter_mut().for_each(|v| self.name(v));
        }
        for name in &mut block.outputs {
            *name = self.named(name)?;
        }
        Ok(())
    }

    fn name(&mut self, value: &mut proto::NamedValueType) {
        self.0 += 1;
        value.name = format!("v{}", self.0);
    }

    /// The name of the value that a number says: how far before, or with `=` which of all.
    fn named(&self, number: &str) -> Result<String, String> {
        let index = match number.strip_prefix('=') {
            Some(index) => index.parse().ok(),
            None => number.parse().ok().and_then(|n| self.0.checked_sub(n)),
        };
        let index: usize = index.ok_or_else(|| format!("the zoo has no value {number:?}"))?;
        Ok(format!("v{}", index + 1))
    }
}
