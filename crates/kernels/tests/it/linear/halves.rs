//! 16-bit floats in panels, against f64 and against the same matrix as it is stored.

use thane_kernels::linear::{
    Epilogue, HalfPanels, Operand, Precision, Product, half_panels_len, linear, linear_scratch_len,
    pack_halves,
};
use thane_kernels::{BlockType, Context, Weight};

use super::{case, contexts, product, shapes, starts, worst_error};
use crate::testing::Random;

/// In two parts, over what was there before.
fn packed(ctx: &Context, weight: &Weight) -> Vec<u8> {
    let len = half_panels_len(weight.ty, weight.n_rows, weight.n_cols).unwrap();
    let mut packed = vec![0xa5; len];
    let middle = weight.n_rows.min(16) / 16 * 16;
    pack_halves(ctx, weight, middle..weight.n_rows, &mut packed);
    pack_halves(ctx, weight, 0..middle, &mut packed);
    packed
}

#[test]
fn products_of_16_bit_floats_in_panels_are_those_of_their_values() {
    let mut random = Random::new(41);
    for ty in [BlockType::F16, BlockType::Bf16] {
        for shape @ (n_tokens, n_rows, n_cols) in shapes(ty) {
            let case = case(&mut random, ty, shape);
            let weight = Weight::new(ty, &case.bytes, n_rows, n_cols).unwrap();
            let wide: Vec<f64> = case.x.iter().map(|x| f64::from(*x)).collect();
            let due = product(&case.values, &wide, n_cols, &case.bias);
            for (start, before, due) in starts(&mut random, &case.bias, due) {
                for ctx in contexts() {
                    let panels = packed(&ctx, &weight);
                    let panels = HalfPanels::new(ty, &panels, [n_rows, n_cols]).unwrap();
                    let mut y = before.clone();
                    let mut products = [Product::new(
                        Operand::Halves(panels),
                        n_tokens,
                        start,
                        &mut y,
                    )];
                    let (fast, none) = (Precision::Fast, Epilogue::None);
                    let len = linear_scratch_len(&ctx, fast, &products, n_tokens, none);
                    let mut scratch = vec![f32::NAN; len];
                    let x = &case.x;
                    linear(&ctx, fast, &mut products, x, n_tokens, none, &mut scratch);
                    let error = worst_error(&y, &due);
                    assert!(error < 1e-6, "{ty:?} {shape:?} {:?}: {error}", ctx.isa());
                }
            }
        }
    }
}

#[test]
fn panels_of_16_bit_floats_have_the_length_that_they_need() {
    assert_eq!(half_panels_len(BlockType::F16, 17, 5), Some(320));
    assert_eq!(half_panels_len(BlockType::Bf16, 16, 5), Some(160));
    assert_eq!(half_panels_len(BlockType::F32, 16, 5), None);
    assert_eq!(half_panels_len(BlockType::F16, usize::MAX, 5), None);
    assert!(HalfPanels::new(BlockType::F16, &[0; 319], [17, 5]).is_none());
}
