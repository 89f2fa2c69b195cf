//! Which class transformers (5.24) makes of a tokenizer: `AutoTokenizer.from_pretrained`.

use serde::{Deserialize, Serialize};

use crate::text::TextError;

/// A class of transformers by what it rebuilds of a `tokenizer.json`; classes that rebuild the same
/// share a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// `TokenizersBackend`, once `PreTrainedTokenizerFast`, and all classes without a name here: a
    /// `tokenizer.json` counts as it is.
    #[default]
    Backend,
    /// `BertTokenizer`.
    Bert,
    /// The classes of DPR: `BertTokenizer` that does not read `do_lower_case`.
    Dpr,
    /// `MPNetTokenizer`.
    Mpnet,
    /// `RobertaTokenizer`.
    Roberta,
    /// `XLMRobertaTokenizer`.
    XlmRoberta,
    /// `CamembertTokenizer`.
    Camembert,
    /// `LlamaTokenizer`.
    Llama,
    /// `CodeLlamaTokenizer`.
    CodeLlama,
    /// `GemmaTokenizer`.
    Gemma,
    /// `GPT2Tokenizer`.
    Gpt2,
    /// `GPTNeoXTokenizer`.
    GptNeox,
    /// `CohereTokenizer`.
    Cohere,
    /// `Qwen2Tokenizer`.
    Qwen2,
    /// `Qwen3_5Tokenizer`.
    Qwen3_5,
    /// `T5Tokenizer`.
    T5,
    /// A class that makes other tokens of a `tokenizer.json` than the file says, and that is
    /// refused where the file has its kind of model.
    Unmade,
}

/// The classes that are [`Class::Unmade`], by the kind of model that they were written for. Those
/// of the last row never take the model of `tokenizer.json` as it is.
#[rustfmt::skip]
const UNMADE: [(Option<&str>, &[&str]); 4] = [
    (Some("BPE"), &[
        "Blenderbot", "CLIP", "Deberta", "Esmc", "Herbert", "LayoutLMv3", "Luke", "MarkupLM",
        "Nllb", "Nougat", "OpenAIGPT", "Reformer", "SeamlessM4T", "Siglip2", "Tipsv2", "Whisper",
    ]),
    (Some("WordPiece"), &["Funnel", "LayoutLMv2", "Splinter"]),
    (Some("Unigram"), &[
        "Albert", "BigBird", "DebertaV2", "FNet", "Lasr", "LayoutXLM", "MBart", "Pegasus",
        "RemBert", "Udop", "VideoPrism", "XGLM", "XLNet",
    ]),
    (None, &[
        "Barthez", "Bartpho", "BertGeneration", "BertJapanese", "BertTokenizerLegacy", "Bertweet",
        "BioGpt", "BlenderbotSmall", "ByT5", "CTRL", "Canine", "Clvp", "Cpm", "CpmAnt", "Dia",
        "Esm", "FSMT", "FastSpeech2Conformer", "Flaubert", "GPTNeoXJapanese", "GPTSw3", "M2M100",
        "MBart50", "MLuke", "Marian", "Mgpstr", "MyT5", "PLBart", "Perceiver", "Phobert",
        "ProphetNet", "RoCBert", "RoFormer", "Siglip", "Speech2Text", "SpeechT5", "Tapas", "Vits",
        "Wav2Vec2CTC", "Wav2Vec2PhonemeCTC", "XLM",
    ]),
];

/// What the files of a model say about the class of its tokenizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Declared<'a> {
    /// `model_type` of `config.json`.
    pub model_type: Option<&'a str>,
    /// `tokenizer_class` of `config.json`.
    pub in_config: Option<&'a str>,
    /// `tokenizer_class` of `tokenizer_config.json`.
    pub in_tokenizer_config: Option<&'a str>,
    /// Whether `tokenizer_config.json` names code for `AutoTokenizer`, which nobody runs.
    pub has_code: bool,
}

/// Model types whose class is that of the model, whatever the files name
/// (`MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS`).
const CLASS_OF_MODEL: [&str; 5] = ["qwen2", "qwen3_5", "ernie4_5", "modernbert", "phi3"];

impl Class {
    /// The class for these files. `is_byte_level` tells whether `tokenizer.json` has `"ByteLevel"`
    /// anywhere.
    pub fn of(declared: &Declared, is_byte_level: impl FnOnce() -> bool) -> Self {
        let registered = declared.model_type.and_then(registered);
        let hub = declared.in_tokenizer_config.or(declared.in_config);
        let Some(hub) = hub else {
            return registered.map_or(Self::Backend, |(_, class)| class);
        };
        let (hub, named) = (without_fast(hub), Self::named(hub));
        let is_fixed = |model: &str| CLASS_OF_MODEL.contains(&model);
        let is_fixed = declared.model_type.is_some_and(is_fixed);
        if declared.has_code {
            return named;
        }
        if hub == "LlamaTokenizer" && !is_fixed && is_byte_level() {
            return Self::Backend;
        }
        match registered {
            Some((name, _)) if name == hub => named,
            Some((_, Self::Backend)) => Self::Backend,
            Some((_, class)) if is_fixed => class,
            _ => named,
        }
    }

    /// The class of this name.
    fn named(name: &str) -> Self {
        let name = without_fast(name);
        match name.strip_suffix("Tokenizer").unwrap_or(name) {
            "Bert" | "ConvBert" | "DistilBert" | "Electra" | "LayoutLM" | "Lxmert"
            | "MobileBert" | "SqueezeBert" => Self::Bert,
            "DPRContextEncoder" | "DPRQuestionEncoder" | "DPRReader" => Self::Dpr,
            "MPNet" => Self::Mpnet,
            "Roberta" | "Bart" | "LED" | "Longformer" | "Mvp" => Self::Roberta,
            "XLMRoberta" => Self::XlmRoberta,
            "Camembert" => Self::Camembert,
            "Llama" | "Phi3" => Self::Llama,
            "CodeLlama" => Self::CodeLlama,
            "Gemma" => Self::Gemma,
            "GPT2" | "CodeGen" => Self::Gpt2,
            "GPTNeoX" => Self::GptNeox,
            "Cohere" => Self::Cohere,
            "Qwen2" => Self::Qwen2,
            "Qwen3_5" => Self::Qwen3_5,
            "T5" => Self::T5,
            name if UNMADE.iter().any(|(_, unmade)| unmade.contains(&name)) => Self::Unmade,
            _ => Self::Backend,
        }
    }
}

/// Refuses the class of this name if it is [`Class::Unmade`] for the model of a `tokenizer.json`.
pub(in crate::text) fn check_made(name: &str, tokenizer: &[u8]) -> Result<(), TextError> {
    #[derive(Deserialize)]
    struct File {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(rename = "type", default)]
        kind: String,
    }
    let short = without_fast(name);
    let short = short.strip_suffix("Tokenizer").unwrap_or(short);
    // A file that is damaged is refused where it is read.
    let kind = serde_json::from_slice(tokenizer).map(|file: File| file.model.kind);
    let reads = |of: Option<&str>| of.is_none_or(|of| kind.as_ref().is_ok_and(|kind| kind == of));
    if !UNMADE
        .iter()
        .any(|(of, names)| names.contains(&short) && reads(*of))
    {
        return Ok(());
    }
    let reason = format!(
        "tokenizer_class: expected a class that is supported here, found {name:?}, which makes \
         other tokens in transformers than tokenizer.json says: write \"PreTrainedTokenizerFast\" \
         if the model was trained with those of tokenizer.json"
    );
    Err(super::bad(super::CONFIG, reason))
}

fn without_fast(name: &str) -> &str {
    name.strip_suffix("Fast").unwrap_or(name)
}

/// The class that transformers registers for a model type (`TOKENIZER_MAPPING_NAMES`, without
/// mistral-common).
fn registered(model_type: &str) -> Option<(&'static str, Class)> {
    let name = match model_type {
        "bert" | "distilbert" | "nomic_bert" => "BertTokenizer",
        "mpnet" => "MPNetTokenizer",
        "roberta" => "RobertaTokenizer",
        "xlm-roberta" => "XLMRobertaTokenizer",
        "camembert" => "CamembertTokenizer",
        "gemma" | "gemma2" | "gemma3" | "gemma3_text" => "GemmaTokenizer",
        "gpt2" | "starcoder2" => "GPT2Tokenizer",
        "olmoe" => "GPTNeoXTokenizer",
        "cohere" | "cohere2" => "CohereTokenizer",
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => "Qwen2Tokenizer",
        "qwen3_5" | "qwen3_5_text" => "Qwen3_5Tokenizer",
        "mistral" | "ministral" | "ministral3" | "mistral3" | "mixtral" | "phi3" | "olmo2"
        | "olmo3" | "granite" | "glm4" | "ernie4_5" | "stablelm" | "modernbert" => {
            "TokenizersBackend"
        }
        _ => return None,
    };
    Some((name, Class::named(name)))
}
