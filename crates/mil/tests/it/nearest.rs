//! Suggestions for misspelled names.

use thane_mil::nearest::{did_you_mean, nearest};

#[test]
fn a_name_is_near_or_none_is() {
    let names = ["ANE001", "ANE070", "ANE128"];
    assert_eq!(nearest("ane-70", names), Some("ANE070"));
    assert_eq!(nearest("hello", names), None);
    assert_eq!(nearest("", names), None);
}

#[test]
fn a_similar_name_is_suggested() {
    let names = ["prefill", "decode"];
    assert_eq!(did_you_mean("decod", names), "; did you mean decode?");
    assert_eq!(did_you_mean("zzz", names), "");
}
