//! Terminal output: data on stdout, progress and notes on stderr, a progress bar only if stderr is
//! a terminal.
//!
//! With `--json` a verb prints exactly one JSON object and a line break on stdout. Its fields are
//! documented on the struct that the verb serializes; fields are added but never removed.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;

use thane_hub::Progress;
use thane_serve::lock;

pub use thane_audit::number::{bytes, counted};

use crate::screen::{Wrap, printable, printable_painted};

/// Work that takes less time shows nothing.
const BUSY: Duration = Duration::from_millis(400);
/// How often the elapsed time is updated.
const TICK: Duration = Duration::from_millis(200);

/// How much is printed, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    pub json: bool,
    pub quiet: bool,
    pub verbose: bool,
    pub color: bool,
    /// Whether the terminal can redraw a line.
    pub bars: bool,
}

/// The only place that writes to stdout and stderr.
pub struct Output {
    style: Style,
    bars: bool,
    bar: Mutex<Option<ProgressBar>>,
    /// Whether the cursor is behind text that no line break ended.
    in_line: AtomicBool,
    /// Notes that were printed.
    noted: Mutex<HashSet<String>>,
    stdout_is_terminal: bool,
    /// Settings of the terminal before a line editor or an answer changed them, while that lasts.
    #[cfg(unix)]
    before_editor: Mutex<Option<nix::sys::termios::Termios>>,
}

impl Output {
    pub fn new(style: Style) -> Self {
        let bars = style.bars && io::stderr().is_terminal() && !style.quiet;
        Self {
            style,
            bars,
            bar: Mutex::new(None),
            in_line: AtomicBool::new(false),
            noted: Mutex::new(HashSet::new()),
            stdout_is_terminal: io::stdout().is_terminal(),
            #[cfg(unix)]
            before_editor: Mutex::new(None),
        }
    }

    pub fn is_json(&self) -> bool {
        self.style.json
    }

    /// Whether `--verbose` was given.
    pub fn is_verbose(&self) -> bool {
        self.style.verbose
    }

    /// Whether stdout shows colors.
    pub fn paints_stdout(&self) -> bool {
        self.style.color && io::stdout().is_terminal()
    }

    /// Prints data and flushes it, so that a stream of text shows as it comes. On a terminal,
    /// control characters are shown as symbols; elsewhere no byte is changed.
    pub fn data(&self, text: &str) -> io::Result<()> {
        if self.stdout_is_terminal {
            self.write(&printable(text))
        } else {
            self.write(text)
        }
    }

    /// As [`Output::data`], for text that this program colored.
    pub fn painted(&self, text: &str) -> io::Result<()> {
        if self.stdout_is_terminal {
            self.write(&printable_painted(text))
        } else {
            self.write(text)
        }
    }

    /// Columns of stdout; `None` if it is no terminal.
    pub fn columns(&self) -> Option<usize> {
        let (width, _) = terminal_size::terminal_size_of(io::stdout())?;
        self.stdout_is_terminal
            .then_some(usize::from(width.0))
            .filter(|n| *n >= LEAST_COLUMNS)
    }

    /// Removes the progress bar and writes to stdout.
    fn write(&self, text: &str) -> io::Result<()> {
        self.clear();
        if let Some(last) = text.chars().next_back() {
            self.in_line.store(last != '\n', Ordering::Relaxed);
        }
        let mut out = io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(of_stdout)
    }

    /// Reads a line with an editor, which changes settings of the terminal. [`Output::tidy`]
    /// restores them if a signal arrives meanwhile.
    pub fn at_prompt<T>(&self, read: impl FnOnce() -> T) -> T {
        #[cfg(unix)]
        {
            self.set_before_editor(nix::sys::termios::tcgetattr(io::stdin()).ok());
        }
        self.in_line.store(true, Ordering::Relaxed);
        let line = read();
        self.in_line.store(false, Ordering::Relaxed);
        #[cfg(unix)]
        self.set_before_editor(None);
        line
    }

    /// Runs `answer` on a terminal that does not echo Ctrl-C as `^C` between the words of its text.
    /// Settings of the terminal are restored afterwards, or by [`Output::tidy`].
    pub fn in_answer<T>(&self, answer: impl FnOnce() -> T) -> T {
        #[cfg(unix)]
        {
            use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
            let before = tcgetattr(io::stdin()).ok();
            if let Some(mut quiet) = before.clone() {
                quiet.local_flags.remove(LocalFlags::ECHOCTL);
                let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &quiet);
            }
            self.set_before_editor(before.clone());
            let answer = answer();
            self.set_before_editor(None);
            if let Some(before) = before {
                let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
            }
            answer
        }
        #[cfg(not(unix))]
        answer()
    }

    #[cfg(unix)]
    fn set_before_editor(&self, settings: Option<nix::sys::termios::Termios>) {
        *lock(&self.before_editor) = settings;
    }

    /// Whether the last text did not end with a line break.
    pub fn is_in_line(&self) -> bool {
        self.in_line.load(Ordering::Relaxed)
    }

    /// Restores the terminal: no progress bar, the cursor at the start of a line.
    pub fn tidy(&self) {
        self.clear();
        #[cfg(unix)]
        if let Some(before) = lock(&self.before_editor).take() {
            use nix::sys::termios::{SetArg, tcsetattr};
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
            // The editor enabled bracketed paste.
            let _ = write!(io::stderr(), "\x1b[?2004l");
        }
        // Not through `io::stdout`: a thread that waits for a reader may hold its lock.
        if self.in_line.swap(false, Ordering::Relaxed) && io::stderr().is_terminal() {
            let _ = writeln!(io::stderr());
        }
    }

    /// Prints one JSON object on one line; of a long one, no copy is made but for a terminal.
    pub fn json(&self, value: &impl Serialize) -> io::Result<()> {
        if self.stdout_is_terminal {
            return self.data(&(serde_json::to_string(value)? + "\n"));
        }
        self.clear();
        self.in_line.store(false, Ordering::Relaxed);
        let mut out = io::BufWriter::new(io::stdout().lock());
        let written = serde_json::to_writer(&mut out, value).map_err(io::Error::from);
        let written = written.and_then(|()| out.write_all(b"\n"));
        written.and_then(|()| out.flush()).map_err(of_stdout)
    }

    /// Prints a report: with `--json` as such, otherwise its text.
    pub fn report<R: Serialize>(
        &self,
        report: &R,
        text: impl FnOnce(&R) -> String,
    ) -> io::Result<()> {
        match self.is_json() {
            true => self.json(report),
            false => self.data(&text(report)),
        }
    }

    /// Prints a line on stderr, unless `--quiet`.
    pub fn say(&self, line: &str) {
        if !self.style.quiet {
            self.line(line);
        }
    }

    /// Prints a note on stderr, unless `--quiet` or it was printed before: a verb may open a model
    /// several times.
    pub fn say_once(&self, note: &str) {
        if lock(&self.noted).insert(note.to_owned()) {
            self.say(note);
        }
    }

    /// Prints a line on stderr with `--verbose`.
    pub fn explain(&self, line: &str) {
        if self.style.verbose {
            self.line(line);
        }
    }

    /// Shows a progress bar that counts items, `done` of which are done. It replaces the one
    /// before.
    pub fn count(&self, what: &str, total: Option<u64>, done: u64) {
        if self.bars {
            let figures = ["{human_pos}", "{human_len}", "{rate}"];
            self.show(what, figures, total, done);
        }
    }

    /// Shows work of unknown length with its elapsed time, after a short delay. The line disappears
    /// when something else is shown or printed, or [`Output::clear`] is called.
    pub fn busy(&self, what: &str) {
        if !self.bars {
            return;
        }
        self.clear();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(
            ProgressStyle::with_template("{spinner} {msg} {elapsed}")
                .expect("the template is a literal"),
        );
        bar.set_message(printable(what).into_owned());
        let shown = bar.clone();
        std::thread::spawn(move || {
            std::thread::sleep(BUSY);
            if !shown.is_finished() {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(TICK);
            }
        });
        *lock(&self.bar) = Some(bar);
    }

    /// Shows how much of all stages is done, and the time that is left. The bar stays the one of
    /// the stage before, so that its rate counts.
    pub fn stage(&self, what: &str, total: u64, done: u64) {
        if !self.bars {
            return;
        }
        let message = printable(&shortened(what)).into_owned();
        if let Some(bar) = lock(&self.bar)
            .as_ref()
            .filter(|bar| bar.length().is_some())
        {
            bar.set_message(message);
            bar.set_length(total);
            return bar.set_position(done);
        }
        self.show(what, ["{percent}", "100 %", ""], Some(total), done);
        if let Some(bar) = &*lock(&self.bar) {
            bar.enable_steady_tick(TICK);
        }
    }

    /// Counts `n` more items.
    pub fn advance(&self, n: u64) {
        if let Some(bar) = &*lock(&self.bar) {
            bar.inc(n);
        }
    }

    /// Shows what is done, of how much, and how fast: `figures` name them.
    fn show(&self, what: &str, [is_done, all, rate_of]: [&str; 3], total: Option<u64>, done: u64) {
        self.clear();
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let wide = if self.style.color { ":.cyan/blue" } else { "" };
        let template = match total {
            Some(_) => {
                let rate_of = format!(" {rate_of}");
                let rate_of = rate_of.trim_end();
                format!("{{msg}} {{wide_bar{wide}}} {is_done}/{all}{rate_of}, {{left}} left")
            }
            None => format!("{{msg}} {{spinner}} {is_done} {rate_of}"),
        };
        let style = ProgressStyle::with_template(&template).expect("the templates are known");
        bar.set_style(style.with_key("rate", rate).with_key("left", left));
        bar.set_message(printable(&shortened(what)).into_owned());
        bar.set_position(done);
        bar.reset_eta();
        *lock(&self.bar) = Some(bar);
    }

    /// Removes the progress bar.
    pub fn clear(&self) {
        if let Some(bar) = lock(&self.bar).take() {
            bar.finish_and_clear();
        }
    }

    fn line(&self, line: &str) {
        let line = for_stderr(line);
        let write = || {
            // A closed stderr is no reason to stop.
            let _ = writeln!(io::stderr(), "{line}");
        };
        match &*lock(&self.bar) {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Progress for Output {
    fn start(&self, what: &str, total: Option<u64>, done: u64) {
        self.clear();
        if !self.bars {
            let size = total.map(|n| format!(" ({})", bytes(n)));
            let rest = (done > 0).then(|| format!(", going on at {}", bytes(done)));
            let (size, rest) = (size.unwrap_or_default(), rest.unwrap_or_default());
            return self.say(&format!("{what}{size}{rest}"));
        }
        let figures = [
            "{decimal_bytes}",
            "{decimal_total_bytes}",
            "{decimal_bytes_per_sec}",
        ];
        self.show(what, figures, total, done);
    }

    fn set(&self, done: u64) {
        if let Some(bar) = &*lock(&self.bar) {
            bar.set_position(done);
        }
    }

    fn finish(&self) {
        self.clear();
    }

    fn note(&self, line: &str) {
        self.say(line);
    }

    fn detail(&self, line: &str) {
        self.explain(line);
    }
}

/// Items a second, with as many digits as mean something.
fn rate(state: &ProgressState, to: &mut dyn fmt::Write) {
    let rate = state.per_sec();
    let _ = match rate {
        r if r >= 10.0 => write!(to, "{r:.0}/s"),
        r => write!(to, "{r:.1}/s"),
    };
}

/// The time that is left: `2 min`, `40 s`.
fn left(state: &ProgressState, to: &mut dyn fmt::Write) {
    let _ = match state.pos() {
        // Nothing is known of the rate.
        0 => to.write_str("?"),
        _ => to.write_str(&duration(state.eta())),
    };
}

fn duration(time: Duration) -> String {
    match time.as_secs() {
        s if s < 90 => format!("{s} s"),
        s if s < 90 * 60 => format!("{} min", (s + 30) / 60),
        s => format!("{} h", (s + 1800) / 3600),
    }
}

/// A message that leaves room for numbers in a line of 80 columns.
fn shortened(what: &str) -> Cow<'_, str> {
    const MOST: usize = 30;
    match what.chars().count() > MOST {
        // The end of a path says more than its beginning.
        true => {
            let skipped = what.chars().count() - MOST + 2;
            format!("..{}", what.chars().skip(skipped).collect::<String>()).into()
        }
        false => what.into(),
    }
}

/// An error of stdout, which says so; a closed pipe stays one.
pub fn of_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("stdout: {error}"))
}

/// Text for stderr. Control characters are shown as symbols: what is written to a file is shown on
/// a terminal later. On a terminal, lines are wrapped between words; lines with a command to copy
/// are not wrapped.
pub fn for_stderr(text: &str) -> Cow<'_, str> {
    let text = printable(text);
    if !io::stderr().is_terminal() {
        return text;
    }
    match terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| usize::from(width.0)) {
        Some(width) if width >= LEAST_COLUMNS => broken(&text, width).into(),
        _ => text,
    }
}

/// Terminals with fewer columns do not wrap.
const LEAST_COLUMNS: usize = 20;

fn broken(text: &str, width: usize) -> String {
    let one = |line: &str| {
        if line.trim_start().starts_with("try: ") {
            return line.to_owned();
        }
        let mut wrap = Wrap::new(width);
        let shown = wrap.push(line);
        shown + &wrap.finish()
    };
    let mut out = text.split('\n').map(one).collect::<Vec<_>>().join("\n");
    out.truncate(out.trim_end_matches(' ').len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_stderr_are_broken_but_for_commands() {
        let text =
            "thane: one two three four\n  because: five\n  try: thane run x with a long command";
        let shown =
            "thane: one two\nthree four\n  because: five\n  try: thane run x with a long command";
        assert_eq!(broken(text, 16), shown);
    }

    #[test]
    fn times_that_are_left_are_short() {
        for (seconds, text) in [(0, "0 s"), (89, "89 s"), (120, "2 min"), (7200, "2 h")] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
        assert_eq!(shortened("embedding"), "embedding");
        let path = "/tmp/a/very/long/path/of/some/file.safetensors";
        assert_eq!(shortened(path).chars().count(), 30);
    }
}
