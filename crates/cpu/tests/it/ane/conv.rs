//! Convolutions in the accumulator against the plainest sums.

use thane_cpu::ane::Effects;
use thane_mil::build::FunctionBuilder;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Program};
use thane_mil::types::{DType, TensorType};

use super::{bytes, instance};

fn floats(shape: &[usize], seed: usize) -> Vec<f32> {
    let n = shape.iter().product();
    (0..n)
        .map(|i| ((i * 37 + seed) % 23) as f32 - 11.0)
        .collect()
}

fn constant(shape: &[usize], values: &[f32]) -> Arg {
    let ty = TensorType::new(DType::Fp32, shape.iter().copied());
    Arg::Literal(Literal::Tensor(ty, Data::owned(bytes(values))))
}

fn ints(values: &[i32]) -> Arg {
    Arg::Literal(Literal::i32s(values))
}

/// Integers that fp16 and the accumulator hold exactly, summed in the plainest way.
#[test]
fn windows_groups_steps_and_padding_are_those_of_the_op() {
    let ([n, c, h, w], [f, kh, kw], groups) = ([2usize, 4, 5, 6], [6usize, 3, 2], 2usize);
    let kernel = [f, c / groups, kh, kw];
    let (xs, ws, bs) = (
        floats(&[n, c, h, w], 5),
        floats(&kernel, 11),
        floats(&[f], 2),
    );
    // Padding (top, bottom, left, right) given, and what "same" means for the same steps: in
    // all (out - 1) * step + (kernel - 1) * dilation + 1 - in, the odd one at the end, or for
    // same_lower at the start.
    for (kind, before, [oh, ow]) in [
        ("custom", [1, 2], [1, 8]),
        ("valid", [0, 0], [1, 5]),
        ("same", [2, 0], [3, 6]),
        ("same_lower", [2, 1], [3, 6]),
    ] {
        let mut to = FunctionBuilder::new("main", Opset::CoreMl8);
        let x = to.input("x", TensorType::new(DType::Fp32, [n, c, h, w]));
        let args = [
            ("x", Arg::Value(x)),
            ("weight", constant(&kernel, &ws)),
            ("bias", constant(&[f], &bs)),
            ("strides", ints(&[2, 1])),
            ("pad_type", Arg::Literal(Literal::string(kind))),
            ("pad", ints(&[1, 0, 2, 1])),
            ("dilations", ints(&[2, 1])),
            ("groups", Arg::Literal(Literal::i32(groups as i32))),
        ];
        let y = to.op("conv", "conv", args).unwrap();
        let program = Program::new(vec![to.finish(&[("y", y)])]);
        let mut instance = instance(&program, Effects::default());
        let input = instance.input("x", &[n, c, h, w]).unwrap();
        input.copy_from_slice(&bytes(&xs));
        instance.run("main").unwrap();
        let view = instance.output("y").unwrap();
        assert_eq!(view.shape, [n, f, oh, ow], "{kind}");
        let found = super::floats(view);
        for (i, found) in found.iter().enumerate() {
            let (place, channel, image) =
                ([i / ow % oh, i % ow], i / (ow * oh) % f, i / (ow * oh * f));
            let mut sum = bs[channel];
            for (tap, w_value) in ws[channel * (c / groups) * kh * kw..][..c / groups * kh * kw]
                .iter()
                .enumerate()
            {
                let from = channel / (f / groups) * (c / groups) + tap / (kh * kw);
                let y = (place[0] * 2 + tap / kw % kh * 2)
                    .checked_sub(before[0])
                    .filter(|y| *y < h);
                let x = (place[1] + tap % kw)
                    .checked_sub(before[1])
                    .filter(|x| *x < w);
                if let (Some(y), Some(x)) = (y, x) {
                    sum += w_value * xs[((image * c + from) * h + y) * w + x];
                }
            }
            assert_eq!(*found, sum, "{kind}, element {i}");
        }
    }
}
