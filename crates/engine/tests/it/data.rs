//! Reads `tests/data`.

use serde::de::DeserializeOwned;
use std::path::Path;

pub fn bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub fn json<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&bytes(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The 2,000 lines of mixed text, one JSON string per line.
pub fn mixed_lines() -> Vec<String> {
    let text = String::from_utf8(bytes("mixed.jsonl")).unwrap();
    let lines: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2000);
    lines
}

/// The ids of each of the 2,000 lines, as sums, by one tokenizer after the other.
pub fn id_sums(name: &str) -> Vec<Vec<u32>> {
    let bytes = bytes(name);
    let sums: Vec<u32> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| u32::from_le_bytes(*b))
        .collect();
    sums.chunks(2000).map(<[u32]>::to_vec).collect()
}

/// FNV-1a of ids, 32 bits little-endian each.
pub fn id_sum(ids: &[u32]) -> u32 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    bytes.fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Lists of token ids. Each list is its length and the ids, all in LEB128.
pub fn id_lists(name: &str) -> Vec<Vec<u32>> {
    let bytes = bytes(name);
    let mut rest = bytes.iter();
    let mut number = move || {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = *rest.next()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    };
    let mut lists = Vec::new();
    while let Some(len) = number() {
        lists.push((0..len).map(|_| number().unwrap()).collect());
    }
    lists
}
