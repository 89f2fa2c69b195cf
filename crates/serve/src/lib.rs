//! Serves language models, embedding models and rerankers over HTTP, with the routes of OpenAI's
//! API, Anthropic's, Ollama's, Perplexity's and that of Text Embeddings Inference.
//!
//! Each model has a thread of its own, which alone touches the model ([`answers`] for language
//! models, [`batches`] for embedding models, [`ranks`] for rerankers). One thread handles all
//! connections; it encodes prompts on a few more. A request waits in the queue of its model; a
//! client that disconnects frees its place before the next step of the model.
//!
//! Start at [`Server`]. A route is a file of `routes`, with a line in [`routes::router`]; `guard`
//! holds what is checked before any route, and [`dialect`] how each API shows errors. [`Offline`]
//! answers requests without a network, through the same routes; [`Client`] asks a running server.
//! This crate knows no flags and prints nothing.
#![deny(missing_docs)]

mod answers;
mod apart;
mod batches;
mod body;
mod client;
mod compiling;
mod connections;
mod cors;
mod counts;
mod deadline;
mod dialect;
mod encoding;
mod error;
mod guard;
mod half_closed;
mod keep_alive;
mod kept;
mod lines;
mod listen;
mod log;
mod logprobs;
mod model;
mod offline;
mod otlp;
mod patience;
mod places;
mod random;
mod ranks;
mod rate;
mod roster;
mod routes;
mod server;
mod shape;
mod stream;
mod threads;
mod tls;
mod trace;
mod upload;
mod vectors;
mod warm;
mod written;

pub use body::most_memory_of;
pub use client::{Client, ClientError};
pub use cors::{Cors, CorsError};
pub use keep_alive::KeepAlive;
pub use listen::{ListenError, listen};
pub use log::{LogEntry, LogSink};
pub use model::{KeptPrompts, ModelOptions, ModelTask, Served, name_of};
pub use offline::{Offline, OfflineError, Reply, Request};
pub use otlp::{OtlpError, OtlpOptions, Traces};
pub use roster::{LoadError, Loadable, Pull, PullProgress, ReloadSink};
pub use server::{Hooks, Options, RunError, Server};
pub use threads::{join_within, lock};
pub use tls::{Tls, TlsError};
pub use trace::Trace;
