//! Audits a model, as `thane audit` does.

use std::sync::Arc;

use serde::Deserialize;
use thane_audit::format::{html, json};
use thane_audit::report::files::{self, Files, Opened};
use thane_audit::report::{Scope, build, length};
use thane_audit::target::{Route, Target, Units};

use crate::host::{self, Host};
use crate::{Answer, chain};

/// An audit that is asked for. All but `name` and `files` may be left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// The name of the folder or archive that has the files.
    name: String,
    /// Its files. The host knows each by its number.
    files: Vec<File>,
    /// As values of `--target`.
    #[serde(default)]
    targets: Vec<String>,
    /// As of `--units`.
    units: Option<String>,
    /// As of `--function`.
    function: Option<String>,
    /// As of `--length`.
    #[serde(default)]
    lengths: Vec<usize>,
    /// Whether the report is wanted as a page too.
    #[serde(default)]
    page: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The path in the folder, with slashes.
    path: String,
    bytes: u64,
}

pub fn answer(ask: &Ask, host: &Arc<dyn Host>) -> Result<Answer, String> {
    let units = ask.units.as_deref().map(units).transpose()?;
    let given = ask.targets.iter().map(|name| target(name, units));
    let given: Vec<Target> = given.collect::<Result<_, _>>()?;
    host.hear("reading the program");
    let found = files_of(ask, host)?;
    let opened = files::open(&ask.name, &found, &|| false);
    let Opened { subject, targets } = opened.map_err(|e| chain(&e))?;
    let targets = distinct(match (given.is_empty(), targets.is_empty()) {
        (false, _) => given,
        (true, false) => targets.into_iter().map(|t| with_units(t, units)).collect(),
        (true, true) => vec![with_units(Target::usual(), units)],
    });
    let functions = || {
        let parts = subject.parts.iter();
        parts.flat_map(|part| part.program.functions().iter().map(move |f| (f, part)))
    };
    if let Some(name) = &ask.function {
        let is_it = |package: &str, f: &str| f == name || format!("{package}/{f}") == *name;
        if !functions().any(|(f, part)| is_it(&part.package, &f.name)) {
            let names: Vec<&str> = functions().map(|(f, _)| &*f.name).collect();
            let names = names.join(" or ");
            return Err(format!(
                "{}: the program has no function `{name}`: ask for {names}",
                subject.name
            ));
        }
    }
    let interfaces = functions().map(|(f, part)| (f, part.interfaces.get(&f.name)));
    length::check(interfaces, &ask.lengths).map_err(|e| e.to_string())?;
    host.hear("judging");
    let scope = Scope {
        only: ask.function.as_deref(),
        lengths: &ask.lengths,
    };
    let report = build(&subject, &targets, scope);
    host.hear("writing the report");
    let page = ask.page.then(|| html::print(&report)).transpose();
    Ok(Answer {
        json: json::print(&report).map_err(|e| chain(&e))?,
        page: page.map_err(|e| chain(&e))?,
    })
}

fn files_of(ask: &Ask, host: &Arc<dyn Host>) -> Result<Files, String> {
    let file = |(number, file): (usize, &File)| {
        let byte_len = usize::try_from(file.bytes).map_err(|_| {
            format!(
                "{}: expected a file of less than 4 GiB, found {} bytes: run `thane audit` on \
                 the model",
                file.path, file.bytes
            )
        })?;
        Ok((file.path.clone(), host::file(host, number, byte_len)))
    };
    ask.files.iter().enumerate().map(file).collect()
}

fn target(name: &str, units: Option<Units>) -> Result<Target, String> {
    let target = Target::parse(name, Units::default(), Route::default());
    Ok(with_units(target.map_err(|e| e.to_string())?, units))
}

fn with_units(target: Target, units: Option<Units>) -> Target {
    let units = units.unwrap_or(target.units);
    Target { units, ..target }
}

fn units(name: &str) -> Result<Units, String> {
    let found = Units::ALL.into_iter().find(|units| units.name() == name);
    found.ok_or_else(|| {
        let names = Units::ALL.map(Units::name).join(", ");
        format!("expected units that are one of {names}, found `{name}`")
    })
}

/// The targets without those that are there already: they say nothing more.
fn distinct(targets: Vec<Target>) -> Vec<Target> {
    let mut distinct: Vec<Target> = Vec::new();
    for target in targets {
        if !distinct.iter().any(|t| t.to_string() == target.to_string()) {
            distinct.push(target);
        }
    }
    distinct
}
