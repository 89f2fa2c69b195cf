//! Many short texts in one allocation, so that a large vocabulary is read without an allocation for
//! each token.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use thane_mil::footprint::piece;

/// A list of texts; in JSON a list of strings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    text: String,
    /// The end of each text in `text`.
    ends: Vec<usize>,
}

impl Texts {
    /// The number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no texts.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all texts.
    pub(super) fn n_bytes(&self) -> usize {
        self.text.len()
    }

    /// Bytes that the list takes.
    pub(super) fn held_bytes(&self) -> usize {
        piece(self.text.capacity()) + piece(self.ends.capacity() * size_of::<usize>())
    }

    /// Appends a text.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }

    /// The text at this index.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text.get(start..end)
    }

    /// All texts in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).expect("below the length"))
    }
}

impl<T: AsRef<str>> Extend<T> for Texts {
    fn extend<I: IntoIterator<Item = T>>(&mut self, texts: I) {
        let texts = texts.into_iter();
        self.ends.reserve(texts.size_hint().0);
        texts.for_each(|text| self.push(text.as_ref()));
    }
}

impl<T: AsRef<str>> FromIterator<T> for Texts {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut all = Self::default();
        all.extend(texts);
        all
    }
}

impl Serialize for Texts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of strings")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
                let mut texts = Texts::default();
                while let Some(text) = list.next_element::<String>()? {
                    texts.push(&text);
                }
                Ok(texts)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// A collection with a text for each id.
pub(super) trait Spelled {
    /// The text of `id`; empty for an id without text.
    fn spelled(&self, id: u32) -> &[u8];
}

impl Spelled for Texts {
    fn spelled(&self, id: u32) -> &[u8] {
        self.get(id as usize).unwrap_or_default().as_bytes()
    }
}

/// A hash index over some of the texts. It takes 8 to 16 bytes for each text.
#[derive(Debug)]
pub(super) struct Index {
    slots: Vec<u32>,
    max_len: usize,
    // Random keys, so that no file can make all its tokens collide.
    hasher: RandomState,
}

const NONE: u32 = u32::MAX;

impl Index {
    /// Indexes `ids`. Among ids with the same text, the first one is found.
    pub(super) fn new(texts: &impl Spelled, ids: impl ExactSizeIterator<Item = u32>) -> Self {
        let n_slots = (ids.len() * 2).next_power_of_two();
        let mut index = Self {
            slots: vec![NONE; n_slots],
            max_len: 0,
            hasher: RandomState::new(),
        };
        for id in ids {
            let text = texts.spelled(id);
            index.max_len = index.max_len.max(text.len());
            let slot = index.slot(texts, text);
            if index.slots[slot] == NONE {
                index.slots[slot] = id;
            }
        }
        index
    }

    /// The id of `text`.
    pub(super) fn get(&self, texts: &impl Spelled, text: &[u8]) -> Option<u32> {
        if text.len() > self.max_len {
            return None;
        }
        Some(self.slots[self.slot(texts, text)]).filter(|&id| id != NONE)
    }

    /// The slot of `text`, or the empty slot where it would be. Half of the slots are empty, so the
    /// search ends.
    fn slot(&self, texts: &impl Spelled, text: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(text) as usize & mask;
        while self.slots[slot] != NONE && texts.spelled(self.slots[slot]) != text {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_its_texts() {
        let texts: Texts = ["a", "", "語x", "a"].into_iter().collect();
        assert_eq!(texts.iter().collect::<Vec<_>>(), ["a", "", "語x", "a"]);
        assert_eq!(
            (texts.get(2), texts.get(4), texts.len()),
            (Some("語x"), None, 4)
        );
        let json = serde_json::to_string(&texts).unwrap();
        assert_eq!(json, r#"["a","","語x","a"]"#);
        assert_eq!(serde_json::from_str::<Texts>(&json).unwrap(), texts);
        assert!(
            serde_json::from_str::<Texts>("[1]").is_err()
                && serde_json::from_str::<Texts>("\"a\"").is_err()
        );
    }

    #[test]
    fn an_index_finds_the_first_of_equals() {
        let texts: Texts = ["b", "a", "b", "long"].into_iter().collect();
        let index = Index::new(&texts, [1, 0, 2].into_iter());
        let found: Vec<_> = ["a", "b", "long", "", "c"]
            .map(|text| index.get(&texts, text.as_bytes()))
            .into();
        assert_eq!(found, [Some(1), Some(0), None, None, None]);
        assert_eq!(Index::new(&texts, [].into_iter()).get(&texts, b"a"), None);
    }
}
