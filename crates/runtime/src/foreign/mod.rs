//! Bundles of other projects: a folder with several packages, each of which is a part of one model,
//! and files that say how the parts belong together.
//!
//! A layout is a file, or a folder if Thane writes such bundles too, with a [`ForeignLayout`] that
//! has its line in [`LAYOUTS`]; nothing else names a project. Its reader opens the parts, checks
//! that they fit together, and says which functions make a call; the rest is done here for all
//! layouts. What the files leave open is taken from the programs themselves: names, shapes and
//! states that they declare. The readers were written from published descriptions of the layouts
//! (`docs/bundles.md`).

mod anemll;
mod chaining;
mod checks;
mod coreml_llm;
mod fault;
mod meta;
mod part;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_engine::chain::{Call, Chain, Logits};
use thane_mil::budget::Budget;
use thane_mil::program::Program;
use thane_models::Info;

use crate::error::RuntimeError;
use crate::language::LanguageData;

use chaining::Chaining;
pub use fault::ForeignError;
pub use part::ForeignPart;
pub use write::{ForeignOptions, ForeignWriter};

/// Every layout, in the order in which a folder is tried.
static LAYOUTS: [&ForeignLayout; 2] = [&anemll::LAYOUT, &coreml_llm::LAYOUT];

/// How a project lays out its bundles.
#[derive(Debug)]
pub struct ForeignLayout {
    /// The name of the project.
    pub name: &'static str,
    /// The file that describes a bundle. A folder that has it has this layout.
    description: &'static str,
    /// Reads and checks the bundle in a folder.
    read: fn(&Path) -> Result<Reading, RuntimeError>,
    /// How Thane writes such bundles, if it does.
    writer: Option<ForeignWriter>,
}

/// What the reader of a layout found.
struct Reading {
    version: Option<String>,
    architecture: String,
    n_layers: usize,
    vocab_size: usize,
    context: usize,
    /// The packages in the order in which they run, then those that are not run.
    parts: Vec<ForeignPart>,
    /// The functions that run, and what they pass to each other.
    chaining: Chaining,
    calls: Vec<Call>,
    logits: Logits,
    rewind_limit: usize,
    notes: Vec<String>,
    tokenizer: PathBuf,
}

impl ForeignLayout {
    /// The layout of a folder; `None` if it has none of these.
    pub fn of(folder: &Path) -> Option<&'static Self> {
        let is_here = |layout: &&&Self| folder.join(layout.description).is_file();
        LAYOUTS.iter().find(is_here).copied()
    }

    /// The layouts that Thane writes.
    pub fn writers() -> impl Iterator<Item = &'static ForeignWriter> {
        LAYOUTS.iter().filter_map(|layout| layout.writer.as_ref())
    }

    /// Reads and checks the bundle in a folder.
    pub fn open(&'static self, folder: &Path) -> Result<ForeignBundle, RuntimeError> {
        let read = (self.read)(folder)?;
        let chain = Chain {
            context: read.context,
            vocab_size: read.vocab_size,
            calls: read.calls,
            lanes: Vec::new(),
            logits: read.logits,
            caches: Vec::new(),
            rings: Vec::new(),
            states: Vec::new(),
            slot_bytes: read.chaining.slot_bytes(),
            rewind_limit: read.rewind_limit,
        };
        let info = Info {
            architecture: read.architecture,
            n_layers: read.n_layers,
            vocab_size: read.vocab_size,
            max_context: read.context,
            context: read.context,
            cache_bytes: read.chaining.cache_bytes(),
            recurrent: false,
            fixed: None,
        };
        let first = read.parts.first().map_or(folder, |part| &part.path);
        Ok(ForeignBundle {
            layout: self,
            version: read.version,
            program: read.chaining.into_program(first)?,
            parts: read.parts,
            chain: Arc::new(chain),
            info,
            notes: read.notes,
            tokenizer: read.tokenizer,
        })
    }
}

/// A bundle that was read and checked.
pub struct ForeignBundle {
    /// The layout.
    pub layout: &'static ForeignLayout,
    /// The version that the files name.
    pub version: Option<String>,
    /// The packages in the order in which they run, then those that are not run.
    pub parts: Vec<ForeignPart>,
    /// The functions of all packages that run, each named by its part.
    pub program: Program,
    /// What the host does.
    pub chain: Arc<Chain>,
    /// Facts about the model.
    pub info: Info,
    /// What a user should know about how the bundle is run.
    pub notes: Vec<String>,
    /// The folder with the tokenizer.
    pub tokenizer: PathBuf,
}

impl ForeignBundle {
    /// Whether the bundle gives only the most likely token, so that nothing else can be sampled.
    pub fn is_greedy(&self) -> bool {
        self.n_known() == Some(1)
    }

    /// How many of the greatest logits the bundle gives; `None` if it gives all.
    pub fn n_known(&self) -> Option<usize> {
        self.chain.logits.n_known()
    }

    /// Tokenizer and chat template; `None` if there are none.
    pub fn language_data(&self, budget: &Budget) -> Result<Option<LanguageData>, RuntimeError> {
        LanguageData::from_folder(&self.tokenizer, self.info.vocab_size, budget)
            .map_err(|e| RuntimeError::language(&self.tokenizer, e))
    }
}
