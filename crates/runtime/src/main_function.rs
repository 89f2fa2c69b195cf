//! The name of a package's only function: `main`.
//!
//! coremltools treats a package that lists its functions by name as a multifunction model, which
//! its compression, bisection and other utilities reject. A package with one function therefore
//! calls it `main`. The contract keeps the name that the calls of the model use, and a reader
//! renames `main` to it, so that the functions of several packages differ.

pub use thane_calls::names::MAIN;
use thane_mil::program::Program;

use crate::contract::Contract;

/// The program as a package has it: the only function is called `main`.
pub fn with_main(program: &Program) -> Program {
    match program.functions() {
        [_] => renamed(program, MAIN),
        _ => program.clone(),
    }
}

/// The program of a package with the function names of its contract.
pub fn with_contract_names(program: Program, contract: &Contract) -> Program {
    match name_of_main(&program, contract) {
        Some(name) => renamed(&program, name),
        None => program,
    }
}

/// The contract's name for `main`, if the package has no other function. Packages of earlier
/// versions have the same name in both.
pub fn name_of_main<'a>(program: &Program, contract: &'a Contract) -> Option<&'a str> {
    let mut names = contract.functions.keys();
    match (program.functions(), names.next(), names.next()) {
        ([only], Some(name), None) if only.name == MAIN => Some(name),
        _ => None,
    }
}

fn renamed(program: &Program, name: &str) -> Program {
    let functions = program.functions().iter().cloned().map(|mut function| {
        name.clone_into(&mut function.name);
        function
    });
    Program::new(functions.collect())
}
