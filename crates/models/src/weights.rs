//! The tensors of a checkpoint under the names of Hugging Face, each asked for with the shape that it must have.
//!
//! What is missing or misshapen is recorded and stands in as zeros, so that one run of a family finds all of it;
//! [`Weights::finish`] then lists everything, with what nobody asked for.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use thane_mil::data::Bytes;

use crate::checkpoint::{Tensor, TensorType, Tensors};
use crate::error::ModelError;
use crate::quant;

/// A name of Hugging Face and what GGUF calls it; `{}` stands for the layer.
pub type Names = &'static [(&'static str, &'static str)];

/// The names that all decoders share.
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

/// The tensors of one checkpoint while a family asks for them.
pub struct Weights<'a> {
    tensors: &'a Tensors,
    /// GGUF's names beside those of Hugging Face, where the file is GGUF.
    names: Option<Vec<(&'static str, &'static str)>>,
    /// What our names begin with and the file's do not: a base model that was saved alone.
    absent: Option<String>,
    asked: RefCell<BTreeSet<String>>,
    faults: RefCell<BTreeMap<String, String>>,
}

impl<'a> Weights<'a> {
    /// The tensors of a Hugging Face folder; names of the base model begin with `base`, or do without it in the whole file.
    pub fn hugging_face(tensors: &'a Tensors, base: &str) -> Self {
        let base = format!("{base}.");
        let absent = (!tensors.keys().any(|name| name.starts_with(&base))).then_some(base);
        Self { tensors, names: None, absent, asked: RefCell::default(), faults: RefCell::default() }
    }

    /// The tensors of a GGUF file; `names` are the family's own beside the common ones.
    pub fn gguf(tensors: &'a Tensors, names: Names) -> Self {
        let names = Some([names, COMMON_NAMES].concat());
        Self { tensors, names, absent: None, asked: RefCell::default(), faults: RefCell::default() }
    }

    /// The tensor `module.parameter` of this shape.
    pub fn get(&self, module: &str, parameter: &str, shape: &[usize]) -> Tensor {
        let name = self.file_name(module, parameter);
        let fault = match self.tensors.get(&name) {
            None => format!("`{name}` {shape:?} is missing"),
            Some(t) if t.shape != shape => format!("`{name}` is {:?}, {shape:?} is due", t.shape),
            Some(t) if unusable(t.ty) => {
                format!("`{name}` is of type {}: F32, F16, BF16 or a quantised type is due", t.ty.name())
            }
            Some(t) if t.ty.is_quantised() && shape.len() != 2 => {
                format!("`{name}` is of type {}, which only matrices can be: F32, F16 or BF16 is due", t.ty.name())
            }
            Some(t) => {
                self.asked.borrow_mut().insert(name);
                return t.clone();
            }
        };
        self.faults.borrow_mut().insert(name.clone(), fault);
        self.asked.borrow_mut().insert(name.clone());
        Tensor { name, ty: TensorType::F32, shape: shape.to_vec(), bytes: Bytes::new(Vec::new()) }
    }

    /// The numbers of the vector `module.parameter`; `None` when it is faulty, which is then recorded.
    pub fn floats(&self, module: &str, parameter: &str, len: usize) -> Option<Vec<f32>> {
        let tensor = self.get(module, parameter, &[len]);
        let bytes = match quant::widened(tensor.ty, &tensor.bytes) {
            Some(data) => data.to_vec(),
            None => tensor.bytes.as_slice().to_vec(),
        };
        let floats: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        (floats.len() == len).then_some(floats)
    }

    /// Whether the file has `module.parameter`.
    pub fn has(&self, module: &str, parameter: &str) -> bool {
        self.tensors.contains_key(&self.file_name(module, parameter))
    }

    /// Rows of `module.parameter`, if the file has it.
    pub fn rows(&self, module: &str, parameter: &str) -> Option<usize> {
        self.tensors.get(&self.file_name(module, parameter))?.shape.first().copied()
    }

    /// Tensors that the computation does without, by the end of their names.
    pub fn ignore(&self, suffix: &str) {
        let names = self.tensors.keys().filter(|n| n.ends_with(suffix)).cloned();
        self.asked.borrow_mut().extend(names);
    }

    /// Modules that the computation does without, by their name in the file.
    pub fn ignore_module(&self, module: &str) {
        let begins = |name: &str| name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'));
        let names = self.tensors.keys().filter(|n| begins(n)).cloned();
        self.asked.borrow_mut().extend(names);
    }

    /// Everything that was wrong, and what nobody asked for.
    pub fn finish(&self) -> Result<(), ModelError> {
        let asked = self.asked.borrow();
        let extra = self.tensors.iter().filter(|(name, _)| !asked.contains(*name));
        let mut faults: Vec<String> = self.faults.borrow().values().cloned().collect();
        faults.extend(extra.map(|(name, t)| format!("`{name}` {:?} has no place in this architecture", t.shape)));
        if faults.is_empty() { Ok(()) } else { Err(ModelError::Tensors(faults)) }
    }

    fn file_name(&self, module: &str, parameter: &str) -> String {
        let Some(names) = &self.names else {
            let module = self.absent.as_deref().and_then(|base| module.strip_prefix(base)).unwrap_or(module);
            return format!("{module}.{parameter}");
        };
        let layer: String = module.split('.').find(|p| p.parse::<usize>().is_ok()).unwrap_or_default().to_owned();
        let file_module = names
            .iter()
            .find(|(ours, _)| ours.replace("{}", &layer) == module)
            .map_or_else(|| module.to_owned(), |(_, theirs)| theirs.replace("{}", &layer));
        format!("{file_module}.{parameter}")
    }
}

fn unusable(ty: TensorType) -> bool {
    !ty.is_quantised() && !matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::Bf16)
}
