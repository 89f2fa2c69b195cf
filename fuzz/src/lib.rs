//! What the fuzz targets share: a source of choices, changes of MIL text, and running a program on
//! made-up inputs.
//!
//! The targets are in `fuzz_targets/`, their first inputs in `seeds/`; `scripts/fuzz.sh` builds and
//! runs them.

mod run;
mod text;

pub use run::{run, run_model};
pub use text::{change_text, resolve};

/// Lets panics that are caught where a file meets a crate that parses it pass, as the command does;
/// libFuzzer's own hook ends the process for all others.
pub fn pass_guarded_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let all = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !thane_engine::text::guard::is_guarded() {
                all(panic);
            }
        }));
    });
}

/// Numbers that follow from a seed (xorshift64*), so that an input always does the same.
pub struct Rng(u64);

impl Rng {
    /// Seeded by bytes (FNV-1a).
    pub fn new(bytes: &[u8]) -> Self {
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
            (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
        });
        Self(hash | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// A number below `n`; 0 where there is none.
    pub fn below(&mut self, n: usize) -> usize {
        self.number() as usize % n.max(1)
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}
