//! Converts a checkpoint: finds its family, reads its configuration with it, refuses what nobody
//! read, and lowers what the family describes.

use crate::checkpoint::{
    Checkpoint, Gguf, HuggingFace, RerankConfig, SentenceConfig, Source, is_saved_reranker,
    read_tokenizer_config,
};
use crate::checks::{acknowledge_common, reject_unknown_keys, reject_unread};
use crate::classifier::{Classifier, SCORE_KEYS, Scores};
use crate::encoder::body::EncoderBody;
use crate::encoder::{self, Encoder, EncoderOptions, Target};
use crate::error::ModelError;
use crate::families::{self, Family, family};
use crate::generation;
use crate::gguf_tokenizer;
use crate::lower::{lower, lower_classifier, lower_encoder};
use crate::transformer::Labels;
use crate::weights::Weights;
use crate::{Model, Options};

/// Whether a checkpoint is an embedding model. If the architecture serves both purposes, a
/// `modules.json` of sentence-transformers beside the weights decides, unless it is that of a
/// reranker; in a GGUF file, a pooling.
pub fn is_embedding_model(checkpoint: &Checkpoint) -> Result<bool, ModelError> {
    let architecture = families::architecture(checkpoint)?;
    let pools = match &checkpoint.source {
        Source::HuggingFace(f) => is_saved_reranker(&f.folder)? == Some(false),
        Source::Gguf(gguf) => encoder::gguf::names_pooling(gguf, &architecture)?,
    };
    let named = || families::of_architecture(&architecture);
    Ok(named().any(Family::encodes) && (!named().any(Family::answers) || pools))
}

/// Whether a checkpoint is a sequence classifier, such as a reranker: by the class that
/// sentence-transformers saved, or else by the class that `config.json` names.
pub fn is_classifier(checkpoint: &Checkpoint) -> Result<bool, ModelError> {
    let Source::HuggingFace(folder) = &checkpoint.source else {
        return Ok(false);
    };
    if let Some(is_reranker) = is_saved_reranker(&folder.folder)? {
        return Ok(is_reranker);
    }
    let classes = folder.config.opt_strs("architectures")?.unwrap_or_default();
    let classifies = |class: &&str| class.ends_with("ForSequenceClassification");
    Ok(classes.iter().any(classifies))
}

/// Lowers a checkpoint of a language model to a program with the functions `prefill` and `decode`,
/// and `decode_top` and `verify` if requested.
///
/// # Errors
///
/// If the architecture, a key or a tensor is not supported; see [`ModelError`].
pub fn build(checkpoint: &Checkpoint, options: &Options) -> Result<Model, ModelError> {
    let (weights, decoder, architecture) = match &checkpoint.source {
        Source::Gguf(gguf) => {
            let (family, architecture) = family(checkpoint, |f| f.gguf.is_some())?;
            let weights = Weights::gguf(&checkpoint.tensors, family.gguf_names);
            let decoder = family.gguf.map(|read| read(gguf, &weights)).transpose()?;
            reject_unknown_keys(family.names[0], gguf.unread(&format!("{architecture}.")))?;
            note_tokenizer(checkpoint, gguf, &weights)?;
            (weights, decoder, architecture)
        }
        Source::HuggingFace(folder) => {
            let (family, architecture) = family(checkpoint, |f| f.config.is_some())?;
            check_tokenizer(folder)?;
            let weights = family.weights(&checkpoint.notes, &checkpoint.tensors);
            acknowledge_common(&folder.config);
            let decoder = family
                .config
                .map(|read| read(&folder.config, &weights))
                .transpose()?;
            reject_unread(family.names[0], &folder.config)?;
            (weights, decoder, architecture)
        }
    };
    let Some(decoder) = decoder else {
        return Err(ModelError::Architecture {
            found: architecture,
            supported: families::names(),
        });
    };
    if let Source::HuggingFace(folder) = &checkpoint.source {
        let ends = ends_beyond(folder, decoder.vocab_size)?;
        let notes = folder.config.notes().into_iter().chain(ends);
        notes.for_each(|note| weights.note(note));
    }
    let (_, notes) = generation::read(checkpoint)?;
    notes.into_iter().for_each(|note| weights.note(note));
    lower(architecture, &decoder, &weights, options)
}

fn note_tokenizer(
    checkpoint: &Checkpoint,
    gguf: &Gguf,
    weights: &Weights<'_>,
) -> Result<(), ModelError> {
    let notes = gguf_tokenizer::notes(&checkpoint.path, gguf)?;
    notes.into_iter().for_each(|note| weights.note(note));
    Ok(())
}

/// Refuses keys of `tokenizer_config.json` that are not supported.
fn check_tokenizer(folder: &HuggingFace) -> Result<(), ModelError> {
    Ok(read_tokenizer_config(&folder.folder, |_| Ok(()))?)
}

/// A note on ids of `eos_token_id` that no token has.
fn ends_beyond(folder: &HuggingFace, n_vocab: usize) -> Result<Option<String>, ModelError> {
    let mut ends = folder.eos_token_ids()?;
    ends.retain(|id| *id as usize >= n_vocab);
    Ok(ends.first().map(|id| {
        format!("`eos_token_id` {id} ends no answer: the vocabulary has {n_vocab} tokens")
    }))
}

/// Lowers a checkpoint of an embedding model to a program.
///
/// # Errors
///
/// If the architecture, a key or a tensor is not supported; see [`ModelError`].
pub fn build_encoder(
    checkpoint: &Checkpoint,
    options: &EncoderOptions,
) -> Result<Encoder, ModelError> {
    let (family, architecture) = family(checkpoint, Family::encodes)?;
    if let (Source::Gguf(gguf), Some(read)) = (&checkpoint.source, family.gguf_encoder) {
        let weights = Weights::gguf(&checkpoint.tensors, family.gguf_names);
        let encoder = read(gguf, &weights)?;
        let sentence = SentenceConfig {
            pooling: encoder::gguf::pooling(gguf, &architecture)?,
            steps: encoder::gguf::steps(gguf, &architecture, &weights)?,
            include_prompt: true,
            ..SentenceConfig::default()
        };
        reject_unknown_keys(family.names[0], gguf.unread(&format!("{architecture}.")))?;
        note_tokenizer(checkpoint, gguf, &weights)?;
        return lower_encoder(architecture, encoder.as_ref(), &weights, sentence, options);
    }
    let (Source::HuggingFace(folder), Some(read)) = (&checkpoint.source, family.encoder) else {
        if family.gguf.is_some() {
            return Err(ModelError::AnswersOnly(architecture));
        }
        return Err(ModelError::unsupported(
            "general.architecture",
            architecture,
            "in GGUF files, the encoders bert, nomic-bert, qwen3 and gemma-embedding are supported",
        ));
    };
    check_tokenizer(folder)?;
    let sentence = SentenceConfig::read(folder)?;
    let mut tensors = checkpoint.tensors.clone();
    if let Some(sentence) = &sentence {
        tensors.extend(sentence.tensors(&folder.folder)?);
    }
    let weights = family.weights(&checkpoint.notes, &tensors);
    acknowledge_common(&folder.config);
    let encoder = read(&folder.config, &weights)?;
    if encoder.n_labels().is_some() {
        if options.pooling.is_none() && sentence.is_none() {
            return Err(ModelError::Classifies(architecture));
        }
        folder.config.acknowledge(SCORE_KEYS);
    }
    let sentence = sentence.unwrap_or_else(|| match encoder.default_pooling() {
        Some((pooling, quantize)) => SentenceConfig {
            pooling: Some(pooling.into()),
            quantize,
            include_prompt: true,
            ..SentenceConfig::default()
        },
        None => SentenceConfig::default(),
    });
    reject_unread(family.names[0], &folder.config)?;
    lower_encoder(architecture, encoder.as_ref(), &weights, sentence, options)
}

/// Lowers a checkpoint of a sequence classifier, such as a reranker, to a program.
///
/// # Errors
///
/// If the architecture, a key or a tensor is not supported; see [`ModelError`].
pub fn build_classifier(
    checkpoint: &Checkpoint,
    target: &Target,
) -> Result<Classifier, ModelError> {
    let reads = |f: &Family| f.encoder.is_some() || f.config.is_some();
    let (family, architecture) = family(checkpoint, reads)?;
    let Source::HuggingFace(folder) = &checkpoint.source else {
        return Err(ModelError::unsupported(
            "general.architecture",
            architecture,
            "rerankers are only supported as Hugging Face folders",
        ));
    };
    check_tokenizer(folder)?;
    let weights = family.weights(&checkpoint.notes, &checkpoint.tensors);
    let config = &folder.config;
    acknowledge_common(config);
    let settings = RerankConfig::read(&folder.folder)?;
    let encoder: Option<Box<dyn EncoderBody>> = match (family.config, family.encoder) {
        (Some(read), _) => {
            let mut decoder = read(config, &weights)?;
            decoder.labels = Labels::read(config, &weights, settings.tokens)?;
            Some(Box::new(decoder))
        }
        (None, Some(read)) if settings.tokens.is_none() => Some(read(config, &weights)?),
        (None, _) => None,
    };
    let labeled = encoder.and_then(|encoder| Some((encoder.n_labels()?, encoder)));
    let Some((n_labels, encoder)) = labeled else {
        return Err(ModelError::NoLabels(architecture));
    };
    refuse_language_model(folder, settings.tokens.is_some())?;
    let scores = Scores::read(folder, &architecture, (settings, n_labels))?;
    reject_unread(family.names[0], &folder.config)?;
    lower_classifier(architecture, encoder.as_ref(), &weights, scores, target)
}

/// Refuses a score layer beside the class of a language model. `CrossEncoder` of
/// sentence-transformers (6.2) does not read that layer: it compares the logits of the tokens `yes`
/// and `no`.
fn refuse_language_model(folder: &HuggingFace, by_tokens: bool) -> Result<(), ModelError> {
    if by_tokens || is_saved_reranker(&folder.folder)? == Some(true) {
        return Ok(());
    }
    let classes = folder.config.opt_strs("architectures")?.unwrap_or_default();
    match classes.first() {
        Some(class) if class.ends_with("ForCausalLM") => Err(ModelError::unsupported(
            "architectures",
            class,
            "expected a class that ends in ForSequenceClassification, because \
             sentence-transformers scores a language model by the logits of yes and no, and not by \
             the score layer of this one: correct the key, or save the model with its modules.json",
        )),
        _ => Ok(()),
    }
}
