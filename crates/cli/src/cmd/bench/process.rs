//! Measures whole runs of another process, which starts with nothing loaded.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Bench;
use super::figure::Figure;
use crate::exit::{Code, Failure, Outcome, interrupted};
use crate::memory::peak_memory_of;

/// Time and memory of a process.
#[derive(Clone, Copy)]
struct Took {
    time: Duration,
    peak_memory: Option<u64>,
}

impl Bench<'_> {
    /// Measures the time from the start to the first token.
    pub fn cold(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        for length in self.prompts()? {
            let mut peak = None;
            let times = self.rounds(&mut || {
                let (threads, numerics) = (
                    self.threads.to_string(),
                    format!("{:?}", self.args.numerics).to_lowercase(),
                );
                // One word is about one token.
                let words = "word ".repeat(length);
                let raw = [
                    "run",
                    "--quiet",
                    "--raw",
                    "--temperature",
                    "0",
                    "--max-tokens",
                    "1",
                ];
                let flags = [
                    "--threads",
                    &threads,
                    "--numerics",
                    &numerics,
                    &self.args.model,
                    &words,
                ];
                let took = self.process(raw.into_iter().chain(flags).map(OsStr::new))?;
                peak = peak.max(took.peak_memory);
                Ok(took.time.as_secs_f64() * 1e3)
            })?;
            let figure = self.figure(&self.args.model, [length, length], times, "ms");
            self.say(
                Figure {
                    answer_tokens: Some(1),
                    peak_memory_bytes: peak,
                    ..figure
                },
                figures,
            )?;
        }
        Ok(())
    }

    /// Measures the time to convert to a package, which is removed.
    pub fn convert(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let folder = tempfile::tempdir().map_err(|e| Failure::new(Code::Other, e))?;
        let package = folder.path().join("model.mlpackage");
        let mut peak = None;
        let times = self.rounds(&mut || {
            let verb = ["convert", "--quiet", "--force", "--out"].map(OsStr::new);
            let took = self.process(
                verb.into_iter()
                    .chain([package.as_os_str(), OsStr::new(&self.args.model)]),
            )?;
            peak = peak.max(took.peak_memory);
            Ok(took.time.as_secs_f64())
        })?;
        let figure = self.figure(&self.args.model, [0, 0], times, "s");
        self.say(
            Figure {
                peak_memory_bytes: peak,
                ..figure
            },
            figures,
        )
    }

    /// Runs this program with other arguments.
    fn process<'s>(&self, args: impl Iterator<Item = &'s OsStr>) -> Result<Took, Failure> {
        let other = |e: std::io::Error| Failure::new(Code::Other, e);
        let mut command = Command::new(std::env::current_exe().map_err(other)?);
        command
            .args(args)
            .args(["--isa", self.machine.isa])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let start = Instant::now();
        let mut child = command.spawn().map_err(other)?;
        let (status, time, peak_memory) = watch(&mut child, start).map_err(other)?;
        if self.app.interrupt.is_set() {
            return Err(interrupted());
        }
        if !status.success() {
            let verb = command.get_args().next().unwrap_or_default().display();
            // The process printed the reason.
            let code = Code::of_process(status.code());
            return Err(Failure::new(
                code,
                anyhow::anyhow!("thane {verb} ended with {status}"),
            ));
        }
        Ok(Took { time, peak_memory })
    }
}

/// Waits for the end and polls the memory of the process, which the system does not report
/// afterwards.
fn watch(
    child: &mut Child,
    start: Instant,
) -> std::io::Result<(std::process::ExitStatus, Duration, Option<u64>)> {
    /// Rare enough to cost no time.
    const EVERY: Duration = Duration::from_millis(5);
    let id = child.id();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = None;
            while !ended.load(Ordering::Relaxed) {
                peak = peak.max(peak_memory_of(&id.to_string()));
                std::thread::sleep(EVERY);
            }
            peak
        });
        let status = child.wait();
        let time = start.elapsed();
        ended.store(true, Ordering::Relaxed);
        let peak = watcher.join().ok().flatten();
        Ok((status?, time, peak))
    })
}
