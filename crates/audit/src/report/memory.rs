//! The memory that a program holds once its functions are loaded, by the way in.
//!
//! Weights lie in memory as the Neural Engine reads them (`program_bytes` of
//! [`Traffic`](crate::latency::traffic::Traffic)), times what sources saw beyond that ([`WIRED`]).
//! The ways differ in how many copies they hold: Core ML one for each loaded function, Core AI one
//! for all. Activations and states are counted from shapes.

use serde::Serialize;

use crate::latency::Latency;
use crate::number::{counted, predicted_bytes};
use crate::rules::SharedWeights;
use crate::target::{Evidence, Figure, Target};

/// Bytes in memory for a byte of weights: 0.84 GB for 0.75 GB in palettes of 4 bits, 0.81 GB with
/// 3 bits, 0.47 GB for 0.375 GB with 2 (oxinfer). A file of 0.69 GB takes 1.05 GB (anemll-forge).
pub(crate) const WIRED: Figure =
    Figure::measured(1.12, 1.0, 1.52).by("oxinfer, M5 Max, macOS 26; anemll-forge, M6, macOS 27");

/// What a program holds in memory by one way in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryRow {
    /// `coreml`, `coreai` or `direct`.
    pub route: &'static str,
    /// Functions that are loaded.
    pub functions: usize,
    /// Expected bytes: weights, activations and states.
    pub bytes: f64,
    /// Least bytes.
    pub low_bytes: f64,
    /// Most bytes.
    pub high_bytes: f64,
    /// Bytes of weights, all copies.
    pub weight_bytes: f64,
    /// Bytes of activations, of each function.
    pub activation_bytes: f64,
    /// Bytes of states, held once.
    pub state_bytes: f64,
    /// Bytes of tables that lookups on the CPU or GPU read, such as embeddings, held once.
    pub table_bytes: f64,
    /// `measured` or `inferred`: how many copies of weights there are.
    pub evidence: &'static str,
    /// Who says how many copies.
    pub source: &'static str,
    /// A source that contradicts; null where none does.
    pub disputed: Option<&'static str>,
}

/// Functions of one program, as they are loaded.
pub struct Loaded {
    /// What is predicted of each function.
    pub functions: Vec<Latency>,
    /// Which weights they share.
    pub shared: SharedWeights,
}

const CORE_ML: &str = "anemll-forge, M6, macOS 27: a file of 0.69 GB wires 1.05 GB for one \
    function and 2.09 GB for two; oxinfer, M5 Max, macOS 26, and coremltools #2351 report the same";
const CORE_AI: &str = "anemll-forge, M6, macOS 27: four entry points wire 0.50 GB, four functions \
    of Core ML 1.75 GB";
const DIRECT: &str = "a program has one function and its own weights; nobody published its memory";
const SHARING_DISPUTED: &str = "CoreML-LLM 3.4 (pplx-embed): functions with equal weights take \
    1.15 GB to load, with different ones 3.5 GB";
const PHONE_DISPUTED: &str = "CoreML-LLM, iPhone 17 Pro: compressed weights take as much as fp16 \
    (0.75 GB in the file, 1.6 GB in memory), but a larger model takes 0.87 to 0.98 GB for 1.09 GB";

/// What programs hold, by each way in; nothing where no function is loaded.
pub fn rows(programs: &[Loaded], target: &Target) -> Vec<MemoryRow> {
    let sum = Sum::of(programs);
    if sum.functions == 0 {
        return Vec::new();
    }
    let shares = sum.once < 0.99 * sum.copies;
    let expands = target.is_mobile() && sum.copies < 0.75 * sum.dense;
    let on_phones = expands.then_some(PHONE_DISPUTED);
    // What weights take where they are expanded to fp16.
    let expanded = if expands {
        sum.dense / sum.copies.max(1.0)
    } else {
        0.0
    };
    let others = sum.activations + sum.states + sum.tables;
    let row = |route, evidence: Evidence, source, weights: f64| MemoryRow {
        route,
        functions: sum.functions,
        bytes: weights * WIRED.value + others,
        // Pages of a mapped table that no call touches take no memory: 40 MB of 5.5 GB (oxinfer).
        low_bytes: weights * WIRED.low + others - sum.mapped,
        high_bytes: weights * WIRED.high.max(expanded) + others,
        weight_bytes: weights * WIRED.value,
        activation_bytes: sum.activations,
        state_bytes: sum.states,
        table_bytes: sum.tables,
        evidence: evidence.name(),
        source,
        disputed: on_phones,
    };
    let mut core_ml = row("coreml", Evidence::Measured, CORE_ML, sum.copies);
    if shares {
        // By the source that contradicts, equal weights are there once.
        core_ml.low_bytes -= (sum.copies - sum.once) * WIRED.low;
        core_ml.disputed = Some(SHARING_DISPUTED);
    }
    vec![
        core_ml,
        row("coreai", Evidence::Measured, CORE_AI, sum.once),
        row("direct", Evidence::Inferred, DIRECT, sum.copies),
    ]
}

/// Bytes of all functions of all programs.
struct Sum {
    functions: usize,
    /// Weights, of each function.
    copies: f64,
    /// Weights, those that functions share once.
    once: f64,
    /// Weights of each function, as fp16.
    dense: f64,
    activations: f64,
    /// Of the functions of a program, of which all use one state.
    states: f64,
    /// Of the functions of a program, which look up in one table.
    tables: f64,
    /// Those of them that are mapped.
    mapped: f64,
}

impl Sum {
    fn of(programs: &[Loaded]) -> Self {
        let all = || programs.iter().flat_map(|p| &p.functions);
        let most = |p: &Loaded, bytes: fn(&Latency) -> f64| {
            p.functions.iter().map(bytes).fold(0.0, f64::max)
        };
        let sum = |bytes: fn(&Latency) -> f64| programs.iter().map(|p| most(p, bytes)).sum();
        Self {
            functions: all().count(),
            copies: all().map(|l| l.memory.program_bytes).sum(),
            once: programs.iter().map(Loaded::bytes_once).sum(),
            dense: all().map(|l| l.memory.dense_bytes).sum(),
            activations: all().map(|l| l.memory.alive_bytes).sum(),
            states: sum(|l| l.memory.state_bytes),
            tables: sum(|l| l.memory.table_bytes),
            mapped: sum(|l| l.memory.mapped_bytes),
        }
    }
}

impl Loaded {
    /// Bytes of weights where functions share those that are alike.
    fn bytes_once(&self) -> f64 {
        let all: f64 = self.functions.iter().map(|l| l.memory.program_bytes).sum();
        // Of functions that are left out, it is not known which weights they share.
        if self.functions.len() < 2 {
            all
        } else {
            all * (1.0 - self.shared.share())
        }
    }
}

impl MemoryRow {
    /// `1.05 GB (0.94 GB to 1.42 GB)`.
    pub fn range(&self) -> String {
        format!(
            "{} ({} to {})",
            predicted_bytes(self.bytes),
            predicted_bytes(self.low_bytes),
            predicted_bytes(self.high_bytes)
        )
    }

    /// `1.05 GB (0.94 GB to 1.42 GB) by Core ML, a copy of the weights for each of 3 functions`.
    pub fn describe(&self) -> String {
        let way = match self.route {
            "coreml" => "by Core ML, a copy of the weights for each of",
            "coreai" => "by Core AI, one copy for all of",
            _ => "directly, as a program for each of",
        };
        format!(
            "{} {way} {}",
            self.range(),
            counted(self.functions, "function")
        )
    }
}
