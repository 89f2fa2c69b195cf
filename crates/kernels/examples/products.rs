//! Multiply activations with a quantized weight, and show how each number of tokens is computed.
//!
//!     cargo run -p thane-kernels --example products

#![allow(clippy::print_stdout)]

use thane_kernels::linear::{
    Epilogue, Operand, Precision, Product, Start, linear, linear_scratch_len,
};
use thane_kernels::{BlockType, Context, Weight};

const N_ROWS: usize = 48;
const N_COLS: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ctx = Context::new(2);
    // Q8_0: a scale in f16 (0x2000 is 2^-7), then 32 signed bytes.
    let block = |i: usize| {
        let codes = (0..32).map(move |k| ((i * 31 + k * 7) % 255) as u8);
        [0x00, 0x20].into_iter().chain(codes)
    };
    let bytes: Vec<u8> = (0..N_ROWS * N_COLS / 32).flat_map(block).collect();
    let weight = Weight::new(BlockType::Q8_0, &bytes, N_ROWS, N_COLS)?;
    for n_tokens in [1, 4, 64] {
        let x: Vec<f32> = (0..n_tokens * N_COLS).map(|i| (i as f32).sin()).collect();
        let [exact, fast] = [Precision::Exact, Precision::Fast].map(|precision| {
            let mut y = vec![0.0; n_tokens * N_ROWS];
            let products = &mut [Product::new(weight, n_tokens, Start::NONE, &mut y)];
            let none = Epilogue::None;
            let len = linear_scratch_len(&ctx, precision, products, n_tokens, none);
            let scratch = &mut vec![0.0; len];
            linear(&ctx, precision, products, &x, n_tokens, none, scratch);
            y
        });
        let path = Operand::Stored(weight).path(ctx.isa(), Precision::Fast, n_tokens);

        let largest = exact.iter().fold(0.0f32, |most, y| most.max(y.abs()));
        let error = exact
            .iter()
            .zip(&fast)
            .fold(0.0f32, |most, (e, f)| most.max((e - f).abs()));
        println!(
            "{n_tokens:2} tokens on {}: {}, largest error {:.2e} of the largest output",
            ctx.isa().name(),
            path.name(),
            error / largest
        );
    }
    Ok(())
}
