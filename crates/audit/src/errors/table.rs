//! The rows of [`ERRORS`]: a text or code as users see it, its meaning, and the rules that find its
//! causes.

use super::ErrorRow;
use crate::target::Evidence;

/// What rows have that do not say otherwise.
const ROW: ErrorRow = ErrorRow {
    title: "",
    texts: &[],
    codes: &[],
    meaning: "",
    causes: &[],
    remedies: &[],
    evidence: Evidence::Measured,
    source: "",
};

/// Rules that sources saw end in a failure of the engine's compiler.
const COMPILE: &[&str] = &[
    "ANE041", "ANE106", "ANE097", "ANE071", "ANE145", "ANE146", "ANE144", "ANE083", "ANE088",
    "ANE089", "ANE158", "ANE093", "ANE024", "ANE055", "ANE060", "ANE094",
];

/// Every row, the most specific first.
pub static ERRORS: &[ErrorRow] = &[
    ErrorRow {
        title: "The engine's compiler failed",
        texts: &[
            "ANECCompile",
            "CompilationFailure",
            "failed to compile ANE model",
            "_ANECompiler",
        ],
        codes: &["11"],
        meaning: "A segment that was meant for the engine did not compile. Core ML then runs the \
            whole program elsewhere, without an error of its own, unless it has states.",
        causes: COMPILE,
        remedies: &[
            "Cut the program until it compiles: `thane bisect` finds the smallest part with a \
             finding.",
            "Free disk space: a full disk shows as nothing but this text (mlx-serve).",
            "Run it with cpuAndGPU to see whether the program itself is sound.",
        ],
        source: "coremltools issues 1106, 1548, 2247, 2503; ml-stable-diffusion 254 and 255; \
            executorch 19635; mlx-serve",
        ..ROW
    },
    ErrorRow {
        title: "No plan for the program",
        texts: &[
            "Failed to build the model execution plan",
            "Error plan build",
        ],
        codes: &["-14", "14", "-1"],
        meaning: "Core ML found no way to run the program with these compute units, often because \
            a state or what is around it does not lower to the engine. Later calls then say that \
            the model is not loaded.",
        causes: &[
            "ANE079", "ANE070", "ANE072", "ANE083", "ANE073", "ANE078", "ANE071", "ANE068",
            "ANE075", "ANE046", "ANE096", "ANE144", "ANE163",
        ],
        remedies: &[
            "Pass the cache in and out instead of a state.",
            "Use one scale an output channel in place of scales for groups of inputs.",
            "Load with cpuAndGPU: if that works, it is the lowering to the engine.",
        ],
        source: "swift-chat issue 31 (M3, 15.1.1), coremltools issues 2325, 2247, 1548, 1106; \
            CoreML-LLM",
        ..ROW
    },
    ErrorRow {
        title: "The engine stopped in a call: 0x1d",
        texts: &[
            "0x1d",
            "Program Inference error",
            "ANEProgramProcessRequestDirect",
        ],
        meaning: "The program loaded, and a request to the engine failed: mostly buffers of \
            another stride, size or order than it was compiled for, or three states and more.",
        causes: &[
            "ANE062", "ANE068", "ANE069", "ANE137", "ANE155", "ANE070", "ANE128",
        ],
        remedies: &[
            "Pad last axes of inputs, outputs and states to a multiple of 32.",
            "Keep to one state, of at most two.",
            "Delete compiled artifacts of an earlier system or process, and compile again.",
        ],
        source: "CoreML-LLM (iPhone 17 Pro), Espresso, maderix/ANE, qwen-ane",
        ..ROW
    },
    ErrorRow {
        title: "The engine stopped in a call: 0x15",
        texts: &["0x15"],
        meaning: "A call ran into a limit of the engine's memory: seen with scores of attention of \
            2 GB, at 8,192 positions.",
        causes: &["ANE128", "ANE129", "ANE130", "ANE140"],
        remedies: &[
            "Compute attention over blocks of queries, so that no scores of all positions are \
             there at once.",
            "Use shorter buckets.",
        ],
        source: "CoreML-LLM, pull request 169: pplx-embed at length 8192",
        ..ROW
    },
    ErrorRow {
        title: "The engine stopped in a call: 0x16 or 0x1",
        texts: &["0x16", "status=0x1 "],
        codes: &["0x1"],
        meaning: "Inference failed on the engine; nobody found out more than the models and \
            systems that it happens with: Stable Diffusion on macOS 14, ControlNet on M1.",
        causes: &["ANE128", "ANE129", "ANE062", "ANE096", "ANE094", "ANE068"],
        remedies: &[
            "Use cpuAndGPU on that system.",
            "Cut the model into smaller programs.",
        ],
        evidence: Evidence::Folklore,
        source: "ml-stable-diffusion issue 251; status lists of CoreML-LLM",
    },
    ErrorRow {
        title: "Too much memory for the engine: 0x20004",
        texts: &["0x20004", "Program load failure (0x2"],
        meaning: "Loading went over the engine's memory or its window of about 4 GiB, with what \
            other programs hold.",
        causes: &[
            "ANE095", "ANE094", "ANE096", "ANE166", "ANE165", "ANE150", "ANE151", "ANE148",
            "ANE077",
        ],
        remedies: &[
            "Cut the model into programs of less than 1 GB, or compress weights.",
            "Release programs that are not needed before loading another.",
        ],
        source: "CoreML-LLM (iPhone), oMLX",
        ..ROW
    },
    ErrorRow {
        title: "Too many programs: 0x50004",
        texts: &["0x50004"],
        meaning: "A process holds about 127 programs of the engine; the next does not load. Each \
            function is one.",
        causes: &["ANE149", "ANE148", "ANE164"],
        remedies: &[
            "Load fewer functions at once.",
            "Put several lengths into one program.",
        ],
        source: "qwen-ane: the 128th program on M5 Max",
        ..ROW
    },
    ErrorRow {
        title: "A compiled bundle that the engine does not take",
        texts: &[
            "Must re-compile the E5 bundle",
            "ANE model load has failed for on-device compiled macho",
        ],
        meaning: "The program is too large or has too many layers for the device, or the cached \
            bundle is from another process or release.",
        causes: &["ANE144", "ANE096", "ANE095", "ANE094", "ANE148", "ANE150"],
        remedies: &[
            "Cut the model into programs of fewer layers.",
            "Delete the cache com.apple.e5rt.e5bundlecache, and load again.",
        ],
        source: "CoreML-LLM (iPhone 17 Pro), ANEMLL",
        ..ROW
    },
    ErrorRow {
        title: "An opset that the system does not read",
        texts: &[
            "Unknown opset",
            "Unable to parse ML Program",
            "com.apple.mlassetio",
        ],
        meaning: "The system's Core ML is older than the program's opset, or an op is not one of \
            it. This holds for every compute unit.",
        causes: &["ANE143"],
        remedies: &[
            "thane convert MODEL --min-os macos14 -o PACKAGE, for the oldest system that is to run \
             it.",
            "thane check PACKAGE, for ops that no opset has.",
        ],
        source: "ane-linux-experiments, macOS 14.8.9",
        ..ROW
    },
    ErrorRow {
        title: "std::bad_cast",
        texts: &["std::bad_cast", "bad_cast"],
        meaning: "The compiler of the engine fell over a part of a state that is an output.",
        causes: &["ANE074", "ANE075", "ANE073"],
        remedies: &["Give back what was computed before it is written to the state."],
        source: "CoreML-LLM",
        ..ROW
    },
    ErrorRow {
        title: "A call of a stateful program fails: E5RT code 8",
        texts: &["E5RT", "com.apple.appleneuralengine"],
        codes: &["8"],
        meaning: "The engine refused a request. Programs with states do so on M5 Max, whatever \
            they are; the status behind the text tells more.",
        causes: &["ANE080", "ANE068", "ANE069", "ANE070", "ANE062"],
        remedies: &[
            "Pass the cache in and out instead of a state.",
            "Look at the status: `thane explain 0x1d`.",
        ],
        evidence: Evidence::Folklore,
        source: "VoxCPMANE issues 10 and 15",
    },
    ErrorRow {
        title: "An input that the program has and the model has not",
        texts: &["not found in Core ML model inputs", "MIL program input"],
        meaning: "A view stands between the reading of a state and its use, and the state is taken \
            for an input.",
        causes: &["ANE073"],
        remedies: &["Use the state as it is read, and change shapes behind the first op."],
        source: "coremltools issue 2278",
        ..ROW
    },
    ErrorRow {
        title: "A surface of another size than the model's",
        texts: &["IOSurface smaller than the model expects", "Code=42"],
        codes: &["42"],
        meaning: "Straight to the engine: inputs and outputs go by the order of symbols, and one \
            is too small for its place.",
        causes: &["ANE155", "ANE062", "ANE051"],
        remedies: &["Give surfaces in the order of names, each with rows of 64 bytes."],
        source: "qwen-ane",
        ..ROW
    },
    ErrorRow {
        title: "The compiler of the engine says no more than InvalidMILProgram",
        texts: &["InvalidMILProgram"],
        meaning: "Straight to the engine: its parser or validator refuses the program, and does \
            not say where.",
        causes: &["ANE039", "ANE040", "ANE099", "ANE051", "ANE025", "ANE082"],
        remedies: &["`thane audit X --direct` lists what that route does not take."],
        source: "maderix/ANE, qwen-ane, mlx-serve",
        ..ROW
    },
    ErrorRow {
        title: "The compiler's service crashed",
        texts: &["Couldn't communicate with a helper application", "SIGBUS"],
        codes: &["138"],
        meaning: "ANECompilerService ended while it compiled: the program is one that it cannot \
            stand.",
        causes: &["ANE101", "ANE146", "ANE033", "ANE147", "ANE024"],
        remedies: &[
            "Cut the program until it compiles.",
            "End aned, which may keep the service hanging, and try again.",
        ],
        source: "mlx-serve (M4 Max, macOS 26), M6 study",
        ..ROW
    },
    ErrorRow {
        title: "An op that this engine does not have",
        texts: &["rc 22", "rc=22", "no HAL"],
        codes: &["22"],
        meaning: "Straight to the engine: the compiler has no form of an op for this generation.",
        causes: &["ANE024", "ANE025", "ANE035", "ANE037", "ANE001", "ANE002"],
        remedies: &["Compute that op on the host, or go through Core ML."],
        source: "M6 study, ANEForge",
        ..ROW
    },
    ErrorRow {
        title: "The compiler says unsupported, and nothing more",
        texts: &["aneCompileStatus=1", "rc 1 "],
        codes: &["1"],
        meaning: "The offline compiler refuses the program with an empty list of errors: seen with \
            linear layers of int4.",
        causes: &["ANE083", "ANE084", "ANE101", "ANE097", "ANE041"],
        remedies: &[
            "Use int8 or palettes for weights.",
            "Cut the program until it compiles.",
        ],
        source: "coreai-models issue 205",
        ..ROW
    },
    ErrorRow {
        title: "A function of one or two positions fails",
        texts: &["0xe00002c2"],
        meaning: "The driver refuses a function that takes one or two positions; those of four and \
            eight run.",
        causes: &["ANE117", "ANE062"],
        remedies: &["Take four positions, and mask three."],
        evidence: Evidence::Folklore,
        source: "cadamcat",
        ..ROW
    },
    ErrorRow {
        title: "A program that nobody signed",
        texts: &["0xe00002e2"],
        meaning: "Straight to the engine: a compiled program that did not come from Apple's own \
            service is refused. Others load unsigned programs as kANEFModelPreCompiled up to macOS \
            27.",
        remedies: &["Let the system compile it."],
        source: "espresso and maderix notes; mil_infer (M4) loads them",
        evidence: Evidence::Folklore,
        ..ROW
    },
    ErrorRow {
        title: "A folder that is no bundle",
        texts: &["verifyBundleAtPath", "Code=10"],
        codes: &["10"],
        meaning: "Straight to the engine: what lies in the staging folder is not one program and \
            one weight file. On macOS 27.0 some bundles that load on macOS 26.6 end so.",
        remedies: &["Put all weights into one file."],
        source: "qwen-ane; oMLX #3124: macOS 27.0, M4 and M5 Max",
        ..ROW
    },
    ErrorRow {
        title: "No space left on device",
        texts: &["No space left on device"],
        meaning: "The compiler ran out of space: seen with 24 layers of fp16 in one program on iOS \
            26.1.",
        causes: &["ANE144", "ANE096", "ANE095", "ANE094"],
        remedies: &[
            "Cut the model into programs.",
            "Free disk space: a program takes about 260 MB while it compiles.",
        ],
        source: "CoreML-LLM (iOS 26.1), mlx-serve",
        ..ROW
    },
    ErrorRow {
        title: "A crash while a program with states loads",
        texts: &["segmentation fault", "EXC_BAD_ACCESS", "SIGSEGV"],
        meaning: "The compiler or the runtime crashed: seen where what a state is set to is an \
            output too.",
        causes: &["ANE075", "ANE081", "ANE026", "ANE080"],
        remedies: &["Give back another value than the one that the state is set to."],
        source: "coremltools issues; coreai-torch issue 6",
        evidence: Evidence::Folklore,
        ..ROW
    },
    ErrorRow {
        title: "Error computing NN outputs",
        texts: &["Error computing NN outputs"],
        meaning: "The runtime of old neural networks failed, often for want of memory.",
        causes: &["ANE094", "ANE095", "ANE128"],
        remedies: &["Convert the model to an ML Program.", "Use smaller inputs."],
        evidence: Evidence::Folklore,
        source: "coremltools issues",
        ..ROW
    },
];
