//! The keys of `config.json` that all families treat alike. What else a family reads or ignores is
//! in its own file.

use super::{FileKeys, harmless, refused};

/// `config.json`, beside the keys that a family reads and those of generation.
pub static CONFIG: FileKeys = FileKeys {
    file: "config.json",
    keys: &[
        harmless("_attn_implementation", KERNELS),
        harmless("_model_name_or_path", NAME),
        harmless("_name_or_path", NAME),
        harmless("architectures", "the model's type decides"),
        harmless("attention_dropout", TRAINING),
        harmless("chunk_size_feed_forward", "chunks change no number"),
        harmless("dtype", "weights are read as they are stored"),
        harmless("eos_token_id", "read with the keys of generation"),
        harmless("id2label", "names of labels"),
        harmless("initializer_range", TRAINING),
        harmless("label2id", "names of labels"),
        harmless("model_type", "read to find the family"),
        harmless("name_or_path", NAME),
        harmless("num_labels", "read where a model has a classifier"),
        harmless("pretraining_tp", "how training divided products"),
        harmless("problem_type", "which loss training has"),
        harmless("torch_dtype", "weights are read as they are stored"),
        harmless("unk_token_id", "the tokenizer has its own files"),
        harmless("unsloth_fixed", NAME),
        harmless("unsloth_version", NAME),
        refused(
            "is_encoder_decoder",
            "models with an encoder and a decoder are not supported",
        ),
        refused(
            "per_layer_config",
            "layers of different sizes are not supported",
        ),
    ],
};

const KERNELS: &str = "how torch computes";
const NAME: &str = "where the files come from";
const TRAINING: &str = "only training reads it";
