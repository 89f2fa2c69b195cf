//! Bundles of other projects as language models: a folder with several packages, each of which is a
//! part of one model, and files that say how they belong together.
//!
//! A reader per layout ([`anemll`], [`coreml_llm`]) finds the parts, checks that they fit together,
//! and describes what the host does as a [`Chain`], which crate `engine` runs. What the files leave
//! open is taken from the programs themselves: names, shapes and states that they declare. The
//! readers were written from published descriptions of the layouts (`docs/bundles.md`).

mod anemll;
mod chaining;
mod checks;
mod coreml_llm;
mod fault;
mod meta;
mod part;
mod tables;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_engine::chain::Chain;
use thane_mil::program::Program;
use thane_models::Info;

use crate::error::RuntimeError;
use crate::language::LanguageData;

pub(crate) use anemll::META as ANEMLL_META;
pub use fault::ForeignError;
pub use part::ForeignPart;
pub(crate) use tables::NumpyRows;

/// A way to lay out a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignLayout {
    /// ANEMLL: `meta.yaml` beside embeddings, chunks and a head, or one package of all.
    Anemll,
    /// CoreML-LLM: `model_config.json` beside chunks and tables, or one package.
    CoreMlLlm,
}

impl ForeignLayout {
    /// The layout of a folder; `None` if it is none of these.
    pub fn of(folder: &Path) -> Option<Self> {
        let has = |name: &str| folder.join(name).is_file();
        if has(ANEMLL_META) {
            Some(Self::Anemll)
        } else if has(coreml_llm::CONFIG) {
            Some(Self::CoreMlLlm)
        } else {
            None
        }
    }

    /// The name of the project.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anemll => "ANEMLL",
            Self::CoreMlLlm => "CoreML-LLM",
        }
    }
}

/// A bundle that was read and checked.
pub struct ForeignBundle {
    /// The layout.
    pub layout: ForeignLayout,
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
    /// Reads and checks a bundle.
    pub fn open(folder: &Path) -> Result<Self, RuntimeError> {
        match ForeignLayout::of(folder) {
            Some(ForeignLayout::Anemll) => anemll::open(folder),
            Some(ForeignLayout::CoreMlLlm) => coreml_llm::open(folder),
            None => Err(ForeignError::new(folder, "folder")
                .found(format!(
                    "expected {} or {}, found neither",
                    ANEMLL_META,
                    coreml_llm::CONFIG
                ))
                .remedy("the folder of an ANEMLL or CoreML-LLM bundle")
                .into()),
        }
    }

    /// Whether the bundle gives only the most likely token, so that nothing else can be sampled.
    pub fn is_greedy(&self) -> bool {
        self.n_known() == Some(1)
    }

    /// How many of the greatest logits the bundle gives; `None` if it gives all.
    pub fn n_known(&self) -> Option<usize> {
        self.chain.logits.n_known()
    }

    /// Tokenizer and chat template; `None` if there are none.
    pub fn language_data(&self) -> Result<Option<LanguageData>, RuntimeError> {
        LanguageData::from_folder(&self.tokenizer, self.info.vocab_size).map_err(|source| {
            RuntimeError::Language {
                path: self.tokenizer.clone(),
                source,
            }
        })
    }
}
