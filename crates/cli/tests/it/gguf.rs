//! A GGUF file taken apart and put together again, to make files that are wrong in one place.
//!
//! Layout: magic, version, number of tensors, number of keys; the keys; a record per tensor;
//! padding to 32 bytes; data.

use crate::fixture::chat_gguf;

/// Types of values, as the format numbers them.
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// The tiny chat model in parts.
pub struct Gguf {
    head: Vec<u8>,
    /// Each key with its record: name, type, value.
    keys: Vec<(String, Vec<u8>)>,
    /// Each tensor's name, its place in the data, and the bytes of all records.
    tensors: Vec<(String, usize)>,
    records: Vec<u8>,
    pub data: Vec<u8>,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn u32(&mut self) -> u32 {
        self.at += 4;
        u32::from_le_bytes(self.bytes[self.at - 4..self.at].try_into().unwrap())
    }

    fn u64(&mut self) -> usize {
        self.at += 8;
        u64::from_le_bytes(self.bytes[self.at - 8..self.at].try_into().unwrap()) as usize
    }

    fn string(&mut self) -> String {
        let n = self.u64();
        self.at += n;
        String::from_utf8(self.bytes[self.at - n..self.at].to_vec()).unwrap()
    }

    fn skip(&mut self, ty: u32) {
        match ty {
            STRING => drop(self.string()),
            ARRAY => {
                let (of, n) = (self.u32(), self.u64());
                (0..n).for_each(|_| self.skip(of));
            }
            0 | 1 | 7 => self.at += 1,
            2 | 3 => self.at += 2,
            4..=6 => self.at += 4,
            _ => self.at += 8,
        }
    }
}

impl Gguf {
    pub fn tiny_chat() -> Self {
        let bytes = std::fs::read(chat_gguf()).unwrap();
        let mut r = Reader {
            bytes: &bytes,
            at: 8,
        };
        let (n_tensors, n_keys) = (r.u64(), r.u64());
        let mut keys = Vec::new();
        for _ in 0..n_keys {
            let start = r.at;
            let name = r.string();
            let ty = r.u32();
            r.skip(ty);
            keys.push((name, bytes[start..r.at].to_vec()));
        }
        let start = r.at;
        let mut tensors = Vec::new();
        for _ in 0..n_tensors {
            let name = r.string();
            let n_dims = r.u32() as usize;
            r.at += 8 * n_dims + 4;
            tensors.push((name, r.u64()));
        }
        let data = r.at.next_multiple_of(32);
        let records = bytes[start..r.at].to_vec();
        Self {
            head: bytes[..16].to_vec(),
            keys,
            tensors,
            records,
            data: bytes[data..].to_vec(),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        bytes.extend(self.keys.iter().flat_map(|(_, record)| record));
        bytes.extend(&self.records);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }

    pub fn without(mut self, key: &str) -> Self {
        let n = self.keys.len();
        self.keys.retain(|(name, _)| name != key);
        assert_eq!(self.keys.len() + 1, n, "{key}");
        self
    }

    pub fn with(mut self, key: &str, ty: u32, value: &[u8]) -> Self {
        self.keys.retain(|(name, _)| name != key);
        let mut record = (key.len() as u64).to_le_bytes().to_vec();
        record.extend(key.as_bytes());
        record.extend(ty.to_le_bytes());
        record.extend(value);
        self.keys.push((key.to_owned(), record));
        self
    }

    pub fn with_u32(self, key: &str, value: u32) -> Self {
        self.with(key, 4, &value.to_le_bytes())
    }

    pub fn with_string(self, key: &str, value: &str) -> Self {
        let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
        bytes.extend(value.as_bytes());
        self.with(key, STRING, &bytes)
    }

    /// The list of strings at `key`, changed.
    pub fn with_strings(self, key: &str, change: impl FnOnce(&mut Vec<String>)) -> Self {
        let record = &self.keys.iter().find(|(name, _)| name == key).unwrap().1;
        let mut r = Reader {
            bytes: record,
            at: 8 + key.len() + 4 + 4,
        };
        let n = r.u64();
        let mut list: Vec<String> = (0..n).map(|_| r.string()).collect();
        change(&mut list);
        let mut bytes = STRING.to_le_bytes().to_vec();
        bytes.extend((list.len() as u64).to_le_bytes());
        for item in &list {
            bytes.extend((item.len() as u64).to_le_bytes());
            bytes.extend(item.as_bytes());
        }
        self.with(key, ARRAY, &bytes)
    }

    /// The first value of an fp32 tensor, changed.
    pub fn with_value(mut self, tensor: &str, value: f32) -> Self {
        let at = self
            .tensors
            .iter()
            .find(|(name, _)| name == tensor)
            .unwrap()
            .1;
        self.data[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }
}

#[test]
fn a_file_that_is_put_together_unchanged_is_the_same_file() {
    assert_eq!(
        Gguf::tiny_chat().bytes(),
        std::fs::read(chat_gguf()).unwrap()
    );
}
