//! Constants that are computed from smaller ones.
//!
//! Weights are what coremltools decompresses, bit for bit. It computes in fp32, but for a block's
//! scale in fp16: then each step is rounded to fp16, unless the offset is fp32. So arguments come
//! as they are stored, fp16 not widened.

use thane_kernels::f16::{f16_to_f32, f32_to_f16};
use thane_mil::types::DType;

use super::{Call, Eval, Fault, strides};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("constexpr_affine_dequantize", affine_dequantize),
    ("constexpr_blockwise_shift_scale", blockwise_shift_scale),
    ("constexpr_cast", cast),
    ("constexpr_lut_to_dense", lut_to_dense),
    ("constexpr_lut_to_sparse", lut_to_sparse),
    (
        "constexpr_sparse_blockwise_shift_scale",
        sparse_blockwise_shift_scale,
    ),
    ("constexpr_sparse_to_dense", sparse_to_dense),
];

/// Numbers of any type as fp32, which holds all codes exactly.
fn numbers(t: &Tensor) -> Vec<f32> {
    let mut out = Vec::with_capacity(t.len());
    t.each(|_, v| out.push(v as f32));
    out
}

/// Write the numbers to a result of fp32 or, rounded, of fp16.
fn write(out: &mut Buffer, numbers: impl Iterator<Item = f32>) -> Result<(), Fault> {
    match out {
        Buffer::F32(v) => v.iter_mut().zip(numbers).for_each(|(y, x)| *y = x),
        Buffer::F16(v) => v
            .iter_mut()
            .zip(numbers)
            .for_each(|(y, x)| *y = f32_to_f16(x)),
        _ => return Err("the result is neither fp32 nor fp16".to_owned()),
    }
    Ok(())
}

fn cast(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    write(&mut out[0], numbers(call.tensor("source_val")?).into_iter())
}

fn affine_dequantize(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (data, scale, zero) = (
        call.tensor("quantized_data")?,
        call.tensor("scale")?,
        call.tensor("zero_point")?,
    );
    let axis = call.axis("axis", 0, data.shape.len())?;
    let inner: usize = data.shape[axis + 1..].iter().product();
    let (codes, scales, zeros) = (numbers(data), numbers(scale), numbers(zero));
    let at = |v: &[f32], t: &Tensor, i: usize| {
        if t.shape.is_empty() {
            v[0]
        } else {
            v[i / inner % data.shape[axis]]
        }
    };
    let y = codes
        .iter()
        .enumerate()
        .map(|(i, code)| at(&scales, scale, i) * (code - at(&zeros, zero, i)));
    write(&mut out[0], y)
}

/// The group of element `i` of a tensor of `shape`, when each axis is cut into `groups` equal
/// parts.
fn group(i: usize, shape: &[usize], own: &[usize], groups: &[usize]) -> usize {
    (0..shape.len()).fold(0, |at, a| {
        at * groups[a] + i / own[a] % shape[a] / (shape[a] / groups[a])
    })
}

fn blockwise_shift_scale(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let data = call.tensor("data")?;
    let scaling = Scaling::new(call)?;
    let (codes, own) = (numbers(data), strides(&data.shape));
    // Consecutive codes of one group.
    let run = match (data.shape.last(), scaling.groups.last()) {
        (Some(n), Some(n_groups)) => (n / n_groups).max(1),
        _ => 1,
    };
    let runs = codes.chunks(run).enumerate();
    let values = runs.flat_map(|(i, codes)| {
        let g = group(i * run, &data.shape, &own, scaling.groups);
        let scaling = &scaling;
        codes.iter().map(move |code| scaling.value(*code, g))
    });
    write(&mut out[0], values)
}

/// The scales and offsets of all groups.
struct Scaling<'a> {
    /// Groups along each axis.
    groups: &'a [usize],
    scales: Vec<f32>,
    offsets: Option<Vec<f32>>,
    is_half: bool,
    shifts_in_half: bool,
}

impl<'a> Scaling<'a> {
    fn new(call: &Call<'a>) -> Result<Self, Fault> {
        let (scale, offset) = (call.tensor("scale")?, call.opt_tensor("offset"));
        let is_half = scale.dtype == DType::Fp16;
        Ok(Self {
            groups: &scale.shape,
            scales: numbers(scale),
            offsets: offset.map(numbers),
            is_half,
            shifts_in_half: is_half && offset.is_none_or(|o| o.dtype != DType::Fp32),
        })
    }

    /// `scale * (code - offset)` of a code of group `g`.
    fn value(&self, code: f32, g: usize) -> f32 {
        let rounded = |v: f32, rounds: bool| if rounds { f16_to_f32(f32_to_f16(v)) } else { v };
        let code = rounded(code, self.is_half);
        let shifted = match &self.offsets {
            None => code,
            Some(offsets) => rounded(code - offsets[g], self.shifts_in_half),
        };
        self.scales[g] * shifted
    }
}

/// `scale * (code - offset)` of codes with their places in a tensor of `shape`.
fn shift_scale(
    call: &Call<'_>,
    codes: impl Iterator<Item = (usize, f32)>,
    shape: &[usize],
) -> Result<Vec<f32>, Fault> {
    let (scaling, own) = (Scaling::new(call)?, strides(shape));
    let value =
        |(i, code): (usize, f32)| scaling.value(code, group(i, shape, &own, scaling.groups));
    Ok(codes.map(value).collect())
}

fn sparse_blockwise_shift_scale(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (mask, data) = (call.tensor("data_mask")?, call.tensor("nonzero_data")?);
    let places = ones(mask, data.len())?;
    copy(&mut out[0], 0, mask, 0, mask.len())?;
    let codes = places.into_iter().zip(numbers(data));
    write(
        &mut out[1],
        shift_scale(call, codes, &mask.shape)?.into_iter(),
    )
}

/// The places where a mask is 1, which must be `n`.
fn ones(mask: &Tensor, n: usize) -> Result<Vec<usize>, Fault> {
    let Buffer::U8(bits) = &*mask.data else {
        return Err("the mask does not hold uint1".to_owned());
    };
    let places: Vec<usize> = (0..mask.len()).filter(|i| bits[*i] != 0).collect();
    if places.len() == n {
        Ok(places)
    } else {
        Err(format!(
            "the mask has {} ones for {n} elements",
            places.len()
        ))
    }
}

fn copy(out: &mut Buffer, at: usize, from: &Tensor, from_at: usize, n: usize) -> Result<(), Fault> {
    if out.copy_from(at, &from.data, from_at, n) {
        return Ok(());
    }
    Err(format!(
        "there is no element {from_at} of {} in {:?}",
        from.dtype, from.shape
    ))
}

fn lut_to_dense(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (indices, lut) = (call.tensor("indices")?, call.tensor("lut")?);
    let Buffer::U8(ids) = &*indices.data else {
        return Err("`indices` does not hold unsigned integers".to_owned());
    };
    if call.def.attributes {
        let n_bits = lut.len().ilog2() as usize;
        let n = call.shape(0).iter().product();
        return (0..n).try_for_each(|i| copy(&mut out[0], i, lut, bits(ids, i, n_bits), 1));
    }
    let table = Table::new(call, &indices.shape)?;
    if table.vector == 1 && copy(&mut out[0], 0, lut, 0, 0).is_ok() {
        return table.look_up(ids, lut, &mut out[0]);
    }
    let n: usize = table.shape.iter().product();
    (0..n).try_for_each(|i| copy(&mut out[0], i, lut, table.entry(i, |at| ids[at]), 1))
}

/// The `n_bits` bits of element `i`, least significant first.
fn bits(bytes: &[u8], i: usize, n_bits: usize) -> usize {
    (0..n_bits).fold(0, |v, k| {
        v | (usize::from(bytes[(i * n_bits + k) / 8] >> ((i * n_bits + k) % 8) & 1) << k)
    })
}

/// Where elements of a result stand in a table of vectors for each group.
struct Table<'a> {
    /// Of the result, and its strides.
    shape: Vec<usize>,
    own: Vec<usize>,
    /// Strides of the indices.
    from: Vec<usize>,
    groups: &'a [usize],
    n_entries: usize,
    vector: usize,
    /// Along which vectors lie.
    axis: usize,
}

impl<'a> Table<'a> {
    fn new(call: &Call<'a>, indices: &[usize]) -> Result<Self, Fault> {
        let lut = call.tensor("lut")?;
        let rank = indices.len();
        let (n_entries, vector) = (lut.shape[rank], lut.shape[rank + 1]);
        let axis = if vector > 1 {
            call.axis("vector_axis", 0, rank)?
        } else {
            0
        };
        let mut shape = indices.to_vec();
        shape[axis] *= vector;
        let (own, from) = (strides(&shape), strides(indices));
        Ok(Self {
            shape,
            own,
            from,
            groups: &lut.shape[..rank],
            n_entries,
            vector,
            axis,
        })
    }

    /// The entries of single elements, run after run of indices that share a table.
    fn look_up(&self, ids: &[u8], lut: &Tensor, out: &mut Buffer) -> Result<(), Fault> {
        let run = match (self.shape.last(), self.groups.last()) {
            (Some(n), Some(n_groups)) => (n / n_groups).max(1),
            _ => 1,
        };
        let width = lut.data.bytes().len() / lut.len().max(1);
        let (entries, out) = (lut.data.bytes(), out.bytes_mut());
        let runs = ids.chunks(run).zip(out.chunks_mut(run * width));
        let mut is_known = true;
        for (i, (ids, out)) in runs.enumerate() {
            let first = group(i * run, &self.shape, &self.own, self.groups) * self.n_entries;
            let entries = entries.get(first * width..).unwrap_or(&[]);
            is_known &= match width {
                1 => spread::<1>(ids, entries, out),
                2 => spread::<2>(ids, entries, out),
                _ => spread::<4>(ids, entries, out),
            };
        }
        match is_known {
            true => Ok(()),
            false => Err(format!("an index is not below {}", self.n_entries)),
        }
    }

    /// The index that element `i` of the result comes from, and the part of the vector that it is.
    fn source(&self, i: usize) -> (usize, usize) {
        let mut at = 0;
        for a in 0..self.shape.len() {
            let coordinate = i / self.own[a] % self.shape[a];
            at += coordinate / if a == self.axis { self.vector } else { 1 } * self.from[a];
        }
        (at, i / self.own[self.axis] % self.vector)
    }

    /// The place of element `i` of the result in the table.
    fn entry(&self, i: usize, id: impl FnOnce(usize) -> u8) -> usize {
        let (at, part) = self.source(i);
        let g = group(i, &self.shape, &self.own, self.groups);
        (g * self.n_entries + usize::from(id(at))) * self.vector + part
    }
}

/// Entries of so many bytes. Whether there is one for each index.
fn spread<const WIDTH: usize>(ids: &[u8], entries: &[u8], out: &mut [u8]) -> bool {
    let entries: &[[u8; WIDTH]] = entries.as_chunks().0;
    let all = ids.iter().zip(out.as_chunks_mut().0);
    let mut is_known = true;
    for (id, out) in all {
        match entries.get(usize::from(*id)) {
            Some(entry) => *out = *entry,
            None => is_known = false,
        }
    }
    is_known
}

fn lut_to_sparse(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (mask, indices) = (
        call.tensor("indices_mask")?,
        call.tensor("indices_nonzero_data")?,
    );
    let lut = call.tensor("lut")?;
    let Buffer::U8(ids) = &*indices.data else {
        return Err("the indices are no unsigned integers".to_owned());
    };
    let mut of_place = vec![None; mask.len()];
    ones(mask, indices.len())?
        .into_iter()
        .zip(&**ids)
        .for_each(|(place, id)| of_place[place] = Some(*id));
    let table = Table::new(call, &mask.shape)?;
    let mut n = 0;
    for i in 0..table.shape.iter().product() {
        let (at, _) = table.source(i);
        copy(&mut out[0], i, mask, at, 1)?;
        if let Some(id) = of_place[at] {
            copy(&mut out[1], n, lut, table.entry(i, |_| id), 1)?;
            n += 1;
        }
    }
    Ok(())
}

fn sparse_to_dense(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (data, mask) = (call.tensor("nonzero_data")?, call.tensor("mask")?);
    let places = if call.def.attributes {
        let Buffer::U8(bytes) = &*mask.data else {
            return Err("`mask` does not hold uint8".to_owned());
        };
        let n: usize = call.shape(0).iter().product();
        (0..n).filter(|i| bits(bytes, *i, 1) == 1).collect()
    } else {
        ones(mask, data.len())?
    };
    if places.len() != data.len() {
        return Err(format!(
            "`mask` has {} ones, `nonzero_data` {} elements",
            places.len(),
            data.len()
        ));
    }
    out[0].bytes_mut().fill(0);
    places
        .into_iter()
        .enumerate()
        .try_for_each(|(k, place)| copy(&mut out[0], place, data, k, 1))
}
