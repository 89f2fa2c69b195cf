//! Packages from end to end: converted, checked, run, predicted with, compared; and what is
//! refused.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::fixture::{
    Home, assert_ends, chat_folder, chat_gguf, conversion, json, processor_seconds, stderr, stdout,
    until,
};

/// A file as numpy.save writes it: int32 [1, n].
pub fn ids(ids: &[i32]) -> Vec<u8> {
    let mut header = format!(
        "{{'descr': '<i4', 'fortran_order': False, 'shape': (1, {}), }}",
        ids.len()
    );
    header.push_str(&" ".repeat(117 - header.len()));
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    file
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn convert(home: &Home, model: &Path, flags: &[&str]) -> (PathBuf, Output) {
    let package = home.path("model.mlpackage");
    let output = home.run(
        &[
            &conversion(text(model), text(&package), "--context 64"),
            flags,
        ]
        .concat(),
    );
    (package, output)
}

/// Every file below a folder and what is in it.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(folder).unwrap().to_owned();
                out.push((name, std::fs::read(entry.path()).unwrap()));
            }
        }
    }
    out.sort();
    out
}

/// Though the cache of a package is fp16, and that of a checkpoint in f32 is fp32.
#[test]
fn a_package_answers_as_its_checkpoint_does() {
    for model in [chat_gguf(), chat_folder()] {
        let home = Home::new();
        let (package, output) = convert(&home, &model, &[]);
        assert_ends(&output, 0, &[]);
        assert_eq!(stdout(&output).trim(), text(&package));
        let run = |model: &Path, numerics: &str| {
            let args = [
                "run",
                text(model),
                "hello",
                "--max-tokens",
                "12",
                "--json",
                "--numerics",
                numerics,
            ];
            json(&home.run(&[&args[..], &["--context", "64"]].concat()))
        };
        let (a, b) = (run(&model, "f32"), run(&package, "f32"));
        assert_eq!(a["tokens"], b["tokens"]);
        assert_eq!(
            (&a["text"], &a["prompt_tokens"]),
            (&b["text"], &b["prompt_tokens"])
        );
        assert!(a["tokens"].as_array().unwrap().len() > 3, "{a}");
        assert_ends(&home.run(&["check", text(&package)]), 0, &[]);
    }
}

#[test]
fn a_package_is_written_the_same_again() {
    let home = Home::new();
    let (package, _) = convert(&home, &chat_gguf(), &[]);
    let first = files(&package);
    assert_ends(
        &convert(&home, &chat_gguf(), &[]).1,
        2,
        &["exists already", "--force"],
    );
    assert_ends(&convert(&home, &chat_gguf(), &["--force"]).1, 0, &[]);
    assert_eq!(files(&package), first);
    let left: Vec<_> = home
        .files("")
        .into_iter()
        .filter(|n| n.contains("partial"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_was_changed_is_refused() {
    let home = Home::new();
    let (package, _) = convert(&home, &chat_gguf(), &[]);
    let language = package.join("Data/ai.thane/language.json");
    let mut bytes = std::fs::read(&language).unwrap();
    bytes.push(b' ');
    std::fs::write(&language, bytes).unwrap();
    let message = "`Data/ai.thane/language.json` is not what the contract says";
    assert_ends(&home.run(&["run", text(&package), "hello"]), 2, &[message]);
    assert_ends(&home.run(&["check", text(&package)]), 2, &[message]);
    let contract = package.join("Data/ai.thane/contract.json");
    let text_of = std::fs::read_to_string(&contract).unwrap();
    std::fs::write(&contract, text_of.replace("\"schema\": 5", "\"schema\": 9")).unwrap();
    assert_ends(
        &home.run(&["run", text(&package), "hello"]),
        2,
        &["expected schema 5, found 9"],
    );
    std::fs::remove_file(package.join("Data/com.apple.CoreML/weights/weight.bin")).unwrap();
    assert_ends(&home.run(&["check", text(&package)]), 2, &["weight.bin"]);
}

#[test]
fn flags_that_cannot_be_met_say_what_can() {
    let home = Home::new();
    assert_ends(
        &convert(&home, &chat_gguf(), &["--opset", "ios16"]).1,
        2,
        &["opset ios16", "--opset ios18"],
    );
    assert_ends(
        &convert(&home, &chat_gguf(), &["--min-os", "macos99"]).1,
        2,
        &["macos12 to macos15"],
    );
    assert_ends(
        &convert(&home, &chat_gguf(), &["--functions", "encode"]).1,
        2,
        &["`encode`", "prefill,decode"],
    );
    let (package, output) = convert(&home, &chat_gguf(), &["--functions", "decode"]);
    assert_ends(&output, 0, &[]);
    let said = [
        "it has the function decode only",
        "`prefill` is needed",
        "without --functions",
        "thane predict",
    ];
    assert_ends(&home.run(&["run", text(&package), "hello"]), 2, &said);
    assert_ends(
        &home.run(&["run", text(&package), "hello", "--context", "9"]),
        2,
        &["holds 64 tokens", "--context 9"],
    );
    let shown = stdout(&home.run(&["show", text(&package)]));
    for line in [
        "kind          Core ML package",
        "task          generates text (thane run)",
        "tokenizer     yes",
        "context       64 of 512 tokens",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}

/// Random positions, write ranges and masks would not be valid.
#[test]
fn generated_inputs_of_a_decoder_for_the_neural_engine_are_valid() {
    let home = Home::new();
    let (package, _) = convert(&home, &chat_gguf(), &["--form", "ane", "--block", "16"]);
    for (function, range) in [("prefill", "0 to 15"), ("decode", "0 to 0")] {
        let out = home.path(function);
        let args = ["predict", text(&package), "--function", function];
        let output = home.run(&[&args[..], &["-o", text(&out), "--json"]].concat());
        assert_ends(&output, 0, &[]);
        let report = json(&output);
        let inputs = report["inputs"].as_array().unwrap();
        let positions = inputs.iter().find(|i| i["name"] == "positions").unwrap();
        let made_up = positions["made_up"].as_str().unwrap();
        assert!(made_up.ends_with(range), "{made_up}");
        let logits = std::fs::read(out.join("logits.npy")).unwrap();
        assert!(logits.len() > 128 && !logits.ends_with(&[0; 8]));
    }
    let same = home.run(&["diff", text(&package), text(&package)]);
    assert_ends(&same, 0, &[]);
    // What cannot run says which inputs to give.
    let program = "program(1.3) { func main<ios18>(tensor<fp32, [4]> x, tensor<int32, [8]> i) {
        tensor<fp32, [8]> y = gather(x = x, indices = i, axis = int32(0), validate_indices = bool(true));
        tensor<fp32, [8]> z = gather(x = y, indices = i, axis = int32(0), validate_indices = bool(true)); } -> (z); }";
    let file = home.path("gather.mil");
    std::fs::write(&file, program.replace("[4]> x", "[1]> x")).unwrap();
    let failed = home.run(&["predict", text(&file), "-o", text(&home.path("z"))]);
    assert_ends(
        &failed,
        2,
        &["--input x=FILE --input i=FILE: these values were made up"],
    );
    assert!(
        !stderr(&failed).contains("(from ``)"),
        "{}",
        stderr(&failed)
    );
}

/// A state is refused by its size, with what a state may take, before memory is asked for.
#[test]
fn states_that_are_too_large_are_refused_by_their_size() {
    let home = Home::new();
    let program = "program(1.3) {
        func main<ios18>(tensor<fp16, [1, 64]> x, state<tensor<fp16, [1, 32, 100000000, 128]>> cache) {
        tensor<fp16, [1, 32, 100000000, 128]> old = read_state(input = cache);
        tensor<fp16, [1, 64]> y = relu(x = x); } -> (y); }";
    let file = home.path("big.mil");
    std::fs::write(&file, program).unwrap();
    let says = [
        "state `cache`, tensor<fp16, [1, 32, 100000000, 128]>, takes 819.2 GB of memory once it is \
         full, more than the 17.2 GB that a state may take",
        "--context",
    ];
    let out = home.path("out");
    for args in [
        &["predict", text(&file), "-o", text(&out)][..],
        &["bench", "predict", text(&file)],
    ] {
        assert_ends(&home.run(args), 2, &says);
    }
}

#[test]
fn npy_files_that_do_not_fit_are_refused_and_small_integers_fit() {
    let home = Home::new();
    let program = "program(1.3) { func main<ios18>(tensor<fp32, [1, 3]> x) {
        tensor<fp32, [1, 3]> y = relu(x = x); } -> (y); }";
    let (file, out) = (home.path("relu.mil"), home.path("out"));
    std::fs::write(&file, program).unwrap();
    let x = home.path("x.npy");
    let input = format!("x={}", text(&x));
    let args = [
        "predict",
        text(&file),
        "-o",
        text(&out),
        "--force",
        "--input",
        &input,
    ];
    assert_ends(&home.run(&args), 2, &["input `x`", "x.npy", "no such file"]);
    std::fs::write(&x, ids(&[7, 8, 9])).unwrap();
    assert_ends(
        &home.run(&args),
        2,
        &["expected elements of fp32, found int32", "numpy's astype"],
    );
    // The same as bytes.
    let mut bytes = ids(&[]);
    let at = bytes.windows(4).position(|w| w == b"<i4'").unwrap();
    bytes[at..at + 3].copy_from_slice(b"|u1");
    let at = bytes.windows(4).position(|w| w == b"1, 0").unwrap();
    bytes[at..at + 4].copy_from_slice(b"1, 3");
    bytes.extend([0, 128, 255]);
    std::fs::write(&x, bytes).unwrap();
    assert_ends(&home.run(&args), 0, &[]);
    let y = std::fs::read(out.join("y.npy")).unwrap();
    let due = [0f32, 128.0, 255.0].map(f32::to_le_bytes).concat();
    assert!(y.ends_with(&due));
    let onnx = home.path("x.onnx");
    std::fs::write(&onnx, b"\x08\x08\x12\x07pytorch\x1a\x052.6.0:").unwrap();
    for verb in [
        &["predict"][..],
        &["show"],
        &["inspect"],
        &["audit"],
        &["run"],
    ] {
        let mut args = [verb, &[text(&onnx)]].concat();
        match verb {
            ["predict"] => args.extend(["-o", text(&out)]),
            ["run"] => args.push("hello"),
            _ => {}
        }
        assert_ends(&home.run(&args), 2, &["ONNX"]);
    }
}

#[test]
fn predict_writes_outputs_and_states_that_go_in_again() {
    let home = Home::new();
    let (package, _) = convert(&home, &chat_gguf(), &[]);
    let (x, out) = (home.path("x.npy"), home.path("out"));
    std::fs::write(&x, ids(&[3, 1, 4, 1, 5])).unwrap();
    let tokens = format!("input_ids={}", text(&x));
    let base = [
        "predict",
        text(&package),
        "--function",
        "prefill",
        "--force",
        "--out",
        text(&out),
    ];
    let predict = |more: &[&str]| home.run(&[&base[..], more].concat());
    assert_ends(&predict(&["--input", &tokens]), 0, &[]);
    let first = std::fs::read(out.join("logits.npy")).unwrap();
    let cache = home.path("k.npy");
    std::fs::copy(out.join("k_cache_0.npy"), &cache).unwrap();
    let state = format!("k_cache_0={}", text(&cache));
    // Position 0 or 1 follows from the seed; what is before it in the cache counts.
    let seed = ["--input", &tokens, "--seed", "3"];
    assert_ends(&predict(&seed), 0, &[]);
    assert_ends(
        &predict(&[&seed[..], &["--state", &state]].concat()),
        0,
        &[],
    );
    assert!(first.len() > 200, "logits of a vocabulary");
    for (flags, message) in [
        (
            vec!["--input", "nothing=x.npy"],
            "has no input `nothing`; it has input_ids, position",
        ),
        (
            vec!["--state", "input_ids=x.npy"],
            "has no state `input_ids`",
        ),
        (vec!["--input", "input_ids=missing.npy"], "missing.npy"),
        (vec!["--shape", "input_ids=3"], "--shape input_ids=DIMS"),
        (
            vec!["--function", "encode"],
            "the package has no function `encode`",
        ),
    ] {
        let flags: Vec<&str> = flags.into_iter().collect();
        let output = if flags[0] == "--function" {
            home.run(&[
                "predict",
                text(&package),
                "--out",
                text(&out),
                flags[0],
                flags[1],
            ])
        } else {
            predict(&flags)
        };
        assert_ends(&output, 2, &[message]);
    }
}

#[test]
fn diff_tells_equal_packages_from_others() {
    let home = Home::new();
    let (package, _) = convert(&home, &chat_gguf(), &[]);
    let same = home.run(&["diff", text(&package), text(&package)]);
    assert_ends(&same, 0, &[]);
    assert!(
        stdout(&same).contains("the packages are equal"),
        "{}",
        stdout(&same)
    );
    let other = home.path("other.mlpackage");
    assert_ends(
        &home.run(&conversion(
            text(&chat_folder()),
            text(&other),
            "--context 64",
        )),
        0,
        &[],
    );
    let differs = home.run(&["diff", text(&package), text(&other)]);
    assert_ends(&differs, 1, &["the packages differ"]);
    assert!(stdout(&differs).lines().count() > 2, "{}", stderr(&differs));
}

#[test]
fn inspect_reads_packages() {
    let home = Home::new();
    let (package, _) = convert(&home, &chat_gguf(), &[]);
    let stats = stdout(&home.run(&["inspect", text(&package), "--stats"]));
    for line in [
        "function   prefill, opset ios18",
        "state    k_cache_0",
        "input    input_ids  tensor<int32, [1, ?]>",
        "constants",
    ] {
        assert!(stats.contains(line), "{line}: {stats}");
    }
    assert_ends(
        &home.run(&["inspect", text(&package), "--function", "decode"]),
        0,
        &[],
    );
}

#[test]
fn a_compiled_model_is_the_package_in_another_form() {
    let home = Home::new();
    let gguf = chat_gguf();
    let (package, _) = convert(&home, &gguf, &[]);
    let compiled = home.path("model.mlmodelc");
    let args = conversion(text(&gguf), text(&compiled), "--context 64");
    assert_ends(&home.run(&args), 0, &["no place for a tokenizer"]);
    assert_ends(&home.run(&["check", text(&compiled)]), 0, &[]);
    let report = json(&home.run(&["diff", text(&package), text(&compiled), "--json"]));
    assert_eq!(report["constants"], serde_json::json!([]), "{report}");
    for numbers in report["numbers"].as_array().unwrap() {
        assert_eq!(
            (&numbers["max_error"], &numbers["reason"]),
            (&serde_json::json!(0.0), &serde_json::Value::Null)
        );
    }
    assert_ends(
        &home.run(&["run", text(&compiled), "hello"]),
        2,
        &["no contract", "thane predict"],
    );
}

/// A program of `n` rounds of a loop around a loop of as many, which double a vector of `len`.
fn loops(home: &Home, name: &str, n: usize, len: usize, op: &str) -> PathBuf {
    let (n, ty) = (
        format!("const()[val = tensor<int32, [1]>([{n}])]"),
        format!("tensor<fp32, [{len}]>"),
    );
    let program = format!(
        "program(1.3) {{ func main<ios18>({ty} x) {{
        tensor<int32, [1]> zero = const()[val = tensor<int32, [1]>([0])];
        tensor<int32, [1]> one = const()[val = tensor<int32, [1]>([1])];
        tensor<int32, [1]> n = {n};
        tensor<int32, [1]> end, {ty} y = while_loop(loop_vars = (zero, x)) {{
            block(tensor<int32, [1]> i, {ty} seen) {{
                tensor<bool, [1]> more = less(x = i, y = n); }} -> (more);
            block(tensor<int32, [1]> j, {ty} old) {{
                tensor<int32, [1]> next = add(x = j, y = one);
                tensor<int32, [1]> inner_end, {ty} new = while_loop(loop_vars = (zero, old)) {{
                    block(tensor<int32, [1]> k, {ty} inner_seen) {{
                        tensor<bool, [1]> on = less(x = k, y = n); }} -> (on);
                    block(tensor<int32, [1]> l, {ty} v) {{
                        tensor<int32, [1]> next_l = add(x = l, y = one);
                        {ty} w = {op}(x = v, y = x); }} -> (next_l, w); }};
            }} -> (next, new); }};
        }} -> (y); }}"
    );
    let file = home.path(name);
    std::fs::write(&file, program).unwrap();
    file
}

#[test]
fn nested_loops_end() {
    let home = Home::new();
    let [a, b] = ["add", "mul"].map(|op| loops(&home, &format!("{op}.mil"), 100_000, 1, op));
    let says = ["expected at most 1000000 rounds of all loops of a call"];
    let out = home.path("out");
    let predict = ["predict", text(&a), "-o", text(&out)];
    assert_ends(&home.run(&predict), 2, &says);
    let diff = home.run(&["diff", text(&a), text(&b)]);
    assert_ends(&diff, 2, &["the numbers cannot be compared"]);
    assert!(stdout(&diff).contains(says[0]), "{}", stdout(&diff));
}

#[cfg(unix)]
#[test]
fn a_loop_can_be_interrupted() {
    let home = Home::new();
    // Many minutes of work, within what loops may do.
    let [program, other] =
        ["add", "mul"].map(|op| loops(&home, &format!("{op}.mil"), 500, 1 << 20, op));
    let out = home.path("out");
    let diff = ["diff", text(&program), text(&other)];
    for args in [&["predict", text(&program), "-o", text(&out)][..], &diff] {
        let mut command = home.thane(args);
        command.stderr(std::process::Stdio::piped());
        let child = command.spawn().unwrap();
        // Long after all that comes before the loop.
        until("the loop runs", || processor_seconds(&child) > 0);
        let pid = child.id().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-INT", &pid])
            .status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_ends(&output, 130, &["thane: interrupted"]);
        assert!(!out.exists());
    }
}

/// Who shares a folder of models must not be able to stop a program that reads one.
#[cfg(unix)]
#[test]
fn pipes_in_the_place_of_files_are_not_waited_for() {
    let home = Home::new();
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    let copy = home.path("model");
    for (i, entry) in std::fs::read_dir(chat_folder()).unwrap().enumerate() {
        let name = entry.unwrap().file_name();
        let _ = std::fs::remove_dir_all(&copy);
        std::fs::create_dir(&copy).unwrap();
        for other in std::fs::read_dir(chat_folder()).unwrap().flatten() {
            let to = copy.join(other.file_name());
            match other.file_name() == name {
                // A link to a pipe is as bad.
                true if i % 2 == 0 => {
                    pipe(&home.path(&format!("pipe{i}")));
                    std::os::unix::fs::symlink(home.path(&format!("pipe{i}")), to).unwrap();
                }
                true => pipe(&to),
                false => drop(std::fs::copy(other.path(), to).unwrap()),
            }
        }
        // A file that is not needed may be a pipe: that it ends is what counts.
        for args in [&["show"][..], &["run", "--max-tokens", "1", "--raw"]] {
            let mut args = args.to_vec();
            args.insert(1, text(&copy));
            if args[0] == "run" {
                args.push("hello");
            }
            let code = home.run(&args).status.code();
            assert!(matches!(code, Some(0..=3)), "{name:?}: {args:?}: {code:?}");
        }
    }
    let (package, _) = convert(&home, &chat_gguf(), &[]);
    for name in home.files("model.mlpackage") {
        let file = package.join(&name);
        let aside = home.path("aside");
        std::fs::rename(&file, &aside).unwrap();
        pipe(&file);
        for verb in ["check", "verify", "inspect"] {
            let code = home.run(&[verb, text(&package)]).status.code();
            // What a command does not read does not matter to it.
            let is_refused = code != Some(0) || verb == "inspect";
            assert!(code.is_some() && is_refused, "{verb}: {name}: {code:?}");
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::rename(&aside, &file).unwrap();
    }
    assert_ends(&home.run(&["check", text(&package)]), 0, &[]);
}
