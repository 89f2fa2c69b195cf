//! Several sequences over one chain: each has its own caches, and calls of lanes process a token
//! each of several of them side by side.

use thane_mil::backend::{Batch, Instance, Limits, RunError, check_each_once};

use super::fill::{Seen, copy_slot, floats, ints, table_columns};
use super::given::GivenLogits;
use super::instance::ChainInstance;
use super::{Call, Chain, Feed, Input, Step};

/// The instances of a chain, numbered from 0.
pub(super) struct ChainBatch {
    instances: Vec<ChainInstance>,
    /// Runs the functions that take a token each of several instances.
    program: Box<dyn Instance>,
    slots: Vec<Vec<u8>>,
    given: GivenLogits,
    /// The instances whose caches the inputs of `program` hold, one for each lane, and the number
    /// of lanes and the context of its last call.
    held: (Vec<Option<usize>>, [usize; 2]),
}

/// A sequence in a call, with its next token.
#[derive(Clone, Copy)]
struct Lane<'a> {
    token: u32,
    /// Position of the token.
    position: usize,
    instance: &'a ChainInstance,
    /// The first position that the inputs lack; `None` if they hold another sequence.
    lacks: Option<usize>,
}

impl ChainBatch {
    /// A batch of new instances. `program` is a further instance of their program.
    pub fn new(instances: Vec<ChainInstance>, program: Box<dyn Instance>, chain: &Chain) -> Self {
        Self {
            instances,
            program,
            slots: chain.slot_bytes.iter().map(|n| vec![0; *n]).collect(),
            given: GivenLogits::default(),
            held: Default::default(),
        }
    }

    /// Processes a token each of these instances, of which there are at most as many as the call
    /// of most lanes has.
    fn run_lanes(&mut self, which: &[usize], chain: &Chain) -> Result<(), RunError> {
        let mut tokens = Vec::with_capacity(which.len());
        for idx in which {
            tokens.push(self.instances[*idx].begin_token()?);
        }
        let end = tokens.iter().map(|(_, position)| position + 1).max();
        let holds = |call: &&Call| end.is_none_or(|end| end <= call.positions.end);
        let fitting = chain.lanes.iter().filter(holds);
        let fitting = fitting.filter(|call| call.n_tokens >= which.len());
        let Some(call) = fitting.min_by_key(|call| call.positions.end) else {
            return self.run_alone("decode", which);
        };
        self.begin_call(call);
        let ran = self.run_call(call, (which, &tokens), chain);
        if ran.is_err() {
            self.held = Default::default();
            which
                .iter()
                .for_each(|idx| self.instances[*idx].drop_call());
        }
        ran
    }

    /// Forgets what the inputs of a call with other lanes hold.
    fn begin_call(&mut self, call: &Call) {
        let form = [call.n_tokens, call.positions.end];
        if self.held.1 != form {
            self.held = (vec![None; call.n_tokens], form);
        }
    }

    /// The first position of the caches of an instance that the inputs of a lane lack; `None` if
    /// they hold those of another.
    fn lacks(&self, lane: usize, idx: usize) -> Option<usize> {
        let holds = self.held.0.get(lane) == Some(&Some(idx));
        let entered = self.instances[idx].lane().filter(|_| holds);
        entered
            .filter(|(of, _)| *of == lane)
            .map(|(_, since)| since)
    }

    fn run_call(
        &mut self,
        call: &Call,
        (which, tokens): (&[usize], &[(u32, usize)]),
        chain: &Chain,
    ) -> Result<(), RunError> {
        self.given.clear();
        let mut steps = call.steps.iter().chain(&call.head);
        steps.try_for_each(|step| self.run_step(step, (which, tokens, call.n_tokens), chain))?;
        for (lane, (idx, (token, _))) in which.iter().zip(tokens).enumerate() {
            self.held.0[lane] = Some(*idx);
            self.instances[*idx].enter_lane(lane);
            let (given, kind) = (&self.given, (&chain.logits, chain.vocab_size));
            self.instances[*idx].end_token(*token, |logits| given.append(lane, kind, logits))?;
        }
        Ok(())
    }

    fn run_step(
        &mut self,
        step: &Step,
        (which, tokens, n_lanes): (&[usize], &[(u32, usize)], usize),
        chain: &Chain,
    ) -> Result<(), RunError> {
        let lacks = which.iter().enumerate();
        let lacks: Vec<_> = lacks.map(|(lane, idx)| self.lacks(lane, *idx)).collect();
        let lanes = which.iter().zip(tokens).zip(lacks);
        let lanes = lanes.map(|((idx, (token, position)), lacks)| Lane {
            token: *token,
            position: *position,
            instance: &self.instances[*idx],
            lacks,
        });
        let lanes: Vec<Lane<'_>> = lanes.collect();
        for input in &step.inputs {
            let bytes = self.program.input(&input.name, &input.shape)?;
            fill_lanes(bytes, input, (&lanes, n_lanes), (&self.slots, chain))?;
        }
        drop(lanes);
        self.program.run(&step.function)?;
        self.given.collect(self.program.as_ref(), &chain.logits);
        for (output, slot) in &step.keeps {
            let bytes = self.program.output(output)?.bytes;
            if !chain.is_left_to_next(*slot) {
                bytes.clone_into(&mut self.slots[*slot]);
                continue;
            }
            for (idx, value) in which.iter().zip(per_lane(bytes, n_lanes)) {
                self.instances[*idx].keep_slot(*slot, value);
            }
        }
        for (output, cache) in &step.stores {
            // [1, lanes * heads, 1, row]
            let bytes = self.program.output(output)?.bytes;
            for (idx, rows) in which.iter().zip(per_lane(bytes, n_lanes)) {
                self.instances[*idx].keep_rows(*cache, rows);
            }
        }
        Ok(())
    }

    fn run_alone(&mut self, function: &str, which: &[usize]) -> Result<(), RunError> {
        let mut which = which.iter();
        which.try_for_each(|idx| self.instances[*idx].run(function))
    }
}

/// What an output gives for each of `n` sequences.
fn per_lane(bytes: &[u8], n: usize) -> std::slice::Chunks<'_, u8> {
    bytes.chunks((bytes.len() / n.max(1)).max(1))
}

/// Refuses so many instances whose caches take more memory than those of a batch may.
pub(super) fn check_memory(chain: &Chain, n: usize) -> Result<(), RunError> {
    let caches = chain.caches.iter().map(|cache| {
        let rows = cache.n_heads.saturating_mul(cache.n_rows);
        rows.saturating_mul(cache.row * cache.dtype.bits() / 8)
    });
    let caches = caches.chain(chain.slot_bytes.iter().copied());
    let one = caches.fold(0usize, usize::saturating_add);
    let (bytes, most) = (one.saturating_mul(n), Limits::default().batch_bytes);
    if bytes > most {
        return Err(RunError::Memory { n, bytes, most });
    }
    Ok(())
}

impl Batch for ChainBatch {
    fn n_instances(&self) -> usize {
        self.instances.len()
    }

    fn instance(&self, idx: usize) -> Result<&dyn Instance, RunError> {
        let n = self.instances.len();
        let found = self.instances.get(idx).map(|instance| instance as _);
        found.ok_or(RunError::NoInstance { idx, n })
    }

    fn instance_mut(&mut self, idx: usize) -> Result<&mut dyn Instance, RunError> {
        let n = self.instances.len();
        let found = self.instances.get_mut(idx).map(|instance| instance as _);
        found.ok_or(RunError::NoInstance { idx, n })
    }

    fn run(&mut self, function: &str, which: &[usize]) -> Result<(), RunError> {
        check_each_once(which, self.instances.len())?;
        let Some(first) = which.first() else {
            return Ok(());
        };
        let chain = self.instances[*first].chain();
        let most = chain.lanes.iter().map(|call| call.n_tokens).max();
        let one_each = which.iter().all(|idx| self.instances[*idx].n_given() == 1);
        let Some(most) = most.filter(|_| function == "decode" && one_each) else {
            return self.run_alone(function, which);
        };
        let mut groups = which.chunks(most.max(1));
        groups.try_for_each(|group| match group {
            // A token alone takes the function of one sequence.
            [_] => self.run_alone(function, group),
            _ => self.run_lanes(group, &chain),
        })
    }
}

/// Sets the elements of an input of a function that takes a token each of `n` sequences, of which
/// the first are `lanes` and the others mean nothing.
fn fill_lanes(
    bytes: &mut [u8],
    input: &Input,
    (lanes, n): (&[Lane<'_>], usize),
    (slots, chain): (&[Vec<u8>], &Chain),
) -> Result<(), RunError> {
    // What is set for each sequence, one after another.
    let per_lane = (bytes.len() / n.max(1)).max(1);
    let padding = n.saturating_sub(lanes.len());
    let positions = || {
        let positions = lanes.iter().map(|lane| lane.position);
        positions.chain(std::iter::repeat_n(0, padding))
    };
    let tokens = || {
        let tokens = lanes.iter().map(|lane| lane.token);
        tokens.chain(std::iter::repeat_n(0, padding))
    };
    match &input.feed {
        Feed::Tokens => ints(bytes, tokens().map(u32::cast_signed)),
        Feed::Positions => {
            let positions = positions().map(|at| i32::try_from(at).unwrap_or(i32::MAX));
            ints(bytes, positions);
        }
        Feed::Mask { window, kept } => {
            for (position, cells) in positions().zip(bytes.chunks_mut(per_lane)) {
                let seen = Seen {
                    n_rows: input.shape.last().map_or(0, |n| n.saturating_sub(1)),
                    position,
                    window: *window,
                    kept: *kept,
                };
                floats(cells, input.dtype, |key| seen.score(0, key));
            }
        }
        Feed::TokenColumns(table) => {
            let rows = tokens().map(|token| token as usize);
            table_columns(bytes, (&input.name, input.dtype), table.as_ref(), (rows, n))?;
        }
        Feed::PositionColumns(table) => {
            table_columns(
                bytes,
                (&input.name, input.dtype),
                table.as_ref(),
                (positions(), n),
            )?;
        }
        Feed::Cache(idx) => {
            for (lane, cells) in lanes.iter().zip(bytes.chunks_mut(per_lane)) {
                lane.instance.copy_cache(*idx, cells, lane.lacks)?;
            }
        }
        Feed::Slot(slot) if chain.is_left_to_next(*slot) => {
            for (lane, cells) in lanes.iter().zip(bytes.chunks_mut(per_lane)) {
                copy_slot(cells, input, lane.instance.slots().get(*slot))?;
            }
        }
        Feed::Slot(slot) => copy_slot(bytes, input, slots.get(*slot))?,
        _ => {
            return Err(RunError::Chain(format!(
                "input `{}` is not one of a function of several sequences",
                input.name
            )));
        }
    }
    Ok(())
}
