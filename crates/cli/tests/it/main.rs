//! The program as a user meets it: started as a process, in an environment that holds only what a test puts there.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod fixture;
mod hub;
mod pip;
mod server;
