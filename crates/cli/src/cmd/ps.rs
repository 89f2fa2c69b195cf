//! `thane ps`: the servers that run.

use serde::Serialize;

use crate::app::App;
use crate::exit::Outcome;
use crate::serve::state::{Running, running};

/// List the servers that run on this machine.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    servers: Vec<Running>,
}

pub fn run(_: &Args, app: &App) -> Outcome {
    let servers = running(app);
    if servers.is_empty() && !app.output.is_json() {
        app.output.say("no server runs");
    }
    let width = servers.iter().map(|s| s.address.len()).max().unwrap_or(0);
    let line = |server: &Running| {
        let (pid, address) = (server.pid, &server.address);
        let (when, models) = (&server.started_at, server.models.join(", "));
        format!("{pid:>7}  {address:width$}  {when}  {models}\n")
    };
    Ok(app.output.report(&Report { servers }, |report| {
        report.servers.iter().map(line).collect()
    })?)
}
