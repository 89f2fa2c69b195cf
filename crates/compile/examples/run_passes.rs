//! Run every pass over a small program and print what became of it.
//!
//! ```text
//! cargo run -p thane-compile --example run_passes
//! ```
#![allow(clippy::print_stdout)]

use std::error::Error;

use thane_compile::{Options, run};
use thane_mil::text::{Blobs, parse, print};

/// Two equal ops, a no-op, and an op that nothing uses.
const PROGRAM: &str = r#"program(1.3)
{
    func main<ios18>(tensor<fp16, [1, 64]> x) {
        tensor<fp16, [1, 64]> a = relu(x = x)[name = string("a")];
        tensor<fp16, [1, 64]> b = relu(x = x)[name = string("b")];
        tensor<fp16, [1, 64]> c = identity(x = b)[name = string("c")];
        tensor<fp16, [1, 64]> unused = exp(x = c)[name = string("unused")];
        tensor<fp16, [1, 64]> y = add(x = a, y = c)[name = string("y")];
    } -> (y);
}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let program = parse(PROGRAM, &|_, _, _| None)?;
    let (program, report) = run(program, &Options::default())?;
    for pass in &report.passes {
        println!("{pass}");
    }
    for function in &report.functions {
        println!("{function}");
    }
    println!("{}", print(&program, &mut Blobs::default()));
    Ok(())
}
