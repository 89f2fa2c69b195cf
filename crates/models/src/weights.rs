//! The tensors of a checkpoint under their Hugging Face names. A family requests each tensor with
//! the shape that it must have.
//!
//! A tensor that is missing or has another shape is recorded and replaced by zeros, so that one run
//! of a family finds all faults. [`Weights::finish`] then reports all of them, together with the
//! tensors that the family did not request.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use thane_mil::data::{Bytes, Data};

use crate::checkpoint::{Tensor, TensorType, Tensors};
use crate::error::ModelError;
use crate::graph;
use crate::quant;

/// Pairs of a Hugging Face name and its GGUF name; `{}` stands for the layer index.
pub type Names = &'static [(&'static str, &'static str)];

/// The names that all decoders have in common.
pub const COMMON_NAMES: Names = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
    ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
    ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
    ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
    ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
    ("model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"),
    ("model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"),
    ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
    ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
    ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
];

/// The tensors of one checkpoint, with a record of those that a family requested.
pub struct Weights<'a> {
    tensors: &'a Tensors,
    /// Pairs of Hugging Face and GGUF names; `None` for a Hugging Face checkpoint.
    names: Option<Vec<(&'static str, &'static str)>>,
    /// Pairs of a prefix that families use and the prefix that the file uses instead.
    renamed: Vec<(String, &'static str)>,
    asked: RefCell<BTreeSet<String>>,
    faults: RefCell<BTreeMap<String, String>>,
    notes: RefCell<Vec<String>>,
}

/// Prefixes of a decoder's tensor names in the file of a multimodal model, before transformers 4.52
/// and since, and the modules for images, which text does not need. Source: the renaming of `llava`
/// in transformers' conversion_mapping.py.
const MULTIMODAL: [&str; 2] = ["language_model.model.", "model.language_model."];
const MULTIMODAL_HEAD: &str = "language_model.lm_head.";
const VISION: [&str; 4] = [
    "vision_tower",
    "multi_modal_projector",
    "model.vision_tower",
    "model.multi_modal_projector",
];

impl<'a> Weights<'a> {
    /// The tensors of a Hugging Face folder. Names of the base model begin with `base`; in some
    /// files all names lack that prefix, and files of multimodal models have another prefix and
    /// tensors for images, which are ignored.
    pub fn hugging_face(tensors: &'a Tensors, base: &str) -> Self {
        let base = format!("{base}.");
        let begins = |prefix: &str| tensors.keys().any(|name| name.starts_with(prefix));
        let mut renamed = Vec::new();
        if let Some(prefix) = MULTIMODAL.into_iter().find(|prefix| begins(prefix)) {
            renamed.push((base, prefix));
            if begins(MULTIMODAL_HEAD) {
                renamed.push(("lm_head.".to_owned(), MULTIMODAL_HEAD));
            }
        } else if !begins(&base) {
            renamed.push((base, ""));
        }
        let weights = Self {
            renamed,
            ..Self::plain(tensors)
        };
        if weights.is_multimodal() {
            VISION
                .iter()
                .for_each(|module| weights.ignore_module(module));
        }
        weights
    }

    /// The tensors of a GGUF file. `names` are names of this family in addition to
    /// [`COMMON_NAMES`].
    pub fn gguf(tensors: &'a Tensors, names: Names) -> Self {
        Self {
            names: Some([names, COMMON_NAMES].concat()),
            ..Self::plain(tensors)
        }
    }

    fn plain(tensors: &'a Tensors) -> Self {
        Self {
            tensors,
            names: None,
            renamed: Vec::new(),
            asked: RefCell::default(),
            faults: RefCell::default(),
            notes: RefCell::default(),
        }
    }

    fn is_multimodal(&self) -> bool {
        self.renamed
            .iter()
            .any(|(_, theirs)| MULTIMODAL.contains(theirs))
    }

    /// Whether the output head shares the embedding's tensor. `configured` is what the
    /// configuration says. A file that has two different tensors contradicts a tied configuration:
    /// the head's own tensor is used then, like in transformers (`tie_weights` of
    /// modeling_utils.py), and a note tells the user.
    pub fn is_tied(&self, configured: bool) -> bool {
        let [table, head] =
            ["model.embed_tokens", "lm_head"].map(|module| self.file_name(module, "weight"));
        if !configured || !self.tensors.contains_key(&head) {
            return configured;
        }
        if let (Some(a), Some(b)) = (self.tensors.get(&table), self.tensors.get(&head))
            && !same_numbers(a, b)
        {
            self.notes.borrow_mut().push(format!(
                "tie_word_embeddings is true, but `{head}` differs from `{table}`: the head in the \
                 file is used, like in transformers"
            ));
            return false;
        }
        self.asked.borrow_mut().insert(head);
        true
    }

    /// Notes for the user on how the file was read.
    pub fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    /// The tensor `module.parameter`, which must have this shape. A fault is recorded for
    /// [`Self::finish`].
    pub fn get(&self, module: &str, parameter: &str, shape: &[usize]) -> Tensor {
        let name = self.file_name(module, parameter);
        let fault = match self.tensors.get(&name) {
            None => format!("`{name}` {shape:?} is missing"),
            Some(t) if t.shape != shape => format!(
                "`{name}`: expected the shape {shape:?}, found {:?}",
                t.shape
            ),
            Some(t) if unusable(t.ty) => {
                format!(
                    "`{name}`: expected the type F32, F16, BF16 or a block-quantized type, found \
                     {}",
                    t.ty.name()
                )
            }
            Some(t) if t.ty.is_quantized() && shape.len() != 2 => {
                format!(
                    "`{name}`: expected the type F32, F16 or BF16, found {}, which only matrices \
                     can have",
                    t.ty.name()
                )
            }
            Some(t) => {
                self.asked.borrow_mut().insert(name);
                return t.clone();
            }
        };
        self.faults.borrow_mut().insert(name.clone(), fault);
        self.asked.borrow_mut().insert(name.clone());
        Tensor {
            name,
            ty: TensorType::F32,
            shape: shape.to_vec(),
            bytes: Bytes::new(Vec::new()),
        }
    }

    /// The numbers of the vector `module.parameter`, or `None` after recording a fault.
    pub fn floats(&self, module: &str, parameter: &str, len: usize) -> Option<Vec<f32>> {
        let tensor = self.get(module, parameter, &[len]);
        let bytes = match quant::widened(tensor.ty, &tensor.bytes) {
            Some(data) => data.to_vec(),
            None => tensor.bytes.as_slice().to_vec(),
        };
        let floats: Vec<f32> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        (floats.len() == len).then_some(floats)
    }

    /// Whether the file has `module.parameter`.
    pub fn has(&self, module: &str, parameter: &str) -> bool {
        self.tensors
            .contains_key(&self.file_name(module, parameter))
    }

    /// The number of rows of `module.parameter`, if the file has that tensor.
    pub fn rows(&self, module: &str, parameter: &str) -> Option<usize> {
        self.tensors
            .get(&self.file_name(module, parameter))?
            .shape
            .first()
            .copied()
    }

    /// Ignores tensors whose names end in `suffix`, because the computation does not need them.
    pub fn ignore(&self, suffix: &str) {
        let names = self.tensors.keys().filter(|n| n.ends_with(suffix)).cloned();
        self.asked.borrow_mut().extend(names);
    }

    /// Ignores the tensors of a module, named as in the file, because the computation does not need
    /// them.
    pub fn ignore_module(&self, module: &str) {
        let begins = |name: &str| {
            name.strip_prefix(module)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        let names = self.tensors.keys().filter(|n| begins(n)).cloned();
        self.asked.borrow_mut().extend(names);
    }

    /// Reports all faults, including tensors that were neither requested nor ignored.
    ///
    /// # Errors
    ///
    /// [`ModelError::Tensors`] lists every fault.
    pub fn finish(&self) -> Result<(), ModelError> {
        let asked = self.asked.borrow();
        let extra = self
            .tensors
            .iter()
            .filter(|(name, _)| !asked.contains(*name));
        let mut faults: Vec<String> = self.faults.borrow().values().cloned().collect();
        faults.extend(extra.map(|(name, t)| {
            format!(
                "`{name}` {:?} does not belong to this architecture",
                t.shape
            )
        }));
        if faults.is_empty() {
            Ok(())
        } else {
            Err(ModelError::Tensors(faults))
        }
    }

    /// The name of `module.parameter` in the file.
    fn file_name(&self, module: &str, parameter: &str) -> String {
        let Some(names) = &self.names else {
            let found = self.renamed.iter().find_map(|(ours, theirs)| {
                // Module names end without the dot that prefixes end with.
                let module = format!("{module}.");
                module
                    .strip_prefix(ours.as_str())
                    .map(|rest| format!("{theirs}{rest}{parameter}"))
            });
            return found.unwrap_or_else(|| format!("{module}.{parameter}"));
        };
        let layer: String = module
            .split('.')
            .find(|p| p.parse::<usize>().is_ok())
            .unwrap_or_default()
            .to_owned();
        let file_module = names
            .iter()
            .find(|(ours, _)| ours.replace("{}", &layer) == module)
            .map_or_else(
                || module.to_owned(),
                |(_, theirs)| theirs.replace("{}", &layer),
            );
        format!("{file_module}.{parameter}")
    }
}

/// Whether two tensors hold the same numbers, in whatever type they are stored.
fn same_numbers(a: &Tensor, b: &Tensor) -> bool {
    if a.shape != b.shape {
        return false;
    }
    if a.ty == b.ty {
        return a.bytes.len() == b.bytes.len()
            && Data::Bytes(a.bytes.clone()) == Data::Bytes(b.bytes.clone());
    }
    !unusable(a.ty) && !unusable(b.ty) && graph::dense(a) == graph::dense(b)
}

/// Whether constants cannot be made from tensors of this type.
fn unusable(ty: TensorType) -> bool {
    ty.block_type().is_none()
}
