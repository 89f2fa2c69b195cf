//! `thane buckets` from end to end, on tiny models.

use serde_json::{Value, json};

use crate::embed::model;
use crate::fixture::{Home, assert_ends, json as report, stderr, stdout};

fn write(home: &Home, name: &str, text: &str) -> String {
    std::fs::write(home.path(name), text).unwrap();
    home.path(name).to_str().unwrap().to_owned()
}

fn buckets(home: &Home, name: &str, flags: &[&str]) -> std::process::Output {
    home.run(&[&["buckets", model(name).to_str().unwrap()], flags].concat())
}

/// Times that grow by a millisecond every eight tokens, so that the best is found by hand; the
/// model takes 52.
#[test]
fn the_best_buckets_of_a_histogram() {
    let home = Home::new();
    let counts = write(
        &home,
        "counts.json",
        r#"{"5": 6, "20": 5, "50": 1, "5": 4, "7": 0, "900": 1}"#,
    );
    let flags = [
        "--histogram",
        &counts,
        "--align",
        "8",
        "--times",
        "52=6.5,8=1.0,32=4",
    ];
    let output = buckets(&home, "bert-cls", &[&flags[..], &["--json"]].concat());
    assert_ends(
        &output,
        0,
        &["1 of 17 texts longer than the 52 tokens that the model takes"],
    );
    let found = report(&output);
    let expected: [(Value, f64); 3] = [
        (json!([52]), 17.0 * 6.5),
        (json!([8, 52]), 55.5),
        (json!([8, 24, 52]), 38.0),
    ];
    let plans = found["plans"].as_array().unwrap();
    assert_eq!(plans.len(), expected.len(), "a fourth bucket gains nothing");
    for (plan, (lengths, ms)) in plans.iter().zip(&expected) {
        assert_eq!(plan["buckets"], *lengths);
        let near = |key: &str, value: f64| {
            let found = plan[key].as_f64().unwrap();
            assert!(
                (found - value).abs() < 1e-9,
                "{lengths}: {key} is {found}, not {value}"
            );
        };
        near("ms_per_text", ms / 17.0);
        near("loss", ms / 38.0 - 1.0);
        // A millisecond is eight tokens.
        near("padded", 1.0 - 252.0 / (ms * 8.0));
    }
    assert_eq!(
        (&found["tokens"], &found["truncated"], &found["longest"]),
        (&json!(252), &json!(1), &json!(52))
    );
    assert_eq!(
        (&found["knee"], &found["unlimited"]),
        (&json!(3), &plans[2])
    );
    assert_eq!(
        (&found["costs"], &found["max_tokens"]),
        (&json!("measured"), &json!(52))
    );
    let table = buckets(&home, "bert-cls", &flags);
    assert_ends(&table, 0, &["costs: as measured"]);
    let said = "17 texts, 252 tokens, the longest 52\n\
                buckets   ms/text   padded     loss   lengths\n      \
                1     6.500   71.5 %  190.8 %   52\n      \
                2     3.265   43.2 %   46.1 %   8,52\n      \
                3     2.235   17.1 %    0.0 %   8,24,52 *\n    \
                any     2.235   17.1 %    0.0 %   3 buckets\n\
                * the fewest within 5 % of the best here\n\n\
                thane convert ";
    assert!(stdout(&table).starts_with(said), "{}", stdout(&table));
    let two = report(&buckets(
        &home,
        "bert-cls",
        &[&flags[..], &["--count", "2", "--json"]].concat(),
    ));
    assert_eq!(
        (two["plans"].as_array().unwrap().len(), &two["knee"]),
        (2, &json!(2))
    );
}

/// What is counted is what `embed` embeds.
#[test]
fn texts_are_counted_as_they_are_embedded() {
    let home = Home::new();
    let lines = [
        "a cat",
        "",
        "the sea above the village",
        &"the sea ".repeat(40),
        "stone",
    ];
    let file = write(
        &home,
        "texts.txt",
        &lines.map(|l| format!("{l}\n")).concat(),
    );
    for (name, prompt) in [("bert-cls", "query"), ("bert-cls", ""), ("bert-mean", "")] {
        let flags = ["--file", &file, "--prompt", prompt, "--json"];
        let found = report(&buckets(&home, name, &flags));
        let embedded = home.run(
            &[
                &["embed", model(name).to_str().unwrap(), "--truncate"],
                &flags[..],
            ]
            .concat(),
        );
        let embedded = report(&embedded);
        for (here, there) in [
            ("texts", "rows"),
            ("tokens", "tokens"),
            ("truncated", "truncated"),
        ] {
            assert_eq!(found[here], embedded[there], "{name}, {prompt}, {here}");
        }
        assert_eq!(found["costs"], "predicted");
        let costs: Vec<f64> = found["plans"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["ms_per_text"].as_f64().unwrap())
            .collect();
        assert!(
            costs.is_sorted_by(|a, b| a > b) && costs[0] > 0.0,
            "{costs:?}"
        );
    }
    // This tokenizer puts nothing around a text.
    let plain = report(&buckets(&home, "qwen3-pplx", &["--file", &file, "--json"]));
    assert_eq!((&plain["texts"], &plain["empty"]), (&json!(4), &json!(1)));
}

#[test]
fn the_command_that_is_proposed_writes_these_buckets() {
    let home = Home::new();
    let counts = write(&home, "counts.json", r#"{"9": 10, "30": 1}"#);
    for name in [
        "bert-mean",
        "qwen3-pplx",
        "modernbert-cls",
        "qwen3-embedding",
        "embeddinggemma",
    ] {
        let found = report(&buckets(
            &home,
            name,
            &["--histogram", &counts, "--align", "16", "--json"],
        ));
        let best = &found["plans"][found["knee"].as_u64().unwrap() as usize - 1]["buckets"];
        let command: Vec<&str> = found["command"].as_str().unwrap().split(' ').collect();
        let (out, args) = command[1..].split_last().unwrap();
        let out = home.path(&format!("{name}-{out}"));
        let converted = home.run(&[args, &[out.to_str().unwrap(), "--json"]].concat());
        assert_ends(&converted, 0, &[]);
        assert_eq!(report(&converted)["buckets"], *best, "{name}");
    }
    let package = home.path("bert-mean-model.mlpackage");
    let output = home.run(&["buckets", package.to_str().unwrap(), "--histogram", &counts]);
    assert_ends(
        &output,
        2,
        &["a package has its buckets already", "try: the checkpoint"],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are cases")]
fn what_cannot_be_planned_is_named() {
    let home = Home::new();
    let empty = write(&home, "empty.txt", "");
    let none = write(&home, "none.json", "{}");
    let few = write(&home, "few.json", "{\"20\": 1}");
    let odd = write(
        &home,
        "odd.json",
        r#"{"128": -1, "x": 3, "0": 1, "64": 2.5, "32": "many", "8": 1}"#,
    );
    let list = write(&home, "list.json", "[1, 2]");
    let mixed = write(&home, "mixed.jsonl", "{\"text\": \"a\"}\n{\"id\": 2}\n");
    let cases: &[(&[&str], &[&str])] = &[
        (&["--file", &empty], &["empty.txt: there are no texts"]),
        (&["--histogram", &none], &["none.json: there are no texts"]),
        (
            &["--histogram", &odd],
            &[
                "odd.json: expected a count for `128`, found -1",
                "expected a length above 0, found `x`",
                "expected a length above 0, found `0`",
                "expected a count for `64`, found 2.5",
                "expected a count for `32`, found \"many\"",
            ],
        ),
        (
            &["--histogram", &list],
            &[
                "list.json: expected an object of lengths and counts",
                "invalid type: sequence",
            ],
        ),
        (
            &["--histogram", "/nowhere.json"],
            &["/nowhere.json", "No such file"],
        ),
        (
            &["--file", &mixed],
            &["mixed.jsonl, line 2: it has no field `text`"],
        ),
        (
            &["--file", &mixed, "--histogram", &few],
            &["cannot be used with"],
        ),
        (
            &[],
            &[
                "required arguments were not provided",
                "--file <FILE>|--histogram <FILE>",
            ],
        ),
        (
            &["--histogram", &few, "--times", "128=14.0"],
            &["--times", "at least two lengths", "try: --times 128=14.0,"],
        ),
        (
            &["--histogram", &few, "--times", "8=2,16=1"],
            &["--times", "length 16 takes 1 ms, less than length 8"],
        ),
        (
            &["--histogram", &few, "--times", "8=2,x=1"],
            &["invalid value 'x=1'", "a length and its milliseconds"],
        ),
        (
            &["--histogram", &few, "--count", "0"],
            &["invalid value '0' for '--count <N>'", "1..=64"],
        ),
        (
            &["--histogram", &few, "--align", "0"],
            &["invalid value '0' for '--align <N>'"],
        ),
        (
            &["--histogram", &few, "--target", "m0"],
            &["invalid value 'm0'", "is no chip, system or device"],
        ),
        (
            &["--file", &mixed, "--prompt", "walk"],
            &["the model has no prompt `walk`"],
        ),
    ];
    for (flags, texts) in cases {
        let output = buckets(&home, "bert-cls", flags);
        assert_ends(&output, 2, texts);
        assert!(
            output.stdout.is_empty() && !stderr(&output).contains("panicked"),
            "{flags:?}"
        );
    }
}
