//! Predicted times against published ones (`crates/audit/data/ane_measurements.csv`).

use thane_audit::labeled::measurements::{Scored, Scores, Summary, load, score, summary};

const MEASUREMENTS: &str = include_str!("../../data/ane_measurements.csv");

/// Most that the median may be off, of single ops, layers and graphs that no number was chosen with
/// in view.
const OPS_MEDIAN: f64 = 0.12;
/// Least share of them that is off by a quarter at most.
const OPS_WITHIN_QUARTER: f64 = 0.8;
/// Most that the median may be off of steps of whole language models.
const DECODE_MEDIAN: f64 = 0.25;
/// Least and most of measured times that lie in their interval of 80 %.
const INSIDE: (f64, f64) = (0.72, 0.92);

fn scores() -> Scores {
    score(&load(MEASUREMENTS).unwrap())
}

fn is_op(row: &Scored) -> bool {
    ["op", "graph", "layer"].contains(&row.row.kind.as_str())
}

fn is_decode(row: &Scored) -> bool {
    row.row.kind == "llm" && row.row.model.contains("decode")
}

fn of(scores: &Scores, keep: impl Fn(&Scored) -> bool) -> Summary {
    summary(scores.scored.iter().filter(|row| keep(row))).unwrap()
}

#[test]
fn unseen_ops_and_graphs_are_met() {
    let found = of(&scores(), |row| !row.row.is_seen() && is_op(row));
    assert!(found.n >= 75, "{found:?}");
    assert!(
        found.median <= OPS_MEDIAN && found.within_quarter >= OPS_WITHIN_QUARTER,
        "{found:?}"
    );
}

#[test]
fn unseen_steps_of_language_models_are_met() {
    let found = of(&scores(), |row| !row.row.is_seen() && is_decode(row));
    assert!(found.n >= 11 && found.median <= DECODE_MEDIAN, "{found:?}");
}

#[test]
fn intervals_are_honest() {
    let scores = scores();
    for (name, found) in [
        ("unseen", of(&scores, |row| !row.row.is_seen())),
        ("all", of(&scores, |_| true)),
    ] {
        assert!(
            (INSIDE.0..=INSIDE.1).contains(&found.inside),
            "{name}: {found:?}"
        );
    }
}

/// What cannot be predicted is said, with the reason, and nothing is lost.
#[test]
fn every_row_is_predicted_or_explained() {
    let rows = load(MEASUREMENTS).unwrap();
    let scores = score(&rows);
    assert_eq!(scores.scored.len() + scores.inexpressible.len(), rows.len());
    assert!(
        scores.scored.len() >= 175,
        "{} of {}",
        scores.scored.len(),
        rows.len()
    );
    assert!(
        scores
            .inexpressible
            .iter()
            .all(|(_, reason)| !reason.is_empty())
    );
}

#[test]
fn a_file_without_the_columns_is_refused() {
    let header = MEASUREMENTS.lines().next().unwrap();
    assert!(
        load("id,kind\n1,op\n")
            .unwrap_err()
            .to_string()
            .contains("no column")
    );
    let row = "1,op,gemv,x,fp16,M4,15,Core ML,latency,fast,ms,,,,,unused";
    let said = load(&format!("{header}\n{row}\n")).unwrap_err().to_string();
    assert_eq!(said, "measurement 1: \"fast\" is no number above 0");
}

/// Words that no source writes, in every column: a reason or a number, never a panic.
#[test]
fn odd_words_are_no_trouble() {
    let rows = load(MEASUREMENTS).unwrap();
    let words = [
        "",
        "[",
        "x[,]@W[->]",
        "[0,0,0,0]",
        "B0 C0 0x0",
        "S=99999999999 D7 H0",
        "999999999ch 1x999999999",
        "é×→",
        "LUT/",
        "sparse-1%",
        "0B decode",
        "N=0 inputs",
        "k9 C=0 S=0",
        "0 parts K/0",
    ];
    for row in rows.iter().step_by(29) {
        for word in words {
            let mut odd = row.clone();
            odd.shape = word.to_owned();
            let mut dtype = row.clone();
            dtype.dtype = word.to_owned();
            let mut model = row.clone();
            model.model = format!("{} {word}", row.model);
            score(&[odd, dtype, model]);
        }
    }
}
