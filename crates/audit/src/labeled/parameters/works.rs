//! The works that numbers cite.

/// A work that sources of numbers name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// How sources name it.
    pub name: &'static str,
    /// Its files of which the tables have rows, without the commit. Other files of the same
    /// repository may be a test.
    pub files: &'static [&'static str],
    /// What it is, where it has no rows.
    pub document: &'static str,
}

const fn rows(name: &'static str, files: &'static [&'static str]) -> Work {
    Work {
        name,
        files,
        document: "",
    }
}

const fn document(name: &'static str, document: &'static str) -> Work {
    Work {
        name,
        files: &[],
        document,
    }
}

/// Every work.
pub const WORKS: &[Work] = &[
    rows(
        "M6 study",
        &[
            "751K/Apple-Neural-Engine-Microarchitecture-Study-M6:final_report/en.md Table 7-8",
            "751K/Apple-Neural-Engine-Microarchitecture-Study-M6:final_report/en.md Table 7-9",
            "751K/Apple-Neural-Engine-Microarchitecture-Study-M6:notes/memory.md C2",
            "751K/Apple-Neural-Engine-Microarchitecture-Study-M6:notes/memory.md C4",
        ],
    ),
    rows(
        "ANEForge",
        &[
            "sbryngelson/ANEForge:bench/ROOFLINES",
            "sbryngelson/ANEForge:bench/mlperf/README.md",
            "sbryngelson/ANEForge:bench/results/compress_speedup_bench.json",
            "sbryngelson/ANEForge:bench/results/decode_measurement_results.json",
            "sbryngelson/ANEForge:bench/results/device_compare_wattcomplete_results_M1.json",
            "sbryngelson/ANEForge:bench/results/device_compare_wattcomplete_results_M2.json",
            "sbryngelson/ANEForge:bench/results/device_compare_wattcomplete_results_M5.json",
            "sbryngelson/ANEForge:bench/results/gemv_bandwidth_sweep_results.json",
            "sbryngelson/ANEForge:bench/results/model_int4_bench.json",
            "sbryngelson/ANEForge:bench/results/rooflines.json",
            "sbryngelson/ANEForge:bench/results/rooflines/\
             roofline-apple-m6-Mac18_5-2bd3d20a7d10-3fab2f9b.json",
            "sbryngelson/ANEForge:bench/whisper_encoder_ane/README.md",
        ],
    ),
    document(
        "companion book",
        "the book beside ANEForge: slopes and knees on M1 and M5",
    ),
    rows(
        "anemll-bench",
        &[
            "Anemll/anemll-bench:Results.MD (llama_lm_head hidden 4096; GB/s and ms columns come \
             from different variants/runs)",
        ],
    ),
    rows(
        "maderix/ANE",
        &[
            "maderix/ANE:README.md + ane_int8_bench.m",
            "maderix/ANE:benchmarks/ANE_BENCHMARK_REPORT.md (inmem_peak 128x conv 512ch sp64)",
            "maderix/ANE:training/m5result.md",
            "751K/...M6:notes/maderix_summary.md (maderix Part 2/4)",
        ],
    ),
    rows(
        "qwen-ane",
        &[
            "True2456/qwen-ane:docs/ANE-MIL-COST-MODEL.md",
            "True2456/qwen-ane:docs/PERFORMANCE.md",
            "True2456/qwen-ane:docs/W8A8-PROJECTIONS.md",
        ],
    ),
    rows(
        "cadamcat",
        &["cadamcat/llms-on-apple-neural-engine:findings/coreml-direct-int4/README.md"],
    ),
    rows(
        "ane-bridge-rs",
        &[
            "electricapp/ane-bridge-rs:README.md",
            "electricapp/ane-bridge-rs:docs/MIL-CONSTRAINTS.md",
        ],
    ),
    rows(
        "CoreML-LLM",
        &[
            "john-rocky/CoreML-LLM:README.md",
            "john-rocky/CoreML-LLM:docs/CHUNK_CONSOLIDATION_BENCH.md",
            "john-rocky/CoreML-LLM:docs/PROBE_GEMMA4_VISION_ANE.md",
            "john-rocky/CoreML-LLM:docs/ane_residency_baseline_2026-04-19.json",
            "john-rocky/CoreML-LLM PR #169 (dokterbob), as digested in facts/coreml_llm.md section \
             3",
        ],
    ),
    rows(
        "skyfallsin",
        &["skyfallsin/apple-neural-engine-field-guide:README.md"],
    ),
    rows(
        "FluidAudio",
        &[
            "FluidInference/FluidAudio:Documentation/ANE_Profiler.md",
            "FluidInference/FluidAudio:Documentation/ASR/EncoderComputePlacement.md",
        ],
    ),
    rows(
        "ml-macos-performance",
        &["woolfel/ml-macos-performance:results.md"],
    ),
    rows(
        "whisper.cpp",
        &["github.com/ggml-org/whisper.cpp/issues/89 (TheCluster, 2026-01-17)"],
    ),
    rows(
        "erwinzhang7",
        &[
            "erwinzhang7/coreml-compute-placement:results/mobilenet-b1-deep.json",
            "erwinzhang7/coreml-compute-placement:results/placement-m4-pro.json",
            "erwinzhang7/coreml-compute-placement:results/placement-m5-max.json",
            "erwinzhang7/coreml-compute-placement:results/residency/experiments-bert-ALL.json",
            "erwinzhang7/coreml-compute-placement:results/residency/experiments-mobilenet-ALL.json",
            "erwinzhang7/coreml-compute-placement:results/residency/experiments-resnet50-ALL.json",
            "erwinzhang7/coreml-compute-placement:results/residency/\
             experiments-siglip-vision-ALL.json",
            "erwinzhang7/coreml-compute-placement:results/residency/experiments-whisper-ALL.json",
            "erwinzhang7/coreml-compute-placement:results/sweep-m4pro.json",
            "erwinzhang7/coreml-compute-placement:results/sweep-m5max.json",
            "erwinzhang7/coreml-compute-placement:results/zoo-m4pro-dtypefix.json",
            "erwinzhang7/coreml-compute-placement:results/zoo-m5max-v2.json",
        ],
    ),
    rows(
        "FastViT",
        &[
            "apple/ml-fastvit:README.md + docs/latency/*.PNG",
            "developer.apple.com/machine-learning/models (jp page text) ; model = \
             apple/coreml-FastViT-T8 / -MA36",
            "huggingface.co/apple/coreml-FastViT-MA36 README (Evaluation - Inference time)",
        ],
    ),
    rows("MobileCLIP", &["apple/ml-mobileclip:README.md"]),
    rows(
        "EfficientFormer",
        &["snap-research/EfficientFormer:README.md"],
    ),
    rows(
        "coremltools",
        &[
            "apple/coremltools:docs-guides/source/opt-palettization-perf.md",
            "apple/coremltools:docs-guides/source/opt-pruning-perf.md",
            "apple/coremltools:docs-guides/source/opt-quantization-perf.md",
            "apple/coremltools:docs-guides/source/opt-resnet.md",
            "apple/coremltools:docs-guides/source/performance-impact.md",
        ],
    ),
    document(
        "AnandTech",
        "the reviews of M1 and M1 Max, 2020 and 2021: memory bandwidth of the CPU",
    ),
    document(
        "Apple's specifications",
        "Apple's pages of devices and chips",
    ),
    document(
        "oxinfer",
        "its memory on M5 Max, macOS 26: see Memory by route in docs/accuracy.md",
    ),
    document(
        "anemll-forge",
        "Anemll/anemll-forge, its memory on M6, macOS 27: see Memory by route in docs/accuracy.md",
    ),
    document("ANEMLL", "Anemll/Anemll: chunks of at most 950 MB"),
    document("eeane", "eeane 2.1.0: the limit of a program on macOS 27"),
    document(
        "issue 196 of Core ML Tools",
        "github.com/apple/coremltools/issues/196: the same model called from Python and from \
         Objective-C",
    ),
    document(
        "Espresso of christopherkarani",
        "christopherkarani/Espresso, pull request 41: 22 ms for a head of 467 MB on the CPU",
    ),
    document(
        "every whole model marked `fit`",
        "the rows of whole_models.csv with a time whose split is `fit`; \
         crates/audit/tests/it/intervals.rs derives the widths from them",
    ),
    document("a guess", "no source: nobody published the number"),
    document(
        "a related chip",
        "no source: the number of another chip, with a wider range",
    ),
];
