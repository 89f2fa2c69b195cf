//! What is lowered to an encoder: the layers of an architecture, which embedding models and
//! classifiers share, and their sizes.

use thane_mil::program::Function;

use crate::checkpoint::MaxTokens;
use crate::checks::check_size;
use crate::error::ModelError;
use crate::graph::Graph;
use crate::layers::encoder::EncoderPlan;
use crate::pooling::Pooling;
use crate::weights::Weights;

/// The configuration of an encoder, ready to be lowered.
pub(crate) trait EncoderBody {
    /// Builds one function of the program.
    fn function(
        &self,
        g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError>;

    /// The sizes of the encoder.
    fn sizes(&self) -> EncoderSizes;

    /// Number of labels, if the file is that of a sequence classifier.
    fn n_labels(&self) -> Option<usize> {
        None
    }

    /// Whether a classifier distinguishes the tokens of two texts by their types.
    fn has_token_types(&self) -> bool {
        false
    }

    /// The pooling of the architecture, and whether the model itself gives int8 and bits, for
    /// models whose files do not say.
    fn default_pooling(&self) -> Option<(Pooling, bool)> {
        None
    }

    /// The divisor of the residual stream that keeps the stream within the range of fp16.
    fn residual_divisor(&self) -> f32 {
        1.0
    }
}

/// The sizes of an encoder.
pub(crate) struct EncoderSizes {
    pub n_layers: usize,
    pub vocab_size: usize,
    pub hidden: usize,
    /// Positions that the model was trained with.
    pub n_positions: usize,
    /// Whether positions beyond those are computed as those are.
    pub is_open: bool,
    /// Whether padding before a text shifts its positions in transformers.
    pub counts_padding: bool,
    /// The id of the padding token, if positions are counted from the one after it.
    pub padding: Option<usize>,
}

impl EncoderSizes {
    /// The largest number of tokens that the program takes, and the most of a text unless a caller
    /// asks for others. As in sentence-transformers (6.2), a length that its files name may exceed
    /// the positions of the model; where positions are rows of a table it cannot.
    pub fn lengths(&self, most: MaxTokens) -> Result<[usize; 2], ModelError> {
        let n = self.n_positions;
        let beyond = most.given.filter(|given| self.is_open && *given > n);
        let longest = match beyond {
            Some(given) => check_size("max_seq_length", given)?,
            None => n,
        };
        let asked = most.given.or(most.by_tokenizer.map(|most| most.min(n)));
        Ok([longest, asked.unwrap_or(n).min(longest)])
    }
}
