//! `POST /audit`: predicts where the ops of an uploaded package run on Apple hardware, as
//! `thane audit` does. The body is a zip archive; the answer is the report as JSON, or as a page
//! with `format=html`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use percent_encoding::percent_decode_str;
use thane_audit::format::html;
use thane_audit::report::{Scope, Subject, build_until, files};
use thane_audit::target::{Route, Target, Units};
use thane_mil::budget::{Budget, Reservation};
use thane_mil::package::Package;
use thane_mil::program::{Function, OpId};
use tokio::sync::oneshot;

use super::Shared;
use crate::apart::Freed;
use crate::body::{collect, most_memory_of};
use crate::deadline;
use crate::error::{Answered, ApiError, of_cause};
use crate::upload::{too_large, unpack};
use crate::written::{Writer, Written};

/// How long a client may take to send an archive.
const READ_TIME: Duration = Duration::from_secs(300);
/// Most targets of a report.
const MAX_TARGETS: usize = 8;

/// What the query of the request asks for.
#[derive(Debug, PartialEq)]
struct Wish {
    targets: Vec<Target>,
    is_html: bool,
}

pub(super) async fn create(
    State(app): Shared,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    let wish = Wish::parse(query.as_deref().unwrap_or_default())?;
    let max_bytes = app.uploads.max_bytes;
    let n = declared_bytes(&headers)?;
    if n > max_bytes {
        return Err(too_large("an archive", max_bytes));
    }
    // Whoever sends slowly, or nothing, takes nobody's turn.
    drop(app.uploads.turn()?);
    let budget = app.uploads.budget.clone();
    let limits = (n, READ_TIME);
    let read = collect(body, limits, &budget, || too_large("an archive", max_bytes));
    let (archive, held) = read.await?;
    let turn = app.uploads.turn()?;
    let is_html = wish.is_html;
    let (caller, waiting) = oneshot::channel::<()>();
    let audited = async {
        let _waiting = waiting;
        // Ends soon after nobody waits for it, and keeps its turn until it ends.
        let audited = tokio::task::spawn_blocking(move || {
            let _kept = (turn, held);
            audit(&archive, &wish, (max_bytes, &budget), &|| {
                caller.is_closed()
            })
        });
        let failed = |_| ApiError::failed("the package could not be audited");
        audited.await.map_err(failed)?
    };
    let written = deadline::within(app.uploads.answer_time, audited).await?;
    Ok(response(written, is_html))
}

/// The length of the body, which must be known before memory is taken for it.
fn declared_bytes(headers: &HeaderMap) -> Result<usize, ApiError> {
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
    length.ok_or_else(|| {
        let message = "expected the header Content-Length, found none";
        ApiError::new(StatusCode::LENGTH_REQUIRED, message)
    })
}

fn audit(
    archive: &Bytes,
    wish: &Wish,
    (max_bytes, budget): (usize, &Budget),
    is_gone: &dyn Fn() -> bool,
) -> Result<Written, ApiError> {
    let gone = || ApiError::failed("nobody waits for the audit");
    let unpacked = unpack(archive, max_bytes, budget)?;
    let (name, files) = (&unpacked.name, &unpacked.files);
    let mut held = Freed(reserve_program((name, files), budget, is_gone)?);
    if is_gone() {
        return Err(gone());
    }
    let opened = files::package(name, files, is_gone);
    let subject = opened.map_err(|e| of_cause(&e, ApiError::invalid))?.subject;
    let n_bytes = report_bytes(&subject, wish);
    let what = || "the report of the audit".to_owned();
    held.0.grow(n_bytes, what)?;
    let report = build_until(&subject, &wish.targets, Scope::default(), is_gone);
    let report = report.ok_or_else(gone)?;
    let mut writer = Writer::new(budget.clone());
    match wish.is_html {
        true => {
            let page = html::print(&report);
            writer.text(&page.map_err(|e| ApiError::failed(e.to_string()))?);
        }
        false => writer.frame("", &report, "\n"),
    }
    writer.take()
}

/// The memory of the program of a package and of what lies beside it as JSON, counted before
/// anything of it is decoded.
fn reserve_program(
    (name, files): (&str, &BTreeMap<String, thane_mil::data::Bytes>),
    budget: &Budget,
    is_gone: &dyn Fn() -> bool,
) -> Result<Reservation, ApiError> {
    let of_program = Package::bytes_of_files(name, files, is_gone);
    let of_program = of_program.map_err(|e| of_cause(&e, ApiError::invalid))?;
    let is_json = |(path, _): &(&String, _)| path.ends_with(".json");
    let json = files.iter().filter(is_json);
    let of_json = json.map(|(_, bytes)| most_memory_of(bytes.as_slice()));
    let n_bytes = of_json.fold(of_program, usize::saturating_add);
    Ok(budget.reserve(n_bytes, || "the program of a package".to_owned())?)
}

/// The memory of a report: a row for each op and target, and a page of them, which is put together
/// from parts. Measured as above, with 1 and 8 targets. Names that are longer than those of a row,
/// that of the function too, stand in it, in findings and in the text, some of them more than once.
fn report_bytes(subject: &Subject, wish: &Wish) -> usize {
    const ROW: usize = 1 << 10;
    const OF_PAGE: usize = 3 << 10;
    const NAMES_OF_ROW: usize = 256;
    const OF_NAME_BYTE: usize = 12;
    let programs = subject.parts.iter().map(|part| &part.program);
    let of_op = if wish.is_html { ROW + OF_PAGE } else { ROW };
    let of_function = |f: &Function| {
        let bytes = |id: &OpId| {
            let op = f.op(*id);
            let values = op.uses().chain(op.results.iter().copied());
            let names = values.map(|value| f.value(value).name.len());
            let own = op.name.iter().map(String::len).chain([f.name.len()]);
            let names = names.chain(own).fold(0, usize::saturating_add);
            let more = names.saturating_sub(NAMES_OF_ROW);
            of_op.saturating_add(more.saturating_mul(OF_NAME_BYTE))
        };
        f.all_ops().iter().map(bytes).fold(0, usize::saturating_add)
    };
    let functions = programs.flat_map(|program| program.functions());
    let n_bytes = functions.map(of_function).fold(0, usize::saturating_add);
    n_bytes.saturating_mul(wish.targets.len())
}

fn response(written: Written, is_html: bool) -> Response<Body> {
    let mut response = Response::new(Arc::new(written).body());
    let kind = match is_html {
        true => "text/html; charset=utf-8",
        false => "application/json",
    };
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        // Its page has scripts of its own, which are none of this server's.
        (header::CONTENT_SECURITY_POLICY, "sandbox allow-scripts"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

impl Wish {
    /// Reads `target=m4,a19%2Bios26&format=html`. A plus is a plus.
    fn parse(query: &str) -> Result<Self, ApiError> {
        let mut wish = Self {
            targets: Vec::new(),
            is_html: false,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy();
            match (name, &*value) {
                ("target", names) => wish.targets = targets(names)?,
                ("format", "html") => wish.is_html = true,
                ("format", "json") => wish.is_html = false,
                ("format", other) => {
                    let message = format!("`format`: expected json or html, found `{other}`");
                    return Err(ApiError::field("format", message));
                }
                (other, _) => {
                    let message = format!("the parameter `{other}` is not supported");
                    return Err(ApiError::field(other, message));
                }
            }
        }
        if wish.targets.is_empty() {
            wish.targets.push(Target::usual());
        }
        Ok(wish)
    }
}

fn targets(names: &str) -> Result<Vec<Target>, ApiError> {
    let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
    if names.len() > MAX_TARGETS {
        let n = names.len();
        let message = format!("`target`: expected at most {MAX_TARGETS} targets, found {n}");
        return Err(ApiError::field("target", message));
    }
    let parse = |name: &str| Target::parse(name, Units::default(), Route::default());
    let targets = names.into_iter().map(parse).collect::<Result<_, _>>();
    targets.map_err(|e| ApiError::field("target", format!("`target`: {e}")))
}

#[cfg(test)]
mod tests {
    use thane_mil::text::parse;

    use super::*;

    /// Each row of the report has the names of its op, its values and its function.
    #[test]
    fn long_names_count_in_each_row() {
        let counted = |function: &str, op: &str, value: &str| {
            let text = format!(
                "program(1.3)\n{{ func {function}<ios18>(tensor<fp16, [4]> x) {{\n\
                 tensor<fp16, [4]> a = tan(x = x)[name = string(\"{op}\")];\n\
                 tensor<fp16, [4]> {value} = tan(x = x); }} -> ({value});\n}}"
            );
            let program = parse(&text, &|_, _, _| None).unwrap();
            let part = Package::new(program).into();
            let subject = Subject::new("m", "compiled", vec![part]);
            report_bytes(&subject, &Wish::parse("target=m4,m1").unwrap())
        };
        const LEN: usize = 10_000;
        let long = "n".repeat(LEN);
        let plain = counted("main", "a", "b");
        // Two rows of two ops, or of one.
        for (bytes, n_rows) in [
            (counted(&long, "a", "b"), 4),
            (counted("main", &long, "b"), 2),
            (counted("main", "a", &long), 2),
        ] {
            assert!(bytes - plain > n_rows * 10 * LEN, "{bytes}, {plain}");
        }
    }
}
