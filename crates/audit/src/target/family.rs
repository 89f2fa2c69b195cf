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
    pub ane_gflops: f64,
    /// Memory bandwidth of the engine, in 2^30 bytes/s.
    pub ane_gibps: f64,
    /// Best throughput of a convolution, over `ane_gflops`.
    pub ane_conv: f64,
    /// Matrix products by BNNS, in 10^9 operations/s.
    pub bnns_matmul: f64,
    /// 3x3 convolutions by BNNS, in 10^9 operations/s.
    pub bnns_conv: f64,
    /// Time of products by Espresso's own kernels, over that of BNNS.
    pub classic_slower: f64,
    /// Memory bandwidth of the CPU, in 2^30 bytes/s.
    pub cpu_gibps: f64,
    /// Ops that cost more than their bytes, where plans show what they cost on the GPU.
    pub unfused: Option<Unfused>,
    /// Evidence for the figures.
    pub evidence: Evidence,
    /// Sources.
    pub source: &'static str,
}

/// Ops that cost more than their bytes at the engine's bandwidth: on the engine, and on the GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unfused {
    /// `add`, over the bytes of its operands.
    pub add: [f64; 2],
    /// `mul`, over the bytes of its operands; seen with a constant only.
    pub mul: [f64; 2],
    /// `transpose`, over all of its bytes.
    pub transpose: [f64; 2],
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
    /// fp16 operations of a core of the GPU, in 10^12/s.
    pub gpu_core_tflops: f64,
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

/// Transformers and ResNet-50 at batch 16 reach 5.4 to 6.3 10^12 operations/s on the 20 cores of an
/// M4 Pro, and 27 to 38 on the 40 of an M5 Max, whose cores have units for products (erwinzhang7,
/// macOS 26).
const GPU_CORE_TFLOPS: f64 = 0.36;
/// Encoders of Whisper reach 2.0 to 3.7 10^12 operations/s on the 64 cores of an M1 Ultra
/// (whisper.cpp, issue 89).
const OLD_GPU_CORE_TFLOPS: f64 = 0.06;

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

/// `platform`, operations and bytes of the engine, BNNS, and the CPU's memory.
const fn segmenter(platform: &'static str, ane: f64, bnns: f64) -> Segmenter {
    Segmenter {
        platform,
        ane_gflops: ane,
        ane_gibps: 68.0,
        // 16,152 of 19,400 for 3x3, 7x7 and 13x13 kernels on H16G.
        ane_conv: 0.8326,
        bnns_matmul: bnns,
        bnns_conv: bnns,
        classic_slower: 1.15,
        cpu_gibps: 56.667,
        unfused: None,
        evidence: Evidence::Measured,
        source: "M6 study, data/03_compile/opdispatch, macOS 27",
    }
}

const H16G: Segmenter = Segmenter {
    // Parts of the cost of whole models in compute plans, over a softmax or norm of as many bytes:
    // ResNet-50, DistilBERT, SigLIP and Whisper agree (erwinzhang7, M4 Pro, macOS 26.5).
    unfused: Some(Unfused {
        add: [2.75, 1.33],
        mul: [1.83, 0.73],
        transpose: [2.69, 1.39],
    }),
    ..segmenter("H16G", 19_400.0, 754.5)
};

const WINOGRAD: Figure = Figure::inferred(
    1.4,
    1.2,
    1.5,
    "ANEForge: 24.3 of 20.3 TFLOP/s in a chain on M5 Pro, dispatch included; M6 1.5",
);

/// A14 and M1.
pub static H13: Family = Family {
    number: 13,
    min_columns: 64,
    gpu_core_tflops: OLD_GPU_CORE_TFLOPS,
    // 9.6 effective in a chain on M1 Max with its dispatch, of 12.
    winograd: Figure::measured(
        0.9,
        0.8,
        1.1,
        "ANEForge, M1 Max, macOS 26: 9.6 TFLOP/s in a chain",
    ),
    caps: SMALL_CAPS,
    streaming: Streaming {
        // 2.37 times as fast as fp16 at 55 GB/s.
        palette_gps: Some(Figure::measured(
            65.0,
            50.0,
            80.0,
            "ANEForge, M1: 2.37 times as fast as fp16",
        )),
        int8: false,
        int4: false,
        ..STREAMS
    },
    segmenter: Segmenter {
        // 6.52 us for a 3x3 convolution of 64 channels over 32x32.
        ane_conv: 0.965,
        ..segmenter("H13G", 12_000.0, 729.2)
    },
};

/// A15 and M2.
pub static H14: Family = Family {
    number: 14,
    min_columns: 64,
    gpu_core_tflops: OLD_GPU_CORE_TFLOPS,
    winograd: WINOGRAD,
    caps: SMALL_CAPS,
    streaming: Streaming {
        int4: false,
        ..STREAMS
    },
    // 4.67 us as on H16G.
    segmenter: Segmenter {
        ane_conv: 0.939,
        ..segmenter("H14G", 17_200.0, 754.5)
    },
};

/// A16 and M3.
pub static H15: Family = Family {
    number: 15,
    min_columns: 64,
    // Inferred: between those of its neighbors.
    gpu_core_tflops: 0.15,
    winograd: WINOGRAD,
    caps: SMALL_CAPS,
    streaming: STREAMS,
    segmenter: Segmenter {
        evidence: Evidence::Inferred,
        source: "not published; between those of H14G and H16G",
        ..segmenter("H15G", 18_300.0, 754.5)
    },
};

/// A17 Pro and M4.
pub static H16: Family = Family {
    number: 16,
    min_columns: 64,
    gpu_core_tflops: GPU_CORE_TFLOPS,
    winograd: WINOGRAD,
    caps: LARGE_CAPS,
    streaming: STREAMS,
    segmenter: H16G,
};

/// A18 and M5.
pub static H17: Family = Family {
    number: 17,
    min_columns: 64,
    gpu_core_tflops: 3.0 * GPU_CORE_TFLOPS,
    winograd: WINOGRAD,
    caps: LARGE_CAPS,
    streaming: Streaming {
        // A third of fp16's 75: direct measurements are 0.065 to 0.45 of it.
        grouped_palette_gps: Some(Figure::measured(
            25.0,
            5.0,
            34.0,
            "cadamcat, M5 Pro, macOS 27: 0.065 to 0.45 of fp16; the M6 study and CoreML-LLM see no \
             loss on other chips",
        )),
        ..STREAMS
    },
    segmenter: Segmenter {
        // A decision tree instead of one number: 11,246 for 128x256x128, 8,610 for 3x3 of 64
        // channels over 32x32.
        ane_conv: 8_610.0 / 11_246.0,
        bnns_matmul: 359.0,
        bnns_conv: 1_193.0,
        classic_slower: 1.15,
        ..segmenter("H17G", 11_246.0, 359.0)
    },
};

/// A19 and M6.
pub static H18: Family = Family {
    number: 18,
    // Half units: 32 columns cost half of 64.
    min_columns: 32,
    gpu_core_tflops: 3.0 * GPU_CORE_TFLOPS,
    winograd: Figure::measured(
        1.5,
        1.3,
        1.55,
        "M6 study: 31.0 of 20.6 TFLOP/s on one engine, 512 channels over 16x16",
    ),
    caps: LARGE_CAPS,
    streaming: STREAMS,
    // It takes M4's numbers, and leaves its second engine out.
    segmenter: Segmenter {
        platform: "H18G",
        ..H16G
    },
};
