//! What chips of one generation of the Neural Engine share: limits, the weight formats that it
//! streams, and the constants of Core ML's segmenter.

use super::{Evidence, Figure};

/// The longest axes that the engine supports, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Height, width, and the spatial axis of a convolution.
    pub spatial: usize,
    /// Channels.
    pub channels: usize,
    /// Elements that a matrix product sums over.
    pub contraction: usize,
    /// Evidence for the figures.
    pub evidence: Evidence,
    /// Sources, and sources that disagree.
    pub source: &'static str,
}

/// In which forms weights come out of memory as small as they are stored. A form that does not
/// stream is expanded to fp16 when the program is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streaming {
    /// Palettes with one table for each tensor.
    pub palettes: bool,
    /// Palette lookups, in 10^9/s, where lookups and not memory are the limit.
    pub palette_gps: Option<Figure>,
    /// Lookups in palettes with a table for each channel or group of channels, in 10^9/s.
    pub grouped_palette_gps: Option<Figure>,
    /// int8 with one scale for each tensor or output channel.
    pub int8: bool,
    /// int4 with one scale for each output channel.
    pub int4: bool,
    /// Sparse weights: a mask, and the elements that are not zero.
    pub sparse: bool,
    /// Sources.
    pub source: &'static str,
}

/// Constants of Espresso's segmenter for a platform: for choosing backends, not for predicting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segmenter {
    /// The platform, as the compiled bundle names it.
    pub platform: &'static str,
    /// Peak of the engine, in 10^9 operations/s.
    pub ane_gflops: Figure,
    /// Memory bandwidth of the engine, in 2^30 bytes/s.
    pub ane_gibps: Figure,
    /// Best throughput of a convolution, over `ane_gflops`.
    pub ane_conv: Figure,
    /// Matrix products by BNNS, in 10^9 operations/s.
    pub bnns_matmul: Figure,
    /// 3x3 convolutions by BNNS, in 10^9 operations/s.
    pub bnns_conv: Figure,
    /// Time of products by Espresso's own kernels, over that of BNNS.
    pub classic_slower: Figure,
    /// Memory bandwidth of the CPU, in 2^30 bytes/s.
    pub cpu_gibps: Figure,
    /// What an op on the GPU costs beside its operations and bytes, in microseconds.
    pub gpu_op_us: Figure,
    /// Rate of products on the GPU, over what its cores reach.
    pub gpu_rate: Figure,
    /// What a lookup in a table costs on the GPU, over what it does by BNNS.
    pub gpu_lookup: Figure,
    /// Ops that cost more than their bytes, where plans show what they cost on the GPU.
    pub unfused: Option<Unfused>,
}

/// Ops that cost more than their bytes at the engine's bandwidth: on the engine, and on the GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unfused {
    /// `add`, over the bytes of its operands.
    pub add: [Figure; 2],
    /// `mul`, over the bytes of its operands; seen with a constant only.
    pub mul: [Figure; 2],
    /// `transpose`, over all of its bytes.
    pub transpose: [Figure; 2],
}

impl Segmenter {
    /// The figures by field name.
    pub fn figures(&self) -> Vec<(&'static str, Figure)> {
        let mut figures = vec![
            ("ane_gflops", self.ane_gflops),
            ("ane_gibps", self.ane_gibps),
            ("ane_conv", self.ane_conv),
            ("bnns_matmul", self.bnns_matmul),
            ("bnns_conv", self.bnns_conv),
            ("classic_slower", self.classic_slower),
            ("cpu_gibps", self.cpu_gibps),
        ];
        match self.unfused {
            None => figures.push(("gpu_op_us", self.gpu_op_us)),
            Some(costs) => figures.extend([
                ("gpu_op_us", self.gpu_op_us),
                ("gpu_rate", self.gpu_rate),
                ("gpu_lookup", self.gpu_lookup),
                ("ane_add", costs.add[0]),
                ("gpu_add", costs.add[1]),
                ("ane_mul", costs.mul[0]),
                ("gpu_mul", costs.mul[1]),
                ("ane_transpose", costs.transpose[0]),
                ("gpu_transpose", costs.transpose[1]),
            ]),
        }
        figures
    }
}

/// A generation of the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Family {
    /// Number of the generation in Apple's compiler: 13 is that of M1 and A14.
    pub number: u8,
    /// Columns of a product below which its time stays the same.
    pub min_columns: usize,
    /// How much faster a 3x3 convolution is than its operations at the peak say, by Winograd's
    /// form.
    pub winograd: Figure,
    /// The longest axes.
    pub caps: Caps,
    /// Weight formats that stream.
    pub streaming: Streaming,
    /// Constants of the segmenter.
    pub segmenter: Segmenter,
}

const SMALL_CAPS: Caps = Caps {
    spatial: 16_384,
    channels: 65_536,
    contraction: 16_384,
    evidence: Evidence::Measured,
    source: "ANEForge, M1 and M2, macOS 26",
};

const LARGE_CAPS: Caps = Caps {
    spatial: 65_536,
    channels: 65_536,
    // 40,000 fails on M4; 65,536 by ANEForge.
    contraction: 32_768,
    evidence: Evidence::Measured,
    source: "M6 study, M4 and M6, macOS 27; CoreML-LLM runs 262,144 output channels on A19 Pro, \
        qwen-ane fails at 124,160 on M5 Max",
};

const FORMS: &str =
    "M6 study, ANEForge and qwen-ane: M1 folds int8, M2 streams it, from M3 on int4 too";

const STREAMS: Streaming = Streaming {
    palettes: true,
    palette_gps: None,
    grouped_palette_gps: None,
    int8: true,
    int4: true,
    sparse: true,
    source: FORMS,
};

/// A constant as the compiled bundles of a platform have it.
const fn read(value: f64) -> Figure {
    Figure::measured(value, value, value).by("M6 study, data/03_compile/opdispatch, macOS 27")
}

/// Parts of the cost of whole models in compute plans, over a softmax or norm of as many bytes:
/// ResNet-50, DistilBERT, SigLIP and Whisper agree.
const fn planned(value: f64) -> Figure {
    Figure::measured(value, value, value).by("erwinzhang7, compute plans, M4 Pro, macOS 26.5")
}

/// `platform`, operations of the engine, and of BNNS.
const fn segmenter(platform: &'static str, ane: f64, bnns: f64) -> Segmenter {
    Segmenter {
        platform,
        ane_gflops: read(ane),
        ane_gibps: read(68.0),
        // 16,152 of 19,400 for 3x3, 7x7 and 13x13 kernels on H16G.
        ane_conv: read(0.8326),
        bnns_matmul: read(bnns),
        bnns_conv: read(bnns),
        classic_slower: read(1.15),
        cpu_gibps: read(56.667),
        // Elementwise ops are free of it, so that those of DistilBERT go to the GPU of M5 Max with
        // the rest. Small networks stay on the engine (FastViT on M3 Max, DenseNet-121 on M1 Max,
        // MobileNetV2 on M5 Max), batches of 16 go to the 40 cores of an M5 Max. Bounds are
        // a guess.
        gpu_op_us: Figure::inferred(30.0, 15.0, 60.0)
            .by("shares of the engine with `all`: FastViT, ml-macos-performance, erwinzhang7"),
        // 2.74 10^12 operations/s on the 20 cores of an M4 Pro.
        gpu_rate: planned(0.38),
        // The lookup of DistilBERT stays on the CPU of M4 Pro, though the ops behind it would cost
        // less on the GPU: 2 is as good as any larger number.
        gpu_lookup: Figure::inferred(2.0, 1.0, 10.0)
            .by("erwinzhang7, compute plans, M4 Pro, macOS 26.5"),
        unfused: None,
    }
}

const H16G: Segmenter = Segmenter {
    unfused: Some(Unfused {
        add: [planned(2.75), planned(1.33)],
        mul: [planned(1.83), planned(0.73)],
        transpose: [planned(2.69), planned(1.39)],
    }),
    ..segmenter("H16G", 19_400.0, 754.5)
};

const WINOGRAD: Figure = Figure::inferred(1.4, 1.2, 1.5)
    .by("ANEForge: 24.3 of 20.3 TFLOP/s in a chain on M5 Pro, dispatch included; M6 study: 1.5");

/// A14 and M1.
pub static H13: Family = Family {
    number: 13,
    min_columns: 64,
    // 9.6 effective in a chain on M1 Max with its dispatch, of 12.
    winograd: Figure::measured(0.9, 0.8, 1.1)
        .by("ANEForge, M1 Max, macOS 26: 9.6 TFLOP/s in a chain"),
    caps: SMALL_CAPS,
    streaming: Streaming {
        // 2.37 times as fast as fp16 at 55 GB/s.
        palette_gps: Some(
            Figure::measured(65.0, 50.0, 80.0).by("ANEForge, M1: 2.37 times as fast as fp16"),
        ),
        int8: false,
        int4: false,
        ..STREAMS
    },
    segmenter: Segmenter {
        // 6.52 us for a 3x3 convolution of 64 channels over 32x32.
        ane_conv: read(0.965),
        ..segmenter("H13G", 12_000.0, 729.2)
    },
};

/// A15 and M2.
pub static H14: Family = Family {
    number: 14,
    min_columns: 64,
    winograd: WINOGRAD,
    caps: SMALL_CAPS,
    streaming: Streaming {
        int4: false,
        ..STREAMS
    },
    // 4.67 us as on H16G.
    segmenter: Segmenter {
        ane_conv: read(0.939),
        ..segmenter("H14G", 17_200.0, 754.5)
    },
};

/// A16 and M3.
pub static H15: Family = Family {
    number: 15,
    min_columns: 64,
    winograd: WINOGRAD,
    caps: SMALL_CAPS,
    streaming: STREAMS,
    segmenter: Segmenter {
        ane_gflops: Figure::inferred(18_300.0, 17_200.0, 19_400.0)
            .by("M6 study: between H14G and H16G"),
        ..segmenter("H15G", 18_300.0, 754.5)
    },
};

/// A17 Pro and M4.
pub static H16: Family = Family {
    number: 16,
    min_columns: 64,
    winograd: WINOGRAD,
    caps: LARGE_CAPS,
    streaming: STREAMS,
    segmenter: H16G,
};

/// A18 and M5.
pub static H17: Family = Family {
    number: 17,
    min_columns: 64,
    winograd: WINOGRAD,
    caps: LARGE_CAPS,
    streaming: Streaming {
        // A third of fp16's 75: direct measurements are 0.065 to 0.45 of it.
        grouped_palette_gps: Some(Figure::measured(25.0, 5.0, 34.0).by(
            "cadamcat, M5 Pro, macOS 27: 0.065 to 0.45 of fp16; the M6 study and CoreML-LLM see no \
             loss on other chips",
        )),
        ..STREAMS
    },
    segmenter: Segmenter {
        // A decision tree instead of one number: 11,246 for 128x256x128, 8,610 for 3x3 of 64
        // channels over 32x32.
        ane_conv: read(8_610.0 / 11_246.0),
        bnns_matmul: read(359.0),
        bnns_conv: read(1_193.0),
        ..segmenter("H17G", 11_246.0, 359.0)
    },
};

/// A19 and M6.
pub static H18: Family = Family {
    number: 18,
    // Half units: 32 columns cost half of 64.
    min_columns: 32,
    winograd: Figure::measured(1.5, 1.3, 1.55)
        .by("M6 study: 31.0 of 20.6 TFLOP/s on one engine, 512 channels over 16x16"),
    caps: LARGE_CAPS,
    streaming: STREAMS,
    // It takes M4's numbers, and leaves its second engine out.
    segmenter: Segmenter {
        platform: "H18G",
        ..H16G
    },
};

/// A20. The compiler's tables for M6 are those of H19 (M6 study); nothing was measured on one.
pub static H19: Family = Family {
    number: 19,
    winograd: H18.winograd.widened(),
    ..H18
};
