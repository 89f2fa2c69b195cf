//! The keys of the files beside `tokenizer.json` (transformers 5.24).
//!
//! `tokenizer_config.json` holds the arguments of the tokenizer's class, which keeps every argument
//! that it does not know as an attribute. So an unknown key changes no token and is ignored, but
//! for one kind: every key that ends in `_token` and holds a text names a special token. Rows here
//! are read by this crate or by `thane-engine`.
//!
//! `added_tokens.json` has no rows: its keys are tokens, and its values their ids. transformers
//! reads that file and `special_tokens_map.json` only if `tokenizer_config.json` has no
//! `added_tokens_decoder`. `preprocessor_config.json` is not read: it is about images and sound.

use super::{FileKeys, Key, harmless, read, refused};

/// `tokenizer_config.json`.
pub static TOKENIZER: FileKeys = FileKeys {
    file: "tokenizer_config.json",
    keys: &[
        BOS,
        EOS,
        UNK,
        SEP,
        PAD,
        CLS,
        MASK,
        ADDITIONAL,
        EXTRA,
        read("model_specific_special_tokens", TOKENS),
        read("added_tokens_decoder", "added tokens by their ids"),
        read("add_bos_token", ENDS),
        read("add_eos_token", ENDS),
        read("add_prefix_space", BUILT),
        read("do_lower_case", BUILT),
        read("strip_accents", BUILT),
        read("tokenize_chinese_chars", BUILT),
        read("tokenizer_class", "how the tokenizer is built"),
        read("chat_template", "how messages become a text"),
        read(
            "model_input_names",
            "whether there are token types, and a mask of tokens",
        ),
        read("model_max_length", "tokens of a text at most"),
        read("max_len", "the former name of model_max_length"),
        read(
            "fast_tokenizer_files",
            "expected no file but tokenizer.json",
        ),
        read("truncation_side", "which side of long texts is cut"),
        read("split_special_tokens", "special tokens in texts are texts"),
        read("fix_mistral_regex", "another pattern that divides words"),
        read("legacy", BUILT),
        refused(
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
            "answers are not changed behind the tokenizer: remove the key",
        ),
        harmless(
            "clean_up_tokenization_spaces",
            "changes decoded texts of tokenizers that are not BPE, which no language model has",
        ),
        harmless("_commit_hash", FILES),
        harmless("auto_map", "no code of the model is run"),
        harmless("backend", FILES),
        harmless("chat_control_tokens", "messages hold no tokens here"),
        harmless("do_basic_tokenize", OLD),
        harmless("errors", OLD),
        harmless("files_loaded", FILES),
        harmless("init_inputs", FILES),
        harmless("is_local", FILES),
        harmless("local_files_only", FILES),
        harmless("max_length", CALLER),
        harmless("name_or_path", FILES),
        harmless("never_split", OLD),
        harmless("pad_to_multiple_of", PADDING),
        harmless("pad_token_type_id", PADDING),
        harmless("padding_side", PADDING),
        harmless("processor_class", "of models of images and sound"),
        harmless("response_schema", REPLY),
        harmless("response_template", REPLY),
        harmless("sp_model_kwargs", OLD),
        harmless("spaces_between_special_tokens", OLD),
        harmless("stride", CALLER),
        harmless("tokenizer", FILES),
        harmless("tokenizer_padding", PADDING),
        harmless("tokenizer_truncation", "tokenizer.json has its own"),
        harmless("trim_offsets", "changes places of tokens, not the tokens"),
        harmless("truncation_strategy", CALLER),
        harmless("unk_id", "tokenizer.json says it"),
        harmless("use_default_system_prompt", OLD),
        harmless("verbose", FILES),
    ],
};

/// `special_tokens_map.json`.
pub static SPECIAL_TOKENS: FileKeys = FileKeys {
    file: "special_tokens_map.json",
    keys: &[BOS, EOS, UNK, SEP, PAD, CLS, MASK, ADDITIONAL, EXTRA],
};

const BOS: Key = read("bos_token", "the token before a text");
const EOS: Key = read("eos_token", "the token behind a text");
const UNK: Key = read("unk_token", TOKENS);
const SEP: Key = read("sep_token", "the token between texts");
const PAD: Key = read("pad_token", TOKENS);
const CLS: Key = read("cls_token", TOKENS);
const MASK: Key = read("mask_token", TOKENS);
const ADDITIONAL: Key = read("additional_special_tokens", TOKENS);
const EXTRA: Key = read("extra_special_tokens", TOKENS);

const TOKENS: &str = "special tokens";
const ENDS: &str = "whether the token is added, where there is no tokenizer.json";
const BUILT: &str = "how the class of the tokenizer normalizes texts";
const FILES: &str = "where the files come from";
const OLD: &str = "of tokenizers that are not in tokenizer.json";
const CALLER: &str = "the caller gives it";
const PADDING: &str = "padding changes no number";
const REPLY: &str = "how replies become messages";
