//! Powers of two, which softmax and GELU are made of.

use crate::testing::{LANES, instruction_sets};

#[test]
fn powers_of_two() {
    for isa in instruction_sets() {
        for first in (0..126_000).step_by(LANES) {
            let x: [f32; LANES] = std::array::from_fn(|i| -((first + i) as f32) / 1001.3);
            for (powers, times) in thane_kernels::powers_of_two(isa, &x).iter().zip([1.0, 2.0]) {
                for (x, power) in x.iter().zip(powers) {
                    let x = x * times;
                    let exact = f64::from(x).exp2();
                    if x > -126.0 {
                        let error =
                            (f64::from(*power) - exact).abs() / exact / f64::from(f32::EPSILON);
                        assert!(error <= 2.0, "2^{x} = {power}: {error} ULP, {}", isa.name());
                    } else if x < -126.5 {
                        assert_eq!(*power, 0.0, "2^{x}, {}", isa.name());
                    }
                }
            }
        }
        let x = [
            0.0,
            -0.0,
            f32::NEG_INFINITY,
            f32::MIN,
            -1.0,
            f32::NAN,
            -3.0,
            -5.0,
        ];
        let [powers, _] = thane_kernels::powers_of_two(isa, &std::array::from_fn(|i| x[i % 8]));
        assert_eq!(powers[..5], [1.0, 1.0, 0.0, 0.0, 0.5], "{}", isa.name());
        assert!(powers[5].is_nan(), "{}", isa.name());
    }
}
