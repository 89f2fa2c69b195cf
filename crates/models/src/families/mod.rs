//! The model families, one file each, and the list of all families. Start reading at [`llama`];
//! adding a family takes one file, its `mod` line, and its line in [`FAMILIES`].

mod arcee;
mod bert;
mod cohere;
mod distilbert;
mod ernie4_5;
mod exaone4;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod gpt2;
mod granite;
mod hunyuan;
mod lfm2;
mod llama;
mod llama2c;
mod ministral3;
mod mistral;
mod mixtral;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

use crate::checkpoint::{Checkpoint, Config, Gguf, Source, Tensors};
use crate::encoder::body::EncoderBody;
use crate::error::ModelError;
use crate::transformer::Transformer;
use crate::weights::{Names, Weights};

/// A model family: the architectures that it lowers, and how it reads the configuration of each
/// format.
pub(crate) struct Family {
    /// Names of the architectures: `model_type` in `config.json`, `general.architecture` in GGUF.
    pub(crate) names: &'static [&'static str],
    /// Models of the family, for readers.
    about: &'static str,
    /// The tiny checkpoints in `tests/models` whose numbers are compared with the reference.
    checked: &'static [&'static str],
    /// Prefix of the base model's tensor names, in files that hold more than the base model.
    base: &'static str,
    /// Names of this family's tensors in Hugging Face folders, where they are not those of Llama.
    tensor_names: Names,
    /// Whether Hugging Face folders store the matrices of linear layers as [inputs, outputs].
    transposed: bool,
    /// Names of this family's tensors in GGUF, in addition to the common names.
    pub(crate) gguf_names: Names,
    /// The architecture that GGUF files of these models name, where that is of another family.
    gguf_as: Option<&'static str>,
    /// Reads a decoder from `config.json`.
    pub(crate) config: Option<fn(&Config, &Weights<'_>) -> DecoderResult>,
    /// Reads a decoder from GGUF.
    pub(crate) gguf: Option<fn(&Gguf, &Weights<'_>) -> DecoderResult>,
    /// Reads an encoder from `config.json`.
    pub(crate) encoder: Option<fn(&Config, &Weights<'_>) -> EncoderResult>,
    /// Reads an encoder from GGUF.
    pub(crate) gguf_encoder: Option<fn(&Gguf, &Weights<'_>) -> EncoderResult>,
}

impl Family {
    /// A family without any architecture; families override what they have.
    const NONE: Self = Self {
        names: &[],
        about: "",
        checked: &[],
        base: "model",
        tensor_names: &[],
        transposed: false,
        gguf_names: &[],
        gguf_as: None,
        config: None,
        gguf: None,
        encoder: None,
        gguf_encoder: None,
    };

    /// Whether embedding models of the family can be lowered.
    pub(crate) fn encodes(&self) -> bool {
        self.encoder.is_some() || self.gguf_encoder.is_some()
    }

    /// Whether language models of the family can be lowered.
    pub(crate) fn answers(&self) -> bool {
        self.config.is_some() || self.gguf.is_some()
    }

    /// The tensors of a Hugging Face folder under the names that families use.
    pub(crate) fn weights<'a>(&self, notes: &[String], tensors: &'a Tensors) -> Weights<'a> {
        let weights = Weights::hugging_face(tensors, self.base, self.tensor_names);
        notes.iter().for_each(|note| weights.note(note.clone()));
        if self.transposed {
            weights.transposed()
        } else {
            weights
        }
    }
}

/// The GGUF name of the norm before the feed-forward layer, where layers have no other norms.
const GGUF_NORMS_BEFORE: Names = &[(
    "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm",
)];

/// The GGUF names of norms after attention and feed-forward layer, and of those before the latter.
const GGUF_NORMS_AROUND: Names = &[
    (
        "model.layers.{}.post_attention_layernorm",
        "blk.{}.post_attention_norm",
    ),
    (
        "model.layers.{}.pre_feedforward_layernorm",
        "blk.{}.ffn_norm",
    ),
    (
        "model.layers.{}.post_feedforward_layernorm",
        "blk.{}.post_ffw_norm",
    ),
];

/// A decoder's description, or why its configuration is rejected.
type DecoderResult = Result<Transformer, ModelError>;

/// An encoder's configuration, or why it is rejected.
type EncoderResult = Result<Box<dyn EncoderBody>, ModelError>;

/// All families.
static FAMILIES: &[Family] = &[
    llama::FAMILY,
    llama2c::FAMILY,
    mistral::FAMILY,
    ministral3::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    mixtral::FAMILY,
    qwen2_moe::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_5::FAMILY,
    olmoe::FAMILY,
    gemma::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    gemma3::EMBEDDING,
    gemma4::FAMILY,
    phi3::FAMILY,
    smollm3::FAMILY,
    olmo2::FAMILY,
    granite::FAMILY,
    exaone4::FAMILY,
    glm4::FAMILY,
    starcoder2::FAMILY,
    ernie4_5::FAMILY,
    seed_oss::FAMILY,
    arcee::FAMILY,
    hunyuan::FAMILY,
    stablelm::FAMILY,
    cohere::FAMILY,
    gpt2::FAMILY,
    lfm2::FAMILY,
    qwen3::PPLX,
    bert::BERT,
    bert::ROBERTA,
    distilbert::FAMILY,
    mpnet::FAMILY,
    modernbert::FAMILY,
    nomic_bert::FAMILY,
];

/// What a family supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Names of the architectures: `model_type` in `config.json`, `general.architecture` in GGUF.
    pub names: &'static [&'static str],
    /// Models of the family.
    pub about: &'static str,
    /// Whether Hugging Face folders can be lowered to language models.
    pub decodes_hugging_face: bool,
    /// Whether GGUF files can be lowered to language models.
    pub decodes_gguf: bool,
    /// The architecture that GGUF files of these models name, where that is of another family.
    pub gguf_as: Option<&'static str>,
    /// Whether Hugging Face folders can be lowered to embedding models.
    pub encodes_hugging_face: bool,
    /// Whether GGUF files can be lowered to embedding models.
    pub encodes_gguf: bool,
    /// The tiny checkpoints in `tests/models` whose numbers are compared with transformers.
    pub checked: &'static [&'static str],
}

/// What each family supports.
pub fn supported() -> Vec<Support> {
    let support = |f: &Family| Support {
        names: f.names,
        about: f.about,
        decodes_hugging_face: f.config.is_some(),
        decodes_gguf: f.gguf.is_some() || f.gguf_as.is_some(),
        gguf_as: f.gguf_as,
        encodes_hugging_face: f.encoder.is_some(),
        encodes_gguf: f.gguf_encoder.is_some(),
        checked: f.checked,
    };
    FAMILIES.iter().map(support).collect()
}

/// The names of all architectures that can be lowered.
pub fn names() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|f| f.names).copied().collect()
}

/// The name of the architecture in the file.
pub(crate) fn architecture(checkpoint: &Checkpoint) -> Result<String, ModelError> {
    Ok(match &checkpoint.source {
        Source::Gguf(gguf) => gguf.str("general.architecture")?.to_owned(),
        Source::HuggingFace(folder) => folder.config.str("model_type")?.to_owned(),
    })
}

/// The families that lower models of an architecture.
pub(crate) fn of_architecture(name: &str) -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().filter(move |f| f.names.contains(&name))
}

/// The family that lowers a checkpoint, among those that `has` accepts, and the name of the
/// architecture.
pub(crate) fn family(
    checkpoint: &Checkpoint,
    has: fn(&Family) -> bool,
) -> Result<(&'static Family, String), ModelError> {
    let architecture = architecture(checkpoint)?;
    let fitting = of_architecture(&architecture).find(|f| has(f));
    if let Some(family) = fitting {
        return Ok((family, architecture));
    }
    let named = of_architecture(&architecture).next();
    match named {
        Some(f) if !f.answers() => Err(ModelError::EmbedsOnly(architecture)),
        Some(f) if f.encoder.is_none() => Err(ModelError::AnswersOnly(architecture)),
        _ => {
            let fitting = FAMILIES.iter().filter(|f| has(f));
            Err(ModelError::Architecture {
                found: architecture,
                supported: fitting.flat_map(|f| f.names).copied().collect(),
            })
        }
    }
}
