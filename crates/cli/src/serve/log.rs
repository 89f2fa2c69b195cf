//! The log of a server: lines of JSON, written by a thread of its own, so that no request waits for
//! a disk or a pipe.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use thane_mil::package::private_options;
use thane_runtime::rfc3339;
use thane_serve::{LogEntry, LogSink, join_within, lock};

use crate::exit::Failure;
use crate::serve::models::complain;
use crate::small::refuse_named_pipe;

/// Lines that wait to be written; more are lost, and counted.
const MAX_WAITING: usize = 4096;
/// How long what waits may take at the end: nobody may read the pipe.
const CLOSE_TIME: Duration = Duration::from_millis(500);

/// A log that is open. What waits is written when it is dropped.
pub struct Log {
    file: Option<PathBuf>,
    lines: Arc<Mutex<Option<SyncSender<String>>>>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

/// State that the writing thread of a log shares with its senders.
#[derive(Default)]
struct State {
    n_lost: AtomicU64,
    /// Whether the file is to be opened again.
    is_moved: AtomicBool,
}

impl Log {
    /// Opens a file, to write at its end, or stdout (`-`).
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let to = open(path).map_err(|e| unwritten(path, &e))?;
        let (lines, waiting) = sync_channel(MAX_WAITING);
        let state: Arc<State> = Arc::default();
        let (of_thread, name) = (Arc::clone(&state), path.to_owned());
        let thread = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write(to, &name, &waiting, &of_thread))?;
        Ok(Self {
            file: (!is_stdout(path)).then(|| path.to_owned()),
            lines: Arc::new(Mutex::new(Some(lines))),
            state,
            thread: Some(thread),
        })
    }

    /// Opens the file again: somebody may have moved it away.
    pub fn reopen(&self) {
        self.state.is_moved.store(true, Ordering::Relaxed);
        let lines = lock(&self.lines);
        if let Some(lines) = &*lines {
            // Wakes the thread, which is awake if this does not fit.
            let _ = lines.try_send(String::new());
        }
    }

    /// Whether lines go to stdout.
    pub fn is_stdout(&self) -> bool {
        self.file.is_none()
    }

    /// The file; `None` for stdout.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Writes that the server is ready.
    pub fn started(&self, address: &str, models: &[String]) {
        let pid = std::process::id();
        let line = json!({
            "time": rfc3339(SystemTime::now()),
            "event": "started",
            "address": address,
            "pid": pid,
            "models": models,
        });
        send(&self.lines, &self.state, &line);
    }

    /// Takes the names of models that were loaded again, and why one was not.
    pub fn reload_sink(&self) -> impl Fn(&str, Option<&str>) + Send + Sync + use<> {
        let (lines, state) = (Arc::clone(&self.lines), Arc::clone(&self.state));
        move |model, error| {
            let line = json!({
                "time": rfc3339(SystemTime::now()),
                "event": "reloaded",
                "model": model,
                "error": error,
            });
            send(&lines, &state, &line);
        }
    }

    /// Takes entries.
    pub fn sink(&self) -> LogSink {
        let (lines, state) = (Arc::clone(&self.lines), Arc::clone(&self.state));
        Arc::new(move |entry| send(&lines, &state, &shown(entry)))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let line = json!({"time": rfc3339(SystemTime::now()), "event": "stopped"});
        send(&self.lines, &self.state, &line);
        // The thread ends with the last line.
        let mut lines = lock(&self.lines);
        drop(lines.take());
        drop(lines);
        if let Some(thread) = self.thread.take()
            && !join_within(thread, CLOSE_TIME)
        {
            complain("the last lines of the log are lost: nobody takes them");
        }
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// A file of the user alone, to write at its end, or stdout.
fn open(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    if is_stdout(path) {
        return Ok(Box::new(io::stdout()));
    }
    refuse_named_pipe(path)?;
    let opened = private_options().append(true).create(true).open(path);
    Ok(Box::new(opened?))
}

fn send(lines: &Mutex<Option<SyncSender<String>>>, state: &State, line: &Value) {
    let lines = lock(lines);
    let Some(lines) = &*lines else { return };
    if lines.try_send(format!("{line}\n")).is_err() {
        state.n_lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes lines as they come. What was lost before a line is told in one before it; that it cannot
/// be written is told on stderr, once until it can be again.
fn write(mut to: Box<dyn Write + Send>, path: &Path, lines: &Receiver<String>, state: &State) {
    let mut is_told = false;
    let name = path.display();
    for line in lines {
        if state.is_moved.swap(false, Ordering::Relaxed) {
            match open(path) {
                Ok(opened) => to = opened,
                Err(e) => complain(&format!("{name}: the log goes on where it was: {e}")),
            }
        }
        if line.is_empty() {
            continue;
        }
        let n = state.n_lost.swap(0, Ordering::Relaxed);
        let mut text = String::new();
        if n > 0 {
            text = format!("{}\n", json!({"event": "lost", "lines": n}));
        }
        text.push_str(&line);
        let written = to.write_all(text.as_bytes()).and_then(|()| to.flush());
        if let Err(error) = &written {
            // A full disk may have room again.
            state.n_lost.fetch_add(n + 1, Ordering::Relaxed);
            if !is_told {
                complain(&format!("{name}: lines of the log are lost: {error}"));
            }
        }
        is_told = written.is_err();
    }
}

fn shown(entry: &LogEntry<'_>) -> Value {
    let ms = entry.time.as_secs_f64() * 1e3;
    json!({
        "time": rfc3339(SystemTime::now()),
        "request": entry.request,
        "method": entry.method,
        "route": entry.route,
        "status": entry.status,
        "ms": (ms * 1e3).round() / 1e3,
        "prompt_tokens": entry.prompt_tokens,
        "answer_tokens": entry.answer_tokens,
        "whole": entry.is_whole,
    })
}

/// An entry as a line for people.
pub fn line(entry: &LogEntry<'_>) -> String {
    let status = match entry.status {
        Some(status) if entry.is_whole => status.to_string(),
        Some(status) => format!("{status}, broken off"),
        None => "broken off".to_owned(),
    };
    format!(
        "{} {}: {status}, {:.0} ms, {} + {} tokens, {}",
        entry.method,
        entry.route,
        entry.time.as_secs_f64() * 1e3,
        entry.prompt_tokens,
        entry.answer_tokens,
        entry.request
    )
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let text = format!("{}: the log cannot be written: {error}", path.display());
    other!(text)
}
