//! Runs a small MIL program on the CPU: `cargo run -p thane-cpu --example run_text`
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::Backend;
use thane_mil::text::parse;

const PROGRAM: &str = "program(1.3)
{
    func main<ios18>(tensor<fp32, [1, 3]> x) {
        tensor<fp32, [2, 3]> w = const()[val = tensor<fp32, [2, 3]>([[1, 2, 3], [4, 5, 6]])];
        tensor<fp32, [1, 2]> y = linear(x = x, weight = w);
    } -> (y);
}
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // No weight file: `resolve` finds no constants.
    let program = parse(PROGRAM, &|_, _, _| None)?;
    let n_threads = std::thread::available_parallelism()?.get();
    let cpu = Cpu::new(Numerics::F32, n_threads);
    let mut instance = cpu.load(&program)?.instantiate()?;
    let x: [f32; 3] = [1.0, -1.0, 0.5];
    let input = instance.input("x", &[1, x.len()])?;
    input.copy_from_slice(bytemuck::cast_slice(&x));
    instance.run("main")?;
    let output = instance.output("y")?;
    let y: &[f32] = bytemuck::cast_slice(output.bytes);
    println!("{:?} = {y:?}", output.shape); // [1, 2] = [0.5, 2.0]
    Ok(())
}
