//! Sampling compared with numpy.

use crate::data;
use serde::Deserialize;
use std::sync::Arc;

use thane_engine::sample::{Dry, LengthPenalty, Mirostat, Rules, SampleOptions, Sampler};

#[derive(Deserialize)]
struct Sampling {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    options: Options,
    logits: Vec<f32>,
    history: Vec<u32>,
    ids: Vec<u32>,
    p: Vec<f32>,
    /// Tokens drawn one after another with the index of the case as seed; none if greedy.
    #[serde(default)]
    drawn: Vec<u32>,
}

#[derive(Deserialize, Debug)]
struct Options {
    temperature: f32,
    top_k: usize,
    typical_p: f32,
    top_p: f32,
    min_p: f32,
    xtc_probability: f32,
    xtc_threshold: f32,
    mirostat: Option<Surprise>,
    dry: DryOptions,
    logit_bias: Vec<(u32, f32)>,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repeat_last_n: Option<usize>,
}

#[derive(Deserialize, Debug)]
struct Surprise {
    tau: f32,
    eta: f32,
}

#[derive(Deserialize, Debug)]
struct DryOptions {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: Option<usize>,
    breakers: Vec<u32>,
}

impl Options {
    fn sampler(&self, seed: u64) -> Sampler {
        let (o, dry) = (self, &self.dry);
        Sampler::new(SampleOptions {
            temperature: o.temperature,
            top_k: o.top_k,
            typical_p: o.typical_p,
            top_p: o.top_p,
            min_p: o.min_p,
            xtc_probability: o.xtc_probability,
            xtc_threshold: o.xtc_threshold,
            mirostat: o.mirostat.as_ref().map(|m| Mirostat {
                tau: m.tau,
                eta: m.eta,
            }),
            dry: Dry {
                multiplier: dry.multiplier,
                base: dry.base,
                allowed_length: dry.allowed_length,
                last_n: dry.last_n,
                breakers: dry.breakers.clone(),
            },
            logit_bias: o.logit_bias.clone(),
            repetition_penalty: o.repetition_penalty,
            presence_penalty: o.presence_penalty,
            frequency_penalty: o.frequency_penalty,
            repetition_last_n: o.repeat_last_n,
            repeat_last_n: o.repeat_last_n,
            seed,
            ..SampleOptions::default()
        })
        .unwrap()
    }
}

#[test]
fn distributions_equal_numpy() {
    let sampling: Sampling = data::json("sampling.json");
    assert!(sampling.cases.len() >= 20);
    for case in &sampling.cases {
        let found = case
            .options
            .sampler(1)
            .distribution(&mut case.logits.clone(), &case.history)
            .unwrap();
        let ids: Vec<u32> = found.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, case.ids, "{:?}", case.options);
        for (&(id, p), &expected) in found.iter().zip(&case.p) {
            // In f32 the argument of exp is off by two roundings, exp and the quotient by a few
            // more.
            let bound = expected * (expected.ln().abs() + 4.0) * f32::EPSILON;
            assert!(
                (p - expected).abs() <= bound,
                "{:?}: token {id} {p} {expected}",
                case.options
            );
        }
    }
}

/// Mirostat's limit moves with each token, XTC strikes by chance, and penalties see what was drawn.
#[test]
fn draws_equal_numpy() {
    let sampling: Sampling = data::json("sampling.json");
    let mut n_cases = 0;
    for (seed, case) in sampling.cases.iter().enumerate() {
        let mut sampler = case.options.sampler(seed as u64);
        let mut history = case.history.clone();
        for (idx, expected) in case.drawn.iter().enumerate() {
            let token = sampler.sample(&mut case.logits.clone(), &history);
            assert_eq!(token, Ok(*expected), "{:?}: draw {idx}", case.options);
            history.push(*expected);
        }
        n_cases += usize::from(!case.drawn.is_empty());
    }
    assert!(n_cases >= 25);
}

#[test]
fn frequencies_follow_the_distribution() {
    let sampling: Sampling = data::json("sampling.json");
    let case = sampling
        .cases
        .iter()
        .find(|case| case.options.top_k == 5)
        .unwrap();
    let mut sampler = case.options.sampler(7);
    let mut counts = [0u32; 5];
    const N: u32 = 20_000;
    for _ in 0..N {
        let id = sampler
            .sample(&mut case.logits.clone(), &case.history)
            .unwrap();
        counts[case.ids.iter().position(|&known| known == id).unwrap()] += 1;
    }
    let terms = counts.iter().zip(&case.p).map(|(&count, &p)| {
        let expected = f64::from(p) * f64::from(N);
        (f64::from(count) - expected).powi(2) / expected
    });
    let chi_square: f64 = terms.sum();
    // With 4 degrees of freedom, one seed in a thousand gives more than 18.47.
    assert!(chi_square < 18.47, "{chi_square} {counts:?}");
}

#[test]
fn the_seed_decides() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 / 20.0).collect();
    let tokens = |seed| -> Vec<u32> {
        let options = SampleOptions {
            temperature: 1.0,
            top_p: 0.9,
            seed,
            ..SampleOptions::default()
        };
        let mut sampler = Sampler::new(options).unwrap();
        (0..8)
            .map(|_| sampler.sample(&mut logits.clone(), &[]).unwrap())
            .collect()
    };
    assert_eq!(tokens(3), tokens(3));
    assert_ne!(tokens(3), tokens(4));
}

#[test]
fn greedy_takes_the_first_of_equals_and_minus_infinity_never() {
    let mut greedy = Sampler::new(SampleOptions::default()).unwrap();
    assert_eq!(greedy.sample(&mut [1.0, 3.0, 3.0], &[]), Ok(1));
    assert_eq!(greedy.sample(&mut [f32::NEG_INFINITY, -1e30], &[]), Ok(1));
    let cold = SampleOptions {
        temperature: 1e-40,
        ..SampleOptions::default()
    };
    assert_eq!(
        Sampler::new(cold)
            .unwrap()
            .sample(&mut [1.0, 1.5, -3.0], &[]),
        Ok(1)
    );
    let hot = SampleOptions {
        temperature: 1e30,
        ..SampleOptions::default()
    };
    let mut hot = Sampler::new(hot).unwrap();
    for _ in 0..100 {
        assert_eq!(
            hot.sample(&mut [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY], &[]),
            Ok(1)
        );
    }
}

/// Rules that exclude the likeliest tokens, and some that follow the end of `history`.
fn rules(history: &[u32]) -> Rules {
    let (last, repeated) = (history[history.len() - 1], history[3]);
    Rules {
        suppress_tokens: (0..40).collect(),
        begin_suppress_tokens: (40..50).collect(),
        bad_words: vec![vec![50], vec![last, 51], vec![repeated, last, 52]],
        sequence_bias: vec![(vec![53], -2.0), (vec![last, 54], -9.0)],
        no_repeat_ngram_size: 1,
        ..Rules::default()
    }
}

/// Includes penalties that lower the greatest logits, ties, and ties at the cut-off.
#[test]
fn logits_that_are_not_among_the_greatest_do_not_count() {
    let mut state = 5u64;
    let mut random = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut n_masked = 0;
    for case in 0..400 {
        let logits: Vec<f32> = (0..300).map(|_| random(97) as f32 / 7.0 - 5.0).collect();
        let history: Vec<u32> = (0..40).map(|_| random(300) as u32).collect();
        let options = SampleOptions {
            temperature: [0.0, 0.8, 1e6][case % 3],
            top_k: [1, 5, 40][case / 3 % 3],
            top_p: [1.0, 0.7][case / 9 % 2],
            repetition_penalty: [1.0, 1.4][case / 18 % 2],
            presence_penalty: [0.0, 1.5][case / 36 % 2],
            repeat_last_n: [Some(16), None][case / 72 % 2],
            repetition_last_n: [None, Some(16)][case / 72 % 2],
            rules: Arc::new(if case % 2 == 0 {
                Rules::default()
            } else {
                rules(&history)
            }),
            seed: case as u64,
            ..SampleOptions::default()
        };
        let mut sampler = Sampler::new(options.clone()).unwrap();
        let n = sampler.n_greatest(history.len()).unwrap();
        let mut sorted = logits.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let least = sorted[n - 1];
        let mut masked: Vec<f32> = logits
            .iter()
            .map(|logit| {
                if *logit < least {
                    f32::NEG_INFINITY
                } else {
                    *logit
                }
            })
            .collect();
        n_masked += masked
            .iter()
            .filter(|logit| **logit == f32::NEG_INFINITY)
            .count();
        let due = sampler.distribution(&mut logits.clone(), &history).unwrap();
        assert_eq!(
            sampler.distribution(&mut masked, &history).unwrap(),
            due,
            "{options:?}"
        );
    }
    assert!(n_masked > 400 * 200);
}

#[test]
fn what_raises_logits_needs_all_of_them() {
    let none = |options| Sampler::new(options).unwrap().n_greatest(9);
    let of_rules = |rules: Rules| {
        none(SampleOptions {
            rules: Arc::new(rules),
            ..SampleOptions::default()
        })
    };
    let penalty = LengthPenalty {
        start: 0,
        factor: 1.1,
        ends: vec![2],
    };
    let raise = [
        Rules {
            sequence_bias: vec![(vec![1], 0.5)],
            ..Rules::default()
        },
        Rules {
            prompt_reward: 1.5,
            ..Rules::default()
        },
        Rules {
            length_penalty: Some(penalty),
            ..Rules::default()
        },
    ];
    raise
        .into_iter()
        .for_each(|rules| assert_eq!(of_rules(rules), None));
    let suppress_tokens = vec![1, 2, 3];
    let three = Rules {
        suppress_tokens,
        ..Rules::default()
    };
    assert_eq!(of_rules(three), Some(4));
    assert_eq!(
        none(SampleOptions {
            temperature: 1.0,
            ..SampleOptions::default()
        }),
        None
    );
    assert_eq!(
        none(SampleOptions {
            presence_penalty: -1.0,
            ..SampleOptions::default()
        }),
        None
    );
    assert_eq!(
        none(SampleOptions {
            repetition_penalty: 0.9,
            ..SampleOptions::default()
        }),
        None
    );
    assert_eq!(
        none(SampleOptions {
            frequency_penalty: 0.1,
            ..SampleOptions::default()
        }),
        Some(10)
    );
}

#[test]
fn bad_options_are_errors() {
    type Change = fn(&mut SampleOptions);
    let options: [(Change, &str); 16] = [
        (
            |o| o.temperature = -0.1,
            "option temperature: expected 0 or more, found -0.1",
        ),
        (
            |o| o.temperature = f32::NAN,
            "option temperature: expected 0 or more, found NaN",
        ),
        (
            |o| o.temperature = f32::INFINITY,
            "option temperature: expected 0 or more, found inf",
        ),
        (
            |o| o.top_p = 0.0,
            "option top_p: expected above 0 and at most 1, found 0",
        ),
        (
            |o| o.top_p = 1.5,
            "option top_p: expected above 0 and at most 1, found 1.5",
        ),
        (
            |o| o.min_p = -0.5,
            "option min_p: expected from 0 to 1, found -0.5",
        ),
        (
            |o| o.min_p = f32::NAN,
            "option min_p: expected from 0 to 1, found NaN",
        ),
        (
            |o| o.typical_p = 0.0,
            "option typical_p: expected above 0 and at most 1, found 0",
        ),
        (
            |o| o.xtc_probability = 2.0,
            "option xtc_probability: expected from 0 to 1, found 2",
        ),
        (
            |o| o.mirostat = Some(Mirostat { tau: 0.0, eta: 0.1 }),
            "option mirostat_tau: expected above 0, found 0",
        ),
        (
            |o| o.dry.base = 0.5,
            "option dry_base: expected 1 or more, found 0.5",
        ),
        (
            |o| o.dry.multiplier = f32::NAN,
            "option dry_multiplier: expected 0 or more, found NaN",
        ),
        (
            |o| o.logit_bias = vec![(1, f32::INFINITY)],
            "option logit_bias: expected at most 10000 or minus infinity, found inf",
        ),
        (
            |o| o.repetition_penalty = 0.0,
            "option repetition_penalty: expected above 0, found 0",
        ),
        (
            |o| o.presence_penalty = f32::NAN,
            "option presence_penalty: expected a finite number, found NaN",
        ),
        (
            |o| o.frequency_penalty = f32::INFINITY,
            "option frequency_penalty: expected a finite number, found inf",
        ),
    ];
    for (change, message) in options {
        let mut options = SampleOptions::default();
        change(&mut options);
        assert_eq!(Sampler::new(options).unwrap_err().to_string(), message);
    }
}

#[test]
fn bad_logits_are_errors() {
    let mut sampler = Sampler::new(SampleOptions {
        presence_penalty: 1.0,
        ..SampleOptions::default()
    })
    .unwrap();
    let none = "expected a logit above minus infinity, found none among 2 logits";
    let cases: [(&[f32], &[u32], &str); 5] = [
        (
            &[0.0, f32::NAN],
            &[],
            "expected finite logits, found NaN for token 1",
        ),
        (
            &[f32::INFINITY],
            &[],
            "expected finite logits, found inf for token 0",
        ),
        (
            &[],
            &[],
            "expected a logit above minus infinity, found none among 0 logits",
        ),
        (&[f32::NEG_INFINITY; 2], &[], none),
        (
            &[0.0],
            &[0, 1],
            "expected token ids below 1, the number of logits, found 1 in the history",
        ),
    ];
    for (logits, history, message) in cases {
        assert_eq!(
            sampler
                .sample(&mut logits.to_vec(), history)
                .unwrap_err()
                .to_string(),
            message
        );
    }
}

#[test]
fn argmax_is_the_first_of_the_largest() {
    use thane_engine::sample::argmax;
    assert_eq!(argmax(&[]), None);
    assert_eq!(argmax(&[f32::NEG_INFINITY; 70]), None);
    // Positions in whole chunks of 64, in lanes and after them, with an equal logit before or after
    // and NaN beside.
    for at in [0, 7, 8, 63, 64, 130, 196, 199] {
        let mut logits: Vec<f32> = (0..200).map(|i| -((i * 37 % 101) as f32)).collect();
        logits[at] = 3.0;
        logits[(at + 1) % 200] = f32::NAN;
        assert_eq!(argmax(&logits), Some(at));
        logits[199] = 3.0;
        assert_eq!(argmax(&logits), Some(at));
        logits[2] = 3.0;
        assert_eq!(argmax(&logits), Some(at.min(2)));
    }
}
