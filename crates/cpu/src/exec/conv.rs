//! Running convolutions and pools whose channels are last.

use std::sync::Mutex;

use thane_kernels::Context;
use thane_kernels::linear::{
    Epilogue, Operand, Path, Precision, Product, Start, linear, linear_scratch_len,
};
use thane_kernels::spatial::{Axis, Pooling, Window, depthwise, patches, pool};
use thane_kernels::threads::Pool;
use thane_mil::opset::window::Windows;
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Frame;
use crate::ops::Fault;
use crate::step::{Conv, Kernels, Then};
use crate::tensor::{Buffer, Floats, Tensor, floats};
use crate::weight::{Demand, Matrix};

/// Elements of patches that are made before they are multiplied: they should stay in the second
/// cache until then.
const PATCHES_LEN: usize = 1 << 17;

/// A window over x [n, .., channels], whose places are known or follow from the sizes.
fn window(shape: &[usize], windows: &Windows) -> Result<Window, Fault> {
    let (Some((&n, rest)), Some(&channels)) = (shape.split_first(), shape.last()) else {
        return Err("an image has no axes".to_owned());
    };
    let sizes = &rest[..rest.len().saturating_sub(1)];
    let none = Axis {
        size: 1,
        n_places: 1,
        kernel: 1,
        stride: 1,
        dilation: 1,
        before: 0,
    };
    let mut axes = [none; 3];
    let lacking = 3usize
        .checked_sub(sizes.len())
        .ok_or("an image has more than three axes")?;
    for (axis, &size) in sizes.iter().enumerate() {
        let window = windows.along(axis, size).map_err(|e| e.0)?;
        axes[lacking + axis] = Axis {
            size,
            n_places: window.places(size, false).map_err(|e| e.0)?,
            kernel: window.kernel,
            stride: window.stride,
            dilation: window.dilation,
            before: window.before,
        };
    }
    Ok(Window { n, channels, axes })
}

/// The shape of the result of a window.
fn result_shape(shape: &[usize], window: &Window, channels: usize) -> Vec<usize> {
    let n_axes = shape.len() - 2;
    let places = window.axes[3 - n_axes..].iter().map(|a| a.n_places);
    std::iter::once(shape[0])
        .chain(places)
        .chain([channels])
        .collect()
}

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
    pub fn conv(&mut self, conv: &Conv) -> Result<Tensor, Fault> {
        let x = self.get(conv.x)?.clone();
        if let Kernels::Spread(weight) = &conv.kernels {
            return self.conv_transpose(conv, weight, &x);
        }
        let window = window(&x.shape, &conv.windows)?;
        let shape = result_shape(&x.shape, &window, conv.c_out);
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let (x, y) = (floats(&x)?, &mut out[..n]);
        let bias = conv.bias.as_ref().and_then(Tensor::f32s);
        let op = match conv.then {
            Then::Activated(op) => Some(op),
            _ => None,
        };
        match &conv.kernels {
            Kernels::ByChannel(weight) => {
                if window.channels != conv.c_out {
                    return Err(format!("x has {} channels", window.channels));
                }
                depthwise(self.context, &window, x, (floats(weight)?, bias), op, y);
            }
            Kernels::Groups(weights) => {
                let epilogue = op.map_or(Epilogue::None, Epilogue::Activated);
                self.conv_groups(&window, weights, bias, epilogue, x, y)?;
            }
            Kernels::Spread(_) | Kernels::Stored { .. } => {}
        }
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    /// The products of patches with the matrix of each group.
    fn conv_groups(
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

    /// Each element of x times all kernels, and the products added up where they meet.
    fn conv_transpose(
        &mut self,
        conv: &Conv,
        weight: &Matrix,
        x: &Tensor,
    ) -> Result<Tensor, Fault> {
        let n_axes = x.shape.len() - 2;
        let mut axes = [(1, 1, 1, 1, 1, 0); 3];
        let mut shape = vec![x.shape[0]];
        for axis in 0..n_axes {
            let size = x.shape[1 + axis];
            let wanted = conv.output.get(axis).copied().flatten();
            let (window, n) = conv.windows.spread(axis, size, wanted).map_err(|e| e.0)?;
            shape.push(n);
            axes[3 - n_axes + axis] = (
                size,
                n,
                window.kernel,
                window.stride,
                window.dilation,
                window.before,
            );
        }
        shape.push(conv.c_out);
        let (n_in, c_out) = (weight.stored.n_cols, conv.c_out);
        let n_taps = weight.stored.n_rows / c_out.max(1);
        if x.shape.last() != Some(&n_in) {
            return Err(format!(
                "{:?} has not the {n_in} channels of the weight",
                x.shape
            ));
        }
        let n_places = x.len() / n_in.max(1);
        let (mut spread, n_spread) = self.pool.take_checked(&[n_places, n_taps * c_out])?;
        let operand = weight.operand(self.context, Demand::Stored);
        let products = Product::new(operand, n_places, Start::NONE, &mut spread[..n_spread]);
        self.multiply(&mut [products], (floats(x)?, n_places), Epilogue::None)?;
        let (mut out, n) = self.pool.take_checked(&shape)?;
        let bias = conv.bias.as_ref().and_then(Tensor::f32s);
        let [d, h, w] = axes;
        let row_len = w.1 * c_out;
        // A row of the result takes what meets it, so that rows do not wait for each other.
        let meeting = |axis: (usize, usize, usize, usize, usize, usize), at: usize| {
            let (size, _, kernel, stride, dilation, before) = axis;
            (0..kernel).filter_map(move |k| {
                let from = (at + before).checked_sub(k * dilation)?;
                let place = from / stride;
                (from.is_multiple_of(stride) && place < size).then_some((k, place))
            })
        };
        self.context
            .pool()
            .run_chunks(&mut out[..n], row_len.max(1), |row, out| {
                for out in out.chunks_exact_mut(c_out) {
                    match bias {
                        Some(bias) => out.copy_from_slice(bias),
                        None => out.fill(0.0),
                    }
                }
                let (image, plane, line) = (row / (d.1 * h.1), row / h.1 % d.1, row % h.1);
                for (kd, z) in meeting(d, plane) {
                    for (kh, y) in meeting(h, line) {
                        let first = ((image * d.0 + z) * h.0 + y) * w.0;
                        for (at, out) in out.chunks_exact_mut(c_out).enumerate() {
                            for (kw, x) in meeting(w, at) {
                                let tap = (kd * h.2 + kh) * w.2 + kw;
                                let from = ((first + x) * n_taps + tap) * c_out;
                                let products = &spread[from..from + c_out];
                                out.iter_mut().zip(products).for_each(|(o, p)| *o += p);
                            }
                        }
                    }
                }
            });
        self.pool.give_f32(spread);
        if let Then::Activated(op) = conv.then {
            thane_kernels::activation::unary_in_place(self.context, op, &mut out[..n]);
        }
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }

    pub fn pool_rows(
        &mut self,
        x: ValueId,
        windows: &Windows,
        pooling: Pooling,
    ) -> Result<Tensor, Fault> {
        let x = self.get(x)?.clone();
        let window = window(&x.shape, windows)?;
        let shape = result_shape(&x.shape, &window, window.channels);
        let (mut out, n) = self.pool.take_checked(&shape)?;
        pool(self.context, &window, pooling, floats(&x)?, &mut out[..n]);
        Ok(Tensor::new(DType::Fp32, shape, Buffer::F32(out)))
    }
}
