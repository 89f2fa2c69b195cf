//! Instruction sets as values, and the vectors that the kernels are written over.
//!
//! [`Isa`] is a capability: only detection makes the values other than `Portable`, so holding one
//! proves that its instructions may run. A kernel is a [`Kernel`]: one body generic over [`Simd`],
//! which [`Isa::run`] compiles once per instruction set.
//!
//! Every [`Simd`] has the same shape, 16 lanes of 32 bits or 64 bytes, in as many registers as that
//! takes: so there is one body, one layout of packed data, and the sums of all instruction sets are
//! taken in the same order.
//!
//! To add an instruction set, write its file, with a type that implements [`Simd`] and has `detect`
//! and `run`, and add its row to `instruction_sets`. The compiler names every method that is
//! missing; tests of kernels run on each set of the machine. Products in bf16 need a [`Multiply`]
//! as well, as in `bf16.rs`. Thresholds of paths stand in `linear/choose.rs`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod multiply;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) use bf16::{Avx512Bf16, Bf16Kernel};
pub(crate) use multiply::Multiply;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub(crate) use portable::Portable;

/// Lanes of a vector of `f32` or `i32`.
pub(crate) const LANES: usize = 16;

/// Makes [`Isa`] of the rows below: the architecture, the type whose `detect` finds the instruction
/// set, its name, and what it is.
macro_rules! instruction_sets {
    ($($arch:tt $Set:ident $name:literal $doc:literal,)*) => {
        /// An instruction set that this machine has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Isa {
            /// Plain Rust, for every machine.
            Portable,
            $(
                #[doc = $doc]
                #[cfg(target_arch = $arch)]
                $Set($Set),
            )*
        }

        impl Isa {
            /// The names of all instruction sets, also of those that this machine lacks.
            pub const NAMES: &'static [&'static str] = &["portable", $($name),*];

            /// All of this machine, the best last.
            pub fn available() -> Vec<Self> {
                let found = [
                    Some(Self::Portable),
                    $(
                        #[cfg(target_arch = $arch)]
                        $Set::detect().map(Self::$Set),
                    )*
                ];
                found.into_iter().flatten().collect()
            }

            /// A short name, one of [`Self::NAMES`].
            pub fn name(self) -> &'static str {
                match self {
                    Self::Portable => "portable",
                    $(
                        #[cfg(target_arch = $arch)]
                        Self::$Set(_) => $name,
                    )*
                }
            }

            /// Runs the kernel compiled for this instruction set.
            #[inline]
            pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
                match self {
                    Self::Portable => Portable.run(kernel),
                    $(
                        #[cfg(target_arch = $arch)]
                        Self::$Set(simd) => simd.run(kernel),
                    )*
                }
            }
        }
    };
}

// From the slowest to the fastest of an architecture.
instruction_sets! {
    "x86_64" Avx2 "avx2" "AVX2, FMA and F16C.",
    "x86_64" Avx512 "avx512" "AVX-512 F, BW, VL, DQ and VNNI.",
    "aarch64" Neon "neon" "NEON with dot products.",
}

impl Isa {
    /// The best of this machine.
    pub fn detect() -> Self {
        Self::available().pop().unwrap_or(Self::Portable)
    }

    /// The one of this machine that has this [`Self::name`].
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|isa| isa.name() == name)
    }

    /// Whether it sums four products of bytes in 32 bits. Where it does, products of many tokens
    /// requantize the codes of weights to 8 bits, and rounded weights have 8 bits instead of 7.
    pub fn has_wide_sums(self) -> bool {
        self.parts().are_of_four()
    }

    /// [`Simd::PARTS`].
    pub(crate) fn parts(self) -> Parts {
        struct PartsOf;
        impl Kernel for PartsOf {
            type Output = Parts;
            #[inline(always)]
            fn run<S: Simd>(self, _simd: S) -> Parts {
                S::PARTS
            }
        }
        self.run(PartsOf)
    }

    /// True where [`linear`](crate::linear::linear) multiplies bf16 weights with
    /// activations in bf16.
    pub fn has_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if let Self::Avx512(simd) = self {
            return simd.has_bf16();
        }
        false
    }
}

/// A computation to be compiled per instruction set.
///
/// `run` and all functions that it calls must be `#[inline(always)]`, and vectors must not be made
/// in closures or by `map`: what the compiler leaves as a function of its own is compiled without
/// the instructions, and then calls each of them. What many kernels need is a kernel of its own,
/// which they start by [`Isa::run`]; where no vector is
/// [in registers](Simd::IS_IN_REGISTERS), functions may stay what they are.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The vectors of an instruction set. The value is the proof that the machine has it, so its
/// methods are safe.
pub(crate) trait Simd: Copy {
    /// 16 `f32`.
    type F: Copy;
    /// 16 `i32`.
    type I: Copy;
    /// 64 bytes.
    type B: Copy;

    /// What an 8-bit weight code is XORed with before [`Self::dot_wide`]: 0x80 where that takes
    /// codes with 128 added.
    const WIDE_XOR: u8;
    /// Tokens that a matrix product computes at once: as many as there are registers for.
    const TILE_TOKENS: usize;
    /// [`Self::dot_two`] takes activations without a sign.
    const HAS_UNSIGNED: bool;
    /// What [`Self::dot_part`] sums up.
    const PARTS: Parts;
    /// A vector is in registers, so that all that works on it is compiled where it is used. What
    /// is in memory is as fast in larger functions that are compiled once.
    const IS_IN_REGISTERS: bool;
    /// There are registers for the sums of twelve tokens, or of twice 16 rows: 32 of a whole
    /// vector.
    const HAS_MANY_REGISTERS: bool;

    fn splat(self, value: f32) -> Self::F;
    /// Asks for the cache line at any address, which is not read here.
    fn prefetch(self, from: *const f32);
    /// As [`Self::prefetch`], for later: the line need not come nearer than the second cache.
    fn prefetch_far(self, from: *const f32);
    fn load(self, from: &[f32; 16]) -> Self::F;
    fn store(self, v: Self::F, to: &mut [f32; 16]);
    /// 16 f16, little endian, as bytes.
    fn load_f16(self, from: &[u8; 32]) -> Self::F;
    /// 16 bf16, little endian, as bytes.
    fn load_bf16(self, from: &[u8; 32]) -> Self::F;
    fn store_f16(self, v: Self::F, to: &mut [u16; 16]);

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once where the machine can.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a < b ? a : b`: b if one is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? a : b`: b if one is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// The magnitude of `a` with the sign of `sign`.
    fn copysign(self, a: Self::F, sign: Self::F) -> Self::F;
    /// The power of two in each, without its sign: 0 for 0 and subnormal numbers.
    fn power(self, a: Self::F) -> Self::F;
    /// `a < b ? yes : no`, by lane.
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// True where some lane of `a` is below that of `b`.
    fn any_lt(self, a: Self::F, b: Self::F) -> bool;

    /// The nearest integers, ties to even; any value for NaN and out of range.
    fn to_int(self, a: Self::F) -> Self::I;
    /// The integers towards zero; any value for NaN and out of range.
    fn to_int_toward_zero(self, a: Self::F) -> Self::I;
    fn int_values(self, a: Self::I) -> Self::F;
    /// Half of each, rounded down.
    fn half_int(self, a: Self::I) -> Self::I;
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// 2^n for n in -126..=127, 0 for -127.
    fn pow2(self, n: Self::I) -> Self::F;
    /// Integers in -128..=127 as bytes.
    fn store_i8(self, v: Self::I, to: &mut [i8; 16]);
    /// Integers in -128..=127 as bytes, vector after vector.
    fn narrow(self, v: [Self::I; 4]) -> Self::B;

    /// The sum of the lanes: of pairs 8 apart, then 4, 2, 1.
    fn sum(self, v: Self::F) -> f32;
    /// The largest lane; any lane if one is NaN.
    fn max_lane(self, v: Self::F) -> f32;
    /// Lane j of vector i goes to lane i of vector j.
    fn transpose(self, rows: &mut [Self::F; 16]);
    /// Lane `i ^ STRIDE` in lane i; the stride is 1, 2, 4 or 8.
    fn swap_lanes<const STRIDE: usize>(self, v: Self::F) -> Self::F;
    /// Lane i in lanes 0..8, lane j in lanes 8..16.
    fn spread2(self, v: Self::F, i: usize, j: usize) -> Self::F;
    /// Lanes i, i + 1, i + 2, i + 3, each four times; i is a multiple of 4.
    fn spread4(self, v: Self::F, i: usize) -> Self::F;
    /// The lanes of `v` whose number is `i` modulo `PERIOD`, and those of `rest` elsewhere.
    fn merge<const PERIOD: usize>(self, rest: Self::F, v: Self::F, i: usize) -> Self::F;
    /// Four f16 in lanes 0..4, the lowest bits first; any value elsewhere.
    fn half4(self, bits: u64) -> Self::F;
    /// Byte j of row i goes to byte i of row j.
    fn transpose_bytes(self, rows: &mut [[u8; 16]; 16]);
    /// Lane `code` of the table for each code, of which the lowest four bits count.
    fn look_up(self, table: Self::F, codes: &[u8; 16]) -> Self::F;
    /// Lane `code` of four tables after one another for each code, of which the lowest six bits
    /// count.
    fn look_up_64(self, tables: [Self::F; 4], codes: &[u8; 16]) -> Self::F;
    /// The entry of a table for each code.
    fn look_up_256(self, table: &[[f32; 16]; 16], codes: &[u8; 16]) -> Self::F;
    fn u8_values(self, from: &[u8; 16]) -> Self::F;
    fn i8_values(self, from: &[i8; 16]) -> Self::F;

    fn load_b(self, from: &[u8; 64]) -> Self::B;
    fn store_b(self, v: Self::B, to: &mut [u8; 64]);
    /// 32 bytes, then 32 bytes.
    fn join_b(self, low: &[u8; 32], high: &[u8; 32]) -> Self::B;
    /// 16 bytes twice, then 16 bytes twice.
    fn dup16_b(self, low: &[u8; 16], high: &[u8; 16]) -> Self::B;
    /// Four bytes 16 times.
    fn dup4_b(self, from: &[i8; 4]) -> Self::B;
    /// Each quarter of 16 bytes shifted right by its own count below 8; the bits that come in from
    /// the left are any.
    fn shr_b(self, v: Self::B, counts: [u8; 4]) -> Self::B;
    /// Bytes shifted left; no bit may leave its byte.
    fn shl_b<const COUNT: i32>(self, v: Self::B) -> Self::B;
    fn and_b(self, v: Self::B, mask: u8) -> Self::B;
    fn xor_b(self, v: Self::B, mask: u8) -> Self::B;
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B;
    /// Four bytes j of vector i go to four bytes i of vector j.
    fn transpose_b(self, rows: &mut [Self::B; 16]);
    /// `table[v]`, v below 16.
    fn lookup_b(self, table: &[u8; 16], v: Self::B) -> Self::B;
    /// `table[v]` in each quarter of 16 bytes, v below 16.
    fn shuffle_b(self, table: Self::B, v: Self::B) -> Self::B;
    /// Byte i is `value` where bit i is set, else 0. `value` is a single bit.
    fn bits_b(self, bits: u64, value: u8) -> Self::B;

    fn zero_int(self) -> Self::I;
    fn load_int(self, from: &[i32; 16]) -> Self::I;
    fn store_int(self, v: Self::I, to: &mut [i32; 16]);
    /// To each lane, the sums of four products twice: of activations, 0..=127 with
    /// [`Self::HAS_UNSIGNED`] and else -63..=63, with weight codes -63..=63.
    fn dot_two(self, acc: Self::I, activations: [Self::B; 2], weights: [Self::B; 2]) -> Self::I;
    /// To each lane, the sum of four products of weight codes 0..=127 with activations -127..=127.
    fn dot_narrow(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I;
    /// To each lane, the sum of four products of weight codes -128..=127, XORed with
    /// [`Self::WIDE_XOR`], with activations -127..=127. Where that is 0x80, the sum has 128 times
    /// the activations too much.
    fn dot_wide(self, acc: Self::I, weights: Self::B, activations: Self::B) -> Self::I;
    /// The same sum everywhere, for [`Self::dot_part`].
    fn splat_part(self, sum: i32) -> Self::I;
    /// Adds to 32 sums of 16 bits, or 16 of 32, as [`Self::PARTS`] says, their products of bytes
    /// without a sign and bytes with one. Two products must fit 16 bits; a sum may overflow and
    /// come back.
    fn dot_part(self, parts: Self::I, unsigned: Self::B, signed: Self::B) -> Self::I;
    /// Adds what [`Self::dot_part`] summed up to the lanes, so many times.
    fn join_part<const TIMES: i16>(self, acc: Self::I, parts: Self::I) -> Self::I;
    /// Where [`Self::PARTS`] are of four: of codes of so many bits,
    /// `(code * factor >> bits) + added` in 64ths, the product to nearest, as bytes with a sign. A
    /// lane's factor and what is added are its four codes' and fit 16 bits; for two of them it is
    /// one less, so that as many halves are rounded down as up.
    fn rescale_b(self, codes: Self::B, bits: u32, factor: Self::I, added: Self::I) -> Self::B;
}

/// Sums of products of bytes that an instruction set has beside those in 32 bits of codes with
/// either sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    /// No others. `dot_part` and what goes with it are never called.
    None,
    /// Two products in 16 bits: sums of narrow codes cost less than in 32.
    OfTwo,
    /// Four products in 32 bits.
    OfFour,
}

impl Parts {
    /// Sums of so many products: two, four, or none of any other number.
    pub(crate) const fn of(n_products: usize) -> Self {
        match n_products {
            2 => Self::OfTwo,
            4 => Self::OfFour,
            _ => Self::None,
        }
    }

    /// Whether two products are summed up.
    pub(crate) const fn are_of_two(self) -> bool {
        matches!(self, Self::OfTwo)
    }

    /// Whether there are no such sums.
    pub(crate) const fn are_none(self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether four products are summed up.
    pub(crate) const fn are_of_four(self) -> bool {
        matches!(self, Self::OfFour)
    }
}

/// [`Simd::look_up_64`] in each table, of which one is chosen.
#[inline(always)]
fn look_up_in_four<S: Simd>(simd: S, tables: [S::F; 4], codes: &[u8; LANES]) -> S::F {
    let number = simd.u8_values(codes);
    let (a, b) = (
        simd.look_up(tables[0], codes),
        simd.look_up(tables[1], codes),
    );
    let (c, d) = (
        simd.look_up(tables[2], codes),
        simd.look_up(tables[3], codes),
    );
    let low = simd.select_lt(number, simd.splat(16.0), a, b);
    let high = simd.select_lt(number, simd.splat(48.0), c, d);
    simd.select_lt(number, simd.splat(32.0), low, high)
}

/// [`Simd::look_up_256`] entry by entry.
#[inline(always)]
fn look_up_each<S: Simd>(simd: S, table: &[[f32; LANES]; LANES], codes: &[u8; LANES]) -> S::F {
    let mut values = [0.0; LANES];
    for (value, code) in values.iter_mut().zip(codes) {
        *value = table[usize::from(code >> 4)][usize::from(code & 15)];
    }
    simd.load(&values)
}

/// [`Simd::narrow`] by way of memory.
#[inline(always)]
fn narrow_stored<S: Simd>(simd: S, v: [S::I; 4]) -> S::B {
    let mut bytes = [0; 64];
    for (v, to) in v.into_iter().zip(bytes.as_chunks_mut().0) {
        simd.store_i8(v, to);
    }
    simd.load_b(&bytes.map(|byte: i8| byte as u8))
}

/// For an instruction set without [`Parts`]: algorithms ask for [`Simd::PARTS`] first.
#[cold]
fn no_parts() -> ! {
    unreachable!("an instruction set without sums of parts")
}
