//! Names of files and functions in what Thane writes, for whoever reads it with or without a disk.

use std::ops::RangeInclusive;

/// The author of the items that Thane adds to a package: their folder is `Data/ai.thane`.
pub const AUTHOR: &str = "ai.thane";
/// File name of the contract of a package.
pub const CONTRACT: &str = "contract.json";
/// The versions of contracts that are read; the last is written. The oldest leaves out `head`,
/// `lanes` and `streaming` where they say nothing. Version 4 has no `tables`.
pub const CONTRACT_SCHEMAS: RangeInclusive<u32> = 3..=5;
/// File name of the manifest of a folder of packages.
pub const MANIFEST: &str = "manifest.json";
/// The version of the manifest that is written, and the only one that is read.
pub const MANIFEST_SCHEMA: u32 = 1;
/// The key of the targets in a package's metadata: `a18+ios27,a19+ios27`.
pub const TARGETS: &str = "ai.thane.targets";
/// Name of a package's only function.
pub const MAIN: &str = "main";

/// The file of the table for an input.
pub fn table_file(input: &str) -> String {
    format!("{input}.npy")
}

/// The chunk that a function of the model belongs to, and the name that it has in its package.
pub fn chunk_and_function(function: &str) -> Option<(&str, &str)> {
    let (chunk, name) = function.split_once('_')?;
    let number = chunk.strip_prefix("chunk")?;
    number.parse::<usize>().ok().map(|_| (chunk, name))
}

/// The file of a chunk's package.
pub fn chunk_file(chunk: &str) -> String {
    format!("{chunk}.mlpackage")
}

/// The length in the name of a function such as `encode_128`; `None` for the function of any
/// length.
pub fn function_length(function: &str) -> Option<usize> {
    function.rsplit('_').next()?.parse().ok()
}
