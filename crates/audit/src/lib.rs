//! Predicts, without a device, where each op of a MIL program runs on an Apple chip, why, how long
//! a call takes, and what to change.
//!
//! [`audit`](fn@audit) judges a program in three steps: [`rules`] find what keeps an op off the
//! Neural Engine or makes it slow; [`place`] estimates what each backend would take and finds the
//! cheapest way through them as Apple's segmenter does; [`latency`] predicts the time of a call.
//! [`report::build`] makes the report that users see, and [`mod@format`] prints it as text, JSON,
//! SARIF or HTML. [`fix`] rewrites what rules find. [`plan`] chooses lengths and cuts by predicted
//! price. [`target`] is the table of chips and systems.
//!
//! This crate must not know checkpoints, model families, terminals, flags or files: it gets bytes
//! and programs, and gives strings. It builds for WebAssembly. Weights are not read unless a rule
//! about numbers needs them.
//!
//! # Example
//!
//! ```
//! use thane_audit::format::text::{self, Detail, Paint};
//! use thane_audit::report::{self, Part, Scope, Subject};
//! use thane_audit::target::{Route, Target, Units};
//! use thane_mil::text::parse;
//!
//! let text = "program(1.3) {
//!   func main<ios18>(tensor<fp16, [1, 64, 1, 64]> x) {
//!     tensor<fp16, [1, 64, 1, 64]> y = relu(x = x)[name = string(\"y\")];
//!   } -> (y);
//! }";
//! let program = parse(text, &|_, _, _| None)?;
//! let target = Target::parse("m4+macos15", Units::default(), Route::default())?;
//! let subject = Subject::new("relu.mil", "text", vec![Part::new(program)]);
//! let report = report::build(&subject, &[target], Scope::default());
//! assert_eq!(report.targets[0].ops, 1);
//! let detail = Detail { all: false, failures: false, latency: false };
//! assert!(text::print(&report, Paint(false), detail).contains("m4+macos15"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]

pub mod bisect;
pub mod calls;
pub mod errors;
mod finding;
pub mod fix;
pub mod format;
mod judged;
#[cfg(feature = "score")]
pub mod labeled;
pub mod latency;
pub mod lengths;
pub mod number;
pub mod place;
pub mod plan;
mod price;
pub mod report;
mod rule;
pub mod rules;
pub mod target;
pub mod view;
pub mod weight;
pub mod work;

pub use finding::Finding;
pub use judged::{Audit, FunctionAudit, audit, audit_calls};
pub use lengths::Inputs;
pub use price::Predictor;
pub use rule::{Check, Effect, Hit, Rule, Scope, Severity};
pub use rules::RULES;
pub use view::View;
