//! What `thane audit` adds to the library of audits: opening what a user names ([`subject`]), the
//! values of flags ([`values`]), writing fixed programs ([`fix`]), and the two lines that
//! `thane convert` ends with ([`verdict`]).
//!
//! `thane-audit` does the judging and makes the report; nothing here decides where an op runs.

pub mod fix;
pub mod subject;
pub mod values;
pub mod verdict;
