//! Typed access to `config.json` and the record of the keys that were read.

use thane_models::checkpoint::Config;

use super::builder::assert_says;

fn config(text: &str) -> Config {
    Config::parse(text.as_bytes()).unwrap()
}

#[test]
fn typed_getters_read_and_refuse() {
    let config = config(
        r#"{"n": 4, "x": 1e-6, "whole": 10000, "yes": true, "s": "silu", "none": null, "list": [1, 2],
            "types": ["full_attention", "sliding_attention"], "inner": {"n": 5}, "eos": [1, 106], "minus": -1, "half": 2.5}"#,
    );
    assert_eq!(config.usize("n").unwrap(), 4);
    assert_eq!(
        (config.f64("x").unwrap(), config.f64("whole").unwrap()),
        (1e-6, 10000.0)
    );
    assert!(config.bool("yes").unwrap() && config.bool_or("absent", true).unwrap());
    assert!(!config.bool_or("none", false).unwrap());
    assert_eq!(config.str("s").unwrap(), "silu");
    assert_eq!(config.opt_usize("none").unwrap(), None);
    assert_eq!(config.opt_usizes("list").unwrap().unwrap(), [1, 2]);
    assert_eq!(
        config.opt_strs("types").unwrap().unwrap(),
        ["full_attention", "sliding_attention"]
    );
    assert_eq!(config.object("inner").unwrap().usize("n").unwrap(), 5);
    assert_eq!(
        (
            config.token_ids("eos").unwrap(),
            config.token_ids("n").unwrap()
        ),
        (vec![1, 106], vec![4])
    );
    let inner = config.object("inner").unwrap();
    for (message, parts) in [
        (
            config.usize("absent").unwrap_err(),
            &["\"absent\" is missing", "whole number"][..],
        ),
        (config.usize("none").unwrap_err(), &["\"none\" is missing"]),
        (
            config.usize("minus").unwrap_err(),
            &["\"minus\"", "found -1", "a whole number"],
        ),
        (
            config.usize("half").unwrap_err(),
            &["\"half\"", "found 2.5", "a whole number"],
        ),
        (
            config.usize("s").unwrap_err(),
            &["\"s\"", "found \"silu\"", "a whole number"],
        ),
        (
            config.bool("n").unwrap_err(),
            &["\"n\"", "found 4", "a bool"],
        ),
        (
            config.opt_strs("list").unwrap_err(),
            &["\"list\"", "[1,2]", "a list of strings"],
        ),
        (
            config.object("n").map(|_| ()).unwrap_err(),
            &["\"n\"", "an object"],
        ),
        (
            inner.str("n").unwrap_err(),
            &["\"inner.n\"", "found 5", "a string"],
        ),
        (inner.str("m").unwrap_err(), &["\"inner.m\" is missing"]),
    ] {
        assert_says(&message.to_string(), parts);
    }
}

#[test]
fn bad_json_is_refused_with_its_place() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for (text, parts) in [
        ("", &["EOF", "line 1"][..]),
        ("[1]", &["expected an object"]),
        ("{\"a\":1,\n\"a\":2}", &["\"a\" is repeated", "line 2"]),
        ("{\"a\":{\"b\":1,\"b\":1}}", &["\"b\" is repeated"]),
        ("{\"a\":NaN}", &["line 1 column"]),
        ("{\"a\":1e999}", &["number out of range"]),
        ("\u{feff}{}", &["line 1 column 1"]),
        (&deep, &["recursion limit"]),
    ] {
        let message = Config::parse(text.as_bytes()).expect_err(text).to_string();
        assert_says(&message, parts);
    }
}

#[test]
fn unread_keys_are_listed() {
    let config = config(
        r#"{"hidden_size": 4, "softcap": 30.0, "torch_dtype": "bfloat16", "null": null,
            "empty": [], "no_text": "",
            "text_config": {"a": 1, "b": 2, "deep": {"c": 3}}, "vision_config": {"d": 4}}"#,
    );
    config.usize("hidden_size").unwrap();
    config.acknowledge(&["torch_dtype", "absent"]);
    assert_eq!(config.unread(), ["softcap", "text_config", "vision_config"]);
    let text = config.object("text_config").unwrap();
    text.usize("a").unwrap();
    assert_eq!(
        config.unread(),
        [
            "softcap",
            "text_config.b",
            "text_config.deep",
            "vision_config"
        ]
    );
    assert_eq!(text.unread(), ["text_config.b", "text_config.deep"]);
    text.object("deep").unwrap();
    assert_eq!(text.unread(), ["text_config.b", "text_config.deep.c"]);
    assert!(config.has("softcap") && !config.has("null"));
    assert_eq!(config.unread()[0], "softcap", "`has` does not read");
    config.clone().f64("softcap").unwrap();
    config.value("vision_config").unwrap();
    assert_eq!(
        config.unread(),
        ["text_config.b", "text_config.deep.c"],
        "clones share the record"
    );
}
