//! The energy of a call, as reports have it.

use serde::Serialize;

/// What the energy of a call is made of.
#[derive(Debug, Serialize)]
pub struct EnergyRow {
    /// The Neural Engine, as its power rail has it.
    pub engine_mj: f64,
    /// Memory.
    pub memory_mj: f64,
    /// The CPU's part of a call.
    pub host_mj: f64,
}
