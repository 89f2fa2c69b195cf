//! The chips that a cost is predicted for: a row of numbers each, and how each number is known.
//!
//! Bandwidths of weights are those of anemll-bench; peaks, dispatch and activations those of the M6 microarchitecture study
//! (751K), ANEForge, maderix/ANE and qwen-ane, on macOS 15 to 27, as they published them. None was measured here. Where a
//! source gives a range, its middle stands here. What nobody published for a chip is taken from a kindred one and
//! [`Evidence::Inferred`].

use super::Evidence;

/// A number and how it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The number, in the unit that its field names.
    pub value: f64,
    /// How it is known.
    pub evidence: Evidence,
}

const fn measured(value: f64) -> Figure {
    Figure { value, evidence: Evidence::Measured }
}

const fn inferred(value: f64) -> Figure {
    Figure { value, evidence: Evidence::Inferred }
}

/// What a cost is computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Name, as users write it.
    pub name: &'static str,
    /// Generation of its engine, as Apple's compiler counts: `h13` is that of M1 and A14.
    pub generation: u8,
    /// fp16 products at their best, in 10^12 operations/s; a multiplication and an addition are two.
    pub peak_tflops: Figure,
    /// Weights out of memory, in 10^9 bytes/s.
    pub weight_gbps: Figure,
    /// Activations out of memory and into it, in 10^9 bytes/s.
    pub activation_gbps: Figure,
    /// Results of elementwise ops, in 10^9/s.
    pub element_gps: Figure,
    /// What a call costs before it does anything, in microseconds.
    pub dispatch_us: Figure,
}

/// A row: peak, weights, activations, dispatch. Elementwise ops were measured on M6 only.
const fn chip(
    name: &'static str,
    generation: u8,
    peak: Figure,
    weights: Figure,
    activations: Figure,
    dispatch: Figure,
) -> Chip {
    Chip {
        name,
        generation,
        peak_tflops: peak,
        weight_gbps: weights,
        activation_gbps: activations,
        element_gps: inferred(61.0),
        dispatch_us: dispatch,
    }
}

/// Every chip, in the order of their age.
pub const CHIPS: &[Chip] = &[
    chip("m1", 13, measured(12.0), measured(55.0), measured(24.0), measured(205.0)),
    chip("m2", 14, inferred(16.5), measured(60.5), inferred(24.0), measured(150.0)),
    chip("m3", 15, measured(15.9), measured(63.1), inferred(24.0), inferred(150.0)),
    chip("m3-max", 15, inferred(15.9), measured(120.2), inferred(24.0), inferred(150.0)),
    chip("m4", 16, measured(18.8), measured(65.0), inferred(35.0), measured(125.0)),
    chip("m4-pro", 16, inferred(18.8), measured(126.4), inferred(35.0), inferred(125.0)),
    chip("m4-max", 16, inferred(18.8), measured(118.9), inferred(35.0), inferred(125.0)),
    chip("m5", 17, measured(15.2), measured(70.2), measured(24.0), inferred(100.0)),
    chip("m5-max", 17, measured(20.3), measured(150.0), measured(70.0), measured(100.0)),
    Chip {
        element_gps: measured(61.0),
        ..chip("m6", 18, measured(20.6), measured(150.0), measured(37.5), measured(260.0))
    },
];

impl Chip {
    /// The chip of that name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        CHIPS.iter().find(|chip| chip.name == name)
    }

    /// Whether it is a phone's.
    pub fn is_phone(&self) -> bool {
        self.name.starts_with('a')
    }

    /// Its numbers that were not measured on it, by the names of the fields.
    pub fn inferred(&self) -> Vec<&'static str> {
        let figures = [
            ("peak_tflops", self.peak_tflops),
            ("weight_gbps", self.weight_gbps),
            ("activation_gbps", self.activation_gbps),
            ("element_gps", self.element_gps),
            ("dispatch_us", self.dispatch_us),
        ];
        figures.into_iter().filter(|(_, f)| f.evidence == Evidence::Inferred).map(|(name, _)| name).collect()
    }
}
