//! One rule for `-o` and `--force` in all verbs: no input is replaced, and nothing that exists without `--force`.

use std::path::Path;

use crate::fixture::{Home, assert_ends, chat_gguf, stderr};

/// A verb that writes, with what it reads, and an input of which the output may not take the place.
struct Case {
    args: &'static str,
    inputs: &'static [&'static str],
    /// Where it may write.
    out: &'static str,
}

const CASES: &[Case] = &[
    Case { args: "audit in.mil --format json", inputs: &["in.mil"], out: "report.json" },
    Case { args: "audit in.mil --baseline base.json", inputs: &["in.mil", "base.json"], out: "report.txt" },
    Case { args: "audit in.mil --compare plan.json", inputs: &["in.mil", "plan.json"], out: "report.html" },
    Case { args: "audit whole.mlpackage --fix", inputs: &["whole.mlpackage"], out: "fixed.mlpackage" },
    Case { args: "bisect in.mil", inputs: &["in.mil"], out: "part.mlpackage" },
    Case { args: "convert in.gguf --context 32", inputs: &["in.gguf"], out: "model.mlpackage" },
    Case { args: "convert bert --task embed --buckets 8", inputs: &["bert"], out: "embeds.mlpackage" },
    Case { args: "embed bert --file texts.jsonl", inputs: &["texts.jsonl", "bert"], out: "vectors.npy" },
    Case {
        args: "predict whole.mlpackage --function prefill --input input_ids=ids.npy",
        inputs: &["whole.mlpackage"],
        out: "results",
    },
];

/// A folder with every input.
fn inputs() -> Home {
    let home = Home::new();
    let write = |name: &str, bytes: &[u8]| std::fs::write(home.path(name), bytes).unwrap();
    write("in.mil", &std::fs::read(crate::audit::example("broken")).unwrap());
    write("in.gguf", &std::fs::read(chat_gguf()).unwrap());
    write("texts.jsonl", b"{\"text\": \"the sea\"}\n");
    write("plan.json", b"[{\"output\": \"q\", \"preferred\": \"gpu\", \"cost\": 0.5}]");
    write("ids.npy", &crate::package::ids(&[1, 5, 9]));
    crate::codes::copy(&crate::embed::model("bert-mean"), &home.path("bert"));
    let base = run(&home, "audit in.mil --format json", "base.json", false);
    assert_ends(&base, 0, &[]);
    assert_ends(&run(&home, "convert in.gguf --context 32", "whole.mlpackage", false), 0, &[]);
    home
}

fn run(home: &Home, args: &str, out: &str, force: bool) -> std::process::Output {
    let mut args: Vec<&str> = args.split(' ').collect();
    args.extend(["-o", out]);
    args.extend(force.then_some("--force"));
    home.thane(&args).current_dir(home.folder.path()).output().unwrap()
}

/// The names and bytes of a file or of all files below a folder.
fn bytes(path: &Path) -> Vec<(String, Vec<u8>)> {
    if path.is_file() {
        return vec![(String::new(), std::fs::read(path).unwrap())];
    }
    let mut names: Vec<_> = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    let below = |p: std::path::PathBuf| bytes(&p).into_iter().map(move |(n, b)| (format!("{}/{n}", p.display()), b));
    names.into_iter().flat_map(below).collect()
}

#[test]
fn no_verb_replaces_an_input_and_none_what_exists_without_force() {
    let home = inputs();
    let mut faults = Vec::new();
    for Case { args, inputs, out } in CASES {
        for input in *inputs {
            for (to, force) in [(*input, false), (*input, true), (&format!("./{input}")[..], true)] {
                let before = bytes(&home.path(input));
                let output = run(&home, args, to, force);
                if output.status.code() != Some(2) || bytes(&home.path(input)) != before {
                    faults.push(format!("{args} -o {to}, force {force}: {:?}\n{}", output.status, stderr(&output)));
                }
            }
        }
        let first = run(&home, args, out, false);
        if first.status.code() != Some(0) {
            faults.push(format!("{args} -o {out}: {:?}\n{}", first.status, stderr(&first)));
            continue;
        }
        let mark = if home.path(out).is_dir() { home.path(out).join("mark") } else { home.path(out) };
        std::fs::write(&mark, "mine").unwrap();
        let second = run(&home, args, out, false);
        let is_kept = std::fs::read(&mark).is_ok_and(|b| b == b"mine");
        if second.status.code() != Some(2) || !is_kept || !stderr(&second).contains("--force") {
            faults.push(format!("{args} -o {out} again: {:?}, kept {is_kept}\n{}", second.status, stderr(&second)));
        }
        let third = run(&home, args, out, true);
        let is_replaced = home.path(out).is_dir() || std::fs::read(&mark).is_ok_and(|b| b != b"mine");
        if third.status.code() != Some(0) || !is_replaced {
            faults.push(format!("{args} -o {out} --force: {:?}\n{}", third.status, stderr(&third)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_verb_that_writes_is_in_the_table_and_has_force() {
    let home = Home::new();
    let help = |args: &[&str]| String::from_utf8(home.run(args).stdout).unwrap();
    let all = help(&["-h"]);
    let commands = all.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    for verb in commands.lines().filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help") {
        let text = help(&[verb, "--help"]);
        let writes = text.contains("-o, --out");
        assert_eq!(writes, CASES.iter().any(|case| case.args.split(' ').next() == Some(verb)), "{verb}");
        assert_eq!(writes, text.contains("    --force"), "{verb}: --force goes with -o");
    }
}
