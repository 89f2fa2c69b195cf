//! What cannot be: the exit code, a message that names it, and nothing on stdout.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::fixture::{Home, assert_ends, chat_folder, chat_gguf, conversion, stderr};
use crate::gguf::Gguf;

const TOKENS: &str = "tokenizer.ggml.tokens";

/// `thane ARGS` ends with 2, says `texts`, and gives no data.
#[track_caller]
fn refuses(home: &Home, args: &[&str], texts: &[&str]) {
    let output = home.run(args);
    assert_ends(&output, 2, texts);
    assert_eq!(output.stdout.len(), 0, "{args:?}");
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
}

fn write(home: &Home, name: &str, bytes: &[u8]) -> String {
    std::fs::write(home.path(name), bytes).unwrap();
    home.path(name).to_str().unwrap().to_owned()
}

/// A copy of the tiny model's folder; `change` may mend its `tokenizer.json`.
fn folder(home: &Home, name: &str, change: impl FnOnce(&mut Value)) -> String {
    std::fs::create_dir(home.path(name)).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer_config.json"] {
        std::fs::copy(chat_folder().join(file), home.path(name).join(file)).unwrap();
    }
    let bytes = std::fs::read(chat_folder().join("tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&bytes).unwrap();
    change(&mut json);
    std::fs::write(home.path(name).join("tokenizer.json"), json.to_string()).unwrap();
    home.path(name).to_str().unwrap().to_owned()
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are cases")]
fn a_command_line_that_is_wrong() {
    let (home, model) = (Home::new(), chat_gguf());
    let model = model.to_str().unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["run"],
            &[
                "required arguments were not provided",
                "<MODEL>",
                "Usage: thane run",
            ],
        ),
        (&["walk"], &["unrecognized subcommand 'walk'"]),
        (
            &["pul", "smollm2-135m"],
            &["a similar subcommand exists: 'pull'"],
        ),
        (
            &["run", model, "hello", "--max-token", "3"],
            &["a similar argument exists: '--max-tokens'"],
        ),
        (
            &["run", model, "hello", "--bogus"],
            &["unexpected argument '--bogus' found", "Usage: thane run"],
        ),
        (
            &["run", model, "hello", "--temperature", "-1"],
            &["--temperature is -1, but must be 0 or more"],
        ),
        (
            &["run", model, "hello", "--temperature", "nan"],
            &["--temperature is NaN, but must be 0 or more"],
        ),
        (
            &["run", model, "hello", "--temperature", "warm"],
            &["invalid value 'warm' for '--temperature"],
        ),
        (
            &["run", model, "hello", "--top-p", "1.5"],
            &["--top-p is 1.5, but must be above 0 and at most 1"],
        ),
        (
            &["run", model, "hello", "--min-p", "-0.1"],
            &["--min-p is -0.1, but must be from 0 to 1"],
        ),
        (
            &["run", model, "hello", "--repetition-penalty", "0"],
            &["--repetition-penalty is 0, but must be above 0"],
        ),
        (
            &["run", model, "hello", "--presence-penalty", "inf"],
            &["--presence-penalty is inf, but must be a finite"],
        ),
        (
            &["run", model, "hello", "--threads", "0"],
            &["invalid value '0' for '--threads", "1..=1024"],
        ),
        (
            &["run", model, "hello", "--numerics", "f16"],
            &[
                "invalid value 'f16'",
                "[possible values: f32, fast, int8, ane]",
            ],
        ),
        (
            &["run", model, "hello", "--context", "0"],
            &[
                "expected a context length from 1 to 512",
                "try: --context 1 to 512",
            ],
        ),
        (
            &["run", model, "hello", "--context", "513"],
            &["the number of positions of the model, found 513"],
        ),
        (
            &["run", model, "hello", "--raw", "--system", "Be."],
            &["'--raw' cannot be used with '--system"],
        ),
        (
            &["inspect", model, "--function", "walk"],
            &["no function `walk`", "try: --function prefill or decode"],
        ),
        (&["perplexity", model], &["--file <FILE>"]),
        (
            &["perplexity", model, "--file", "/nowhere"],
            &["/nowhere", "No such file"],
        ),
        (
            &["perplexity", model, "--file", model, "--tokens", "1"],
            &["invalid value '1' for '--tokens"],
        ),
    ];
    for (args, texts) in cases {
        refuses(&home, args, texts);
    }
}

#[test]
fn a_variable_that_is_wrong_is_named() {
    let model = chat_gguf();
    let mut command = Home::new().thane(&["run", model.to_str().unwrap(), "hello"]);
    let output = command.env("THANE_RUN_THREADS", "many").output().unwrap();
    assert_ends(&output, 2, &["invalid value 'many' for '--threads <N>'"]);
}

#[test]
fn a_prompt_that_is_empty_or_no_text() {
    let (home, model) = (Home::new(), chat_gguf());
    let model = model.to_str().unwrap();
    for prompt in ["", "  \n"] {
        refuses(
            &home,
            &["run", model, prompt],
            &["the prompt is empty", "try: thane run MODEL \"a prompt\""],
        );
    }
    // This vocabulary has no token that begins a text, so that there is nothing to go on from.
    refuses(
        &home,
        &["run", model, "", "--raw"],
        &[
            "expected a prompt of at least one token",
            "try: a prompt that is not empty",
        ],
    );
    for (text, said) in [
        (&b""[..], "the prompt is empty"),
        (b"\n", "the prompt is empty"),
        (b"a\xffb", "UTF-8"),
    ] {
        let mut command = home.thane(&["run", model]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text).unwrap();
        assert_ends(&child.wait_with_output().unwrap(), 2, &[said]);
    }
}

#[test]
fn a_prompt_that_is_longer_than_the_context() {
    let (home, model) = (Home::new(), chat_gguf());
    let model = model.to_str().unwrap();
    // 16 tokens, 14 of them the template's.
    refuses(
        &home,
        &["run", model, "hello", "--context", "16"],
        &[
            "expected a prompt shorter than the context of 16 tokens, because the answer needs at \
             least one, found 16 tokens",
            "try: --context 512, or up to the model's 512",
        ],
    );
    let long = "x".repeat(600);
    refuses(
        &home,
        &["run", model, &long],
        &[
            "expected a prompt shorter than the context of 512 tokens",
            "try: a shorter prompt: the model has 512 positions",
        ],
    );
    let file = write(&home, "text", long.as_bytes());
    refuses(
        &home,
        &["perplexity", model, "--file", &file],
        &[
            "600 tokens are to be looked at, the context holds 512",
            "try: --tokens 513",
        ],
    );
    let few = [
        "perplexity",
        model,
        "--file",
        &file,
        "--context",
        "10",
        "--tokens",
        "100",
    ];
    refuses(
        &home,
        &few,
        &[
            "100 tokens",
            "the context holds 10",
            "try: --tokens 11",
            "try: --context 100",
        ],
    );
    let file = write(&home, "text", b"x");
    refuses(
        &home,
        &["perplexity", model, "--file", &file],
        &["has fewer than two tokens"],
    );
}

#[test]
fn what_is_no_model() {
    let home = Home::new();
    std::fs::create_dir(home.path("empty")).unwrap();
    let empty = home.path("empty");
    let text = write(&home, "text.gguf", b"#!/bin/sh\n");
    let nothing = write(&home, "nothing.gguf", b"");
    let cut = std::fs::read(chat_gguf()).unwrap();
    let cut = write(&home, "cut.gguf", &cut[..cut.len() - 1000]);
    let cases: &[(&str, &[&str])] = &[
        (
            "nosuch",
            &[
                "unknown model `nosuch`",
                "smollm2-135m",
                "gemma3-270m",
                "hf:org/name",
            ],
        ),
        ("./nosuch.gguf", &["no such file or folder: ./nosuch.gguf"]),
        (
            empty.to_str().unwrap(),
            &[
                "/empty",
                "has no config.json",
                "a Hugging Face folder or a GGUF file",
            ],
        ),
        (
            &text,
            &["text.gguf", "not a GGUF file", "instead of \"GGUF\""],
        ),
        (&nothing, &["nothing.gguf", "not a GGUF file"]),
        (&cut, &["cut.gguf", "truncated or damaged"]),
    ];
    for (spec, texts) in cases {
        for verb in [&["run"][..], &["show"], &["inspect"]] {
            let prompt: &[&str] = if verb == ["run"] { &["hello"] } else { &[] };
            refuses(&home, &[verb, &[*spec], prompt].concat(), texts);
        }
    }
}

#[test]
fn a_model_without_tokenizer_can_be_looked_at_and_not_run() {
    let home = Home::new();
    let bare = write(
        &home,
        "bare.gguf",
        &Gguf::tiny_chat().without(TOKENS).bytes(),
    );
    refuses(
        &home,
        &["run", &bare, "hello"],
        &[
            "bare.gguf",
            "the file has no tokenizer (key tokenizer.ggml.tokens)",
        ],
    );
    let bare_folder = folder(&home, "bare", |_| {});
    std::fs::remove_file(Path::new(&bare_folder).join("tokenizer.json")).unwrap();
    refuses(
        &home,
        &["run", &bare_folder, "hello"],
        &["/bare", "the folder has no tokenizer.json"],
    );
    for model in [&bare, &bare_folder] {
        assert_ends(&home.run(&["show", model]), 0, &[]);
        assert_ends(&home.run(&["inspect", model]), 0, &[]);
    }
}

#[test]
fn a_tokenizer_that_does_not_match_the_model() {
    let home = Home::new();
    let gguf = Gguf::tiny_chat().with_strings(TOKENS, |tokens| drop(tokens.pop()));
    let short = write(&home, "short.gguf", &gguf.bytes());
    refuses(
        &home,
        &["run", &short, "hello"],
        &["short.gguf", "281", "282"],
    );
    let more = folder(&home, "more", |json| {
        json["model"]["vocab"]["more"] = 282.into()
    });
    refuses(&home, &["run", &more, "hello"], &["/more", "283", "282"]);
    let cases = [
        (
            Gguf::tiny_chat().with_u32("tokenizer.ggml.eos_token_id", 282),
            "eos_token_id",
        ),
        (
            Gguf::tiny_chat().with_string("tokenizer.ggml.pre", "viking"),
            "pre-tokenizer 'viking' is not supported",
        ),
        (
            Gguf::tiny_chat().with_string("tokenizer.ggml.model", "abacus"),
            "abacus",
        ),
        (
            Gguf::tiny_chat().with_string("tokenizer.chat_template", "{% if %}"),
            "the chat template is not valid",
        ),
    ];
    for (gguf, text) in cases {
        let file = write(&home, "wrong.gguf", &gguf.bytes());
        refuses(&home, &["run", &file, "hello"], &["wrong.gguf", text]);
    }
}

#[test]
fn a_template_that_refuses_the_conversation() {
    let home = Home::new();
    let template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}\
                    {% endif %}{{ m.content }}{% endfor %}";
    let gguf = Gguf::tiny_chat().with_string("tokenizer.chat_template", template);
    let file = write(&home, "strict.gguf", &gguf.bytes());
    refuses(
        &home,
        &["run", &file, "hello", "--system", "Be."],
        &["rejected the conversation: no system role"],
    );
}

#[test]
fn a_model_without_template_says_so_and_refuses_a_system_text() {
    let home = Home::new();
    let plain = write(
        &home,
        "plain.gguf",
        &Gguf::tiny_chat().without("tokenizer.chat_template").bytes(),
    );
    let output = home.run(&["run", &plain, "hello", "--max-tokens", "3"]);
    assert_ends(
        &output,
        0,
        &["the model has no chat template: it goes on from the prompt as it is"],
    );
    let raw = home.run(&["run", &plain, "hello", "--max-tokens", "3", "--raw"]);
    assert_ends(&raw, 0, &[]);
    let cut = "thane: the answer was cut after --max-tokens 3\n";
    assert_eq!((&raw.stdout, stderr(&raw).as_str()), (&output.stdout, cut));
    refuses(
        &home,
        &["run", &plain, "hello", "--system", "Be."],
        &["no chat template, so --system has no place"],
    );
}

#[test]
fn weights_that_are_no_numbers() {
    let home = Home::new();
    let text = write(&home, "text", b"the air and the sea");
    for value in [f32::NAN, f32::INFINITY] {
        let file = write(
            &home,
            "norm.gguf",
            &Gguf::tiny_chat()
                .with_value("output_norm.weight", value)
                .bytes(),
        );
        refuses(
            &home,
            &["run", &file, "hello"],
            &[
                "norm.gguf",
                "`output_norm.weight` is ",
                " at [0]",
                "not finite",
                "--check",
            ],
        );
        // Large weights are not read before they are used; they show in the logits.
        for tensor in ["blk.0.attn_v.weight", "blk.1.ffn_down.weight"] {
            let file = write(
                &home,
                "nan.gguf",
                &Gguf::tiny_chat().with_value(tensor, value).bytes(),
            );
            let said = [
                "the model's logits are no numbers",
                "because: ",
                "try: fetch the model again, or convert it again",
            ];
            refuses(&home, &["run", &file, "hello", "--numerics", "f32"], &said);
            refuses(
                &home,
                &["run", &file, "hello"],
                &[&said[..], &["try: --numerics f32"]].concat(),
            );
            refuses(
                &home,
                &["perplexity", &file, "--file", &text, "--json"],
                &said,
            );
        }
    }
}

#[test]
fn a_contract_that_contradicts_its_program_is_refused() {
    let home = Home::new();
    let (model, package) = (folder(&home, "model", |_| ()), home.path("p.mlpackage"));
    let out = package.to_str().unwrap();
    let convert = ["convert", &model, "-o", out, "--context", "64"];
    assert_ends(&home.run(&convert), 0, &[]);
    let file = package.join("Data/ai.thane/contract.json");
    let whole: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for (key, value) in [("context", 10u64.pow(18)), ("vocabulary", 5)] {
        let mut contract = whole.clone();
        contract["model"][key] = value.into();
        std::fs::write(&file, contract.to_string()).unwrap();
        let says = [
            "contract.json: expected a",
            key,
            &format!("found {value}; convert again"),
        ];
        refuses(&home, &["check", out], &says);
        refuses(&home, &["run", out, "hello"], &says);
    }
}

/// Where files of a repository are opened that Git LFS has not fetched: what they are, and what
/// fetches them.
#[test]
fn git_lfs_pointers_say_what_to_do() {
    let home = Home::new();
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2147\nsize 12345\n";
    let says = [
        "is a Git LFS pointer, not the file itself: run `git lfs pull`",
        "or download the file itself",
    ];
    let gguf = write(&home, "model.gguf", pointer);
    refuses(&home, &["run", &gguf, "hello"], &says);
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        let name = format!("folder of {file}");
        let model = folder(&home, &name, |_| ());
        std::fs::write(home.path(&name).join(file), pointer).unwrap();
        let output = home.run(&["run", &model, "hello"]);
        assert_ends(&output, 2, &says);
        assert!(stderr(&output).contains(file), "{}", stderr(&output));
    }
    let (whole, path) = (folder(&home, "whole", |_| ()), home.path("model.mlpackage"));
    let package = path.to_str().unwrap();
    for file in [
        "Manifest.json",
        "Data/com.apple.CoreML/model.mlmodel",
        "Data/com.apple.CoreML/weights/weight.bin",
        "Data/ai.thane/tokenizer.json",
        "Data/ai.thane/contract.json",
    ] {
        assert_ends(
            &home.run(&["convert", &whole, "-o", package, "--context", "64"]),
            0,
            &[],
        );
        std::fs::write(path.join(file), pointer).unwrap();
        let output = home.run(&["run", package, "hello"]);
        assert_ends(&output, 2, &says);
        assert!(
            stderr(&output).contains(file),
            "{file}: {}",
            stderr(&output)
        );
        std::fs::remove_dir_all(&path).unwrap();
    }
    let compiled = home.path("model.mlmodelc");
    let args = conversion(&whole, compiled.to_str().unwrap(), "--context 64");
    assert_ends(&home.run(&args), 0, &[]);
    std::fs::write(compiled.join("coremldata.bin"), pointer).unwrap();
    assert_ends(&home.run(&["check", compiled.to_str().unwrap()]), 2, &says);
}

/// Files of other kinds, by what they are and the verb that takes them.
#[test]
fn mil_text_and_mlmodel_files_are_called_what_they_are() {
    let home = Home::new();
    let text = write(
        &home,
        "program.mil",
        b"program(1.3)\n[buildInfo = dict<string, string>({})]\n{\n}\n",
    );
    // The beginning of a neural network: version 1, then its description.
    let network = write(
        &home,
        "network.mlmodel",
        &[0x08, 0x01, 0x12, 0x02, 0x0a, 0x00, 0xa2, 0x1f, 0x00],
    );
    let (audit, coremltools) = ("MIL text", "convert_to=\"mlprogram\"");
    write(&home, "x", b"the air and the sea");
    for (verb, flags) in [
        ("run", &["hello"][..]),
        ("show", &[]),
        ("perplexity", &["--file", "x"]),
        ("convert", &["-o", "x.mlpackage"]),
    ] {
        for (file, said) in [
            (
                &text,
                [
                    audit,
                    "try: thane audit or thane bisect, which read MIL text",
                ],
            ),
            (&network, [".mlmodel", coremltools]),
        ] {
            let args = [&[verb, file.as_str()], flags].concat();
            let output = home
                .thane(&args)
                .current_dir(home.path(""))
                .output()
                .unwrap();
            assert_ends(&output, 2, &said);
        }
    }
    // These take MIL text too.
    let (out, said) = (home.path("out"), [".mlmodel", coremltools]);
    assert_ends(&home.run(&["check", &network]), 2, &said);
    assert_ends(
        &home.run(&["predict", &network, "--out", out.to_str().unwrap()]),
        2,
        &said,
    );
}

#[test]
fn a_prompt_whose_tokens_are_beyond_the_memory() {
    let home = Home::new();
    let model = folder(&home, "model", |_| ());
    // A template makes a long prompt of a short one: 256 times 4,096 letters.
    let settings = serde_json::json!({"chat_template": "{% for i in range(256) %}{{ messages[0].content }}{% endfor %}"});
    std::fs::write(
        home.path("model/tokenizer_config.json"),
        settings.to_string(),
    )
    .unwrap();
    let said = "the tokens of a prompt of 1048576 bytes";
    refuses(
        &home,
        &["run", &model, &"a".repeat(4096), "--memory", "300MB"],
        &[said, "--memory"],
    );
    let text = write(&home, "text", &[b'a'; 1 << 20]);
    let args = ["perplexity", &model, "--file", &text, "--memory", "300MB"];
    refuses(&home, &args, &["the tokens of", "--memory"]);
}

#[test]
fn a_switch_in_the_environment_is_a_yes_or_a_no() {
    let home = Home::new();
    for variable in ["THANE_OPS_MISSING", "THANE_QUIET"] {
        let with = |value| home.thane(&["ops"]).env(variable, value).output().unwrap();
        assert_ends(
            &with("bogus"),
            2,
            &["invalid value 'bogus'", variable, "yes or no"],
        );
        for value in ["true", "0", "Yes", "off", ""] {
            assert_ends(&with(value), 0, &[]);
        }
    }
}

/// Opening a pipe would wait for its other end.
#[cfg(unix)]
#[test]
fn texts_are_read_from_no_pipe_with_a_name() {
    let home = Home::new();
    let (model, pipe, out) = (
        chat_folder(),
        home.path("pipe.txt"),
        home.path("out.mlpackage"),
    );
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let [model, pipe, out] = [&model, &pipe, &out].map(|path| path.to_str().unwrap());
    let said = ["pipe.txt", "expected a regular file, found a pipe"];
    refuses(&home, &["perplexity", model, "--file", pipe], &said);
    let args = [
        "convert",
        model,
        "--form",
        "ane",
        "--calibrate",
        pipe,
        "-o",
        out,
    ];
    refuses(&home, &args, &said);
}

#[test]
fn a_head_gives_no_more_than_the_vocabulary() {
    let home = Home::new();
    let (model, out) = (chat_folder(), home.path("out.mlpackage"));
    let head = ["--form", "ane", "--head", "top1099511627776"];
    let args = [
        "convert",
        model.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
    ];
    let said = ["1099511627776", "the vocabulary"];
    refuses(&home, &[&args[..], &head].concat(), &said);
}
