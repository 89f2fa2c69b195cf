//! Limits of the file formats, and the remedy for damaged files.

/// Longest header of a safetensors file in bytes, as in the reference implementation.
pub const MAX_HEADER_LEN: u64 = 100_000_000;

/// Maximum nesting of GGUF metadata arrays; no known file nests arrays at all.
pub(super) const MAX_ARRAY_DEPTH: usize = 4;

/// Remedy for a file whose bytes contradict each other.
pub(super) const DAMAGED: &str = "the file is truncated or damaged, fetch it again";
