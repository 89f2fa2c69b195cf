//! `thane run`: what it answers, and where it says what.

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::fixture::{Home, assert_ends, chat_folder, chat_gguf, json, stderr, stdout};

/// What transformers answers to the conversation `nth`.
fn expected(nth: usize) -> Value {
    let text = std::fs::read(chat_folder().join("expected.json")).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap()["conversations"][nth].clone()
}

fn run(args: &[&str]) -> Output {
    let model = chat_gguf();
    let output = Home::new().run(&[&["run", model.to_str().unwrap()], args].concat());
    assert_ends(&output, 0, &[]);
    output
}

fn from_stdin(args: &[&str], text: &[u8]) -> Output {
    let model = chat_gguf();
    let mut command = Home::new().thane(&[&["run", model.to_str().unwrap()], args].concat());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text).unwrap();
    child.wait_with_output().unwrap()
}

fn n_tokens(report: &Value) -> usize {
    report["tokens"].as_array().unwrap().len()
}

#[test]
fn tokens_are_those_of_transformers_in_each_form_and_numerics_and_number_of_threads() {
    for model in [chat_gguf(), chat_folder()] {
        for numerics in ["f32", "fast"] {
            for threads in ["1", "2"] {
                for (nth, args) in [
                    (0, &["hello"][..]),
                    (2, &["Why is the sky blue?", "--system", "Be brief."]),
                ] {
                    let flags = ["--json", "--numerics", numerics, "--threads", threads];
                    let output = Home::new()
                        .run(&[&["run", model.to_str().unwrap()], args, &flags].concat());
                    assert_ends(&output, 0, &[]);
                    let (report, expected) = (json(&output), expected(nth));
                    let case = format!("{} {numerics} {threads}", model.display());
                    assert_eq!(report["prompt_tokens"], expected["ids"], "{case}");
                    assert_eq!(report["tokens"], expected["tokens"], "{case}");
                    assert_eq!(report["text"], expected["text"], "{case}");
                    assert_eq!(report["finish_reason"], "stop", "{case}");
                }
            }
        }
    }
}

#[test]
fn tokens_are_the_same_by_every_instruction_set_and_those_that_are_missing_are_refused() {
    let names: Vec<&str> = thane_kernels::Isa::available()
        .into_iter()
        .map(thane_kernels::Isa::name)
        .collect();
    for name in &names {
        for numerics in ["f32", "fast"] {
            let report = json(&run(&[
                "hello",
                "--json",
                "--numerics",
                numerics,
                "--isa",
                name,
            ]));
            assert_eq!(
                report["tokens"],
                expected(0)["tokens"],
                "{name}, {numerics}"
            );
        }
    }
    // No machine has both.
    let missing = ["avx2", "neon"]
        .into_iter()
        .find(|name| !names.contains(name))
        .unwrap();
    for name in [missing, "sse"] {
        let model = chat_gguf();
        let output = Home::new()
            .thane(&["run", model.to_str().unwrap(), "hello"])
            .env("THANE_ISA", name)
            .output()
            .unwrap();
        assert_ends(
            &output,
            2,
            &[
                &format!("invalid value '{name}' for '--isa <NAME>'"),
                &names.join(", "),
            ],
        );
    }
}

#[test]
fn the_answer_and_a_line_break_go_to_stdout_and_nothing_to_stderr() {
    let output = run(&["hello"]);
    assert_eq!(
        stdout(&output),
        format!("{}\n", expected(0)["text"].as_str().unwrap())
    );
    assert_eq!(stderr(&output), "");
}

#[test]
fn the_prompt_may_come_on_stdin_with_the_line_break_of_echo() {
    for text in ["hello", "hello\n", "hello\r\n"] {
        let output = from_stdin(&["--json"], text.as_bytes());
        assert_ends(&output, 0, &[]);
        assert_eq!(
            json(&output)["prompt_tokens"],
            expected(0)["ids"],
            "{text:?}"
        );
    }
}

#[test]
fn a_raw_prompt_is_taken_as_it_is() {
    // `h e` and `l` and `l o` are pieces of the vocabulary; 13 is the line break.
    let ids = |output: &Output| json(output)["prompt_tokens"].clone();
    assert_eq!(
        ids(&run(&["hello", "--raw", "--json", "--max-tokens", "1"])),
        serde_json::json!([272, 111, 271])
    );
    let output = from_stdin(&["--raw", "--json", "--max-tokens", "1"], b"hello\n");
    assert_eq!(ids(&output), serde_json::json!([272, 111, 271, 13]));
}

#[test]
fn the_same_seed_gives_the_same_answer_and_another_one_another() {
    let answer = |seed| {
        stdout(&run(&[
            "hello",
            "--temperature",
            "1.5",
            "--seed",
            seed,
            "--max-tokens",
            "30",
        ]))
    };
    assert_eq!(answer("1"), answer("1"));
    assert_ne!(answer("1"), answer("2"));
}

#[test]
fn an_answer_ends_before_a_stop_string() {
    let text = expected(0)["text"].as_str().unwrap().to_owned();
    let (head, tail) = text.split_at(3);
    // The stop string begins within the answer and spans tokens.
    let report = json(&run(&[
        "hello",
        "--json",
        "--stop",
        "never",
        "--stop",
        &tail[..4],
    ]));
    assert_eq!(
        (&report["text"], &report["finish_reason"]),
        (&head.into(), &"stop".into())
    );
    assert_eq!(
        stdout(&run(&["hello", "--stop", &tail[..4]])),
        format!("{head}\n")
    );
}

#[test]
fn an_answer_ends_with_its_tokens_or_the_context() {
    let tokens = expected(0)["tokens"].as_array().unwrap().clone();
    let n_prompt = expected(0)["ids"].as_array().unwrap().len();
    for n in [0, 1, 3] {
        let report = json(&run(&["hello", "--json", "--max-tokens", &n.to_string()]));
        assert_eq!(
            report["tokens"].as_array().unwrap().as_slice(),
            &tokens[..n]
        );
        assert_eq!(report["finish_reason"], "length");
    }
    let output = run(&["hello", "--json", "--context", &(n_prompt + 2).to_string()]);
    // The last token needs no place: nothing is computed from it.
    assert_eq!(
        (n_tokens(&json(&output)), &json(&output)["finish_reason"]),
        (3, &"context".into())
    );
    assert_ends(
        &output,
        0,
        &[&format!(
            "the context of {0} tokens is full; --context {1} makes it longer",
            n_prompt + 2,
            2 * (n_prompt + 2)
        )],
    );
}

#[test]
fn a_profile_says_that_no_heavy_op_went_without_a_kernel() {
    // So many that an interruption of one call does not push all others off the table.
    let said = stderr(&run(&["hello", "--profile", "--max-tokens", "48"]));
    for text in [
        "function   step",
        "decode_top linear",
        "0 calls of ops that compute much had no kernel",
    ] {
        assert!(said.contains(text), "`{text}` is not in:\n{said}");
    }
}

#[test]
fn timings_fit_together() {
    let report = json(&run(&["hello", "--json", "--max-tokens", "4"]));
    let t = &report["timings"];
    let time = |name: &str| t[name].as_f64().unwrap();
    assert_eq!(
        t["prefill_tokens"],
        report["prompt_tokens"].as_array().unwrap().len()
    );
    assert_eq!(t["decode_tokens"], 3);
    assert!(
        time("first_token_s") >= time("prefill_s")
            && time("prefill_s") > 0.0
            && time("decode_s") > 0.0
    );
    let rate = 3.0 / time("decode_s");
    assert!((time("decode_tokens_per_s") - rate).abs() < 1e-6 * rate);
    if cfg!(target_os = "linux") {
        // At least the weights, at most what a test's machine has for it.
        let peak = t["peak_memory_bytes"].as_u64().unwrap();
        assert!((1_000_000..1_000_000_000).contains(&peak), "{peak}");
    }
}

#[test]
fn verbose_says_how_fast_it_was_on_stderr() {
    let output = run(&["hello", "-v"]);
    let texts = [
        "reading ",
        "first token after ",
        " s, prefill 16 tokens at ",
        "/s, decode ",
        "/s",
    ];
    assert_ends(&output, 0, &texts);
    if cfg!(target_os = "linux") {
        assert_ends(&output, 0, &["peak memory "]);
    }
    assert_eq!(stdout(&output).lines().count(), 1);
    // What the passes of the compiler did is of no use to anybody who runs a model.
    let said = stderr(&output);
    assert!(
        said.lines().count() == 3 && !said.contains("changed"),
        "{said}"
    );
}

#[test]
fn no_escape_sequence_goes_where_no_terminal_is() {
    let model = chat_gguf();
    for value in ["", "1"] {
        let mut command = Home::new().thane(&["run", model.to_str().unwrap(), "hello", "-v"]);
        let output = command
            .env("NO_COLOR", value)
            .env("TERM", "xterm-256color")
            .output()
            .unwrap();
        assert_ends(&output, 0, &[]);
        assert!(
            !output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b),
            "{output:?}"
        );
    }
}

/// Flags, and the variables that say the same.
type Twins<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

#[test]
fn flags_have_variables() {
    let model = chat_gguf();
    let with = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command =
            Home::new().thane(&[&["run", model.to_str().unwrap(), "hello"], flags].concat());
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert_ends(&output, 0, &[]);
        let report = json(&output);
        (
            report["prompt_tokens"].clone(),
            report["tokens"].clone(),
            report["finish_reason"].clone(),
        )
    };
    let cases: [Twins<'_>; 5] = [
        (&["--max-tokens", "3"], &[("THANE_RUN_MAX_TOKENS", "3")]),
        (
            &["--temperature", "2", "--seed", "7", "--top-k", "5"],
            &[
                ("THANE_RUN_TEMPERATURE", "2"),
                ("THANE_RUN_SEED", "7"),
                ("THANE_RUN_TOP_K", "5"),
            ],
        ),
        (
            &["--raw", "--max-tokens", "9"],
            &[("THANE_RUN_RAW", "1"), ("THANE_RUN_MAX_TOKENS", "9")],
        ),
        (
            &["--system", "Be brief.", "--numerics", "f32"],
            &[
                ("THANE_RUN_SYSTEM", "Be brief."),
                ("THANE_RUN_NUMERICS", "f32"),
            ],
        ),
        (
            &["--stop", "t", "--context", "40"],
            &[("THANE_RUN_STOP", "t"), ("THANE_RUN_CONTEXT", "40")],
        ),
    ];
    let plain = with(&["--json"], &[]);
    for (flags, variables) in cases {
        let by_flag = with(&[flags, &["--json"]].concat(), &[]);
        assert_ne!(by_flag, plain, "{flags:?} does something");
        assert_eq!(
            by_flag,
            with(&[], &[variables, &[("THANE_JSON", "true")]].concat()),
            "{variables:?}"
        );
    }
    assert_eq!(
        with(
            &["--max-tokens", "2", "--json"],
            &[("THANE_RUN_MAX_TOKENS", "3")]
        )
        .1
        .as_array()
        .unwrap()
        .len(),
        2
    );
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let model = chat_gguf();
    for verb in [&["run"][..], &["show"], &["inspect"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let prompt: &[&str] = if verb == ["run"] { &["hello"] } else { &[] };
        let mut command = Home::new().thane(&[verb, &[model.to_str().unwrap()], prompt].concat());
        let output = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_ends(&output, 0, &[]);
        assert_eq!(stderr(&output), "", "{verb:?}");
    }
}

#[test]
fn perplexity_is_that_of_transformers() {
    let home = Home::new();
    let expected = std::fs::read(chat_folder().join("expected.json")).unwrap();
    let expected = serde_json::from_slice::<Value>(&expected).unwrap()["perplexity"].clone();
    let wanted = expected["mean_nll"].as_f64().unwrap();
    std::fs::write(home.path("text"), expected["text"].as_str().unwrap()).unwrap();
    let file = home.path("text");
    // Measured: 1e-7 and, with fp16 in the cache, 4e-5. With fp16 after each op a part in 2^-11
    // here and there.
    for (numerics, bound) in [("f32", 1e-6), ("fast", 1e-3), ("ane", 1e-2)] {
        for model in [chat_gguf(), chat_folder()] {
            let args = [
                "perplexity",
                model.to_str().unwrap(),
                "--file",
                file.to_str().unwrap(),
                "--tokens",
                "500",
            ];
            let output = home.run(&[&args[..], &["--numerics", numerics, "--json"]].concat());
            assert_ends(&output, 0, &[]);
            let report = json(&output);
            let found = report["mean_nll"].as_f64().unwrap();
            assert!(
                (found - wanted).abs() < bound * wanted,
                "{numerics}: {found} and {wanted}"
            );
            assert!(
                (report["perplexity"].as_f64().unwrap() - found.exp()).abs() < 1e-9 * found.exp()
            );
        }
    }
}
