//! The word-splitting rules that `tokenizer.ggml.pre` names.
//!
//! A rule is listed only if the published tokenizer of the models that use the name is known, or if
//! llama.cpp has the name (src/llama-vocab.cpp: `llama_vocab::impl::load`, `llm_tokenizer_bpe`).
//! Any other name is an error, because a similar rule would silently give other token ids.

use super::TextError;
use tokenizers::NormalizerWrapper;
use tokenizers::PreTokenizerWrapper;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

/// Contractions in any case, words with one leading mark, up to three digits, marks with line ends.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Like `LLAMA3`, but digits one by one.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Like `QWEN2`, but marks belong to words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Splits words before a capital that follows lowercase letters.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Like `TEKKEN`, with contractions kept at their word and up to three digits.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Like `QWEN2`, but marks do not take the line ends behind them.
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// DeepSeek-V3's rule: digits, Chinese and Japanese, then words with one leading mark.
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
/// What llama.cpp does if a file names no rule: marks, then GPT-2's rule, then digits in threes.
const DEFAULT: &[&str] = &[
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

/// How text is split into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WordRule {
    /// GPT-2's rule.
    Gpt2,
    /// Single digits first, then GPT-2's rule.
    DigitsGpt2,
    /// Regular expressions. Each divides what those before it left.
    Regexes(&'static [&'static str]),
}

/// The settings that the name of a pre-tokenizer stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreRule {
    word_rule: WordRule,
    /// Whether the published tokenizer first composes characters (NFC).
    nfc: bool,
    /// Whether a word that is a token as a whole is taken without merging.
    pub(super) ignore_merges: bool,
    /// Whether the beginning-of-text token is added if the file does not say.
    pub(super) add_bos: bool,
}

const fn rule(word_rule: WordRule) -> PreRule {
    PreRule {
        word_rule,
        nfc: false,
        ignore_merges: false,
        add_bos: false,
    }
}

/// The name that stands for no name.
const NO_NAME: &str = "default";

/// Names and rules; each line is one published family of tokenizers.
const RULES: &[(&[&str], PreRule)] = &[
    // What converters wrote before they distinguished tokenizers.
    (&[NO_NAME], rule(WordRule::Regexes(DEFAULT))),
    (
        &["gpt-2", "gpt2", "phi-2", "roberta-bpe", "olmo", "exaone4"],
        rule(WordRule::Gpt2),
    ),
    (
        &["smollm", "starcoder", "refact", "codeshell"],
        rule(WordRule::DigitsGpt2),
    ),
    (
        &["command-r"],
        PreRule {
            nfc: true,
            ..rule(WordRule::DigitsGpt2)
        },
    ),
    (
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "lfm2",
            "pixtral",
        ],
        PreRule {
            ignore_merges: true,
            add_bos: true,
            ..rule(WordRule::Regexes(&[LLAMA3]))
        },
    ),
    (
        &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        rule(WordRule::Regexes(&[LLAMA3])),
    ),
    (
        &["qwen2"],
        PreRule {
            nfc: true,
            ..rule(WordRule::Regexes(&[QWEN2]))
        },
    ),
    (
        &["qwen35"],
        PreRule {
            nfc: true,
            ..rule(WordRule::Regexes(&[QWEN35]))
        },
    ),
    (
        &["tekken"],
        PreRule {
            ignore_merges: true,
            add_bos: true,
            ..rule(WordRule::Regexes(&[TEKKEN]))
        },
    ),
    (
        &["stablelm2", "deepseek-r1-qwen"],
        rule(WordRule::Regexes(&[QWEN2])),
    ),
    (&["seed-coder"], rule(WordRule::Regexes(&[SEED_CODER]))),
    (&["hunyuan-dense"], rule(WordRule::Regexes(DEEPSEEK3))),
    (&["gpt-4o"], rule(WordRule::Regexes(&[GPT4O]))),
];

impl PreRule {
    /// The rule with this name. llama.cpp reads an empty name like no name.
    pub(super) fn named(name: Option<&str>) -> Result<Self, TextError> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or(NO_NAME);
        let found = RULES.iter().find(|(names, _)| names.contains(&name));
        found
            .map(|(_, rule)| *rule)
            .ok_or_else(|| TextError::UnknownPre {
                name: name.to_owned(),
                supported: RULES
                    .iter()
                    .flat_map(|(names, _)| names.iter().copied())
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }

    pub(super) fn normalizer(self) -> Option<NormalizerWrapper> {
        self.nfc.then(|| NFC.into())
    }

    pub(super) fn pre_tokenizer(self) -> Result<PreTokenizerWrapper, TextError> {
        let byte_level =
            |use_regex| PreTokenizerWrapper::from(ByteLevel::new(false, true, use_regex));
        Ok(match self.word_rule {
            WordRule::Gpt2 => byte_level(true),
            WordRule::DigitsGpt2 => {
                let digits = PreTokenizerWrapper::from(Digits::new(true));
                Sequence::new(vec![digits, byte_level(true)]).into()
            }
            WordRule::Regexes(regexes) => {
                let mut steps = regexes
                    .iter()
                    .map(|regex| split(regex))
                    .collect::<Result<Vec<_>, _>>()?;
                steps.push(byte_level(false));
                Sequence::new(steps).into()
            }
        })
    }
}

/// Makes words of the matches of a regular expression, and of what is between them.
fn split(regex: &str) -> Result<PreTokenizerWrapper, TextError> {
    let pattern = SplitPattern::Regex(regex.to_owned());
    Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map(Into::into)
        .map_err(|error| TextError::Encode(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_compiles_and_unknown_names_are_refused() {
        for (names, rule) in RULES {
            assert!(rule.pre_tokenizer().is_ok(), "{names:?}");
        }
        let message = PreRule::named(Some("viking")).unwrap_err().to_string();
        assert!(
            message.starts_with(
                "pre-tokenizer 'viking' is not supported: expected one of \
                default, "
            ),
            "{message}"
        );
    }
}
