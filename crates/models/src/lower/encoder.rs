//! Lowers an embedding model or a classifier to a program.

use thane_calls::Lookup;
use thane_mil::program::Program;
use thane_mil::types::DType;

use super::SMALL_BYTES;
use crate::Pooling;
use crate::checkpoint::{PaddingSide, SentenceConfig, Step};
use crate::checks::check_size;
use crate::classifier::{Classifier, ClassifierInfo, Scores};
use crate::encoder::body::EncoderBody;
use crate::encoder::{Encoder, EncoderInfo, EncoderOptions, Target};
use crate::error::ModelError;
use crate::graph::{Graph, Layout, SharedConstants, Spelling};
use crate::layers::encoder::{EncoderHead, EncoderPlan, Encoding, Extent, MOST_HALF_TOKENS};
use crate::numbers;
use crate::weights::Weights;

/// Rows of the pool matrix in functions of fixed length.
const MAX_CHUNKS: usize = 32;

/// Lowers an encoder to one function of any length, or to one function for each bucket.
pub(crate) fn lower_encoder(
    architecture: String,
    encoder: &dyn EncoderBody,
    weights: &Weights<'_>,
    sentence: SentenceConfig,
    options: &EncoderOptions,
) -> Result<Encoder, ModelError> {
    let sizes = encoder.sizes();
    let [mut n_positions, mut max_tokens] = sizes.lengths(sentence.max_tokens)?;
    let lookup = options.target.lookup();
    if let Target::Ane(_) = options.target {
        [n_positions, max_tokens] = [n_positions, max_tokens].map(|n| n.min(MOST_HALF_TOKENS));
    }
    if sizes.counts_padding {
        PaddingSide::check(sentence.padding)?;
    }
    let pooling = options.pooling.or(sentence.pooling);
    // Token vectors are not pooled, so any pooling will do.
    let pooling = pooling.or((options.encoding == Encoding::Tokens).then(|| Pooling::Mean.into()));
    let pooling = pooling.ok_or(ModelError::Pooling)?;
    let mut sentence = sentence;
    match options.normalize {
        Some(true) if !sentence.normalizes() => sentence.steps.push(Step::Normalize),
        Some(false) if sentence.normalizes() => drop(sentence.steps.pop()),
        _ => {}
    }
    let n_joined = pooling.modes().len();
    if n_joined > 1 && options.encoding != Encoding::Text {
        return Err(ModelError::unsupported(
            "pooling_mode",
            pooling,
            "expected one mode, because tokens and chunks are not pooled in several ways",
        ));
    }
    let hidden = output_dim(sizes.hidden, &sentence.token_steps)?;
    let dim = output_dim(hidden.saturating_mul(n_joined), &sentence.steps)?;
    let head = EncoderHead {
        encoding: options.encoding,
        pooling,
        token_steps: &sentence.token_steps,
        steps: &sentence.steps,
        include_prompt: sentence.include_prompt,
        token_types: false,
    };
    let (program, constants) =
        encoder_program(encoder, n_positions, weights, &options.target, head)?;
    let padding = sizes.padding.filter(|_| lookup != Lookup::Inside);
    let info = EncoderInfo {
        architecture,
        n_layers: sizes.n_layers,
        vocab_size: sizes.vocab_size,
        n_positions,
        dim,
        max_tokens,
        pooling,
        normalize: sentence.normalizes(),
        truncate_dim: sentence.truncate_dim.filter(|n| *n < dim),
        prompts: sentence.prompts,
        default_prompt: sentence.default_prompt,
        include_prompt: sentence.include_prompt,
        similarity: sentence.similarity,
        lower_case: sentence.lower_case,
        quantize: sentence.quantize,
        padding_token: padding.and_then(|id| u32::try_from(id).ok()),
    };
    let constants = constants.borrow();
    Ok(Encoder {
        program,
        info,
        stored: constants.stored(),
        tables: constants.tables(),
        notes: weights.notes(),
    })
}

/// Lowers a sequence classifier to the function `classify`, in the forms of an encoder.
pub(crate) fn lower_classifier(
    architecture: String,
    encoder: &dyn EncoderBody,
    weights: &Weights<'_>,
    scores: Scores,
    target: &Target,
) -> Result<Classifier, ModelError> {
    let sizes = encoder.sizes();
    let [n_positions, max_tokens] = sizes.lengths(scores.settings.max_tokens)?;
    // Encoders take the first token for that of the pair.
    PaddingSide::check(scores.settings.padding)?;
    let head = EncoderHead {
        encoding: Encoding::Labels,
        pooling: Pooling::Cls.into(),
        token_steps: &[],
        steps: &[],
        include_prompt: true,
        token_types: encoder.has_token_types() && scores.token_types,
    };
    if target.lookup() != Lookup::Inside {
        let expected = "expected inside, because classifiers look up the types of tokens, too";
        return Err(ModelError::unsupported(
            "lookup",
            target.lookup().name(),
            expected,
        ));
    }
    let (program, constants) = encoder_program(encoder, n_positions, weights, target, head)?;
    let info = ClassifierInfo {
        architecture,
        n_layers: sizes.n_layers,
        vocab_size: sizes.vocab_size,
        n_positions,
        max_tokens,
        n_labels: scores.n_labels,
        token_types: head.token_types,
        activation: scores.activation,
        lower_case: scores.settings.lower_case,
        prompt: scores.settings.prompt,
        messages: scores.settings.messages,
    };
    let stored = constants.borrow().stored();
    Ok(Classifier {
        program,
        info,
        stored,
    })
}

/// The number of elements of a vector behind steps that take one of `dim` elements.
fn output_dim(mut dim: usize, steps: &[Step]) -> Result<usize, ModelError> {
    for step in steps {
        let (folder, key, inputs, outputs) = match step {
            Step::Dense(dense) => (&dense.folder, "in_features", dense.inputs, dense.size()),
            Step::LayerNorm { folder, size } => (folder, "dimension", *size, *size),
            Step::Normalize => continue,
        };
        if inputs != dim {
            let expected = format!("expected {dim}, the size of the vector before this layer");
            let key = format!("{folder}/config.json: {key}");
            return Err(ModelError::unsupported(&key, inputs, &expected));
        }
        dim = check_size("out_features", outputs)?;
    }
    Ok(dim)
}

/// The program of an encoder, and what its constants were made from. It has, for the portable
/// reference, one function of any length; for the Neural Engine, one for the length of each bucket
/// and, if `flexible` is set, one of any length. A text has at most `n_positions` tokens.
fn encoder_program(
    encoder: &dyn EncoderBody,
    n_positions: usize,
    weights: &Weights<'_>,
    target: &Target,
    head: EncoderHead<'_>,
) -> Result<(Program, SharedConstants), ModelError> {
    let shared = SharedConstants::default();
    let name = head.encoding.function();
    let build = |name: &str, form, residual_divisor, (tokens, chunks)| {
        let extent = Extent {
            single: form != Spelling::PORTABLE,
            tokens,
            chunks,
            has_pooling_mask: !head.include_prompt,
            max_tokens: n_positions,
        };
        let plan = EncoderPlan {
            extent,
            head,
            residual_divisor,
            lookup: target.lookup(),
        };
        encoder.function(Graph::new(name, shared.clone(), form), weights, &plan)
    };
    let mut functions = Vec::new();
    if let Target::Ane(ane) = target {
        let divisor = ane.residual_divisor.unwrap_or(encoder.residual_divisor());
        let form = |layout| Spelling {
            layout,
            float: DType::Fp16,
            norm: ane.norm,
        };
        for length in &ane.buckets {
            check_bucket(*length, n_positions)?;
            let (name, form) = (format!("{name}_{length}"), form(Layout::Channels));
            let sizes = (Some(*length), Some(MAX_CHUNKS));
            functions.push(build(&name, form, divisor, sizes)?);
        }
        if ane.flexible {
            functions.push(build(name, form(Layout::Rows), divisor, (None, None))?);
        }
    } else {
        functions.push(build(name, Spelling::PORTABLE, 1.0, (None, None))?);
    }
    weights.finish()?;
    numbers::check(&shared.borrow().stored(), Some(SMALL_BYTES))?;
    Ok((Program::new(functions), shared))
}

/// Rejects a bucket length that the model has no positions for.
fn check_bucket(length: usize, n_positions: usize) -> Result<(), ModelError> {
    if length == 0 || length > n_positions {
        return Err(ModelError::Bucket {
            asked: length,
            max: n_positions,
        });
    }
    Ok(())
}
