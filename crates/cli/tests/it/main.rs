//! The program as a user meets it: started as a process, in an environment that holds only what a
//! test puts there.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]
#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]

mod anemll;
mod audit;
mod audit_forms;
mod batch;
mod buckets;
mod bundle;
mod codes;
mod convert;
mod coremlc;
mod cycles;
mod decoder;
mod embed;
mod fix;
mod fixture;
mod foreign;
mod gguf;
mod hub;
mod images;
mod look;
mod memory;
mod messages;
mod modes;
mod modes_contract;
mod modes_flags;
mod modes_heads;
mod modes_lanes;
mod modes_rings;
mod outputs;
mod package;
mod pip;
mod plan;
mod progress;
mod real;
mod refusals;
mod remote;
mod rerank;
mod run;
mod run_prompts;
mod run_structure;
mod schema;
mod serve;
mod serve_anthropic;
mod serve_attacks;
mod serve_client;
mod serve_forms;
mod serve_log;
mod serve_ollama;
mod serve_openai;
mod serve_operation;
mod serve_page;
mod serve_perplexity;
mod serve_prompts;
mod serve_quota;
mod serve_reload;
mod serve_responses;
mod serve_tei;
mod serve_tools;
mod serve_traces;
mod serve_vectors;
mod server;
mod talk;
mod tidy;
