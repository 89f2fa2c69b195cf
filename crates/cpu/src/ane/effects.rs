//! What the Neural Engine does to numbers, as switches that each say where they come from.
//!
//! Sources, none of which is ours:
//! - M6S: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6, `notes/numerics.md` and
//!   `data/06_numerics`; M4 (h16g) and M6 (h18g), macOS 27.0.1, October 2026. Convolutions and
//!   element-wise ops on chosen fp16 bits, shown to run on the engine.
//! - AF: sbryngelson/ANEForge, `docs/numeric-cliffs.md`; M2 Pro and M5, macOS 26.
//! - FO: anemll-forge, `ANE_DELTANET_NUMERICS.md`; M6, macOS 27.
//! - OX: oxinfer; M5 Max, macOS 26.
//! - QA: True2456/qwen-ane, `ANE-REFERENCE.md`; M5 Max, macOS 26 and 27.

/// What a claim about the hardware rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The vendor says so.
    Documented,
    /// Somebody measured it and published how.
    Measured,
    /// It is said, and nobody shows how it is known.
    Folklore,
}

impl Basis {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Documented => "documented",
            Basis::Measured => "measured",
            Basis::Folklore => "folklore",
        }
    }
}

/// One switch of [`Effects`].
pub struct Effect {
    /// What a command line calls it.
    pub name: &'static str,
    /// What it does, and what is computed without it.
    pub doc: &'static str,
    /// Who says so, for which chip and system.
    pub source: &'static str,
    /// What that rests on.
    pub basis: Basis,
    /// Whether [`Effects::default`] has it: what is measured on an M4 and its like.
    pub is_default: bool,
    get: fn(&Effects) -> bool,
    set: fn(&mut Effects, bool),
}

impl Effect {
    /// Whether `effects` has it.
    pub fn is_on(&self, effects: &Effects) -> bool {
        (self.get)(effects)
    }

    /// Switch it.
    pub fn switch(&self, effects: &mut Effects, on: bool) {
        (self.set)(effects, on);
    }
}

macro_rules! effects {
    ($($field:ident $name:literal $basis:ident $is_default:literal $source:literal $doc:literal;)*) => {
        /// What the Neural Engine does to numbers; [`Effects::ALL`] says what each is and where it
        /// comes from.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Effects { $(#[doc = $doc] pub $field: bool,)* }

        impl Effects {
            /// Every effect.
            pub const ALL: &'static [Effect] = &[$(Effect {
                name: $name,
                doc: $doc,
                source: $source,
                basis: Basis::$basis,
                is_default: $is_default,
                get: |effects| effects.$field,
                set: |effects, on| effects.$field = on,
            },)*];

            /// None: ops one by one in f32.
            pub const NONE: Effects = Effects { $($field: false,)* };
        }

        impl Default for Effects {
            /// What is measured on an M4 and its like.
            fn default() -> Self {
                Self { $($field: $is_default,)* }
            }
        }
    };
}

effects! {
    half_precision "half-precision" Measured true
        "M6S, AF: the engine computes in fp16 and nothing else; every chip"
        "inputs, constants and the result of each op are fp16, and what is beyond 65504 is infinite; without it they are fp32";
    round_half_away "round-half-away" Measured true
        "M6S: 2048 + 1 is 2050, by products and by element-wise ops alike; M4 and M6, macOS 27.0.1"
        "half way between two fp16 numbers is away from zero; without it, to the even one";
    decode_specials "decode-specials" Measured true
        "M6S: infinity, NaN 0x7e00 and 0x7fff count as 65536, 98304 and 131008, NaN + 1 is infinite; M6, said to hold for M4, macOS 27.0.1"
        "ops that compute read infinity and NaN as the numbers that their bits would be; without it IEEE's rules hold";
    fixed_point "fixed-point-accumulator" Measured true
        "M6S: 1024 + 2^-16 - 1024 is 2^-16, 2^-17 is 2^-16, a bias is where the sum starts; M4 and M6, macOS 27.0.1"
        "products and the bias are rounded to units of 2^-16, half way away from zero, and summed up exactly; without it sums are fp64";
    accumulator_overflow "accumulator-overflow" Measured true
        "M6S: 16384 + 16384 - 16384 - 16384 + 1 is infinite; M4 and M6, macOS 27.0.1. AF: matrix products end near 32752; M2 Pro and M5, macOS 26"
        "a sum of products, bias included, that reaches 32768 on its way is infinite and stays so; without it only the result counts";
    drop_small_products "drop-small-products" Measured true
        "M6S: 1.98 units of 2^-16 are lost where the exponents add up to -17; M6, and M4 where it was looked at, macOS 27.0.1"
        "products of numbers whose exponents (of subnormals: -14) add up to -17 or less are nothing; without it they are rounded as others";
    flush_subnormals "flush-subnormals" Measured false
        "M6S on AF's book: M1 flushes, M5 does not; M6S: M4 and M6 keep them (2^-24 + 0 is 2^-24). john-rocky/CoreML-LLM reports zeros on an iPhone 17 Pro"
        "numbers below 2^-14 become zero";
    slice_saturation "slice-saturation" Measured false
        "AF: M1 and M2 Pro, macOS 26; not on M4 and M5"
        "slices that do not begin at 0 of the last axis make what is beyond 4094 infinite";
    sigmoid_table "sigmoid-table" Measured true
        "M6S: a table of 33 points from -8 to 8 and lines between them; M4 and M6. QA: off by 4e-2 of a small result; M5 Max. A survey of M5 finds at most 11 units in the last place"
        "sigmoid is a line between its fp16 values at multiples of 1/2 from -8 to 8; beyond, and without it, it is exact";
    silu_table "silu-table" Measured true
        "M6S: off by up to 1.5e-2; M4 and M6. FO, OX: by 12 % where |x| < 0.5; M6, M5 Max. A table as that of sigmoid is off by 1.56e-2 and by 11 to 14 % at 1/4"
        "silu is a line between its fp16 values at multiples of 1/2 from -8 to 8; beyond, and without it, it is exact";
    softplus_overflow "softplus-overflow" Measured true
        "FO: softplus is 0 above about 11, where exp(x) leaves fp16; M6, macOS 27. QA: wrong above 10.4; M5 Max, macOS 26 and 27"
        "softplus of a number whose exponential is beyond fp16 (11.09) is zero";
}

/// There is no effect of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no effect `{name}`; there are {known}")]
pub struct UnknownEffect {
    /// The name that was given.
    pub name: String,
    /// Every name.
    pub known: String,
}

impl Effects {
    /// Switch the effect of that name.
    pub fn set(&mut self, name: &str, on: bool) -> Result<(), UnknownEffect> {
        let effect = Self::ALL
            .iter()
            .find(|e| e.name == name)
            .ok_or_else(|| UnknownEffect {
                name: name.to_owned(),
                known: Self::ALL
                    .iter()
                    .map(|e| e.name)
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
        effect.switch(self, on);
        Ok(())
    }

    /// The effects that are on.
    pub fn on(self) -> impl Iterator<Item = &'static Effect> {
        Self::ALL.iter().filter(move |e| e.is_on(&self))
    }
}
