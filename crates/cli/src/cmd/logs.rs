//! `thane logs`: the log of a server.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use thane_mil::package::open_regular;

use crate::app::App;
use crate::exit::{Failure, Outcome, other};
use crate::serve::state::{Running, choose};

/// Print the last requests of a server that writes a log (serve --log FILE).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address, port or process of the server, as `thane ps` shows it [default: the only one].
    server: Option<String>,
    /// Number of lines.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    lines: u16,
    /// Go on with new lines, until the server ends.
    #[arg(short, long)]
    follow: bool,
}

/// Most bytes of a line of a log; what is longer is shown in parts.
const MAX_LINE: u64 = 4096;

pub fn run(args: &Args, app: &App) -> Outcome {
    if app.output.is_json() {
        return Err(Failure::no_json("a log, whose lines are JSON,"));
    }
    let server = choose(args.server.as_deref(), app)?;
    let Some(path) = &server.log else {
        let address = &server.address;
        let error = anyhow::anyhow!("{address}: expected a log in a file, found none");
        let failure = other(error);
        return Err(failure.remedy("thane serve MODEL --log FILE"));
    };
    let unread = |e: io::Error| usage!("{}: {e}", path.display());
    let mut log = open(path, args.lines).map_err(unread)?;
    loop {
        let is_alive = server.is_alive();
        print(&mut log, &server, app)?;
        if !args.follow || !is_alive {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Opens a log at its last lines.
fn open(path: &Path, n_lines: u16) -> io::Result<BufReader<File>> {
    let mut file = open_regular(path)?;
    let len = file.metadata()?.len();
    let n_bytes = len.min(u64::from(n_lines) * MAX_LINE);
    file.seek(SeekFrom::Start(len - n_bytes))?;
    let mut tail = Vec::new();
    file.by_ref().take(n_bytes).read_to_end(&mut tail)?;
    let text = tail.strip_suffix(b"\n").unwrap_or(&tail);
    let ends = text.iter().rev().enumerate();
    let mut ends = ends.filter(|(_, byte)| **byte == b'\n').map(|(n, _)| n);
    let n_cut = tail.len() - text.len();
    let n_shown = match usize::from(n_lines).checked_sub(1) {
        Some(nth) => ends.nth(nth).map_or(tail.len(), |n| n + n_cut),
        None => 0,
    };
    let start = len - n_bytes + (tail.len() - n_shown) as u64;
    file.seek(SeekFrom::Start(start))?;
    Ok(BufReader::new(file))
}

/// Prints what there is.
fn print(log: &mut BufReader<File>, server: &Running, app: &App) -> Outcome {
    loop {
        let mut line = Vec::new();
        let read = log.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let n = read.map_err(other)?;
        if n == 0 {
            return Ok(());
        }
        // Half of a line is one whose rest comes.
        let is_half = line.last() != Some(&b'\n') && (n as u64) < MAX_LINE;
        if is_half && server.is_alive() {
            let back = i64::try_from(n).unwrap_or(0);
            log.seek_relative(-back)?;
            return Ok(());
        }
        app.output.data(&String::from_utf8_lossy(&line))?;
    }
}
