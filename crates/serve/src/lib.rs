//! Serves language models, embedding models and rerankers over HTTP, with the routes of OpenAI's
//! API, Anthropic's, Ollama's, Perplexity's and that of Text Embeddings Inference.
//!
//! Each model has a thread of its own, which alone touches the model ([`answers`] for language
//! models, [`batches`] for embedding models, [`ranks`] for rerankers). One thread handles all
//! connections; it encodes prompts on a few more. A request waits in the queue of its model; a
//! client that disconnects frees its place before the next step of the model.
//!
//! Start at [`Server`]. A route is a file of `routes`, with a line in [`routes::router`]; `guard`
//! holds what is checked before any route, and [`dialect`] how each API shows errors. This crate
//! knows no flags and prints nothing.
#![deny(missing_docs)]

mod answers;
mod batches;
mod body;
mod choices;
mod counts;
mod dialect;
mod encoding;
mod error;
mod guard;
mod kept;
mod listen;
mod model;
mod patience;
mod places;
mod ranks;
mod routes;
mod server;
mod shape;
mod stream;
mod upload;
mod vectors;

pub use listen::{ListenError, listen};
pub use model::{KeptPrompts, ModelOptions, Served};
pub use server::{Options, Server};
