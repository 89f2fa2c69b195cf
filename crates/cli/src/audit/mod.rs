//! The files and flags of the verbs about the audit: [`subject`] opens what the user names,
//! [`values`] parses flags, [`fix`] writes fixed programs, [`scores`] reads published data for
//! `--self-check`, and [`verdict`] prints the two lines
//! that `thane convert` ends with.
//!
//! The crate `thane-audit` judges programs and makes the report. Nothing here decides where an op
//! runs.

pub mod fix;
pub mod scores;
pub mod subject;
pub mod values;
pub mod verdict;
