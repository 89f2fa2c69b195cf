//! What `thane serve` is made of beside the server itself: its models, from names to threads.

pub mod models;
