//! What `thane serve` is made of beside the server itself: its keys and
//! certificates, its log, and its models, from names to threads.

pub mod keys;
pub mod log;
pub mod models;
pub mod state;
