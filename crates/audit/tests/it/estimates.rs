//! Estimates of ops against the published values of Apple's segmenter.

use thane_audit::place::Backend;
use thane_mil::literal::Literal;
use thane_mil::program::Function;

use crate::place::{
    along, attention, conv, core_ml, doubled, gathered, largest, placed, product, relu, transposed,
};

/// A function, the chip, and microseconds on the Neural Engine and by BNNS, where published.
type Published = (
    &'static str,
    &'static str,
    Function,
    Option<f64>,
    Option<f64>,
);

fn published() -> Vec<Published> {
    let last = Literal::i32s(&[-1]);
    // A matmul takes 6.283 us, which lints take for 2 pi.
    vec![
        ("relu", "m4", relu(), Some(2.6214), Some(2.6214)),
        (
            "conv 3x3",
            "m4",
            conv(64, 3, 1, 1),
            Some(4.674),
            Some(100.07),
        ),
        ("conv 3x3", "m1", conv(64, 3, 1, 1), Some(6.52), None),
        ("conv 3x3", "m2", conv(64, 3, 1, 1), Some(4.67), None),
        ("conv 3x3", "m6", conv(64, 3, 1, 1), Some(4.67), None),
        ("conv 3x3", "m5", conv(64, 3, 1, 1), Some(8.77), Some(63.3)),
        ("conv 13x13", "m4", conv(64, 13, 1, 1), Some(87.77), None),
        (
            "conv 7x7 stride 2",
            "m4",
            conv(64, 7, 2, 1),
            Some(6.362),
            None,
        ),
        (
            "conv 1x1",
            "m4",
            conv(64, 1, 1, 1),
            Some(1.1715),
            Some(21.6),
        ),
        (
            "conv depthwise",
            "m4",
            conv(64, 3, 1, 64),
            Some(2.5036),
            Some(43.6),
        ),
        (
            "matmul",
            "m4",
            product("matmul"),
            Some(6283.0 / 1e3),
            Some(44.47),
        ),
        ("linear", "m4", product("linear"), Some(3.1711), Some(100.0)),
        (
            "softmax",
            "m4",
            along("softmax", &[1, 64, 32, 32], "axis", Literal::i32(-1)),
            Some(3.5908),
            None,
        ),
        (
            "layer_norm",
            "m4",
            along("layer_norm", &[128, 256], "axes", last),
            Some(1.7952),
            None,
        ),
        ("attention", "m4", attention(), Some(7.1806), None),
        ("conv_transpose", "m4", transposed(), None, Some(2126.0)),
        ("bilinear", "m4", doubled(), None, Some(499.6)),
        (
            "reduce_sum",
            "m4",
            along("reduce_sum", &[1, 64, 32, 32], "axes", Literal::i32s(&[1])),
            Some(1.8233),
            None,
        ),
        ("gather", "m4", gathered(), Some(2.6933), None),
        ("topk", "m4", largest(), Some(0.8778), None),
    ]
}

/// Microseconds of `EstimatedRuntime` in `analytics.mil` (M6 study, macOS 27): chip, function, the
/// engine's, BNNS's.
#[test]
fn estimates_are_those_of_apples_segmenter() {
    for (name, chip, f, ane, bnns) in published() {
        let found = placed(f, &core_ml(chip));
        let op = found.ops.last().unwrap();
        for (backend, us) in [(Backend::Ane, ane), (Backend::Bnns, bnns)] {
            let Some(us) = us else { continue };
            let estimate = op.estimate(backend).unwrap() * 1e3;
            assert!(
                (estimate / us - 1.0).abs() < 2e-3,
                "{name} on {chip}, {backend:?}: {estimate} us, published {us}"
            );
        }
    }
}
