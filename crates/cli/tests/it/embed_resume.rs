//! `thane embed -o`: whatever stops a run, the next one keeps what was finished.
#![cfg(unix)]

use std::process::{Child, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::embed::{many, model};
use crate::fixture::{Home, assert_ends, stderr, until};
use crate::server::{Reply, Server as Web};

/// A batch for each text, so that vectors have the same bits in any company.
fn embed<'a>(model: &'a str, file: &'a str, out: &'a str) -> [&'a str; 8] {
    [
        "embed",
        model,
        "--file",
        file,
        "-o",
        out,
        "--batch-tokens",
        "1",
    ]
}

/// The number behind these words on stderr.
#[track_caller]
fn number_behind(words: &str, output: &Output) -> u64 {
    let text = stderr(output);
    let (_, behind) = text.rsplit_once(words).expect(&text);
    behind.split(' ').next().unwrap().parse().expect(&text)
}

/// The finished texts that a run has left.
#[track_caller]
fn n_kept(output: &Output) -> u64 {
    assert!(stderr(output).contains("\n  try: the same command again; "));
    number_behind("x.npy.partial keeps ", output)
}

/// A file of texts, and the arguments to embed it and to embed it elsewhere without interruption.
struct Run {
    home: Home,
    model: String,
    file: String,
    out: String,
}

impl Run {
    /// With these lines in a `.txt` file.
    fn new(lines: &str) -> Self {
        let home = Home::new();
        let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
        let (file, out) = (path("texts.txt"), path("x.npy"));
        std::fs::write(&file, lines).unwrap();
        let model = model("bert-mean").to_str().unwrap().to_owned();
        Self {
            home,
            model,
            file,
            out,
        }
    }

    fn args(&self) -> [&str; 8] {
        embed(&self.model, &self.file, &self.out)
    }

    /// Starts, and waits until this many texts are done: a finished one takes less than 400 bytes.
    fn start(&self, n_done: u64) -> Child {
        self.start_with(&self.args(), n_done)
    }

    fn start_with(&self, args: &[&str], n_done: u64) -> Child {
        let mut command = self.home.thane(args);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let partial = format!("{}.partial", self.out);
        until("the first texts are done", || {
            std::fs::metadata(&partial).is_ok_and(|m| m.len() >= n_done * 400)
        });
        child.unwrap()
    }

    /// Runs again, and returns how many texts were done already. The output is that of a run that
    /// nothing stopped.
    #[track_caller]
    fn ends_as_if_undisturbed(&self, n_texts: u64) -> u64 {
        let output = self.home.run(&self.args());
        assert_ends(
            &output,
            0,
            &[&format!("{n_texts} texts, {n_texts} vectors")],
        );
        assert!(!self.home.path("x.npy.partial").exists());
        let other = self.home.path("y.npy");
        let undisturbed = embed(&self.model, &self.file, other.to_str().unwrap());
        assert_ends(&self.home.run(&undisturbed), 0, &[]);
        let is_same = std::fs::read(&self.out).unwrap() == std::fs::read(other).unwrap();
        assert!(is_same, "expected the same bytes");
        number_behind("resuming after ", &output)
    }
}

fn lines(n: usize) -> String {
    many(n).join("\n") + "\n"
}

/// Signals in the third window, which has the texts from 768 to 1,791 and is embedded by their
/// lengths.
#[test]
fn a_run_that_is_stopped_in_a_window_keeps_its_finished_texts() {
    for (name, code) in [("-INT", Some(130)), ("-TERM", Some(130)), ("-KILL", None)] {
        let run = Run::new(&lines(6_000));
        let child = run.start(1_000);
        let args = [name, &child.id().to_string()];
        let sent = std::process::Command::new("kill").args(args).status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), code, "{name}: {}", stderr(&output));
        let left = run.home.files("").into_iter();
        let left = left.filter(|name| !name.starts_with("cache"));
        assert_eq!(left.collect::<Vec<_>>(), ["texts.txt", "x.npy.partial"]);
        let n_done = run.ends_as_if_undisturbed(6_000);
        assert!(n_done >= 1_000, "{name}: {n_done}");
        if code.is_some() {
            assert!(stderr(&output).starts_with("thane: interrupted\n"));
            assert_eq!(n_kept(&output), n_done, "{name}");
        }
    }
}

/// Issue 30, 3.8: a file that shrinks while it is embedded, to a part of a line.
#[test]
fn a_line_that_is_cut_during_the_run_is_embedded_again() {
    let lines = lines(13_000);
    let run = Run::new(&lines);
    let child = run.start(100);
    let whole: usize = lines.split_inclusive('\n').take(10_000).map(str::len).sum();
    let (before, after) = lines.split_at(whole + 3);
    // The reader is thousands of lines before this one.
    let file = std::fs::OpenOptions::new().append(true).open(&run.file);
    file.unwrap().set_len(before.len() as u64).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        "texts.txt had 13000 texts when they were counted, and has 10001 now: it was changed";
    assert_ends(&output, 2, &[said]);
    assert_eq!(n_kept(&output), 10_001);
    let partial = std::fs::read(run.home.path("x.npy.partial")).unwrap();
    // Other texts than those that are done are refused.
    for (changed, place) in [
        (lines.replacen('\n', "s\n", 1), "texts.txt, line 1"),
        (lines[..whole / 2].to_owned(), "texts.txt, line 5016"),
        (
            before[..whole - 1].to_owned() + "s",
            "texts.txt, line 10000",
        ),
        (
            lines.split_inclusive('\n').take(9_000).collect(),
            "texts.txt, text 9001",
        ),
    ] {
        std::fs::write(&run.file, changed).unwrap();
        let refused = run.home.run(&run.args());
        let said = [
            place,
            ": this is not the text that was embedded",
            "try: remove ",
        ];
        assert_ends(&refused, 2, &said);
        assert!(std::fs::read(run.home.path("x.npy.partial")).unwrap() == partial);
    }
    // Whoever wrote the line writes the rest of it.
    std::fs::write(&run.file, [before, after].concat()).unwrap();
    assert_eq!(run.ends_as_if_undisturbed(13_000), 10_000);
}

/// A limit on the length of files ends the run in the midst of its fourth window, which has the
/// texts from 1,792 on.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_a_full_disk_stops_goes_on() {
    let run = Run::new(&lines(3_000));
    let mut shell = std::process::Command::new("/bin/sh");
    run.home.surround(&mut shell);
    // A block of sh's `ulimit -f` has 512 bytes, and a finished text takes 370.
    let limited = "ulimit -c 0 && ulimit -f 1450 && exec \"$@\"";
    shell.args(["-c", limited, "sh", env!("CARGO_BIN_EXE_thane")]);
    let output = shell.args(run.args()).output().unwrap();
    assert_ends(&output, 1, &["x.npy.partial", "File too large"]);
    assert!(!run.home.path("x.npy").exists());
    let n_done = n_kept(&output);
    assert!((1_800..2_100).contains(&n_done), "{n_done}");
    let other = run
        .home
        .run(&[&run.args()[..], &["--format", "int8"]].concat());
    let said = "x.npy.partial was started with other flags: --format was float, now it is int8";
    assert_ends(&other, 2, &[said, "try: remove "]);
    assert_eq!(run.ends_as_if_undisturbed(3_000), n_done);
}

/// A vector that tells its text.
fn vectors(body: &[u8]) -> Reply {
    let body: Value = serde_json::from_slice(body).unwrap();
    let texts = body["input"].as_array().unwrap().iter();
    let sum = |text: &Value| text.as_str().unwrap().bytes().map(u32::from).sum::<u32>();
    let data = texts
        .enumerate()
        .map(|(i, text)| json!({"index": i, "embedding": [sum(text), 1]}));
    let answer = json!({"data": data.collect::<Vec<_>>(), "usage": {"prompt_tokens": 1}});
    Reply::new(200, answer.to_string())
}

/// A server that fails, or never answers, in the third window: that of 1,024 texts in 8 requests.
#[test]
fn a_server_that_fails_in_a_window_loses_no_finished_text() {
    for hangs in [false, true] {
        let (run, n_asked) = (Run::new(&lines(3_000)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&n_asked);
        let web = Web::start(move |request| match request.path.as_str() {
            "/v1/embeddings" => match counted.fetch_add(1, Ordering::SeqCst) {
                10 if hangs => loop {
                    std::thread::park();
                },
                10 => Reply::new(500, "out of luck"),
                _ => vectors(&request.body),
            },
            _ => Reply::new(200, r#"{"data": [{"id": "m"}]}"#),
        });
        let args = [
            "embed", "m", "--server", &web.url, "--file", &run.file, "-o",
        ];
        let resumed = [&args[..], &[&run.out]].concat();
        let mut command = run.home.thane(&resumed);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if hangs {
            until("the request", || n_asked.load(Ordering::SeqCst) > 10);
            let args = ["-INT", &child.id().to_string()];
            let sent = std::process::Command::new("kill").args(args).status();
            assert!(sent.unwrap().success());
        }
        let output = child.wait_with_output().unwrap();
        match hangs {
            true => assert_ends(&output, 130, &["thane: interrupted"]),
            false => assert_ends(&output, 5, &["out of luck"]),
        }
        // A request asks for the dimensions, and each other one has 128 texts.
        assert_eq!(n_kept(&output), 9 * 128, "{}", stderr(&output));
        let said = [
            "resuming after 1152 texts",
            "3000 texts, 3000 vectors of 2 dimensions",
        ];
        assert_ends(&run.home.run(&resumed), 0, &said);
        let other = run.home.path("y.npy");
        let undisturbed = [&args[..], &[other.to_str().unwrap()]].concat();
        assert_ends(&run.home.run(&undisturbed), 0, &[]);
        assert!(std::fs::read(&run.out).unwrap() == std::fs::read(other).unwrap());
    }
}

/// A server that is started again with another model of the same name and size, and a model whose
/// weights were replaced by others of the same length and time.
#[test]
fn a_run_does_not_go_on_with_another_model() {
    let (run, n_asked) = (Run::new(&lines(3_000)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&n_asked);
    let web = Web::start(move |request| match request.path.as_str() {
        "/v1/embeddings" => match counted.fetch_add(1, Ordering::SeqCst) {
            4 => Reply::new(500, "out of luck"),
            n if n > 4 => {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                let n_texts = body["input"].as_array().unwrap().len();
                let data = (0..n_texts).map(|i| json!({"index": i, "embedding": [1, 900]}));
                Reply::new(200, json!({"data": data.collect::<Vec<_>>()}).to_string())
            }
            _ => vectors(&request.body),
        },
        _ => Reply::new(200, r#"{"data": [{"id": "m"}]}"#),
    });
    let args = [
        "embed", "m", "--server", &web.url, "--file", &run.file, "-o", &run.out,
    ];
    assert_ends(&run.home.run(&args), 5, &["out of luck"]);
    let partial = std::fs::read(run.home.path("x.npy.partial")).unwrap();
    let said = [
        "texts.txt, line 1: expected the vector that ",
        "x.npy.partial keeps, found another: the model has changed",
        "try: remove ",
    ];
    assert_ends(&run.home.run(&args), 2, &said);
    assert!(std::fs::read(run.home.path("x.npy.partial")).unwrap() == partial);

    let run = Run::new(&lines(6_000));
    let copy = run.home.path("copy");
    crate::codes::copy(run.model.as_ref(), &copy);
    let args = embed(copy.to_str().unwrap(), &run.file, &run.out);
    let mut child = run.start_with(&args, 1_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let weights = copy.join("model.safetensors");
    let time = std::fs::metadata(&weights).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].as_chunks_mut::<4>().0.reverse();
    std::fs::write(&weights, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&weights);
    file.unwrap().set_modified(time).unwrap();
    assert_ends(&run.home.run(&args), 2, &said);
}
