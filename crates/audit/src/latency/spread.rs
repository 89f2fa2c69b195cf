//! By what factor a call may take more or less than is predicted, in 80 % of cases. Parts are taken
//! to be wrong independently, each by what its figures leave open and by what the model leaves out.
//! Whole models miss by what others like them missed ([`whole`](super::whole)), if that is more.

use super::PREDICT_US;
use super::ane::Total;
use super::whole::{Class, Far};
use crate::target::{Chip, Figure, Route};
use crate::view::View;

/// The rows that the shares below are held against: those of ops and graphs that are not a test.
/// `docs/accuracy.md` says how many of them lie in their intervals.
const ROWS: &str =
    "ops and graphs: ANEForge, M6 study, qwen-ane, cadamcat, ane-bridge-rs, maderix/ANE";

/// A share of a part that the model leaves out, whatever its figures are.
const fn left_out(value: f64) -> Figure {
    Figure::inferred(value, value, value).by(ROWS)
}

const COMPUTE: Figure = left_out(0.16);
const WEIGHTS: Figure = left_out(0.10);
const ELEMENTS: Figure = left_out(0.35);
const ACTIVATIONS: Figure = left_out(0.25);
const COPIES: Figure = left_out(0.35);
const DISPATCH: Figure = left_out(0.10);
const HOST: Figure = left_out(0.5);

/// How much of what a figure leaves open counts for a part: less than all, because a range holds
/// what sources disagree about, and not 80 % of calls.
const OF_FIGURE: Figure = left_out(0.5);
/// How much of it counts for a call.
const OF_CALL: Figure = left_out(0.7);

/// Added width for a chip on which nobody published a time: the rows of other chips do not say how
/// far it is from them. A factor of 1.5, as for its figures.
const NEWER_CHIP: Figure =
    Figure::inferred(0.41, 0.41, 0.41).by("a guess: nobody published a time on A20");

/// What is added for a call that reads nothing but compressed weights, on a chip of which nobody
/// published a time with such weights; others by the share of their time that reading takes. How
/// fast an encoding is read differs between chips: M5 Max reads 4 bits as fast as 8, M6 twice as
/// fast. A factor of 1.5, as for chips that nobody measured.
const UNSCORED_WEIGHTS: Figure = Figure::inferred(0.41, 0.41, 0.41)
    .by("a guess: nobody published a time with compressed weights on the chip");

/// The chips with a predicted row of the published data whose weights are compressed.
pub const SCORED_COMPRESSED: [&str; 16] = [
    "a14", "a15", "a16", "a17-pro", "a19-pro", "m1", "m1-max", "m2", "m3-max", "m4", "m4-pro",
    "m4-max", "m5", "m5-pro", "m5-max", "m6",
];

/// What reports call the speed of reading compressed weights.
pub const COMPRESSED_WEIGHTS: &str = "compressed_weights";

/// Whether nobody published a time of compressed weights on a chip.
pub fn is_unscored(chip: &Chip) -> bool {
    !SCORED_COMPRESSED.contains(&chip.name)
}

/// The figures of intervals, by name.
pub const FIGURES: [(&str, Figure); 11] = [
    ("spread.unscored_weights", UNSCORED_WEIGHTS),
    ("spread.newer_chip", NEWER_CHIP),
    ("spread.compute", COMPUTE),
    ("spread.weights", WEIGHTS),
    ("spread.elements", ELEMENTS),
    ("spread.activations", ACTIVATIONS),
    ("spread.copies", COPIES),
    ("spread.dispatch", DISPATCH),
    ("spread.host", HOST),
    ("spread.of_figure", OF_FIGURE),
    ("spread.of_call", OF_CALL),
];

/// The factor for a call.
pub(super) fn of(view: &View<'_>, work: &Total, class: Option<Class>, far: Far) -> f64 {
    let (chip, parts) = (view.target.chip, &work.parts);
    let by = |share: Figure, figure: Figure| share.value + OF_FIGURE.value * figure.spread();
    let call = match view.target.route {
        Route::CoreMl => chip.dispatch_us,
        Route::Direct => chip.direct_us,
    };
    let grouped = chip.family.streaming.grouped_palette_gps;
    let tables = grouped.map_or(0.0, |figure| figure.spread());
    let weights = by(WEIGHTS, chip.weight_gbps);
    let terms = [
        (parts.compute, by(COMPUTE, chip.peak_tflops)),
        ((parts.weights - work.grouped).max(0.0), weights),
        (work.grouped.min(parts.weights), weights + tables),
        (parts.elements + parts.tasks, ELEMENTS.value),
        (parts.activations, by(ACTIVATIONS, chip.activation_gbps)),
        (parts.copies, COPIES.value),
        (parts.caller, PREDICT_US.spread()),
        (
            parts.dispatch,
            DISPATCH.value + OF_CALL.value * call.spread(),
        ),
        (parts.host, HOST.value + OF_FIGURE.value * work.host_spread),
    ];
    let total = parts.total();
    if total <= 0.0 {
        return 1.0;
    }
    let squares: f64 = terms
        .iter()
        .map(|(seconds, s)| (seconds / total * s).powi(2))
        .sum();
    let whole = class.map_or(0.0, |class| class.spread(far));
    let newer = match chip.is_unpublished() {
        true => NEWER_CHIP.value,
        false => 0.0,
    };
    let unscored = match is_unscored(chip) {
        true => UNSCORED_WEIGHTS.value * work.compressed.min(parts.weights) / total,
        false => 0.0,
    };
    libm::exp(squares.sqrt().max(whole) + newer.max(unscored))
}
