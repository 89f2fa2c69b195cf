//! Dequantization by loops of fixed length, to the same bits as [`BlockType::decode`].

use thane_blocks::{
    BlockType, IQ4_TABLE, bf16_to_f32, f16_to_f32, iq4_xs_scales, k_scales, q3_k_scales,
};

/// The values of `bytes`, whole blocks of type `ty`, in order; compiled for the ISA of its caller.
///
/// # Panics
/// If `out` is not a whole number of blocks, or `bytes` is not exactly these blocks.
#[inline(always)]
pub(crate) fn dequantize(ty: BlockType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        ty.byte_len(out.len()),
        "bytes of a row of {} values of type {ty:?}",
        out.len()
    );
    match ty {
        BlockType::F32 => blocks::<4, 1>(bytes, out, |b, o| o[0] = f32::from_le_bytes(*b)),
        BlockType::F16 => {
            blocks::<2, 1>(bytes, out, |b, o| o[0] = f16_to_f32(u16::from_le_bytes(*b)))
        }
        BlockType::Bf16 => blocks::<2, 1>(bytes, out, |b, o| {
            o[0] = bf16_to_f32(u16::from_le_bytes(*b))
        }),
        BlockType::Q4_0 => blocks::<18, 32>(bytes, out, q4_0),
        BlockType::Q4_1 => blocks::<20, 32>(bytes, out, q4_1),
        BlockType::Q5_0 => blocks::<22, 32>(bytes, out, q5_0),
        BlockType::Q5_1 => blocks::<24, 32>(bytes, out, q5_1),
        BlockType::Q8_0 => blocks::<34, 32>(bytes, out, q8_0),
        BlockType::Q2K => blocks::<84, 256>(bytes, out, q2_k),
        BlockType::Q3K => blocks::<110, 256>(bytes, out, q3_k),
        BlockType::Q4K => blocks::<144, 256>(bytes, out, q4_k),
        BlockType::Q5K => blocks::<176, 256>(bytes, out, q5_k),
        BlockType::Q6K => blocks::<210, 256>(bytes, out, q6_k),
        BlockType::Iq4Nl => blocks::<18, 32>(bytes, out, iq4_nl),
        BlockType::Iq4Xs => blocks::<136, 256>(bytes, out, iq4_xs),
        _ => ty.decode(bytes, out),
    }
}

#[inline(always)]
fn blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (b, o) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        block(b, o);
    }
}

#[inline(always)]
fn half(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Bit `i` of four bytes, moved to bit 4 (the fifth bit of a code).
#[inline(always)]
fn fifth_bit(high: u32, i: usize) -> u8 {
    ((high >> i) as u8 & 1) << 4
}

/// d f16, 16 bytes: byte i holds code i (low half) and code i + 16.
#[inline(always)]
fn q4_0(b: &[u8; 18], o: &mut [f32; 32]) {
    let d = half(b, 0);
    for i in 0..16 {
        o[i] = d * ((b[2 + i] & 15) as i8 - 8) as f32;
        o[i + 16] = d * ((b[2 + i] >> 4) as i8 - 8) as f32;
    }
}

/// d f16, m f16, 16 bytes as in Q4_0.
#[inline(always)]
fn q4_1(b: &[u8; 20], o: &mut [f32; 32]) {
    let (d, m) = (half(b, 0), half(b, 2));
    for i in 0..16 {
        o[i] = d * (b[4 + i] & 15) as f32 + m;
        o[i + 16] = d * (b[4 + i] >> 4) as f32 + m;
    }
}

/// d f16, 32 fifth bits, 16 bytes as in Q4_0.
#[inline(always)]
fn q5_0(b: &[u8; 22], o: &mut [f32; 32]) {
    let d = half(b, 0);
    let high = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
    for i in 0..16 {
        o[i] = d * ((b[6 + i] & 15 | fifth_bit(high, i)) as i8 - 16) as f32;
        o[i + 16] = d * ((b[6 + i] >> 4 | fifth_bit(high, i + 16)) as i8 - 16) as f32;
    }
}

/// d f16, m f16, 32 fifth bits, 16 bytes as in Q4_0.
#[inline(always)]
fn q5_1(b: &[u8; 24], o: &mut [f32; 32]) {
    let (d, m) = (half(b, 0), half(b, 2));
    let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    for i in 0..16 {
        o[i] = d * (b[8 + i] & 15 | fifth_bit(high, i)) as f32 + m;
        o[i + 16] = d * (b[8 + i] >> 4 | fifth_bit(high, i + 16)) as f32 + m;
    }
}

/// d f16, 32 signed bytes.
#[inline(always)]
fn q8_0(b: &[u8; 34], o: &mut [f32; 32]) {
    let d = half(b, 0);
    for i in 0..32 {
        o[i] = d * (b[2 + i] as i8) as f32;
    }
}

/// 16 bytes of scale (low half) and minimum, 64 bytes of codes, d f16, dmin f16. Code
/// `128 h + 32 s + i` is bits `2 s` of byte `32 h + i`.
#[inline(always)]
fn q2_k(b: &[u8; 84], o: &mut [f32; 256]) {
    let (d, dmin) = (half(b, 80), half(b, 82));
    for (group, values) in o.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (scale, min) = (d * (b[group] & 15) as f32, dmin * (b[group] >> 4) as f32);
        let (start, shift) = (
            16 + 32 * (group / 8) + 16 * (group % 2),
            2 * (group / 2 % 4),
        );
        for (i, value) in values.iter_mut().enumerate() {
            *value = scale * (b[start + i] >> shift & 3) as f32 - min;
        }
    }
}

/// 32 bytes of third bits, 64 bytes as in Q2_K, 12 bytes of scales, d f16. The third bit of code
/// `32 j + i` is bit j of byte i; where it is 0, 4 is taken off.
#[inline(always)]
fn q3_k(b: &[u8; 110], o: &mut [f32; 256]) {
    let d = half(b, 108);
    let scales = q3_k_scales(array(b, 96));
    for (group, values) in o.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * scales[group] as f32;
        let (start, shift) = (
            32 + 32 * (group / 8) + 16 * (group % 2),
            2 * (group / 2 % 4),
        );
        for (i, value) in values.iter_mut().enumerate() {
            let third = (b[16 * (group % 2) + i] >> (group / 2) & 1) ^ 1;
            *value = scale * ((b[start + i] >> shift & 3) as i8 - (third << 2) as i8) as f32;
        }
    }
}

/// `N` bytes of a block.
#[inline(always)]
fn array<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..]
        .first_chunk()
        .expect("the field ends inside of the block")
}

/// d f16, dmin f16, 12 bytes of scales, 128 bytes: byte `32 n + i` holds code `64 n + i` (low half)
/// and code `64 n + 32 + i`.
#[inline(always)]
fn q4_k(b: &[u8; 144], o: &mut [f32; 256]) {
    let (d, dmin) = (half(b, 0), half(b, 2));
    let scales = k_scales(array(b, 4));
    for (group, values) in o.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = (d * scales[group] as f32, dmin * scales[8 + group] as f32);
        let (start, shift) = (16 + 32 * (group / 2), 4 * (group % 2));
        for (i, value) in values.iter_mut().enumerate() {
            *value = scale * (b[start + i] >> shift & 15) as f32 - min;
        }
    }
}

/// d f16, dmin f16, 12 bytes of scales, 32 bytes of fifth bits, 128 bytes as in Q4_K. The fifth bit
/// of code `32 j + i` is bit j of byte i.
#[inline(always)]
fn q5_k(b: &[u8; 176], o: &mut [f32; 256]) {
    let (d, dmin) = (half(b, 0), half(b, 2));
    let scales = k_scales(array(b, 4));
    for (group, values) in o.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = (d * scales[group] as f32, dmin * scales[8 + group] as f32);
        let (start, shift) = (48 + 32 * (group / 2), 4 * (group % 2));
        for (i, value) in values.iter_mut().enumerate() {
            let fifth = (b[16 + i] >> group & 1) << 4;
            *value = scale * (b[start + i] >> shift & 15 | fifth) as f32 - min;
        }
    }
}

/// 128 bytes of low halves, 64 bytes of high two bits, 16 signed scales, d f16. Code
/// `128 h + 64 n + i` has half n of byte `64 h + i`; code `128 h + 32 s + i` has bits `2 s` of high
/// byte `32 h + i`.
#[inline(always)]
fn q6_k(b: &[u8; 210], o: &mut [f32; 256]) {
    let d = half(b, 208);
    for (group, values) in o.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * (b[192 + group] as i8) as f32;
        let (low_start, low_shift) = (64 * (group / 8) + 16 * (group % 4), 4 * (group / 4 % 2));
        let (high_start, high_shift) = (
            128 + 32 * (group / 8) + 16 * (group % 2),
            2 * (group / 2 % 4),
        );
        for (i, value) in values.iter_mut().enumerate() {
            let low = b[low_start + i] >> low_shift & 15;
            let high = b[high_start + i] >> high_shift & 3;
            *value = scale * ((low | high << 4) as i8 - 32) as f32;
        }
    }
}

/// d f16, 16 bytes as in Q4_0.
#[inline(always)]
fn iq4_nl(b: &[u8; 18], o: &mut [f32; 32]) {
    let d = half(b, 0);
    for i in 0..16 {
        o[i] = d * IQ4_TABLE[(b[2 + i] & 15) as usize] as f32;
        o[i + 16] = d * IQ4_TABLE[(b[2 + i] >> 4) as usize] as f32;
    }
}

/// d f16, the high two bits of the 8 scales (16 bits), their low halves (4 bytes), 8 times 16 bytes
/// as in Q4_0.
#[inline(always)]
fn iq4_xs(b: &[u8; 136], o: &mut [f32; 256]) {
    let d = half(b, 0);
    let scales = iq4_xs_scales(array(b, 2));
    for (group, values) in o.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * scales[group] as f32;
        for i in 0..16 {
            let byte = b[8 + 16 * group + i];
            values[i] = scale * IQ4_TABLE[(byte & 15) as usize] as f32;
            values[i + 16] = scale * IQ4_TABLE[(byte >> 4) as usize] as f32;
        }
    }
}
