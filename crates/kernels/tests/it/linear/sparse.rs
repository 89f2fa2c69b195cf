//! Weights of which only some elements have codes, against values read one by one.

use thane_kernels::f16::{f16_to_f32, f32_to_f16};
use thane_kernels::linear::{Coding, Compressed, Mask, decompress_rows};

use super::compressed::{check_product, codes};
use super::contexts;
use crate::testing::Random;

const N_ROWS: usize = 37;

/// The bits of a mask of which about `share` of 8 are set, and whether each is.
fn mask(random: &mut Random, n: usize, share: u64) -> (Vec<u8>, Vec<bool>) {
    let kept: Vec<bool> = (0..n).map(|_| (random.bits() >> 40) % 8 < share).collect();
    let byte = |eight: &[bool]| {
        let bits = eight.iter().enumerate();
        bits.fold(0, |byte, (i, bit)| byte | u8::from(*bit) << i)
    };
    (kept.chunks(8).map(byte).collect(), kept)
}

/// The values of a matrix: those of codes in their order where a mask is set.
fn spread(kept: &[bool], mut value: impl FnMut(usize, usize) -> f32) -> Vec<f32> {
    let mut n = 0;
    let spread = kept.iter().enumerate().map(|(place, kept)| {
        if !kept {
            return 0.0;
        }
        n += 1;
        value(place, n - 1)
    });
    spread.collect()
}

fn check(weight: &Compressed, values: &[f32], random: &mut Random) {
    assert_eq!(weight.ordered_len(), None);
    assert_eq!(weight.table_codes_len(), None);
    let n_cols = weight.n_cols();
    let indices = [5, N_ROWS - 1, 0];
    for ctx in contexts() {
        let mut rows = vec![f32::NAN; 3 * n_cols];
        decompress_rows(&ctx, weight, &indices, &mut rows);
        let due = indices.map(|row| &values[row * n_cols..][..n_cols]);
        assert_eq!(rows, due.concat(), "{:?}", ctx.isa());
    }
    check_product(weight, values, random);
}

#[test]
fn elements_without_codes_are_zero() {
    let mut random = Random::new(11);
    for (n_cols, share) in [(8, 4), (40, 1), (536, 4), (1032, 7), (264, 8), (48, 0)] {
        let shape = [N_ROWS, n_cols];
        let (bits, kept) = mask(&mut random, N_ROWS * n_cols, share);
        let starts = Mask::count(&bits, shape).unwrap();
        let mask = Mask {
            bits: &bits,
            starts: &starts,
        };
        let n = kept.iter().filter(|kept| **kept).count();
        let numbers = random.f32s(n);
        let halves: Vec<u8> = numbers
            .iter()
            .flat_map(|v| f32_to_f16(*v).to_le_bytes())
            .collect();
        let weight = Compressed::sparse(16, &halves, Coding::Half, mask, shape).unwrap();
        let values = spread(&kept, |_, k| f16_to_f32(f32_to_f16(numbers[k])));
        check(&weight, &values, &mut random);
        for n_bits in [1, 2, 3, 4, 6, 8] {
            let (all, _) = codes(&mut random, n_bits, n.next_multiple_of(8));
            let bytes = packed(&all[..n], n_bits);
            let entries = random.f32s(1 << n_bits);
            let coding = Coding::Table {
                entries: &entries,
                group_rows: N_ROWS,
                width: 1,
                scales: &[],
            };
            let weight = Compressed::sparse(n_bits, &bytes, coding, mask, shape).unwrap();
            let values = spread(&kept, |_, k| entries[usize::from(all[k])]);
            check(&weight, &values, &mut random);
            let scales = random.f32s(N_ROWS);
            let coding = Coding::Scale {
                is_signed: false,
                scales: &scales,
                offsets: &[],
                group: [1, n_cols],
            };
            let weight = Compressed::sparse(n_bits, &bytes, coding, mask, shape).unwrap();
            let values = spread(&kept, |place, k| scales[place / n_cols] * f32::from(all[k]));
            check(&weight, &values, &mut random);
        }
    }
}

/// Codes a bit after the other.
fn packed(codes: &[u8], n_bits: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; (codes.len() * n_bits).div_ceil(8)];
    for (i, code) in codes.iter().enumerate() {
        for bit in 0..n_bits {
            let at = i * n_bits + bit;
            bytes[at / 8] |= (code >> bit & 1) << (at % 8);
        }
    }
    bytes
}

#[test]
fn masks_that_do_not_fit_are_no_weight() {
    assert_eq!(Mask::count(&[0xff; 6], [3, 12]), None);
    assert_eq!(Mask::count(&[0xff; 6], [3, 24]), None);
    let starts = Mask::count(&[0x11, 0xff, 0], [3, 8]).unwrap();
    assert_eq!(starts, [0, 2, 10]);
    let mask = Mask {
        bits: &[0x11, 0xff, 0],
        starts: &starts,
    };
    let is_weight = |n_bits, n_bytes, coding, shape| {
        Compressed::sparse(n_bits, &vec![0; n_bytes], coding, mask, shape).is_some()
    };
    assert!(is_weight(16, 20, Coding::Half, [3, 8]));
    assert!(!is_weight(16, 18, Coding::Half, [3, 8]));
    assert!(!is_weight(8, 10, Coding::Half, [3, 8]));
    assert!(!is_weight(16, 20, Coding::Half, [3, 16]));
    let table = |width| Coding::Table {
        entries: &[0.5; 16],
        group_rows: 3,
        width,
        scales: &[],
    };
    assert!(is_weight(4, 5, table(1), [3, 8]));
    assert!(!is_weight(4, 4, table(1), [3, 8]));
    assert!(!is_weight(3, 4, table(2), [3, 8]));
}
