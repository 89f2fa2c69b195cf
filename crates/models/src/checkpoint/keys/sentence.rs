//! The keys of the files of sentence-transformers (6.2).

use super::{FileKeys, harmless, read, refused};

/// `config_sentence_transformers.json`, which all kinds of models have.
pub static SENTENCE_TRANSFORMERS: FileKeys = FileKeys {
    file: "config_sentence_transformers.json",
    keys: &[
        read("prompts", "texts to put before a text, by name"),
        read("default_prompt_name", "the prompt of texts without one"),
        read("similarity_fn_name", "how vectors are compared"),
        read("truncate_dim", "elements of a vector that are kept"),
        read("model_type", "expected SentenceTransformer or CrossEncoder"),
        read("activation_fn", "activation of a reranker's scores"),
        harmless("keep_in_fp32_modules", "all modules compute in fp32"),
        harmless("__version__", "versions that wrote the files"),
        harmless(
            "keep_in_fp32_modules",
            "which modules of a reranker stay in fp32 where others do not",
        ),
        harmless("requirements", "versions of Python packages"),
    ],
};

/// `sentence_bert_config.json`, or the file of an older name in its place.
pub static SENTENCE_BERT: FileKeys = FileKeys {
    file: "sentence_bert_config.json",
    keys: &[
        read("max_seq_length", "tokens of a text at most"),
        read("do_lower_case", "whether texts are lowercased first"),
        read("transformer_task", "which model of an architecture it is"),
        read(
            "modality_config",
            "expected texts, as the model's last hidden state",
        ),
        read("module_output_name", "expected token_embeddings"),
        read(
            "processing_kwargs.text.max_length",
            "tokens of a text at most",
        ),
        read(
            "processing_kwargs.text.truncation",
            "expected longest_first",
        ),
        read("processing_kwargs.text.padding", PADDING),
        read("processing_kwargs.text.pad_to_multiple_of", PADDING),
        harmless("processing_kwargs.text.return_tensors", "a type of Python"),
        harmless(
            "processing_kwargs.common.return_tensors",
            "a type of Python",
        ),
        harmless("processing_kwargs.audio", "only texts are embedded"),
        harmless("processing_kwargs.image", "only texts are embedded"),
        harmless("processing_kwargs.video", "only texts are embedded"),
        // Rerankers read all its keys.
        harmless("processing_kwargs.chat_template", "texts are not messages"),
        harmless(
            "processing_kwargs.text.logits_to_keep",
            "only the last token's logits make a score",
        ),
        harmless("unpad_inputs", "padding changes no vector"),
        refused("query_length", LENGTH_BY_TASK),
        refused("document_length", LENGTH_BY_TASK),
        refused(
            "query_expansion",
            "queries of ColBERT have mask tokens behind them: use a model with one vector for \
             each text",
        ),
        refused(
            "tokenizer_name_or_path",
            "copy the files of that tokenizer into the folder, and remove the key",
        ),
        harmless("backend", "the caller chooses it"),
        harmless("cache_dir", "a folder of the machine that wrote the file"),
        // The same three by their names since sentence-transformers 5.
        read("model_args", ARGS),
        read("model_kwargs", ARGS),
        harmless("model_args.torch_dtype", DTYPE),
        harmless("model_kwargs.torch_dtype", DTYPE),
        harmless("model_args.dtype", DTYPE),
        harmless("model_kwargs.dtype", DTYPE),
        harmless("model_args.attn_implementation", KERNELS),
        harmless("model_kwargs.attn_implementation", KERNELS),
        harmless("model_args.add_pooling_layer", POOLER),
        harmless("model_kwargs.add_pooling_layer", POOLER),
        harmless("model_args.trust_remote_code", NO_CODE),
        harmless("model_kwargs.trust_remote_code", NO_CODE),
        harmless("model_args.device_map", KERNELS),
        harmless("model_kwargs.device_map", KERNELS),
        harmless("model_args.low_cpu_mem_usage", KERNELS),
        harmless("model_kwargs.low_cpu_mem_usage", KERNELS),
        read("tokenizer_args", ARGS),
        read("processor_kwargs", ARGS),
        read(
            "tokenizer_args.model_max_length",
            "tokens of a text at most",
        ),
        read(
            "processor_kwargs.model_max_length",
            "tokens of a text at most",
        ),
        read("tokenizer_args.padding_side", PADDING),
        read("processor_kwargs.padding_side", PADDING),
        harmless("tokenizer_args.use_fast", "there is one tokenizer"),
        harmless("processor_kwargs.use_fast", "there is one tokenizer"),
        harmless("tokenizer_args.trust_remote_code", NO_CODE),
        harmless("processor_kwargs.trust_remote_code", NO_CODE),
        read("config_args", ARGS),
        read("config_kwargs", ARGS),
        harmless("config_args.trust_remote_code", NO_CODE),
        harmless("config_kwargs.trust_remote_code", NO_CODE),
        harmless("config_args.use_cache", "there is no cache in an encoder"),
        harmless("config_kwargs.use_cache", "there is no cache in an encoder"),
    ],
};

const LENGTH_BY_TASK: &str = "queries and documents of other lengths are not supported: cut them \
    to `max_seq_length`, and remove the key";
const ARGS: &str = "settings that replace those of the files; keys that change nothing are \
    accepted, others belong into config.json or tokenizer_config.json";
const PADDING: &str = "padding changes no vector, except before texts of a fixed length, which is \
    refused where positions shift, or with `include_prompt: false`";
const DTYPE: &str = "weights are read as they are stored";
const KERNELS: &str = "how torch computes, or where";
const POOLER: &str = "the pooler is not used";
const NO_CODE: &str = "no code of the model is run";

/// A row of `modules.json`.
pub static MODULES: FileKeys = FileKeys {
    file: "modules.json",
    keys: &[
        read("type", "the class of the module"),
        read("path", "the folder of the module"),
        read("name", "expected a name for each module"),
        harmless("idx", "modules are in the order of the list"),
        harmless("kwargs", "names of arguments that a caller may pass on"),
    ],
};

/// The `config.json` of a pooling.
pub static POOLING: FileKeys = FileKeys {
    file: "Pooling: config.json",
    keys: &[
        read("pooling_mode", "one pooling, or several that are joined"),
        read("pooling_mode_cls_token", MODE),
        read("pooling_mode_max_tokens", MODE),
        read("pooling_mode_mean_tokens", MODE),
        read("pooling_mode_mean_sqrt_len_tokens", MODE),
        read("pooling_mode_weightedmean_tokens", MODE),
        read("pooling_mode_lasttoken", MODE),
        read("include_prompt", "whether the prompt's tokens are pooled"),
        harmless("embedding_dimension", SIZE),
        harmless("word_embedding_dimension", SIZE),
    ],
};

const MODE: &str = "whether this is one of the poolings; mean if none is";
const SIZE: &str = "the size of the model's hidden states, which its own file gives";

/// The `config.json` of a dense layer.
pub static DENSE: FileKeys = FileKeys {
    file: "Dense: config.json",
    keys: &[
        read("in_features", "the size of a vector before the layer"),
        read("out_features", "the size of a vector behind the layer"),
        read("bias", "whether the layer has a bias"),
        read(
            "activation_function",
            "a class of torch.nn; tanh if there is none",
        ),
        read(
            "use_residual",
            "whether the layer's input is added to its result",
        ),
        read("module_input_name", FEATURE),
        read("module_output_name", FEATURE),
    ],
};

const FEATURE: &str = "sentence_embedding behind the pooling, token_embeddings before";

/// The `config.json` of a layer norm.
pub static LAYER_NORM: FileKeys = FileKeys {
    file: "LayerNorm: config.json",
    keys: &[read("dimension", "the size of a vector")],
};

/// The `config.json` of the score of a language model.
pub static LOGIT_SCORE: FileKeys = FileKeys {
    file: "LogitScore: config.json",
    keys: &[
        read("true_token_id", "the token whose logit is the score"),
        read("false_token_id", "the token whose logit is taken away"),
        read("module_input_name", "expected causal_logits"),
    ],
};

/// The `config.json` of a normalization to length 1, which may be absent.
pub static NORMALIZE: FileKeys = FileKeys {
    file: "Normalize: config.json",
    keys: &[
        read("module_input_name", FEATURE),
        read("module_output_name", FEATURE),
    ],
};

/// The `config.json` of a dropout.
pub static DROPOUT: FileKeys = FileKeys {
    file: "Dropout: config.json",
    keys: &[harmless("dropout", "only training drops anything")],
};

/// The `config.json` of a weighted mean of layers.
pub static WEIGHTED_LAYERS: FileKeys = FileKeys {
    file: "WeightedLayerPooling: config.json",
    keys: &[
        harmless("embedding_dimension", SIZE),
        harmless("word_embedding_dimension", SIZE),
        harmless("layer_start", NO_LAYERS),
        harmless("num_hidden_layers", NO_LAYERS),
    ],
};

const NO_LAYERS: &str = "the module does nothing unless config.json sets output_hidden_states, \
    which is refused";
