//! Exit codes, and the error type that carries them.
//!
//! [`Code::meaning`] is the table for all verbs; `thane --help` and docs/output.md repeat it. A
//! closed stdout (`thane ls | head -1`) is no error: it ends with 0, or with the verdict of a
//! command that has one.
//!
//! An input that cannot be read ends with 2, an output that cannot be written with 1.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use thane_hub::one_line;
use thane_mil::budget::OverBudget;
use thane_mil::data::Truncated;

use crate::output::for_stderr;

/// As the function [`usage`], with a formatted text.
macro_rules! usage {
    ($($text:tt)*) => { $crate::exit::usage(anyhow::anyhow!($($text)*)) };
}

/// As the function [`other`], with a formatted text.
macro_rules! other {
    ($($text:tt)*) => { $crate::exit::other(anyhow::anyhow!($($text)*)) };
}

/// The result of a verb.
pub type Outcome = Result<(), Failure>;

/// The exit codes of all verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Ok = 0,
    Other = 1,
    Usage = 2,
    Network = 5,
    Interrupted = 130,
}

impl Code {
    pub const ALL: [Self; 5] = [
        Self::Ok,
        Self::Other,
        Self::Usage,
        Self::Network,
        Self::Interrupted,
    ];

    /// When the program ends with this code.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "success",
            Self::Other => {
                "a requirement, comparison or quality gate does not hold, or the machine failed (disk full)"
            }
            Self::Usage => "usage error, or invalid or damaged input",
            Self::Network => {
                "network error: unreachable, refused, wrong bytes, or not in the cache while offline"
            }
            Self::Interrupted => "interrupted",
        }
    }

    /// The code of another process of this program. A process that a signal ended has none.
    pub fn of_process(status: Option<i32>) -> Self {
        Self::ALL
            .into_iter()
            .find(|code| Some(*code as i32) == status)
            .unwrap_or(Self::Other)
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

/// An error for the user: exit code, chain of causes, and what the user can do.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    error: anyhow::Error,
    remedies: Vec<String>,
}

impl Failure {
    /// A failure with this code. Too little memory and truncated files are faults of the input, so
    /// they always get [`Code::Usage`].
    pub fn new(code: Code, error: impl Into<anyhow::Error>) -> Self {
        let mut failure = Self {
            code,
            error: error.into(),
            remedies: Vec::new(),
        };
        if failure.lacks_memory() {
            failure.code = Code::Usage;
            return failure.remedy("--memory SIZE, where the machine has more");
        }
        if failure.error.chain().any(|cause| cause.is::<Truncated>()) {
            failure.code = Code::Usage;
        }
        failure
    }

    /// The failure of `--json` where the output has no such form.
    pub fn no_json(what: &str) -> Self {
        usage!("--json is given, and {what} has no such form").remedy("the same without --json")
    }

    /// Adds a line that says what the user can do.
    #[must_use]
    pub fn remedy(mut self, line: impl Into<String>) -> Self {
        self.remedies.push(one_line(&line.into()));
        self
    }

    /// Writes `name` where remedies have `path`: what the user typed, in place of where it lies.
    #[must_use]
    pub fn naming(mut self, path: &str, name: &str) -> Self {
        for remedy in &mut self.remedies {
            *remedy = remedy.replace(path, name);
        }
        self
    }

    /// Puts `instead` in the place of remedies that name a flag which the command lacks.
    #[must_use]
    pub fn without_flag(mut self, flag: &str, instead: &str) -> Self {
        for remedy in self.remedies.iter_mut().filter(|r| r.contains(flag)) {
            instead.clone_into(remedy);
        }
        self
    }

    /// The error, with its causes.
    pub fn error(&self) -> &anyhow::Error {
        &self.error
    }

    /// Whether there was too little memory.
    pub fn lacks_memory(&self) -> bool {
        self.error.chain().any(|cause| cause.is::<OverBudget>())
    }

    /// Whether there would be too little memory also if nothing else took any.
    pub fn never_fits(&self) -> bool {
        let mut causes = self.error.chain();
        causes.any(|cause| cause.downcast_ref().is_some_and(OverBudget::never_fits))
    }

    /// The exit code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Prints `thane: what`, then each cause and each remedy on its own line. Control
    /// characters are shown as symbols: the text may come from a file or a server.
    pub fn print(&self, to: &mut impl Write) -> io::Result<()> {
        if self.code == Code::Ok {
            return Ok(());
        }
        let mut text = format!("thane: {}\n", self.error);
        let mut said = self.error.to_string();
        for cause in self.error.chain().skip(1).map(ToString::to_string) {
            // Some errors repeat their cause in their own text.
            if !said.ends_with(&cause) {
                text.push_str(&format!("  because: {cause}\n"));
                said = cause;
            }
        }
        self.remedies
            .iter()
            .for_each(|line| text.push_str(&format!("  try: {line}\n")));
        to.write_all(for_stderr(&without_os_numbers(&text)).as_bytes())
    }
}

/// The failure of a wrong command, or of an input that cannot be used.
pub fn usage(error: impl Into<anyhow::Error>) -> Failure {
    Failure::new(Code::Usage, error)
}

/// As [`usage`], naming the file or folder at fault.
pub fn usage_in<E: Into<anyhow::Error>>(path: &Path) -> impl Fn(E) -> Failure {
    |error| usage(error.into().context(path.display().to_string()))
}

/// The failure of a requirement or comparison that does not hold, or of the machine.
pub fn other(error: impl Into<anyhow::Error>) -> Failure {
    Failure::new(Code::Other, error)
}

/// The failure of work that the user interrupted.
pub fn interrupted() -> Failure {
    Failure::new(Code::Interrupted, anyhow::anyhow!("interrupted"))
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl std::error::Error for Failure {}

/// The text without ` (os error 2)`, which repeats what stands before it.
pub fn without_os_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(" (os error ") {
        let digits = behind.trim_start_matches(|c: char| c.is_ascii_digit());
        out.push_str(before);
        rest = match digits.strip_prefix(')') {
            Some(rest) => rest,
            None => {
                out.push_str(" (os error ");
                behind
            }
        };
    }
    out + rest
}

/// The result of printing a report whose verdict decides the exit code: a closed stdout does not.
pub fn even_unread(printed: io::Result<()>) -> io::Result<()> {
    printed.or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    })
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        anyhow::Error::new(error).into()
    }
}

/// A closed stdout ends the program silently with 0.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
        let code = match error.downcast_ref().is_some_and(closed) {
            true => Code::Ok,
            false => Code::Other,
        };
        Self::new(code, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_and_remedies_follow_on_their_own_lines() {
        let error = anyhow::anyhow!("inner").context("outer");
        let failure = Failure::new(Code::Usage, error).remedy("this");
        let mut text = Vec::new();
        failure.print(&mut text).unwrap();
        assert_eq!(text, b"thane: outer\n  because: inner\n  try: this\n");
    }

    #[test]
    fn numbers_of_the_system_are_left_out() {
        for (text, shown) in [
            ("x: No such file (os error 2)\n", "x: No such file\n"),
            ("a (os error 13), b (os error x)", "a, b (os error x)"),
        ] {
            assert_eq!(without_os_numbers(text), shown);
        }
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("no such file")
            .context("x.mil: no such file")
            .context("outer");
        let mut text = Vec::new();
        Failure::new(Code::Usage, error).print(&mut text).unwrap();
        assert_eq!(text, b"thane: outer\n  because: x.mil: no such file\n");
    }

    #[test]
    fn memory_that_is_not_there_is_the_inputs_doing() {
        let budget = thane_mil::budget::Budget::new(10);
        let error = budget.reserve(11, || "tensor `x`".to_owned()).unwrap_err();
        let failure = Failure::new(Code::Other, anyhow::Error::new(error).context("outer"));
        let mut text = Vec::new();
        failure.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("tensor `x` needs 11 B")
                && text.ends_with("  try: --memory SIZE, where the machine has more\n"),
            "{text}"
        );
        assert_eq!(failure.code(), Code::Usage);
    }

    #[test]
    fn a_process_ends_as_its_code_says() {
        for code in Code::ALL {
            assert_eq!(Code::of_process(Some(code as i32)), code);
        }
        assert_eq!(
            (Code::of_process(None), Code::of_process(Some(101))),
            (Code::Other, Code::Other)
        );
    }

    #[test]
    fn what_does_not_fit_in_memory_is_the_fault_of_the_input() {
        let error = thane_mil::budget::Budget::new(10)
            .reserve(11, || "a tensor".into())
            .unwrap_err();
        let failure = Failure::new(Code::Other, anyhow::Error::new(error).context("x.npy"));
        let mut text = Vec::new();
        failure.print(&mut text).unwrap();
        let lines = "thane: x.npy\n  because: a tensor needs 11 B of memory, but 0 B of the allowed 10 B are already in use\n  \
                     try: --memory SIZE, where the machine has more\n";
        assert_eq!(
            (failure.code(), String::from_utf8(text).unwrap().as_str()),
            (Code::Usage, lines)
        );
    }

    #[test]
    fn a_closed_pipe_is_quiet() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        let mut text = Vec::new();
        failure.print(&mut text).unwrap();
        assert_eq!((failure.code(), text.len()), (Code::Ok, 0));
    }
}
