//! Writes small valid and invalid GGUF and safetensors files.

use std::path::PathBuf;

use thane_mil::data::Bytes;
use thane_models::checkpoint::{Checkpoint, CheckpointError, Gguf, GgufError, Tensors, gguf};

/// The parts of a GGUF file. Every count, length and offset can be set to a wrong value.
#[derive(Clone)]
pub struct GgufFile {
    pub magic: [u8; 4],
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub entry_count: Option<u64>,
    pub alignment: u64,
    pub entries: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub data: Vec<u8>,
}

impl Default for GgufFile {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            entry_count: None,
            alignment: 32,
            entries: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }
}

impl GgufFile {
    /// A valid file with a few keys and tensors.
    pub fn good() -> Self {
        Self::default()
            .entry("general.architecture", 8, &string(b"llama"))
            .entry("llama.block_count", 4, &2_u32.to_le_bytes())
            .entry("llama.rope.freq_base", 6, &10000_f32.to_le_bytes())
            .entry("tokenizer.ggml.tokens", 9, &strings(&[b"a", b"bc", b""]))
            .tensor("token_embd.weight", &[4, 3], 0, &[1; 48])
            .tensor("blk.0.ffn_up.weight", &[32, 2], 8, &[2; 68])
            .tensor("output_norm.weight", &[4], 0, &[3; 16])
    }

    pub fn entry(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        self.entries
            .push([&string(key.as_bytes())[..], &type_id.to_le_bytes(), value].concat());
        self
    }

    /// Appends a tensor and its bytes at the next aligned offset.
    pub fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, bytes: &[u8]) -> Self {
        let offset = self.data.len().next_multiple_of(self.alignment as usize);
        self.data.resize(offset, 0xee);
        self.data.extend_from_slice(bytes);
        self.tensor_at(name, dims, type_id, offset as u64)
    }

    /// Lists a tensor at an offset without appending bytes.
    pub fn tensor_at(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        let mut entry = string(name.as_bytes());
        entry.extend((dims.len() as u32).to_le_bytes());
        entry.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        entry.extend(type_id.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = self.magic.to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(
            self.tensor_count
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        file.extend(
            self.entry_count
                .unwrap_or(self.entries.len() as u64)
                .to_le_bytes(),
        );
        file.extend(self.entries.concat());
        file.extend(self.tensors.concat());
        file.resize(file.len().next_multiple_of(self.alignment as usize), 0xee);
        file.extend(&self.data);
        file
    }

    pub fn parse(&self) -> Result<(Gguf, Tensors), GgufError> {
        gguf::parse(&Bytes::new(self.bytes()))
    }
}

/// A string: its length and its bytes.
pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// The value of an array of strings.
pub fn strings(texts: &[&[u8]]) -> Vec<u8> {
    array(
        8,
        texts.len() as u64,
        &texts
            .iter()
            .flat_map(|text| string(text))
            .collect::<Vec<_>>(),
    )
}

/// The value of an array: type, length, elements.
pub fn array(type_id: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&type_id.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

/// A safetensors file with this header and this many bytes of data, which count up.
pub fn safetensors_file(header: &str, data_len: usize) -> Vec<u8> {
    let data: Vec<u8> = (0..data_len).map(|i| i as u8).collect();
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        &data,
    ]
    .concat()
}

/// A temporary folder with files.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn with(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn open(&self, name: &str) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open(&self.path(name))
    }
}

/// Asserts that a message contains each of these parts.
pub fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}
