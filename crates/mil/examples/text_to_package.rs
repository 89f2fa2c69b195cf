//! Parses MIL text, validates the program, lists its ops and writes a Core ML package.
//!
//!     cargo run -p thane-mil --example text_to_package -- program.mil program.mlpackage
//!
//! Without arguments the example uses a built-in program and writes to a temporary folder.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;

use thane_mil::package::{Package, SourceFile, read_source};
use thane_mil::program::Program;
use thane_mil::text::parse;

const PROGRAM: &str = "program(1.3)
{
    func main<ios18>(tensor<fp16, [1, 4]> x) {
        tensor<fp16, [3, 4]> w = const()[val =
            tensor<fp16, [3, 4]>([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])];
        tensor<fp16, [1, 3]> y = linear(x = x, weight = w);
        tensor<fp16, [1, 3]> z = silu(x = y);
    } -> (z);
}
";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [] => {
            // No weight file: `resolve` finds no constants.
            let program = parse(PROGRAM, &|_, _, _| None)?;
            let folder = tempfile::tempdir()?;
            write(program, &folder.path().join("example.mlpackage"))
        }
        [source, target] => {
            let SourceFile { program, .. } = read_source(Path::new(source))?;
            write(program, Path::new(target))
        }
        _ => Err("expected no arguments, or a .mil file and a .mlpackage folder to write".into()),
    }
}

fn write(program: Program, target: &Path) -> Result<(), Box<dyn Error>> {
    // `Package::write` validates as well and would return the violations in its error.
    if let Err(violations) = thane_mil::valid::check(&program) {
        violations.iter().for_each(|v| println!("{v}"));
        return Err("the program is not legal".into());
    }
    for function in program.functions() {
        println!("{} ({}):", function.name, function.opset.name());
        for op in function.all_ops().into_iter().map(|id| function.op(id)) {
            let results = op.results.iter().map(|r| function.value(*r));
            let results: Vec<String> = results.map(|v| format!("{}: {}", v.name, v.ty)).collect();
            println!("  {} -> {}", op.def.name, results.join(", "));
        }
    }
    let summary = Package::new(program).write(target, &[])?;
    println!(
        "wrote {}: {} constants, {} bytes of model, {} bytes of weights",
        target.display(),
        summary.n_constants,
        summary.model_bytes,
        summary.weight_bytes
    );
    Ok(())
}
