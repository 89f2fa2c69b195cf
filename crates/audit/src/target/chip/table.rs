//! The rows of [`CHIPS`].

use super::Chip;
use crate::target::family::{Family, H13, H14, H15, H16, H17, H18, H19};
use crate::target::{Figure, host};

const RELATED: &str = "a related chip";
const AB: &str = "anemll-bench, 128,256 outputs of 4,096, macOS 15";

/// Weights out of memory as anemll-bench has them; spread of its variants.
const fn weights(gbps: f64) -> Figure {
    Figure::measured(gbps, 0.92 * gbps, 1.1 * gbps).by(AB)
}

/// What whole networks on phones (FastViT, MobileCLIP, EfficientFormer, ResNet-50; `fit` rows of
/// `whole_models.csv`) show: a peak of 0.6 of that of the Mac's chip, and weights at 0.8 of what the
/// memory's width suggests.
const fn on_phones(value: f64) -> Figure {
    Figure::inferred(value, 0.8 * value, 1.3 * value)
        .by("networks on phones: FastViT, MobileCLIP, EfficientFormer, coremltools")
}

const fn kin(value: f64, low: f64, high: f64) -> Figure {
    Figure::inferred(value, low, high).by(RELATED)
}

/// What CPUs of Pro, Max and Ultra chips get of a memory that is two to eight times as wide as that
/// of the plain chip: one core of M1 Max reads 102 GB/s, all of them 243 (AnandTech).
const WIDE_CPU: Figure = kin(102.0, 60.0, 243.0);

/// A phone's memory of 64 bits: `gbps` is what it moves at most, and what its CPU gets is taken to be
/// 0.85 of that, as on M1.
const fn phone_cpu(gbps: f64) -> Figure {
    Figure::inferred(0.85 * gbps, 0.5 * gbps, gbps)
        .by("Apple's specifications: the width and clock of the memory")
}

/// A row of a generation, with what is known of its M chip.
const fn base(
    name: &'static str,
    marketing: &'static str,
    arch: &'static str,
    family: &'static Family,
) -> Chip {
    Chip {
        name,
        marketing,
        arch,
        generation: family.number,
        family,
        engines: 1,
        gpu_cores: 10,
        memory_gib: 32,
        peak_tflops: kin(15.9, 12.0, 18.8),
        int8_tops: None,
        weight_gbps: kin(60.0, 50.0, 70.0),
        activation_gbps: kin(24.0, 20.0, 60.0),
        local_gbps: kin(125.0, 90.0, 160.0),
        element_gps: kin(61.0, 40.0, 121.5),
        cpu_gbps: kin(60.8, 40.0, 120.0),
        host: match family.number {
            13 | 14 => host::M1.related(),
            15 => host::M3,
            16 => host::M4,
            _ => host::RELATED_TO_M5,
        },
        dispatch_us: kin(150.0, 100.0, 220.0),
        direct_us: kin(95.0, 60.0, 190.0),
        idle_us: kin(0.0, 0.0, 70.0),
    }
}

impl Chip {
    /// Another chip of the generation: its names, the memory of the largest device with it in GiB,
    /// and the cores of its GPU.
    const fn model(
        self,
        name: &'static str,
        marketing: &'static str,
        memory_gib: u16,
        gpu_cores: u8,
    ) -> Self {
        Self {
            name,
            marketing,
            memory_gib,
            gpu_cores,
            ..self
        }
    }
}

const M1: Chip = Chip {
    memory_gib: 16,
    cpu_gbps: Figure::measured(58.0, 40.0, 68.0).by("AnandTech: one core reads 58 GB/s"),
    host: host::M1,
    gpu_cores: 8,
    peak_tflops: Figure::measured(12.0, 9.6, 12.5)
        .by("companion book of ANEForge: slope of convolutions"),
    weight_gbps: Figure::measured(55.0, 51.0, 60.9)
        .by("anemll-bench 54.6 to 60.9; companion book 51"),
    activation_gbps: Figure::measured(24.0, 20.0, 30.0).by("companion book of ANEForge"),
    dispatch_us: Figure::measured(205.0, 190.0, 220.0).by("ANEForge's fit and companion book"),
    direct_us: Figure::measured(185.0, 165.0, 220.0).by("ANEForge, M1 and M1 Max, e5rt"),
    ..base("m1", "M1", "h13g", &H13)
};

const M2: Chip = Chip {
    memory_gib: 24,
    peak_tflops: Figure::inferred(16.5, 15.8, 17.2)
        .by("Apple's specifications: 15.8; M6 study: 17.2 in Espresso's table of H14G"),
    weight_gbps: weights(60.5),
    dispatch_us: Figure::measured(150.0, 120.0, 180.0).by("ANEForge"),
    direct_us: Figure::measured(105.0, 95.0, 115.0).by("ANEForge, M2 Pro"),
    ..base("m2", "M2", "h14g", &H14)
};

const M3: Chip = Chip {
    memory_gib: 24,
    peak_tflops: Figure::measured(15.9, 15.0, 16.8)
        .by("maderix/ANE, M3 Pro: 16.8 best, 15.0 sustained"),
    weight_gbps: weights(63.1),
    // Between the two.
    direct_us: Figure::inferred(200.0, 90.0, 500.0).by(
        "field guide of skyfallsin, M3 Max: 320 to 750 with conversions on the host; maderix/ANE: \
         90 on M4",
    ),
    ..base("m3", "M3", "h15g", &H15)
};

const M4: Chip = Chip {
    memory_gib: 32,
    cpu_gbps: Figure::measured(60.8, 50.0, 120.0)
        .by("M6 study: 56.67 GiB/s in Espresso's table of H16G"),
    peak_tflops: Figure::measured(18.8, 18.5, 19.0).by("maderix/ANE and M6 study"),
    int8_tops: Some(Figure::measured(36.6, 35.1, 38.2).by("maderix/ANE and M6 study")),
    weight_gbps: Figure::measured(65.0, 62.0, 67.0).by("anemll-bench 64.2, M6 study 67"),
    activation_gbps: kin(35.0, 24.0, 60.0),
    local_gbps: Figure::measured(123.0, 100.0, 160.0)
        .by("maderix/ANE: 64 channels over 128x128 at 3.92 TFLOP/s"),
    dispatch_us: Figure::measured(90.0, 80.0, 110.0).by("M6 study: 0.09 to 0.16 ms"),
    direct_us: Figure::measured(90.0, 60.0, 100.0).by("maderix/ANE"),
    idle_us: Figure::measured(70.0, 40.0, 80.0).by("M6 study: 0.09 to 0.16 ms"),
    ..base("m4", "M4", "h16g", &H16)
};

const M5: Chip = Chip {
    memory_gib: 32,
    peak_tflops: Figure::measured(15.2, 14.5, 16.0).by("maderix/ANE, chains: 12.4 at 64 positions"),
    int8_tops: Some(kin(28.0, 25.0, 36.8)),
    weight_gbps: Figure::measured(70.2, 66.0, 145.0).by("anemll-bench 70.2; companion book 145"),
    activation_gbps: Figure::measured(107.0, 24.0, 136.0)
        .by("ane-bridge-rs 107 to 136; companion book 24"),
    local_gbps: Figure::measured(120.0, 107.0, 148.0)
        .by("ane-bridge-rs, depthwise chains, macOS 26"),
    dispatch_us: kin(100.0, 80.0, 130.0),
    direct_us: Figure::measured(65.0, 50.0, 80.0).by("maderix/ANE and ane-bridge-rs"),
    host: host::M5,
    ..base("m5", "M5", "h17", &H17)
};

const M5_MAX: Chip = Chip {
    memory_gib: 128,
    cpu_gbps: WIDE_CPU,
    gpu_cores: 40,
    peak_tflops: Figure::measured(20.3, 18.7, 20.6).by("qwen-ane, int4 weights, macOS 27"),
    int8_tops: Some(
        Figure::measured(36.8, 30.6, 38.0).by("qwen-ane, 512 channels over 64x64, macOS 27"),
    ),
    weight_gbps: Figure::measured(150.0, 111.0, 171.0)
        .by("qwen-ane 111 to 171 by shape; ANEForge 143 on M5 Pro"),
    activation_gbps: Figure::measured(70.0, 40.0, 100.0).by("qwen-ane, surfaces"),
    dispatch_us: kin(100.0, 80.0, 130.0),
    direct_us: Figure::measured(95.0, 75.0, 115.0).by("qwen-ane, median of 65 min"),
    host: host::M5_MAX,
    ..base("m5-max", "M5 Max", "h17", &H17)
};

const A18_PRO: Chip = Chip {
    memory_gib: 8,
    cpu_gbps: phone_cpu(60.0),
    gpu_cores: 6,
    peak_tflops: on_phones(10.5),
    int8_tops: Some(on_phones(19.0)),
    weight_gbps: Figure::inferred(45.0, 40.0, 60.0).by("CoreML-LLM: 40 GB/s over whole steps"),
    activation_gbps: kin(35.0, 20.0, 60.0),
    ..base("a18-pro", "A18 Pro", "h17", &H17)
};

const A19_PRO: Chip = Chip {
    cpu_gbps: phone_cpu(76.8),
    arch: "h18?",
    generation: 18,
    family: &H18,
    ..A18_PRO.related().model("a19-pro", "A19 Pro", 12, 6)
};

/// Of A20 Pro only the name of its engine is published: `h19p` on iPhone 18 Pro, iOS 27.0, as
/// `h18p` on iPhone 17 Pro (coreai-model-zoo, `knowledge/jit-distribution.md`).
const A20_PRO: Chip = Chip {
    arch: "h19?",
    generation: 19,
    family: &H19,
    ..A19_PRO.newer().model("a20-pro", "A20 Pro", 12, 6)
};

/// Every chip: Macs in the order of their age, then phones.
pub static CHIPS: &[Chip] = &[
    M1,
    Chip {
        cpu_gbps: WIDE_CPU,
        host: host::M1.related(),
        weight_gbps: weights(54.9),
        ..M1.model("m1-pro", "M1 Pro", 32, 16)
    },
    Chip {
        cpu_gbps: Figure::measured(102.0, 60.0, 243.0)
            .by("AnandTech: 102 GB/s of one core, 243 of all"),
        weight_gbps: weights(54.6),
        ..M1.model("m1-max", "M1 Max", 64, 32)
    },
    // Two dies; one model uses one engine.
    Chip {
        cpu_gbps: WIDE_CPU,
        host: host::M1_ULTRA,
        weight_gbps: weights(54.7),
        ..M1.model("m1-ultra", "M1 Ultra", 128, 64)
    },
    M2,
    Chip {
        cpu_gbps: WIDE_CPU,
        weight_gbps: Figure::measured(57.0, 48.0, 60.5)
            .by("between ANEForge's fit, 48, and anemll-bench's M2"),
        ..M2.model("m2-pro", "M2 Pro", 32, 19)
    },
    Chip {
        cpu_gbps: WIDE_CPU,
        host: host::M1,
        weight_gbps: weights(62.0),
        ..M2.model("m2-max", "M2 Max", 96, 38)
    },
    Chip {
        cpu_gbps: WIDE_CPU,
        weight_gbps: weights(61.7),
        ..M2.model("m2-ultra", "M2 Ultra", 192, 76)
    },
    M3,
    Chip {
        cpu_gbps: WIDE_CPU,
        arch: "h15",
        weight_gbps: kin(63.0, 55.0, 125.0),
        ..M3.model("m3-pro", "M3 Pro", 36, 18)
    },
    Chip {
        cpu_gbps: WIDE_CPU,
        arch: "h15c?",
        weight_gbps: weights(120.2),
        ..M3.model("m3-max", "M3 Max", 128, 40)
    },
    Chip {
        cpu_gbps: WIDE_CPU,
        arch: "h15c?",
        weight_gbps: kin(120.0, 100.0, 135.0),
        ..M3.model("m3-ultra", "M3 Ultra", 512, 80)
    },
    M4,
    Chip {
        cpu_gbps: WIDE_CPU,
        host: host::M4_PRO,
        arch: "h16s?",
        peak_tflops: kin(18.8, 17.0, 19.0),
        weight_gbps: weights(126.4),
        ..M4.model("m4-pro", "M4 Pro", 64, 20)
    },
    Chip {
        cpu_gbps: WIDE_CPU,
        host: host::M4_MAX,
        arch: "h16c?",
        peak_tflops: kin(18.8, 17.0, 19.0),
        weight_gbps: weights(118.9),
        ..M4.model("m4-max", "M4 Max", 128, 40)
    },
    M5,
    Chip {
        host: host::RELATED_TO_M5,
        arch: "h17s?",
        weight_gbps: Figure::measured(150.0, 113.0, 156.0)
            .by("ANEForge 113 to 156 by shape; cadamcat"),
        direct_us: Figure::measured(85.0, 55.0, 110.0).by("ANEForge, e5rt"),
        ..M5_MAX.model("m5-pro", "M5 Pro", 64, 20)
    },
    M5_MAX,
    Chip {
        engines: 2,
        peak_tflops: Figure::measured(20.6, 19.7, 21.1)
            .by("M6 study: 20.6 of one engine, 39.5 of both"),
        int8_tops: Some(Figure::measured(27.5, 19.3, 31.0).by("M6 study, 1x1 kernels")),
        weight_gbps: Figure::measured(150.0, 125.0, 160.0).by("M6 study: both engines share it"),
        // 52 us more a call for 2 MB more of inputs, of which the later completion is a quarter.
        activation_gbps: Figure::measured(52.0, 35.0, 79.0)
            .by("M6 study: 35 to 40 an engine, 79 out of its cache"),
        local_gbps: Figure::inferred(297.0, 200.0, 490.0)
            .by("M6 study: 64 channels over 128x128 at 9.5 TFLOP/s"),
        element_gps: Figure::measured(61.0, 55.0, 121.5).by("M6 study: 121.5 of one op, 61 fused"),
        dispatch_us: Figure::measured(160.0, 130.0, 180.0).by("M6 study: 0.16 to 0.36 ms"),
        direct_us: kin(100.0, 60.0, 160.0),
        idle_us: Figure::measured(195.0, 150.0, 200.0)
            .by("M6 study: completion takes 130 to 325 us"),
        ..base("m6", "M6", "h18g", &H18)
    },
    Chip {
        cpu_gbps: phone_cpu(34.1),
        host: host::M1.related(),
        arch: "h13",
        weight_gbps: on_phones(30.0),
        peak_tflops: on_phones(6.6),
        ..M1.related().model("a14", "A14", 6, 4)
    },
    Chip {
        cpu_gbps: phone_cpu(34.1),
        arch: "h14",
        weight_gbps: on_phones(30.0),
        peak_tflops: on_phones(9.9),
        ..M2.related().model("a15", "A15", 6, 5)
    },
    Chip {
        cpu_gbps: phone_cpu(51.2),
        arch: "h15",
        weight_gbps: on_phones(40.0),
        peak_tflops: on_phones(9.5),
        ..M3.related().model("a16", "A16", 6, 5)
    },
    Chip {
        cpu_gbps: phone_cpu(51.2),
        arch: "h16?",
        weight_gbps: on_phones(44.0),
        peak_tflops: on_phones(10.5),
        dispatch_us: kin(150.0, 90.0, 500.0),
        ..M4.related().model("a17-pro", "A17 Pro", 8, 6)
    },
    A18_PRO.model("a18", "A18", 8, 5),
    A18_PRO,
    A19_PRO.model("a19", "A19", 8, 6),
    Chip {
        arch: "h18p",
        ..A19_PRO
    },
    A20_PRO.model("a20", "A20", 8, 6),
    Chip {
        arch: "h19p",
        ..A20_PRO
    },
];
