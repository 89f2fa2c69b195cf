//! How wide the intervals of whole models are, against the rows that they were fitted to.
//!
//! Each source is left out in turn. A row is near or far by the rows of the other sources; the
//! factor that 80 % of rows stay within, each source counted once, is the width. Few sources have
//! far rows, so one more is taken to miss.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use thane_audit::labeled::measurements::Scored;
use thane_audit::latency::ane::Parts;
use thane_audit::latency::whole::{CLASSES, Far, shares};

use thane_audit::target::CHIPS;

use crate::measurements::whole_models;

const AWAY: Far = Far {
    chip: true,
    size: Some(Ordering::Greater),
    mix: true,
};

fn source(row: &Scored) -> &str {
    row.row.source_file()
}

fn error(row: &Scored) -> f64 {
    (row.predicted_ms / row.measured_ms).ln().abs()
}

/// Least and most milliseconds, and the most that each part takes of the time.
fn bounds(rows: &[&Scored]) -> ((f64, f64), [f64; 6]) {
    let ms = || rows.iter().map(|r| r.latency.ms);
    let most = |at: usize| rows.iter().map(move |r| shares(&r.latency.parts)[at]);
    let range = (ms().fold(f64::INFINITY, f64::min), ms().fold(0.0, f64::max));
    let at: Vec<f64> = (0..6).map(|at| most(at).fold(0.0, f64::max)).collect();
    (range, at.try_into().unwrap())
}

/// Whether a row is far from others of its class.
fn is_far(row: &Scored, others: &[&Scored]) -> bool {
    let ((least, most), parts) = bounds(others);
    others.iter().all(|r| r.chip != row.chip)
        || !(least..=most).contains(&row.latency.ms)
        || shares(&row.latency.parts)
            .iter()
            .zip(parts)
            .any(|(s, m)| *s > m)
}

/// What 80 % of rows stay below, each source counted once, and `more` sources at the top.
fn quantile(rows: &[&Scored], more: f64) -> f64 {
    let mut n_of: BTreeMap<&str, f64> = BTreeMap::new();
    rows.iter()
        .for_each(|r| *n_of.entry(source(r)).or_insert(0.0) += 1.0);
    let mut errors: Vec<(f64, f64)> = rows
        .iter()
        .map(|r| (error(r), 1.0 / n_of[source(r)]))
        .collect();
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = n_of.len() as f64;
    let mut left = (0.8 * (n + more)).min(n);
    for (error, weight) in errors {
        left -= weight;
        if left <= 1e-9 {
            return error;
        }
    }
    0.0
}

#[test]
fn intervals_of_whole_models_are_as_wide_as_errors_of_left_out_sources() {
    let fitted: Vec<&Scored> = whole_models()
        .scored
        .iter()
        .filter(|r| r.row.is_seen())
        .collect();
    let mut wrong = Vec::new();
    for class in CLASSES {
        let of_class = |r: &&Scored| r.latency.class == Some(class);
        let rows: Vec<&Scored> = fitted.iter().copied().filter(of_class).collect();
        let (away, close): (Vec<&Scored>, Vec<&Scored>) = rows.iter().copied().partition(|row| {
            let others = rows.iter().filter(|r| source(r) != source(row));
            is_far(row, &others.copied().collect::<Vec<_>>())
        });
        let far = quantile(&away, 1.0).max(quantile(&close, 0.0));
        let near = if close.is_empty() {
            far
        } else {
            quantile(&close, 0.0)
        };
        // A width is rounded up to a twentieth.
        for (found, committed) in [
            (near, class.spread(Far::default())),
            (far, class.spread(AWAY)),
        ] {
            if !(found - 1e-6..found + 0.05).contains(&committed) {
                wrong.push(format!("{class:?}: {committed}, found {found}"));
            }
        }
        let chips: BTreeSet<&str> = rows.iter().map(|r| r.chip).collect();
        let about = format!(
            "{class:?}: {} near, {} far, {chips:?}, {:?}",
            close.len(),
            away.len(),
            bounds(&rows)
        );
        // Every row is near the rows that it is one of, and what is beyond them is far.
        let ((least, most), _) = bounds(&rows);
        let parts_of = |ms: f64| Parts {
            compute: ms / 1e3,
            ..Parts::default()
        };
        let is_met = rows.iter().all(|r| r.latency.far == Far::default())
            && class.far(&CHIPS[0], &parts_of(0.9 * least)).size == Some(Ordering::Less)
            && class.far(&CHIPS[0], &parts_of(1.1 * most)).size == Some(Ordering::Greater)
            && CHIPS
                .iter()
                .all(|chip| class.far(chip, &parts_of(most)).chip != chips.contains(chip.name));
        if !is_met {
            wrong.push(about);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
