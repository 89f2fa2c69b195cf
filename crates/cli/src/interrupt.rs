//! Ctrl-C and termination signals.
//!
//! By default the first signal ends the program: the child process (`pip`) is killed, the terminal
//! is restored and the exit code is 130. This is safe at any moment, since a file gets its final
//! name only when it is complete; a holder of [`Writing`] names where incomplete files are, and
//! they are removed.
//!
//! A verb that ends by itself (`run` prints the rest of its line) holds a [`Cooperative`]. Then the
//! first signal only sets a flag, and the program ends after a grace period or at the second
//! signal. Without a grace period, as in a conversation, Ctrl-C only ends an answer. SIGTERM and
//! SIGHUP always end the program, unless it was started to ignore them, as by `nohup`; a server
//! takes a SIGHUP that was sent to it as a wish ([`Hangups`]), on Linux under `nohup` too.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use thane_hub::Children;
use thane_mil::package::Partial;
use thane_serve::lock;

use crate::exit::{Code, Outcome, interrupted};

/// The kind of a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Ctrl-C, which ends the current operation.
    Stop,
    /// SIGTERM or SIGHUP, which end the program.
    End,
}

/// A handle to the state of the signal handler, shared by clones.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<State>);

#[derive(Default)]
struct State {
    asked: AtomicBool,
    cooperating: AtomicUsize,
    /// How long the cooperating verb may take to end.
    grace: Mutex<Option<Duration>>,
    /// Whether the program is ending.
    ending: AtomicBool,
    /// Whether SIGHUP is a wish, and not the end.
    takes_hangups: AtomicBool,
    /// Whether the program was started from a terminal.
    had_terminal: AtomicBool,
    /// Whether there was a SIGHUP since somebody looked.
    hung_up: AtomicBool,
    /// Paths that are being written, with incomplete files beside them.
    written: Mutex<Vec<PathBuf>>,
    child: Mutex<Option<Child>>,
    /// Held while a piece of an answer is printed.
    printing: Mutex<()>,
    tidy: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// What the user can do after a signal ended the program; may be empty.
    remedy: Mutex<String>,
}

/// While this lives, a signal sets the flag and its holder ends the operation.
pub struct Cooperative<'a>(&'a Interrupt);

/// While this lives, SIGHUP does not end the program, unless the terminal is gone.
pub struct Hangups<'a>(&'a Interrupt);

/// While this lives, incomplete files beside a path are removed if a signal ends the program.
pub struct Writing<'a>(&'a Interrupt);

impl Interrupt {
    /// Installs the signal handler. `tidy` runs before a signal ends the program.
    pub fn install(tidy: impl Fn() + Send + 'static) -> Result<Self, ctrlc::Error> {
        let this = Self::default();
        *lock(&this.0.tidy) = Some(Box::new(tidy));
        let handler = this.clone();
        // Before `ctrlc` starts its thread, which must have these signals blocked too.
        this.take_terminations()?;
        ctrlc::set_handler(move || handler.signalled(Asked::Stop))?;
        Ok(this)
    }

    /// Handles SIGTERM and SIGHUP on a thread of its own, since `ctrlc` does not tell them from
    /// SIGINT. They are blocked in this thread and in all threads that start later, but not in
    /// children: `Command` resets their mask.
    #[cfg(unix)]
    fn take_terminations(&self) -> Result<(), ctrlc::Error> {
        use nix::sys::signal::{SigSet, Signal};
        let is_hangup_ignored = is_ignored(Signal::SIGHUP);
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGHUP);
        if !is_ignored(Signal::SIGTERM) {
            signals.add(Signal::SIGTERM);
        }
        // Blocked, SIGXFSZ does not end the program: a write beyond the limit of file sizes fails,
        // as on a full disk.
        let mut blocked = signals;
        blocked.add(Signal::SIGXFSZ);
        blocked
            .thread_block()
            .map_err(|e| ctrlc::Error::System(e.into()))?;
        let handler = self.clone();
        let wait = move || {
            while let Ok(signal) = signals.wait() {
                let is_hangup = signal == Signal::SIGHUP;
                if is_hangup && (handler.takes_hangup() || is_hangup_ignored) {
                    continue;
                }
                handler.signalled(Asked::End);
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(wait)
            .map_err(ctrlc::Error::System)?;
        Ok(())
    }

    /// Windows has no such signals.
    #[cfg(not(unix))]
    fn take_terminations(&self) -> Result<(), ctrlc::Error> {
        Ok(())
    }

    /// Whether a signal arrived.
    pub fn is_set(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// The result of work that ends early after a signal: then, its failure is that it was
    /// interrupted.
    pub fn ended(&self, result: Outcome) -> Outcome {
        result.map_err(|failure| match self.is_set() {
            true => interrupted(),
            false => failure,
        })
    }

    /// Sets what the program says that the user can do if a signal ends it.
    pub fn set_remedy(&self, remedy: &str) {
        remedy.clone_into(&mut lock(&self.0.remedy));
    }

    /// Until the result is dropped, the caller checks [`Interrupt::is_set`] and ends by itself. If
    /// it takes longer than `grace`, the program ends.
    pub fn cooperate(&self, grace: Option<Duration>) -> Cooperative<'_> {
        *lock(&self.0.grace) = grace;
        self.0.cooperating.fetch_add(1, Ordering::SeqCst);
        Cooperative(self)
    }

    /// Until the result is dropped, SIGHUP is what [`Interrupt::was_hung_up`] returns.
    pub fn take_hangups(&self) -> Hangups<'_> {
        let state = &self.0;
        state.had_terminal.store(has_terminal(), Ordering::SeqCst);
        state.takes_hangups.store(true, Ordering::SeqCst);
        Hangups(self)
    }

    /// Whether there was a SIGHUP since this was called last.
    pub fn was_hung_up(&self) -> bool {
        self.0.hung_up.swap(false, Ordering::SeqCst)
    }

    /// Takes a SIGHUP as a wish; false if it has to end the program: a terminal that is closed
    /// sends the same signal.
    #[cfg(unix)]
    fn takes_hangup(&self) -> bool {
        let state = &self.0;
        let is_closed = state.had_terminal.load(Ordering::SeqCst) && !has_terminal();
        let takes = state.takes_hangups.load(Ordering::SeqCst) && !is_closed;
        state.hung_up.fetch_or(takes, Ordering::SeqCst);
        takes
    }

    /// Until the result is dropped, a signal that ends the program removes the [`Partial`]s beside
    /// `place`.
    pub fn writing(&self, place: &Path) -> Writing<'_> {
        lock(&self.0.written).push(place.to_owned());
        Writing(self)
    }

    /// Waits if a signal is ending the program, so that files that it removes are not reported as
    /// failures.
    pub fn settle(&self) {
        while self.0.ending.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Until the result is dropped, a signal that ends the program waits with its last line, which
    /// nothing may follow. Never returns if a signal is ending the program.
    pub fn printing(&self) -> MutexGuard<'_, ()> {
        let guard = lock(&self.0.printing);
        if !self.0.ending.load(Ordering::SeqCst) {
            return guard;
        }
        drop(guard);
        loop {
            std::thread::park();
        }
    }

    /// Waits until nothing is being printed, but not for a reader that has stopped.
    fn last_word(&self) -> Option<MutexGuard<'_, ()>> {
        (0..40).find_map(|_| {
            let guard = self.0.printing.try_lock().ok();
            if guard.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            guard
        })
    }

    /// Resets the flag after a signal was handled. Never returns if a signal is ending the program.
    pub fn clear(&self) {
        self.settle();
        self.0.asked.store(false, Ordering::SeqCst);
    }

    fn set_child(&self, child: Option<Child>) {
        *lock(&self.0.child) = child;
    }

    fn poll_child(&self) -> io::Result<Option<ExitStatus>> {
        match &mut *lock(&self.0.child) {
            Some(child) => child.try_wait(),
            None => Err(io::ErrorKind::Interrupted.into()),
        }
    }

    fn is_cooperating(&self) -> bool {
        self.0.cooperating.load(Ordering::SeqCst) > 0
    }

    /// Whether the cooperating verb takes longer than its grace period. A verb without a limit
    /// continues after Ctrl-C, and gets no time if the program must end.
    fn outlasts_grace(&self, asked: Asked) -> bool {
        let grace = *lock(&self.0.grace);
        let Some(grace) = grace else {
            return asked == Asked::End;
        };
        let start = Instant::now();
        while self.is_cooperating() {
            if start.elapsed() >= grace {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn signalled(&self, asked: Asked) {
        let has_grace = || lock(&self.0.grace).is_some();
        // Set before `asked`, so that whoever sees that flag sees this one too.
        if asked == Asked::End && !(self.is_cooperating() && has_grace()) {
            self.0.ending.store(true, Ordering::SeqCst);
        }
        let again = self.0.asked.swap(true, Ordering::SeqCst);
        if !self.is_cooperating() || again {
            return self.end();
        }
        // On a thread of its own, so that this one hears the second signal.
        let waiting = self.clone();
        let wait = move || {
            if waiting.outlasts_grace(asked) {
                waiting.end();
            }
        };
        if std::thread::Builder::new().spawn(wait).is_err() {
            self.end();
        }
    }

    /// Ends the program.
    fn end(&self) {
        self.0.ending.store(true, Ordering::SeqCst);
        // The lock is held until the exit, so that the waiting thread cannot start another child.
        let mut child = lock(&self.0.child);
        if let Some(child) = child.as_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        Partial::begin_no_more();
        lock(&self.0.written)
            .iter()
            .for_each(|place| Partial::remove_own(place));
        let _last = self.last_word();
        // On a thread of its own: a terminal that nobody reads takes no further line.
        let (said, heard) = mpsc::channel();
        let last = self.clone();
        let say = std::thread::Builder::new().spawn(move || {
            if let Some(tidy) = &*lock(&last.0.tidy) {
                tidy();
            }
            let remedy = lock(&last.0.remedy);
            let mut failure = interrupted();
            if !remedy.is_empty() {
                failure = failure.remedy(&*remedy);
            }
            let _ = failure.print(&mut io::stderr());
            let _ = said.send(());
        });
        if say.is_ok() {
            let _ = heard.recv_timeout(Duration::from_secs(1));
        }
        std::process::exit(Code::Interrupted as i32);
    }
}

/// Whether the program has a terminal that is not closed.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether this program was started to ignore a signal. Linux delivers an ignored signal to a
/// thread that blocks and awaits it; other systems discard it.
#[cfg(unix)]
fn is_ignored(signal: nix::sys::signal::Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
}

/// A signal kills the child.
impl Children for Interrupt {
    fn run(
        &self,
        command: &mut Command,
        started: &mut dyn FnMut(&mut Child),
        tick: &mut dyn FnMut(),
    ) -> io::Result<ExitStatus> {
        // In a process group of its own. Otherwise Ctrl-C on the terminal would end the child
        // before this process, which would look like a failure of the child.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let mut child = command.spawn()?;
        started(&mut child);
        self.set_child(Some(child));
        loop {
            if let Some(status) = self.poll_child()? {
                self.set_child(None);
                return Ok(status);
            }
            tick();
            std::thread::sleep(Duration::from_millis(25));
        }
    }
}

impl Drop for Hangups<'_> {
    fn drop(&mut self) {
        self.0.0.takes_hangups.store(false, Ordering::SeqCst);
    }
}

impl Drop for Cooperative<'_> {
    fn drop(&mut self) {
        self.0.0.cooperating.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        lock(&self.0.0.written).pop();
    }
}
