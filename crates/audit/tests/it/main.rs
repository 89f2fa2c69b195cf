//! Rules, placement, latency, fixes and planners, on small programs and on published data.
#![allow(clippy::unwrap_used)]

mod bisect;
mod bytes;
mod compressed;
mod constants;
mod encoders;
mod estimates;
mod faults;
mod fixes;
mod grown;
mod interface;
mod intervals;
mod measurements;
mod memory;
mod monotone;
mod parameters;
mod place;
mod placement;
#[path = "../../../../tests/support/processor_time.rs"]
mod processor_time;
mod rules;
mod sizes;
mod trials;
