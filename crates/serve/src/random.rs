//! Random numbers of the operating system, which nobody can guess.

use crate::error::ApiError;

/// A random number.
pub(crate) fn number() -> Result<u64, ApiError> {
    getrandom::u64().map_err(|_| unavailable())
}

/// An id of 48 hexadecimal digits, as OpenAI's are.
pub(crate) fn id() -> Result<String, ApiError> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(|_| unavailable())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn unavailable() -> ApiError {
    ApiError::failed("the system has no random numbers")
}
