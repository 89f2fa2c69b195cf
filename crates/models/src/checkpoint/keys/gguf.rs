//! The `tokenizer.*` keys of GGUF files: those of llama.cpp (`LLM_KV_NAMES` of src/llama-arch.cpp)
//! and of the gguf package (0.19). The crates that need a key read it; this table says what becomes
//! of the others.

use super::{FileKeys, harmless, read};

/// The metadata of a GGUF file, as far as it is about the tokenizer.
pub static GGUF_TOKENIZER: FileKeys = FileKeys {
    file: "the GGUF file",
    keys: &[
        read("tokenizer.chat_template", "how messages become a text"),
        read(
            "tokenizer.chat_template.tool_use",
            "the same, where there are tools",
        ),
        harmless("tokenizer.chat_templates", "names of the templates"),
        read(
            "tokenizer.ggml.add_bos_token",
            "whether a token begins texts",
        ),
        read("tokenizer.ggml.add_eos_token", "whether a token ends texts"),
        harmless(
            "tokenizer.ggml.add_sep_token",
            "BERT's texts always end in it",
        ),
        read(
            "tokenizer.ggml.add_space_prefix",
            "whether a space begins texts",
        ),
        read("tokenizer.ggml.bos_token_id", "the token that begins texts"),
        read("tokenizer.ggml.cls_token_id", "the same, of BERT"),
        read("tokenizer.ggml.eom_token_id", "a token that ends an answer"),
        read("tokenizer.ggml.eos_token_id", "the token that ends texts"),
        read("tokenizer.ggml.eot_token_id", "a token that ends an answer"),
        harmless("tokenizer.ggml.fim_mid_token_id", "for infilling"),
        read(
            "tokenizer.ggml.fim_pad_token_id",
            "a token that ends an answer",
        ),
        harmless("tokenizer.ggml.fim_pre_token_id", "for infilling"),
        read(
            "tokenizer.ggml.fim_rep_token_id",
            "a token that ends an answer",
        ),
        read(
            "tokenizer.ggml.fim_sep_token_id",
            "a token that ends an answer",
        ),
        harmless("tokenizer.ggml.fim_suf_token_id", "for infilling"),
        harmless("tokenizer.ggml.mask_token_id", "no text asks for it"),
        read("tokenizer.ggml.merges", "pairs of tokens that become one"),
        harmless("tokenizer.ggml.middle_token_id", "for infilling"),
        read("tokenizer.ggml.model", "the kind of the tokenizer"),
        read(
            "tokenizer.ggml.normalizer.lowercase",
            "whether BERT's texts are lowercased",
        ),
        read(
            "tokenizer.ggml.normalizer.strip_accents",
            "whether they lose their accents",
        ),
        read("tokenizer.ggml.padding_token_id", "the padding token"),
        read("tokenizer.ggml.pre", "how texts become words"),
        harmless(
            "tokenizer.ggml.precompiled_charsmap",
            "counts for unigram models alone, which are refused",
        ),
        harmless("tokenizer.ggml.prefix_token_id", "for infilling"),
        read(
            "tokenizer.ggml.remove_extra_whitespaces",
            "whether texts lose spaces",
        ),
        read("tokenizer.ggml.scores", "which tokens are merged first"),
        read(
            "tokenizer.ggml.seperator_token_id",
            "the token that ends BERT's texts",
        ),
        harmless("tokenizer.ggml.suffix_token_id", "for infilling"),
        read(
            "tokenizer.ggml.suppress_tokens",
            "tokens that are never chosen",
        ),
        read("tokenizer.ggml.token_type", "which tokens are for control"),
        harmless(
            "tokenizer.ggml.token_type_count",
            "the tensor of token types has as many rows",
        ),
        read("tokenizer.ggml.tokens", "the tokens"),
        read(
            "tokenizer.ggml.unknown_token_id",
            "the token for unknown text",
        ),
        harmless(
            "tokenizer.huggingface.json",
            "a copy of tokenizer.json, which llama.cpp does not read either",
        ),
        harmless("tokenizer.rwkv.world", "of RWKV, which is refused"),
    ],
};
