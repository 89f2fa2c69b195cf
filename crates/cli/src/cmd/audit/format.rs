//! The forms that a report is written in, and where to.

use std::path::Path;

use clap::ValueEnum;
use thane_audit::format::text::{Detail, Paint};
use thane_audit::format::{concise, html, json, sarif, text};
use thane_audit::report::{Report, Subject};

use super::Args;
use crate::app::App;
use crate::audit::subject;
use crate::exit::{Failure, Outcome, even_unread, other, usage};
use crate::out;
use crate::screen::painted_unless_escaped;

/// The values of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// A table, and what is found, by rule.
    Text,
    /// A line for each finding.
    Concise,
    /// Everything; docs/json.md has its fields.
    Json,
    /// SARIF 2.1.0, for code review.
    Sarif,
    /// One page that needs no network.
    Html,
    /// The program, with what Apple's compiler would note at each op.
    Mil,
}

impl Format {
    /// Extensions of files in this format; the first is suggested.
    fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Text => &["txt", "md", "log"],
            Self::Concise => &[],
            Self::Json => &["json"],
            Self::Sarif => &["sarif"],
            Self::Html => &["html", "htm"],
            Self::Mil => &["mil"],
        }
    }

    /// The format of a file of this name.
    pub(super) fn of_file(path: &Path) -> Result<Option<Self>, Failure> {
        let Some(extension) = path.extension() else {
            return Ok(None);
        };
        let extension = extension.to_string_lossy().to_ascii_lowercase();
        let formats = Self::value_variants();
        let found = formats
            .iter()
            .find(|format| format.extensions().contains(&extension.as_str()));
        if let Some(format) = found {
            return Ok(Some(*format));
        }
        let known = formats.iter().filter_map(|f| f.extensions().first());
        let known: Vec<String> = known.map(|extension| format!(".{extension}")).collect();
        let failure = usage!(
            "{}: expected a name that ends in {}, found .{extension}",
            path.display(),
            known.join(", ")
        )
        .remedy("--format FORMAT, which holds for any name");
        Err(match extension.as_str() {
            "mlpackage" => failure.remedy("--fix, which writes a package"),
            _ => failure,
        })
    }
}

/// `--json` is `--format json`; both must not say different things.
pub(super) fn format(args: &Args, app: &App) -> Result<Format, Failure> {
    match (args.format, app.output.is_json()) {
        (None | Some(Format::Json), true) => Ok(Format::Json),
        (Some(_), true) => {
            Err(usage!("--json and --format ask for different forms").remedy("one of them"))
        }
        (Some(format), false) => Ok(format),
        (None, false) => {
            let named = args.out.as_deref().map(Format::of_file).transpose()?;
            Ok(named.flatten().unwrap_or(Format::Text))
        }
    }
}

pub(super) fn printed(
    report: &Report,
    subject: &Subject,
    format: Format,
    args: &Args,
    app: &App,
) -> Result<String, Failure> {
    match format {
        Format::Json => json::print(report).map_err(other),
        Format::Sarif => {
            let lines = subject::lines(subject, args.path()).map_err(usage)?;
            let path = subject::relative(&report.subject.name);
            sarif::print(report, &path, lines.as_ref()).map_err(other)
        }
        Format::Html => html::print(report).map_err(other),
        Format::Concise => {
            let lines = subject::lines(subject, args.path()).map_err(other)?;
            Ok(concise::print(report, lines.as_ref(), args.out.is_some()))
        }
        Format::Text | Format::Mil => {
            let detail = Detail {
                all: app.output.is_verbose(),
                failures: args.out.is_some(),
                latency: args.explain_latency,
            };
            let print = |paints| text::print(report, Paint(paints), detail);
            let plain = print(false);
            if args.out.is_none() && app.output.paints_stdout() {
                return Ok(painted_unless_escaped(&plain, || print(true)));
            }
            let is_markdown = args
                .out
                .as_deref()
                .and_then(Path::extension)
                .is_some_and(|e| e.eq_ignore_ascii_case("md"));
            // A fence keeps its columns.
            Ok(match is_markdown && args.format.is_none() {
                true => fenced(&plain),
                false => plain,
            })
        }
    }
}

/// A code block of Markdown, with a fence that is longer than any in the text.
fn fenced(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    format!("{fence}text\n{text}{fence}\n")
}

/// Writes to `-o` or stdout; `is_painted` says that escape sequences in the text are this
/// program's own.
pub(super) fn write(text: &str, is_painted: bool, args: &Args, app: &App) -> Outcome {
    let Some(out) = &args.out else {
        let printed = match is_painted {
            true => app.output.painted(text),
            false => app.output.data(text),
        };
        return Ok(even_unread(printed)?);
    };
    let _writing = app.interrupt.writing(out);
    out::write(out, args.force, text.as_bytes())?;
    let path = format!("{}\n", out.display());
    // With --json, stdout has JSON or nothing.
    if !app.output.is_json() {
        even_unread(app.output.data(&path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_longer_than_any_in_the_text() {
        for (text, fence) in [("x `y`", "```"), ("a```b````c", "`````")] {
            assert_eq!(fenced(text), format!("{fence}text\n{text}{fence}\n"));
        }
    }
}
