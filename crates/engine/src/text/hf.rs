//! A tokenizer of the `tokenizers` crate around any model, and a copy that ignores control tokens.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::TextError;
use super::guard::{self, TextCost};
use super::pair::{Cut, Pair};
use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::{
    DecoderWrapper, Model, NormalizerWrapper, PostProcessor, PostProcessorWrapper,
    PreTokenizerWrapper, TokenizerImpl, TruncationDirection, TruncationParams, truncate_encodings,
};

/// A tokenizer of the crate with any model.
pub(super) type HfTokenizer<M> =
    TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// The engine of a [`super::Tokenizer`] that the `tokenizers` crate runs.
#[derive(Debug)]
pub(super) struct Hf<M> {
    pub(super) parsing: Arc<HfTokenizer<M>>,
    /// A copy that encodes control tokens as text; created on first use.
    plain: OnceLock<Arc<HfTokenizer<M>>>,
    cost: TextCost,
}

/// Token ids with their byte ranges in the text.
type IdsWithOffsets = Vec<(u32, (usize, usize))>;

/// Letters that can break a control token apart. The first letter that does not occur in the text
/// is used.
const MARKS: std::ops::RangeInclusive<char> = '\u{a000}'..='\u{a48c}';

impl<M: Model + Clone + Send + Sync + 'static> Hf<M> {
    pub(super) fn new(tokenizer: HfTokenizer<M>, cost: TextCost) -> Self {
        Self {
            parsing: Arc::new(tokenizer),
            plain: OnceLock::new(),
            cost,
        }
    }

    /// Appends the token ids of `text` to `ids`.
    pub(super) fn encode(
        &self,
        text: &str,
        parse_special: bool,
        add_special: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let encode = move |hf: &HfTokenizer<M>, text: &str| {
            let encoding = hf
                .encode_fast(text, add_special)
                .map_err(|error| TextError::Encode(error.to_string()))?;
            Ok(encoding.get_ids().to_vec())
        };
        ids.extend(self.run(
            if parse_special {
                &self.parsing
            } else {
                self.plain()?
            },
            text,
            encode,
        )?);
        Ok(())
    }

    /// Appends the token ids of `text`, in which no byte within `message_ranges` is part of a
    /// control token.
    pub(super) fn encode_with_messages(
        &self,
        text: &str,
        message_ranges: &[Range<usize>],
        is_control: &dyn Fn(u32) -> bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let overlaps = |from: &(usize, usize)| {
            let first = message_ranges.partition_point(|range| range.end <= from.0);
            message_ranges
                .get(first)
                .is_some_and(|range| range.start < from.1)
        };
        let found = self.with_offsets(text)?;
        if !found
            .iter()
            .any(|(id, from)| is_control(*id) && overlaps(from))
        {
            ids.extend(found.into_iter().map(|(id, _)| id));
            return Ok(());
        }
        let mark = MARKS
            .clone()
            .find(|mark| !text.contains(*mark))
            .ok_or_else(|| {
                TextError::Encode(
                    "the text contains all letters that could break a control token apart"
                        .to_owned(),
                )
            })?;
        // Breaking one control token apart may reveal another one.
        let (mut marks, mut marked, mut found) = (Vec::new(), text.to_owned(), found);
        let original = |at: usize, marks: &[usize]| {
            let before = marks
                .iter()
                .enumerate()
                .take_while(|(idx, place)| **place + idx * mark.len_utf8() < at)
                .count();
            at - before * mark.len_utf8()
        };
        loop {
            let spans: Vec<(u32, (usize, usize))> = found
                .iter()
                .map(|(id, from)| (*id, (original(from.0, &marks), original(from.1, &marks))))
                .collect();
            let bad = spans
                .iter()
                .filter(|(id, from)| is_control(*id) && overlaps(from));
            let places = bad.filter_map(|(_, (start, end))| {
                let spaces = text[*start..*end].len() - text[*start..*end].trim_start().len();
                text[start + spaces..*end]
                    .chars()
                    .next()
                    .map(|c| start + spaces + c.len_utf8())
            });
            let n_before = marks.len();
            marks.extend(places);
            marks.sort_unstable();
            marks.dedup();
            if marks.len() == n_before {
                return self.around_controls(text, &spans, is_control, ids);
            }
            marked.clear();
            let mut start = 0;
            for place in &marks {
                marked.push_str(&text[start..*place]);
                marked.push(mark);
                start = *place;
            }
            marked.push_str(&text[start..]);
            found = self.with_offsets(&marked)?;
        }
    }

    /// Appends the control tokens in `spans`, and the text between them as plain text.
    fn around_controls(
        &self,
        text: &str,
        spans: &[(u32, (usize, usize))],
        is_control: &dyn Fn(u32) -> bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut start = 0;
        for (id, from) in spans.iter().filter(|(id, _)| is_control(*id)) {
            if from.0 > start {
                self.encode(&text[start..from.0], false, false, ids)?;
            }
            ids.push(*id);
            start = from.1.max(start);
        }
        if start < text.len() {
            self.encode(&text[start..], false, false, ids)?;
        }
        Ok(())
    }

    /// The token ids of two texts and the special tokens around them, cut to `most` tokens: the
    /// longer text is cut first.
    pub(super) fn encode_pair(
        &self,
        first: &str,
        second: &str,
        (most, cut): (usize, Cut),
    ) -> Result<Pair, TextError> {
        self.cost.check(first)?;
        let first = first.to_owned();
        self.run(&self.parsing, second, move |hf, second| {
            let wrong = |error: tokenizers::Error| TextError::Encode(error.to_string());
            let n_added = hf
                .get_post_processor()
                .map_or(0, |processor| processor.added_tokens(true));
            let Some(max_length) = most.checked_sub(n_added) else {
                let reason = format!("a pair of texts needs {n_added} special tokens, not {most}");
                return Err(TextError::Encode(reason));
            };
            let encode = |text: &str| hf.encode(text, false).map_err(wrong);
            let (first, second) = (encode(&first)?, encode(second)?);
            let is_cut = first.len() + second.len() > max_length;
            let params = TruncationParams {
                max_length,
                direction: match cut {
                    Cut::Start => TruncationDirection::Left,
                    Cut::End => TruncationDirection::Right,
                },
                ..TruncationParams::default()
            };
            let (first, second) =
                truncate_encodings(first, Some(second), &params).map_err(wrong)?;
            let both = hf.post_process(first, second, true).map_err(wrong)?;
            Ok(Pair {
                tokens: both.get_ids().to_vec(),
                types: both.get_type_ids().to_vec(),
                is_cut,
            })
        })
    }

    /// Token ids with their byte ranges in the text.
    fn with_offsets(&self, text: &str) -> Result<IdsWithOffsets, TextError> {
        self.run(&self.parsing, text, |hf, text| {
            let encoding = hf
                .encode(text, false)
                .map_err(|error| TextError::Encode(error.to_string()))?;
            Ok(encoding
                .get_ids()
                .iter()
                .copied()
                .zip(encoding.get_offsets().iter().copied())
                .collect())
        })
    }

    /// Runs `work` on a text that is not too long, with panics caught and, if needed, a time limit.
    fn run<T: Send + 'static>(
        &self,
        hf: &Arc<HfTokenizer<M>>,
        text: &str,
        work: impl FnOnce(&HfTokenizer<M>, &str) -> Result<T, TextError> + Send + 'static,
    ) -> Result<T, TextError> {
        self.cost.check(text)?;
        if self.cost.is_slow {
            let (hf, text) = (Arc::clone(hf), text.to_owned());
            return guard::with_timeout(move || work(&hf, &text));
        }
        guard::catch_panics(|| work(hf, text))
    }

    fn plain(&self) -> Result<&Arc<HfTokenizer<M>>, TextError> {
        if self.plain.get().is_none() {
            let copy = guard::catch_panics(|| {
                let mut copy = self.parsing.as_ref().clone();
                copy.set_encode_special_tokens(true);
                Ok(Arc::new(copy))
            })?;
            // Another thread may have been first.
            let _ = self.plain.set(copy);
        }
        self.plain.get().ok_or_else(|| {
            TextError::Encode("the copy without control tokens is missing".to_owned())
        })
    }

    /// Adds a normalizer that lowercases texts first.
    pub(super) fn lower_case(&mut self) {
        let mut steps = vec![NormalizerWrapper::from(Lowercase)];
        steps.extend(self.parsing.get_normalizer().cloned());
        let mut tokenizer = self.parsing.as_ref().clone();
        tokenizer.with_normalizer(Some(Sequence::new(steps)));
        self.parsing = Arc::new(tokenizer);
        self.plain.take();
    }
}
