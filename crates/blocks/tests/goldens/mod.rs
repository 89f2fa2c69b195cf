//! Reads `blocks.bin`: blocks of every quantized type, and their values by the `gguf` Python
//! package, which `make_blocks.py` recorded. The tests of `kernels` and `models` use this file too.
#![allow(clippy::unwrap_used)]

use thane_blocks::BlockType;

/// Blocks of one type.
pub struct Golden {
    pub ty: BlockType,
    /// Stored blocks, one after another.
    pub bytes: Vec<u8>,
    /// The value of each element.
    pub values: Vec<f32>,
}

/// One golden per quantized type, in the order of [`BlockType::ALL`].
pub fn goldens() -> Vec<Golden> {
    let mut file: &[u8] = include_bytes!("../blocks.bin");
    let mut take = |len: usize| -> Option<&[u8]> {
        let (head, rest) = file.split_at_checked(len)?;
        file = rest;
        Some(head)
    };
    let mut goldens = Vec::new();
    while let Some(name) = take(8) {
        let name = std::str::from_utf8(name).unwrap().trim_end_matches('\0');
        let mut all = BlockType::ALL.into_iter();
        let ty = all.find(|ty| ty.name() == name).unwrap();
        let mut number = || u32::from_le_bytes(take(4).unwrap().try_into().unwrap()) as usize;
        let (n_blocks, block_bytes, block_len) = (number(), number(), number());
        let sizes = (ty.block_bytes(), ty.block_len());
        assert_eq!((block_bytes, block_len), sizes, "{name}");
        let bytes = take(n_blocks * block_bytes).unwrap().to_vec();
        let values = take(n_blocks * block_len * 4).unwrap();
        let values = values.as_chunks().0.iter();
        let values = values.map(|b| f32::from_le_bytes(*b)).collect();
        goldens.push(Golden { ty, bytes, values });
    }
    goldens
}
