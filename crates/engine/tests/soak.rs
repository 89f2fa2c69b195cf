//! Memory stays where it is over 10,000 decode steps with prompts and answers of changing lengths.
//!
//! A program of its own, since it counts what all of it allocates, and asks the system what the
//! process holds.
#![allow(clippy::unwrap_used, clippy::print_stdout, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thane_cpu::{Cpu, Numerics};
use thane_engine::generate::Session;
use thane_mil::backend::{Backend, Executable};
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Model, Options, build};

const CONTEXT: usize = 300;
const STEPS: usize = 10_000;
/// Steps at the beginning, and at the end, over which memory is looked at; those before the first
/// make every buffer.
const WINDOWS: [[usize; 2]; 2] = [[1_000, 2_500], [8_500, STEPS]];
/// What the bytes allocated may grow by between them: a leak of 64 bytes a step, about the shape of
/// one tensor, is 469 KiB.
const MOST_GROWTH_KIB: usize = 16;
/// What the process may hold more, pages that the allocator knows nothing of included: by how what
/// it keeps is scattered, up to 400 KiB were seen, and as many after 80,000 steps as after 10,000.
const MOST_PAGE_GROWTH_KIB: usize = 1024;

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator, whose promises are those that are due.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` came from `alloc`, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// KiB that are allocated, and that the process holds.
#[derive(Debug, Clone, Copy)]
struct Memory {
    allocated: usize,
    held: usize,
}

/// Anonymous memory of the process; pages of mapped files come and go by themselves. `RssAnon` of
/// `/proc/self/status` may be wrong by 32 pages for each processor, as each counts for itself.
fn held_kib() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = pages
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn model(name: &str, cache: DType) -> Model {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models")
        .join(name);
    let options = Options {
        score: false,
        cache,
        context: Some(CONTEXT),
        engine: None,
    };
    build(&Checkpoint::open(&path).unwrap(), &options).unwrap()
}

/// Conversations, one after another: of random lengths, with or without the beginning of the one
/// before.
struct Soak {
    executable: Arc<dyn Executable>,
    vocab_size: usize,
    session: Session,
    n_prompts: usize,
    n_steps: usize,
    state: u64,
}

impl Soak {
    fn new(model: &Model, numerics: Numerics, n_threads: usize) -> Self {
        let executable = Cpu::new(numerics, n_threads).load(&model.program).unwrap();
        let vocab_size = model.info.vocab_size;
        let session = Session::new(executable.instantiate().unwrap(), CONTEXT, vocab_size, None);
        Self {
            executable,
            vocab_size,
            session,
            n_prompts: 0,
            n_steps: 0,
            state: 9,
        }
    }

    /// Uniform in 0..n (xorshift64*).
    fn below(&mut self, n: usize) -> usize {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    /// Converse until so many steps are done; the least of memory after a conversation. It is more
    /// by what the allocator keeps and by how long the last prompt was.
    fn converse(&mut self, until: usize) -> Memory {
        let mut least = Memory {
            allocated: usize::MAX,
            held: usize::MAX,
        };
        while self.n_steps < until {
            self.n_prompts += 1;
            match self.n_prompts % 16 {
                0 => {
                    let instance = self.executable.instantiate().unwrap();
                    self.session = Session::new(instance, CONTEXT, self.vocab_size, None);
                }
                8 => self.session.reset(),
                _ => {}
            }
            let n_kept = self.below(self.session.tokens().len().min(CONTEXT / 2) + 1);
            let mut prompt = self.session.tokens()[..n_kept].to_vec();
            let longest = if self.n_prompts.is_multiple_of(8) {
                CONTEXT / 3
            } else {
                CONTEXT / 12
            };
            let n_new = 1 + self.below(longest);
            prompt.extend((0..n_new).map(|_| self.below(self.vocab_size) as u32));
            let mut logits = self.session.feed(&prompt, &|| false).unwrap().unwrap();
            // Short answers make for many conversations.
            let n_answer = 1 + self.below((until - self.n_steps).min(30));
            for _ in 0..n_answer {
                assert!(logits.len() == self.vocab_size && logits.iter().all(|v| v.is_finite()));
                let argmax = (0..logits.len())
                    .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
                    .unwrap();
                logits = self.session.decode(argmax as u32).unwrap().into_owned();
                self.n_steps += 1;
            }
            least.allocated = least
                .allocated
                .min(ALLOCATED.load(Ordering::Relaxed) / 1024);
            least.held = least.held.min(held_kib().unwrap());
        }
        least
    }
}

#[test]
fn ten_thousand_steps_keep_memory_flat() {
    if held_kib().is_none() {
        println!(
            "skipped: the system does not tell what a process holds (/proc/self/smaps_rollup)"
        );
        return;
    }
    for (name, cache, numerics, n_threads) in [
        ("tiny/gemma3", DType::Fp32, Numerics::F32, 1),
        (
            "tiny-gguf/llama-quantised.gguf",
            DType::Fp16,
            Numerics::Fast,
            2,
        ),
    ] {
        let mut soak = Soak::new(&model(name, cache), numerics, n_threads);
        let [early, late] = WINDOWS.map(|[from, to]| {
            soak.converse(from);
            soak.converse(to)
        });
        let [[_, first], [_, last]] = WINDOWS;
        let found = format!("{name}: {early:?} at {first} steps, {late:?} at {last}, in KiB");
        println!("{found}, {} conversations", soak.n_prompts);
        assert_eq!(soak.n_steps, STEPS, "{name}");
        assert!(
            late.allocated <= early.allocated + MOST_GROWTH_KIB,
            "{found}"
        );
        assert!(late.held <= early.held + MOST_PAGE_GROWTH_KIB, "{found}");
    }
}
