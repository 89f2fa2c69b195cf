//! Runs a chain on any backend.

use std::sync::Arc;

use thane_mil::backend::{Batch, Executable, Instance, RunError};

use super::Chain;
use super::instance::ChainInstance;
use super::lanes::{ChainBatch, check_memory};

/// The program of a chain, prepared for one machine.
///
/// Its instances have the functions `prefill` (any number of tokens, logits of the last), `decode`
/// (one token) and `verify` (logits of every token).
pub struct ChainExecutable {
    program: Arc<dyn Executable>,
    chain: Arc<Chain>,
}

impl ChainExecutable {
    /// The chain over a program that has its functions.
    pub fn new(program: Arc<dyn Executable>, chain: Arc<Chain>) -> Self {
        Self { program, chain }
    }

    fn instance(&self) -> Result<ChainInstance, RunError> {
        let program = self.program.instantiate()?;
        Ok(ChainInstance::new(program, self.chain.clone()))
    }
}

impl Executable for ChainExecutable {
    fn instantiate(&self) -> Result<Box<dyn Instance>, RunError> {
        Ok(Box::new(self.instance()?))
    }

    fn instantiate_batch(&self, n: usize) -> Result<Box<dyn Batch>, RunError> {
        check_memory(&self.chain, n)?;
        let instances = (0..n).map(|_| self.instance());
        let instances = instances.collect::<Result<Vec<_>, _>>()?;
        let program = self.program.instantiate()?;
        Ok(Box::new(ChainBatch::new(instances, program, &self.chain)))
    }
}
