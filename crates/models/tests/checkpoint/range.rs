//! Ranges of numbers in configurations.

use thane_models::checkpoint::{Config, Range};

/// The ranges, and what messages expect of a number.
const ALL: [(Range, &str); 5] = [
    (Range::EPSILON, "a number from 1e-20 to 1"),
    (Range::SOFT_CAP, "a number from 0.001 to 1000000"),
    (Range::THETA, "a number from 2 to 1e15"),
    (Range::FACTOR, "a number from 0.000001 to 1000000"),
    (Range::FACTOR_OR_ZERO, "a number from 0 to 1000000"),
];

#[test]
fn bounds_are_those_of_the_text() {
    for (range, text) in ALL {
        let bounds = text.strip_prefix("a number from ").unwrap();
        let (least, most) = bounds.split_once(" to ").unwrap();
        let [least, most]: [f64; 2] = [least, most].map(|bound| bound.parse().unwrap());
        assert!(
            range.holds(least) && !range.holds(least.next_down()),
            "{text}"
        );
        assert!(range.holds(most) && !range.holds(most.next_up()), "{text}");
    }
}

#[test]
fn absurd_numbers_are_refused_with_key_and_bounds() {
    let odd = ["-1", "1e30", "-0.5"];
    for (range, expected) in ALL {
        for number in odd {
            let text = format!("{{\"text_config\": {{\"key\": {number}}}}}");
            let config = Config::parse(text.as_bytes()).unwrap();
            let part = config.object("text_config").unwrap();
            let error = part.opt_number("key", &range).unwrap_err().to_string();
            let found = config.value("text_config").unwrap()["key"].to_string();
            assert_eq!(
                error,
                format!("key \"text_config.key\": expected {expected}, found {found}")
            );
        }
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!range.holds(number), "{number}");
        }
        assert_eq!(range.holds(0.0), range == Range::FACTOR_OR_ZERO);
    }
}
