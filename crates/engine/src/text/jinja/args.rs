//! What a function, filter, test or method is given.

use super::meter::{Error, Result};
use super::value::Value;

/// Values by place and by name.
#[derive(Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Args {
    /// The next argument, which can also be given by this name.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        if !self.positional.is_empty() {
            return Some(self.positional.remove(0));
        }
        let at = self.named.iter().position(|(found, _)| found == name)?;
        Some(self.named.remove(at).1)
    }

    /// As [`Args::take`], where the argument has to be there.
    pub(super) fn need(&mut self, of: &str, name: &str) -> Result<Value> {
        self.take(name)
            .ok_or_else(|| Error::new(format!("{of}: the argument `{name}` is missing")))
    }

    /// An argument that can only be given by name.
    pub(super) fn named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(found, _)| found == name)?;
        Some(self.named.remove(at).1)
    }

    /// An integer; none where it is not given.
    pub(super) fn int(&mut self, of: &str, name: &str) -> Result<Option<i64>> {
        match self.take(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => match value.as_int() {
                Some(n) => Ok(Some(n)),
                None => Err(Error::new(format!(
                    "{of}: expected an integer, found {}",
                    value.type_name()
                ))),
            },
        }
    }

    /// A truth value; false where it is not given.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|value| value.is_true())
    }

    /// The only argument.
    pub(super) fn one(mut self, of: &str) -> Result<Value> {
        match (
            self.positional.pop(),
            self.positional.is_empty() && self.named.is_empty(),
        ) {
            (Some(value), true) => Ok(value),
            _ => Err(Error::new(format!("{of}: expected one argument"))),
        }
    }

    /// An error if something was given that nobody took.
    pub(super) fn finish(self, of: &str) -> Result<()> {
        match (self.positional.len(), self.named.first()) {
            (0, None) => Ok(()),
            (_, Some((name, _))) => Err(Error::new(format!(
                "{of}: the argument `{name:.40}` is unknown"
            ))),
            (n, None) => Err(Error::new(format!("{of}: {n} arguments too many"))),
        }
    }
}
