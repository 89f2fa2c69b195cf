//! The tensors of a checkpoint under their Hugging Face names. A family requests each tensor with
//! the shape that it must have.
//!
//! A tensor that is missing or has another shape is recorded and replaced by zeros, so that one run
//! of a family finds all faults. [`Weights::finish`] then reports all of them, together with the
//! tensors that the family did not request.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use thane_mil::data::{Bytes, Data};

use crate::checkpoint::{Tensor, TensorType, Tensors};
use crate::error::ModelError;
use crate::graph;
use crate::quant;

/// Pairs of a Hugging Face name and its GGUF name; `{}` stands for the index of a layer, or of an
/// expert. A name is that of a module, or of a parameter with its module.
pub type Names = &'static [(&'static str, &'static str)];

/// The names that all decoders have in common.
pub const COMMON_NAMES: Names = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    // Layers behind the pooling of an embedding model.
    ("dense_2.linear", "dense_2"),
    ("dense_3.linear", "dense_3"),
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
    ("model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp"),
    (
        "model.layers.{}.mlp.experts.gate_proj",
        "blk.{}.ffn_gate_exps",
    ),
    ("model.layers.{}.mlp.experts.up_proj", "blk.{}.ffn_up_exps"),
    (
        "model.layers.{}.mlp.experts.down_proj",
        "blk.{}.ffn_down_exps",
    ),
    (
        "model.layers.{}.mlp.shared_expert_gate",
        "blk.{}.ffn_gate_inp_shexp",
    ),
    (
        "model.layers.{}.mlp.shared_expert.gate_proj",
        "blk.{}.ffn_gate_shexp",
    ),
    (
        "model.layers.{}.mlp.shared_expert.up_proj",
        "blk.{}.ffn_up_shexp",
    ),
    (
        "model.layers.{}.mlp.shared_expert.down_proj",
        "blk.{}.ffn_down_shexp",
    ),
];

/// The tensors of one checkpoint, with a record of those that a family requested.
pub struct Weights<'a> {
    tensors: &'a Tensors,
    /// Pairs of a name that families use and the name that the file uses instead.
    names: Vec<(&'static str, &'static str)>,
    /// Pairs of a prefix that families use and the prefix that the file uses instead.
    renamed: Vec<(String, &'static str)>,
    /// Whether the matrices of linear layers are stored as [inputs, outputs].
    transposed: bool,
    /// Matrices that were transposed, or made of vectors, by name.
    made: RefCell<BTreeMap<String, Bytes>>,
    asked: RefCell<BTreeSet<String>>,
    faults: RefCell<BTreeMap<String, String>>,
    /// The keys of the file that sizes follow from.
    sizes: RefCell<BTreeMap<usize, BTreeSet<String>>>,
    notes: RefCell<Vec<String>>,
}

/// Prefixes of a decoder's tensor names in the file of a multimodal model, before transformers 4.52
/// and since, and the modules for images, which text does not need. Source: the renaming of `llava`
/// in transformers' conversion_mapping.py.
const MULTIMODAL: [&str; 2] = ["language_model.model.", "model.language_model."];
const MULTIMODAL_HEAD: &str = "language_model.lm_head.";
const OTHER_SENSES: [&str; 9] = [
    "vision_tower",
    "multi_modal_projector",
    "model.vision_tower",
    "model.multi_modal_projector",
    "model.audio_tower",
    "model.embed_audio",
    "model.embed_vision",
    "model.vision_embedder",
    "model.visual",
];

impl<'a> Weights<'a> {
    /// The tensors of a Hugging Face folder, whose `names` differ from those that families use.
    /// Names of the base model begin with `base`; in some files all names lack that prefix, and
    /// files of multimodal models have another prefix and tensors for images, which are ignored.
    pub fn hugging_face(tensors: &'a Tensors, base: &str, names: Names) -> Self {
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
            names: names.to_vec(),
            renamed,
            ..Self::plain(tensors)
        };
        if weights.is_multimodal() {
            OTHER_SENSES
                .iter()
                .for_each(|module| weights.ignore_module(module));
        }
        weights
    }

    /// The tensors of a GGUF file. `names` are names of this family in addition to
    /// [`COMMON_NAMES`].
    pub fn gguf(tensors: &'a Tensors, names: Names) -> Self {
        Self {
            names: [names, COMMON_NAMES].concat(),
            ..Self::plain(tensors)
        }
    }

    fn plain(tensors: &'a Tensors) -> Self {
        Self {
            tensors,
            names: Vec::new(),
            renamed: Vec::new(),
            transposed: false,
            made: RefCell::default(),
            asked: RefCell::default(),
            faults: RefCell::default(),
            sizes: RefCell::default(),
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

    /// Adds a note for the user on how the file was read.
    pub fn note(&self, note: String) {
        self.notes.borrow_mut().push(note);
    }

    /// Notes for the user on how the file was read.
    pub fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    /// The tensor `module.parameter`, which must have this shape. A fault is recorded for
    /// [`Self::finish`]. Where a family has a name for `module.{}`, the rows of a matrix are the
    /// vectors of a list of modules.
    pub fn get(&self, module: &str, parameter: &str, shape: &[usize]) -> Tensor {
        let listed = format!("{}.{{}}", pattern(module).0);
        match *shape {
            [rows, columns] if self.names.iter().any(|(ours, _)| *ours == listed) => {
                self.rows_of_list(module, parameter, [rows, columns])
            }
            _ => self.get_of_rank(module, parameter, shape, 2),
        }
    }

    /// The matrix with the rows `module.0.parameter` and on, in fp32.
    fn rows_of_list(&self, module: &str, parameter: &str, shape @ [n, len]: [usize; 2]) -> Tensor {
        let name = format!("{module}.{parameter}");
        // Rows that are missing are faults, whose number the file bounds.
        let rows = 0..n.min(self.tensors.len() + 1);
        let rows = rows.map(|i| self.floats(&format!("{module}.{i}"), parameter, len));
        let rows: Vec<Option<Vec<f32>>> = rows.collect();
        let numbers = rows.into_iter().collect::<Option<Vec<_>>>();
        let numbers = numbers.unwrap_or_default().concat();
        let bytes: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
        let mut made = self.made.borrow_mut();
        Tensor {
            bytes: (made.entry(name.clone()))
                .or_insert_with(|| Bytes::new(bytes))
                .clone(),
            name,
            ty: TensorType::F32,
            shape: shape.to_vec(),
            scaled: None,
        }
    }

    /// Like [`Self::get`]; `quantized_rank` is the rank that a block-quantized tensor must have.
    fn get_of_rank(
        &self,
        module: &str,
        parameter: &str,
        shape: &[usize],
        quantized_rank: usize,
    ) -> Tensor {
        let name = self.file_name(module, parameter);
        let fault = match self.tensors.get(&name) {
            None => format!("`{name}` {shape:?} is missing"),
            Some(t) if t.shape != shape => format!(
                "`{name}`: expected the shape {shape:?}, found {:?}{}",
                t.shape,
                self.size_names(shape, &t.shape)
            ),
            Some(t) if unusable(t) => {
                format!(
                    "`{name}`: expected the type F32, F16, BF16 or a block-quantized type, found \
                     {}",
                    t.ty.name()
                )
            }
            Some(t) if t.scaled.is_some() && self.transposed => format!(
                "`{name}`: expected the type F32, F16 or BF16, found {}, which is not supported in \
                 transposed matrices",
                t.ty.name()
            ),
            Some(t) if t.scaled.is_some() && quantized_rank != 2 => format!(
                "`{name}`: expected the type F32, F16, BF16 or a block-quantized type, found {}, \
                 which is not supported in stacked matrices",
                t.ty.name()
            ),
            Some(t) if t.ty.is_quantized() && shape.len() != quantized_rank => {
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
            scaled: None,
        }
    }

    /// Says that the file stores the matrices of linear layers as [inputs, outputs].
    pub fn transposed(self) -> Self {
        Self {
            transposed: true,
            ..self
        }
    }

    /// The rows `rows` of the matrix `module.weight` [all, columns] of an embedding or a head,
    /// which no file transposes.
    pub fn stored_rows(
        &self,
        module: &str,
        rows: Range<usize>,
        [all, columns]: [usize; 2],
    ) -> Tensor {
        slice(self.get(module, "weight", &[all, columns]), rows, columns)
    }

    /// The rows `rows` of the matrix `module.weight` [all, columns] of a linear layer.
    pub fn rows(&self, module: &str, rows: Range<usize>, [all, columns]: [usize; 2]) -> Tensor {
        let matrix = if self.transposed {
            self.transpose(&self.get(module, "weight", &[columns, all]))
        } else {
            self.get(module, "weight", &[all, columns])
        };
        slice(matrix, rows, columns)
    }

    /// The rows `rows` of matrix `idx` of the tensor `module.parameter` [matrices, all, columns].
    pub fn stacked_rows(
        &self,
        module: &str,
        parameter: &str,
        (idx, rows): (usize, Range<usize>),
        shape @ [n, all, columns]: [usize; 3],
    ) -> Tensor {
        let mut stack = self.get_of_rank(module, parameter, &shape, 3);
        stack.shape = vec![n * all, columns];
        slice(stack, idx * all + rows.start..idx * all + rows.end, columns)
    }

    /// The elements `rows` of the vector `module.bias` [all].
    pub fn bias_rows(&self, module: &str, rows: Range<usize>, all: usize) -> Tensor {
        slice(self.get(module, "bias", &[all]), rows, 1)
    }

    /// The transposed matrix, which is made once.
    fn transpose(&self, tensor: &Tensor) -> Tensor {
        let size = tensor.ty.block_bytes();
        let (rows, columns) = (tensor.shape[0], tensor.shape[1]);
        let mut made = self.made.borrow_mut();
        let bytes = made.entry(tensor.name.clone()).or_insert_with(|| {
            let from = tensor.bytes.as_slice();
            // A tensor with a fault has no bytes.
            let mut to = vec![0; from.len()];
            for (i, element) in from.chunks_exact(size).enumerate() {
                let at = (i % columns * rows + i / columns) * size;
                if let Some(place) = to.get_mut(at..at + size) {
                    place.copy_from_slice(element);
                }
            }
            Bytes::new(to)
        });
        Tensor {
            name: tensor.name.clone(),
            ty: tensor.ty,
            shape: vec![columns, rows],
            bytes: bytes.clone(),
            scaled: None,
        }
    }

    /// The numbers of the vector `module.parameter`, or `None` after recording a fault.
    pub fn floats(&self, module: &str, parameter: &str, len: usize) -> Option<Vec<f32>> {
        self.numbers(module, parameter, &[len])
    }

    /// The numbers of `module.parameter`, row by row, or `None` after recording a fault.
    pub fn numbers(&self, module: &str, parameter: &str, shape: &[usize]) -> Option<Vec<f32>> {
        let tensor = self.get(module, parameter, shape);
        let len: usize = shape.iter().product();
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

    /// Records the keys of the file that a size in the shapes of tensors follows from, for errors.
    pub fn name_size(&self, size: usize, keys: String) {
        self.sizes
            .borrow_mut()
            .entry(size)
            .or_default()
            .insert(keys);
    }

    /// The keys that the sizes follow from that differ between two shapes: ` (48 is ..)`.
    fn size_names(&self, expected: &[usize], found: &[usize]) -> String {
        let sizes = self.sizes.borrow();
        if expected.len() != found.len() {
            return String::new();
        }
        let differing = expected.iter().zip(found).filter(|(a, b)| a != b);
        let named = differing.filter_map(|(size, _)| {
            let keys: Vec<&str> = sizes.get(size)?.iter().map(String::as_str).collect();
            Some(format!("{size} is {}", keys.join(" or ")))
        });
        let named: Vec<String> = named.collect();
        match named.is_empty() {
            true => String::new(),
            false => format!(" ({})", named.join(", ")),
        }
    }

    /// Whether the file has `module.parameter`.
    pub fn has(&self, module: &str, parameter: &str) -> bool {
        self.tensors
            .contains_key(&self.file_name(module, parameter))
    }

    /// The shape of `module.parameter`, if the file has that tensor.
    pub fn shape_of(&self, module: &str, parameter: &str) -> Option<&[usize]> {
        let tensor = self.tensors.get(&self.file_name(module, parameter))?;
        Some(&tensor.shape)
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
        let is_extra = |(name, tensor): &(&String, &Tensor)| {
            !asked.contains(*name) && !self.is_zero_bias(name, tensor)
        };
        let extra = self.tensors.iter().filter(is_extra);
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

    /// Whether a tensor is the bias of a quantized matrix, and adds nothing. AutoGPTQ gives every
    /// layer a bias, also where the model has none.
    fn is_zero_bias(&self, name: &str, tensor: &Tensor) -> bool {
        let matrix = name.strip_suffix(".bias");
        let matrix = matrix.and_then(|module| self.tensors.get(&format!("{module}.weight")));
        matrix
            .is_some_and(|matrix| matrix.scaled.is_some() && tensor.shape[..] == matrix.shape[..1])
            && tensor.bytes.as_slice().iter().all(|byte| *byte == 0)
    }

    /// The name of `module.parameter` in the file.
    fn file_name(&self, module: &str, parameter: &str) -> String {
        let (pattern, numbers) = pattern(module);
        let theirs = |ours: &str| {
            let (_, theirs) = self.names.iter().find(|(name, _)| *name == ours)?;
            let fill = |name: String, n: &&str| name.replacen("{}", n, 1);
            Some(numbers.iter().fold((*theirs).to_owned(), fill))
        };
        if let Some(name) = theirs(&format!("{pattern}.{parameter}")) {
            return name;
        }
        let file_module = theirs(&pattern).unwrap_or_else(|| module.to_owned());
        let found = self.renamed.iter().find_map(|(ours, theirs)| {
            // Module names end without the dot that prefixes end with.
            let module = format!("{file_module}.");
            module
                .strip_prefix(ours.as_str())
                .map(|rest| format!("{theirs}{rest}{parameter}"))
        });
        found.unwrap_or_else(|| format!("{file_module}.{parameter}"))
    }
}

/// A module's name with `{}` in place of its numbers, and these numbers.
fn pattern(module: &str) -> (String, Vec<&str>) {
    let mut numbers = Vec::new();
    let mut parts: Vec<&str> = module.split('.').collect();
    for part in &mut parts {
        if part.parse::<usize>().is_ok() {
            numbers.push(std::mem::replace(part, "{}"));
        }
    }
    (parts.join("."), numbers)
}

/// The rows `rows` of a tensor whose rows have `columns` elements; the tensor itself if these are
/// all rows.
pub fn slice(tensor: Tensor, rows: Range<usize>, columns: usize) -> Tensor {
    let all = tensor.shape[0];
    if rows == (0..all) {
        return tensor;
    }
    let mut shape = tensor.shape;
    shape[0] = rows.len();
    let scaled = tensor
        .scaled
        .map(|scaled| Arc::new(scaled.rows(rows.clone())));
    let row_bytes = tensor.ty.byte_len(columns).unwrap_or(0);
    let range = rows.start * row_bytes..rows.end * row_bytes;
    // A tensor with a fault, which `Weights::finish` reports, has no bytes.
    let bytes = tensor
        .bytes
        .slice(range)
        .unwrap_or_else(|| Bytes::new(Vec::new()));
    Tensor {
        name: format!("{}_rows_{}", tensor.name, rows.start),
        ty: tensor.ty,
        shape,
        bytes,
        scaled,
    }
}

/// Whether two tensors hold the same numbers, in whatever type they are stored.
fn same_numbers(a: &Tensor, b: &Tensor) -> bool {
    if a.shape != b.shape {
        return false;
    }
    if a.ty == b.ty && a.scaled.is_none() && b.scaled.is_none() {
        return a.bytes.len() == b.bytes.len()
            && Data::Bytes(a.bytes.clone()) == Data::Bytes(b.bytes.clone());
    }
    !unusable(a) && !unusable(b) && graph::dense(a) == graph::dense(b)
}

/// Whether constants cannot be made from the tensor.
fn unusable(tensor: &Tensor) -> bool {
    tensor.ty.block_type().is_none() && tensor.scaled.is_none()
}
