//! Run a program that is written as MIL text on the CPU.
//!
//!     cargo run -p thane-cpu --example run_mil

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::Backend;
use thane_mil::text::parse;
use thane_mil::valid;

/// Each call adds `x` to a state and gives the softmax of the sum.
const TEXT: &str = "program(1.3) {
    func main<ios18>(tensor<fp32, [3]> x, state<tensor<fp32, [3]>> sum) {
        tensor<fp32, [3]> old = read_state(input = sum);
        tensor<fp32, [3]> new = add(x = old, y = x);
        tensor<fp32, [3]> kept = coreml_update_state(state = sum, value = new);
        tensor<fp32, [3]> shares = softmax(x = kept, axis = int32(0));
    } -> (shares);
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = parse(TEXT, &|_, _, _| None)?;
    valid::check(&program).map_err(|violations| format!("{violations:?}"))?;
    let mut instance = Cpu::new(Numerics::F32, 1).load(&program)?.instantiate()?;
    for x in [[0.0f32, 0.5, 1.0], [2.0, 0.0, 0.0]] {
        let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_ne_bytes()).collect();
        instance.input("x", &[3])?.copy_from_slice(&bytes);
        instance.run("main")?;
        let shares = instance.output("shares")?;
        let (shares, _) = shares.bytes.as_chunks();
        let shares: Vec<f32> = shares.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        println!("x = {x:?}: shares of the sums = {shares:.3?}");
    }
    Ok(())
}
