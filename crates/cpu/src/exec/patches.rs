//! Convolutions as products of patches.

use std::sync::Mutex;

use thane_kernels::Context;
use thane_kernels::linear::{
    Epilogue, Operand, Path, Precision, Product, Start, linear, linear_scratch_len,
};
use thane_kernels::spatial::{Window, patches};
use thane_kernels::threads::Pool;

use super::Frame;
use crate::ops::Fault;
use crate::tensor::Floats;
use crate::weight::{Demand, Matrix};

/// Elements of patches that are made before they are multiplied: they should stay in the second
/// cache until then.
const PATCHES_LEN: usize = 1 << 17;

/// How many chunks of places are gone over one after the other or on one thread each. It does not
/// depend on the number of threads, so that results do not.
fn n_chunks(n_places: usize, row_len: usize) -> usize {
    /// Places of a chunk that are worth reading all weights for.
    const LEAST: usize = 48;
    /// Chunks that as many threads, or half as many, end together.
    const EVEN: usize = 4;
    let most = (PATCHES_LEN / row_len.max(1)).clamp(64, 1 << 14);
    let n = n_places.div_ceil(most);
    let even = n.next_multiple_of(EVEN);
    if n_places / even >= LEAST { even } else { n }
}

/// A convolution as the product of patches with a matrix for each group of channels.
struct Groups<'a> {
    window: &'a Window,
    operands: Vec<Operand<'a>>,
    row_len: usize,
    n_out: usize,
    bias: Option<&'a [f32]>,
    epilogue: Epilogue<'a>,
    precision: Precision,
}

/// What a thread needs for some places.
struct Room {
    rows: Floats,
    /// Results of a group, where there are several.
    part: Floats,
    scratch: Floats,
}

impl<'a> Groups<'a> {
    fn product<'p>(&self, group: usize, n: usize, to: &'p mut [f32]) -> Product<'p>
    where
        'a: 'p,
    {
        let start = Start {
            bias: self.bias.map(|b| &b[group * self.n_out..][..self.n_out]),
            accumulates: false,
        };
        Product::new(self.operands[group], n, start, to)
    }

    /// The places of y, of which the first is `first`.
    fn run(
        &self,
        context: &Context,
        x: &[f32],
        first: usize,
        room: &mut Room,
        y: &mut [f32],
    ) -> Option<Path> {
        let (n_groups, n_out) = (self.operands.len(), self.n_out);
        let n = y.len() / (n_out * n_groups);
        let n_channels = self.window.channels / n_groups;
        let rows = &mut room.rows[..n * self.row_len];
        let mut path = None;
        for group in 0..n_groups {
            let channels = [group * n_channels, n_channels];
            patches(context, self.window, x, first, channels, rows);
            let to = if n_groups == 1 {
                &mut *y
            } else {
                &mut room.part[..n * n_out]
            };
            let mut products = [self.product(group, n, to)];
            path = linear(
                context,
                self.precision,
                &mut products,
                rows,
                n,
                self.epilogue,
                &mut room.scratch,
            );
            if n_groups > 1 {
                let places = y.chunks_exact_mut(n_out * n_groups);
                for (place, part) in places.zip(room.part.chunks_exact(n_out)) {
                    place[group * n_out..][..n_out].copy_from_slice(part);
                }
            }
        }
        path
    }

    /// All chunks of places, on as many threads as there are rooms; `context` is that of a chunk.
    fn chunks(
        &self,
        pool: &Pool,
        context: &Context,
        x: &[f32],
        rooms: &mut Vec<Room>,
        n_chunks: usize,
        mut y: &mut [f32],
    ) -> Option<Path> {
        let place_len = self.n_out * self.operands.len();
        let n_places = y.len() / place_len;
        // Chunks differ by a place at most.
        let start = |i: usize| i * n_places / n_chunks;
        let mut parts = Vec::with_capacity(n_chunks);
        for i in 0..n_chunks {
            let (part, rest) = y.split_at_mut((start(i + 1) - start(i)) * place_len);
            parts.push(Mutex::new(part));
            y = rest;
        }
        let free = Mutex::new(std::mem::take(rooms));
        let first = Mutex::new(None);
        let lock_failed = "no thread panics while it holds the lock";
        let run = |i: usize| {
            let mut room = free.lock().expect(lock_failed).pop();
            let room_of = room.as_mut().expect("a room for each thread");
            let part = &mut parts[i].lock().expect(lock_failed);
            let path = self.run(context, x, start(i), room_of, part);
            if i == 0 {
                *first.lock().expect(lock_failed) = path;
            }
            free.lock().expect(lock_failed).extend(room);
        };
        let n_rooms = free.lock().expect(lock_failed).len();
        if n_rooms > 1 {
            pool.run(n_chunks, run);
        } else {
            (0..n_chunks).for_each(run);
        }
        *rooms = free.into_inner().expect(lock_failed);
        first.into_inner().expect(lock_failed)
    }
}

impl Frame<'_> {
    /// The products of patches with the matrix of each group.
    pub fn conv_groups(
        &mut self,
        window: &Window,
        weights: &[Matrix],
        bias: Option<&[f32]>,
        epilogue: Epilogue<'_>,
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), Fault> {
        let row_len = window.kernel_len() * window.channels / weights.len().max(1);
        let n_out = weights.first().map_or(0, |w| w.stored.n_rows);
        if weights.iter().any(|w| w.stored.n_cols != row_len) {
            return Err(format!("x has {} channels", window.channels));
        }
        if y.is_empty() {
            return Ok(());
        }
        let operands = weights
            .iter()
            .map(|w| w.operand(self.context, Demand::Stored));
        let groups = Groups {
            window,
            operands: operands.collect(),
            row_len,
            n_out,
            bias,
            epilogue,
            precision: self.precision(),
        };
        let n_places = window.n_places();
        // Each place is an element of x, and the window holds nothing else.
        let is_image = weights.len() == 1
            && window.axes.iter().all(|axis| {
                (axis.kernel, axis.stride, axis.before, axis.n_places) == (1, 1, 0, axis.size)
            });
        if is_image {
            let mut products = [groups.product(0, n_places, y)];
            return self.multiply(&mut products, (x, n_places), epilogue);
        }
        let n_chunks = n_chunks(n_places, row_len);
        let n_threads = self.context.pool().n_threads();
        // A thread multiplies the patches that it made: from the cache of another they are read
        // slowly.
        let alone = Context::with_isa(1, self.context.isa());
        let (context, n_rooms) = if n_threads > 1 && n_chunks >= n_threads {
            (&alone, n_threads)
        } else {
            (self.context, 1)
        };
        let most = n_places.div_ceil(n_chunks);
        // Fewer places may need more.
        let n_scratch = [most, n_places / n_chunks].into_iter().map(|n| {
            let of_group = (0..weights.len()).map(|group| {
                let product = [groups.product(group, n, &mut y[..n * n_out])];
                linear_scratch_len(context, groups.precision, &product, n, epilogue)
            });
            of_group.max().unwrap_or(0)
        });
        let n_scratch = n_scratch.max().unwrap_or(0);
        let n_part = if weights.len() == 1 { 0 } else { most * n_out };
        let mut rooms = Vec::with_capacity(n_rooms);
        for _ in 0..n_rooms {
            rooms.push(Room {
                rows: self.pool.take_checked(&[most, row_len])?.0,
                part: self.pool.take(n_part)?,
                scratch: self.pool.take(n_scratch)?,
            });
        }
        let threads = self.context.pool();
        let path = groups.chunks(threads, context, x, &mut rooms, n_chunks, y);
        self.path = path;
        for room in rooms {
            [room.rows, room.part, room.scratch]
                .into_iter()
                .for_each(|floats| self.pool.give_f32(floats));
        }
        Ok(())
    }
}
