//! What is printed of a measurement.

use serde::Serialize;
use thane_kernels::Isa;

use crate::app::App;

/// A figure.
#[derive(Serialize)]
pub struct Figure<'a> {
    /// The value of `what`.
    pub bench: String,
    pub model: &'a str,
    /// Of Thane, and the commit where the build was told it (`THANE_COMMIT`).
    pub version: &'static str,
    pub commit: Option<&'static str>,
    pub machine: Machine,
    pub numerics: String,
    pub threads: u16,
    /// Tokens of the prompt or, for embed, of the shortest and the longest text.
    pub tokens: [usize; 2],
    /// Tokens of the answer; null where there is none.
    pub answer_tokens: Option<u16>,
    /// Texts or sequences at once; null where there is one.
    pub batch: Option<u16>,
    /// What `median`, `least` and `most` count.
    pub unit: &'static str,
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub rounds: usize,
    /// Tokens that `embed` makes vectors of in a second, padding not counted; null for others.
    pub tokens_per_s: Option<f64>,
    /// Most memory that the process held so far, or the one that was started; null where the system
    /// does not tell.
    pub peak_memory_bytes: Option<u64>,
}

/// What the figures were measured on.
#[derive(Clone, Serialize)]
pub struct Machine {
    pub cpu: String,
    /// Instruction set of the kernels.
    pub isa: &'static str,
    pub cores: usize,
}

impl Machine {
    /// This one.
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
