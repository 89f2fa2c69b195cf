//! Opens a model by name, path or package, and generates text or embeds with it.
//!
//! ```no_run
//! use thane_cpu::{Cpu, Numerics};
//! use thane_hub::Hub;
//! use thane_hub::Places;
//! use thane_runtime::{Message, Model};
//!
//! # fn main() -> Result<(), thane_runtime::RuntimeError> {
//! let hub = Hub::new(Places::in_folder("models"));
//! let backend = Cpu::new(Numerics::Fast, 8);
//! let mut chat = Model::open("smollm2-135m", &hub, &())?.generator(&backend)?;
//! let question = Message::new("user", "Why is the sky blue?");
//! let answer = chat.answer(&[question], |piece| print!("{piece}"))?;
//! # Ok(())
//! # }
//! ```
//!
//! Start at [`Model`]. A model becomes a [`LanguageModel`] and a running [`Generator`], or a
//! running [`Embedder`], on any [`Backend`](thane_mil::backend::Backend). [`LanguageModel::write`]
//! and [`Model::write_bundle`] write Core ML packages with a [`contract`], by which such a package
//! can be opened like a checkpoint. [`Model::write_foreign`] writes a bundle for apps of another
//! project.
//!
//! This crate knows no flags, prints nothing, and reads no environment variable: options are
//! structs, and an [`Observer`] follows long operations.
#![deny(missing_docs)]

mod activations;
mod answer;
mod answer_options;
mod audited;
mod bundle_reader;
mod bundle_writer;
mod calibrate;
mod calls;
pub mod chat;
mod chunks;
mod compress;
pub mod contract;
mod conversation;
mod embedder;
mod encodings;
mod error;
pub mod files;
mod foreign;
mod generator;
mod golden;
mod grammar;
mod heads;
mod interface;
mod known;
mod language;
mod language_model;
mod layers;
mod local;
mod main_function;
pub mod manifest;
mod observer;
mod opened;
mod overflow;
mod package_contents;
mod package_writer;
mod page_options;
mod passes;
mod placed_rows;
mod plan;
mod products;
mod prompt;
mod prompt_cache;
mod prompt_encoder;
mod quality;
mod quality_record;
mod recommended;
mod recorded;
mod reranker;
mod sampling;
mod scorer;
mod sentencepiece;
mod shared_rows;
mod source_model;
mod tables;
mod template_source;
mod time;
mod turns;
mod watched;
mod worker;

pub use activations::{Activations, activations, activations_as_built, activations_of_embedder};
pub use answer::{Answer, Timings};
pub use answer_options::{AnswerOptions, Question};
pub use audited::{
    BuiltDecoder, compressed_subject, decoder_subject, encoder_subject, host_matrix_bytes,
    host_table_bytes,
};
pub use bundle_reader::Bundle;
pub use bundle_writer::{BundleOptions, Layout, WrittenBundle, check_opset, lower_for_ane};
pub use calibrate::{Calibration, calibrate};
pub use compress::{CompressOptions, Compressed, Folder, compress, compress_late};
pub use embedder::{EmbedOptions, Embedder, Prefix, TextEncoder, Tokens, kept_by_default};
pub use encodings::{
    EncodingPrice, Fault, MakeSubject, TriedEncoding, choose_encoding, price_encodings,
    pricing_settings,
};
pub use error::{ContractError, LanguageError, OpsetError, RuntimeError, STATES_NEED, Task};
pub use foreign::{
    ForeignBundle, ForeignError, ForeignLayout, ForeignOptions, ForeignPart, ForeignWriter,
};
pub use generator::{Conversation, Generator, n_system};
pub use golden::{compare_goldens, record_cosines};
pub use grammar::{
    GRAMMAR_DATA_BYTES, GrammarProgram, GrammarSource, Grammars, ProcessUsage, serve_grammar,
};
pub use interface::interface;
pub use known::Known;
pub use language::{Language, LanguageData, TOKENIZER_BYTES, TokenizerData, TokenizerMemory};
pub use language_model::{LanguageModel, LanguageOptions, Origin};
pub use layers::layer_errors;
pub use local::local_cpu;
pub use main_function::MAIN;
pub use observer::{Note, Observer};
pub use opened::{Files, Model, is_package};
pub use overflow::{OverflowOptions, first_overflow};
pub use package_contents::{PackageContents, WrittenTables, items, read_contents, read_facts};
pub use package_writer::{PackageOptions, WrittenPackage};
pub use page_options::PageOptions;
pub use passes::{has_states, in_opset};
pub use plan::{PlanOptions, PricedEncoder, price_lengths, price_lookups};
pub use prompt::Prompt;
pub use prompt_cache::{Complain, PromptCache};
pub use prompt_encoder::PromptEncoder;
pub use quality::{Answered, Compared, Window, compare_answers, compare_logits, windows};
pub use quality_record::{
    check_record, golden_divergence, golden_logits, record_quality, recorded_quality,
};
pub use recommended::{Recommended, SamplingSource};
pub use recorded::{GoldenLogits, Measure, Quality};
pub use reranker::{Query, Ranked, RerankOptions, Reranker, sort as sort_ranked};
pub use sampling::{Sampling, SamplingChoice};
pub use scorer::Scorer;
pub use source_model::find_source;
pub use template_source::TemplateSource;
pub use thane_engine::text::{Message, TemplateInput};
pub use thane_hub::{one_line, shown_url};
pub use thane_kernels::heap::return_freed_memory;
pub use thane_models::{EncoderInfo, Encoding};
pub use time::rfc3339;
pub use turns::{Turn, Turns};
