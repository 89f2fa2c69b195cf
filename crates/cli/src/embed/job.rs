//! Embeds rows in windows: reads and tokenizes a window, embeds it in batches of similar length,
//! and returns the rows in order.

use serde_json::Value;
use sha2::{Digest, Sha256};
use thane_engine::embed::Watch;
use thane_engine::embed::output::Format;
use thane_mil::budget::OverBudget;

use super::journal::{Counts, Stored, hex};
use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use thane_texts::row::Row;
use thane_texts::rows::{Rows, Texts};

/// Rows of the first window; each further one has twice as many. An interrupted run so loses about
/// half of its time at most.
const FIRST_ROWS: usize = 256;
/// Most rows of a window: enough to find rows of similar length for a batch.
const WINDOW_ROWS: usize = 4096;
/// Most tokens of a window, except for its last row. A run that is killed loses one window, some
/// minutes of work of a large model.
const WINDOW_TOKENS: usize = 1 << 17;

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
}

/// What turns rows into vectors.
pub trait Engine {
    /// What is embedded of a row.
    type Content;

    /// A row as it is embedded. What is refused here is refused before anything of its window is
    /// computed.
    fn encode(&self, row: Row) -> Result<Encoded<Self::Content>, Failure>;

    /// Number of tokens, or about as many.
    fn n_tokens(&self, content: &Self::Content) -> usize;

    /// Most elements that the vectors of these rows have.
    fn n_elements(&self, window: &[Encoded<Self::Content>]) -> usize;

    /// Embeds rows; `None` after an interrupt.
    fn vectors(
        &mut self,
        window: &[Encoded<Self::Content>],
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
    pub number: u64,
    pub id: Option<Value>,
    pub content: C,
    pub truncated: bool,
}

/// Rows that were embedded, in order.
pub struct Done {
    pub counts: Counts,
    pub rows: Vec<Stored>,
    /// Hash of all texts so far.
    pub texts: Sha256,
}

/// Receives rows that were embedded.
pub type Sink<'a> = dyn FnMut(Done) -> Outcome + 'a;

/// The remaining rows, and the hash of the rows so far.
struct Reader<'a> {
    rows: Rows<'a>,
    texts: Sha256,
}

impl Reader<'_> {
    fn next(&mut self) -> Result<Option<Row>, Failure> {
        let row = self
            .rows
            .next()
            .transpose()
            .map_err(|e| Failure::new(Code::Usage, in_a_line(e)))?;
        if let Some(row) = &row {
            self.texts.update((row.texts.len() as u64).to_le_bytes());
            for text in &row.texts {
                self.texts.update((text.len() as u64).to_le_bytes());
                self.texts.update(text);
            }
            if let Some(id) = &row.id {
                self.texts.update(id.to_string());
            }
        }
        Ok(row)
    }
}

/// The failure of memory that is not there.
pub fn usage(error: OverBudget) -> Failure {
    Failure::new(Code::Usage, error)
}

/// Joins an error and its causes into one line. An error of memory is kept, since it has its own
/// exit code.
pub fn in_a_line(error: anyhow::Error) -> anyhow::Error {
    match error.chain().any(|cause| cause.is::<OverBudget>()) {
        true => error,
        false => anyhow::anyhow!("{error:#}"),
    }
}

impl<E: Engine> Job<'_, E> {
    /// Embeds all rows after the first `skip`, whose texts must have the hash `skipped`; the file
    /// `begun` has what an earlier run made of them. If fewer rows than `counted` follow, the file
    /// was changed, which is an error.
    pub fn run(
        &mut self,
        skip: u64,
        skipped: &str,
        begun: &str,
        counted: Option<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<Counts, Failure> {
        let texts = self.texts;
        let mut reader = Reader {
            rows: texts.rows().map_err(|e| Failure::new(Code::Usage, e))?,
            texts: Sha256::new(),
        };
        let mut n_skipped = 0;
        while n_skipped < skip && reader.next()?.is_some() {
            n_skipped += 1;
        }
        if n_skipped < skip || skip > 0 && hex(reader.texts.clone()) != skipped {
            let error = anyhow::anyhow!(
                "{}: its first {skip} texts are not those that were embedded",
                texts.name()
            );
            return Err(Failure::new(Code::Usage, error)
                .remedy("the texts that the run was started with")
                .remedy(format!("remove {begun}, to start over")));
        }
        let mut counts = Counts::default();
        let mut most_rows = FIRST_ROWS;
        loop {
            let window = self.window(&mut reader, most_rows)?;
            most_rows = (most_rows * 2).min(WINDOW_ROWS);
            if window.is_empty() {
                return match counted.filter(|counted| *counted > skip + counts.rows) {
                    Some(counted) => Err(self.shrunk(counted, skip + counts.rows)),
                    None => Ok(counts),
                };
            }
            let done = self.embed(&window, reader.texts.clone())?;
            counts.add(&done.counts);
            sink(done)?;
        }
    }

    fn shrunk(&self, counted: u64, found: u64) -> Failure {
        let name = self.texts.name();
        let error = format!(
            "{name} had {counted} texts when they were counted, and has {found} now: it was changed"
        );
        Failure::new(Code::Usage, anyhow::anyhow!(error))
            .remedy("a copy of the file that nobody writes to")
    }

    fn window(
        &self,
        reader: &mut Reader<'_>,
        most_rows: usize,
    ) -> Result<Vec<Encoded<E::Content>>, Failure> {
        // As many tokens of a whole window as it has of its rows.
        let most_tokens = WINDOW_TOKENS / WINDOW_ROWS * most_rows;
        let mut window: Vec<Encoded<E::Content>> = Vec::new();
        let mut n_tokens = 0;
        while window.len() < most_rows && n_tokens < most_tokens {
            let Some(row) = reader.next()? else { break };
            let encoded = self.engine.encode(row)?;
            n_tokens += self.engine.n_tokens(&encoded.content);
            window.push(encoded);
        }
        Ok(window)
    }

    /// Embeds a window.
    fn embed(&mut self, window: &[Encoded<E::Content>], texts: Sha256) -> Result<Done, Failure> {
        let app = self.app;
        let interrupted = || app.interrupt.is_set();
        let mut progress = |n: usize| app.output.advance(n as u64);
        let mut watch = Watch {
            interrupted: &interrupted,
            progress: &mut progress,
        };
        let what = || format!("the vectors of {} texts", window.len());
        // Three copies: as computed, as stored and as written.
        let n_bytes = self.engine.n_elements(window).saturating_mul(12);
        let _held = app.budget.reserve(n_bytes, what).map_err(usage)?;
        let vectors = self.engine.vectors(window, &mut watch)?;
        let vectors = vectors
            .ok_or_else(|| Failure::new(Code::Interrupted, anyhow::anyhow!("interrupted")))?;
        let mut counts = Counts {
            rows: window.len() as u64,
            tokens: vectors.n_tokens,
            ..Counts::default()
        };
        let mut rows = Vec::with_capacity(window.len());
        for (encoded, values) in window.iter().zip(vectors.rows) {
            counts.truncated += u64::from(encoded.truncated);
            let vectors = self
                .stored(&values)
                .map_err(|e| at(self.texts, encoded.number, e))?;
            counts.vectors += (vectors.len() / self.format.stored_bytes(self.dim)) as u64;
            rows.push(Stored {
                id: encoded.id.clone(),
                vectors,
            });
        }
        Ok(Done {
            counts,
            rows,
            texts,
        })
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
pub fn at(texts: &Texts, number: u64, error: impl Into<anyhow::Error>) -> Failure {
    let place = texts.place(number);
    Failure::new(Code::Usage, anyhow::anyhow!("{place}: {:#}", error.into()))
}
