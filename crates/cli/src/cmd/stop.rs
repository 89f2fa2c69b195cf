//! `thane stop`: ends a server.

use std::time::Duration;

use serde::Serialize;

use crate::app::App;
use crate::exit::Outcome;
use crate::serve::state::choose;

/// Stop a server: running answers have 10 seconds to finish.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address, port or process of the server, as `thane ps` shows it [default: the only one].
    server: Option<String>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    pid: u32,
    address: String,
}

/// The time that answers have, and some for the end of the program.
const PATIENCE: Duration = Duration::from_secs(15);

pub fn run(args: &Args, app: &App) -> Outcome {
    let server = choose(args.server.as_deref(), app)?;
    let (pid, address) = (server.pid, server.address.clone());
    if !server.stop(PATIENCE) {
        let n = PATIENCE.as_secs();
        return Err(other!("{address}: expected process {pid} to end in {n} s")
            .remedy(format!("kill -9 {pid}")));
    }
    Ok(app.output.report(&Report { pid, address }, |r| {
        format!("{}: stopped\n", r.address)
    })?)
}
