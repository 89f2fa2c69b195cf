//! A tokenizer of the `tokenizers` crate around any model, and its copy that knows no control
//! tokens.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::TextError;
use super::guard::{self, Nature};
use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::{
    DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    TokenizerImpl,
};

pub(super) type Whole<M> =
    TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

#[derive(Debug)]
pub(super) struct Hf<M> {
    pub(super) parsing: Arc<Whole<M>>,
    /// A copy that reads control tokens as text; made when first needed.
    plain: OnceLock<Arc<Whole<M>>>,
    nature: Nature,
}

/// Ids, and where in the text each comes from.
type Located = Vec<(u32, (usize, usize))>;

/// A letter that breaks a control token apart. What stands for it in the text must not be there
/// before: the first of these.
const MARKS: std::ops::RangeInclusive<char> = '\u{a000}'..='\u{a48c}';

impl<M: Model + Clone + Send + Sync + 'static> Hf<M> {
    pub(super) fn new(whole: Whole<M>, nature: Nature) -> Self {
        Self {
            parsing: Arc::new(whole),
            plain: OnceLock::new(),
            nature,
        }
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(
        &self,
        text: &str,
        parse_special: bool,
        add_special: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let encode = move |hf: &Whole<M>, text: &str| {
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

    /// Appends the ids of `text`, in which bytes of `typed` are part of no control token.
    pub(super) fn encode_typed(
        &self,
        text: &str,
        typed: &[Range<usize>],
        is_control: &dyn Fn(u32) -> bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let overlaps = |from: &(usize, usize)| {
            let first = typed.partition_point(|range| range.end <= from.0);
            typed.get(first).is_some_and(|range| range.start < from.1)
        };
        let found = self.located(text)?;
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
                    "the text has every letter that could stand in a control token".to_owned(),
                )
            })?;
        // Breaking one apart may bring another to light.
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
            found = self.located(&marked)?;
        }
    }

    /// Appends the control tokens among `spans`, and what is between them as text.
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

    fn located(&self, text: &str) -> Result<Located, TextError> {
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

    /// Runs on a text that the crate can take.
    fn run<T: Send + 'static>(
        &self,
        hf: &Arc<Whole<M>>,
        text: &str,
        work: impl FnOnce(&Whole<M>, &str) -> Result<T, TextError> + Send + 'static,
    ) -> Result<T, TextError> {
        self.nature.check(text)?;
        if self.nature.is_slow {
            let (hf, text) = (Arc::clone(hf), text.to_owned());
            return guard::timed(move || work(&hf, &text));
        }
        guard::guarded(|| work(hf, text))
    }

    fn plain(&self) -> Result<&Arc<Whole<M>>, TextError> {
        if self.plain.get().is_none() {
            let copy = guard::guarded(|| {
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

    pub(super) fn lower_case(&mut self) {
        let mut steps = vec![NormalizerWrapper::from(Lowercase)];
        steps.extend(self.parsing.get_normalizer().cloned());
        let mut whole = self.parsing.as_ref().clone();
        whole.with_normalizer(Some(Sequence::new(steps)));
        self.parsing = Arc::new(whole);
        self.plain.take();
    }
}
