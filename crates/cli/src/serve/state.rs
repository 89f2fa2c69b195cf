//! The servers that run on this machine: each writes a small file into the cache, which it removes
//! when it ends. A file of a server that was killed is known by its process, which is gone.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sysinfo::{Pid, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, Signal, System};

use crate::app::App;
use crate::exit::Failure;
use crate::out::has_extension;
use thane_mil::package::read_small;

/// Most bytes of a file.
const MAX_BYTES: u64 = 1 << 20;
/// Most files that are looked at.
const MAX_FILES: usize = 10_000;

/// A server that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    pub pid: u32,
    /// With http or https.
    pub address: String,
    pub models: Vec<String>,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// The file of `--log`, as an absolute path.
    pub log: Option<PathBuf>,
    /// When the process began, in seconds since 1970: another one may have its number later.
    pub process_began: u64,
}

/// A server that is listed until this is dropped.
pub struct Announced(PathBuf);

impl Drop for Announced {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn folder(app: &App) -> PathBuf {
    app.hub.places.cache.join("servers")
}

/// Lists this process as a server.
pub fn announce(
    address: &str,
    models: &[String],
    log: Option<&Path>,
    app: &App,
) -> std::io::Result<Announced> {
    let pid = std::process::id();
    let running = Running {
        pid,
        address: address.to_owned(),
        models: models.to_vec(),
        started_at: thane_runtime::rfc3339(std::time::SystemTime::now()),
        log: log.map(std::path::absolute).transpose()?,
        process_began: process(pid).map_or(0, |(began, _)| began),
    };
    let folder = folder(app);
    std::fs::create_dir_all(&folder)?;
    // A reader never sees half of the file.
    let mut file = tempfile::NamedTempFile::new_in(&folder)?;
    file.write_all(serde_json::to_string(&running)?.as_bytes())?;
    let path = folder.join(format!("{pid}.json"));
    file.persist(&path).map_err(|e| e.error)?;
    Ok(Announced(path))
}

/// The servers that run, in the order of their numbers. What is no file of a server is ignored.
pub fn running(app: &App) -> Vec<Running> {
    let files = std::fs::read_dir(folder(app)).into_iter().flatten();
    let paths = files.take(MAX_FILES).flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| has_extension(path, &["json"]));
    let read =
        paths.filter_map(|path| serde_json::from_slice(&read_small(&path, MAX_BYTES).ok()?).ok());
    let mut running: Vec<Running> = read.filter(Running::is_alive).collect();
    running.sort_by_key(|server| server.pid);
    running
}

/// The server that is meant: the only one, or the one of this address, port or process.
pub fn choose(given: Option<&str>, app: &App) -> Result<Running, Failure> {
    let mut running = running(app);
    let found = |running: &[Running]| {
        let shown = running.iter().map(|s| format!("{} ({})", s.address, s.pid));
        shown.collect::<Vec<_>>().join(", ")
    };
    if running.is_empty() {
        return Err(other!("expected a running server, found none").remedy("thane serve MODEL"));
    }
    if let Some(given) = given {
        let is_meant = |server: &Running| server.is_named(given);
        let Some(idx) = running.iter().position(is_meant) else {
            let known = found(&running);
            return Err(other!("expected a server of {known}, found `{given}`").remedy("thane ps"));
        };
        return Ok(running.swap_remove(idx));
    }
    if running.len() > 1 {
        let known = found(&running);
        return Err(
            usage!("expected one of the servers {known}, found no choice")
                .remedy("the same with an address or a PID"),
        );
    }
    Ok(running.swap_remove(0))
}

impl Running {
    fn is_named(&self, name: &str) -> bool {
        let without_scheme = self.address.split("://").last().unwrap_or_default();
        let port = without_scheme.rsplit(':').next().unwrap_or_default();
        let name = name.trim_end_matches('/');
        name == self.pid.to_string() || [&self.address, without_scheme, port].contains(&name)
    }

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        // The system's clock may have been set by a second.
        let is_same = |began: u64| began.abs_diff(self.process_began) <= 2;
        process(self.pid).is_some_and(|(began, is_over)| is_same(began) && !is_over)
    }

    /// Asks the server to end, and waits; false if it does not end in time.
    pub fn stop(&self, patience: Duration) -> bool {
        let system = of_process(self.pid);
        if let Some(process) = system.process(Pid::from_u32(self.pid))
            && self.is_alive()
            && process.kill_with(Signal::Term).is_none()
        {
            // A system without this signal.
            process.kill();
        }
        let start = Instant::now();
        while self.is_alive() {
            if start.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }
}

/// When a process began, and whether it has ended and only its parent has not seen it.
fn process(pid: u32) -> Option<(u64, bool)> {
    let system = of_process(pid);
    let process = system.process(Pid::from_u32(pid))?;
    let is_over = matches!(
        process.status(),
        ProcessStatus::Zombie | ProcessStatus::Dead
    );
    Some((process.start_time(), is_over))
}

fn of_process(pid: u32) -> System {
    let mut system = System::new();
    let one = ProcessesToUpdate::Some(&[Pid::from_u32(pid)]);
    system.refresh_processes_specifics(one, false, ProcessRefreshKind::nothing());
    system
}
