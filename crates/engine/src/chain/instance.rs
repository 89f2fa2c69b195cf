//! One sequence of a chain: its caches, and how its tokens become calls.

use std::ops::Range;
use std::sync::Arc;

use thane_calls::Given;
use thane_mil::backend::{Instance, RunError, View};
use thane_mil::types::DType;

use super::fill::{CallTokens, fill};
use super::given::GivenLogits;
use super::store::{HostCache, Pending};
use super::{Cache, Chain, Feed, Step};

/// A sequence of a chain.
pub(super) struct ChainInstance {
    program: Box<dyn Instance>,
    chain: Arc<Chain>,
    slots: Vec<Vec<u8>>,
    caches: Vec<HostCache>,
    /// What the last call gave for the caches.
    pending: Pending,
    /// The position behind the last that was ever stored since the caches were empty.
    n_written: usize,
    /// The lane of a batch whose inputs hold the caches, and the first position that was stored
    /// since.
    lane: Option<(usize, usize)>,
    /// What the last call gave of the logits.
    given: GivenLogits,
    /// Which of the states of different lengths hold the tokens; `None` if all are empty.
    length: Option<usize>,
    /// Whether a call failed and left what cannot go back: tokens are computed again.
    is_broken: bool,
    /// The input `input_ids`.
    input_ids: Vec<u8>,
    /// The input `position`.
    position: [u8; 4],
    /// The tokens in the caches.
    tokens: Vec<u32>,
    /// The output `logits`, row by row.
    logits: Vec<f32>,
    shape: [usize; 3],
}

impl Instance for ChainInstance {
    fn input(&mut self, name: &str, shape: &[usize]) -> Result<&mut [u8], RunError> {
        match (name, shape) {
            ("input_ids", [1, n]) => {
                self.input_ids.resize(4 * n, 0);
                Ok(&mut self.input_ids)
            }
            ("position", [1]) => Ok(&mut self.position),
            ("input_ids" | "position", _) => Err(RunError::Shape {
                name: name.to_owned(),
                expected: "int32 [1, tokens] or, for `position`, int32 [1]".to_owned(),
                given: shape.to_vec(),
            }),
            _ => Err(RunError::NoInput(name.to_owned())),
        }
    }

    fn run(&mut self, function: &str) -> Result<(), RunError> {
        let ids = self.input_ids.as_chunks::<4>().0;
        let ids: Vec<u32> = ids.iter().map(|id| u32::from_ne_bytes(*id)).collect();
        if !["prefill", "decode", "verify"].contains(&function) {
            return Err(RunError::NoFunction(function.to_owned()));
        }
        self.go_back_to_given()?;
        self.logits.clear();
        let need = if function == "verify" {
            Given::Each
        } else {
            Given::Last
        };
        self.process(&ids, Some(need))?;
        self.shape = [
            1,
            self.logits.len() / self.chain.vocab_size.max(1),
            self.chain.vocab_size,
        ];
        Ok(())
    }

    fn output(&self, name: &str) -> Result<View<'_>, RunError> {
        match name {
            "logits" => Ok(View {
                dtype: DType::Fp32,
                shape: &self.shape,
                bytes: bytemuck::cast_slice(&self.logits),
            }),
            _ => Err(RunError::NoOutput(name.to_owned())),
        }
    }

    fn state(&self, name: &str) -> Result<View<'_>, RunError> {
        // A cache that the host holds is a state of the chain.
        let is_it = |cache: &Cache| cache.name == name;
        if let Some(at) = self.chain.caches.iter().position(is_it) {
            return self.caches[at].view(self.program.as_ref());
        }
        self.program.state(name)
    }

    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError> {
        let is_it = |cache: &Cache| cache.name == name;
        if let Some(at) = self.chain.caches.iter().position(is_it) {
            self.lane = None;
            return self.caches[at].bytes_mut(self.program.as_mut());
        }
        self.program.state_mut(name)
    }

    fn reset(&mut self) {
        self.program.reset();
        self.slots.iter_mut().for_each(|slot| slot.fill(0));
        let mut caches = self.caches.iter();
        let cleared =
            caches.try_for_each(|cache| cache.clear(self.n_written, self.program.as_mut()));
        self.pending = Pending::default();
        self.n_written = 0;
        self.lane = None;
        self.length = None;
        self.is_broken = cleared.is_err();
        self.tokens.clear();
    }
}

/// What calls of several sequences do with one of them.
impl ChainInstance {
    /// A sequence that begins, with an instance of the program.
    pub fn new(program: Box<dyn Instance>, chain: Arc<Chain>) -> Self {
        Self {
            program,
            slots: chain.slot_bytes.iter().map(|n| vec![0; *n]).collect(),
            caches: chain.caches.iter().map(HostCache::new).collect(),
            pending: Pending::default(),
            n_written: 0,
            lane: None,
            given: GivenLogits::default(),
            length: None,
            is_broken: false,
            chain,
            input_ids: Vec::new(),
            position: [0; 4],
            tokens: Vec::new(),
            logits: Vec::new(),
            shape: [1, 0, 0],
        }
    }

    /// The chain.
    pub fn chain(&self) -> Arc<Chain> {
        self.chain.clone()
    }

    /// Number of tokens that were given for the next call.
    pub fn n_given(&self) -> usize {
        self.input_ids.len() / 4
    }

    /// Which lane of a batch has the caches in its inputs, and the first position that was stored
    /// since.
    pub fn lane(&self) -> Option<(usize, usize)> {
        self.lane
    }

    /// Says that the inputs of this lane now hold the caches.
    pub fn enter_lane(&mut self, lane: usize) {
        self.lane = Some((lane, self.n_written));
    }

    /// Copies a cache, which holds all tokens before the next call, to an input of lanes: the rows
    /// of tokens from position `first` on, or all rows.
    pub fn copy_cache(
        &self,
        idx: usize,
        input: &mut [u8],
        first: Option<usize>,
    ) -> Result<(), RunError> {
        let cache = self.caches.get(idx);
        let cache = cache.ok_or_else(|| RunError::Chain(format!("there is no cache {idx}")))?;
        let positions = first.map(|first| first..self.n_written);
        cache.copy_to(input, positions, self.program.as_ref())
    }

    /// What is passed on from call to call.
    pub fn slots(&self) -> &[Vec<u8>] {
        &self.slots
    }

    /// Keeps what the call of a token leaves to the next.
    pub fn keep_slot(&mut self, slot: usize, value: &[u8]) {
        if let Some(slot) = self.slots.get_mut(slot) {
            value.clone_into(slot);
        }
    }

    /// Forgets a call that failed. Some caches may hold rows of it, which later tokens overwrite.
    pub fn drop_call(&mut self) {
        self.pending = Pending::default();
        self.is_broken = self.chain.rewind_limit == 0;
    }

    /// Makes the caches hold what comes before the token of the next call. Returns that token and
    /// its position.
    pub fn begin_token(&mut self) -> Result<(u32, usize), RunError> {
        let position = self.go_back_to_given()?;
        self.accept(position)?;
        self.pending.begin(position, 1);
        let ids = self.input_ids.as_chunks::<4>().0;
        let token = ids.first().map(|id| u32::from_ne_bytes(*id));
        let token = token.ok_or_else(|| RunError::NoInput("input_ids".to_owned()))?;
        Ok((token, position))
    }

    /// Keeps the token's rows for a cache.
    pub fn keep_rows(&mut self, cache: usize, rows: &[u8]) {
        self.pending.push(cache, rows.to_vec());
    }

    /// Ends the call of `token`, whose logits `append` gives.
    pub fn end_token(
        &mut self,
        token: u32,
        append: impl FnOnce(&mut Vec<f32>) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        self.tokens.push(token);
        self.logits.clear();
        append(&mut self.logits)?;
        self.shape = [1, 1, self.chain.vocab_size];
        Ok(())
    }
}

impl ChainInstance {
    /// Makes the caches hold the tokens before the given position, which is returned.
    fn go_back_to_given(&mut self) -> Result<usize, RunError> {
        let position = usize::try_from(i32::from_ne_bytes(self.position)).unwrap_or(usize::MAX);
        self.go_back_to(position)?;
        Ok(position)
    }

    /// Makes the caches hold the first `n` of their tokens.
    fn go_back_to(&mut self, n: usize) -> Result<(), RunError> {
        if n > self.tokens.len() {
            return Err(RunError::Chain(format!(
                "expected a position up to {}, the number of tokens so far, found {n}",
                self.tokens.len()
            )));
        }
        let n_written = self.n_written;
        let is_kept = self.chain.rings.iter().all(|ring| ring.keeps(n, n_written));
        let can_go_back = self.tokens.len() <= self.chain.rewind_limit && is_kept;
        let fits = n == self.tokens.len() || can_go_back;
        if fits && !self.is_broken {
            self.tokens.truncate(n);
            return self.accept(n);
        }
        let tokens = self.tokens[..n].to_vec();
        self.reset();
        self.process(&tokens, None)
    }

    /// Stores what the last call gave for positions before `end`.
    fn accept(&mut self, end: usize) -> Result<(), RunError> {
        let program = self.program.as_mut();
        let stored = self.pending.accept(end, &mut self.caches, program)?;
        self.n_written = self.n_written.max(stored.end);
        if let Some((_, since)) = &mut self.lane {
            *since = stored.start.min(*since);
        }
        Ok(())
    }

    /// Appends tokens to the caches, and the logits that are needed to `logits`.
    fn process(&mut self, tokens: &[u32], need: Option<Given>) -> Result<(), RunError> {
        let chain = self.chain.clone();
        let mut rest = tokens;
        while !rest.is_empty() {
            let position = self.tokens.len();
            let at = (position, self.n_written.max(position));
            let (call, begin) = chain.call(at, rest.len(), need).ok_or_else(|| {
                RunError::Chain(format!(
                    "no function takes the token at position {position}: the context holds {} \
                     tokens",
                    chain.context
                ))
            })?;
            self.accept(begin)?;
            self.move_states(&chain, call.length)?;
            // Tokens that are computed again come first.
            let again = position - begin;
            let n_now = call.n_done((begin, position), rest.len(), need);
            let (now, later) = rest.split_at(n_now);
            let all = [&self.tokens[begin..], now].concat();
            let place = CallTokens {
                tokens: &all,
                position: begin,
                n: call.n_tokens,
            };
            self.pending.begin(begin, all.len());
            self.given.clear();
            let is_last = later.is_empty() && need == Some(Given::Last);
            let is_read = call.gives.is_some() && (is_last || need == Some(Given::Each));
            let ran = call
                .steps
                .iter()
                .try_for_each(|step| self.run_step(step, place, is_read));
            if ran.is_err() {
                self.drop_call();
            }
            ran?;
            self.tokens.extend_from_slice(now);
            rest = later;
            if is_read {
                call.head
                    .iter()
                    .try_for_each(|step| self.run_step(step, place, true))?;
            }
            match call.gives {
                Some(Given::Each) if need == call.gives => {
                    self.read_logits(&chain, again..all.len())?;
                }
                Some(Given::Each) if is_last => {
                    self.read_logits(&chain, all.len() - 1..all.len())?;
                }
                Some(Given::Last) if is_read => self.read_logits(&chain, 0..1)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Moves what states of another length hold to those of this length.
    fn move_states(&mut self, chain: &Chain, length: usize) -> Result<(), RunError> {
        let Some(now) = self.length.replace(length).filter(|now| *now != length) else {
            return Ok(());
        };
        for names in &chain.states {
            let (Some(from), Some(to)) = (names.get(now), names.get(length)) else {
                continue;
            };
            let view = self.program.state(from)?;
            let (bytes, shape) = (view.bytes.to_vec(), view.shape.to_vec());
            let wide = self.program.state(to)?.shape.to_vec();
            let row = shape.last().copied().unwrap_or(1) * view_size(&bytes, &shape);
            let rows_of = |shape: &[usize]| shape.iter().rev().nth(1).copied().unwrap_or(1);
            let (before, after) = (rows_of(&shape) * row, rows_of(&wide) * row);
            let n = before.min(after).min(self.tokens.len() * row);
            let target = self.program.state_mut(to)?;
            for (from, to) in bytes
                .chunks(before.max(1))
                .zip(target.chunks_mut(after.max(1)))
            {
                to[..n].copy_from_slice(&from[..n]);
            }
        }
        Ok(())
    }

    /// Runs a function; `is_read` says whether logits that it gives are read.
    fn run_step(
        &mut self,
        step: &Step,
        place: CallTokens<'_>,
        is_read: bool,
    ) -> Result<(), RunError> {
        for input in &step.inputs {
            if let (Feed::Cache(idx), [.., n_rows, _]) = (&input.feed, &input.shape[..]) {
                let program = self.program.as_mut();
                self.caches[*idx].resize(*n_rows, self.n_written, program)?;
                continue;
            }
            let bytes = self.program.input(&input.name, &input.shape)?;
            fill(bytes, input, place, &self.slots)?;
        }
        if !is_read && step.keeps.is_empty() && step.stores.is_empty() {
            return self.program.run_for_states(&step.function);
        }
        self.program.run(&step.function)?;
        self.given
            .collect(self.program.as_ref(), &self.chain.logits);
        for (output, slot) in &step.keeps {
            let bytes = self.program.output(output)?.bytes;
            let slot = &mut self.slots[*slot];
            slot.clear();
            slot.extend_from_slice(bytes);
        }
        for (output, cache) in &step.stores {
            let bytes = self.program.output(output)?.bytes.to_vec();
            self.pending.push(*cache, bytes);
        }
        Ok(())
    }

    /// Appends the logits of the tokens `rows` of the last call.
    fn read_logits(&mut self, chain: &Chain, rows: Range<usize>) -> Result<(), RunError> {
        let kind = (&chain.logits, chain.vocab_size);
        let mut rows = rows.into_iter();
        rows.try_for_each(|row| self.given.append(row, kind, &mut self.logits))
    }
}

/// Bytes of an element.
fn view_size(bytes: &[u8], shape: &[usize]) -> usize {
    bytes.len() / shape.iter().product::<usize>().max(1)
}
