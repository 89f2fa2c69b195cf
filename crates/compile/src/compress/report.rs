//! What was compressed, at which error, and what was not and why.

/// A tensor that was compressed.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the constant.
    pub name: String,
    /// The part of the checkpoint that it belongs to; empty if that is not known.
    pub place: String,
    /// Lengths of its axes.
    pub shape: Vec<usize>,
    /// Encoding, such as `pal4`.
    pub encoding: String,
    /// `none`, `inside` or `behind`; `none` for encodings that have scales of their own.
    pub scale: &'static str,
    /// Bits of a weight, tables and scales counted.
    pub bits: f64,
    /// Bytes before.
    pub bytes_before: usize,
    /// Bytes after.
    pub bytes: usize,
    /// `sqrt(sum (w - q)^2 / sum w^2)`.
    pub error: f64,
    /// The same of a sample without scales of channels, where both ways were tried.
    pub error_without_scale: Option<f64>,
    /// `sum (w - q)^2` and `sum w^2`.
    pub squares: [f64; 2],
}

impl Row {
    /// Number of weights.
    pub fn n_weights(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A constant that stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Name of the constant.
    pub name: String,
    /// Number of elements.
    pub n_weights: usize,
    /// Its bytes.
    pub bytes: usize,
    /// Why.
    pub reason: String,
}

/// What was done to a program.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was compressed; a tensor that several functions share is one row.
    pub rows: Vec<Row>,
    /// What was not.
    pub left: Vec<Left>,
    /// Products whose activations are quantized, of all functions.
    pub n_quantized: usize,
    /// Products whose activations stay floating point, since nothing is known of them.
    pub n_unknown: usize,
}

/// Sums of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Weights that were compressed.
    pub n_weights: usize,
    /// Their bytes before.
    pub bytes_before: usize,
    /// Their bytes after, tables and scales counted.
    pub bytes: usize,
    /// Their relative error.
    pub error: f64,
    /// Bytes of constants that stay as they are.
    pub bytes_left: usize,
}

impl Totals {
    /// Bits of a weight that was compressed.
    pub fn bits(&self) -> f64 {
        8.0 * self.bytes as f64 / self.n_weights.max(1) as f64
    }
}

impl Report {
    /// The sums.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut squares = [0.0, 0.0];
        for row in &self.rows {
            totals.n_weights += row.n_weights();
            totals.bytes_before += row.bytes_before;
            totals.bytes += row.bytes;
            squares[0] += row.squares[0];
            squares[1] += row.squares[1];
        }
        if squares[1] > 0.0 {
            totals.error = (squares[0] / squares[1]).sqrt();
        }
        totals.bytes_left = self.left.iter().map(|left| left.bytes).sum();
        totals
    }
}
