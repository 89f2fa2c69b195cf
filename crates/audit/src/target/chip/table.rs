//! The rows of [`CHIPS`].

use super::Chip;
use crate::target::family::{Family, H13, H14, H15, H16, H17, H18};
use crate::target::{Figure, host};

const RELATED: &str = "a related chip";
const AB: &str = "anemll-bench, 128,256 outputs of 4,096, macOS 15";

/// Weights out of memory as anemll-bench has them; spread of its variants.
const fn weights(gbps: f64) -> Figure {
    Figure::measured(gbps, 0.92 * gbps, 1.1 * gbps, AB)
}

/// What whole networks on phones (FastViT, MobileCLIP, EfficientFormer, ResNet-50; `fit` rows of
/// `whole_models.csv`) show: a peak of 0.6 of that of the Mac's chip, and weights at 0.8 of what the
/// memory's width suggests.
const fn on_phones(value: f64) -> Figure {
    Figure::inferred(
        value,
        0.8 * value,
        1.3 * value,
        "networks on phones: FastViT, MobileCLIP, EfficientFormer, coremltools",
    )
}

const fn kin(value: f64, low: f64, high: f64) -> Figure {
    Figure::inferred(value, low, high, RELATED)
}

/// What CPUs of Pro, Max and Ultra chips get of a memory that is two to eight times as wide as that
/// of the plain chip: one core of M1 Max reads 102 GB/s, all of them 243 (AnandTech).
const WIDE_CPU: Figure = kin(102.0, 60.0, 243.0);

/// A phone's memory of 64 bits: `gbps` is what it moves at most, and what its CPU gets is taken to be
/// 0.85 of that, as on M1.
const fn phone_cpu(gbps: f64) -> Figure {
    Figure::inferred(
        0.85 * gbps,
        0.5 * gbps,
        gbps,
        "Apple's specifications: the width and clock of the memory",
    )
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

const M1: Chip = Chip {
    memory_gib: 16,
    cpu_gbps: Figure::measured(58.0, 40.0, 68.0, "AnandTech: one core reads 58 GB/s"),
    host: host::M1,
    gpu_cores: 8,
    peak_tflops: Figure::measured(
        12.0,
        9.6,
        12.5,
        "companion book of ANEForge: slope of convolutions",
    ),
    weight_gbps: Figure::measured(
        55.0,
        51.0,
        60.9,
        "anemll-bench 54.6 to 60.9; companion book 51",
    ),
    activation_gbps: Figure::measured(24.0, 20.0, 30.0, "companion book of ANEForge"),
    dispatch_us: Figure::measured(205.0, 190.0, 220.0, "ANEForge's fit and companion book"),
    direct_us: Figure::measured(185.0, 165.0, 220.0, "ANEForge, M1 and M1 Max, e5rt"),
    ..base("m1", "M1", "h13g", &H13)
};

const M2: Chip = Chip {
    memory_gib: 24,
    peak_tflops: Figure::inferred(
        16.5,
        15.8,
        17.2,
        "Apple's specifications: 15.8; M6 study: 17.2 in Espresso's table of H14G",
    ),
    weight_gbps: weights(60.5),
    dispatch_us: Figure::measured(150.0, 120.0, 180.0, "ANEForge"),
    direct_us: Figure::measured(105.0, 95.0, 115.0, "ANEForge, M2 Pro"),
    ..base("m2", "M2", "h14g", &H14)
};

const M3: Chip = Chip {
    memory_gib: 24,
    peak_tflops: Figure::measured(
        15.9,
        15.0,
        16.8,
        "maderix/ANE, M3 Pro: 16.8 best, 15.0 sustained",
    ),
    weight_gbps: weights(63.1),
    // Between the two.
    direct_us: Figure::inferred(
        200.0,
        90.0,
        500.0,
        "field guide of skyfallsin, M3 Max: 320 to 750 with conversions on the host; maderix/ANE: 90 \
         on M4",
    ),
    ..base("m3", "M3", "h15g", &H15)
};

const M4: Chip = Chip {
    memory_gib: 32,
    cpu_gbps: Figure::measured(
        60.8,
        50.0,
        120.0,
        "M6 study: 56.67 GiB/s in Espresso's table of H16G",
    ),
    peak_tflops: Figure::measured(18.8, 18.5, 19.0, "maderix/ANE and M6 study"),
    int8_tops: Some(Figure::measured(
        36.6,
        35.1,
        38.2,
        "maderix/ANE and M6 study",
    )),
    weight_gbps: Figure::measured(65.0, 62.0, 67.0, "anemll-bench 64.2, M6 study 67"),
    activation_gbps: kin(35.0, 24.0, 60.0),
    local_gbps: Figure::measured(
        123.0,
        100.0,
        160.0,
        "maderix/ANE: 64 channels over 128x128 at 3.92 TFLOP/s",
    ),
    dispatch_us: Figure::measured(90.0, 80.0, 110.0, "M6 study: 0.09 to 0.16 ms"),
    direct_us: Figure::measured(90.0, 60.0, 100.0, "maderix/ANE"),
    idle_us: Figure::measured(70.0, 40.0, 80.0, "M6 study: 0.09 to 0.16 ms"),
    ..base("m4", "M4", "h16g", &H16)
};

const M5: Chip = Chip {
    memory_gib: 32,
    peak_tflops: Figure::measured(
        15.2,
        14.5,
        16.0,
        "maderix/ANE, chains: 12.4 at 64 positions",
    ),
    int8_tops: Some(kin(28.0, 25.0, 36.8)),
    weight_gbps: Figure::measured(70.2, 66.0, 145.0, "anemll-bench 70.2; companion book 145"),
    activation_gbps: Figure::measured(
        107.0,
        24.0,
        136.0,
        "ane-bridge-rs 107 to 136; companion book 24",
    ),
    local_gbps: Figure::measured(
        120.0,
        107.0,
        148.0,
        "ane-bridge-rs, depthwise chains, macOS 26",
    ),
    dispatch_us: kin(100.0, 80.0, 130.0),
    direct_us: Figure::measured(65.0, 50.0, 80.0, "maderix/ANE and ane-bridge-rs"),
    host: host::M5,
    ..base("m5", "M5", "h17", &H17)
};

const M5_MAX: Chip = Chip {
    memory_gib: 128,
    cpu_gbps: WIDE_CPU,
    gpu_cores: 40,
    peak_tflops: Figure::measured(20.3, 18.7, 20.6, "qwen-ane, int4 weights, macOS 27"),
    int8_tops: Some(Figure::measured(
        36.8,
        30.6,
        38.0,
        "qwen-ane, 512 channels over 64x64, macOS 27",
    )),
    weight_gbps: Figure::measured(
        150.0,
        111.0,
        171.0,
        "qwen-ane 111 to 171 by shape; ANEForge 143 on M5 Pro",
    ),
    activation_gbps: Figure::measured(70.0, 40.0, 100.0, "qwen-ane, surfaces"),
    dispatch_us: kin(100.0, 80.0, 130.0),
    direct_us: Figure::measured(95.0, 75.0, 115.0, "qwen-ane, median of 65 min"),
    host: host::M5_MAX,
    ..base("m5-max", "M5 Max", "h17", &H17)
};

const A18_PRO: Chip = Chip {
    memory_gib: 8,
    cpu_gbps: phone_cpu(60.0),
    gpu_cores: 6,
    peak_tflops: on_phones(10.5),
    int8_tops: Some(on_phones(19.0)),
    weight_gbps: Figure::inferred(45.0, 40.0, 60.0, "CoreML-LLM: 40 GB/s over whole steps"),
    activation_gbps: kin(35.0, 20.0, 60.0),
    ..base("a18-pro", "A18 Pro", "h17", &H17)
};

/// Every chip: Macs in the order of their age, then phones.
pub static CHIPS: &[Chip] = &[
    M1,
    Chip {
        name: "m1-pro",
        memory_gib: 32,
        cpu_gbps: WIDE_CPU,
        host: host::M1.related(),
        marketing: "M1 Pro",
        gpu_cores: 16,
        weight_gbps: weights(54.9),
        ..M1
    },
    Chip {
        name: "m1-max",
        memory_gib: 64,
        cpu_gbps: Figure::measured(
            102.0,
            60.0,
            243.0,
            "AnandTech: 102 GB/s of one core, 243 of all",
        ),
        marketing: "M1 Max",
        gpu_cores: 32,
        weight_gbps: weights(54.6),
        ..M1
    },
    // Two dies; one model uses one engine.
    Chip {
        name: "m1-ultra",
        memory_gib: 128,
        cpu_gbps: WIDE_CPU,
        host: host::M1_ULTRA,
        marketing: "M1 Ultra",
        gpu_cores: 64,
        weight_gbps: weights(54.7),
        ..M1
    },
    M2,
    Chip {
        name: "m2-pro",
        memory_gib: 32,
        cpu_gbps: WIDE_CPU,
        marketing: "M2 Pro",
        gpu_cores: 19,
        weight_gbps: Figure::measured(
            57.0,
            48.0,
            60.5,
            "between ANEForge's fit, 48, and anemll-bench's M2",
        ),
        ..M2
    },
    Chip {
        name: "m2-max",
        memory_gib: 96,
        cpu_gbps: WIDE_CPU,
        host: host::M1,
        marketing: "M2 Max",
        gpu_cores: 38,
        weight_gbps: weights(62.0),
        ..M2
    },
    Chip {
        name: "m2-ultra",
        memory_gib: 192,
        cpu_gbps: WIDE_CPU,
        marketing: "M2 Ultra",
        gpu_cores: 76,
        weight_gbps: weights(61.7),
        ..M2
    },
    M3,
    Chip {
        name: "m3-pro",
        memory_gib: 36,
        cpu_gbps: WIDE_CPU,
        marketing: "M3 Pro",
        arch: "h15",
        gpu_cores: 18,
        weight_gbps: kin(63.0, 55.0, 125.0),
        ..M3
    },
    Chip {
        name: "m3-max",
        memory_gib: 128,
        cpu_gbps: WIDE_CPU,
        marketing: "M3 Max",
        arch: "h15c?",
        gpu_cores: 40,
        weight_gbps: weights(120.2),
        ..M3
    },
    Chip {
        name: "m3-ultra",
        memory_gib: 512,
        cpu_gbps: WIDE_CPU,
        marketing: "M3 Ultra",
        arch: "h15c?",
        gpu_cores: 80,
        weight_gbps: kin(120.0, 100.0, 135.0),
        ..M3
    },
    M4,
    Chip {
        name: "m4-pro",
        memory_gib: 64,
        cpu_gbps: WIDE_CPU,
        host: host::M4_PRO,
        marketing: "M4 Pro",
        arch: "h16s?",
        gpu_cores: 20,
        peak_tflops: kin(18.8, 17.0, 19.0),
        weight_gbps: weights(126.4),
        ..M4
    },
    Chip {
        name: "m4-max",
        memory_gib: 128,
        cpu_gbps: WIDE_CPU,
        host: host::M4_MAX,
        marketing: "M4 Max",
        arch: "h16c?",
        gpu_cores: 40,
        peak_tflops: kin(18.8, 17.0, 19.0),
        weight_gbps: weights(118.9),
        ..M4
    },
    M5,
    Chip {
        name: "m5-pro",
        memory_gib: 64,
        host: host::RELATED_TO_M5,
        marketing: "M5 Pro",
        arch: "h17s?",
        gpu_cores: 20,
        weight_gbps: Figure::measured(
            150.0,
            113.0,
            156.0,
            "ANEForge 113 to 156 by shape; cadamcat",
        ),
        direct_us: Figure::measured(85.0, 55.0, 110.0, "ANEForge, e5rt"),
        ..M5_MAX
    },
    M5_MAX,
    Chip {
        engines: 2,
        peak_tflops: Figure::measured(
            20.6,
            19.7,
            21.1,
            "M6 study: 20.6 of one engine, 39.5 of both",
        ),
        int8_tops: Some(Figure::measured(27.5, 19.3, 31.0, "M6 study, 1x1 kernels")),
        weight_gbps: Figure::measured(150.0, 125.0, 160.0, "M6 study: both engines share it"),
        // 52 us more a call for 2 MB more of inputs, of which the later completion is a quarter.
        activation_gbps: Figure::measured(
            52.0,
            35.0,
            79.0,
            "M6 study: 35 to 40 an engine, 79 out of its cache",
        ),
        local_gbps: Figure::inferred(
            297.0,
            200.0,
            490.0,
            "M6 study: 64 channels over 128x128 at 9.5 TFLOP/s",
        ),
        element_gps: Figure::measured(61.0, 55.0, 121.5, "M6 study: 121.5 of one op, 61 fused"),
        dispatch_us: Figure::measured(160.0, 130.0, 180.0, "M6 study: 0.16 to 0.36 ms"),
        direct_us: kin(100.0, 60.0, 160.0),
        idle_us: Figure::measured(
            195.0,
            150.0,
            200.0,
            "M6 study: completion takes 130 to 325 us",
        ),
        ..base("m6", "M6", "h18g", &H18)
    },
    Chip {
        name: "a14",
        memory_gib: 6,
        cpu_gbps: phone_cpu(34.1),
        host: host::M1.related(),
        marketing: "A14",
        arch: "h13",
        gpu_cores: 4,
        weight_gbps: on_phones(30.0),
        peak_tflops: on_phones(6.6),
        ..M1.related()
    },
    Chip {
        name: "a15",
        memory_gib: 6,
        cpu_gbps: phone_cpu(34.1),
        marketing: "A15",
        arch: "h14",
        gpu_cores: 5,
        weight_gbps: on_phones(30.0),
        peak_tflops: on_phones(9.9),
        ..M2.related()
    },
    Chip {
        name: "a16",
        memory_gib: 6,
        cpu_gbps: phone_cpu(51.2),
        marketing: "A16",
        arch: "h15",
        gpu_cores: 5,
        weight_gbps: on_phones(40.0),
        peak_tflops: on_phones(9.5),
        ..M3.related()
    },
    Chip {
        name: "a17-pro",
        memory_gib: 8,
        cpu_gbps: phone_cpu(51.2),
        marketing: "A17 Pro",
        arch: "h16?",
        gpu_cores: 6,
        weight_gbps: on_phones(44.0),
        peak_tflops: on_phones(10.5),
        dispatch_us: kin(150.0, 90.0, 500.0),
        ..M4.related()
    },
    Chip {
        name: "a18",
        memory_gib: 8,
        marketing: "A18",
        gpu_cores: 5,
        ..A18_PRO
    },
    A18_PRO,
    Chip {
        name: "a19",
        memory_gib: 8,
        cpu_gbps: phone_cpu(76.8),
        marketing: "A19",
        arch: "h18?",
        generation: 18,
        family: &H18,
        ..A18_PRO.related()
    },
    Chip {
        name: "a19-pro",
        memory_gib: 12,
        cpu_gbps: phone_cpu(76.8),
        marketing: "A19 Pro",
        arch: "h18?",
        generation: 18,
        family: &H18,
        ..A18_PRO.related()
    },
];
