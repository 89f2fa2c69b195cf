//! Strings that track which of their bytes came with a message.

use std::rc::Rc;

use super::meter::{Meter, Result};

/// A string that tracks which of its bytes came with a message and were not written by the
/// template.
pub(super) struct Text {
    text: String,
    /// Byte ranges that came with a message, in order and not overlapping.
    message_ranges: Vec<(usize, usize)>,
    meter: Rc<Meter>,
    held: usize,
}

impl Text {
    /// Approximate size in bytes of an empty text.
    const OVERHEAD: usize = 128;

    pub(super) fn new(meter: &Rc<Meter>) -> Self {
        Self {
            text: String::new(),
            message_ranges: Vec::new(),
            meter: Rc::clone(meter),
            held: 0,
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }

    /// Whether the byte at `at` came with a message.
    pub(super) fn is_from_message_at(&self, at: usize) -> bool {
        let idx = self.message_ranges.partition_point(|(_, end)| *end <= at);
        self.message_ranges
            .get(idx)
            .is_some_and(|(start, _)| *start <= at)
    }

    fn hold(&mut self, bytes: usize) -> Result<()> {
        self.meter.hold(bytes)?;
        self.held += bytes;
        Ok(())
    }

    /// Appends a string.
    pub(super) fn push(&mut self, text: &str, is_from_message: bool) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.meter.spend_bytes(text.len())?;
        self.hold(text.len() + if self.held == 0 { Self::OVERHEAD } else { 0 })?;
        let start = self.text.len();
        self.text.push_str(text);
        if is_from_message {
            self.mark(start, self.text.len())
        } else {
            Ok(())
        }
    }

    /// Records that the bytes `start..end` came with a message.
    fn mark(&mut self, start: usize, end: usize) -> Result<()> {
        match self.message_ranges.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => {
                self.hold(16)?;
                self.message_ranges.push((start, end));
            }
        }
        Ok(())
    }

    /// Appends the bytes `start..end` of another text.
    pub(super) fn push_part(&mut self, other: &Text, start: usize, end: usize) -> Result<()> {
        let at = self.text.len();
        self.push(&other.text[start..end], false)?;
        let first = other
            .message_ranges
            .partition_point(|(_, range_end)| *range_end <= start);
        for (range_start, range_end) in other.message_ranges[first..]
            .iter()
            .take_while(|(s, _)| *s < end)
        {
            self.mark(
                at + (*range_start).max(start) - start,
                at + (*range_end).min(end) - start,
            )?;
        }
        Ok(())
    }

    pub(super) fn push_text(&mut self, other: &Text) -> Result<()> {
        self.push_part(other, 0, other.text.len())
    }

    /// The string and its message ranges.
    pub(super) fn into_parts(mut self) -> (String, Vec<(usize, usize)>) {
        (
            std::mem::take(&mut self.text),
            std::mem::take(&mut self.message_ranges),
        )
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.meter.release(self.held);
    }
}
