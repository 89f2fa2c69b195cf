//! Grammars of answers are compiled and followed by processes of this same program, which is not a
//! verb: users have no use for it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};
use thane_runtime::{GRAMMAR_DATA_BYTES, GrammarProgram, ProcessUsage, serve_grammar};

/// The only argument of such a process.
const ARGUMENT: &str = "grammar-process";

/// Most processor time of a request, in seconds. The process that asks ends it sooner, unless that
/// has ended itself.
#[cfg(unix)]
const MAX_SECONDS: u64 = 10;

/// How these processes are started.
pub fn program() -> GrammarProgram {
    // The same program, also when its file was replaced.
    let own = Path::new("/proc/self/exe");
    let program = match own.exists() {
        true => own.to_owned(),
        false => std::env::current_exe().unwrap_or_else(|_| PathBuf::from("thane")),
    };
    GrammarProgram {
        program,
        arguments: vec![ARGUMENT.to_owned()],
        usage,
    }
}

/// Whether this process was started to compile a grammar.
pub fn is_asked() -> bool {
    std::env::args_os().skip(1).eq([ARGUMENT])
}

/// Does the work of such a process, until the one that started it has ended.
pub fn serve() {
    #[cfg(unix)]
    {
        limit_memory();
        end_with_parent();
    }
    // The one that started it knows no more than that it has ended.
    let _ = serve_grammar(io::stdin(), io::stdout(), &limit_time);
}

/// How often a process looks whether the one that started it is there.
#[cfg(unix)]
const LOOK_TIME: Duration = Duration::from_millis(200);

/// Ends this process soon after the one that started it, which may have been killed while this one
/// computes and does not read. The signal that Linux has for this (`PR_SET_PDEATHSIG`) comes too
/// soon: when the thread ends that started the process, which is one of a pool.
#[cfg(unix)]
fn end_with_parent() {
    use std::os::unix::process::parent_id;
    let parent = parent_id();
    // Without the thread, the limits of time and memory hold.
    let _ = std::thread::Builder::new().spawn(move || {
        while parent_id() == parent {
            std::thread::sleep(LOOK_TIME);
        }
        #[expect(
            clippy::exit,
            reason = "the thread that computes cannot be asked to end"
        )]
        std::process::exit(1);
    });
}

/// Bounds the memory of this process. macOS takes the limit and does not keep to it.
#[cfg(unix)]
fn limit_memory() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_DATA) {
        let _ = setrlimit(Resource::RLIMIT_DATA, GRAMMAR_DATA_BYTES.min(hard), hard);
    }
}

fn limit_time() {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
        use nix::sys::time::TimeValLike;
        let Ok(used) = getrusage(UsageWho::RUSAGE_SELF) else {
            return;
        };
        let used = used.user_time().num_seconds() + used.system_time().num_seconds();
        let most = u64::try_from(used).unwrap_or(0) + MAX_SECONDS;
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CPU) {
            let _ = setrlimit(Resource::RLIMIT_CPU, most.min(hard), hard);
        }
    }
}

fn usage(id: u32) -> Option<ProcessUsage> {
    let id = Pid::from_u32(id);
    let mut system = System::new();
    let wanted = ProcessRefreshKind::nothing().with_memory().with_cpu();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[id]), false, wanted);
    let process = system.process(id)?;
    Some(ProcessUsage {
        processor: Duration::from_millis(process.accumulated_cpu_time()),
        resident_bytes: process.memory(),
    })
}
