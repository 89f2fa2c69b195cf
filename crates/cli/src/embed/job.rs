//! Embeds rows in windows: reads and tokenizes a window, and embeds it in batches of similar
//! length.

use serde_json::Value;
use thane_engine::embed::Watch;
use thane_engine::embed::output::Format;
use thane_engine::embed::similarity::hamming;
use thane_mil::budget::Reservation;

use super::reader::Reader;
use super::records::{Counts, Stored, TextHash, WINDOW_ROWS, json_bytes};
use crate::app::App;
use crate::exit::{Failure, Outcome, interrupted, usage};
use thane_texts::row::{Place, Row};
use thane_texts::rows::Texts;

/// Rows of the first window, so that the first vectors come soon; each further one has twice as
/// many, up to [`WINDOW_ROWS`]: enough to find rows of similar length for a batch.
const FIRST_ROWS: u64 = 256;
/// Most tokens of a window, except for its last row.
const WINDOW_TOKENS: u64 = 1 << 17;

/// Most bytes of the ids of a window, except for its last row.
const WINDOW_ID_BYTES: usize = 1 << 24;
/// An id that is longer may not fit as JSON.
const LONG_ID_BYTES: usize = 1 << 16;

/// A run over texts.
pub struct Job<'a, E> {
    pub app: &'a App,
    pub engine: E,
    pub texts: &'a Texts,
    pub format: Format,
    /// Dimensions of a vector.
    pub dim: usize,
    /// Whether a row may have several vectors.
    pub is_ragged: bool,
    /// The first row that an earlier run has embedded. This run embeds its text again, to compare.
    pub kept: Option<Stored>,
}

/// What turns rows into vectors.
pub trait Engine {
    /// What is embedded of a row.
    type Content;

    /// A row as it is embedded, and whether it was truncated. What is refused here is refused
    /// before anything of its window is computed.
    fn encode(&self, row: &Row) -> Result<(Self::Content, bool), Failure>;

    /// Number of tokens, or about as many.
    fn n_tokens(&self, content: &Self::Content) -> usize;

    /// Most elements that the vectors of these rows have.
    fn n_elements(&self, window: &[Encoded<Self::Content>]) -> usize;

    /// Divides a window into batches; each batch lists row indices within the window.
    fn batches(&self, window: &[Encoded<Self::Content>]) -> Vec<Vec<usize>>;

    /// Embeds the rows of a batch; `None` after an interrupt.
    fn vectors(
        &mut self,
        batch: &[&Encoded<Self::Content>],
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vectors>, Failure>;
}

/// The vectors of rows.
pub struct Vectors {
    /// The vectors of each row, concatenated, with the dimensions that are kept.
    pub rows: Vec<Vec<f32>>,
    pub n_tokens: u64,
}

/// A row that is ready to be embedded.
pub struct Encoded<C> {
    pub index: u64,
    pub text: TextHash,
    pub place: Place,
    pub id: Option<Value>,
    /// See [`Row`].
    pub is_whole: bool,
    pub content: C,
    pub truncated: bool,
}

/// The rows of a batch that was embedded. Batches are in the order in which they were finished.
pub struct Done {
    pub counts: Counts,
    pub rows: Vec<Stored>,
}

/// Rows that are read ahead.
struct Window<C> {
    texts: Vec<Encoded<C>>,
    /// Rows without a text, and the last of all if it may be half written.
    nulls: Vec<Stored>,
    half_null: Option<Stored>,
    /// Memory of the ids.
    held: Reservation,
}

impl<C> Window<C> {
    fn n_rows(&self) -> usize {
        self.texts.len() + self.nulls.len() + usize::from(self.half_null.is_some())
    }
}

/// Rows that need no vector, as if they were embedded.
fn without_vectors(rows: Vec<Stored>) -> Done {
    let n = rows.len() as u64;
    let counts = Counts {
        rows: n,
        nulls: n,
        ..Counts::default()
    };
    Done { counts, rows }
}

/// Receives rows that were embedded.
pub type Sink<'a> = dyn FnMut(Done) -> Outcome + 'a;

impl<E: Engine> Job<'_, E> {
    /// Embeds the rows that are left. If the source has fewer rows than `counted`, the file was
    /// changed, which is an error.
    pub fn run(
        &mut self,
        mut reader: Reader<'_>,
        counted: Option<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<Counts, Failure> {
        let mut counts = Counts::default();
        let mut most_rows = FIRST_ROWS;
        loop {
            let mut window = self.window(&mut reader, most_rows)?;
            most_rows = (most_rows * 2).min(WINDOW_ROWS);
            if window.n_rows() == 0 {
                return match counted.filter(|counted| *counted > reader.n_read()) {
                    Some(counted) => Err(self.shrunk(counted, reader.n_read())),
                    None => Ok(counts),
                };
            }
            if let Some(row) = reader.take_first_done()
                && !self.is_same_model(&row)?
            {
                return Err(reader.other_model(&row));
            }
            // A last line without a line break may be half a line. It is embedded last and alone,
            // so that it can be removed from the journal without losing anything else.
            let n_whole = window.texts.iter().take_while(|row| row.is_whole).count();
            let (together, alone) = window.texts.split_at_mut(n_whole);
            let mut sink = |done: Done| {
                counts.add(&done.counts);
                sink(done)
            };
            if !window.nulls.is_empty() {
                self.app.output.advance(window.nulls.len() as u64);
                sink(without_vectors(window.nulls))?;
            }
            self.embed(together, &mut sink)?;
            self.embed(alone, &mut sink)?;
            if let Some(last) = window.half_null {
                sink(without_vectors(vec![last]))?;
            }
            // The rows are with the sink, which reserves what it keeps.
            drop(window.held);
        }
    }

    /// Whether the model gives the vector for this row that an earlier run has kept. Files can be
    /// replaced, and a server can have another model of the same name.
    fn is_same_model(&mut self, row: &Row) -> Result<bool, Failure> {
        let Some(kept) = self.kept.take() else {
            return Ok(true);
        };
        let (content, truncated) = self.engine.encode(row)?;
        let encoded = Encoded {
            index: kept.index,
            text: kept.text,
            place: row.place,
            id: None,
            is_whole: row.is_whole,
            content,
            truncated,
        };
        let vectors = self.vectors(&[&encoded], &mut |_| ())?;
        let now = self.done(&[&encoded], vectors)?;
        let is_same = |row: &Stored| is_close(self.format, &kept.vectors, &row.vectors);
        Ok(now.rows.first().is_some_and(is_same))
    }

    /// The vectors of the rows of a batch.
    fn vectors(
        &mut self,
        batch: &[&Encoded<E::Content>],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Vectors, Failure> {
        let app = self.app;
        let is_stopped = || app.interrupt.is_set();
        let mut watch = Watch {
            interrupted: &is_stopped,
            progress,
        };
        let vectors = match is_stopped() {
            true => None,
            false => self.engine.vectors(batch, &mut watch)?,
        };
        vectors.ok_or_else(interrupted)
    }

    fn shrunk(&self, counted: u64, found: u64) -> Failure {
        let name = self.texts.name();
        let error = format!(
            "{name} had {counted} texts when they were counted, and has {found} now: it was changed"
        );
        usage!(error).remedy("a copy of the file that nobody writes to")
    }

    /// The next rows that are not done. The first window has all rows before one that is.
    fn window(
        &self,
        reader: &mut Reader<'_>,
        most_rows: u64,
    ) -> Result<Window<E::Content>, Failure> {
        // As many tokens of a whole window as it has of its rows.
        let most_tokens = WINDOW_TOKENS / WINDOW_ROWS * most_rows;
        let mut window = Window {
            texts: Vec::new(),
            nulls: Vec::new(),
            half_null: None,
            held: self.app.budget.reserve(0, String::new).map_err(usage)?,
        };
        let (mut n_tokens, end) = (0, reader.n_read() + WINDOW_ROWS);
        let is_full = |window: &Window<_>, n_tokens: u64| {
            window.n_rows() as u64 >= most_rows
                || n_tokens >= most_tokens
                || window.held.bytes() >= WINDOW_ID_BYTES
        };
        while reader.has_kept() || !is_full(&window, n_tokens) {
            let Some((index, text, row)) = reader.next(end)? else {
                break;
            };
            let what = || format!("the id of {}", self.texts.place(row.place));
            window.held.grow(row.id_bytes(), what).map_err(usage)?;
            if let Some(id) = row.id.as_ref().filter(|_| row.id_bytes() > LONG_ID_BYTES) {
                // Refused here and not when it is written: the journal reads its JSON.
                let n_bytes = json_bytes(id)?.saturating_mul(2);
                let n_bytes = usize::try_from(n_bytes).unwrap_or(usize::MAX);
                self.app.budget.check(n_bytes, what).map_err(usage)?;
            }
            if row.is_null() {
                let (id, vectors) = (row.id, Vec::new());
                let null = Stored {
                    index,
                    text,
                    id,
                    vectors,
                };
                match row.is_whole {
                    true => window.nulls.push(null),
                    false => window.half_null = Some(null),
                }
                continue;
            }
            let (content, truncated) = self.engine.encode(&row)?;
            n_tokens += self.engine.n_tokens(&content) as u64;
            window.texts.push(Encoded {
                index,
                text,
                place: row.place,
                id: row.id,
                is_whole: row.is_whole,
                content,
                truncated,
            });
        }
        Ok(window)
    }

    /// Embeds rows batch by batch.
    fn embed(&mut self, rows: &mut [Encoded<E::Content>], sink: &mut Sink<'_>) -> Outcome {
        let app = self.app;
        let mut progress = |n: usize| app.output.advance(n as u64);
        let n_rows = rows.len();
        let what = || format!("the vectors of {n_rows} texts");
        // Most copies, where rows wait for the one before them: as computed, stored and written.
        let n_bytes = self.engine.n_elements(rows).saturating_mul(12);
        let _held = app.budget.reserve(n_bytes, what).map_err(usage)?;
        for indices in self.engine.batches(rows) {
            let batch: Vec<&Encoded<E::Content>> = indices.iter().map(|i| &rows[*i]).collect();
            let vectors = self.vectors(&batch, &mut progress)?;
            let mut done = self.done(&batch, vectors)?;
            // Moved and not copied, because ids may be long.
            for (row, i) in done.rows.iter_mut().zip(&indices) {
                row.id = rows[*i].id.take();
            }
            sink(done)?;
        }
        Ok(())
    }

    /// The rows of a batch as they are stored, without their ids.
    fn done(&self, batch: &[&Encoded<E::Content>], vectors: Vectors) -> Result<Done, Failure> {
        let mut counts = Counts {
            rows: batch.len() as u64,
            tokens: vectors.n_tokens,
            ..Counts::default()
        };
        let mut rows = Vec::with_capacity(batch.len());
        for (encoded, values) in batch.iter().zip(vectors.rows) {
            counts.truncated += u64::from(encoded.truncated);
            let vectors = self
                .stored(&values)
                .map_err(|e| at(self.texts, encoded.place, e))?;
            counts.vectors += (vectors.len() / self.format.stored_bytes(self.dim)) as u64;
            rows.push(Stored {
                index: encoded.index,
                text: encoded.text,
                id: None,
                vectors,
            });
        }
        Ok(Done { counts, rows })
    }

    /// Converts vectors to the stored format.
    fn stored(&self, values: &[f32]) -> anyhow::Result<Vec<u8>> {
        // 65,504 is the largest fp16 number; numbers from 65,520 on round to infinity.
        let overflows =
            self.format == Format::Float16 && values.iter().any(|v| v.abs() >= 65_520.0);
        anyhow::ensure!(
            !overflows,
            "its vector holds numbers that fp16 cannot hold; --format float can"
        );
        let mut out = Vec::with_capacity(values.len() * 4);
        values
            .chunks_exact(self.dim)
            .for_each(|vector| self.format.write(vector, &mut out));
        Ok(out)
    }
}

/// The failure of a row.
pub fn at(texts: &Texts, place: Place, error: impl Into<anyhow::Error>) -> Failure {
    let place = texts.place(place);
    usage!("{place}: {:#}", error.into())
}

/// Whether two rows of stored vectors are of one text and one model. Batches, threads, instruction
/// sets and machines change how a model rounds, by thousandths of a vector; a step of int8 is up to
/// a hundredth of one. Other models differ by tens of percent, and in a large part of the bits.
fn is_close(format: Format, a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    if format.packing().is_some() {
        // A bit is a byte of 1 or -1 in one packing, whose eight bits differ in seven.
        return u64::from(hamming(a, b)) * 16 <= a.len() as u64 * 8;
    }
    let (a, b) = (format.read(a), format.read(b));
    let square = |value: f64| value * value;
    let apart: f64 = a
        .iter()
        .zip(&b)
        .map(|(a, b)| square(f64::from(*a) - f64::from(*b)))
        .sum();
    let length: f64 = a.iter().map(|a| square(f64::from(*a))).sum();
    apart <= square(0.05) * length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundings_are_close_and_other_vectors_are_not() {
        let vector: Vec<f32> = (0..64u8).map(|i| f32::from(i % 7) / 5.0 - 0.55).collect();
        let rounded: Vec<f32> = vector.iter().map(|v| v * 1.01 + 0.002).collect();
        let other: Vec<f32> = vector.iter().rev().map(|v| v * 0.9).collect();
        let longer: Vec<f32> = vector.iter().map(|v| v * 1.3).collect();
        for format in Format::ALL {
            let stored = |vector: &[f32]| {
                let mut bytes = Vec::new();
                format.write(vector, &mut bytes);
                bytes
            };
            let kept = stored(&vector);
            assert!(is_close(format, &kept, &stored(&rounded)), "{format:?}");
            assert!(!is_close(format, &kept, &stored(&other)), "{format:?}");
            assert!(
                !is_close(format, &kept, &stored(&vector[..32])),
                "{format:?}"
            );
            // Bits are only signs.
            let is_same = format.packing().is_some();
            assert_eq!(
                is_close(format, &kept, &stored(&longer)),
                is_same,
                "{format:?}"
            );
        }
    }
}
