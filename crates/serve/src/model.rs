//! A model that is served: its name, and its thread.

use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use thane_engine::pages::{PageForm, PageStore};
use thane_engine::sessions::Sessions;
use thane_mil::backend::Backend;
use thane_mil::budget::Budget;
use thane_runtime::{
    EmbedOptions, Encoding, GrammarProgram, LanguageModel, LanguageOptions, Model, Observer,
    PageOptions, Prompt, PromptCache, PromptEncoder, RerankOptions, RuntimeError, Task,
};

use crate::answers::{Answers, Parts};
use crate::counts::Counts;
use crate::error::ApiError;
use crate::places::Places;
use crate::ranks::Ranks;
use crate::vectors::Embeddings;
use crate::warm;

/// How models are served.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// The program of a language model.
    pub language: LanguageOptions,
    /// Answers of a language model that run side by side; each has a KV cache.
    pub n_slots: usize,
    /// Most requests that wait for a model; more are refused.
    pub n_queue: usize,
    /// Most time from the arrival of a request to the end of its answer. That of a language model
    /// ends as it is then; other requests are refused.
    pub answer_time: Option<Duration>,
    /// Whether each text is embedded alone, so that the bits of its vector depend on nothing else.
    pub deterministic: bool,
    /// Limits the memory for tokenizing, for grammars, for vectors, and for prompts that are kept.
    pub budget: Budget,
    /// Compiles grammars in processes; `None` for this process, where nothing ends a grammar that
    /// takes too long.
    pub grammars: Option<GrammarProgram>,
    /// Where prompts are kept that no slot holds.
    pub prompts: KeptPrompts,
}

/// Where the prompts of a language model are kept that no slot holds any more.
#[derive(Clone, Debug)]
pub struct KeptPrompts {
    /// Most bytes of memory; 0 to keep none.
    pub memory: usize,
    /// A folder that has them beyond memory and beyond the program, and the most bytes there.
    pub folder: Option<(PathBuf, u64)>,
    /// How keys and values are kept.
    pub form: PageForm,
    /// The arithmetic of the backend, on which keys and values depend.
    pub numerics: String,
    /// Tells the user that the folder cannot be written.
    pub complain: fn(&str),
}

impl Default for ModelOptions {
    /// Four answers side by side, 64 requests that wait, prompts in 512 MB of memory.
    fn default() -> Self {
        Self {
            language: LanguageOptions::default(),
            n_slots: 4,
            n_queue: 64,
            answer_time: None,
            deterministic: false,
            budget: Budget::unlimited(),
            grammars: None,
            prompts: KeptPrompts::default(),
        }
    }
}

impl Default for KeptPrompts {
    /// 512 MB of memory and no folder, exact.
    fn default() -> Self {
        Self {
            memory: 512_000_000,
            folder: None,
            form: PageForm::Exact,
            numerics: String::new(),
            complain: |_| {},
        }
    }
}

impl KeptPrompts {
    fn sessions(
        &self,
        model: &LanguageModel,
        backend: &dyn Backend,
        (n_slots, budget): (usize, Budget),
    ) -> Result<Sessions, RuntimeError> {
        if self.memory == 0 {
            return model.sessions(backend, n_slots);
        }
        let store = match &self.folder {
            None => None,
            Some((folder, limit)) => {
                let what = match self.form {
                    PageForm::Exact => self.numerics.clone(),
                    PageForm::Int8 => format!("{} int8", self.numerics),
                };
                let identity = model.cache_identity(&what)?;
                let complain = self.complain;
                let opened = PromptCache::open(folder, &identity, *limit, Box::new(complain));
                let unread = |source| RuntimeError::Read {
                    path: folder.clone(),
                    source,
                };
                let store: Box<dyn PageStore> = Box::new(opened.map_err(unread)?);
                Some(store)
            }
        };
        let options = PageOptions {
            most_bytes: self.memory,
            budget,
            form: self.form,
            store,
        };
        model.paged_sessions(backend, n_slots, options)
    }
}

/// A running model.
pub struct Served {
    pub(crate) id: String,
    /// Name of the architecture in the model's files.
    pub(crate) architecture: String,
    pub(crate) task: Kind,
    thread: JoinHandle<()>,
}

/// What a model does, known before it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelTask {
    /// Answers prompts.
    Generate,
    /// Embeds texts.
    Embed,
    /// Scores texts for a query.
    Rerank,
}

impl ModelTask {
    /// What a model does.
    pub fn of(model: &Model) -> Result<Self, RuntimeError> {
        if model.is_reranker()? {
            return Ok(Self::Rerank);
        }
        Ok(match model.task()? {
            Task::Embed => Self::Embed,
            Task::Generate => Self::Generate,
        })
    }

    /// The name of the task.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Embed => "embed",
            Self::Rerank => "rerank",
        }
    }
}

/// What a model does.
pub(crate) enum Kind {
    /// Answers prompts.
    Answers(Answers),
    /// Embeds texts.
    Embeds(Embeddings),
    /// Scores texts for a query.
    Ranks(Ranks),
}

impl Served {
    /// Loads a model on a backend and starts its thread. Clients know the model as `id`.
    pub fn start(
        model: Model,
        id: &str,
        backend: &dyn Backend,
        options: &ModelOptions,
        observer: &dyn Observer,
    ) -> Result<Self, RuntimeError> {
        let path = model.path.clone();
        let id = id.to_owned();
        let unstarted = |source: io::Error| RuntimeError::Read { path, source };
        let (n_queue, answer_time) = (options.n_queue, options.answer_time);
        let budget = options.budget.clone();
        let (architecture, task, thread) = match ModelTask::of(&model)? {
            ModelTask::Rerank => {
                let mut reranker = model.reranker(&RerankOptions::default(), backend, observer)?;
                warm::score(&mut reranker)?;
                let architecture = reranker.info.architecture.clone();
                let started = Ranks::start(reranker, n_queue, budget, answer_time);
                let (ranks, thread) = started.map_err(unstarted)?;
                (architecture, Kind::Ranks(ranks), thread)
            }
            ModelTask::Embed => {
                let options_of = EmbedOptions {
                    more: vec![Encoding::Chunks, Encoding::Tokens],
                    batch_tokens: if options.deterministic {
                        1
                    } else {
                        EmbedOptions::BATCH_TOKENS
                    },
                    ..EmbedOptions::default()
                };
                let mut embedder = model.embedding_model(&options_of, backend, observer)?;
                // Also refuses a default prompt that cannot be used.
                Prompt::choose(None, &embedder.info)?;
                warm::vector(&mut embedder)?;
                let architecture = embedder.info.architecture.clone();
                let started = Embeddings::start(embedder, n_queue, budget, answer_time);
                let (embeddings, thread) = started.map_err(unstarted)?;
                (architecture, Kind::Embeds(embeddings), thread)
            }
            ModelTask::Generate => {
                let model = model.language_model(&options.language, observer)?;
                let mut prompts = PromptEncoder::new(model.language(&budget)?, id.clone());
                prompts.budget = budget.clone();
                prompts.grammars.set_budget(budget.clone());
                prompts.grammars.program.clone_from(&options.grammars);
                prompts.use_template()?;
                // Errors name the model as its clients do.
                let known = model.known().map(|mut known| {
                    known.path = PathBuf::from(&id);
                    known
                });
                let kept = (options.n_slots, budget);
                let mut sessions = options.prompts.sessions(&model, backend, kept)?;
                warm::answer(&mut sessions, &prompts, known.is_none())?;
                let started = Answers::start(Parts {
                    prompts,
                    sessions,
                    n_vocab: model.info.vocab_size,
                    recommended: model.recommended_sampling()?,
                    known,
                    n_queue,
                    answer_time,
                });
                let (answers, thread) = started.map_err(unstarted)?;
                (model.info.architecture, Kind::Answers(answers), thread)
            }
        };
        Ok(Self {
            id,
            architecture,
            task,
            thread,
        })
    }

    /// Unloads the model: waits for its thread, which gives the memory back.
    pub(crate) fn stop(self) {
        let _ = self.release().join();
    }

    /// The thread, which ends, because nobody can ask any more.
    pub(crate) fn release(self) -> JoinHandle<()> {
        let Self { task, thread, .. } = self;
        drop(task);
        thread
    }

    /// The error of a route that another kind of model has.
    pub(crate) fn wrong_kind(&self) -> ApiError {
        let (kind, route) = match &self.task {
            Kind::Answers(_) => ("a language model", "/v1/chat/completions"),
            Kind::Embeds(_) => ("an embedding model", "/v1/embeddings"),
            Kind::Ranks(_) => ("a reranker", "/v1/rerank"),
        };
        ApiError::field("model", format!("{} is {kind}: use {route}", self.id))
    }

    /// The name that clients use.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the model does.
    pub(crate) fn kind(&self) -> ModelTask {
        match &self.task {
            Kind::Answers(_) => ModelTask::Generate,
            Kind::Embeds(_) => ModelTask::Embed,
            Kind::Ranks(_) => ModelTask::Rerank,
        }
    }

    pub(crate) fn counts(&self) -> &Counts {
        self.parts().0
    }

    pub(crate) fn places(&self) -> &Places {
        self.parts().1
    }

    /// Most tokens of a prompt with its answer, or of an input.
    pub(crate) fn max_tokens(&self) -> usize {
        self.parts().2
    }

    /// What every kind of model has.
    fn parts(&self) -> (&Counts, &Places, usize) {
        match &self.task {
            Kind::Answers(of) => (&of.counts, &of.places, of.context),
            Kind::Embeds(of) => (&of.counts, &of.places, of.max_tokens),
            Kind::Ranks(of) => (&of.counts, &of.places, of.max_tokens),
        }
    }
}

/// The name that clients use for a model: the user's, without the folders of a path, which are
/// nobody's business.
pub fn name_of(model: &Model) -> String {
    let given = Path::new(&model.name);
    let is_path = given == model.path || model.name.contains(std::path::MAIN_SEPARATOR);
    let is_hub = model.name.starts_with("hf:");
    let last = model.path.file_name().filter(|_| is_path && !is_hub);
    last.map_or_else(
        || model.name.clone(),
        |name| name.to_string_lossy().into_owned(),
    )
}
