//! List the block types, and show what each makes of the same bytes.
//!
//!     cargo run -p thane-blocks --example types

#![allow(clippy::print_stdout)]

use thane_blocks::BlockType;

fn main() {
    println!("type     values  bytes  bits/value  largest magnitude in an example block");
    for ty in BlockType::ALL {
        let (n_values, n_bytes) = (ty.block_len(), ty.block_bytes());
        let bytes: Vec<u8> = (0..n_bytes).map(|i| (i * 37 % 64) as u8).collect();
        let mut values = vec![0.0; n_values];
        ty.decode(&bytes, &mut values);
        let largest = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let bits = 8.0 * n_bytes as f64 / n_values as f64;
        println!(
            "{:8} {n_values:6} {n_bytes:6} {bits:11.3}  {largest:e}",
            ty.name()
        );
    }
}
