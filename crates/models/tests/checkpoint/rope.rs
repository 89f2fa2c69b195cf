//! Both spellings of rotary embeddings: alone, together, and contradicting each other.

use thane_models::checkpoint::{Config, Rope, RopeConfig, RopeScaling, Yarn};

use super::builder::assert_says;

fn config(text: &str) -> Config {
    Config::parse(text.as_bytes()).unwrap()
}

fn plain(theta: Option<f64>, scaling: RopeScaling) -> RopeConfig {
    RopeConfig {
        theta,
        scaling,
        partial_rotary_factor: None,
    }
}

const LLAMA3: &str = r#""factor":32.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192"#;

fn yarn(original_max_position_embeddings: usize) -> RopeScaling {
    RopeScaling::Yarn(Yarn {
        factor: 1.0,
        original_max_position_embeddings,
        beta_fast: 9.0,
        beta_slow: 1.0,
        attention_factor: 1.0,
        truncate: true,
    })
}

fn llama3() -> RopeScaling {
    RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    }
}

#[test]
fn one_form_comes_of_either_spelling() {
    let default = RopeScaling::Default;
    for (text, expected) in [
        ("{}".into(), plain(None, default.clone())),
        (
            r#"{"rope_theta":500000,"rope_scaling":null}"#.into(),
            plain(Some(5e5), default.clone()),
        ),
        (
            r#"{"rope_parameters":{"rope_theta":500000.0,"rope_type":"default"}}"#.into(),
            plain(Some(5e5), default.clone()),
        ),
        (
            r#"{"rope_theta":1e4,"rope_parameters":{"rope_type":"default"}}"#.into(),
            plain(Some(1e4), default.clone()),
        ),
        (
            r#"{"rope_theta":1e4,"rope_parameters":{"rope_theta":1e4}}"#.into(),
            plain(Some(1e4), default),
        ),
        (
            r#"{"rope_theta":1e4,"rope_scaling":{"type":"linear","factor":8.0}}"#.into(),
            plain(Some(1e4), RopeScaling::Linear { factor: 8.0 }),
        ),
        (
            format!(r#"{{"rope_theta":5e5,"rope_scaling":{{"rope_type":"llama3",{LLAMA3}}}}}"#),
            plain(Some(5e5), llama3()),
        ),
        (
            format!(r#"{{"rope_parameters":{{"rope_theta":5e5,"rope_type":"llama3",{LLAMA3}}}}}"#),
            plain(Some(5e5), llama3()),
        ),
        (
            r#"{"rope_scaling":{"type":"mrope","rope_type":"mrope","factor":4.0}}"#.into(),
            plain(None, RopeScaling::Unsupported("mrope".into())),
        ),
        (
            r#"{"max_position_embeddings":99,"rope_scaling":{"type":"yarn","factor":1.0,"beta_fast":9.0}}"#.into(),
            plain(None, yarn(99)),
        ),
        (
            // Both at once: transformers takes that of the whole file.
            r#"{"original_max_position_embeddings":7,"rope_parameters":{"rope_type":"yarn","factor":1.0,"beta_fast":9.0,"original_max_position_embeddings":8}}"#.into(),
            plain(None, yarn(7)),
        ),
        (
            r#"{"partial_rotary_factor":0.5,"rope_theta":1e4}"#.into(),
            RopeConfig {
                theta: Some(1e4),
                scaling: RopeScaling::Default,
                partial_rotary_factor: Some(0.5),
            },
        ),
    ] {
        let config = config(&text);
        assert_eq!(
            config.rope(None).unwrap(),
            Rope::Uniform(expected.clone()),
            "{text}"
        );
        assert_eq!(config.rope(None).unwrap().layer_type("any"), Some(&expected));
        if !matches!(expected.scaling, RopeScaling::Unsupported(_)) {
            config.acknowledge(&["max_position_embeddings"]);
            assert_eq!(config.unread(), [""; 0], "{text}");
        }
    }
}

#[test]
fn layer_types_come_of_either_spelling() {
    let old = r#"{"rope_theta":1000000.0,"rope_local_base_freq":10000.0,"rope_scaling":{"rope_type":"linear","factor":8.0}}"#;
    let new = r#"{"rope_parameters":{"full_attention":{"rope_theta":1000000.0,"rope_type":"linear","factor":8.0},
        "sliding_attention":{"rope_theta":10000.0,"rope_type":"default"}}}"#;
    let both = format!(
        "{},{}",
        old.trim_end_matches('}').to_owned() + "}",
        new.trim_start_matches('{')
    );
    for text in [old, new, &both] {
        let config = config(text);
        let rope = config.rope(None).unwrap();
        let full = plain(Some(1e6), RopeScaling::Linear { factor: 8.0 });
        assert_eq!(rope.layer_type("full_attention"), Some(&full), "{text}");
        assert_eq!(
            rope.layer_type("sliding_attention"),
            Some(&plain(Some(1e4), RopeScaling::Default))
        );
        assert_eq!(rope.layer_type("chunked_attention"), None);
        assert_eq!(config.unread(), [""; 0], "{text}");
    }
}

#[test]
fn parameters_that_nobody_knows_stay_unread() {
    let config = config(
        r#"{"rope_theta":1e4,"rope_scaling":{"rope_type":"linear","factor":2.0,"attention_factor":1.5}}"#,
    );
    config.rope(None).unwrap();
    assert_eq!(config.unread(), ["rope_scaling.attention_factor"]);
}

#[test]
fn spellings_at_odds_and_bad_values_are_refused() {
    for (text, parts) in [
        (
            r#"{"rope_theta":1e4,"rope_parameters":{"rope_theta":5e5}}"#,
            &[
                "rope_theta",
                "rope_parameters",
                "contradict",
                "10000.0 and 500000.0",
            ][..],
        ),
        (
            r#"{"rope_scaling":{"type":"linear","factor":2.0},"rope_parameters":{"rope_type":"default"}}"#,
            &["rope_scaling", "rope_parameters", "contradict"],
        ),
        (
            r#"{"rope_scaling":{"type":"linear","rope_type":"dynamic","factor":2.0}}"#,
            &["rope_scaling.rope_type", "rope_scaling.type", "contradict"],
        ),
        (
            r#"{"rope_theta":1e4,"rope_parameters":{"full_attention":{"rope_theta":1e6}}}"#,
            &["rope_parameters.full_attention", "contradict"],
        ),
        (
            r#"{"rope_local_base_freq":1e4,"rope_parameters":{"sliding_attention":{"rope_theta":1e6}}}"#,
            &["rope_local_base_freq", "rope_parameters.sliding_attention"],
        ),
        (
            r#"{"rope_local_base_freq":1e4,"rope_parameters":{"rope_theta":1e6}}"#,
            &["rope_local_base_freq", "contradict"],
        ),
        (
            r#"{"rope_parameters":{"full_attention":{"rope_theta":1e6},"rope_theta":1e6}}"#,
            &["rope_parameters.rope_theta", "layer type"],
        ),
        (
            r#"{"rope_scaling":{"factor":2.0}}"#,
            &["rope_scaling.rope_type", "missing"],
        ),
        (
            r#"{"rope_scaling":{"type":"linear"}}"#,
            &["rope_scaling.factor", "missing"],
        ),
        (
            r#"{"rope_scaling":{"type":"linear","factor":0}}"#,
            &["rope_scaling.factor", "from 0.000001 to 1000000, found 0"],
        ),
        (
            r#"{"rope_theta":-1}"#,
            &["rope_theta", "found -1", "from 2 to 1e15"],
        ),
        (r#"{"rope_theta":"1e4"}"#, &["rope_theta", "a number"]),
        (
            r#"{"rope_scaling":"linear"}"#,
            &["rope_scaling", "an object"],
        ),
        (
            r#"{"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0}}"#,
            &["max_position_embeddings", "missing"],
        ),
        (
            r#"{"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":4.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}}"#,
            &["low_freq_factor", "less than high_freq_factor"],
        ),
    ] {
        let message = config(text).rope(None).expect_err(text).to_string();
        assert_says(&message, parts);
    }
}
