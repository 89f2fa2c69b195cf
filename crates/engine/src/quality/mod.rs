//! How far a model is from a reference, as plain functions of numbers: logits of the same
//! positions ([`compare`]), means with intervals ([`mean_interval`]), and how well a ranking finds
//! what is relevant ([`ndcg`]).
//!
//! Glossary: *reference* is the model that is taken as right; `P` is its distribution over the next
//! token, `Q` that of the model. All logarithms are natural. Sums are in f64.
//!
//! Start at [`compare`]. Expected values of the tests are of numpy, scipy and scikit-learn
//! (`tests/oracle/make_quality.py`).

mod bootstrap;
mod logits;
mod retrieval;

pub use bootstrap::{Estimate, block_len, mean_interval, quantile};
pub use logits::{Pair, coarse_divergence, compare, greatest};
pub use retrieval::{ndcg, ranked};
