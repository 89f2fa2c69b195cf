//! How the functions of a decoder are called, as plain data that all crates share.
//!
//! A [`Form`] is what is asked for: a caller fills it, a planner prices and changes it, and the
//! lowering builds a program of it. [`Calls`] is what was built: the lowering returns it, the
//! contract of a package holds it field for field as JSON, and the host follows it. [`Kept`] and
//! [`Ring`] say which tokens the rows of a cache hold. [`names`] has how files and functions of
//! packages are called.
//!
//! This crate knows no programs, checkpoints, devices or files.
//!
//! ```
//! use thane_calls::{CacheForm, Form, Head};
//!
//! let form = Form {
//!     cache: CacheForm::Explicit,
//!     head: "top40".parse::<Head>()?,
//!     ..Form::default()
//! };
//! assert_eq!(form.head, Head::Greatest(40));
//! # Ok::<(), String>(())
//! ```
#![deny(missing_docs)]

mod built;
mod form;
mod head;
mod kept;
pub mod names;

pub use built::{Call, Calls, Given, StreamingCache};
pub use form::{AttentionForm, CacheForm, Form, Lookup, Split, Streaming};
pub use head::{Head, HostHead};
pub use kept::{Kept, Ring};
