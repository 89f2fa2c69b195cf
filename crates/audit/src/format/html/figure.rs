//! The figures of the HTML page, as SVG.

use std::collections::BTreeMap;

use super::escape;
use crate::number::{counted, milliseconds, short};
use crate::report::compare::Device;
use crate::report::explain::Overhead;
use crate::report::{Ceilings, FunctionRow, OpRow};

/// Units of the pictures' own coordinates.
const WIDTH: f64 = 960.0;
/// Where the lanes of the timeline begin.
const LEFT: f64 = 64.0;
const LANE: f64 = 30.0;
const LANES: [(Device, &str, &str); 3] = [
    (Device::Ane, "ANE", "ane"),
    (Device::Gpu, "GPU", "gpu"),
    (Device::Cpu, "CPU", "cpu"),
];

/// A stretch of a lane.
struct Bar {
    from: f64,
    to: f64,
    ops: usize,
    ms: f64,
    first: usize,
}

/// When each device is at work in a call, by the predicted milliseconds of ops, between what the
/// dispatch and the traffic of the call take.
pub fn timeline(f: &FunctionRow) -> String {
    let busy: f64 = f.segments.iter().map(|s| s.ms).sum();
    if f.segments.is_empty() || !busy.is_finite() || !f.latency.ms.is_finite() {
        return String::new();
    }
    let rest = f.overhead();
    let total = busy + rest.dispatch + rest.traffic;
    let lanes = lanes(f, busy, &rest);
    let height = LANE * 4.0 + 26.0;
    let mut out = format!(
        "<figure><figcaption>A call of {}: segments in order, each as long as its ops are predicted to take ({} together), \
         with dispatch ({}, drawn first) and traffic between the engine and memory ({}, drawn last)</figcaption>\n<div class=\"scroll\"><svg class=\"timeline\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        milliseconds(total),
        milliseconds(busy),
        milliseconds(rest.dispatch),
        milliseconds(rest.traffic),
        escape(&spoken(f))
    );
    for (i, (_, name, class)) in LANES.iter().enumerate() {
        let y = LANE * i as f64 + 4.0;
        out += &format!("<text x=\"0\" y=\"{:.1}\">{name}</text>", y + 17.0);
        out += &format!(
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>\n",
            y + 24.0
        );
        for bar in &lanes[i] {
            bar_of(&mut out, bar, class, y, f);
        }
    }
    if busy > 0.0 {
        overhead(&mut out, &rest, total);
    }
    out += &format!(
        "<text class=\"small\" x=\"{LEFT}\" y=\"{0:.1}\">0</text>",
        height - 6.0
    );
    out += &format!(
        "<text class=\"small end\" x=\"{WIDTH}\" y=\"{0:.1}\">{1}</text>\n",
        height - 6.0,
        milliseconds(total)
    );
    out + "</svg></div></figure>\n"
}

/// The segments as bars of their lanes.
fn lanes(f: &FunctionRow, busy: f64, rest: &Overhead) -> [Vec<Bar>; 3] {
    let total = busy + rest.dispatch + rest.traffic;
    // Where nothing takes time, each op is as long as any other.
    let weight = |ms: f64, ops: usize| {
        if busy > 0.0 {
            ms / total
        } else {
            ops as f64 / f.ops.max(1) as f64
        }
    };
    let scale = WIDTH - LEFT - 8.0;
    let mut lanes: [Vec<Bar>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    let mut at = if busy > 0.0 {
        rest.dispatch / total
    } else {
        0.0
    };
    for s in &f.segments {
        let lane = Device::parse(s.backend)
            .and_then(|d| LANES.iter().position(|l| l.0 == d))
            .unwrap_or(2);
        let from = LEFT + at * scale;
        at += weight(s.ms, s.ops);
        let to = LEFT + at * scale;
        match lanes[lane].last_mut() {
            // Too close to be told apart: thousands of segments become as many bars as there are
            // pixels.
            Some(last) if from - last.to < 0.5 && to - last.from < 2.0 => {
                (last.to, last.ops, last.ms) = (to, last.ops + s.ops, last.ms + s.ms);
            }
            _ => lanes[lane].push(Bar {
                from,
                to,
                ops: s.ops,
                ms: s.ms,
                first: s.first,
            }),
        }
    }
    lanes
}

/// The lane of what a call takes besides its ops.
fn overhead(out: &mut String, rest: &Overhead, total: f64) {
    let y = LANE * 3.0 + 4.0;
    let scale = WIDTH - LEFT - 8.0;
    *out += &format!(
        "<text x=\"0\" y=\"{:.1}\">call</text><line class=\"axis\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>\n",
        y + 17.0,
        y + 24.0
    );
    let traffic_from = LEFT + scale * (1.0 - rest.traffic / total);
    for (from, ms, name) in [
        (LEFT, rest.dispatch, "dispatch"),
        (traffic_from, rest.traffic, "traffic"),
    ] {
        let width = scale * ms / total;
        if width < 0.5 {
            continue;
        }
        *out += &format!(
            "<rect class=\"rest\" x=\"{from:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"24\" rx=\"2\"><title>{name}, {}</title></rect>",
            milliseconds(ms)
        );
        // 9 units a letter.
        if width > 9.0 * name.len() as f64 {
            *out += &format!(
                "<text class=\"on\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>\n",
                from + width / 2.0,
                y + 17.0
            );
        }
    }
}

fn bar_of(out: &mut String, bar: &Bar, class: &str, y: f64, f: &FunctionRow) {
    let width = (bar.to - bar.from).max(1.0);
    let name = f.table.get(bar.first).map_or("", |op| &op.name);
    *out += &format!(
        "<rect class=\"{class}\" x=\"{:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"24\" rx=\"2\"><title>{} from {}, {}</title></rect>",
        bar.from,
        counted(bar.ops, "op"),
        escape(name),
        milliseconds(bar.ms)
    );
    let label = bar.ops.to_string();
    // 8 units a digit.
    if width > 8.0 * (label.len() as f64 + 2.0) {
        let middle = bar.from + width / 2.0;
        *out += &format!(
            "<text class=\"on {class}\" x=\"{middle:.1}\" y=\"{:.1}\">{label}</text>\n",
            y + 17.0
        );
    }
}

/// The picture in words.
fn spoken(f: &FunctionRow) -> String {
    let n = |class: Device| {
        f.segments
            .iter()
            .filter(|s| Device::parse(s.backend) == Some(class))
            .count()
    };
    format!(
        "{}: {} on the engine, {} on the GPU, {} on the CPU",
        counted(f.segments.len(), "segment"),
        n(Device::Ane),
        n(Device::Gpu),
        n(Device::Cpu)
    )
}

const TOP: f64 = 14.0;
const BOTTOM: f64 = 300.0;
const PLOT_LEFT: f64 = 70.0;
const PLOT_RIGHT: f64 = WIDTH - 20.0;

/// Logarithmic axes, in powers of ten.
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    fn x(&self, v: f64) -> f64 {
        let part = (libm::log10(v) - self.x.0) / (self.x.1 - self.x.0);
        PLOT_LEFT + part.clamp(0.0, 1.0) * (PLOT_RIGHT - PLOT_LEFT)
    }

    fn y(&self, v: f64) -> f64 {
        let part = (libm::log10(v) - self.y.0) / (self.y.1 - self.y.0);
        BOTTOM - part.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }
}

/// Operations per byte and a second of each op, under what the chip can do.
pub fn roofline(f: &FunctionRow, ceilings: &Ceilings) -> String {
    let drawable = |op: &&OpRow| {
        let sound = [op.flops, op.bytes, op.ms]
            .iter()
            .all(|v| v.is_finite() && *v > 0.0);
        sound && op.backend == "ane"
    };
    let mut ops: Vec<&OpRow> = f.table.iter().filter(drawable).collect();
    if ops.is_empty() {
        return String::new();
    }
    ops.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    let axes = Axes {
        x: (-2.0, 4.0),
        y: (0.0, libm::log10(ceilings.gflops * 2.0).ceil()),
    };
    let mut out = format!(
        "<figure><figcaption>Roofline: {} on the engine, each by its operations per byte and per second; larger ones take \
         longer. {}</figcaption>\n<div class=\"scroll\"><svg class=\"roofline\" viewBox=\"0 0 {WIDTH} 350\" role=\"img\" aria-label=\"Roofline of {}; the table below has their numbers\">\n",
        counted(ops.len(), "op"),
        above(&ops, ceilings),
        counted(ops.len(), "op")
    );
    grid(&mut out, &axes);
    roof(&mut out, &axes, ceilings);
    points(&mut out, &axes, &ops);
    out + "</svg></div></figure>\n"
}

/// Why some ops lie above the slopes, where some do.
fn above(ops: &[&OpRow], c: &Ceilings) -> &'static str {
    let most = c.local_gbps.max(c.weight_gbps);
    if ops.iter().any(|op| op.bytes / op.ms / 1e6 > most * 1.01) {
        "The slopes bound products, which read weights and activations. Ops above them are priced by \
         results per second, as published, and not by bytes."
    } else {
        ""
    }
}

/// `0.01`, `1`, `10k`, `1M`: no wider than the margin on a phone, where letters are larger.
fn power_of_ten(power: i32) -> String {
    match power {
        6.. => format!("{}M", 10f64.powi(power - 6)),
        3.. => format!("{}k", 10f64.powi(power - 3)),
        _ => 10f64.powi(power).to_string(),
    }
}

fn grid(out: &mut String, axes: &Axes) {
    for power in axes.x.0 as i32..=axes.x.1 as i32 {
        let x = axes.x(10f64.powi(power));
        *out += &format!(
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>"
        );
        *out += &format!(
            "<text class=\"small middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
            BOTTOM + 22.0,
            power_of_ten(power)
        );
    }
    for power in axes.y.0 as i32..=axes.y.1 as i32 {
        let y = axes.y(10f64.powi(power));
        *out += &format!(
            "<line class=\"grid\" x1=\"{PLOT_LEFT}\" x2=\"{PLOT_RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        );
        *out += &format!(
            "<text class=\"small end\" x=\"{}\" y=\"{:.1}\">{}</text>\n",
            PLOT_LEFT - 6.0,
            // The lowest one leaves room for those below the axis.
            if y < BOTTOM { y + 4.0 } else { y },
            power_of_ten(power)
        );
    }
    let middle = (PLOT_LEFT + PLOT_RIGHT) / 2.0;
    *out += &format!(
        "<text class=\"small middle\" x=\"{middle}\" y=\"{}\">FLOP per byte</text>",
        BOTTOM + 42.0
    );
    *out += &format!(
        "<text class=\"small middle\" transform=\"translate(14 {}) rotate(-90)\">GFLOP/s</text>\n",
        (TOP + BOTTOM) / 2.0
    );
}

/// The peak, and what memory and the engine's own memory feed.
fn roof(out: &mut String, axes: &Axes, c: &Ceilings) {
    let (low, high) = (libm::pow(10.0, axes.x.0), libm::pow(10.0, axes.x.1));
    for (gbps, name) in [(c.weight_gbps, "memory"), (c.local_gbps, "on chip")] {
        // Where the slope leaves the plot at its bottom, and where it meets the peak.
        let start = low.max(libm::pow(10.0, axes.y.0) / gbps);
        let knee = (c.gflops / gbps).clamp(start, high);
        let (x1, y1, x2, y2) = (
            axes.x(start),
            axes.y(start * gbps),
            axes.x(knee),
            axes.y((knee * gbps).min(c.gflops)),
        );
        *out += &format!(
            "<line class=\"roof\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
        // Above the upper slope and below the lower one, where nothing else stands.
        let upper = gbps >= c.weight_gbps.max(c.local_gbps);
        let (x, y) = (x1 + (x2 - x1) * 0.6, y1 + (y2 - y1) * 0.6);
        let (class, dx, dy) = if upper {
            ("small end", -8.0, -6.0)
        } else {
            ("small", 8.0, 18.0)
        };
        *out += &format!(
            "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{name} {} GB/s</text>\n",
            x + dx,
            y + dy,
            short(gbps)
        );
    }
    let y = axes.y(c.gflops);
    let knee = axes.x(c.gflops / c.local_gbps.max(c.weight_gbps));
    *out += &format!(
        "<line class=\"roof\" x1=\"{knee:.1}\" y1=\"{y:.1}\" x2=\"{PLOT_RIGHT}\" y2=\"{y:.1}\"/>"
    );
    *out += &format!(
        "<text class=\"small end\" x=\"{PLOT_RIGHT}\" y=\"{:.1}\">peak {} TFLOP/s</text>\n",
        y - 5.0,
        short(c.gflops / 1e3)
    );
}

fn points(out: &mut String, axes: &Axes, ops: &[&OpRow]) {
    let longest = ops.first().map_or(1.0, |op| op.ms);
    // Layers are alike: what would stand in one place is drawn once, and counted.
    let mut drawn: BTreeMap<(i64, i64, bool), (&OpRow, usize)> = BTreeMap::new();
    for op in ops {
        let (x, y) = (axes.x(op.flops / op.bytes), axes.y(op.flops / op.ms / 1e6));
        drawn
            .entry((x.round() as i64, y.round() as i64, !op.findings.is_empty()))
            .or_insert((op, 0))
            .1 += 1;
    }
    for ((x, y, found), (op, n)) in drawn {
        let r = 2.5 + 6.0 * (op.ms / longest).sqrt();
        let class = if found { "op found" } else { "op" };
        let more = if n > 1 {
            format!(", and {} more", n - 1)
        } else {
            String::new()
        };
        *out += &format!(
            "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r:.1}\"><title>{} {}: {}{more}</title></circle>\n",
            op.kind,
            escape(&op.name),
            milliseconds(op.ms)
        );
    }
}
