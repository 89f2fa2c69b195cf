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
        harmless("finetuning_task", NAME),
        harmless("gradient_checkpointing", TRAINING),
        harmless("id2label", "names of labels"),
        harmless("initializer_range", TRAINING),
        harmless("label2id", "names of labels"),
        harmless("model_type", "read to find the family"),
        harmless("name_or_path", NAME),
        harmless("num_labels", "read where a model has a classifier"),
        harmless("pretraining_tp", "how training divided products"),
        harmless("problem_type", "which loss training has"),
        harmless("sep_token_id", "the tokenizer has its own files"),
        harmless("task_specific_params", "settings of other programs"),
        harmless("tf_legacy_loss", TRAINING),
        harmless("tie_encoder_decoder", "there is one of both"),
        harmless("tokenizer_class", "the tokenizer has its own files"),
        harmless("torch_dtype", "weights are read as they are stored"),
        harmless("torchscript", KERNELS),
        harmless("unk_token_id", "the tokenizer has its own files"),
        harmless("unsloth_fixed", NAME),
        harmless("unsloth_version", NAME),
        harmless("use_bfloat16", "weights are read as they are stored"),
        refused("is_encoder_decoder", PAIR),
        refused("add_cross_attention", PAIR),
        refused("is_decoder", PAIR),
        refused("prefix", "write the text before each prompt yourself"),
        refused("pruned_heads", "pruned heads are not supported"),
        refused(
            "per_layer_config",
            "layers of different sizes are not supported",
        ),
    ],
};

const KERNELS: &str = "how torch computes";
const PAIR: &str = "models with an encoder and a decoder are not supported";
const NAME: &str = "where the files come from";
const TRAINING: &str = "only training reads it";
