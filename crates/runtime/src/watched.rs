//! A backend around the CPU that shows each call of a program to a witness before it runs.
//!
//! A model is called as always. Before a function runs, ops of it can be observed with the inputs
//! and states that the function is about to take. So chains of packages, tables on the host and
//! caches of every kind need nothing of their own here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thane_cpu::Cpu;
use thane_mil::backend::{
    Backend, Executable, Instance, LoadError, LoadOptions, RunError, States, View,
};
use thane_mil::budget::Budget;
use thane_mil::observe::Given;
use thane_mil::program::{Function, Program};
use thane_mil::types::Type;

/// Sees the calls of a program.
pub trait Witness: Send {
    /// True if calls of a function are to be shown.
    fn wants(&self, f: &Function) -> bool;

    /// A call that is about to run; an error in words ends the showing.
    fn see(&mut self, cpu: &Cpu, f: &Function, given: Given<'_>) -> Result<(), String>;
}

/// A witness, and the fault that ended the showing.
struct Seen<W> {
    witness: W,
    fault: Option<String>,
}

/// The CPU, which shows what it runs to a witness.
pub struct Watched<W> {
    cpu: Cpu,
    seen: Arc<Mutex<Seen<W>>>,
}

impl<W: Witness + Default> Watched<W> {
    /// A backend that runs on `cpu`.
    pub fn new(cpu: &Cpu) -> Self {
        Self {
            cpu: cpu.clone(),
            seen: Arc::new(Mutex::new(Seen {
                witness: W::default(),
                fault: None,
            })),
        }
    }

    /// The witness, or in words why it did not see all; what follows is shown to a new one.
    pub fn take(&self) -> Result<W, String> {
        let mut seen = locked(&self.seen);
        let witness = std::mem::take(&mut seen.witness);
        match seen.fault.take() {
            Some(fault) => Err(fault),
            None => Ok(witness),
        }
    }
}

/// The witness; a panic while the lock was held does not damage it.
fn locked<W>(seen: &Mutex<Seen<W>>) -> MutexGuard<'_, Seen<W>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

struct WatchedExecutable<W> {
    inner: Arc<dyn Executable>,
    program: Arc<Program>,
    cpu: Cpu,
    seen: Arc<Mutex<Seen<W>>>,
}

struct WatchedInstance<W> {
    inner: Box<dyn Instance>,
    program: Arc<Program>,
    cpu: Cpu,
    seen: Arc<Mutex<Seen<W>>>,
}

impl<W: Witness + 'static> Backend for Watched<W> {
    fn name(&self) -> &'static str {
        self.cpu.name()
    }

    fn load_with(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        Ok(Arc::new(WatchedExecutable {
            inner: self.cpu.load_with(program, options)?,
            program: Arc::new(program.clone()),
            cpu: self.cpu.clone(),
            seen: Arc::clone(&self.seen),
        }))
    }

    fn budget(&self) -> Budget {
        self.cpu.budget()
    }
}

impl<W: Witness + 'static> Executable for WatchedExecutable<W> {
    fn instantiate(&self) -> Result<Box<dyn Instance>, RunError> {
        Ok(Box::new(WatchedInstance {
            inner: self.inner.instantiate()?,
            program: Arc::clone(&self.program),
            cpu: self.cpu.clone(),
            seen: Arc::clone(&self.seen),
        }))
    }
}

impl<W: Witness> WatchedInstance<W> {
    fn show(&self, function: &str) {
        let Some(f) = self.program.function(function) else {
            return;
        };
        let mut seen = locked(&self.seen);
        if seen.fault.is_some() || !seen.witness.wants(f) {
            return;
        }
        seen.fault = self.shown(f, &mut seen.witness).err();
    }

    fn shown(&self, f: &Function, witness: &mut W) -> Result<(), String> {
        let (mut inputs, mut states) = (Vec::new(), Vec::new());
        for value in f.body().inputs.iter().map(|id| f.value(*id)) {
            let name = value.name.as_str();
            if matches!(value.ty, Type::State(_)) {
                // A state that nothing was written to yet is zero.
                states.extend(self.inner.state(name).ok().map(|view| (name, view)));
            } else {
                inputs.push((name, self.inner.given(name).map_err(|e| e.to_string())?));
            }
        }
        let given = Given {
            inputs: &inputs,
            states: &states,
        };
        witness.see(&self.cpu, f, given)
    }
}

impl<W: Witness> Instance for WatchedInstance<W> {
    fn input(&mut self, name: &str, shape: &[usize]) -> Result<&mut [u8], RunError> {
        self.inner.input(name, shape)
    }

    fn given(&self, name: &str) -> Result<View<'_>, RunError> {
        self.inner.given(name)
    }

    fn run(&mut self, function: &str) -> Result<(), RunError> {
        self.show(function);
        self.inner.run(function)
    }

    fn run_until(&mut self, function: &str, is_over: &dyn Fn() -> bool) -> Result<(), RunError> {
        self.show(function);
        self.inner.run_until(function, is_over)
    }

    fn run_for_states(&mut self, function: &str) -> Result<(), RunError> {
        self.show(function);
        self.inner.run_for_states(function)
    }

    fn output(&self, name: &str) -> Result<View<'_>, RunError> {
        self.inner.output(name)
    }

    fn state(&self, name: &str) -> Result<View<'_>, RunError> {
        self.inner.state(name)
    }

    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError> {
        self.inner.state_mut(name)
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn states_bytes(&self) -> Option<usize> {
        self.inner.states_bytes()
    }

    fn fresh_states(&self) -> Option<States> {
        self.inner.fresh_states()
    }

    fn swap_states(&mut self, states: &mut States) -> bool {
        self.inner.swap_states(states)
    }
}
