//! The figure of a measurement, and the machine.

use serde::Serialize;
use thane_kernels::Isa;

use crate::app::App;
use crate::profile::SlowOps;

/// A figure, as it is printed.
#[derive(Default, Serialize)]
pub struct Figure<'a> {
    /// What was measured.
    pub bench: String,
    pub model: &'a str,
    /// Version of Thane, and its commit if the build set `THANE_COMMIT`.
    pub version: &'static str,
    pub commit: Option<&'static str>,
    pub machine: Machine,
    pub numerics: String,
    pub threads: u16,
    /// Tokens of the prompt, twice; for embed, of the shortest and the longest text.
    pub tokens: [usize; 2],
    /// Tokens of the answer; null if there is none.
    pub answer_tokens: Option<u16>,
    /// Batch size; null if it is always 1.
    pub batch: Option<u16>,
    /// Tokens of a call of `verify`; null for others.
    pub verify_tokens: Option<u16>,
    /// Unit of `median`, `least` and `most`.
    pub unit: &'static str,
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub rounds: usize,
    /// Tokens per second of `embed`, without padding; null for others.
    pub tokens_per_s: Option<f64>,
    /// Function that `predict` called; null for others.
    pub function: Option<&'a str>,
    /// Calls of a round of `predict` and `verify`, whose mean time is the result of the round.
    pub calls: Option<u16>,
    /// Time in which `predict` opened and planned the package; null for others.
    pub load_ms: Option<f64>,
    /// The same with the first call.
    pub first_ms: Option<f64>,
    /// Peak memory of this process, or of the one that was started; null where the system does not
    /// tell.
    pub peak_memory_bytes: Option<u64>,
    /// With `--profile`, the ops that stay below a tenth of the machine's peak rates; null without.
    pub slow_ops: Option<Vec<SlowOps>>,
}

/// The machine of a measurement.
#[derive(Clone, Default, Serialize)]
pub struct Machine {
    pub cpu: String,
    /// Instruction set of the kernels.
    pub isa: &'static str,
    pub cores: usize,
}

impl Machine {
    /// This machine.
    pub fn here(app: &App) -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let cpu = name.map_or_else(
            || std::env::consts::ARCH.to_owned(),
            |(_, name)| name.trim().to_owned(),
        );
        Self {
            cpu,
            isa: app.isa.unwrap_or_else(Isa::detect).name(),
            cores: num_cpus::get_physical(),
        }
    }
}
