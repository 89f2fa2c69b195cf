//! Limits of the file formats, and the remedy that errors about damaged files name.

/// Longest header of a safetensors file in bytes, as in the reference implementation.
pub const MAX_HEADER_LEN: u64 = 100_000_000;

/// Deepest nesting of GGUF metadata arrays; no known file nests at all.
pub(super) const MAX_ARRAY_DEPTH: usize = 4;

/// Remedy for a file whose bytes contradict one another.
pub(super) const DAMAGED: &str = "the file is truncated or damaged, fetch it again";
