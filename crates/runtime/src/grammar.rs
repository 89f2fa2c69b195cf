//! Grammars that hold answers to a form: JSON schemas, regular expressions, and Lark grammars, over
//! the vocabulary of a model. The parser is that of `llguidance`.
//!
//! Start at [`Grammars`]. Compiled grammars are kept, because clients send the same one with each
//! request. A thread computes which tokens can follow while the model computes their logits.

use std::collections::VecDeque;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{
    InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use thane_engine::choose::{Constraint, Grammar, GrammarError};
use thane_engine::text::{EncodeOptions, Tokenizer};

use crate::worker::Worker;

/// Longest Lark grammar and regular expression. The time to compile grows with the square.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// Repetitions in the regular expressions of a grammar. Twice as many that may be empty, one after
/// the other, take 6 s, and sixteen times as many 23 s and gigabytes.
const MAX_REPETITIONS: usize = 2048;

/// Longest JSON schema, as text.
const MAX_SCHEMA_BYTES: usize = 256 << 10;

/// Stack to compile on: llguidance recurses through rules that name each other.
const STACK_BYTES: usize = 512 << 20;

/// What a grammar is written in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarSource {
    /// A JSON schema. Unless it has `x-guidance`, the JSON has a space after each comma and colon,
    /// and no other between tokens.
    JsonSchema(Value),
    /// A regular expression of the whole answer, in the syntax of the Rust crate `regex`.
    Regex(String),
    /// A grammar in llguidance's variant of Lark, which begins at `start`.
    Lark(String),
}

/// Two grammars, of which an answer follows one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EitherSource {
    /// A grammar of Lark that has the other one as `@form`.
    pub(crate) lark: String,
    pub(crate) form: GrammarSource,
}

/// What is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    One(GrammarSource),
    Either(EitherSource),
}

impl GrammarSource {
    /// Refuses what takes too long to compile.
    fn check_size(&self) -> Result<(), GrammarError> {
        let (n, most) = match self {
            Self::JsonSchema(schema) => (schema.to_string().len(), MAX_SCHEMA_BYTES),
            Self::Regex(text) | Self::Lark(text) => (text.len(), MAX_TEXT_BYTES),
        };
        if n > most {
            let error = format!("expected at most {most} bytes, found {n}");
            return Err(GrammarError(error));
        }
        let n = self.n_repetitions();
        if n > MAX_REPETITIONS {
            let error = format!("expected at most {MAX_REPETITIONS} repetitions, found {n}");
            return Err(GrammarError(error));
        }
        Ok(())
    }

    /// The `*`, `+`, `?` and `{` of regular expressions.
    fn n_repetitions(&self) -> usize {
        fn of(text: &str) -> usize {
            text.matches(['*', '+', '?', '{']).count()
        }
        fn of_schema(schema: &Value) -> usize {
            match schema {
                Value::Array(all) => all.iter().map(of_schema).sum(),
                Value::Object(fields) => fields
                    .iter()
                    .map(|(key, value)| match (key.as_str(), value) {
                        ("pattern", Value::String(pattern)) => of(pattern),
                        ("patternProperties", Value::Object(patterns)) => {
                            patterns.keys().map(|p| of(p)).sum::<usize>() + of_schema(value)
                        }
                        _ => of_schema(value),
                    })
                    .sum(),
                _ => 0,
            }
        }
        match self {
            Self::JsonSchema(schema) => of_schema(schema),
            Self::Regex(text) | Self::Lark(text) => of(text),
        }
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(json!({"type": "object"}))
    }

    /// One of these texts.
    pub fn choice(texts: &[String]) -> Self {
        let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
        Self::Lark(format!("start: {}", texts.join(" | ")))
    }

    fn parsed(&self) -> TopLevelGrammar {
        match self {
            Self::JsonSchema(schema) => TopLevelGrammar::from_json_schema(with_spacing(schema)),
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        }
    }
}

impl Source {
    fn check_size(&self) -> Result<(), GrammarError> {
        match self {
            Self::One(source) => source.check_size(),
            Self::Either(EitherSource { lark, form }) => {
                GrammarSource::Lark(lark.clone()).check_size()?;
                form.check_size()
            }
        }
    }

    fn parsed(&self) -> TopLevelGrammar {
        match self {
            Self::One(source) => source.parsed(),
            Self::Either(EitherSource { lark, form }) => {
                let mut all = TopLevelGrammar::from_lark(lark.clone());
                all.grammars.extend(form.parsed().grammars);
                if let Some(form) = all.grammars.get_mut(1) {
                    form.name = Some("form".to_owned());
                }
                all
            }
        }
    }
}

/// Values of `format` that a grammar holds strings to.
const FORMATS: &[&str] = &[
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];

/// Removes other formats from a schema: in JSON Schema, a format that nobody knows is an
/// annotation.
fn drop_unknown_formats(schema: &mut Value) {
    /// Fields that hold values, not schemas.
    const VALUES: &[&str] = &["const", "default", "enum", "examples"];
    /// Fields that hold schemas by names, which are not fields.
    const NAMED: &[&str] = &[
        "$defs",
        "definitions",
        "dependentSchemas",
        "patternProperties",
        "properties",
    ];
    match schema {
        Value::Object(fields) => {
            let format = fields.get("format").and_then(Value::as_str);
            if format.is_some_and(|format| !FORMATS.contains(&format)) {
                fields.remove("format");
            }
            for (name, field) in fields {
                match field {
                    _ if VALUES.contains(&name.as_str()) => {}
                    Value::Object(named) if NAMED.contains(&name.as_str()) => {
                        named.values_mut().for_each(drop_unknown_formats);
                    }
                    _ => drop_unknown_formats(field),
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(drop_unknown_formats),
        _ => {}
    }
}

/// A schema that can be compiled, whose JSON is spaced as Python writes it. Models that may write
/// any space can write spaces forever.
pub(crate) fn with_spacing(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        other => other.clone(),
    };
    drop_unknown_formats(&mut schema);
    if let Value::Object(fields) = &mut schema {
        let spacing = json!({
            "whitespace_flexible": false,
            "item_separator": ", ",
            "key_separator": ": ",
        });
        fields.entry("x-guidance").or_insert(spacing);
    }
    schema
}

/// Compiles grammars for one tokenizer.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    /// Made when a grammar is first wanted.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    /// Computes masks for all answers; `None` if the system has no thread for that.
    worker: OnceLock<Option<Worker>>,
    /// The grammars that were used last, the newest first.
    kept: Mutex<VecDeque<(Source, Arc<Compiled>)>>,
}

impl Grammars {
    /// Most compiled grammars that are kept.
    const MAX_KEPT: usize = 16;

    /// Most states of the lexer of an answer. JSON schemas need some hundreds.
    const MAX_LEXER_STATES: usize = 25_000;

    /// Grammars over the tokens of `tokenizer`.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            factory: OnceLock::new(),
            worker: OnceLock::new(),
            kept: Mutex::default(),
        }
    }

    /// Compiles a grammar, or takes the one that was compiled before.
    ///
    /// # Errors
    ///
    /// If the grammar is not valid, uses what is not supported, or is too large.
    pub fn compile(&self, source: &GrammarSource) -> Result<Arc<dyn Grammar>, GrammarError> {
        self.compiled(&Source::One(source.clone()))
    }

    /// Compiles two grammars, of which an answer follows one.
    ///
    /// # Errors
    ///
    /// As [`Self::compile`].
    pub fn compile_either(&self, either: &EitherSource) -> Result<Arc<dyn Grammar>, GrammarError> {
        self.compiled(&Source::Either(either.clone()))
    }

    fn compiled(&self, source: &Source) -> Result<Arc<dyn Grammar>, GrammarError> {
        if let Some(found) = self.kept(source) {
            return Ok(found);
        }
        source.check_size()?;
        let matcher = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || self.matcher(source))
                .map_err(|e| GrammarError(format!("cannot be compiled: {e}")))?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let start = || Worker::start("masks").ok().map(|(worker, _)| worker);
        let compiled = Arc::new(Compiled {
            matcher: Mutex::new(matcher),
            worker: self.worker.get_or_init(start).clone(),
        });
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front((source.clone(), Arc::clone(&compiled)));
        kept.truncate(Self::MAX_KEPT);
        Ok(compiled)
    }

    fn matcher(&self, source: &Source) -> Result<Matcher, GrammarError> {
        let factory = self.factory.get_or_init(|| factory(&self.tokenizer));
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let mut matcher = Matcher::new(factory.create_parser(source.parsed()));
        if let Some(error) = matcher.get_error() {
            return Err(grammar_error(&error));
        }
        // What is not supported may be found only now.
        match matcher.compute_mask() {
            Ok(_) => Ok(matcher),
            Err(error) => Err(grammar_error(&error.to_string())),
        }
    }

    fn kept(&self, source: &Source) -> Option<Arc<dyn Grammar>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == source)?;
        let found = kept.remove(at)?;
        let compiled = Arc::clone(&found.1);
        kept.push_front(found);
        Some(compiled)
    }
}

/// What llguidance says, in one line, without the backtrace of a panic.
fn grammar_error(error: &str) -> GrammarError {
    const MAX_CHARS: usize = 400;
    let said = error.split("<backtrace>").next().unwrap_or_default();
    let said = said.replace("<non-verbose/>", "");
    let words: Vec<&str> = said.split_whitespace().collect();
    GrammarError(words.join(" ").chars().take(MAX_CHARS).collect())
}

fn factory(tokenizer: &Arc<Tokenizer>) -> Result<ParserFactory, GrammarError> {
    if tokenizer.end_ids().is_empty() {
        let error = "expected a token that ends an answer, found none in the model's files";
        return Err(GrammarError(error.to_owned()));
    }
    let made = catch_unwind(AssertUnwindSafe(|| {
        let env: TokEnv = Arc::new(Vocabulary::new(Arc::clone(tokenizer)));
        let capabilities = InferenceCapabilities {
            ff_tokens: env.tokenize_is_canonical(),
            ..InferenceCapabilities::default()
        };
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, capabilities, &slices)?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        // Each answer has its own lexer, of 1 to 2 kB for each state.
        limits.max_lexer_states = Grammars::MAX_LEXER_STATES;
        Ok(factory)
    }));
    made.map_err(|e| grammar_error(&e.to_string()))
}

/// A tokenizer as llguidance sees it.
struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl Vocabulary {
    /// Longer tokens are never chosen under a grammar; the trie cannot hold them.
    const MAX_TOKEN_BYTES: usize = 512;

    fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let marker = TokTrie::SPECIAL_TOKEN_MARKER;
        let n_vocab = u32::try_from(tokenizer.n_vocab()).unwrap_or(u32::MAX);
        let word = |id: u32| match tokenizer.token_bytes(id) {
            bytes if bytes.len() > Self::MAX_TOKEN_BYTES => Vec::new(),
            bytes if tokenizer.is_special(id) => [&[marker], bytes].concat(),
            // No text has this byte, which marks control tokens.
            bytes if bytes.first() == Some(&marker) => Vec::new(),
            bytes => bytes.to_vec(),
        };
        let words: Vec<Vec<u8>> = (0..n_vocab).map(word).collect();
        let ends = tokenizer.end_ids();
        let info = TokRxInfo::new(n_vocab, ends.first().copied().unwrap_or(0));
        let trie = TokTrie::from(&info, &words).with_eos_tokens(ends);
        Self { tokenizer, trie }
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let options = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.and_then(|text| self.tokenizer.encode(text, options).ok());
        let is_same = |tokens: &Vec<u32>| {
            let spelled = tokens.iter().flat_map(|id| self.tokenizer.token_bytes(*id));
            spelled.eq(bytes)
        };
        // A tokenizer may change a text, which cannot be done in the midst of an answer.
        let tokens = tokens.filter(is_same);
        tokens.unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }

    fn tokenize_is_canonical(&self) -> bool {
        !self.tokenizer.has_space_prefix()
    }
}

/// A grammar that was compiled: its state before the first token.
struct Compiled {
    matcher: Mutex<Matcher>,
    worker: Option<Worker>,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compiled")
    }
}

impl Grammar for Compiled {
    fn start(&self) -> Result<Box<dyn Constraint>, GrammarError> {
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Box::new(Running {
            matcher: Some(matcher.deep_clone()),
            mask: None,
            prepared: None,
            worker: self.worker.clone(),
        }))
    }
}

/// Which tokens can follow.
type Mask = Result<SimpleVob, GrammarError>;

/// A grammar after some tokens of an answer.
struct Running {
    /// `None` while the worker has it, and if the worker failed.
    matcher: Option<Matcher>,
    /// What the worker computed.
    mask: Option<Mask>,
    /// What the worker gives back.
    prepared: Option<Receiver<(Matcher, Mask)>>,
    worker: Option<Worker>,
}

impl Running {
    /// The matcher, once the worker has given it back.
    fn matcher(&mut self) -> Result<&mut Matcher, GrammarError> {
        if let Some(prepared) = self.prepared.take()
            && let Ok((matcher, mask)) = prepared.recv()
        {
            self.matcher = Some(matcher);
            self.mask = Some(mask);
        }
        let failed = || GrammarError("the tokens that can follow were not computed".to_owned());
        self.matcher.as_mut().ok_or_else(failed)
    }
}

fn mask(matcher: &mut Matcher) -> Mask {
    let mask = matcher.compute_mask_or_eos();
    mask.map_err(|e| grammar_error(&e.to_string()))
}

impl Constraint for Running {
    fn prepare(&mut self) {
        if let Some(worker) = &self.worker
            && let Some(mut matcher) = self.matcher.take()
        {
            self.prepared = Some(worker.begin(move || {
                let mask = mask(&mut matcher);
                (matcher, mask)
            }));
        }
    }

    fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        self.matcher()?;
        let prepared = self.mask.take();
        let mask = match prepared {
            Some(mask) => mask?,
            None => mask(self.matcher()?)?,
        };
        let words = mask.as_slice().iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(32).zip(words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self, token: u32) -> Result<(), GrammarError> {
        let advanced = self.matcher()?.consume_token(token);
        self.mask = None;
        advanced.map_err(|e| grammar_error(&e.to_string()))
    }

    fn advance_forced(&mut self) -> Result<Vec<u32>, GrammarError> {
        let matcher = self.matcher()?;
        let tokens = matcher.compute_ff_tokens();
        let advanced = matcher.consume_tokens(&tokens);
        self.mask = None;
        advanced.map_err(|e| grammar_error(&e.to_string()))?;
        Ok(tokens)
    }

    fn is_complete(&self) -> bool {
        // The worker never has a matcher whose answer is complete.
        self.matcher.as_ref().is_some_and(Matcher::is_stopped)
    }
}
