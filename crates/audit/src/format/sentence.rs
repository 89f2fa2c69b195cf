//! Sentences that several text formats share: the verdict, and which requirements hold.

use std::collections::HashSet;

use super::wrap::shorten;
use crate::number::{bytes, predicted_bytes, short};
use crate::report::memory::MemoryRow;
use crate::report::{FindingRow, LatencyRow, Report, TargetRow};

/// Which requirements hold and which do not, as lines. Without `failures`, nothing is said of those
/// that do not hold: the error of the program says it.
pub fn closing(report: &Report, failures: bool) -> Vec<String> {
    if report.requirements.is_empty() || !report.passed && !failures {
        return Vec::new();
    }
    let asked = report.requirements.join(", ");
    if report.passed {
        return vec![format!("requirements hold: {asked}")];
    }
    let denied = if report.denied.is_empty() {
        String::new()
    } else {
        format!("; denied: {}", report.denied.join(", "))
    };
    let does = if report.unmet.len() == 1 {
        "a requirement does"
    } else {
        "requirements do"
    };
    let first = format!("{does} not hold: {}{denied}", report.unmet.join(", "));
    let held: Vec<&str> = report
        .requirements
        .iter()
        .filter(|one| !report.unmet.contains(one))
        .map(String::as_str)
        .collect();
    let first = if held.is_empty() {
        first
    } else {
        format!("{first}; holds: {}", held.join(", "))
    };
    let others = report.failures.iter().map(|failure| format!("- {failure}"));
    std::iter::once(first).chain(others).collect()
}

/// Where a finding is: function, op and module, of which the last two have `most` characters.
pub fn location(f: &FindingRow, most: [usize; 2]) -> String {
    let place = f
        .place
        .as_ref()
        .map(|p| format!(" of {}", shorten(p, most[1])));
    let place = place.unwrap_or_default();
    match (&f.function, &f.op) {
        (Some(function), Some(op)) => {
            let (kind, op) = (f.kind.unwrap_or("op"), shorten(op, most[0]));
            format!("{function}: {kind} `{op}`{place}")
        }
        (Some(one), None) | (None, Some(one)) => format!("{one}{place}"),
        (None, None) => format!("the program{place}"),
    }
}

/// That weights are missing, where they are.
pub fn absent_weights(report: &Report) -> Option<String> {
    let n = report.subject.absent_constants;
    let (constants, are, their) = match n {
        0 => return None,
        1 => ("constant", "is", "its numbers count"),
        _ => ("constants", "are", "their numbers count"),
    };
    Some(format!(
        "{n} {constants} {are} not beside the text; {their} as zeros"
    ))
}

/// Which figures of a chip were not measured on it.
pub fn inferred(t: &TargetRow) -> Option<String> {
    (!t.inferred.is_empty()).then(|| {
        format!(
            "not measured on this chip but taken from related chips: {}",
            figure_names(&t.inferred)
        )
    })
}

/// Names of figures of a chip in plain words, without repetitions.
pub fn figure_names(figures: &[&'static str]) -> String {
    let mut names: Vec<&str> = figures.iter().map(|figure| figure_name(figure)).collect();
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(*name));
    names.join(", ")
}

fn figure_name(figure: &str) -> &str {
    match figure {
        "peak_tflops" => "peak speed",
        "int8_tops" => "peak speed of int8",
        "weight_gbps" => "speed of reading weights",
        "activation_gbps" => "speed of reading activations",
        "local_gbps" => "speed of memory on the chip",
        "element_gps" => "speed of elementwise ops",
        "winograd" => "gain of 3x3 convolutions",
        "dispatch_us" => "time to start a call",
        "direct_us" => "time to start a direct call",
        "idle_us" => "time to wake up",
        "cpu_gbps" | "cpu_gflops" | "cpu_conv_gflops" | "cpu_pointwise_gflops" | "cpu_step_us" => {
            "speed of the CPU"
        }
        "compressed_weights" => "speed of reading compressed weights",
        "gpu_core_gflops" | "gpu_core_gbps" | "gpu_launch_us" => "speed of the GPU",
        other => other,
    }
}

/// The energy of a call, where it is known.
pub fn energy(l: &LatencyRow) -> Option<String> {
    (l.energy_mj > 0.0).then(|| {
        format!(
            "{} mJ a call, {} to {}: the engine {}, memory {}, the call {}; ops on the CPU and \
             GPU are not counted",
            short(l.energy_mj),
            short(l.low_energy_mj),
            short(l.high_energy_mj),
            short(l.energy_parts.engine_mj),
            short(l.energy_parts.memory_mj),
            short(l.energy_parts.host_mj)
        )
    })
}

/// In what a call is unlike those of the models that its interval was fitted to.
pub fn far(l: &LatencyRow) -> Option<String> {
    l.far
        .as_ref()
        .map(|said| format!("unlike what was measured: {said}"))
}

/// The memory that the functions of a target hold once they are loaded.
pub fn loaded(t: &TargetRow) -> Option<String> {
    let (first, others) = t.memory.split_first()?;
    if first.functions == 1 {
        return Some(format!(
            "{}, by Core ML, Core AI or directly",
            first.range()
        ));
    }
    let rest: Vec<String> = others.iter().map(MemoryRow::describe).collect();
    Some(format!("{}; {}", first.describe(), rest.join("; ")))
}

/// Whether a program of this size loads.
pub fn load_risk(l: &LatencyRow) -> String {
    if let Some(gib) = l.over_memory_gib {
        return format!("does not load: devices with this chip have {gib} GiB at most");
    }
    let said = match l.load_risk {
        "none" => "small enough to load",
        "possible" => "may be too large to load",
        _ => "is likely too large to load",
    };
    said.to_owned()
}

/// The verdict on a target as a sentence.
pub fn sentence(t: &TargetRow) -> String {
    said_of(t.verdict, t.route == "direct").to_owned()
}

/// A verdict, by its name in JSON, as a sentence.
pub fn said_of(verdict: &str, direct: bool) -> &'static str {
    match verdict {
        "fails" if direct => "the engine refuses it",
        "fails" => "fails to compile, load or run on the engine",
        "may-fail" => "may fail on the engine",
        "wrong-results" => "runs, with wrong results",
        "may-leave-engine" => "runs on the engine, or all of it elsewhere: sources differ",
        "off-engine" => "does not run on the engine",
        "partly-on-engine" => "runs on the engine in part",
        "mostly-on-engine" => "runs on the engine, but for some ops",
        _ => "runs on the engine",
    }
}

/// Bytes on disk, in memory, and of tables that the app maps: `270.1 MB on disk, 611 MB in memory
/// with all functions loaded (545 MB to 830 MB), and 56.6 MB of tables that the app maps`.
pub fn sizes(disk_bytes: u64, loaded: Option<&MemoryRow>, table_bytes: u64) -> String {
    let disk = format!("{} on disk", bytes(disk_bytes));
    let tables = match table_bytes {
        0 => String::new(),
        n => format!(", and {} of tables that the app maps", bytes(n)),
    };
    match loaded {
        None => format!("{disk}{tables}"),
        Some(row) => {
            let [low, high] = [row.low_bytes, row.high_bytes].map(predicted_bytes);
            let loaded = predicted_bytes(row.bytes);
            format!(
                "{disk}, {loaded} in memory with all functions loaded ({low} to {high}){tables}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::CHIPS;

    #[test]
    fn every_figure_of_a_chip_has_a_name_in_words() {
        for chip in CHIPS {
            for (figure, _) in chip.figures() {
                assert_ne!(figure_name(figure), figure);
            }
        }
    }
}
