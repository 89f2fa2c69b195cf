//! Compiles a grammar and runs the answers that follow it, in this process. The parser is that of
//! `llguidance`.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};
use thane_engine::choose::GrammarError;

use super::call::{Link, Reply, Request};
use super::source::GrammarSource;
use super::vocabulary::{Tokenize, Vocabulary, Words};

/// Most states of the lexer of an answer, which take 1 to 2 kB each. JSON schemas need some
/// hundreds.
const MAX_LEXER_STATES: usize = 25_000;

/// Stack to compile on: llguidance recurses through rules that name each other.
pub(super) const STACK_BYTES: usize = 512 << 20;

/// What compiles grammars for a vocabulary.
pub(super) fn factory(
    words: &Words,
    tokenize: Arc<Tokenize>,
) -> Result<ParserFactory, GrammarError> {
    if words.ends.is_empty() {
        let error = "expected a token that ends an answer, found none in the model's files";
        return Err(GrammarError(error.to_owned()));
    }
    let made = catch_unwind(AssertUnwindSafe(|| {
        let env: TokEnv = Arc::new(Vocabulary::new(words, tokenize));
        let capabilities = InferenceCapabilities {
            ff_tokens: env.tokenize_is_canonical(),
            ..InferenceCapabilities::default()
        };
        // Most strings of JSON, whose masks it makes seven times as fast. Each further slice takes
        // 15 MB where there are 150,000 tokens.
        let slices = [r#"[^"\\\x00-\x1F\x7F]{1,30}"#.to_owned()];
        let mut factory = ParserFactory::new(&env, capabilities, &slices)?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_LEXER_STATES;
        Ok(factory)
    }));
    made.map_err(|e| said(&e.to_string()))
}

/// What llguidance says, in one line, without the backtrace of a panic.
fn said(error: &str) -> GrammarError {
    const MAX_CHARS: usize = 400;
    let said = error.split("<backtrace>").next().unwrap_or_default();
    if said.contains("with overflow") {
        let error =
            "expected numbers that can be compiled, found one that is too large or too fine";
        return GrammarError(error.to_owned());
    }
    if said.trim_start().starts_with("panic:") {
        let error = "expected a grammar that can be compiled, found one that the compiler of \
                     grammars fails on: write it in another way";
        return GrammarError(error.to_owned());
    }
    if said.contains("NoExtension") {
        let error = "expected a grammar that an answer can follow, found one that no token begins: \
                     a rule or a `$ref` that names itself alone never ends";
        return GrammarError(error.to_owned());
    }
    let said = said.replace("<non-verbose/>", "");
    let words: Vec<&str> = said.split_whitespace().collect();
    GrammarError(words.join(" ").chars().take(MAX_CHARS).collect())
}

/// A compiled grammar, and the answers that follow it.
#[derive(Default)]
pub(super) struct Host {
    /// The state before the first token.
    compiled: Option<Matcher>,
    answers: BTreeMap<u32, Matcher>,
    n_started: u32,
}

impl Host {
    pub fn reply(&mut self, factory: &ParserFactory, request: &Request) -> Reply {
        let replied = self.try_reply(factory, request);
        replied.unwrap_or_else(|GrammarError(error)| Reply::Failed(error))
    }

    fn try_reply(
        &mut self,
        factory: &ParserFactory,
        request: &Request,
    ) -> Result<Reply, GrammarError> {
        match request {
            Request::Compile(source) => {
                self.compiled = Some(compile(factory, source)?);
                Ok(Reply::Done)
            }
            Request::Start => {
                let compiled = self.compiled.as_ref().ok_or_else(unknown)?;
                self.n_started = self.n_started.wrapping_add(1);
                self.answers.insert(self.n_started, compiled.deep_clone());
                Ok(Reply::Started(self.n_started))
            }
            Request::Mask(answer) => {
                let mask = self.answer(*answer)?.compute_mask_or_eos();
                let mask = mask.map_err(|e| said(&e.to_string()))?;
                Ok(Reply::Mask(mask.as_slice().to_vec()))
            }
            Request::Advance { answer, token } => advance(self.answer(*answer)?, vec![*token]),
            Request::Force(answer) => {
                let answer = self.answer(*answer)?;
                let tokens = answer.compute_ff_tokens();
                advance(answer, tokens)
            }
            Request::End(answer) => {
                self.answers.remove(answer);
                Ok(Reply::Done)
            }
            Request::Tokens(_) => Err(unknown()),
        }
    }

    fn answer(&mut self, number: u32) -> Result<&mut Matcher, GrammarError> {
        self.answers.get_mut(&number).ok_or_else(unknown)
    }
}

/// The error of a request that nobody makes.
fn unknown() -> GrammarError {
    GrammarError("expected an answer that was begun, found none".to_owned())
}

fn compile(factory: &ParserFactory, source: &GrammarSource) -> Result<Matcher, GrammarError> {
    let mut matcher = Matcher::new(factory.create_parser(source.parsed()));
    if let Some(error) = matcher.get_error() {
        return Err(said(&error));
    }
    // What is not supported may be found only now.
    match matcher.compute_mask() {
        Ok(_) => Ok(matcher),
        Err(error) => Err(said(&error.to_string())),
    }
}

fn advance(answer: &mut Matcher, tokens: Vec<u32>) -> Result<Reply, GrammarError> {
    let advanced = answer.consume_tokens(&tokens);
    advanced.map_err(|e| said(&e.to_string()))?;
    Ok(Reply::Advanced {
        tokens,
        is_complete: answer.is_stopped(),
    })
}

/// A grammar that was compiled in this process.
pub(super) struct Local {
    factory: Arc<ParserFactory>,
    host: Mutex<Host>,
}

impl Local {
    pub fn compile(
        factory: Arc<ParserFactory>,
        source: &GrammarSource,
    ) -> Result<Self, GrammarError> {
        source.check_states()?;
        let local = Self {
            factory,
            host: Mutex::default(),
        };
        let request = Request::Compile(source.clone());
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || local.call(&request))
                .map_err(|e| GrammarError(format!("cannot be compiled: {e}")))?;
            let compiled = thread.join();
            compiled.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        Ok(local)
    }
}

impl Link for Local {
    fn call(&self, request: &Request) -> Result<Reply, GrammarError> {
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        host.reply(&self.factory, request).into_result()
    }
}
