//! One rule for `-o` and `--force` in all verbs: no input is replaced, and nothing that exists
//! without `--force`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::fixture::{Home, assert_ends, chat_gguf, stderr, verbs};

/// A verb that writes, with what it reads, and an input of which the output may not take the place.
struct Case {
    args: &'static str,
    inputs: &'static [&'static str],
    /// Where it may write.
    out: &'static str,
}

const CASES: &[Case] = &[
    Case {
        args: "audit in.mil --format json",
        inputs: &["in.mil"],
        out: "report.json",
    },
    Case {
        args: "audit in.mil --baseline base.json",
        inputs: &["in.mil", "base.json"],
        out: "report.txt",
    },
    Case {
        args: "audit in.mil --compare plan.json",
        inputs: &["in.mil", "plan.json"],
        out: "report.html",
    },
    Case {
        args: "audit faulty.mlpackage --fix",
        inputs: &["faulty.mlpackage"],
        out: "fixed.mlpackage",
    },
    Case {
        args: "batch requests.jsonl --model bert --model m=in.gguf",
        inputs: &["requests.jsonl", "bert", "in.gguf"],
        out: "answers.jsonl",
    },
    Case {
        args: "bisect in.mil",
        inputs: &["in.mil"],
        out: "part.mlpackage",
    },
    Case {
        args: "compress embeds-in.mlpackage --compress int8",
        inputs: &["embeds-in.mlpackage"],
        out: "small.mlpackage",
    },
    Case {
        args: "convert in.gguf --context 32",
        inputs: &["in.gguf"],
        out: "model.mlpackage",
    },
    Case {
        args: "convert bert --task embed --buckets 8",
        inputs: &["bert"],
        out: "embeds.mlpackage",
    },
    Case {
        args: "embed bert --file texts.jsonl",
        inputs: &["texts.jsonl", "bert"],
        out: "vectors.npy",
    },
    Case {
        args: "rerank reranker query --file texts.jsonl",
        inputs: &["texts.jsonl", "reranker"],
        out: "scores.jsonl",
    },
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
    write(
        "in.mil",
        &std::fs::read(crate::audit::example("broken")).unwrap(),
    );
    write("in.gguf", &std::fs::read(chat_gguf()).unwrap());
    write("texts.jsonl", b"{\"text\": \"the sea\"}\n");
    let body = r#"{"model": "bert", "input": "the sea"}"#;
    let rest = r#""custom_id": "1", "method": "POST", "url": "/v1/embeddings""#;
    let request = format!("{{{rest}, \"body\": {body}}}\n");
    write("requests.jsonl", request.as_bytes());
    write(
        "plan.json",
        b"[{\"output\": \"q\", \"preferred\": \"gpu\", \"cost\": 0.5}]",
    );
    write("ids.npy", &crate::package::ids(&[1, 5, 9]));
    crate::codes::copy(&crate::embed::model("bert-mean"), &home.path("bert"));
    crate::codes::copy(&crate::rerank::model("bert"), &home.path("reranker"));
    let base = run(&home, "audit in.mil --format json", "base.json", false);
    assert_ends(&base, 0, &[]);
    assert_ends(
        &run(
            &home,
            "convert in.gguf --context 32",
            "whole.mlpackage",
            false,
        ),
        0,
        &[],
    );
    fixable(&home, "in2.mil");
    let faulty = run(&home, "bisect in2.mil", "faulty.mlpackage", false);
    assert_ends(&faulty, 0, &[]);
    let embeds = "convert bert --task embed --buckets 8";
    assert_ends(&run(&home, embeds, "embeds-in.mlpackage", false), 0, &[]);
    home
}

fn run(home: &Home, args: &str, out: &str, force: bool) -> std::process::Output {
    let mut args: Vec<&str> = args.split(' ').collect();
    args.extend(["-o", out]);
    args.extend(force.then_some("--force"));
    home.thane(&args)
        .current_dir(home.folder.path())
        .output()
        .unwrap()
}

/// The names and bytes of a file or of all files below a folder.
fn bytes(path: &Path) -> Vec<(String, Vec<u8>)> {
    if path.is_file() {
        return vec![(String::new(), std::fs::read(path).unwrap())];
    }
    let mut names: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    names.sort();
    let below = |p: PathBuf| {
        bytes(&p)
            .into_iter()
            .map(move |(n, b)| (format!("{}/{n}", p.display()), b))
    };
    names.into_iter().flat_map(below).collect()
}

#[test]
fn no_verb_replaces_an_input_and_none_what_exists_without_force() {
    let home = inputs();
    let mut faults = Vec::new();
    for Case { args, inputs, out } in CASES {
        for input in *inputs {
            for (to, force) in [
                (*input, false),
                (*input, true),
                (&format!("./{input}")[..], true),
            ] {
                let before = bytes(&home.path(input));
                let output = run(&home, args, to, force);
                if output.status.code() != Some(2) || bytes(&home.path(input)) != before {
                    faults.push(format!(
                        "{args} -o {to}, force {force}: {:?}\n{}",
                        output.status,
                        stderr(&output)
                    ));
                }
            }
        }
        let first = run(&home, args, out, false);
        if first.status.code() != Some(0) {
            faults.push(format!(
                "{args} -o {out}: {:?}\n{}",
                first.status,
                stderr(&first)
            ));
            continue;
        }
        let mark = if home.path(out).is_dir() {
            home.path(out).join("mark")
        } else {
            home.path(out)
        };
        std::fs::write(&mark, "mine").unwrap();
        let second = run(&home, args, out, false);
        let is_kept = std::fs::read(&mark).is_ok_and(|b| b == b"mine");
        if second.status.code() != Some(2) || !is_kept || !stderr(&second).contains("--force") {
            faults.push(format!(
                "{args} -o {out} again: {:?}, kept {is_kept}\n{}",
                second.status,
                stderr(&second)
            ));
        }
        let third = run(&home, args, out, true);
        let is_replaced =
            home.path(out).is_dir() || std::fs::read(&mark).is_ok_and(|b| b != b"mine");
        if third.status.code() != Some(0) || !is_replaced {
            faults.push(format!(
                "{args} -o {out} --force: {:?}\n{}",
                third.status,
                stderr(&third)
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_verb_that_writes_is_in_the_table_and_has_force() {
    let home = Home::new();
    let help = |args: &[&str]| String::from_utf8(home.run(args).stdout).unwrap();
    for verb in verbs(&home).iter().map(String::as_str) {
        let text = help(&[verb, "--help"]);
        let writes = text.contains("-o, --out");
        assert_eq!(
            writes,
            CASES
                .iter()
                .any(|case| case.args.split(' ').next() == Some(verb)),
            "{verb}"
        );
        assert_eq!(
            writes,
            text.contains("    --force"),
            "{verb}: --force goes with -o"
        );
    }
}

/// A text that can be fixed in no time.
fn fixable(home: &Home, name: &str) {
    let value = "tensor<fp16, [1, 4, 1, 96]>";
    let text = format!(
        "program(1.3) {{ func main<ios18>({value} x) {{
        {value} slope = tan(x = x);
        {value} total = cumsum(axis = int32(3), exclusive = bool(false), reverse = bool(false), x = slope);
        {value} y = add(x = total, y = total); }} -> (y); }}"
    );
    std::fs::write(home.path(name), text).unwrap();
}

#[test]
fn texts_of_one_folder_have_weights_of_their_own() {
    let home = inputs();
    std::fs::create_dir(home.path("parts")).unwrap();
    for (model, to) in [
        ("whole.mlpackage", "parts/a.mil"),
        ("in.mil", "parts/b.mil"),
        ("whole.mlpackage", "parts/c.mil"),
    ] {
        assert_ends(
            &run(&home, &format!("bisect {model} --rule note"), to, false),
            0,
            &[],
        );
    }
    fixable(&home, "in2.mil");
    assert_ends(
        &run(&home, "audit in2.mil --fix", "parts/d.mil", true),
        0,
        &[],
    );
    for text in ["parts/a.mil", "parts/b.mil", "parts/c.mil", "parts/d.mil"] {
        assert_ends(
            &home.run(&["check", home.path(text).to_str().unwrap()]),
            0,
            &[],
        );
    }
}

#[test]
fn what_is_of_another_kind_stays() {
    let home = inputs();
    fixable(&home, "fixable.mil");
    std::fs::create_dir(home.path("precious.mlpackage")).unwrap();
    std::fs::write(home.path("precious.mlpackage/thesis.tex"), "x").unwrap();
    for verb in [
        "audit fixable.mil --fix",
        "bisect in.mil",
        "convert in.gguf --context 32",
    ] {
        let kept = "exists and is no package, which is written here";
        assert_ends(&run(&home, verb, "precious.mlpackage", true), 2, &[kept]);
        for name in ["report.sarif", "page.html", "x", "in.gguf"] {
            assert_ends(&run(&home, verb, name, true), 2, &[]);
        }
        assert_ends(
            &run(&home, verb, "report.sarif", false),
            2,
            &["expected a package (.mlpackage)", "-o NAME.mlpackage"],
        );
        #[cfg(unix)]
        {
            let pipe = home.path("pipe.mlpackage");
            let made = std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap();
            assert!(made.success());
            assert_ends(
                &run(&home, verb, "pipe.mlpackage", true),
                2,
                &["is a device or a pipe"],
            );
            std::fs::remove_file(&pipe).unwrap();
        }
    }
    assert_eq!(
        std::fs::read(home.path("precious.mlpackage/thesis.tex")).unwrap(),
        b"x"
    );
    let vectors = run(
        &home,
        "embed bert --file texts.jsonl",
        "bert/model.safetensors",
        true,
    );
    assert_ends(&vectors, 2, &["it would replace the input"]);
    assert_ends(
        &run(
            &home,
            "embed bert --file texts.jsonl",
            "new/folder/vectors.npy",
            false,
        ),
        0,
        &[],
    );
}

#[test]
fn of_several_writers_one_gets_the_name() {
    let home = inputs();
    fixable(&home, "fixable.mil");
    let predict = "predict whole.mlpackage --function prefill --input input_ids=ids.npy";
    let cases = [
        ("audit fixable.mil --fix", "f.mil"),
        ("bisect in.mil", "b.mlpackage"),
        (predict, "results"),
    ];
    for (args, out) in cases {
        let args: Vec<&str> = args.split(' ').chain(["-o", out]).collect();
        let start = |_| {
            let mut command = home.thane(&args);
            command
                .current_dir(home.folder.path())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let running: Vec<_> = (0..4).map(start).collect();
        let ended: Vec<_> = running
            .into_iter()
            .map(|child| child.wait_with_output().unwrap())
            .collect();
        let n_done = ended
            .iter()
            .filter(|output| output.status.success())
            .count();
        let said: Vec<_> = ended.iter().map(stderr).collect();
        assert_eq!(n_done, 1, "{args:?}: {said:?}");
        let losers = ended.iter().filter(|output| !output.status.success());
        losers.for_each(|output| assert_ends(output, 2, &["exists already", "--force"]));
    }
}

/// A full disk is told with the names that the user knows, not those of what is half written.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_is_told_with_the_final_names() {
    let home = Home::new();
    let (model, out) = (crate::fixture::chat_folder(), home.path("out"));
    let mut command = std::process::Command::new("/bin/sh");
    home.surround(&mut command);
    // Without the signal that comes with the limit, a write fails as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 40; exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_thane"), "convert"]);
    command.args([&model, Path::new("-o"), &out]);
    let flags = "--form ane --context 64 --block 8 --split 2";
    let output = command.args(flags.split(' ')).output().unwrap();
    let package = out.join("chunk1.mlpackage");
    let file = package.join("Data/com.apple.CoreML/model.mlmodel");
    let said = format!("{} is not written", package.display());
    assert_ends(
        &output,
        1,
        &[&said, &format!("because: {}: ", file.display())],
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("partial"), "{said}");
    assert!(!out.exists());
}
