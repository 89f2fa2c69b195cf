//! Grammars that are compiled, and followed, in a process of their own. A grammar of 40 bytes can
//! take any time and memory, at every token of its answers too, and nothing ends a computation
//! within a process; a process can be ended. It has one grammar, so nobody else's goes with it.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thane_engine::choose::GrammarError;
use thane_engine::text::Tokenizer;
use thane_mil::budget::{Budget, Reservation};

use super::call::{Link, Reply, Request, read_json, write_json};
use super::host::{Host, STACK_BYTES, factory};
use super::source::GrammarSource;
use super::vocabulary::{Words, tokens_of};
use crate::error::RuntimeError;

/// Most processor time to compile a grammar. Schemas of some hundred fields take less than a tenth.
const COMPILE_TIME: Duration = Duration::from_secs(2);

/// Most processor time of any other request. A mask takes some milliseconds.
const STEP_TIME: Duration = Duration::from_secs(1);

/// How much longer a request may take by the clock: the process may not get a processor.
const PATIENCE: u32 = 15;

/// Most memory of a process. The vocabulary takes some 40 MB of it.
const MAX_BYTES: usize = 384 << 20;

/// Most bytes of memory that a process may ask the system for (`RLIMIT_DATA`), where nobody looks
/// at it: those that it may use, a third more, and the whole stack of its thread.
pub const GRAMMAR_DATA_BYTES: u64 = (MAX_BYTES + MAX_BYTES / 3 + STACK_BYTES) as u64;

/// How often a process is looked at while it computes.
const LOOK_TIME: Duration = Duration::from_millis(20);

/// How to start a process that runs [`serve_grammar`].
#[derive(Clone, Debug)]
pub struct GrammarProgram {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What a process has used so far, by its id; `None` where the system does not tell.
    pub usage: fn(u32) -> Option<ProcessUsage>,
}

/// What a process has used.
#[derive(Clone, Copy, Debug)]
pub struct ProcessUsage {
    /// Processor time since it began.
    pub processor: Duration,
    /// Memory that it has now.
    pub resident_bytes: u64,
}

/// A process with a compiled grammar.
pub(super) struct Process {
    pipe: Mutex<Pipe>,
    state: Arc<State>,
}

/// What is known of a process without waiting for it.
struct State {
    child: Mutex<Child>,
    has_ended: AtomicBool,
    n_bytes: AtomicUsize,
}

impl State {
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        let _ = self.child().kill();
    }
}

/// The pipes to and from a process, for one request at a time.
struct Pipe {
    input: ChildStdin,
    /// Ends with the process.
    replies: Receiver<Reply>,
    usage: fn(u32) -> Option<ProcessUsage>,
    /// Processor time when it was looked at last.
    processor: Duration,
    held: Reservation,
    tokenizer: Arc<Tokenizer>,
    /// Why the process was ended.
    ended: Option<GrammarError>,
}

impl Process {
    /// Starts a process and compiles a grammar there. `is_gone` says that nobody waits for it any
    /// more.
    pub fn compile(
        program: &GrammarProgram,
        (tokenizer, words): (&Arc<Tokenizer>, &Words),
        budget: &Budget,
        source: &GrammarSource,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Self, RuntimeError> {
        let unstarted = |source| RuntimeError::Read {
            path: program.program.clone(),
            source,
        };
        let held = budget.reserve(0, String::new)?;
        let mut child = start(program).map_err(unstarted)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(unstarted(io::Error::other("expected pipes, found none")));
        };
        let state = Arc::new(State {
            child: Mutex::new(child),
            has_ended: AtomicBool::new(false),
            n_bytes: AtomicUsize::new(0),
        });
        let replies = read_replies(output, Arc::clone(&state));
        let replies = replies.inspect_err(|_| state.end()).map_err(unstarted)?;
        let process = Self {
            pipe: Mutex::new(Pipe {
                input,
                replies,
                usage: program.usage,
                processor: Duration::ZERO,
                held,
                tokenizer: Arc::clone(tokenizer),
                ended: None,
            }),
            state,
        };
        let mut pipe = process.pipe();
        // What is wrong with a process that does not read is said by what it does not reply.
        let _ = words.write(&mut pipe.input);
        let request = Request::Compile(source.clone());
        process.ask(&mut pipe, &request, COMPILE_TIME, is_gone)?;
        process.look(&mut pipe)?;
        drop(pipe);
        Ok(process)
    }

    fn pipe(&self) -> MutexGuard<'_, Pipe> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(
        &self,
        pipe: &mut Pipe,
        request: &Request,
        most: Duration,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Reply, RuntimeError> {
        if let Some(ended) = &pipe.ended {
            return Err(ended.clone().into());
        }
        let _ = write_json(&mut pipe.input, request);
        let (start, mut first) = (Instant::now(), None);
        loop {
            match pipe.replies.recv_timeout(LOOK_TIME) {
                Ok(Reply::Tokenize(bytes)) => {
                    let tokens = tokens_of(&pipe.tokenizer, &bytes);
                    let _ = write_json(&mut pipe.input, &Request::Tokens(tokens));
                }
                Ok(reply) => return Ok(reply.into_result()?),
                Err(RecvTimeoutError::Disconnected) => {
                    let said = "it ended the process that compiles and follows it";
                    return Err(self.end(pipe, said).into());
                }
                Err(RecvTimeoutError::Timeout) => {
                    if is_gone() {
                        return Err(self.end(pipe, "nobody waits for it").into());
                    }
                    let processor = self.look(pipe)?;
                    let since = processor.saturating_sub(*first.get_or_insert(processor));
                    if since >= most || start.elapsed() >= most * PATIENCE {
                        let said = format!(
                            "expected one that takes less than {} s to compile or to follow by a \
                             token, found one that takes longer: make it simpler",
                            most.as_secs()
                        );
                        return Err(self.end(pipe, &said).into());
                    }
                }
            }
        }
    }

    /// The processor time of the process. Takes its memory from the budget.
    fn look(&self, pipe: &mut Pipe) -> Result<Duration, RuntimeError> {
        let Some(usage) = (pipe.usage)(self.state.child().id()) else {
            return Ok(pipe.processor);
        };
        pipe.processor = usage.processor;
        let n_bytes = usize::try_from(usage.resident_bytes).unwrap_or(usize::MAX);
        self.state.n_bytes.store(n_bytes, Ordering::Relaxed);
        if n_bytes > MAX_BYTES {
            let said = format!(
                "expected one that takes at most {MAX_BYTES} bytes of memory, found one that takes \
                 more: make it simpler"
            );
            return Err(self.end(pipe, &said).into());
        }
        let more = n_bytes.saturating_sub(pipe.held.bytes());
        pipe.held.shrink(pipe.held.bytes().saturating_sub(n_bytes));
        let grown = pipe.held.grow(more, || "a grammar".to_owned());
        grown.inspect_err(|e| {
            self.end(pipe, &e.to_string());
        })?;
        Ok(pipe.processor)
    }

    /// Ends the process.
    fn end(&self, pipe: &mut Pipe, why: &str) -> GrammarError {
        self.state.end();
        let held = pipe.held.bytes();
        pipe.held.shrink(held);
        pipe.ended
            .get_or_insert(GrammarError(why.to_owned()))
            .clone()
    }
}

impl Link for Process {
    fn call(&self, request: &Request) -> Result<Reply, GrammarError> {
        let mut pipe = self.pipe();
        let mut reply = self.ask(&mut pipe, request, STEP_TIME, &|| false);
        // Answers have lexers of their own, which have grown when they end.
        if reply.is_ok() && matches!(request, Request::Start | Request::End(_)) {
            reply = self.look(&mut pipe).and(reply);
        }
        reply.map_err(|error| match error {
            RuntimeError::Grammar(error) => error,
            error => GrammarError(error.to_string()),
        })
    }

    fn n_bytes(&self) -> usize {
        self.state.n_bytes.load(Ordering::Relaxed)
    }

    fn is_alive(&self) -> bool {
        !self.state.has_ended.load(Ordering::Relaxed)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.state.end();
    }
}

fn start(program: &GrammarProgram) -> io::Result<Child> {
    let mut command = Command::new(&program.program);
    command
        .args(&program.arguments)
        // Keys of the server are there.
        .env_clear()
        // By default glibc keeps 30 MB that reading the vocabulary took.
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        .env("MALLOC_TRIM_THRESHOLD_", "65536")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // Ctrl-C in a terminal is for the parent, which may have answers to finish.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// Passes replies on until the process ends, and waits for that.
fn read_replies(output: ChildStdout, state: Arc<State>) -> io::Result<Receiver<Reply>> {
    let (replies, received): (Sender<Reply>, _) = channel();
    let read = move || {
        let mut output = BufReader::new(output);
        while let Ok(reply) = Reply::read(&mut output)
            && replies.send(reply).is_ok()
        {}
        // It may have closed its output and go on.
        state.end();
        let _ = state.child().wait();
    };
    std::thread::Builder::new()
        .name("grammar".to_owned())
        .spawn(read)?;
    Ok(received)
}

/// Compiles a grammar and follows it, for a process that started this one with pipes, until `input`
/// ends. `before_each` is called before each request.
pub fn serve_grammar(
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    before_each: &(dyn Fn() + Sync),
) -> io::Result<()> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let serve = || serve(BufReader::new(input), BufWriter::new(output), before_each);
        let served = thread.spawn_scoped(scope, serve)?.join();
        served.unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
    })
}

fn serve(
    mut input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    before_each: &dyn Fn(),
) -> io::Result<()> {
    let words = Words::read(&mut input)?;
    let pipes = Arc::new(Mutex::new((input, output)));
    let of_tokens = Arc::clone(&pipes);
    let tokenize = move |bytes: &[u8]| {
        let mut pipes = of_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        Reply::Tokenize(bytes.to_vec()).write(&mut pipes.1).ok()?;
        match read_json(&mut pipes.0).ok()? {
            Request::Tokens(tokens) => tokens,
            _ => None,
        }
    };
    let factory = factory(&words, Arc::new(tokenize));
    let mut host = Host::default();
    loop {
        let lock = || pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let request: Request = read_json(&mut lock().0)?;
        before_each();
        let reply = match &factory {
            Ok(factory) => host.reply(factory, &request),
            Err(GrammarError(error)) => Reply::Failed(error.clone()),
        };
        reply.write(&mut lock().1)?;
    }
}
