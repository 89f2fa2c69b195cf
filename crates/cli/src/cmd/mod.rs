//! The verbs, one module each: its arguments and `run(&Args, &App)`.

pub mod inspect;
pub mod ls;
pub mod ops;
pub mod perplexity;
pub mod pull;
pub mod rm;
pub mod run;
pub mod show;
