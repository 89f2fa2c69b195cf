//! The bar of a call by layer and term, as SVG.

use super::escape;
use crate::number::{counted, milliseconds};
use crate::report::FunctionRow;
use crate::report::explain::TermsRow;

const WIDTH: f64 = 960.0;
const LANE: f64 = 28.0;
/// Layers that are narrower than this are drawn and not named.
const NAMED: f64 = 60.0;

/// The layers of a call, each as wide as its share of the time, and under each the terms that it is
/// made of.
pub fn bar(f: &FunctionRow) -> String {
    let total: f64 = f.explained.layers.iter().map(|row| row.ms).sum();
    if !total.is_finite() || total <= 0.0 {
        return String::new();
    }
    let legend = TermsRow::default()
        .terms()
        .map(|(name, _)| format!("<span class=\"swatch {name}\">{name}</span>"))
        .join(" ");
    let mut out = format!(
        "<figure><figcaption>The ops of a call ({}) by layer, and under each what its time is made of: \
         {legend}. Weights are read while other ops run; reading that they hide takes no time of its \
         own.</figcaption>\n<div class=\"scroll\"><svg class=\"layers\" viewBox=\"0 0 {WIDTH} {:.0}\" \
         role=\"img\" aria-label=\"Time of {} by layer and term\">\n",
        milliseconds(total),
        2.0 * LANE + 4.0,
        counted(f.explained.layers.len(), "layer"),
    );
    let mut at = 0.0;
    for row in &f.explained.layers {
        let width = row.ms / total * WIDTH;
        layer(&mut out, row, at, width);
        at += width;
    }
    out + "</svg></div></figure>\n"
}

fn layer(out: &mut String, row: &TermsRow, at: f64, width: f64) {
    let name = if row.name.is_empty() {
        "no layer"
    } else {
        &row.name
    };
    let said = format!(
        "{}: {}, {}",
        escape(name),
        counted(row.ops, "op"),
        milliseconds(row.ms)
    );
    *out += &format!(
        "<rect class=\"layer\" x=\"{at:.2}\" y=\"2\" width=\"{width:.2}\" height=\"{:.0}\"><title>{said}</title></rect>",
        LANE - 2.0
    );
    if width > NAMED {
        // The number of a layer is at the end of its name.
        let fits = (width / 9.0) as usize;
        let hidden = name.chars().count().saturating_sub(fits);
        let short: String = name.chars().skip(hidden).collect();
        *out += &format!(
            "<text class=\"middle\" x=\"{:.1}\" y=\"{:.0}\">{}</text>",
            at + width / 2.0,
            LANE - 8.0,
            escape(&short)
        );
    }
    let all: f64 = row.terms().iter().map(|(_, ms)| ms).sum();
    let mut x = at;
    for (term, ms) in row.terms() {
        let part = if all > 0.0 { ms / all * width } else { 0.0 };
        if part <= 0.0 {
            continue;
        }
        *out += &format!(
            "<rect class=\"{term}\" x=\"{x:.2}\" y=\"{LANE:.0}\" width=\"{part:.2}\" height=\"{LANE:.0}\"><title>{}: {term}, {}</title></rect>\n",
            escape(name),
            milliseconds(ms)
        );
        x += part;
    }
}
