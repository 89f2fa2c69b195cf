//! Memory does not grow over 10,000 decode steps with prompts and answers of varying lengths.
//!
//! The test is a separate program, because it counts all allocations of the process and asks the
//! system for the memory of the process.
#![allow(clippy::unwrap_used, clippy::print_stdout, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;
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
/// Steps after which memory is measured: at the beginning, when all buffers exist, and at the end.
const WINDOWS: [[usize; 2]; 2] = [[1_000, 2_500], [8_500, STEPS]];
/// Maximum growth of the allocated bytes. A leak of 64 bytes in each step, about the size of one
/// tensor shape, would be 469 KiB.
const MOST_GROWTH_KIB: usize = 16;
/// Maximum growth of the memory of the process, including pages that the allocator does not count.
/// Fragmentation caused up to 400 KiB, and no more after 80,000 steps than after 10,000.
const MOST_PAGE_GROWTH_KIB: usize = 1024;

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator, which keeps the trait's promises.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`, which the system's allocator requires.
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

/// KiB that are allocated, and KiB that the process holds.
#[derive(Debug, Clone, Copy)]
struct Memory {
    allocated: usize,
    held: usize,
}

/// Anonymous memory of the process in KiB. Pages of mapped files are excluded because the system
/// evicts them at will. `RssAnon` of `/proc/self/status` can be wrong by 32 pages for each
/// processor, because each processor keeps its own count.
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
        verify: false,
        top: None,
        cache,
        context: Some(CONTEXT),
        ane: None,
    };
    build(&Checkpoint::open(&path).unwrap(), &options).unwrap()
}

/// Successive conversations of random lengths, with or without the beginning of the previous one.
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
        let session = Session::new(executable.instantiate().unwrap(), CONTEXT, vocab_size);
        Self {
            executable,
            vocab_size,
            session,
            n_prompts: 0,
            n_steps: 0,
            state: 9,
        }
    }

    /// A uniform random number below `n` (xorshift64*).
    fn below(&mut self, n: usize) -> usize {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    /// Runs conversations until `steps` steps are done; returns the minimum of the memory after a
    /// conversation. Freed memory that the allocator keeps, and a long last prompt, only add to it.
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
                    self.session = Session::new(instance, CONTEXT, self.vocab_size);
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
            // Short answers give many conversations.
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
        let _ = writeln!(
            std::io::stderr(),
            "skipped: the system does not report the memory of a process (/proc/self/smaps_rollup)"
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
