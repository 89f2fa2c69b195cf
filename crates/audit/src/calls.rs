//! The predicted time of the calls of a language model, and of an answer, which is made of them.

use serde::Serialize;
use thane_calls::{Call, Given};

use crate::latency::Latency;
use crate::number::rounded;
use crate::target::{Chip, Figure};

/// Tokens of the prompt that the time to the first token is of, or the context if that is less.
pub const PROMPT: usize = 512;

/// The time of logits on the host, over what [`host_rate`] says. Espresso's product, the only one
/// that is published, takes about 2.6 times as long; as much less is taken to be possible.
const HOST_LOGITS: Figure =
    Figure::inferred(1.0, 1.0 / 2.6, 2.6).by("Espresso of christopherkarani; M6 study");

/// The figures of forms that all chips share, by name.
pub const FIGURES: [(&str, Figure); 1] = [("host_logits", HOST_LOGITS)];

/// Bytes of a matrix that the CPU reads in a second for its product with one vector.
///
/// No measurement of such a product by chip is known. The segmenter's own table, measured on M4 and
/// M6, has 56.7 GiB/s for the CPU and 68 for the engine (M6 study, macOS 27); where less was
/// measured for the engine of a chip, the CPU is taken to be as much slower. Espresso reports 22 ms
/// for the head of Qwen2.5-1.5B, 467 MB, which is 21 GB/s, in tiles widened to fp32 (pull request
/// 41).
fn host_rate(chip: &Chip) -> f64 {
    const GIB: f64 = 1_073_741_824.0;
    let table = &chip.family.segmenter;
    let as_engine = chip.weight_gbps.value * 1e9 * table.cpu_gibps.value / table.ane_gibps.value;
    as_engine.min(table.cpu_gibps.value * GIB)
}

/// A predicted time and the interval that holds about 80 % of calls, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Span {
    /// Expected.
    pub ms: f64,
    /// About 10 % of calls take less.
    pub low_ms: f64,
    /// About 10 % of calls take more.
    pub high_ms: f64,
}

impl Span {
    /// The time of a call of a function.
    pub fn of(latency: &Latency) -> Self {
        Self {
            ms: latency.ms,
            low_ms: latency.interval_ms.0,
            high_ms: latency.interval_ms.1,
        }
    }

    /// The time in which the host computes the logits of a token, from a matrix of so many bytes.
    pub fn of_logits(matrix_bytes: f64, chip: &Chip) -> Self {
        let ms = matrix_bytes / host_rate(chip) * 1e3;
        Self {
            ms,
            low_ms: ms * HOST_LOGITS.low,
            high_ms: ms * HOST_LOGITS.high,
        }
    }

    /// One after the other.
    pub fn plus(self, other: Self) -> Self {
        Self {
            ms: self.ms + other.ms,
            low_ms: self.low_ms + other.low_ms,
            high_ms: self.high_ms + other.high_ms,
        }
    }

    fn times(self, n: usize) -> Self {
        let n = n as f64;
        Self {
            ms: self.ms * n,
            low_ms: self.low_ms * n,
            high_ms: self.high_ms * n,
        }
    }

    /// `8.2 ms (6.9 to 9.5)`, with as many digits as the interval allows.
    pub fn text(self) -> String {
        let [ms, low, high] = rounded(self.ms, self.low_ms, self.high_ms);
        format!("{ms} ms ({low} to {high})")
    }
}

/// The predicted price of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct PricedCall {
    /// The call.
    pub call: Call,
    /// The time of all its functions, and of logits on the host if it gives those of one token.
    pub time: Span,
    /// Milliseconds of reading all weights and the cache once.
    pub floor_ms: f64,
    /// Bytes of weights of its functions, each with a copy of its own, as Core ML loads them.
    pub loaded_bytes: f64,
    /// Ops.
    pub ops: usize,
    /// Ops on the Neural Engine.
    pub ane_ops: usize,
}

impl PricedCall {
    /// Tokens of all sequences in a second.
    pub fn tokens_per_second(&self) -> f64 {
        self.call.n_tokens() as f64 / self.time.ms * 1e3
    }
}

/// The predicted prices of all calls of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PricedCalls {
    /// Each call.
    pub calls: Vec<PricedCall>,
    /// The time of the logits of a token on the host; of no length where a program gives them.
    pub host: Span,
}

impl PricedCalls {
    /// The call that takes one token, in the greatest context.
    pub fn decode(&self) -> Option<&PricedCall> {
        self.of_one_token().max_by_key(|priced| priced.call.context)
    }

    /// The call of a token each of several sequences, in the greatest context.
    pub fn lanes(&self) -> Option<&PricedCall> {
        let lanes = self.calls.iter().filter(|priced| priced.call.lanes > 1);
        lanes.max_by_key(|priced| priced.call.context)
    }

    /// The calls that give the logits of each of several tokens, in the greatest context.
    pub fn verify(&self) -> impl Iterator<Item = &PricedCall> {
        let context = self.decode().map(|decode| decode.call.context);
        self.of_one_sequence().filter(move |priced| {
            priced.call.logits == Given::Each && Some(priced.call.context) == context
        })
    }

    /// The calls that take one token of one sequence: those of fewest tokens.
    fn of_one_token(&self) -> impl Iterator<Item = &PricedCall> {
        let fewest = self
            .of_one_sequence()
            .map(|priced| priced.call.tokens)
            .min();
        self.of_one_sequence()
            .filter(move |priced| Some(priced.call.tokens) == fewest)
    }

    fn of_one_sequence(&self) -> impl Iterator<Item = &PricedCall> {
        self.calls.iter().filter(|priced| priced.call.lanes == 1)
    }

    /// Milliseconds of a token of a prompt, in the greatest context.
    pub fn prefill_ms(&self) -> Option<f64> {
        let context = self.decode()?.call.context;
        let calls = self.of_one_sequence();
        let calls = calls.filter(|priced| priced.call.context == context);
        let each = calls.map(|priced| priced.time.ms / priced.call.tokens as f64);
        each.min_by(f64::total_cmp)
    }

    /// Milliseconds of a token of an answer, if the cache is filled from empty to full: each token
    /// takes the shortest context that holds it.
    pub fn mean_decode_ms(&self) -> f64 {
        let mut calls: Vec<&PricedCall> = self.of_one_token().collect();
        calls.sort_by_key(|priced| priced.call.context);
        let (mut from, mut sum) = (0, 0.0);
        for PricedCall { call, time, .. } in calls {
            sum += (call.context - from) as f64 * time.ms;
            from = call.context;
        }
        sum / from.max(1) as f64
    }

    /// The time of a prompt of so many tokens: calls of most tokens in the shortest context that
    /// holds all, and the logits of the last token.
    fn prompt(&self, n_tokens: usize) -> Option<Span> {
        let holds = |priced: &&PricedCall| priced.call.context >= n_tokens;
        let calls = || self.of_one_sequence().filter(holds);
        let context = calls().map(|priced| priced.call.context).min()?;
        let calls = calls().filter(|priced| priced.call.context == context);
        let block =
            calls.max_by_key(|priced| (priced.call.tokens, priced.call.logits == Given::Last))?;
        let n_calls = n_tokens.div_ceil(block.call.tokens.max(1));
        let time = block.time.times(n_calls);
        // A call of one token has that of the host already.
        Some(match block.call.tokens {
            1 => time,
            _ => time.plus(self.host),
        })
    }

    /// The time of an answer; `None` where no call takes one sequence.
    pub fn answer(&self) -> Option<AnswerRow> {
        let decode = self.decode()?;
        let context = decode.call.context;
        let prompt_tokens = PROMPT.min(context);
        Some(AnswerRow {
            context,
            token: decode.time,
            tokens_per_second: 1e3 / decode.time.ms,
            prompt_tokens,
            first_token: self.prompt(prompt_tokens)?,
        })
    }
}

/// The predicted speed of a language model: milliseconds for each token of an answer, and for the
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AnswerRow {
    /// Tokens of prompt and answer together, at most.
    pub context: usize,
    /// The time of a token while the cache is full.
    pub token: Span,
    /// Tokens in a second at that time.
    pub tokens_per_second: f64,
    /// Tokens of the prompt that `first_token` is of.
    pub prompt_tokens: usize,
    /// The time of the prompt, which gives the first token.
    pub first_token: Span,
}

impl AnswerRow {
    /// `8.2 ms a token (6.9 to 9.5), 122 tokens/s at 1024 tokens; first token of a prompt of 512
    /// after 310 ms (280 to 340)`.
    pub fn text(&self) -> String {
        let Span {
            ms,
            low_ms,
            high_ms,
        } = self.token;
        let [ms, low, high] = rounded(ms, low_ms, high_ms);
        let rates = [self.tokens_per_second, 1e3 / high_ms, 1e3 / low_ms];
        let [rate, ..] = rounded(rates[0], rates[1], rates[2]);
        format!(
            "{ms} ms a token ({low} to {high}), {rate} tokens/s with {} tokens in the cache; the \
             first token of a prompt of {} after {}",
            self.context,
            self.prompt_tokens,
            self.first_token.text()
        )
    }
}
