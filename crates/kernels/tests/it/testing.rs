//! Random numbers for tests, the same on every machine, from a literal seed; and the instruction
//! sets that tests compare.

use thane_blocks::Codes;

use thane_kernels::f16::f32_to_bf16;
use thane_kernels::linear::PackedColumn;
use thane_kernels::{BlockType, Context, Isa};

/// Rows of a panel.
pub(crate) const LANES: usize = size_of::<PackedColumn>() / size_of::<f32>();

/// The instruction sets of this machine, or the one that `THANE_TEST_ISA` named when the tests were
/// built: under an emulator the portable kernels, which run natively elsewhere, would take half of
/// the time.
pub(crate) fn instruction_sets() -> Vec<Isa> {
    let all = Isa::available();
    match option_env!("THANE_TEST_ISA") {
        Some(name) => {
            let found = all.into_iter().find(|isa| isa.name() == name);
            vec![found.unwrap_or_else(|| panic!("THANE_TEST_ISA: this machine has no {name:?}"))]
        }
        None => all,
    }
}

/// Every instruction set, with one thread and with so many. Under an emulator with one alone:
/// threads that wait for each other take most of its time, and how they share work is the same on
/// every instruction set.
pub(crate) fn contexts(n_threads: usize) -> Vec<Context> {
    let all: &[usize] = match option_env!("THANE_TEST_ISA") {
        Some(_) => &[1],
        None => &[1, n_threads],
    };
    let of = |isa| all.iter().map(move |n| Context::with_isa(*n, isa));
    instruction_sets().into_iter().flat_map(of).collect()
}

/// xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in -1..1.
    pub(crate) fn f32(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Uniform in 0..n.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }

    pub(crate) fn f32s(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.f32()).collect()
    }

    /// Rows of random blocks: any codes and packed scales, and f16 scales of ordinary size (0.002
    /// to 0.125, either sign).
    pub(crate) fn weight_bytes(&mut self, ty: BlockType, n_rows: usize, n_cols: usize) -> Vec<u8> {
        let len = n_rows * ty.byte_len(n_cols).unwrap();
        match ty {
            BlockType::F32 => (0..len / 4)
                .flat_map(|_| self.f32().to_le_bytes())
                .collect(),
            BlockType::F16 => (0..len / 2)
                .flat_map(|_| self.half().to_le_bytes())
                .collect(),
            BlockType::Bf16 => (0..len / 2)
                .flat_map(|_| f32_to_bf16(self.f32()).to_le_bytes())
                .collect(),
            _ => {
                let mut bytes: Vec<u8> = (0..len).map(|_| (self.bits() >> 56) as u8).collect();
                let offsets: Vec<usize> = ty
                    .codes()
                    .into_iter()
                    .flat_map(Codes::f16_offsets)
                    .collect();
                for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                    for at in &offsets {
                        block[*at..at + 2].copy_from_slice(&self.half().to_le_bytes());
                    }
                    // A scale in another format: drawn again until it is of a common size.
                    while offsets.is_empty() && !(1e-3..1e3).contains(&ty.magnitude_bound(block)) {
                        block.fill_with(|| (self.bits() >> 56) as u8);
                    }
                }
                bytes
            }
        }
    }

    /// An f16 of magnitude 2^-9 to 2^-3.
    fn half(&mut self) -> u16 {
        let exponent = 6 + self.below(6) as u16;
        let sign_and_fraction = (self.bits() >> 20) as u16 & 0x83ff;
        sign_and_fraction | exponent << 10
    }
}

/// The norm of the difference over the norm of the reference.
pub(crate) fn relative_error(actual: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let difference: f64 = actual
        .iter()
        .zip(expected)
        .map(|(a, e)| (f64::from(*a) - e).powi(2))
        .sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    (difference / norm.max(f64::MIN_POSITIVE)).sqrt()
}
