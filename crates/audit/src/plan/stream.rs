//! The time of a product of activations with constant weights on the Neural Engine, and how often
//! its weights are read.
//!
//! ```text
//!     K inputs, O outputs, S positions
//!     product   max(2 K O max(S, least) / peak, passes K O bits/8 / weights)
//!     passes    1 where the weights stay on the engine (1 MiB of fp16), or where S <= 128 and
//!               the inputs are at most 2 MiB; else one for each tile of 512 KiB of inputs:
//!               2^18 / K positions of fp16
//! ```
//!
//! The model was fitted to single products on M5 Max and M5 Pro (median error 4 %). It agrees
//! within 25 % with 11 of 13 products on other chips (`ane_measurements.csv`, splits `fit` and
//! `check`). More work never takes less: a product that is shared by two engines takes
//! [`WORTH_SPLITTING_US`] at least, and one in int8 as long as the 128 positions that int8 does not
//! make faster. Two parts are inferred: int8 activations double the length of a tile; so do two
//! engines, as a product of 4096 cubed on M6 suggests. An earlier form had tiles of 128 positions
//! at most; whole transformers (MobileCLIP, EfficientFormer, DistilBERT) do not show it.

use crate::target::{Chip, Figure};
use crate::weight::Stored;

/// Bytes of a tensor that stay on the engine. 2 MiB: its limit of an operand (ANECompiler's
/// parameter table, H13 to H19).
pub const RESIDENT_BYTES: f64 = RESIDENT.value;
const RESIDENT: Figure = read(2_097_152.0);

/// Bytes of weights that stay on the engine: 64 KiB in each of 16 cores.
const RESIDENT_WEIGHTS: Figure = read(1_048_576.0);

/// Seconds of one engine below which a second one does not help: the M6 study sees layers of 1 us
/// not split, and larger ones split; the bound between is a guess.
const WORTH_SPLITTING_US: Figure = Figure::inferred(5.0, 1.0, 25.0).by("M6 study");

/// Positions up to which int8 activations gain nothing (qwen-ane, M5 Max).
const INT8_GAINS_FROM: Figure = Figure::measured(128.0, 128.0, 128.0).by("qwen-ane, M5 Max");

/// Elements of inputs for which weights are read once.
const TILE_ELEMENTS: Figure = Figure::measured(262_144.0, 262_144.0, 262_144.0).by(TILES);

/// Positions that are read at once with the weights, however many inputs a tile holds.
const FEW_POSITIONS: Figure = Figure::measured(128.0, 128.0, 128.0).by(TILES);

/// Output channels of a group that are worked on at once.
const GROUP_CHANNELS: Figure = Figure::measured(16.0, 16.0, 16.0).by("M6 study");

const TILES: &str = "qwen-ane, M5 Max; ANEForge, M5 Pro";

/// A constant of the engine's compiler, H13 to H19.
const fn read(value: f64) -> Figure {
    Figure::measured(value, value, value).by("M6 study, parameters of ANECompiler")
}

/// The figures of products that all chips share, by name.
pub const FIGURES: [(&str, Figure); 7] = [
    ("resident_bytes", RESIDENT),
    ("resident_weight_bytes", RESIDENT_WEIGHTS),
    ("worth_splitting_us", WORTH_SPLITTING_US),
    ("int8_gains_from", INT8_GAINS_FROM),
    ("tile_elements", TILE_ELEMENTS),
    ("few_positions", FEW_POSITIONS),
    ("group_channels", GROUP_CHANNELS),
];

/// A product with constant weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Inputs that an output sums over.
    pub inputs: f64,
    /// Channels of an input position.
    pub channels: f64,
    /// Outputs of a position.
    pub outputs: f64,
    /// Positions.
    pub positions: f64,
    /// Positions of a kernel.
    pub taps: f64,
    /// Groups that channels fall into.
    pub groups: f64,
    /// Speed-up over the count of operations, as by Winograd's transform; below 1 is slower.
    pub speed: f64,
    /// Whether weights and activations are int8.
    pub int8: bool,
    /// How the weights are stored.
    pub stored: Stored,
}

/// The time of a product, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// Multiplying.
    pub compute: f64,
    /// Reading weights.
    pub weights: f64,
}

impl Gemm {
    /// A product with a matrix.
    pub fn matrix(inputs: f64, outputs: f64, positions: f64, stored: Stored) -> Self {
        Self {
            inputs,
            channels: inputs,
            outputs,
            positions,
            taps: 1.0,
            groups: 1.0,
            speed: 1.0,
            int8: false,
            stored,
        }
    }

    /// Operations; a multiplication and an addition are two.
    pub fn flops(&self) -> f64 {
        2.0 * self.inputs * self.outputs * self.positions
    }

    /// Weights.
    pub fn n_weights(&self) -> f64 {
        self.inputs * self.outputs
    }

    /// Bytes of weights that are read, of all passes; none again where `resident` says that an op
    /// before has read them.
    pub fn bytes(&self, chip: &Chip, resident: bool) -> f64 {
        if resident && self.stays() {
            return 0.0;
        }
        self.passes(chip) * self.n_weights() * self.stored.streamed_bits(chip) / 8.0
    }

    /// The time of the product on a chip.
    pub fn seconds(&self, chip: &Chip, resident: bool) -> Seconds {
        let bytes = self.bytes(chip, resident);
        let read = bytes / (chip.weight_gbps.value * 1e9);
        let passes = if bytes > 0.0 { self.passes(chip) } else { 0.0 };
        let found = self
            .stored
            .lookup_gps(chip)
            .map_or(0.0, |gps| passes * self.n_weights() / (gps * 1e9));
        Seconds {
            compute: self.compute(chip),
            weights: read.max(found),
        }
    }

    fn compute(&self, chip: &Chip) -> f64 {
        let positions = self.positions.max(chip.family.min_columns as f64);
        // Output channels of a group are worked on 16 at a time.
        let filled = if self.groups > 1.0 {
            let at_once = GROUP_CHANNELS.value;
            (self.outputs / self.groups / at_once).clamp(1.0 / at_once, 1.0)
        } else {
            1.0
        };
        let at = |peak: Figure, positions: f64| {
            let flops = 2.0 * self.inputs * self.outputs * positions;
            flops / (peak.value * 1e12 * self.speed * filled)
        };
        let one = match chip.int8_tops.filter(|_| self.int8) {
            Some(int8) if positions > INT8_GAINS_FROM.value => {
                at(int8, positions).max(at(chip.peak_tflops, INT8_GAINS_FROM.value))
            }
            _ => at(chip.peak_tflops, positions),
        };
        let engines = f64::from(chip.engines.max(1));
        let worth = WORTH_SPLITTING_US.value / 1e6;
        if one > worth {
            (one / engines).max(worth)
        } else {
            one
        }
    }

    /// Whether the weights stay on the engine once they are there.
    pub fn stays(&self) -> bool {
        2.0 * self.n_weights() <= RESIDENT_WEIGHTS.value
    }

    /// How often the weights are read.
    pub fn passes(&self, chip: &Chip) -> f64 {
        let bytes = if self.int8 { 1.0 } else { 2.0 };
        let few = self.positions <= FEW_POSITIONS.value
            && bytes * self.channels * self.positions <= RESIDENT_BYTES;
        if self.stays() || few {
            return 1.0;
        }
        (self.positions / self.tile(chip)).ceil().max(1.0)
    }

    /// Positions for which weights are read once.
    pub fn tile(&self, chip: &Chip) -> f64 {
        let wide = if self.int8 { 2.0 } else { 1.0 } * f64::from(chip.engines.max(1));
        let elements = TILE_ELEMENTS.value * wide;
        match (elements / self.channels.max(1.0)).floor() {
            n if n >= 32.0 => (n / 16.0).floor() * 16.0,
            n if n >= 16.0 => 16.0,
            _ => 8.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight::Encoding;

    const FP16: Stored = Stored {
        encoding: Encoding::Dense,
        bits: 16.0,
    };

    fn chip(name: &str) -> &'static Chip {
        Chip::from_name(name).expect("a row")
    }

    #[test]
    fn weights_are_read_again_for_each_tile() {
        let cases = [
            (512, 1024, 4096, 1),
            (1024, 1024, 128, 1),
            (1024, 1024, 257, 2),
            (3072, 1024, 512, 7),
            (17408, 5120, 64, 8),
            (17408, 5120, 32, 1),
            (5120, 5120, 512, 11),
            (40000, 512, 8, 1),
            (0, 0, 0, 1),
        ];
        for (inputs, outputs, positions, passes) in cases {
            let gemm = Gemm::matrix(
                f64::from(inputs),
                f64::from(outputs),
                f64::from(positions),
                FP16,
            );
            assert_eq!(
                gemm.passes(chip("m4")),
                f64::from(passes),
                "{inputs}, {outputs}, {positions}"
            );
        }
        let tiles = [
            (1, 262_144),
            (3072, 80),
            (8192, 32),
            (8193, 16),
            (17408, 8),
            (1 << 20, 8),
        ];
        for (inputs, n) in tiles {
            assert_eq!(
                Gemm::matrix(f64::from(inputs), 1.0, 1.0, FP16).tile(chip("m4")),
                f64::from(n),
                "{inputs}"
            );
        }
    }

    /// Rows of `ane_measurements.csv` that the form was fitted to or checked with, dispatch taken
    /// off.
    #[test]
    fn published_products_are_met() {
        let int4 = Stored {
            encoding: Encoding::Codes {
                bits: 4,
                blocks: false,
            },
            bits: 4.0,
        };
        let cases = [
            // 27B down projection in four parts of its inputs: 4.84 ms; fp16 5120 -> 34816 at 7.0
            // TFLOP/s.
            ("m5-max", 4352.0, 5120.0, 512.0, int4, 4.84 / 4.0),
            ("m5-max", 5120.0, 34816.0, 512.0, FP16, 26.1),
            ("m4", 4096.0, 4096.0, 4096.0, FP16, 34.4),
        ];
        for (name, inputs, outputs, positions, stored, ms) in cases {
            let seconds =
                Gemm::matrix(inputs, outputs, positions, stored).seconds(chip(name), false);
            let found = seconds.compute.max(seconds.weights) * 1e3;
            assert!(
                (found / ms - 1.0).abs() < 0.1,
                "{name} {inputs}: {found} ms, published {ms}"
            );
        }
    }

    #[test]
    fn what_stays_is_read_once() {
        let small = Gemm::matrix(512.0, 512.0, 16.0, FP16);
        assert_eq!(small.bytes(chip("m6"), true), 0.0);
        assert_eq!(small.bytes(chip("m6"), false), 524_288.0);
        let large = Gemm::matrix(2048.0, 2048.0, 16.0, FP16);
        assert_eq!(
            large.bytes(chip("m6"), true),
            large.bytes(chip("m6"), false)
        );
    }
}
