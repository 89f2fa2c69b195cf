//! The formats that a report is printed in, a file for each: [`text`] for a terminal, [`concise`]
//! for grep and editors, [`json`], [`sarif`] for code review, [`html`] for a browser, and [`mil`],
//! the program itself with notes. The other files hold what several of them share.

pub mod chain;
mod comparison;
pub mod concise;
pub mod html;
pub mod json;
pub mod mil;
pub mod rule;
pub mod sarif;
pub mod sentence;
pub mod table;
pub mod text;
pub mod wrap;
