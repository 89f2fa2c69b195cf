//! `thane convert`: what it refuses, what it keeps, and what it leaves behind.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::embed::model;
use crate::fixture::{
    Home, assert_ends, chat_folder, chat_gguf, conversion, json as parsed, stderr, stdout, until,
};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models/tiny")
        .join(name)
}

/// A copy of a model's folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Set the element at `index` of an F32 tensor of a folder's `model.safetensors`.
fn set(folder: &Path, tensor: &str, index: usize, value: f32) {
    let path = folder.join("model.safetensors");
    let mut file = std::fs::read(&path).unwrap();
    let data = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize + 8;
    let header: Value = serde_json::from_slice(&file[8..data]).unwrap();
    assert_eq!(header[tensor]["dtype"], "F32", "{tensor}");
    let at = data + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize + 4 * index;
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    std::fs::write(path, file).unwrap();
}

/// Names beside each other that are not whole outputs.
fn partials(home: &Home) -> Vec<String> {
    home.files("")
        .into_iter()
        .filter(|name| name.contains("partial"))
        .collect()
}

/// Tensor, index, value and what to do; nothing is written, in either task and either form.
#[test]
fn weights_that_are_not_finite_or_beyond_fp16_are_refused() {
    let home = Home::new();
    let out = home.path("model.mlpackage");
    let refused = |folder: &Path, flags: &[&str], parts: &[&str]| {
        let output = home.run(&[&["convert", text(folder), "-o", text(&out)], flags].concat());
        assert_ends(&output, 2, parts);
        assert!(!out.exists() && partials(&home).is_empty(), "{flags:?}");
    };
    let decoder = home.path("decoder");
    copy(&tiny("llama-bias"), &decoder);
    // Row 3, column 7 of [61, 54].
    let tensor = "model.layers.1.mlp.up_proj.weight";
    for (value, shown) in [
        (f32::NAN, "NaN"),
        (f32::INFINITY, "inf"),
        (f32::NEG_INFINITY, "-inf"),
    ] {
        set(&decoder, tensor, 3 * 54 + 7, value);
        let said = format!("`{tensor}` is {shown} at [3, 7]");
        for form in ["portable", "ane"] {
            refused(
                &decoder,
                &["--form", form, "--context", "64"],
                &[&said, "not finite", "try: thane pull"],
            );
        }
    }
    set(&decoder, tensor, 3 * 54 + 7, 1e6);
    let said = format!("`{tensor}` is 1e6 at [3, 7], which overflows fp16 (at most 65504)");
    refused(
        &decoder,
        &["--form", "ane", "--context", "64"],
        &[&said, "try: --form portable"],
    );
    // What is written to the residual stream is over a divisor, and fits.
    set(&decoder, tensor, 3 * 54 + 7, 0.5);
    set(&decoder, "model.layers.1.mlp.down_proj.weight", 5, 1e5);
    let taken = |flags: &[&str]| {
        let args = conversion(text(&decoder), text(&out), "--context 64");
        assert_ends(&home.run(&[&args[..], flags].concat()), 0, &[]);
        std::fs::remove_dir_all(&out).unwrap();
    };
    taken(&["--form", "ane"]);
    // The name before.
    taken(&["--form", "engine"]);
    set(&decoder, tensor, 3 * 54 + 7, 1e6);
    taken(&[]);

    let encoder = home.path("encoder");
    copy(&model("bert-mean"), &encoder);
    set(
        &encoder,
        "embeddings.position_embeddings.weight",
        42 * 9 + 4,
        f32::NAN,
    );
    let said = [
        "`embeddings.position_embeddings.weight` is NaN at [9, 4]",
        "not finite",
    ];
    for flags in [
        &["--task", "embed"][..],
        &["--task", "embed", "--layout", "folder"],
        &[],
    ] {
        refused(&encoder, flags, &said);
    }
}

/// Vision tensors and others that no program reads may hold what they like.
#[test]
fn weights_that_no_program_reads_are_not_judged() {
    let home = Home::new();
    let (folder, out) = (home.path("encoder"), home.path("model.mlpackage"));
    copy(&model("bert-mean"), &folder);
    set(&folder, "pooler.dense.weight", 3, f32::NAN);
    let convert = conversion(text(&folder), text(&out), "--buckets 16 --task embed");
    assert_ends(&home.run(&convert), 0, &[]);
}

#[test]
fn an_embedding_model_is_called_one_and_the_commands_that_take_it_work() {
    let home = Home::new();
    let (bert, out) = (model("bert-mean"), home.path("model.mlpackage"));
    let embeds = format!("try: thane embed {} TEXT", bert.display());
    let converts = format!(
        "try: thane convert {} --task embed -o PACKAGE.mlpackage",
        bert.display()
    );
    let said = [
        "architecture `bert` is an embedding model",
        &embeds,
        &converts,
    ];
    for args in [
        &["run", text(&bert), "hello"][..],
        &["bench", "decode", text(&bert)],
    ] {
        assert_ends(&home.run(args), 2, &said[..1]);
    }
    let shown = home.run(&["show", text(&bert)]);
    assert_ends(&shown, 0, &[]);
    let shown = stdout(&shown);
    for part in [
        "architecture  bert, ",
        " dimensions, mean pooling, of length 1",
        " positions",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    assert_ends(&home.run(&["run", text(&bert), "hello"]), 2, &said);
    assert_ends(
        &home.run(&conversion(text(&bert), text(&out), "--task generate")),
        2,
        &said,
    );
    assert_ends(&home.run(&["embed", text(&bert), "hello"]), 0, &[]);
    // Without a task, the model says which; also where its architecture can be either.
    for name in ["bert-mean", "qwen3-embedding"] {
        let output = home.run(&conversion(
            text(&model(name)),
            text(&out),
            "--force --buckets 16",
        ));
        assert_ends(&output, 0, &["is an embedding model: --task embed"]);
        assert_ends(&home.run(&["embed", text(&out), "hello"]), 0, &[]);
    }
    let chat = chat_folder();
    // Any decoder can embed, if its files say how.
    for args in [
        &["embed", text(&chat), "hello"][..],
        &conversion(text(&chat), text(&out), "--task embed --force"),
    ] {
        assert_ends(
            &home.run(args),
            2,
            &["modules.json is missing", "try: --pooling mean, cls"],
        );
    }
}

#[test]
fn flags_of_the_other_task_are_refused_with_the_reason() {
    let home = Home::new();
    let (out, chat, bert) = (
        home.path("model.mlpackage"),
        chat_folder(),
        model("bert-mean"),
    );
    for flag in [
        &["--buckets", "16"][..],
        &["--pooling", "mean"],
        &["--no-flexible"],
        &["--chunks"],
        &["--layout", "folder"],
    ] {
        let args = [&["convert", text(&chat), "-o", text(&out)], flag].concat();
        let said = format!(
            "{} is for embedding models, and this package generates answers",
            flag.join(" ")
        );
        let said = said.replace(" 16 ", " ").replace(" mean ", " ");
        assert_ends(&home.run(&args), 2, &[&said, "or --task embed"]);
    }
    for flag in [
        &["--context", "64"][..],
        &["--functions", "decode"],
        &["--opset", "ios18"],
    ] {
        let args = [
            &["convert", text(&bert), "--task", "embed", "-o", text(&out)],
            flag,
        ]
        .concat();
        assert_ends(
            &home.run(&args),
            2,
            &[&format!("{} is for language models", flag[0])],
        );
    }
    assert!(!out.exists());
}

/// A package that a target cannot load is refused, with flags that make one which it loads.
#[test]
fn old_systems_get_packages_that_they_load() {
    let home = Home::new();
    let (bert, out) = (model("bert-mean"), home.path("old.mlpackage"));
    let folder = home.path("old");
    let args = ["convert", text(&bert), "--buckets", "8,16"];
    let run = |more: &[&str]| home.run(&[&args[..], more].concat());
    let told = [
        "several functions in one package",
        "try: --layout folder --no-flexible -o FOLDER",
        "try: --buckets 128 --no-flexible",
    ];
    for old in [
        &["--target", "a17-pro+ios17"][..],
        &["--min-os", "ios17"],
        &["--target", "a17-pro", "--min-os", "macos14"],
    ] {
        let refused = run(&[old, &["-o", text(&out)]].concat());
        assert_ends(&refused, 2, &told);
        assert!(!stderr(&refused).contains("language model"));
        assert!(!out.exists());
    }
    let old = ["--target", "a17-pro+ios17", "--layout", "folder"];
    let refused = run(&[&old[..], &["-o", text(&folder)]].concat());
    assert_ends(
        &refused,
        2,
        &["the function of any length", "try: --no-flexible"],
    );
    let written = run(&[&old[..], &["--no-flexible", "-o", text(&folder)]].concat());
    assert_ends(&written, 0, &["audit for a17-pro+ios17"]);
    assert!(!stderr(&written).contains("ANE143"));
}

/// The default opset is the lowest, of decoders too; a system that reads no other form is told so
/// with a target of the same chip.
#[test]
fn a_decoder_of_one_function_is_written_in_the_lowest_opset() {
    let home = Home::new();
    let (chat, out) = (chat_folder(), home.path("decode.mlpackage"));
    let target = ["--target", "a17-pro+ios17"];
    let one = [
        "--kv",
        "explicit",
        "--functions",
        "decode",
        "--context",
        "32",
    ];
    let args = ["convert", text(&chat), "-o", text(&out)];
    let planned = home.run(&[&args[..], &target, &one].concat());
    let form = "try: --form ane --kv explicit --functions decode";
    assert_ends(&planned, 2, &["try: --target a17-pro+ios18", form]);
    let written = home.run(&[&args[..], &target, &one, &["--form", "ane"]].concat());
    assert_ends(&written, 0, &["decode", "audit for a17-pro+ios17"]);
    let said = stderr(&written);
    assert!(
        !said.contains("for ios18") && !said.contains("ANE143"),
        "{said}"
    );
    // Rules of packages count as those of ops, and few are listed.
    let system = ["--min-os", "ios15", "--form", "ane", "--force"];
    let refused = home.run(&[&args[..], &one, &system].concat());
    let said = stderr(&refused);
    assert_ends(
        &refused,
        2,
        &["opset ios15 cannot express this program", "try: --min-os"],
    );
    assert!(said.lines().count() < 16, "{said}");
}

#[test]
fn an_output_replaces_its_own_kind_and_no_input() {
    let home = Home::new();
    let folder = home.path("model");
    copy(&chat_folder(), &folder);
    let convert = |out: &str, flags: &[&str]| {
        home.run(
            &[
                &["convert", text(&folder), "-o", out, "--context", "64"],
                flags,
            ]
            .concat(),
        )
    };
    assert_ends(
        &convert(text(&folder), &["--force"]),
        2,
        &["it would replace the input"],
    );
    assert!(folder.join("config.json").is_file());
    let precious = home.path("precious.mlpackage");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("thesis.txt"), "years of work").unwrap();
    assert_ends(
        &convert(text(&precious), &["--force"]),
        2,
        &["exists and is no package", "remove it, or write elsewhere"],
    );
    let bert = model("bert-mean");
    let folder_of = conversion(
        text(&bert),
        text(&precious),
        "--layout folder --buckets 16 --force",
    );
    assert_ends(
        &home.run(&folder_of),
        2,
        &["exists and is no folder of packages"],
    );
    assert_eq!(
        std::fs::read_to_string(precious.join("thesis.txt")).unwrap(),
        "years of work"
    );
    // A compiled model replaces a compiled model.
    let compiled = home.path("model.mlmodelc");
    assert_ends(&convert(text(&compiled), &[]), 0, &[]);
    assert_ends(
        &convert(text(&compiled), &[]),
        2,
        &["exists already", "--force"],
    );
    let before = std::fs::metadata(compiled.join("model.mil")).unwrap().len();
    assert_ends(
        &convert(text(&compiled), &["--force", "--functions", "decode"]),
        0,
        &[],
    );
    assert!(std::fs::metadata(compiled.join("model.mil")).unwrap().len() < before);
    let out = home.path("bert.mlmodelc");
    let embed = ["convert", text(&bert), "-o", text(&out)];
    assert_ends(
        &home.run(&embed),
        2,
        &["compiled models hold language models only"],
    );
    assert!(partials(&home).is_empty());
}

/// A decoder whose embedding takes so many bytes of zeros, which the file does not have on disk.
fn sparse(folder: &Path, rows: usize) {
    copy(&tiny("llama-bias"), folder);
    let path = folder.join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let data = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize + 8;
    let mut header: Value = serde_json::from_slice(&file[8..data]).unwrap();
    let end = file.len() - data;
    let entry =
        json!({"dtype": "F32", "shape": [rows, 54], "data_offsets": [end, end + rows * 54 * 4]});
    header["lm_head.weight"] = entry;
    header["model.spare"] = header["model.embed_tokens.weight"].take();
    let spare = header["model.spare"].take();
    header.as_object_mut().unwrap().remove("model.spare");
    // The old table stays as one that nobody asks for.
    header["model.layers.0.rotary_emb.inv_freq"] = spare;
    header["model.embed_tokens.weight"] = json!({"dtype": "F32", "shape": [rows, 54], "data_offsets": [end + rows * 54 * 4, end + 2 * rows * 54 * 4]});
    let text = header.to_string();
    let head = [
        &(text.len() as u64).to_le_bytes()[..],
        text.as_bytes(),
        &file[data..],
    ]
    .concat();
    let len = head.len() + 2 * rows * 54 * 4;
    std::fs::write(&path, &head).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(len as u64)
        .unwrap();
    let config = folder.join("config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    json["vocab_size"] = json!(rows);
    json["tie_word_embeddings"] = json!(false);
    std::fs::write(config, json.to_string()).unwrap();
}

/// A conversion in the midst of writing the weights of a package of this name.
fn begun(home: &Home, out: &str, args: &[&str]) -> Child {
    begun_by(home, out, &mut home.thane(args))
}

fn begun_by(home: &Home, out: &str, command: &mut std::process::Command) -> Child {
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("weights are written", || {
        partials(home)
            .iter()
            .any(|name| name.contains(out) && name.ends_with("weight.bin"))
    });
    child
}

fn signal(child: &Child, signal: &str) {
    let done = std::process::Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(done.success());
}

#[test]
fn a_package_does_not_say_in_which_folder_its_model_was() {
    let home = Home::new();
    let mut packages = Vec::new();
    for folder in ["a", "b"] {
        std::fs::create_dir(home.path(folder)).unwrap();
        let model = home.path(folder).join("chat.gguf");
        std::fs::copy(chat_gguf(), &model).unwrap();
        let out = home.path(&format!("{folder}/out.mlpackage"));
        let args = ["convert", text(&model), "-o", text(&out), "--context", "64"];
        assert_ends(&home.run(&args), 0, &[]);
        let files = home.files(&format!("{folder}/out.mlpackage"));
        let read = |name: &String| (name.clone(), std::fs::read(out.join(name)).unwrap());
        packages.push(files.iter().map(read).collect::<Vec<_>>());
    }
    assert!(packages[0] == packages[1]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_hangup_that_is_ignored_ends_nothing() {
    let home = Home::new();
    let (big, out) = (home.path("big"), home.path("model.mlpackage"));
    sparse(&big, 600_000);
    let thane = env!("CARGO_BIN_EXE_thane");
    let script = r#"trap "" HUP; exec "$0" "$@""#;
    let mut command = std::process::Command::new("sh");
    home.surround(&mut command);
    command.args(["-c", script, thane, "convert", text(&big), "-o", text(&out)]);
    let child = begun_by(&home, "model", &mut command);
    signal(&child, "-HUP");
    assert_ends(&child.wait_with_output().unwrap(), 0, &[]);
    assert!(out.exists());
}

#[cfg(unix)]
#[test]
fn a_limit_of_file_sizes_leaves_nothing() {
    let home = Home::new();
    let (big, out) = (home.path("big"), home.path("model.mlpackage"));
    sparse(&big, 600_000);
    let script = r#"ulimit -f 1000; exec "$0" "$@""#;
    let thane = env!("CARGO_BIN_EXE_thane");
    let mut command = std::process::Command::new("sh");
    home.surround(&mut command);
    command.args(["-c", script, thane, "convert", text(&big), "-o", text(&out)]);
    let output = command.output().unwrap();
    assert_ends(
        &output,
        1,
        &["model.mlpackage is not written", "File too large"],
    );
    assert_eq!(partials(&home), Vec::<String>::new());
}

#[cfg(target_os = "linux")]
#[test]
fn a_conversion_that_is_killed_leaves_no_package() {
    let home = Home::new();
    let (big, out) = (home.path("big"), home.path("model.mlpackage"));
    sparse(&big, 2_000_000);
    let mut child = begun(&home, "model", &["convert", text(&big), "-o", text(&out)]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!out.exists() && !partials(&home).is_empty());
    let chat = chat_gguf();
    let small = ["convert", text(&chat), "-o", text(&out), "--context", "64"];
    assert_ends(&home.run(&small), 0, &[]);
    assert_eq!(
        partials(&home),
        Vec::<String>::new(),
        "what it left is gone"
    );
    assert_ends(&home.run(&["check", text(&out)]), 0, &[]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_conversion_leaves_nothing_and_keeps_what_was_there() {
    let home = Home::new();
    let (big, out) = (home.path("big"), home.path("model.mlpackage"));
    sparse(&big, 2_000_000);
    let chat = chat_gguf();
    let small = ["convert", text(&chat), "-o", text(&out), "--context", "64"];
    assert_ends(&home.run(&small), 0, &[]);
    let answer = || stdout(&home.run(&["run", text(&out), "hello", "--max-tokens", "4"]));
    let before = answer();
    let convert = conversion(text(&big), text(&out), "--force --context 16");
    for name in ["-INT", "-TERM"] {
        let child = begun(&home, "model", &convert);
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        assert_ends(&output, 130, &["thane: interrupted"]);
        assert!(
            !stderr(&output).contains("is not written"),
            "{}",
            stderr(&output)
        );
        assert!(partials(&home).is_empty(), "{name}: {:?}", partials(&home));
        assert_eq!(answer(), before);
    }
    // Nobody can clean up after this one but the next that writes there, which leaves alone what is
    // being written.
    let mut killed = begun(&home, "model", &convert);
    signal(&killed, "-KILL");
    killed.wait().unwrap();
    assert!(!partials(&home).is_empty());
    assert_eq!(answer(), before);
    let smaller = home.path("smaller");
    sparse(&smaller, 600_000);
    let mut live = begun(
        &home,
        "live",
        &conversion(
            text(&smaller),
            text(&home.path("live.mlpackage")),
            "--context 16",
        ),
    );
    assert!(
        partials(&home).iter().all(|name| name.contains("live")),
        "{:?}",
        partials(&home)
    );
    let other = home.path("other.mlpackage");
    assert_ends(
        &home.run(&conversion(
            text(&chat_gguf()),
            text(&other),
            "--context 64",
        )),
        0,
        &[],
    );
    assert!(live.wait().unwrap().success());
    assert!(partials(&home).is_empty() && home.path("live.mlpackage").is_dir());
}

/// Killed at any moment, the old package or the new one is there, whole.
#[cfg(unix)]
#[test]
fn a_replacement_that_is_killed_keeps_the_old_or_the_new() {
    let home = Home::new();
    let out = home.path("model.mlpackage");
    let chat = chat_gguf();
    let convert = conversion(text(&chat), text(&out), "--context 64 --force");
    let start = Instant::now();
    assert_ends(&home.run(&convert), 0, &[]);
    let whole = start.elapsed();
    for i in 0..12 {
        let mut child = home
            .thane(&convert)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(whole * i / 12);
        let _ = child.kill();
        child.wait().unwrap();
        assert_ends(&home.run(&["check", text(&out)]), 0, &[]);
    }
    assert_ends(&home.run(&convert), 0, &[]);
    assert!(partials(&home).is_empty(), "{:?}", partials(&home));
}

/// The exchange of old and new is refused by the system: the old is there, and the error says what
/// failed.
#[cfg(unix)]
#[test]
fn a_replacement_that_cannot_be_renamed_keeps_the_old() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let folder = home.path("sealed");
    std::fs::create_dir(&folder).unwrap();
    let out = folder.join("model.mlpackage");
    let chat = chat_gguf();
    let convert = conversion(text(&chat), text(&out), "--context 64 --force");
    assert_ends(&home.run(&convert), 0, &[]);
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o555)).unwrap();
    let is_root = std::fs::write(folder.join("x"), "").is_ok();
    if is_root {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: this user may write to sealed folders"
        );
    } else {
        assert_ends(&home.run(&convert), 1, &["is not written"]);
    }
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_ends(&home.run(&["check", text(&out)]), 0, &[]);
}

#[test]
fn a_head_beside_tied_embeddings_is_noted() {
    let home = Home::new();
    let out = home.path("model.mlpackage");
    let note = "thane: tie_word_embeddings is true, but `lm_head.weight` differs from `model.embed_tokens.weight`";
    let output = home.run(&conversion(
        text(&tiny("llama-head")),
        text(&out),
        "--context 64",
    ));
    assert_ends(&output, 0, &[note]);
    assert_ends(&home.run(&["show", text(&tiny("llama-head"))]), 0, &[note]);
}

/// A package has no `verify`: its functions give the same numbers step by step.
#[test]
fn perplexity_of_a_package_is_that_of_its_checkpoint() {
    let home = Home::new();
    let file = home.path("text");
    std::fs::write(
        &file,
        "the air and the sea, the stone above the house and what is not there",
    )
    .unwrap();
    let chat = chat_folder();
    let measure = |model: &Path| {
        let args = [
            "perplexity",
            text(model),
            "--file",
            text(&file),
            "--json",
            "--numerics",
            "f32",
            "--context",
            "64",
        ];
        let report = parsed(&home.run(&args));
        (
            report["tokens"].as_u64().unwrap(),
            report["perplexity"].as_f64().unwrap(),
        )
    };
    let (tokens, due) = measure(&chat);
    for flags in [
        &[][..],
        &["--functions", "decode"],
        &["--form", "ane", "--block", "16"],
    ] {
        let out = home.path("model.mlpackage");
        let args = [
            &conversion(text(&chat), text(&out), "--force --context 64"),
            flags,
        ]
        .concat();
        assert_ends(&home.run(&args), 0, &[]);
        let (n, found) = measure(&out);
        assert_eq!(n, tokens);
        // Caches in fp16, and in the engine's form all else.
        assert!(
            (found / due - 1.0).abs() < 2e-2 && found != 0.0,
            "{flags:?}: {found} against {due}"
        );
    }
    let out = home.path("prefill.mlpackage");
    let args = conversion(text(&chat), text(&out), "--context 64 --functions prefill");
    assert_ends(&home.run(&args), 0, &[]);
    let said = [
        "it has no function `verify` or `decode`",
        "try: thane convert MODEL -o PACKAGE --functions prefill,decode",
    ];
    assert_ends(
        &home.run(&["perplexity", text(&out), "--file", text(&file)]),
        2,
        &said,
    );
    assert_ends(
        &home.run(&["run", text(&out), "hello"]),
        2,
        &["the function prefill only", "`decode` is needed"],
    );
}

/// Rounded keys and values change the numbers a little, exact ones not at all.
#[test]
fn perplexity_with_kept_keys_and_values() {
    let home = Home::new();
    let file = home.path("text");
    std::fs::write(
        &file,
        "the air and the sea, the stone above the house ".repeat(9),
    )
    .unwrap();
    let chat = chat_folder();
    let measure = |flags: &[&str]| {
        let args = ["perplexity", text(&chat), "--file", text(&file), "--json"];
        let fixed = ["--numerics", "f32", "--context", "160", "--tokens", "150"];
        let report = parsed(&home.run(&[&args[..], &fixed, flags].concat()));
        assert_eq!(report["tokens"], 149);
        report["perplexity"].as_f64().unwrap()
    };
    let due = measure(&[]);
    assert_eq!(measure(&["--kv", "exact"]), due);
    let change = measure(&["--kv", "int8"]) / due - 1.0;
    assert!(change != 0.0 && change.abs() < 5e-2, "{change}");
    let out = home.path("model.mlpackage");
    let args = ["convert", text(&chat), "-o", text(&out), "--form", "ane"];
    assert_ends(
        &home.run(&[&args[..], &["--context", "160"]].concat()),
        0,
        &[],
    );
    let args = [
        "perplexity",
        text(&out),
        "--file",
        text(&file),
        "--kv",
        "int8",
    ];
    assert_ends(
        &home.run(&[&args[..], &["--tokens", "90"]].concat()),
        2,
        &[
            "--kv is for models whose caches are kept",
            "try: leave --kv out",
        ],
    );
}

/// What a package is told to do it can do: its cache is as long as it was written.
#[test]
fn a_longer_context_is_advised_where_it_can_be_had() {
    let home = Home::new();
    let (file, out, chat) = (
        home.path("text"),
        home.path("model.mlpackage"),
        chat_folder(),
    );
    std::fs::write(&file, "the air and the sea ".repeat(40)).unwrap();
    assert_ends(
        &home.run(&["convert", text(&chat), "-o", text(&out), "--context", "64"]),
        0,
        &[],
    );
    let output = home.run(&[
        "perplexity",
        text(&out),
        "--file",
        text(&file),
        "--tokens",
        "90",
    ]);
    // A package keeps the name of its checkpoint, not the path.
    let command = "try: thane convert tiny-chat -o PACKAGE --context 90";
    assert_ends(
        &output,
        2,
        &[
            "90 tokens are to be looked at, the context holds 64",
            "--tokens 65",
            command,
        ],
    );
    assert!(
        !stderr(&output).contains("try: --context"),
        "{}",
        stderr(&output)
    );
    let asked = home.run(&["run", text(&out), "hello", "--context", "4096"]);
    assert_ends(
        &asked,
        2,
        &["holds 64 tokens", "leave --context out, or --context 64"],
    );
    assert!(
        !stderr(&asked).contains("--context 4096\n  try: thane convert"),
        "{}",
        stderr(&asked)
    );
    let checkpoint = [
        "perplexity",
        text(&chat),
        "--file",
        text(&file),
        "--tokens",
        "90",
        "--context",
        "64",
    ];
    assert_ends(&home.run(&checkpoint), 2, &["try: --context 90"]);
}

/// Each state of each family has a role in the contract, so that the package can be run.
#[test]
fn every_tiny_decoder_becomes_a_package() {
    let home = Home::new();
    let folders = std::fs::read_dir(tiny("")).unwrap().map(Result::unwrap);
    let names: Vec<String> = folders
        .map(|folder| folder.file_name().into_string().unwrap())
        .collect();
    assert!(names.len() > 60, "{} folders", names.len());
    for name in names {
        let (from, to) = (tiny(&name), home.path(&format!("{name}.mlpackage")));
        assert_ends(
            &home.run(&["convert", text(&from), "-o", text(&to)]),
            0,
            &[],
        );
    }
}
