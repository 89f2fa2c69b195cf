//! The greatest numbers against a sort.

use thane_kernels::topk::{argmax, top_k};

use crate::testing::Random;

#[test]
fn largest_is_that_of_a_sort() {
    let mut random = Random::new(31);
    for len in [0, 1, 2, 63, 64, 65, 1000] {
        for n_distinct in [1, 5, 1 << 20] {
            let mut x: Vec<f32> = (0..len)
                .map(|_| random.below(n_distinct) as f32 - 3.0)
                .collect();
            for i in (0..len).step_by(7) {
                x[i] = f32::NAN;
            }
            let mut sorted: Vec<usize> = (0..len).filter(|i| !x[*i].is_nan()).collect();
            sorted.sort_by(|a, b| x[*b].total_cmp(&x[*a]).then(a.cmp(b)));
            assert_eq!(argmax(&x), sorted.first().copied());
            for k in [0, 1, 3, 40, len] {
                let (mut indices, mut values) = (vec![usize::MAX; k], vec![f32::NAN; k]);
                let n = top_k(&x, &mut indices, &mut values);
                assert_eq!(n, k.min(sorted.len()));
                assert_eq!(indices[..n], sorted[..n]);
                assert!((0..n).all(|i| values[i] == x[indices[i]]));
            }
        }
    }
}

#[test]
fn infinities() {
    assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), Some(0));
    assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY, f32::NAN]), Some(1));
    assert_eq!(argmax(&[f32::NAN; 70]), None);
    assert_eq!(argmax(&[1.0, f32::INFINITY, f32::INFINITY]), Some(1));
    assert_eq!(argmax(&[0.0, -0.0]), Some(0));
}
