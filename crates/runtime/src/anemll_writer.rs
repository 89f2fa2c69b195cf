//! Writes a language model as a bundle of ANEMLL: packages of embeddings, chunks of layers and the
//! output head, `meta.yaml`, and the tokenizer's files. `docs/bundles.md` describes the layout.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use thane_mil::opset::Opset;
use thane_mil::package::{Feature, Interface, Package, Partial, Shape, Summary};
use thane_mil::program::{Function, Program};
use thane_models::checkpoint::{Checkpoint, HuggingFace, Source};
use thane_models::{AneDecoder, Anemll, Info, Interface as Names, Options};

use crate::error::RuntimeError;
use crate::foreign::ANEMLL_META as META;
use crate::interface::{metadata, source_name};
use crate::main_function::MAIN;
use crate::observer::{Note, Observer};
use crate::opened::Model;
use crate::package_writer::WrittenPackage;
use crate::passes::{compile, counted, in_opset};

/// The version of the layout.
const VERSION: &str = "0.3.5";
/// Says which class of tokenizer the files are for.
const CONFIG: &str = "config.json";
/// Files of a tokenizer that a bundle gets, each if the checkpoint has it.
const TOKENIZER_FILES: [&str; 9] = [
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

/// Whether a file of this name belongs to an ANEMLL bundle, besides its packages.
pub fn is_anemll_file(name: &str) -> bool {
    name == META || name == CONFIG || TOKENIZER_FILES.contains(&name)
}

/// How a bundle is written.
#[derive(Clone, Debug, Default)]
pub struct AnemllOptions {
    /// Whether a bundle that exists is replaced. It stays until the new one is complete.
    pub replace: bool,
    /// Tokens that the KV cache holds; `None` for the model's own limit, at most 8192.
    pub context: Option<usize>,
    /// The form of the functions; their interface is that of such bundles in any case.
    pub ane: AneDecoder,
}

impl Model {
    /// Writes the model as a folder at `out`. It must be a Hugging Face folder.
    pub fn write_anemll(
        &self,
        out: &Path,
        options: &AnemllOptions,
        observer: &dyn Observer,
    ) -> Result<WrittenPackage, RuntimeError> {
        let checkpoint = self.checkpoint()?;
        let Source::HuggingFace(folder) = &checkpoint.source else {
            return Err(RuntimeError::BundleOfFile {
                path: self.path.clone(),
            });
        };
        let lowered = lower(checkpoint, options, observer)?;
        observer.step("writing the packages");
        let program = in_opset(&lowered.program, Some(Opset::CoreMl8))?;
        let writer = Writer {
            model: self,
            info: &lowered.info,
            anemll: &lowered.anemll,
        };
        let failed = |source| RuntimeError::Write {
            path: out.to_owned(),
            source,
        };
        let partial = Partial::folder(out).map_err(failed)?;
        let summary = writer.packages(&program, partial.path())?;
        let has_tokenizer = copy_tokenizer(folder, partial.path()).map_err(failed)?;
        if !has_tokenizer {
            observer.note(&Note::NoTokenizer);
        }
        let config = writer.config(folder)?;
        fs::write(partial.path().join(CONFIG), config).map_err(failed)?;
        fs::write(partial.path().join(META), writer.meta()).map_err(failed)?;
        let put = if options.replace {
            partial.replace()
        } else {
            partial.put()
        };
        put.map_err(failed)?;
        let functions = program.functions().iter();
        Ok(WrittenPackage {
            opset: Opset::CoreMl8.name(),
            functions: functions.map(|f| f.name.clone()).collect(),
            context: lowered.info.context,
            summary,
        })
    }
}

/// A checkpoint as functions of a bundle.
struct Lowered {
    program: Program,
    info: Info,
    anemll: Anemll,
}

fn lower(
    checkpoint: &Checkpoint,
    options: &AnemllOptions,
    observer: &dyn Observer,
) -> Result<Lowered, RuntimeError> {
    let path = &checkpoint.path;
    let ane = AneDecoder {
        interface: Names::Anemll,
        ..options.ane.clone()
    };
    let options = Options {
        context: options.context,
        ane: Some(ane),
        ..Options::default()
    };
    let failed = |e| RuntimeError::model(path, e);
    let built = thane_models::build(checkpoint, &options).map_err(failed)?;
    thane_models::check_numbers(&built.stored).map_err(failed)?;
    for note in built.notes {
        observer.note(&Note::Checkpoint(note));
    }
    Ok(Lowered {
        program: compile(built.program, path, observer)?,
        info: built.info,
        anemll: built.anemll.expect("the interface is that of such bundles"),
    })
}

/// Copies the files of the tokenizer. Returns whether there is a vocabulary.
fn copy_tokenizer(folder: &HuggingFace, to: &Path) -> std::io::Result<bool> {
    for name in TOKENIZER_FILES {
        let from = folder.folder.join(name);
        if from.is_file() {
            fs::copy(from, to.join(name))?;
        }
    }
    Ok(folder.tokenizer_json.is_some() || folder.tokenizer_model.is_some())
}

struct Writer<'a> {
    model: &'a Model,
    info: &'a Info,
    anemll: &'a Anemll,
}

impl Writer<'_> {
    /// Writes the package of each part into `folder`.
    fn packages(&self, program: &Program, folder: &Path) -> Result<Summary, RuntimeError> {
        let mut all = Summary::default();
        let mut functions = program.functions().iter().peekable();
        while let Some(first) = functions.next() {
            let (part, _) = parted(&first.name);
            let mut own = vec![first];
            while let Some(next) = functions.next_if(|f| parted(&f.name).0 == part) {
                own.push(next);
            }
            let path = folder.join(format!("{}.mlpackage", self.stem(part)));
            let package = self.package(part, &own);
            let written = package.write(&path, &[]);
            let summary = written.map_err(|source| RuntimeError::WritePackage { path, source })?;
            all.n_constants += summary.n_constants;
            all.model_bytes += summary.model_bytes;
            all.weight_bytes += summary.weight_bytes;
            all.item_bytes += summary.item_bytes;
        }
        Ok(all)
    }

    fn package(&self, part: &str, functions: &[&Function]) -> Package {
        let named = functions.iter().map(|f| {
            let mut named = (*f).clone();
            parted(&f.name).1.clone_into(&mut named.name);
            named
        });
        let program = Program::new(named.collect());
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
        let mut metadata = metadata(description, self.model.license.as_ref(), &source);
        metadata.version = VERSION.to_owned();
        metadata.user_defined.extend(self.facts(part, &program));
        Package {
            metadata,
            interfaces,
            ..Package::new(program)
        }
    }

    /// One token or a block of them.
    fn of_embeddings(&self) -> Interface {
        let mut shapes = vec![vec![1, 1], vec![1, self.anemll.block]];
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
    fn facts(&self, part: &str, program: &Program) -> Vec<(String, String)> {
        let mut facts = vec![
            ("info", "Converted with Thane".to_owned()),
            ("context_length", self.info.context.to_string()),
            ("batch_size", self.anemll.block.to_string()),
            ("num_chunks", self.anemll.n_chunks.to_string()),
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
        let prefix = self.anemll.prefix;
        match part.strip_prefix("chunk").map(str::parse::<usize>) {
            Some(Ok(number)) => {
                format!(
                    "{prefix}_FFN_PF_chunk_{number:02}of{:02}",
                    self.anemll.n_chunks
                )
            }
            _ if part == EMBEDDINGS => format!("{prefix}_embeddings"),
            _ => format!("{prefix}_lm_head"),
        }
    }

    /// `config.json`, which names the class of the tokenizer, and the tokens that end a generation.
    fn config(&self, folder: &HuggingFace) -> Result<String, RuntimeError> {
        let ends = folder.eos_token_ids().map_err(|e| {
            let path = &self.model.path;
            RuntimeError::model(path, e.into())
        })?;
        let mut config = serde_json::json!({
            "tokenizer_class": self.anemll.tokenizer_class,
            "model_type": self.info.architecture,
        });
        if !ends.is_empty() {
            config["eos_token_id"] = ends.into();
        }
        Ok(format!("{config:#}\n"))
    }

    /// `meta.yaml`.
    fn meta(&self) -> String {
        let Anemll {
            prefix,
            block,
            n_chunks,
            head_slices,
            window,
            ..
        } = self.anemll;
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
        let (embeddings, ffn, head) = (compiled(EMBEDDINGS), compiled("chunk1"), compiled("head"));
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

const EMBEDDINGS: &str = "embeddings";

/// The part that a function belongs to, and the name that it has in the part's package.
fn parted(function: &str) -> (&str, &str) {
    function.split_once('_').unwrap_or((function, MAIN))
}

/// A text as a scalar of YAML: JSON is YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
