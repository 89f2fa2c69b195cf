//! The parts of a tokenizer that each class makes.

use serde_json::{Map, Value, json};

use super::{Class, Settings};

/// Parts in the form that they have in `tokenizer.json`.
pub(super) struct Components {
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub decoder: Value,
}

/// What a class makes of a BPE model.
pub(super) struct BpeForm {
    pub has_unknown: bool,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
}

/// The tokens that a class puts around texts.
pub(super) enum Around {
    /// Those of `tokenizer.json`.
    File,
    /// `[CLS] A [SEP]`, and `[CLS] A [SEP] B [SEP]` with token types.
    Bert,
    /// `<s> A </s>`, and `<s> A </s></s> B </s>`, of `cls_token` and `sep_token`.
    Roberta,
    /// The same of `bos_token` and `eos_token`.
    XlmRoberta,
    /// `A </s>`, and `A </s> B </s>`.
    T5,
    /// `<s> A`, and `<s> A <s> B`.
    Bos,
    /// Nothing.
    Nothing,
}

/// How Qwen2 and Qwen3.5 divide words.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Settings {
    /// The parts that the class makes; `None` if it makes none. `charsmap` is the normalizer of
    /// SentencePiece in `tokenizer.json`, if there is one.
    pub(super) fn parts(&self, charsmap: Option<Value>) -> Option<Components> {
        let bytes = |use_regex: bool| {
            json!({
                "type": "ByteLevel", "add_prefix_space": self.prefix_space, "trim_offsets": true,
                "use_regex": use_regex,
            })
        };
        let (nfc, nothing) = (json!({"type": "NFC"}), Value::Null);
        let (normalizer, pre_tokenizer, decoder) = match self.class {
            Class::Backend | Class::Unmade => return None,
            Class::Bert | Class::Dpr | Class::Mpnet => (
                json!({
                    "type": "BertNormalizer", "clean_text": true, "lowercase": self.lower_case,
                    "handle_chinese_chars": self.chinese_chars, "strip_accents": self.strip_accents,
                }),
                json!({"type": "BertPreTokenizer"}),
                json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            ),
            Class::Roberta | Class::Gpt2 => (nothing, bytes(true), bytes(true)),
            Class::GptNeox => (nfc, bytes(true), bytes(true)),
            Class::Cohere => {
                let digits = json!({"type": "Digits", "individual_digits": true});
                (nfc, sequence([digits, bytes(true)]), bytes(true))
            }
            Class::Qwen2 => (nfc, sequence([split(QWEN2), bytes(false)]), bytes(true)),
            Class::Qwen3_5 => (nfc, sequence([split(QWEN3_5), bytes(false)]), bytes(true)),
            Class::XlmRoberta | Class::Camembert | Class::T5 => {
                let adds = self.prefix_space || self.class == Class::T5;
                let space = metaspace(if adds { "always" } else { "never" }, true);
                let words = json!({"type": "WhitespaceSplit"});
                (
                    charsmap.unwrap_or_default(),
                    sequence([words, space.clone()]),
                    space,
                )
            }
            Class::Llama | Class::CodeLlama => {
                let scheme = match (self.prefix_space, self.legacy && self.class == Class::Llama) {
                    (false, _) => "never",
                    (true, true) => "always",
                    (true, false) => "first",
                };
                let strips = self.prefix_space || self.class == Class::CodeLlama;
                (nothing, metaspace(scheme, false), pieces(strips))
            }
            Class::Gemma => (
                json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}),
                json!({
                    "type": "Split", "pattern": {"String": " "}, "invert": false,
                    "behavior": "MergedWithPrevious",
                }),
                pieces(false),
            ),
        };
        Some(Components {
            normalizer,
            pre_tokenizer,
            decoder,
        })
    }
}

pub(super) fn sequence(parts: impl Into<Vec<Value>>) -> Value {
    json!({"type": "Sequence", "pretokenizers": parts.into()})
}

pub(super) fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

pub(super) fn metaspace(scheme: &str, split: bool) -> Value {
    json!({
        "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": split,
    })
}

/// The decoder of pieces and bytes.
fn pieces(strips_first: bool) -> Value {
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if strips_first {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": decoders})
}

impl Class {
    pub(super) fn around(self) -> Around {
        match self {
            Self::Backend
            | Self::Unmade
            | Self::Llama
            | Self::Gemma
            | Self::Gpt2
            | Self::Cohere
            | Self::Qwen2
            | Self::Qwen3_5 => Around::File,
            Self::Bert | Self::Dpr => Around::Bert,
            Self::Mpnet | Self::Roberta => Around::Roberta,
            Self::XlmRoberta | Self::Camembert => Around::XlmRoberta,
            Self::T5 => Around::T5,
            Self::CodeLlama => Around::Bos,
            Self::GptNeox => Around::Nothing,
        }
    }

    /// What the class makes of a BPE model; `None` if it has another model.
    pub(super) fn bpe(self) -> Option<BpeForm> {
        let (has_unknown, fuse_unk, byte_fallback) = match self {
            Self::Roberta
            | Self::Gpt2
            | Self::GptNeox
            | Self::Cohere
            | Self::Qwen2
            | Self::Qwen3_5 => (false, false, false),
            Self::Llama => (false, true, true),
            Self::CodeLlama | Self::Gemma => (true, true, true),
            _ => return None,
        };
        Some(BpeForm {
            has_unknown,
            fuse_unk,
            byte_fallback,
        })
    }

    /// The id of the unknown token in a Unigram model; `None` if the class has another model.
    pub(super) fn unigram_unknown(self, position: Option<usize>) -> Option<usize> {
        match self {
            Self::XlmRoberta => Some(3),
            Self::T5 => Some(2),
            Self::Camembert => Some(position.unwrap_or(0)),
            _ => None,
        }
    }

    pub(super) fn adds_prefix_space(self) -> bool {
        matches!(
            self,
            Self::XlmRoberta | Self::Camembert | Self::Llama | Self::CodeLlama
        )
    }

    /// Whether `"add_prefix_space": null` means that no space is added, not that the class decides.
    pub(super) fn takes_no_prefix_for_null(self) -> bool {
        matches!(self, Self::XlmRoberta | Self::Camembert)
    }

    /// The text of a token that no file names.
    pub(super) fn default_token(self, key: &str) -> Option<&'static str> {
        let [bos, eos, unk, sep, pad, cls, mask] = match self {
            Self::Backend | Self::Unmade => [""; 7],
            Self::Bert | Self::Dpr => ["", "", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"],
            Self::Mpnet => ["<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>"],
            Self::Roberta | Self::XlmRoberta | Self::Camembert => {
                ["<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"]
            }
            Self::Llama | Self::CodeLlama => ["<s>", "</s>", "<unk>", "", "", "", ""],
            Self::Gemma => ["<bos>", "<eos>", "<unk>", "", "<pad>", "", "<mask>"],
            Self::Gpt2 => [TEXT_END, TEXT_END, TEXT_END, "", "", "", ""],
            Self::GptNeox => [TEXT_END, TEXT_END, TEXT_END, "", "<|padding|>", "", ""],
            Self::Cohere => [
                "<BOS_TOKEN>",
                "<|END_OF_TURN_TOKEN|>",
                "<UNK>",
                "<SEP>",
                "<PAD>",
                "<CLS>",
                "<MASK_TOKEN>",
            ],
            Self::Qwen2 | Self::Qwen3_5 => ["", TEXT_END, TEXT_END, "", TEXT_END, "", ""],
            Self::T5 => ["", "</s>", "<unk>", "", "<pad>", "", ""],
        };
        let text = match key {
            "bos_token" => bos,
            "eos_token" => eos,
            "unk_token" => unk,
            "sep_token" => sep,
            "pad_token" => pad,
            "cls_token" => cls,
            _ => mask,
        };
        (!text.is_empty()).then_some(text)
    }

    /// Further special tokens where no file has a list of them.
    pub(super) fn default_extra(self, keys: &Map<String, Value>) -> Vec<String> {
        match self {
            Self::Camembert => ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
                .map(str::to_owned)
                .to_vec(),
            Self::T5 => {
                let n = keys.get("extra_ids").and_then(Value::as_u64).unwrap_or(100);
                (0..n.min(1000))
                    .map(|i| format!("<extra_id_{i}>"))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The tokens that frame what is filled in, in Code Llama.
    pub(super) fn infilling_tokens(
        self,
        keys: &Map<String, Value>,
    ) -> impl Iterator<Item = (&'static str, &'static str)> {
        let tokens = [
            ("prefix_token", "\u{2581}<PRE>"),
            ("middle_token", "\u{2581}<MID>"),
            ("suffix_token", "\u{2581}<SUF>"),
            ("eot_token", "\u{2581}<EOT>"),
            ("fill_token", "<FILL_ME>"),
        ];
        let is_absent =
            move |(key, _): &(&str, &str)| self == Self::CodeLlama && !keys.contains_key(*key);
        tokens.into_iter().filter(is_absent)
    }
}

const TEXT_END: &str = "<|endoftext|>";
