//! `thane ls`: lists the models in the caches.

use std::path::Path;

use serde::Serialize;

use crate::app::App;
use crate::exit::Outcome;
use crate::output::bytes;
use thane_hub::{Cache, Listed};
use thane_runtime::rfc3339;

/// List the models in the caches.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    models: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    /// `catalog` or `hub`.
    source: &'a str,
    path: &'a Path,
    bytes: u64,
    /// Time of the last download, RFC 3339, UTC.
    pulled_at: String,
    /// Whether all files of the model are there.
    whole: bool,
}

pub fn run(_: &Args, app: &App) -> Outcome {
    let models = app.hub.list()?;
    if models.is_empty() && !app.output.is_json() {
        app.output
            .say(&format!("no models in {}", app.hub.places.cache.display()));
        app.output
            .say(&format!("nor in {}", app.hub.places.hub_cache.display()));
    }
    let report = Report {
        models: models.iter().map(row).collect(),
    };
    Ok(app.output.report(&report, |_| table(&models))?)
}

fn row(model: &Listed) -> Row<'_> {
    Row {
        name: &model.name,
        source: match model.source {
            Cache::Own => "catalog",
            Cache::Hub => "hub",
        },
        path: &model.path,
        bytes: model.bytes,
        pulled_at: rfc3339(model.pulled_at),
        whole: model.is_complete,
    }
}

fn table(models: &[Listed]) -> String {
    let width = models.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let line = |m: &Listed| {
        let state = if m.is_complete { "" } else { "  (not whole)" };
        let (size, when) = (bytes(m.bytes), rfc3339(m.pulled_at));
        format!(
            "{:width$}  {size:>9}  {when}  {}{state}\n",
            m.name,
            m.path.display()
        )
    };
    models.iter().map(line).collect()
}
