//! The arguments of a function, filter, test or method.

use super::meter::{Error, Result};
use super::value::Value;

/// Positional and named arguments. The methods take arguments out one by one.
#[derive(Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Args {
    /// Takes the next positional argument, or the argument named `name`.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        if !self.positional.is_empty() {
            return Some(self.positional.remove(0));
        }
        let at = self.named.iter().position(|(found, _)| found == name)?;
        Some(self.named.remove(at).1)
    }

    /// Like [`Args::take`], but an error if the argument is missing.
    pub(super) fn need(&mut self, callee: &str, name: &str) -> Result<Value> {
        self.take(name).ok_or_else(|| {
            Error::new(format!(
                "{callee}: expected the argument `{name}`, found none"
            ))
        })
    }

    /// Takes an argument that can only be given by name.
    pub(super) fn named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(found, _)| found == name)?;
        Some(self.named.remove(at).1)
    }

    /// Takes an integer; `None` if the argument is missing or none.
    pub(super) fn int(&mut self, callee: &str, name: &str) -> Result<Option<i64>> {
        match self.take(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => match value.as_int() {
                Some(n) => Ok(Some(n)),
                None => Err(Error::new(format!(
                    "{callee}: expected an integer, found {}",
                    value.type_name()
                ))),
            },
        }
    }

    /// Takes a boolean; false if the argument is missing.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|value| value.is_true())
    }

    /// Takes the only argument.
    pub(super) fn one(mut self, callee: &str) -> Result<Value> {
        match (
            self.positional.pop(),
            self.positional.is_empty() && self.named.is_empty(),
        ) {
            (Some(value), true) => Ok(value),
            _ => Err(Error::new(format!("{callee}: expected one argument"))),
        }
    }

    /// An error if arguments are left.
    pub(super) fn finish(self, callee: &str) -> Result<()> {
        match (self.positional.len(), self.named.first()) {
            (0, None) => Ok(()),
            (_, Some((name, _))) => Err(Error::new(format!(
                "{callee}: unexpected argument `{name:.40}`"
            ))),
            (n, None) => Err(Error::new(format!("{callee}: {n} unexpected arguments"))),
        }
    }
}
