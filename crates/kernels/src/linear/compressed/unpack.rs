//! Codes of a few bits as bytes, and the values that they stand for.

use crate::simd::{LANES, Simd};

/// Codes that are unpacked at once.
pub(in crate::linear) const CHUNK_LEN: usize = 256;

/// What an expression gives of 16 codes at a time. No closure, which might not be inlined to where
/// the instruction set is known.
macro_rules! each {
    ($simd:expr, $all:expr, $out:expr, |$codes:ident| $values:expr $(,)?) => {{
        let ((all, last), (out, last_out)) = ($all.as_chunks::<LANES>(), $out.as_chunks_mut());
        for ($codes, out) in all.iter().zip(out) {
            $simd.store($values, out);
        }
        if !last.is_empty() {
            let (mut padded, mut values) = ([0; LANES], [0.0; LANES]);
            padded[..last.len()].copy_from_slice(last);
            let $codes = &padded;
            $simd.store($values, &mut values);
            last_out.copy_from_slice(&values[..last.len()]);
        }
    }};
}

/// 16 codes as numbers.
#[inline(always)]
pub(super) fn code_values<S: Simd>(simd: S, codes: &[u8; LANES], is_signed: bool) -> S::F {
    match is_signed {
        true => simd.i8_values(&codes.map(u8::cast_signed)),
        false => simd.u8_values(codes),
    }
}

/// Codes as a byte each.
#[inline(always)]
pub(in crate::linear) fn unpack(n_bits: usize, bytes: &[u8], codes: &mut [u8]) {
    match n_bits {
        8 => codes.copy_from_slice(&bytes[..codes.len()]),
        1 => spread_all::<1>(bytes, codes),
        2 => spread_all::<2>(bytes, codes),
        3 => spread_all::<3>(bytes, codes),
        4 => spread_all::<4>(bytes, codes),
        5 => spread_all::<5>(bytes, codes),
        6 => spread_all::<6>(bytes, codes),
        _ => spread_all::<7>(bytes, codes),
    }
}

/// Eight codes of up to eight bits, which follow each other from the lowest bit on, as a byte each.
#[inline(always)]
pub(super) fn spread_word(n_bits: usize, word: u64) -> u64 {
    match n_bits {
        1 => spread::<1>(word),
        2 => spread::<2>(word),
        3 => spread::<3>(word),
        4 => spread::<4>(word),
        5 => spread::<5>(word),
        6 => spread::<6>(word),
        7 => spread::<7>(word),
        _ => word,
    }
}

/// Codes of `BITS` bits, fewer than eight, as a byte each.
#[inline(always)]
fn spread_all<const BITS: usize>(bytes: &[u8], codes: &mut [u8]) {
    let (all, rest) = codes.as_chunks_mut::<64>();
    for (bytes, codes) in bytes.chunks_exact(8 * BITS).zip(&mut *all) {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<BITS>().0) {
            *word = word_of(bytes);
        }
        // A loop of its own, which becomes a few vector instructions.
        for word in &mut words {
            *word = spread::<BITS>(*word);
        }
        for (word, codes) in words.iter().zip(codes.as_chunks_mut().0) {
            *codes = word.to_le_bytes();
        }
    }
    let bytes = &bytes[8 * BITS * all.len()..];
    let (eights, rest) = rest.as_chunks_mut::<8>();
    for (bytes, codes) in bytes.as_chunks::<BITS>().0.iter().zip(&mut *eights) {
        *codes = spread::<BITS>(word_of(bytes)).to_le_bytes();
    }
    if !rest.is_empty() {
        let mut last = [0; BITS];
        let bytes = &bytes[BITS * eights.len()..];
        last[..bytes.len()].copy_from_slice(bytes);
        let codes = spread::<BITS>(word_of(&last)).to_le_bytes();
        rest.copy_from_slice(&codes[..rest.len()]);
    }
}

/// Up to eight bytes, the least significant first.
#[inline(always)]
fn word_of<const N: usize>(bytes: &[u8; N]) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Eight codes that follow each other, each to the low bits of a byte: halves are moved apart, then
/// halves of these, then of those.
#[inline(always)]
fn spread<const BITS: usize>(word: u64) -> u64 {
    let word = move_apart::<BITS, 4>(word);
    let word = move_apart::<BITS, 2>(word);
    move_apart::<BITS, 1>(word)
}

/// In each run of twice `N` codes, the upper half is moved to where `N` bytes end.
#[inline(always)]
fn move_apart<const BITS: usize, const N: usize>(word: u64) -> u64 {
    let low = const { lower_halves(BITS * N, 8 * N) };
    word & low | word << (N * (8 - BITS)) & low << (8 * N)
}

/// So many ones at the front of each second part of so many bits.
const fn lower_halves(n_ones: usize, part: usize) -> u64 {
    let (mut mask, mut at) = (0, 0);
    while at < 64 {
        mask |= ((1 << n_ones) - 1) << at;
        at += 2 * part;
    }
    mask
}

/// The entries that codes stand for.
#[inline(always)]
pub(super) fn look_up<S: Simd>(simd: S, table: &[f32], codes: &[u8], out: &mut [f32]) {
    let (tables, short) = table.as_chunks::<16>();
    match *tables {
        [] => {
            let mut padded = [0.0; 16];
            padded[..short.len()].copy_from_slice(short);
            let table = simd.load(&padded);
            each!(simd, codes, out, |codes| simd.look_up(table, codes));
        }
        [ref table] => {
            let table = simd.load(table);
            each!(simd, codes, out, |codes| simd.look_up(table, codes));
        }
        [ref a, ref b, ref c, ref d] => {
            let tables = [simd.load(a), simd.load(b), simd.load(c), simd.load(d)];
            each!(simd, codes, out, |codes| simd.look_up_64(tables, codes));
        }
        _ => match tables.try_into() {
            Ok(tables) => each!(simd, codes, out, |codes| simd.look_up_256(tables, codes)),
            Err(_) => entry_values(table, codes, out),
        },
    }
}

/// The entries of a table of another length, one by one.
#[inline(always)]
pub(super) fn entry_values(table: &[f32], codes: &[u8], out: &mut [f32]) {
    for (code, out) in codes.iter().zip(out) {
        *out = table[usize::from(*code) & (table.len() - 1)];
    }
}
