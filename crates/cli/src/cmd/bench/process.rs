//! Measures whole runs of another process, which starts with nothing loaded.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Bench;
use crate::exit::{Code, Failure, Outcome, interrupted, other};
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
                let (threads, numerics) = (self.threads, self.args.numerics);
                let flags = format!(
                    "run --quiet --raw --temperature 0 --max-tokens 1 --threads {threads} \
                     --numerics {}",
                    format!("{numerics:?}").to_lowercase()
                );
                // One word is about one token.
                let words = "word ".repeat(length);
                let flags = flags.split(' ').chain([&*self.args.model, &words]);
                let took = self.process(flags.map(OsStr::new))?;
                peak = peak.max(took.peak_memory);
                Ok(took.time.as_secs_f64() * 1e3)
            })?;
            let mut figure = self.figure(&self.args.model, [length, length], times, "ms");
            (figure.answer_tokens, figure.peak_memory_bytes) = (Some(1), peak);
            self.say(figure, figures)?;
        }
        Ok(())
    }

    /// Measures the time to convert to a package, which is removed.
    pub fn convert(&self, figures: &mut Vec<serde_json::Value>) -> Outcome {
        let folder = tempfile::tempdir().map_err(other)?;
        let package = folder.path().join("model.mlpackage");
        let mut peak = None;
        let times = self.rounds(&mut || {
            let verb = ["convert", "--quiet", "--force", "--out"].map(OsStr::new);
            let files = [package.as_os_str(), OsStr::new(&self.args.model)];
            let took = self.process(verb.into_iter().chain(files))?;
            peak = peak.max(took.peak_memory);
            Ok(took.time.as_secs_f64())
        })?;
        let mut figure = self.figure(&self.args.model, [0, 0], times, "s");
        figure.peak_memory_bytes = peak;
        self.say(figure, figures)
    }

    /// Runs this program with other arguments.
    fn process<'s>(&self, args: impl Iterator<Item = &'s OsStr>) -> Result<Took, Failure> {
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
