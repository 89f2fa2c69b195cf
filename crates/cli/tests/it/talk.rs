//! Signals and the terminal.
//!
//! A terminal is made by `script` of util-linux; where it is missing, these tests say so and do
//! nothing.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::fixture::{
    Home, PATIENCE, chat_folder, chat_gguf, processor_seconds, until as wait_until,
};
use crate::gguf::Gguf;

/// A model that never ends an answer, in a context of 100,000 tokens.
pub fn endless(home: &Home) -> String {
    let file = home.path("endless.gguf");
    let gguf = Gguf::tiny_chat()
        .without("tokenizer.ggml.eos_token_id")
        .with_string("tokenizer.chat_template", "{{ messages[-1].content }}")
        .with_u32("llama.context_length", 100_000);
    std::fs::write(&file, gguf.bytes()).unwrap();
    file.to_str().unwrap().to_owned()
}

const LONG: [&str; 4] = ["--context", "100000", "--max-tokens", "100000"];

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// How a child ended, and the rest of its stdout and stderr.
fn ended(mut child: Child) -> (ExitStatus, String, String) {
    // Read meanwhile: a pipe that is full would hold up what it has to say.
    let pipe = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut out = String::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_string(&mut out).unwrap();
        }
        out
    });
    let mut status = None;
    wait_until("the program ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    let (out, mut err) = (reader.join().unwrap(), String::new());
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    (status.unwrap(), out, err)
}

fn spawn(command: &mut Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn an_interrupted_answer_ends_its_line() {
    let home = Home::new();
    let model = endless(&home);
    for name in ["-INT", "-TERM"] {
        let mut child = spawn(
            home.thane(&["run", &model, "hello"])
                .args(LONG)
                .stdin(Stdio::null()),
        );
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 64])
            .unwrap();
        signal(&child, name);
        let (status, out, err) = ended(child);
        assert_eq!(
            (status.code(), err.as_str()),
            (Some(130), "thane: interrupted\n")
        );
        assert_eq!(out.find('\n'), Some(out.len() - 1), "{out:?}");
    }
}

#[test]
fn an_interrupted_answer_is_whole_json() {
    let home = Home::new();
    let model = endless(&home);
    let interrupted_after = |pause| {
        let child = spawn(
            home.thane(&["run", &model, "hello", "--json"])
                .args(LONG)
                .stdin(Stdio::null()),
        );
        std::thread::sleep(pause);
        signal(&child, "-INT");
        ended(child)
    };
    // Before the answer has begun there is nothing to report, and nothing shows when it begins.
    let mut pause = Duration::from_millis(250);
    let (status, out, err) = loop {
        let ended = interrupted_after(pause);
        if ended.1.contains("\"tokens\":[") && !ended.1.contains("\"tokens\":[]") {
            break ended;
        }
        pause *= 2;
        assert!(pause < PATIENCE, "no report: {ended:?}");
    };
    assert_eq!(
        (status.code(), err.as_str()),
        (Some(130), "thane: interrupted\n")
    );
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["finish_reason"], "interrupted");
}

#[test]
fn a_prompt_that_is_being_read_is_interrupted_too() {
    let home = Home::new();
    let model = endless(&home);
    let mut child = spawn(
        home.thane(&["run", &model])
            .args(LONG)
            .stdin(Stdio::piped()),
    );
    child
        .stdin
        .take()
        .unwrap()
        .write_all("x".repeat(99_000).as_bytes())
        .unwrap();
    wait_until("the prompt is being read", || processor_seconds(&child) > 0);
    signal(&child, "-INT");
    let (status, out, err) = ended(child);
    assert_eq!(
        (status.code(), err.as_str(), out.as_str()),
        (Some(130), "thane: interrupted\n", "")
    );
}

/// Whether all threads of a process wait for something.
#[cfg(target_os = "linux")]
fn sleeps(child: &Child) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let stats = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")));
    // The state follows the name, which is in parentheses.
    let mut stats = stats.map_while(Result::ok);
    stats.all(|stat| stat.rsplit(')').next().unwrap().starts_with(" S "))
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_does_not_read_does_not_hold_up_the_end() {
    let home = Home::new();
    let model = endless(&home);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut other = writer.try_clone().unwrap();
    // Fills the pipe until it is blocked in a write, as the program then is.
    let filling = std::thread::spawn(move || while other.write_all(&[b'.'; 512]).is_ok() {});
    let mut command = home.thane(&["run", &model, "hello"]);
    let child = command
        .args(LONG)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(command);
    let mut n_asleep = 0;
    wait_until("the program is blocked", || {
        n_asleep = if sleeps(&child) { n_asleep + 1 } else { 0 };
        n_asleep == 20
    });
    signal(&child, "-INT");
    let (status, _, err) = ended(child);
    assert_eq!(
        (status.code(), err.as_str()),
        (Some(130), "thane: interrupted\n")
    );
    drop(reader);
    filling.join().unwrap();
}

/// `thane ARGS` on a terminal, or a printed reason why not.
pub fn on_a_terminal(home: &Home, args: &[&str]) -> Option<Child> {
    if !Command::new("script")
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success())
    {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: there is no `script` of util-linux that makes a terminal"
        );
        return None;
    }
    let words: Vec<&str> = [&[env!("CARGO_BIN_EXE_thane")], args].concat();
    // No path of a test has a character that a shell reads.
    let mut command = Command::new("script");
    home.surround(&mut command);
    command
        .args(["-qec", &words.join(" "), "/dev/null"])
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh");
    Some(spawn(command.stdin(Stdio::piped())))
}

/// Reads the terminal until `text` was on it; all that was there.
pub fn until(child: &mut Child, text: &str) -> String {
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !String::from_utf8_lossy(&seen).contains(text) {
        let n = child.stdout.as_mut().unwrap().read(&mut byte).unwrap();
        assert!(
            n > 0,
            "`{text}` did not come: {}",
            String::from_utf8_lossy(&seen)
        );
        seen.push(byte[0]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

fn type_in(child: &mut Child, keys: &str) {
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(keys.as_bytes())
        .unwrap();
}

/// What the terminal shows: without the sequences that the line editor writes.
fn shown(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                // `[`, numbers, and a letter.
                chars.find(|c| c.is_ascii_alphabetic());
            }
            '\r' => {}
            c => out.push(c),
        }
    }
    out
}

/// The line editor is ready: it has asked for pastes to be marked and written its prompt.
const PROMPT: &str = "> ";

fn ready(child: &mut Child) -> String {
    let mut seen = until(child, "\x1b[?2004h");
    seen += &until(child, PROMPT);
    shown(&seen)
}

const GREEDY: [&str; 2] = ["--temperature", "0"];

#[test]
fn a_conversation_remembers_what_was_said_until_it_begins_anew() {
    let bytes = std::fs::read(chat_folder().join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&bytes).unwrap();
    let answer = |nth: usize| {
        expected["conversations"][nth]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (home, model) = (Home::new(), chat_gguf());
    let args = [&["run", model.to_str().unwrap()], &GREEDY[..]].concat();
    let Some(mut child) = on_a_terminal(&home, &args) else {
        return;
    };
    let hint = ready(&mut child);
    assert!(
        hint.contains("/help lists commands") && hint.contains("; temperature 0 (--temperature)"),
        "{hint:?}"
    );
    // An empty line asks nothing.
    type_in(&mut child, "\r");
    ready(&mut child);
    for (question, nth) in [
        ("hello", 0),
        ("and the sea?", 1),
        ("/clear", 9),
        ("hello", 0),
    ] {
        type_in(&mut child, &format!("{question}\r"));
        let said = ready(&mut child);
        if nth < 3 {
            let said: String = said.split_whitespace().collect();
            let answer: String = answer(nth).split_whitespace().collect();
            assert!(said.contains(&answer), "{said:?}");
        }
    }
    type_in(&mut child, "\x04");
    assert_eq!(ended(child).0.code(), Some(0));
}

#[test]
fn a_question_that_does_not_fit_leaves_the_conversation_going() {
    let (home, model) = (Home::new(), chat_gguf());
    let Some(mut child) = on_a_terminal(&home, &["run", model.to_str().unwrap(), "-q"]) else {
        return;
    };
    ready(&mut child);
    type_in(&mut child, &format!("{}\r", "x".repeat(600)));
    let said = ready(&mut child);
    assert!(
        said.contains("expected a prompt shorter than the context of 512 tokens"),
        "{said}"
    );
    type_in(&mut child, "/bye\r");
    assert_eq!(ended(child).0.code(), Some(0));
}

/// Issue 30, 4: a full context goes on without the oldest messages, and says so.
#[test]
fn a_full_context_leaves_out_the_oldest_messages() {
    let (home, model) = (Home::new(), chat_gguf());
    let args = ["run", model.to_str().unwrap(), "--max-tokens", "4"];
    let Some(mut child) = on_a_terminal(&home, &[&args[..], &GREEDY].concat()) else {
        return;
    };
    ready(&mut child);
    for nth in 0..4 {
        type_in(&mut child, &format!("{}\r", "x".repeat(150)));
        let said = ready(&mut child);
        assert_eq!(
            said.contains("the oldest 2 messages left out"),
            nth == 3,
            "{nth}: {said}"
        );
    }
    type_in(&mut child, "\x04");
    assert_eq!(ended(child).0.code(), Some(0));
}

/// Issue 30, 4: a pasted text of several lines is one message, and commands do not go to the model.
#[test]
fn a_paste_is_one_message_and_commands_are_answered() {
    let (home, model) = (Home::new(), chat_gguf());
    let args = [
        &["run", model.to_str().unwrap(), "--max-tokens", "2"],
        &GREEDY[..],
    ]
    .concat();
    let Some(mut child) = on_a_terminal(&home, &args) else {
        return;
    };
    ready(&mut child);
    type_in(&mut child, "/show\r");
    assert!(ready(&mut child).contains("0 tokens of the context's 512"));
    type_in(&mut child, "\x1b[200~hello\nand the sea?\x1b[201~\r");
    ready(&mut child);
    type_in(&mut child, "/set temperature 0.5\r");
    assert!(ready(&mut child).contains("temperature 0.5"));
    type_in(&mut child, "/set frequency-penalty 0.25\r");
    assert!(ready(&mut child).contains("frequency-penalty 0.25"));
    type_in(&mut child, "/set temprature 1\r");
    assert!(ready(&mut child).contains("did you mean temperature?"));
    type_in(&mut child, "/clear\r");
    ready(&mut child);
    type_in(&mut child, "/show\r");
    assert!(ready(&mut child).contains("0 tokens of the context's 512"));
    type_in(&mut child, "/nope\r");
    assert!(ready(&mut child).contains("/nope is unknown"));
    type_in(&mut child, "/help\r");
    assert!(ready(&mut child).contains("A pasted text is one"));
    type_in(&mut child, "/bye\r");
    assert_eq!(ended(child).0.code(), Some(0));
    let history = std::fs::read_to_string(home.path("cache/history")).unwrap_or_default();
    assert!(history.contains("hello\\nand the sea?"), "{history}");
}

#[test]
fn ctrl_c_ends_an_answer_and_twice_in_an_empty_line_the_conversation() {
    let home = Home::new();
    let model = endless(&home);
    let Some(mut child) = on_a_terminal(&home, &[&["run", model.as_str()], &LONG[..]].concat())
    else {
        return;
    };
    ready(&mut child);
    type_in(&mut child, "hello\r");
    until(&mut child, "\n");
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0; 64])
        .unwrap();
    type_in(&mut child, "\x03");
    ready(&mut child);
    // A line with text is cleared, and what is typed disarms.
    for (keys, arms) in [
        ("half a quest\x03", false),
        ("\x03", true),
        ("x\x03", false),
        ("\x03", true),
        ("x\x7f\x03", true),
    ] {
        type_in(&mut child, keys);
        assert_eq!(
            ready(&mut child).contains("Ctrl-C once more"),
            arms,
            "{keys:?}"
        );
    }
    type_in(&mut child, "\x03");
    let (status, out, _) = ended(child);
    assert_eq!(status.code(), Some(130), "{out}");
}

/// The process that runs this model; its parents are `script` and a shell.
fn program_of(model: &str) -> String {
    let is_it = |process: &std::path::Path| {
        let read = |name| std::fs::read(process.join(name)).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).into_owned();
        command.contains(&format!("thane\0run\0{model}\0"))
    };
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let found = processes
        .into_iter()
        .find(|process| is_it(process))
        .expect("the program runs");
    found.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn sigterm_and_sighup_end_a_conversation() {
    // A program that was started to ignore SIGHUP goes on, as under nohup.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let ignores_hup = ignored.is_some_and(|mask| mask & 1 == 1);
    let names = ["-TERM", "-HUP"].into_iter();
    for name in names.filter(|name| *name == "-TERM" || !ignores_hup) {
        for answers in [true, false] {
            let home = Home::new();
            let model = endless(&home);
            let args = [&["run", model.as_str()], &LONG[..]].concat();
            let Some(mut child) = on_a_terminal(&home, &args) else {
                return;
            };
            ready(&mut child);
            if answers {
                type_in(&mut child, "hello\r");
                until(&mut child, "\n");
                child
                    .stdout
                    .as_mut()
                    .unwrap()
                    .read_exact(&mut [0; 64])
                    .unwrap();
            }
            let pid = program_of(&model);
            assert!(
                Command::new("kill")
                    .args([name, &pid])
                    .status()
                    .unwrap()
                    .success()
            );
            let (status, out, _) = ended(child);
            assert_eq!(status.code(), Some(130), "{name} {answers}: {out}");
            // The editor may still end what it was drawing.
            let shown = out.trim_end().trim_end_matches("\u{1b}[?2026l").trim_end();
            assert!(
                shown.ends_with("thane: interrupted"),
                "{name} {answers}: {out}"
            );
        }
    }
}

#[test]
fn a_message_that_cannot_fit_leaves_out_no_other() {
    let (home, model) = (Home::new(), chat_gguf());
    let args = ["run", model.to_str().unwrap(), "--max-tokens", "4"];
    let Some(mut child) = on_a_terminal(&home, &[&args[..], &GREEDY].concat()) else {
        return;
    };
    ready(&mut child);
    type_in(&mut child, "hello\r");
    assert!(ready(&mut child).contains("the answer was cut after --max-tokens 4"));
    type_in(&mut child, &format!("{}\r", "x".repeat(600)));
    let said = ready(&mut child);
    assert!(
        said.contains("found 613 tokens") && !said.contains("left out"),
        "{said}"
    );
    type_in(&mut child, "/show\r");
    assert!(ready(&mut child).contains("max-tokens 4"));
    type_in(&mut child, "\x04");
    assert_eq!(ended(child).0.code(), Some(0));
}

#[test]
fn a_history_is_kept_unless_it_is_not_wanted() {
    for (flag, keeps) in [("--no-history", false), ("-q", true)] {
        let (home, model) = (Home::new(), chat_gguf());
        let args = ["run", model.to_str().unwrap(), "--max-tokens", "2", flag];
        let Some(mut child) = on_a_terminal(&home, &args) else {
            return;
        };
        ready(&mut child);
        type_in(&mut child, "hello\r");
        ready(&mut child);
        type_in(&mut child, "\x04");
        assert_eq!(ended(child).0.code(), Some(0));
        assert_eq!(home.path("cache/history").exists(), keeps, "{flag}");
    }
}

#[test]
fn json_needs_a_prompt() {
    let (home, model) = (Home::new(), chat_gguf());
    let Some(mut child) = on_a_terminal(&home, &["run", model.to_str().unwrap(), "--json"]) else {
        return;
    };
    let said = until(&mut child, "for a conversation");
    assert!(
        said.contains("--json needs a prompt") && said.contains("without --json"),
        "{said}"
    );
    let _ = child.wait();
}

/// Errors quote names and text of others: neither steers a terminal, also from a file later.
#[test]
fn errors_have_no_control_characters() {
    let home = Home::new();
    let file = home.path("missing\u{1b}[31m\u{9b}.gguf");
    let args = ["run", file.to_str().unwrap(), "hello"];
    let piped = home.thane(&args).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&piped.stderr);
    assert!(
        said.contains("missing\u{241b}[31m\u{fffd}.gguf") && !said.contains('\u{1b}'),
        "{said:?}"
    );
    let quoted = format!("'{}'", file.to_str().unwrap());
    let Some(mut child) = on_a_terminal(&home, &["run", &quoted, "hello"]) else {
        return;
    };
    let said = until(&mut child, "\n");
    assert!(
        said.contains("missing\u{241b}[31m\u{fffd}.gguf") && !said.contains("\u{1b}[31m"),
        "{said:?}"
    );
    let _ = child.wait();
}

/// Issue 30, 4: text on stdin follows the prompt.
#[test]
fn text_on_stdin_follows_the_prompt() {
    let (home, model) = (Home::new(), chat_gguf());
    let ids = |args: &[&str], stdin: &[u8]| {
        let args = [
            &[
                "run",
                model.to_str().unwrap(),
                "--json",
                "--max-tokens",
                "1",
            ],
            args,
        ]
        .concat();
        let mut child = spawn(home.thane(&args).stdin(Stdio::piped()));
        child.stdin.take().unwrap().write_all(stdin).unwrap();
        let output = child.wait_with_output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["prompt_tokens"].clone()
    };
    assert_eq!(
        ids(&["hello"], b"the sea\n"),
        ids(&["hello\n\nthe sea"], b"")
    );
    assert_ne!(ids(&["hello"], b"the sea\n"), ids(&["hello"], b""));
}
