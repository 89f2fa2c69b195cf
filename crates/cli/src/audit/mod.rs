//! Audits as users see them: what is audited ([`subject`]), the report in its wire form
//! ([`report`]), and a file for each form that it is printed in.
//!
//! The judging itself is [`thane_compile::audit`]; nothing here decides where an op runs.

pub mod baseline;
pub mod compare;
pub mod concise;
pub mod fix;
pub mod groups;
pub mod html;
pub mod json;
pub mod length;
pub mod mil;
pub mod place;
pub mod plan;
pub mod report;
pub mod require;
pub mod sarif;
pub mod score;
pub mod subject;
pub mod table;
pub mod text;
pub mod verdict;
pub mod wrap;
