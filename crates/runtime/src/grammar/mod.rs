//! Grammars that hold answers to a form: JSON schemas, regular expressions, and Lark grammars, over
//! the vocabulary of a model.
//!
//! Start at [`Grammars`]. Compiled grammars are kept, because clients send the same one with each
//! request. Who takes grammars from others compiles them in processes ([`process`]).

mod answers;
mod call;
mod host;
mod process;
mod schema;
mod source;
mod vocabulary;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llguidance::ParserFactory;
use thane_engine::choose::{Grammar, GrammarError};
use thane_engine::text::Tokenizer;
use thane_mil::budget::{Budget, Loss, Reclaim};

use crate::error::RuntimeError;
use answers::Compiled;
use call::Link;
use host::Local;
use process::Process;
use vocabulary::{Words, tokens_of};

pub use process::{GRAMMAR_DATA_BYTES, GrammarProgram, ProcessUsage, serve_grammar};
pub(crate) use schema::{check_numbers, with_spacing};
pub use source::GrammarSource;
pub(crate) use source::MAX_TEXT_BYTES;

/// Compiles grammars for one tokenizer.
pub struct Grammars {
    /// Compiles grammars in processes of their own; `None` for this process, where nothing ends a
    /// grammar that takes too long.
    pub program: Option<GrammarProgram>,
    /// Limits the memory of these processes.
    budget: Budget,
    tokenizer: Arc<Tokenizer>,
    /// The vocabulary as processes are told of it.
    words: OnceLock<Words>,
    /// What compiles here; made when a grammar is first wanted.
    factory: OnceLock<Result<Arc<ParserFactory>, GrammarError>>,
    /// The grammars that were used last, the newest first.
    kept: Arc<Mutex<Kept>>,
}

/// Grammars that are kept.
#[derive(Default)]
struct Kept(VecDeque<(GrammarSource, Arc<Compiled>)>);

impl Kept {
    /// Whether no answer follows a grammar, so that its memory is free without it.
    fn is_idle((_, compiled): &(GrammarSource, Arc<Compiled>)) -> bool {
        Arc::strong_count(compiled) == 1 && !compiled.is_followed()
    }
}

impl Reclaim for Kept {
    fn held_bytes(&self) -> usize {
        let idle = self.0.iter().filter(|kept| Self::is_idle(kept));
        idle.map(|(_, compiled)| compiled.n_bytes()).sum()
    }

    fn reclaim(&mut self, n_bytes: usize) -> bool {
        let (n_kept, mut n_freed) = (self.0.len(), 0);
        while n_freed < n_bytes
            && let Some(last) = self.0.iter().rposition(Self::is_idle)
            && let Some((_, compiled)) = self.0.remove(last)
        {
            n_freed += compiled.n_bytes();
        }
        self.0.len() < n_kept
    }
}

impl Grammars {
    /// Most compiled grammars that are kept.
    const MAX_KEPT: usize = 16;

    /// Most memory of processes with grammars that are kept. With 150,000 tokens a process takes
    /// 40 MB.
    const KEPT_BYTES: usize = 256 << 20;

    /// Grammars over the tokens of `tokenizer`, which are compiled in this process.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            program: None,
            budget: Budget::unlimited(),
            tokenizer,
            words: OnceLock::new(),
            factory: OnceLock::new(),
            kept: Arc::default(),
        }
    }

    /// Counts the memory of processes against `budget` from now on, which may take that of grammars
    /// that no answer follows.
    pub fn set_budget(&mut self, budget: Budget) {
        budget.keep(Loss::Time, &self.kept);
        self.budget = budget;
    }

    /// Compiles a grammar, or takes the one that was compiled before. `is_gone` says that nobody
    /// waits for it any more.
    ///
    /// # Errors
    ///
    /// If the grammar is not valid, uses what is not supported, or is too large; in a process of
    /// its own, also if it takes too long or too much memory.
    pub fn compile(
        &self,
        source: &GrammarSource,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Arc<dyn Grammar>, RuntimeError> {
        if let Some(found) = self.take_kept(source) {
            return Ok(found);
        }
        source.check()?;
        let link: Arc<dyn Link> = match &self.program {
            Some(program) => Arc::new(self.process(program, source, is_gone)?),
            None => Arc::new(Local::compile(self.factory()?, source)?),
        };
        let compiled = Compiled::new(link);
        let compiled = compiled.map_err(|e| GrammarError(format!("no thread follows it: {e}")))?;
        let compiled = Arc::new(compiled);
        let mut kept = self.kept();
        let kept = &mut kept.0;
        kept.push_front((source.clone(), Arc::clone(&compiled)));
        kept.truncate(Self::MAX_KEPT);
        let mut n_bytes = 0;
        kept.retain(|(_, compiled)| {
            n_bytes += compiled.n_bytes();
            n_bytes <= Self::KEPT_BYTES
        });
        Ok(compiled)
    }

    /// A process that has compiled a grammar.
    fn process(
        &self,
        program: &GrammarProgram,
        source: &GrammarSource,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Process, RuntimeError> {
        let words = self.words.get_or_init(|| Words::new(&self.tokenizer));
        let vocabulary = (&self.tokenizer, words);
        Process::compile(program, vocabulary, &self.budget, source, is_gone)
    }

    fn factory(&self) -> Result<Arc<ParserFactory>, GrammarError> {
        let made = self.factory.get_or_init(|| {
            let tokenizer = Arc::clone(&self.tokenizer);
            let tokenize = move |bytes: &[u8]| tokens_of(&tokenizer, bytes);
            host::factory(&Words::new(&self.tokenizer), Arc::new(tokenize)).map(Arc::new)
        });
        made.clone()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A grammar that was compiled before.
    pub fn take_kept(&self, source: &GrammarSource) -> Option<Arc<dyn Grammar>> {
        let mut kept = self.kept();
        let kept = &mut kept.0;
        // A process may have been ended.
        kept.retain(|(_, compiled)| compiled.is_alive());
        let at = kept.iter().position(|(known, _)| known == source)?;
        let found = kept.remove(at)?;
        let compiled = Arc::clone(&found.1);
        kept.push_front(found);
        Some(compiled)
    }
}
