//! Reads what `sentence_bert_config.json` says of a transformer beside lengths: what it gives, and
//! whether texts are rendered as messages first.

use serde_json::{Map, Value};

use super::super::config::{Config, ConfigError, shorten};
use super::{check_name, keys};

/// What a transformer must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// The features of each token.
    Tokens,
    /// The logits of the labels of a sequence classifier.
    Labels,
    /// The logits of the tokens of a vocabulary.
    Vocabulary,
}

impl Given {
    /// The task that makes a transformer give this, the name of that output in transformers, and
    /// the name that sentence-transformers gives it.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Tokens => [
                "feature-extraction",
                "last_hidden_state",
                "token_embeddings",
            ],
            Self::Labels => ["sequence-classification", "logits", "scores"],
            Self::Vocabulary => ["text-generation", "logits", "causal_logits"],
        }
    }
}

/// How a query and a text become messages with the roles `query` and `document`, which the model's
/// chat template renders.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairMessages {
    /// Whether the model needs a chat template. Otherwise a model that has none takes two texts.
    pub needs_template: bool,
    /// Whether the content of a message is a list of parts, and not a string; `None` for what the
    /// template reads.
    pub has_parts: Option<bool>,
    /// Whether the template is asked for the begin of an answer.
    pub prompts_answer: bool,
    /// Whether a pair that is too long loses the end of the template. Otherwise that end takes the
    /// place of the last tokens that remain.
    pub cuts_end: bool,
    /// Further variables of the template.
    pub variables: Map<String, Value>,
}

/// Refuses settings by which a transformer gives something else, or by which other settings than
/// those of the files hold. Gives how pairs of texts become messages, if they do.
pub(super) fn read(c: &Config, given: Given) -> Result<Option<PairMessages>, ConfigError> {
    let [task, output, name] = given.names();
    // Without the key, a transformer gives the features of tokens.
    if given != Given::Tokens {
        c.str("transformer_task")?;
    }
    check_name(c, "transformer_task", task)?;
    check_arguments(c)?;
    let Some(modalities) = c.opt_object("modality_config")? else {
        c.value("module_output_name");
        return Ok(None);
    };
    check_name(c, "module_output_name", name)?;
    let check = |modality: &Config| {
        check_name(modality, "method", "forward")?;
        check_output(modality, output)
    };
    check(&modalities.object("text")?)?;
    // Texts become messages where a model takes them.
    let message = modalities.opt_object("message")?;
    match &message {
        Some(_) if given == Given::Tokens => {
            let (key, found) = (modalities.path("message"), "an object".to_owned());
            let expected = "no such key, because texts are not rendered as messages: save the \
                            model with the modality `text` alone";
            return Err(ConfigError::Value {
                file: keys::SENTENCE_BERT.file,
                key,
                expected,
                found,
            });
        }
        Some(message) => check(message)?,
        None => {}
    }
    let used = ["text", "message"];
    for modality in modalities
        .keys()
        .filter(|modality| !used.contains(modality))
    {
        // Only texts are embedded.
        modalities.value(modality);
    }
    message.map(|message| messages(c, &message)).transpose()
}

/// Refuses another output of the model than this one, whose name may be a list of one.
fn check_output(modality: &Config, output: &str) -> Result<(), ConfigError> {
    let key = "method_output_name";
    match modality.value(key) {
        Some(Value::Array(path)) if *path == [output] => Ok(()),
        Some(Value::Array(_)) => Err(ConfigError::Value {
            file: keys::SENTENCE_BERT.file,
            key: modality.path(key),
            expected: "the last hidden state of an embedding model, or the logits of a reranker",
            found: modality.value(key).map(shorten).unwrap_or_default(),
        }),
        _ => check_name(modality, key, output),
    }
}

/// Refuses arguments by two names: sentence-transformers takes those of the old name alone.
fn check_arguments(c: &Config) -> Result<(), ConfigError> {
    for (old, new) in [
        ("model_args", "model_kwargs"),
        ("tokenizer_args", "processor_kwargs"),
        ("config_args", "config_kwargs"),
    ] {
        c.opt_object(old)?;
        c.opt_object(new)?;
        if c.has(old) && !c.says_nothing(new) && c.value(old) != c.value(new) {
            return Err(ConfigError::Contradiction {
                first: old.to_owned(),
                second: new.to_owned(),
                detail: "these are two names of one setting: keep one".to_owned(),
            });
        }
    }
    Ok(())
}

/// What a call of the tokenizer would be given, which is not the template's.
const OF_THE_CALL: [&str; 11] = [
    "chat_template",
    "continue_final_message",
    "documents",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenizer_kwargs",
    "truncation",
];

/// How pairs become messages, by `modality_config.message` and `processing_kwargs.chat_template`.
fn messages(c: &Config, message: &Config) -> Result<PairMessages, ConfigError> {
    let has_parts = match message.opt_str("format")?.unwrap_or("auto") {
        "auto" => None,
        "flat" => Some(false),
        "structured" => Some(true),
        _ => return Err(message.refused("format", "auto, flat or structured")),
    };
    let mut messages = PairMessages {
        has_parts,
        needs_template: true,
        ..PairMessages::default()
    };
    let processing = c.opt_object("processing_kwargs")?;
    let given = processing.map(|all| all.opt_object("chat_template"));
    let Some(given) = given.transpose()?.flatten() else {
        return Ok(messages);
    };
    for key in given.keys() {
        let value = given.value(key).unwrap_or(&Value::Null);
        match (key, value) {
            ("add_generation_prompt", Value::Bool(adds)) => messages.prompts_answer = *adds,
            ("restore_suffix", Value::Bool(restores)) => messages.cuts_end = !*restores,
            ("add_generation_prompt" | "restore_suffix", _) => {
                return Err(given.refused(key, "true or false"));
            }
            _ if OF_THE_CALL.contains(&key) || key == "tools" => {
                return Err(ConfigError::Value {
                    file: keys::SENTENCE_BERT.file,
                    key: given.path(key),
                    expected: "variables of the template, because other settings of its call are \
                               not supported here: remove the key",
                    found: shorten(value),
                });
            }
            _ => drop(messages.variables.insert(key.to_owned(), value.clone())),
        }
    }
    Ok(messages)
}
