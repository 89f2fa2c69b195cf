//! The verbs, one module each: its arguments and `run(&Args, &App)`.

pub mod audit;
pub mod batch;
pub mod bench;
pub mod bisect;
pub mod buckets;
pub mod check;
pub mod completions;
pub mod convert;
pub mod diff;
pub mod embed;
pub mod explain;
pub mod inspect;
pub mod ls;
pub mod man;
pub mod ops;
pub mod perplexity;
pub mod plan;
pub mod predict;
pub mod pull;
pub mod rerank;
pub mod rm;
pub mod run;
pub mod serve;
pub mod show;
pub mod verify;
