//! A language model: its program, its tokenizer, and sessions on a backend.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thane_calls::{Call, Calls, Head, HostHead};
use thane_engine::chain::{Chain, ChainExecutable};
use thane_engine::generate::Session;
use thane_engine::sample::SampleOptions;
use thane_engine::sessions::Sessions;
use thane_mil::backend::{Backend, Executable, Limits};
use thane_mil::budget::Budget;
use thane_mil::package::Package;
use thane_mil::program::Program;
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{AneDecoder, Info, StoredWeight, Table};

use crate::calls;
use crate::chunks;
use crate::contract::{Facts, GENERATOR, ports};
use crate::error::{ContractError, LanguageError, RuntimeError, Task};
use crate::files::{FileHash, hash, walk};
use crate::foreign::{ForeignBundle, ForeignLayout};
use crate::heads;
use crate::interface::weight_files;
use crate::known::Known;
use crate::language::{Language, LanguageData};
use crate::main_function::with_contract_names;
use crate::manifest::read_manifest;
use crate::observer::{Note, Observer};
use crate::opened::{Files, Model};
use crate::package_contents::{PackageContents, read_contents};
use crate::passes::compile;
use crate::sampling::of_facts;
use crate::tables::{self, Tables};

/// The program that is made of a language model.
#[derive(Clone, Debug)]
pub struct LanguageOptions {
    /// Tokens of prompt and answer together; `None` for the model's own limit, at most 8192.
    pub context: Option<usize>,
    /// Element type of the KV cache: fp16, or fp32 for the reference.
    pub cache: DType,
    /// Whether to add the function `verify`, which gives the logits after every token.
    pub verify: bool,
    /// Adds the function `decode_top`, which gives so many of the greatest logits;
    /// [`Self::with_sampling`] knows how many sampling needs.
    pub top: Option<usize>,
    /// The Neural Engine form; `None` for the portable form.
    pub ane: Option<AneDecoder>,
}

impl Default for LanguageOptions {
    fn default() -> Self {
        Self {
            context: None,
            cache: DType::Fp16,
            verify: false,
            top: None,
            ane: None,
        }
    }
}

impl LanguageOptions {
    /// Most logits of `decode_top`: with more, little is left to gain.
    const MOST_TOP: usize = 256;

    /// Logits of `decode_top` for sampling options that are not known yet: enough for greedy
    /// sampling and the usual top-k of 40, with penalties of 64 tokens and some that are barred.
    pub const SERVED_TOP: usize = 128;

    /// Adds the function `decode_top` if sampling with these options needs few logits.
    pub fn with_sampling(self, sampling: &SampleOptions) -> Self {
        let top = sampling.n_greatest(usize::MAX);
        Self {
            top: top.filter(|n| *n <= Self::MOST_TOP),
            ..self
        }
    }
}

/// A language model with its program.
pub struct LanguageModel {
    /// The name by which the user can ask for this model again.
    pub name: String,
    /// The file or folder.
    pub path: PathBuf,
    /// License of the model; known for models of the catalog only.
    pub license: Option<String>,
    /// What the program was made of.
    pub origin: Origin,
    /// The program, after the passes of the compiler.
    pub program: Program,
    /// Facts about the model and its program.
    pub info: Info,
    /// The tensors that constants of the program come from; empty for a package.
    pub stored: Vec<StoredWeight>,
    /// The tables that a lowering gave, which a package gets.
    pub made_tables: Vec<Table>,
    /// The tables that the host looks up for functions of fixed length.
    tables: Tables,
}

/// What a program was made of.
pub enum Origin {
    /// A checkpoint, lowered by its family.
    Checkpoint(Box<Checkpoint>),
    /// A package, which has the program.
    Package(Box<PackageContents>),
    /// A bundle of another project, whose packages have the program.
    Foreign(Box<ForeignBundle>),
}

impl Model {
    /// Lowers a checkpoint to a program, or reads the program of a package.
    pub fn language_model(
        self,
        options: &LanguageOptions,
        observer: &dyn Observer,
    ) -> Result<LanguageModel, RuntimeError> {
        match self.files {
            Files::Checkpoint(_) => lower(self, options, observer),
            Files::Package => open_package(self, options, observer),
            Files::Bundle => open_chunks(self, options, observer),
            Files::Foreign(layout) => open_foreign(self, layout, options, observer),
        }
    }
}

fn lower(
    model: Model,
    options: &LanguageOptions,
    observer: &dyn Observer,
) -> Result<LanguageModel, RuntimeError> {
    let checkpoint = model.checkpoint()?;
    let options = thane_models::Options {
        context: options.context,
        cache: options.cache,
        verify: options.verify,
        top: options.top,
        ane: options.ane.clone(),
    };
    let lowered = thane_models::build(checkpoint, &options)
        .map_err(|source| RuntimeError::model(&model.path, source))?;
    for note in lowered.notes {
        observer.note(&Note::Checkpoint(note));
    }
    let program = compile(lowered.program, &model.path, observer)?;
    let Files::Checkpoint(checkpoint) = model.files else {
        return Err(RuntimeError::ExpectedCheckpoint { path: model.path });
    };
    Ok(LanguageModel {
        name: model.name,
        path: model.path,
        license: model.license,
        origin: Origin::Checkpoint(checkpoint),
        program,
        info: lowered.info,
        stored: lowered.stored,
        tables: tables::of_model(&lowered.tables),
        made_tables: lowered.tables,
    })
}

fn open_package(
    model: Model,
    options: &LanguageOptions,
    observer: &dyn Observer,
) -> Result<LanguageModel, RuntimeError> {
    let path = &model.path;
    let package = Package::open(path)?;
    let contents = read_contents(path, &package.program)?;
    let contents = contents.ok_or_else(|| RuntimeError::NoContract {
        path: path.clone(),
        task: Task::Generate,
    })?;
    if contents.contract.is_a_chunk() {
        let reason = "the package is a part of a model that was cut into several: the model is the \
                      folder that they were written into";
        let (path, reason) = (path.clone(), reason.to_owned());
        return Err(ContractError::Bundle { path, reason }.into());
    }
    let tables = contents.tables(path)?;
    let program = with_contract_names(package.program, &contents.contract);
    of_package(model, program, (contents, tables), options, observer)
}

fn open_chunks(
    model: Model,
    options: &LanguageOptions,
    observer: &dyn Observer,
) -> Result<LanguageModel, RuntimeError> {
    if let Some(manifest) = read_manifest(&model.path)?
        && matches!(manifest.model, Facts::Embed(_))
    {
        return Err(RuntimeError::EmbedsOnly { path: model.path });
    }
    let chunks = chunks::open(&model.path)?;
    let contents = (chunks.contents, chunks.tables);
    of_package(model, chunks.program, contents, options, observer)
}

/// A language model that was read from packages.
fn of_package(
    model: Model,
    program: Program,
    (contents, tables): (PackageContents, Tables),
    options: &LanguageOptions,
    observer: &dyn Observer,
) -> Result<LanguageModel, RuntimeError> {
    let info: Info = match contents.contract.model.clone() {
        Facts::Generate(facts) => {
            if of_facts(&facts).1 {
                let note = "the settings of the model's generation_config.json are not applied: \
                            they need more logits than the package gives";
                observer.note(&Note::Bundle(note.to_owned()));
            }
            facts.into()
        }
        Facts::Embed(_) => return Err(RuntimeError::EmbedsOnly { path: model.path }),
    };
    if let Some(asked) = options.context.filter(|n| *n != info.context) {
        return Err(RuntimeError::FixedContext {
            asked,
            context: info.context,
            max_context: info.max_context,
            model: contents.contract.source.model,
            is_for_ane: info.fixed.is_some(),
        });
    }
    let program = compile(program, &model.path, observer)?;
    let origin = Origin::Package(Box::new(contents));
    Ok(LanguageModel::read(model, origin, (program, info), tables))
}

fn open_foreign(
    model: Model,
    layout: &'static ForeignLayout,
    options: &LanguageOptions,
    observer: &dyn Observer,
) -> Result<LanguageModel, RuntimeError> {
    let mut bundle = layout.open(&model.path)?;
    let context = bundle.info.context;
    if let Some(asked) = options.context.filter(|n| *n != context) {
        return Err(RuntimeError::ForeignContext {
            path: model.path,
            asked,
            context,
        });
    }
    for text in &bundle.notes {
        observer.note(&Note::Bundle(text.clone()));
    }
    let program = std::mem::take(&mut bundle.program);
    let parts = (
        compile(program, &model.path, observer)?,
        bundle.info.clone(),
    );
    let origin = Origin::Foreign(Box::new(bundle));
    Ok(LanguageModel::read(model, origin, parts, Tables::new()))
}

impl LanguageModel {
    /// A model whose program was read, so that nothing of it was made here.
    fn read(model: Model, origin: Origin, parts: (Program, Info), tables: Tables) -> Self {
        let (program, info) = parts;
        Self {
            name: model.name,
            path: model.path,
            license: model.license,
            origin,
            program,
            info,
            stored: Vec::new(),
            made_tables: Vec::new(),
            tables,
        }
    }

    /// The name of the checkpoint: the model's own, or the one that a package was made of.
    pub fn checkpoint_name(&self) -> &str {
        match &self.origin {
            Origin::Package(contents) => &contents.contract.source.model,
            Origin::Checkpoint(_) | Origin::Foreign(_) => &self.name,
        }
    }

    /// Whether the program was read from a package, so that its context is fixed.
    pub fn is_package(&self) -> bool {
        !matches!(self.origin, Origin::Checkpoint(_))
    }

    /// Number of packages that layers and head are cut into.
    pub fn n_chunks(&self) -> usize {
        chunks::count(self.program.functions())
    }

    /// Whether the program is in the Neural Engine form.
    pub fn is_for_ane(&self) -> bool {
        self.info.fixed.is_some()
    }

    /// The data of tokenizer and chat template; `None` if the files have no tokenizer.
    /// What reading them takes fits `budget`.
    pub fn language_data(&self, budget: &Budget) -> Result<Option<LanguageData>, RuntimeError> {
        match &self.origin {
            Origin::Checkpoint(checkpoint) => {
                LanguageData::from_checkpoint(checkpoint, self.info.vocab_size, budget)
                    .map_err(|e| RuntimeError::language(&self.path, e))
            }
            Origin::Package(contents) => Ok(contents.language.clone()),
            Origin::Foreign(bundle) => bundle.language_data(budget),
        }
    }

    /// Tokenizer and chat template. Making the tokenizer fits `budget`, and the tokenizer counts
    /// against it as long as it is there.
    pub fn language(&self, budget: &Budget) -> Result<Language, RuntimeError> {
        let data = self.language_data(budget)?;
        data.ok_or_else(|| LanguageError::NoTokenizer(self.no_tokenizer()))
            .and_then(|data| data.into_language(budget))
            .map_err(|e| RuntimeError::language(&self.path, e))
    }

    fn no_tokenizer(&self) -> &'static str {
        match &self.origin {
            Origin::Checkpoint(c) if c.gguf().is_some() => {
                "the file has no tokenizer (key tokenizer.ggml.tokens)"
            }
            Origin::Checkpoint(_) => {
                "the folder has no tokenizer.json, or tokenizer.bin beside a .bin file"
            }
            Origin::Foreign(_) => "the bundle has no tokenizer.json or tokenizer.model",
            Origin::Package(_) => "the package was made of a checkpoint without a tokenizer",
        }
    }

    /// A session with an empty KV cache, for a program that has `prefill` and `decode`.
    pub fn session(&self, backend: &dyn Backend) -> Result<Session, RuntimeError> {
        self.require(&["prefill", "decode"])?;
        self.session_of_any_functions(backend)
    }

    /// A session with an empty KV cache, whichever functions the program has.
    pub fn session_of_any_functions(&self, backend: &dyn Backend) -> Result<Session, RuntimeError> {
        self.check_states()?;
        let instance = self
            .load(backend)?
            .instantiate()
            .map_err(|e| RuntimeError::Start(Box::new(e)))?;
        let (context, vocab_size) = (self.info.context, self.info.vocab_size);
        let session = Session::new(instance, context, vocab_size);
        let session = session.with_recurrence(self.info.recurrent);
        Ok(session.with_top(self.n_top()))
    }

    /// Refuses states that no machine is asked for, before weights are loaded.
    fn check_states(&self) -> Result<(), RuntimeError> {
        let checked = Limits::default().check_states(&self.program);
        checked.map_err(|e| RuntimeError::Start(Box::new(e)))
    }

    /// `n` sessions that run together, each with an empty KV cache.
    pub fn sessions(&self, backend: &dyn Backend, n: usize) -> Result<Sessions, RuntimeError> {
        self.require(&["prefill", "decode"])?;
        self.check_states()?;
        let batch = self
            .load(backend)?
            .instantiate_batch(n)
            .map_err(|e| RuntimeError::Start(Box::new(e)))?;
        let (context, vocab_size) = (self.info.context, self.info.vocab_size);
        let sessions = Sessions::new(batch, context, vocab_size);
        let sessions = sessions.with_recurrence(self.info.recurrent);
        Ok(sessions.with_top(self.n_top()))
    }

    /// What the keys and values of tokens depend on, for a cache that outlives the program: the
    /// weights, the form of the program, and this program's version. `numerics` names the
    /// arithmetic. Reads all weights.
    pub fn cache_identity(&self, numerics: &str) -> Result<String, RuntimeError> {
        let unread = |source: io::Error| RuntimeError::Read {
            path: self.path.clone(),
            source,
        };
        let paths = match &self.origin {
            Origin::Checkpoint(checkpoint) => {
                let config = checkpoint.path.join("config.json");
                let mut paths = weight_files(checkpoint)?;
                paths.extend(config.is_file().then_some(config));
                paths
            }
            _ => {
                let files = walk(&self.path).map_err(unread)?.into_iter();
                files.map(|(name, _)| self.path.join(name)).collect()
            }
        };
        let hashes = paths.iter().map(|path| hash(path, String::new()));
        let hashes = hashes
            .collect::<io::Result<Vec<FileHash>>>()
            .map_err(unread)?;
        let hashes: Vec<String> = hashes.into_iter().map(|hash| hash.sha256).collect();
        let states = self.program.function("decode").into_iter();
        let states =
            states.flat_map(|f| f.body().inputs.iter().map(|v| f.value(*v).ty.to_string()));
        let states: Vec<String> = states.collect();
        Ok(format!(
            "{GENERATOR} {numerics} {} {}",
            hashes.join(" "),
            states.join(" ")
        ))
    }

    /// Whether an instance of the model has a function. Functions of fixed length, and bundles of
    /// other projects, are called through a chain, which has its own.
    pub fn has_function(&self, name: &str) -> bool {
        let is_chain = match &self.info.fixed {
            Some(fixed) => {
                let present = |name: &String| self.program.function(name).is_some();
                let whole = |call: &&Call| call.functions.iter().all(present);
                let mut calls = fixed.calls.iter().filter(whole);
                // One token may be padded, which layers that remember all tokens must not see.
                let pads = !self.info.recurrent;
                calls.any(|call| call.lanes == 1 && (call.tokens == 1 || pads))
            }
            None => matches!(self.origin, Origin::Foreign(_)),
        };
        if is_chain {
            return ["prefill", "decode", "verify"].contains(&name);
        }
        self.program.function(name).is_some()
    }

    /// An error if the model gives only some of the logits; `what` needs all of them.
    pub fn require_all_logits(&self, what: &'static str) -> Result<(), RuntimeError> {
        match self.known() {
            Some(known) => Err(known.lacks(what)),
            None => Ok(()),
        }
    }

    /// How many of the greatest logits the model gives; `None` if it gives all.
    pub fn n_known(&self) -> Option<usize> {
        match (&self.origin, &self.info.fixed) {
            (Origin::Foreign(bundle), _) => bundle.n_known(),
            (_, Some(fixed)) => fixed.head.n_known(),
            _ => None,
        }
    }

    /// The logits that the model gives, if not all.
    pub fn known(&self) -> Option<Known> {
        let (path, context) = (self.path.clone(), self.info.context);
        self.n_known().map(|n| Known { path, n, context })
    }

    /// The model on a backend. Its instances have the functions [`Self::has_function`] says, and
    /// take any number of tokens.
    pub fn load(&self, backend: &dyn Backend) -> Result<Arc<dyn Executable>, RuntimeError> {
        let fixed = self.info.fixed.as_ref();
        let with_head = match fixed.map(|fixed| &fixed.head) {
            Some(Head::Host(head)) => Some(self.with_host_head(head)?),
            _ => None,
        };
        let program = backend.load(with_head.as_ref().unwrap_or(&self.program))?;
        Ok(match &self.origin {
            Origin::Foreign(bundle) => {
                Arc::new(ChainExecutable::new(program, bundle.chain.clone()))
            }
            _ => match &self.info.fixed {
                None => program,
                Some(fixed) => Arc::new(ChainExecutable::new(program, self.chain(fixed)?)),
            },
        })
    }

    /// The program with the function that computes logits from final hidden states.
    fn with_host_head(&self, head: &HostHead) -> Result<Program, RuntimeError> {
        let with = (&self.tables, self.info.vocab_size);
        heads::with_head(&self.program, head, with).map_err(|what| self.fault(what))
    }

    fn fault(&self, what: String) -> RuntimeError {
        let path = self.path.clone();
        ContractError::Model { path, what }.into()
    }

    /// Whether the calls of functions of fixed length fit together, with the tables that they need.
    pub fn check_calls(&self) -> Result<(), RuntimeError> {
        match &self.info.fixed {
            None => Ok(()),
            Some(fixed) => self.chain(fixed).map(drop),
        }
    }

    /// How functions of fixed length are called.
    fn chain(&self, fixed: &Calls) -> Result<Arc<Chain>, RuntimeError> {
        let sizes = (self.info.vocab_size, self.info.context);
        let chain = calls::chain(fixed, &ports(&self.program)?, &self.tables, sizes);
        Ok(Arc::new(chain.map_err(|what| self.fault(what))?))
    }

    /// Refuses a program that lacks one of these functions, as packages may.
    fn require(&self, needed: &[&str]) -> Result<(), RuntimeError> {
        let missing = needed.iter().find(|name| !self.has_function(name));
        match missing {
            None => Ok(()),
            Some(missing) => Err(RuntimeError::MissingFunction {
                path: self.path.clone(),
                missing: (*missing).to_owned(),
                found: self
                    .program
                    .functions()
                    .iter()
                    .map(|f| f.name.clone())
                    .collect(),
            }),
        }
    }

    /// The number of logits that the function `decode_top` gives; `None` if there is none.
    fn n_top(&self) -> Option<usize> {
        let f = self.program.function("decode_top")?;
        let outputs = f.body().outputs.iter().map(|v| f.value(*v));
        let mut tokens = outputs.filter(|output| output.name == "top_tokens");
        tokens.next()?.ty.tensor()?.shape.last()?.known()
    }
}
