//! Metrics of quality compared with numpy, scipy and scikit-learn.

use serde::Deserialize;
use thane_engine::quality::{compare, ndcg, quantile, ranked};

use crate::data;

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
    quantiles: Vec<Quantiles>,
    rankings: Vec<Ranking>,
}

#[derive(Deserialize)]
struct Case {
    model: Vec<f32>,
    reference: Vec<f32>,
    next: u32,
    nll: f64,
    reference_nll: f64,
    kl: f64,
    same_first: bool,
    same_five: f64,
    cosine: f64,
}

#[derive(Deserialize)]
struct Quantiles {
    values: Vec<f64>,
    shares: Vec<f64>,
    quantiles: Vec<f64>,
}

#[derive(Deserialize)]
struct Ranking {
    scores: Vec<f64>,
    gains: Vec<f64>,
    k: usize,
    ndcg: f64,
}

#[test]
fn metrics_agree_with_other_libraries() {
    let goldens: Goldens = data::json("quality.json");
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9 * (1.0 + b.abs());
    assert!(goldens.cases.len() > 10 && goldens.rankings.len() > 5);
    for (at, case) in goldens.cases.iter().enumerate() {
        let pair = compare(&case.model, &case.reference, case.next).unwrap();
        for (name, found, expected) in [
            ("nll", pair.nll, case.nll),
            ("reference nll", pair.reference_nll, case.reference_nll),
            ("kl", pair.kl, case.kl),
            ("first five", pair.same_five, case.same_five),
            ("cosine", pair.cosine, case.cosine),
        ] {
            assert!(near(found, expected), "{at}: {name} {found}, {expected}");
        }
        assert_eq!(pair.same_first, case.same_first, "{at}");
    }
    for case in &goldens.quantiles {
        for (share, expected) in case.shares.iter().zip(&case.quantiles) {
            let found = quantile(&case.values, *share);
            assert!(near(found, *expected), "{share}: {found}, {expected}");
        }
    }
    for case in &goldens.rankings {
        let order = ranked(&case.scores, case.k);
        let gains: Vec<f64> = order.iter().map(|at| case.gains[*at]).collect();
        let found = ndcg(&gains, &case.gains, case.k);
        assert!(near(found, case.ndcg), "{found}, {}", case.ndcg);
    }
}
