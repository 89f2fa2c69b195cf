//! Writes a bundle: packages of embeddings, chunks of layers and the output head, `meta.yaml`, and
//! the tokenizer's files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use thane_mil::package::{Feature, Interface, Package, Shape, Summary};
use thane_mil::program::{Function, Program};
use thane_models::checkpoint::HuggingFace;
use thane_models::{BundleFacts, Info};

use super::super::write::Writing;
use super::{CHUNKS_FILE, EMBEDDINGS, HEAD, HEAD_FILE, META, VERSION, chunk, chunk_file};
use crate::chunks;
use crate::error::RuntimeError;
use crate::interface::{metadata, source_name, write_package};
use crate::main_function::MAIN;
use crate::observer::{Note, Observer};
use crate::opened::Model;
use crate::passes::counted;

/// Says which class of tokenizer the files are for.
const CONFIG: &str = "config.json";
/// Files beside the packages. Those after the first two are files of a tokenizer, each of which a
/// bundle gets if the checkpoint has it.
pub(super) const FILES: [&str; 11] = [
    META,
    CONFIG,
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// Writes the bundle into `to`.
pub(super) fn write(
    writing: &Writing<'_>,
    to: &Path,
    observer: &dyn Observer,
) -> Result<Summary, RuntimeError> {
    let (lowered, failed) = (writing.lowered, writing.failed);
    let writer = Writer {
        model: writing.model,
        info: &lowered.info,
        facts: lowered.bundle.as_ref().expect("the interface is ANEMLL's"),
    };
    let summary = writer.packages(writing.program, to)?;
    if !copy_tokenizer(writing.source, to).map_err(failed)? {
        observer.note(&Note::NoTokenizer);
    }
    let config = writer.config(writing.source)?;
    fs::write(to.join(CONFIG), config).map_err(failed)?;
    fs::write(to.join(META), writer.meta()).map_err(failed)?;
    Ok(summary)
}

/// Copies the files of the tokenizer. Returns whether there is a vocabulary.
fn copy_tokenizer(source: &HuggingFace, to: &Path) -> std::io::Result<bool> {
    for name in &FILES[2..] {
        let from = source.folder.join(name);
        if from.is_file() {
            fs::copy(from, to.join(name))?;
        }
    }
    Ok(source.tokenizer_json.is_some() || source.tokenizer_model.is_some())
}

struct Writer<'a> {
    model: &'a Model,
    info: &'a Info,
    facts: &'a BundleFacts,
}

impl Writer<'_> {
    /// Writes the package of each part into `folder`.
    fn packages(&self, program: &Program, folder: &Path) -> Result<Summary, RuntimeError> {
        let mut all = Summary::default();
        for (part, functions) in chunks::split(program, parted) {
            let path = folder.join(format!("{}.mlpackage", self.stem(&part)));
            let summary = write_package(&self.package(&part, functions), (&path, false), &[])?;
            chunks::add(&mut all, &summary);
        }
        Ok(all)
    }

    fn package(&self, part: &str, functions: Vec<Function>) -> Package {
        let program = Program::new(functions);
        let interfaces = match part {
            EMBEDDINGS => BTreeMap::from([(MAIN.to_owned(), self.of_embeddings())]),
            _ => BTreeMap::new(),
        };
        let description = format!(
            "{}, {part}, {}, context of {}",
            self.info.architecture,
            counted(self.info.n_layers, "layer"),
            counted(self.info.context, "token")
        );
        let source = source_name(&self.model.name, &self.model.path);
        let license = self.model.license.as_ref();
        let mut metadata = metadata(description, license, (&source, &[]));
        metadata.version = VERSION.to_owned();
        metadata.user_defined.extend(self.stated(part, &program));
        Package {
            metadata,
            interfaces,
            ..Package::new(program)
        }
    }

    /// One token or a block of them.
    fn of_embeddings(&self) -> Interface {
        let mut shapes = vec![vec![1, 1], vec![1, self.facts.block]];
        shapes.dedup();
        let shape = Shape::Enumerated {
            default: vec![1, 1],
            shapes,
        };
        let feature = Feature {
            shape,
            ..Feature::default()
        };
        Interface {
            features: BTreeMap::from([("input_ids".to_owned(), feature)]),
            ..Interface::default()
        }
    }

    /// What hosts without `meta.yaml` read.
    fn stated(&self, part: &str, program: &Program) -> Vec<(String, String)> {
        let mut facts = vec![
            ("info", "Converted with Thane".to_owned()),
            ("context_length", self.info.context.to_string()),
            ("batch_size", self.facts.block.to_string()),
            ("num_chunks", self.facts.n_chunks.to_string()),
        ];
        if let Some(number) = part.strip_prefix("chunk") {
            let names = program.functions().iter().map(|f| f.name.as_str());
            facts.push(("chunk_no", number.to_owned()));
            facts.push(("functions", names.collect::<Vec<_>>().join(",")));
        }
        let keyed = facts.into_iter();
        keyed
            .map(|(key, value)| (format!("com.anemll.{key}"), value))
            .collect()
    }

    /// The name of a part's package, without extension.
    fn stem(&self, part: &str) -> String {
        let prefix = self.facts.prefix;
        match part.strip_prefix("chunk").map(str::parse) {
            Some(Ok(number)) => {
                let stem = format!("{prefix}_{CHUNKS_FILE}");
                chunk_file(&stem, number, self.facts.n_chunks)
            }
            _ if part == EMBEDDINGS => format!("{prefix}_{EMBEDDINGS}"),
            _ => format!("{prefix}_{HEAD_FILE}"),
        }
    }

    /// `config.json`, which names the class of the tokenizer, and the tokens that end a generation.
    fn config(&self, folder: &HuggingFace) -> Result<String, RuntimeError> {
        let ends = folder.eos_token_ids().map_err(|e| {
            let path = &self.model.path;
            RuntimeError::model(path, e.into())
        })?;
        let mut config = serde_json::json!({
            "tokenizer_class": self.facts.tokenizer_class,
            "model_type": self.info.architecture,
        });
        if !ends.is_empty() {
            config["eos_token_id"] = ends.into();
        }
        Ok(format!("{config:#}\n"))
    }

    /// `meta.yaml`.
    fn meta(&self) -> String {
        let BundleFacts {
            prefix,
            block,
            n_chunks,
            head_slices,
            window,
            ..
        } = self.facts;
        let Info {
            context,
            vocab_size,
            architecture,
            ..
        } = self.info;
        let source = source_name(&self.model.name, &self.model.path);
        let name = quoted(&format!("{source}-ctx{context}"));
        let description = quoted(&format!(
            "{source} for the Neural Engine, converted with Thane"
        ));
        let license = quoted(self.model.license.as_deref().unwrap_or("unknown"));
        let compiled = |part: &str| format!("{}.mlmodelc", self.stem(part));
        let (embeddings, ffn, head) = (compiled(EMBEDDINGS), compiled(&chunk(1)), compiled(HEAD));
        let n_slices = head_slices.len();
        let sizes: Vec<String> = head_slices.iter().map(usize::to_string).collect();
        let sizes = sizes.join(", ");
        let mut text = format!(
            "\
model_info:
  name: {name}
  version: {VERSION}
  description: {description}
  license: {license}
  author: Thane
  framework: Core ML
  language: Rust
  architecture: {architecture}
  parameters:
    context_length: {context}
    batch_size: {block}
    lut_embeddings: none
    lut_ffn: none
    lut_lmhead: none
    num_chunks: {n_chunks}
    model_prefix: {prefix}
    embeddings: {embeddings}
    lm_head: {head}
    ffn: {ffn}
    split_lm_head: {n_slices}
    vocab_size: {vocab_size}
    lm_head_chunk_sizes: [{sizes}]
    prefill_dynamic_slice: true
"
        );
        if let Some(window) = window {
            // One cache for all layers, and windows in the programs: nothing shifts.
            text += &format!("    sliding_window: {window}\n    single_cache: true\n");
        }
        text
    }
}

/// The part that a function belongs to, and the name that it has in the part's package.
fn parted(function: &str) -> Option<(&str, &str)> {
    Some(function.split_once('_').unwrap_or((function, MAIN)))
}

/// A text as a scalar of YAML: JSON is YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
