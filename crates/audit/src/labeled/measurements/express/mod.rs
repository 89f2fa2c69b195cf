//! Builds a function from the words of a measurement: what ran, with which sizes, on which chip.

mod conv;
mod dense;
mod llm;
mod ops;
mod rebuilt;
mod residual;

use thane_mil::program::{Function, Program};
use thane_mil::types::DType;

use super::graph::{Graph, GraphError, Weights};
use super::text::Text;
use super::{Case, Measure, Row};
use crate::latency::Caller;
use crate::target::{Chip, RELEASES, Release, Route, Target, Units};

/// A row's words, and how its weights are stored.
struct Words<'a> {
    row: &'a Row,
    model: Text,
    shape: Text,
    weights: Weights,
    /// How other weights are stored, where there are two ways.
    others: Weights,
}

impl Words<'_> {
    /// The first number that `find` gives in the sizes, else in the name.
    fn find(&self, find: impl Fn(&Text) -> Option<f64>) -> Option<usize> {
        find(&self.shape).or_else(|| find(&self.model)).map(size)
    }

    /// Whether a word is in the name or the sizes.
    fn has(&self, word: &str) -> bool {
        self.model.has(word) || self.shape.has(word)
    }

    /// How often the name says that a layer is repeated: `x16`, `8 convs`, `8x(`.
    fn repeats(&self) -> usize {
        let times = |t: &Text| {
            t.after("x")
                .or_else(|| t.after("×"))
                .or_else(|| t.before(" convs"))
                .or_else(|| t.before("x("))
        };
        self.find(times)
            .or_else(|| self.find(|t| t.before(" layers")))
            .unwrap_or(1)
            .clamp(1, 4096)
    }

    /// How many positions: `S=512`, `64 positions`, `rows 3264`, `1 token`.
    fn positions(&self) -> Option<usize> {
        let ways = ["s=", "s", "sp", "w=", "rows ~", "rows ", "n="];
        let after = |t: &Text| ways.iter().find_map(|way| t.after(way));
        let before = |t: &Text| {
            [" positions", " token", " tokens", " px", " rows"]
                .iter()
                .find_map(|way| t.before(way))
        };
        self.find(before).or_else(|| self.find(after))
    }

    fn graph(&self) -> Graph {
        Graph::new(self.weights)
    }
}

/// A number as a size; what no tensor can have becomes one that none has.
fn size(n: f64) -> usize {
    if (1.0..1e9).contains(&n) {
        n as usize
    } else {
        1
    }
}

/// What was built, and how the number follows from it.
struct Built {
    function: Function,
    calls: f64,
    idle_calls: f64,
    layers: Option<f64>,
    /// What is done in a call, of which the number is a rate.
    per_call: f64,
}

impl Built {
    fn of(function: Function) -> Self {
        Self {
            function,
            calls: 1.0,
            idle_calls: 0.0,
            layers: None,
            per_call: 1.0,
        }
    }
}

type Expressed = Result<Built, Why>;

/// Why a row cannot be a function.
#[derive(Debug, thiserror::Error)]
enum Why {
    /// Something is not said, or not to be predicted.
    #[error("{0}")]
    Words(String),
    /// What is said makes no function.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

fn lacks(what: &str) -> Why {
    Why::Words(format!("{what} is not said"))
}

fn not_ours(what: &str) -> Why {
    Why::Words(what.to_owned())
}

/// The program that a row is about, and how its number follows from the time.
pub fn case(row: &Row) -> Result<Case, String> {
    if let Some(model) = &row.rebuilt {
        return rebuilt::case(row, model);
    }
    let words = words(row)?;
    let target = target(row)?;
    let built = build(&words, &target).map_err(|e| e.to_string())?;
    let (measure, layers) = measure(row, &built)?;
    Ok(Case {
        parts: vec![(Program::new(vec![built.function]), built.calls)],
        target,
        caller: if Text::new(&row.path).has("e5rt") {
            Caller::AneForge
        } else {
            Caller::App
        },
        measure,
        idle_calls: built.idle_calls,
        layers,
    })
}

fn words(row: &Row) -> Result<Words<'_>, String> {
    let weights =
        weights(row).ok_or_else(|| format!("weights stored as {:?} are not known", row.dtype))?;
    let others = match (weights, Text::new(&row.dtype).joined("/")) {
        (Weights::Palette(_, grouped), Some(bits)) => palette(bits[1], grouped).unwrap_or(weights),
        _ => weights,
    };
    Ok(Words {
        row,
        model: Text::new(&row.model),
        shape: Text::new(&row.shape),
        weights,
        others,
    })
}

fn build(words: &Words<'_>, target: &Target) -> Expressed {
    if words.row.kind == "llm" {
        return llm::build(words, target);
    }
    let groups: [fn(&Words<'_>) -> Option<Expressed>; 4] =
        [residual::build, ops::build, conv::build, dense::build];
    // A whole model is more than a layer that its name happens to say.
    let n_groups = if words.row.kind == "model" {
        1
    } else {
        groups.len()
    };
    let built = groups[..n_groups].iter().find_map(|group| group(words));
    built.unwrap_or_else(|| Err(not_ours("its layers are not said")))
}

/// The chip, release and way in of a row.
fn target(row: &Row) -> Result<Target, String> {
    let path = Text::new(&row.path);
    let route = if path.has("core ml") || path.has("core ai") {
        Route::CoreMl
    } else {
        Route::Direct
    };
    if path.has("ioctl") {
        return Err("it went by another driver".to_owned());
    }
    device(&row.chip, &row.os, Units::CpuAndNeuralEngine, route)
}

/// Compute units as sources name them.
pub fn units(name: &str) -> Result<Units, String> {
    let is_it = |units: &Units| units.name() == name;
    match name {
        "cpuAndNE" => Ok(Units::CpuAndNeuralEngine),
        _ => Units::ALL
            .into_iter()
            .find(is_it)
            .ok_or_else(|| format!("the compute units {name:?} are not known")),
    }
}

/// The target of a chip and a release as sources name them.
pub fn device(chip: &str, os: &str, units: Units, route: Route) -> Result<Target, String> {
    // ML Programs begin with iOS 15, and with A14 on the engine.
    if Text::new(chip).has("a13") {
        return Err("A13: its engine runs no ML Programs, only neural networks".to_owned());
    }
    let chip =
        Chip::from_marketing(chip).ok_or_else(|| format!("the chip {chip:?} is not known"))?;
    let os = Text::new(os);
    let major = os
        .as_str()
        .split(|c: char| !c.is_ascii_digit())
        .find_map(|n| n.parse::<u32>().ok());
    let newest = Release::newest();
    let release = major.and_then(|n| {
        RELEASES
            .iter()
            .find(|r: &&Release| r.version() == (n, 0) || r.ios == format!("ios{n}"))
    });
    Ok(Target::new(chip, release.unwrap_or(newest), units, route))
}

fn palette(bits: f64, grouped: bool) -> Option<Weights> {
    let sizes = [
        DType::Uint1,
        DType::Uint2,
        DType::Uint3,
        DType::Uint4,
        DType::Uint6,
        DType::Uint8,
    ];
    sizes
        .into_iter()
        .find(|d| d.bits() as f64 == bits)
        .map(|d| Weights::Palette(d, grouped))
}

/// How weights are stored.
fn weights(row: &Row) -> Option<Weights> {
    let dtype = Text::new(&row.dtype);
    let channels = ["per-channel", "grouped", "g32", "pgc"]
        .iter()
        .any(|word| dtype.has(word));
    let bits = dtype
        .after("lut")
        .or_else(|| dtype.after("int"))
        .or_else(|| dtype.before("-bit"))
        .or_else(|| dtype.before("bit"));
    // ANEForge's bindings expand int8 to fp16 before they compile: its int8 rows are as fast as
    // fp16.
    let folded = Text::new(&row.path).has("e5rt") && dtype.has("int8");
    match () {
        () if dtype.has("w8a8") => Some(Weights::Int8),
        () if dtype.has("sparse") => {
            let zeros = dtype.before("%").or_else(|| dtype.after("sparse"))?;
            (zeros <= 100.0).then_some(Weights::Sparse(zeros / 100.0))
        }
        () if dtype.has("lut") || dtype.has("palette") => palette(bits?, channels),
        () if dtype.has("block") => Some(Weights::Blocks),
        () if dtype.has("int4") || dtype.has("w4a16") || dtype.has("4-bit") => {
            Some(Weights::Codes(DType::Int4))
        }
        () if folded || dtype.has("fp16") || dtype.has("fp32") => Some(Weights::Fp16),
        () if dtype.has("int8") || dtype.has("8-bit") => Some(Weights::Codes(DType::Int8)),
        () => None,
    }
}

/// How the number of a row follows from the time of a call, and what the time is divided by.
fn measure(row: &Row, built: &Built) -> Result<(Measure, Option<f64>), String> {
    let unit = row.unit.as_str();
    let slope = ["slope", "marginal", "per-layer"]
        .iter()
        .any(|w| row.model.contains(w) || row.metric.contains(w));
    let layers = slope.then(|| built.layers.unwrap_or(1.0));
    let time = |ms: f64| Ok((Measure::Time(ms), layers));
    match unit.split('/').next().unwrap_or(unit) {
        "s" => time(1e3),
        "ms" => time(1.0),
        "us" | "µs" => time(1e-3),
        "TFLOP" | "TOP" | "T(FL)OP" if layers.is_none() => Ok((Measure::Operations(1e12), None)),
        "GFLOP" | "GOP" if layers.is_none() => Ok((Measure::Operations(1e9), None)),
        "img" | "tok" | "positions" | "lines" | "inf" | "calls" | "tokens" => {
            Ok((Measure::Rate(built.per_call), layers))
        }
        _ => Err(format!("{} in {unit} is no time of a call", row.metric)),
    }
}
