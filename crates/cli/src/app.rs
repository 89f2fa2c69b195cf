//! The flags that every verb has, and the state that verbs share. This is the only place that reads
//! environment variables.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thane_hub::{Hub, Places, Progress, catalog};
use thane_kernels::Isa;
use thane_mil::budget::Budget;

use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::{Output, Style};

/// Flags of every verb.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Print one JSON object on stdout; docs/json.md has its fields.
    #[arg(long, global = true, env = "THANE_JSON")]
    pub json: bool,
    /// No progress or notes on stderr, only errors.
    #[arg(short, long, global = true, env = "THANE_QUIET")]
    pub quiet: bool,
    /// Print what is being done, and how fast it was.
    #[arg(short, long, global = true, env = "THANE_VERBOSE")]
    pub verbose: bool,
    /// Folder for downloaded models [default: thane in the user's cache folder].
    #[arg(long, global = true, env = "THANE_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Never use the network; HF_HUB_OFFLINE=1 does the same.
    #[arg(long, global = true, env = "THANE_OFFLINE")]
    pub offline: bool,
    /// Attempts of a request that fails for a transient reason.
    #[arg(
        long,
        global = true,
        env = "THANE_ATTEMPTS",
        value_name = "N",
        default_value_t = 5
    )]
    pub attempts: u32,
    /// Seconds without data from a server before a request fails.
    #[arg(long, global = true, env = "THANE_TIMEOUT", value_name = "SECONDS", default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
    /// Add models to the catalog from a JSON file (docs/catalog.md).
    #[arg(
        long,
        alias = "catalogue",
        global = true,
        env = "THANE_CATALOG",
        value_name = "FILE"
    )]
    pub catalog: Option<PathBuf>,
    /// Trust the certificates of this PEM file instead of Mozilla's.
    ///
    /// For downloads from the Hub, --server and --otlp-endpoint; SSL_CERT_FILE does the same.
    #[arg(long, global = true, env = "THANE_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    #[arg(long, global = true, env = "THANE_ISA", value_name = "NAME", value_parser = isa,
        help = isa_help(), long_help = isa_long_help())]
    pub isa: Option<Isa>,
    /// Most memory to allocate, such as 4GB [default: 7/8 of the machine's].
    ///
    /// Tensors, caches, packed weights and rows count; memory-mapped files do not.
    #[arg(long, global = true, env = "THANE_MEMORY", value_name = "SIZE", value_parser = size)]
    pub memory: Option<usize>,
}

/// Parses a size such as `512MB`, `4GB`, `1.5 GiB` or `1000000`, in bytes.
pub fn size(text: &str) -> Result<usize, String> {
    let units = [
        ("GiB", 1u64 << 30),
        ("MiB", 1 << 20),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1000),
        ("B", 1),
        ("", 1),
    ];
    let lower = text.trim().to_lowercase();
    let parsed = units.iter().find_map(|(unit, bytes)| {
        let number = lower.strip_suffix(&unit.to_lowercase())?.trim();
        let number: f64 = number.parse().ok()?;
        Some(number * *bytes as f64).filter(|n| n.is_finite() && *n >= 1.0)
    });
    let expected = || "expected a number with kB, MB, GB, MiB or GiB, such as 4GB".into();
    parsed.map(|n| n as usize).ok_or_else(expected)
}

/// Memory of the machine, or the limit of this process's control group, less an eighth for
/// everything else.
fn memory_of_machine() -> usize {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let group = system.cgroup_limits();
    let group = group.map_or(u64::MAX, |limits| limits.total_memory);
    match system.total_memory().min(group) {
        // No limit on a machine that does not report its memory.
        0 => usize::MAX,
        total => usize::try_from(total / 8 * 7).unwrap_or(usize::MAX),
    }
}

fn isa_help() -> String {
    let (last, rest) = Isa::NAMES.split_last().expect("`portable` is a name");
    let rest = rest.join(", ");
    format!("Instruction set of the kernels: {rest} or {last}")
}

fn isa_long_help() -> String {
    let help = isa_help();
    format!("{help}.\n\nThe machine must have it [default: the best that it has]")
}

fn isa(name: &str) -> Result<Isa, String> {
    Isa::named(name).ok_or_else(|| {
        let names: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
        format!("this machine has {}", names.join(", "))
    })
}

/// The variables of OpenTelemetry that are read.
#[derive(Clone, Debug, Default)]
pub struct Otlp {
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub endpoint: Option<String>,
    /// `OTEL_EXPORTER_OTLP_HEADERS`: `name=value`, with commas between.
    pub headers: Option<String>,
    /// `OTEL_SERVICE_NAME`.
    pub service: Option<String>,
}

impl Otlp {
    fn from_variables(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name: &str| {
            let value = var(name)?.into_string().ok()?;
            (!value.is_empty()).then_some(value)
        };
        Self {
            endpoint: text("OTEL_EXPORTER_OTLP_ENDPOINT"),
            headers: text("OTEL_EXPORTER_OTLP_HEADERS"),
            service: text("OTEL_SERVICE_NAME"),
        }
    }
}

/// The state that verbs share.
#[derive(Clone)]
pub struct App {
    pub output: Arc<Output>,
    pub interrupt: Interrupt,
    pub hub: Hub,
    /// Where traces are sent.
    pub otlp: Otlp,
    /// Instruction set that was asked for; `None` for the best of the machine.
    pub isa: Option<Isa>,
    /// Limits memory that is allocated for inputs.
    pub budget: Budget,
}

impl App {
    pub fn new(global: &Global, var: impl Fn(&str) -> Option<OsString>) -> Result<Self, Failure> {
        let is_dumb = var("TERM").is_some_and(|term| term == "dumb");
        let color = !is_dumb && var("NO_COLOR").is_none_or(|value| value.is_empty());
        let style = Style {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose,
            color,
            bars: !is_dumb,
        };
        let output = Arc::new(Output::new(style));
        let tidy = Arc::clone(&output);
        let interrupt = Interrupt::install(move || tidy.tidy()).map_err(anyhow::Error::from)?;
        // The variable's earlier name.
        let earlier = || var("THANE_CATALOGUE").map(PathBuf::from);
        let catalog = global.catalog.clone().or_else(earlier);
        let otlp = Otlp::from_variables(&var);
        let cache = global.cache.clone();
        let cache = cache.filter(|path| !path.as_os_str().is_empty());
        let mut places = Places::from_variables(cache, var);
        let is_given = |file: &&PathBuf| !file.as_os_str().is_empty();
        if let Some(file) = global.ca_file.as_ref().filter(is_given) {
            places.trust(file.clone())?;
        }
        let hub = Hub {
            offline: global.offline || places.offline,
            attempts: global.attempts,
            patience: Duration::from_secs(u64::from(global.timeout)),
            catalog: catalog::load(catalog.as_deref())?,
            progress: Arc::clone(&output) as Arc<dyn Progress>,
            children: Arc::new(interrupt.clone()),
            ..Hub::new(places)
        };
        let budget = Budget::new(global.memory.unwrap_or_else(memory_of_machine));
        Ok(Self {
            output,
            interrupt,
            hub,
            otlp,
            isa: global.isa,
            budget,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("4GB", 4_000_000_000),
            ("1.5 GiB", 3 << 29),
            ("512mb", 512_000_000),
            ("4096", 4096),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "GB", "-1GB", "nan", "1e400", "0", "4 apples"] {
            size(text).unwrap_err();
        }
        assert!(memory_of_machine() > 1 << 28);
    }
}
