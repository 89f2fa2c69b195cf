//! The scalar decoder of each quantized type.

use crate::codes::Codes;
use crate::float::f16_to_f32;

/// Largest number of values in a block of any type.
pub const MAX_BLOCK_LEN: usize = 256;

/// The table that IQ4_NL and IQ4_XS index.
pub const IQ4_TABLE: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The values of FP4 (E2M1), doubled to be integers. Index 8 stands for -0, which is 0 here as in
/// ggml.
pub const MXFP4_TABLE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// An unpacked block: integer codes, and a scale and a minimum for each group of codes.
#[derive(Clone, Debug)]
pub struct Block {
    /// Codes, or indices into [`Codes::table`].
    pub codes: [i8; MAX_BLOCK_LEN],
    /// One scale for each [`Codes::group_len`] codes.
    pub scales: [f32; 16],
    /// One minimum for each [`Codes::group_len`] codes, where [`Codes::has_minimum`].
    pub minimums: [f32; 16],
}

impl Default for Block {
    fn default() -> Self {
        Self {
            codes: [0; MAX_BLOCK_LEN],
            scales: [0.0; 16],
            minimums: [0.0; 16],
        }
    }
}

impl Block {
    /// Write the values of as many codes as `out` is long.
    pub fn values(&self, codes: &Codes, out: &mut [f32]) {
        let stored = self.codes.chunks(codes.group_len);
        let groups = stored.zip(&self.scales).zip(&self.minimums);
        for (out, ((stored, scale), minimum)) in out.chunks_mut(codes.group_len).zip(groups) {
            for (value, code) in out.iter_mut().zip(stored) {
                let code = match codes.table {
                    Some(table) => table[usize::from(code.cast_unsigned() & 15)],
                    None => *code,
                };
                let product = scale * f32::from(code);
                // Adding a minimum of 0 would lose the sign of -0.
                *value = if codes.has_minimum {
                    product + minimum
                } else {
                    product
                };
            }
        }
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// 32 codes of 4 bits: the low nibbles of 16 bytes, then the high ones.
fn nibbles(bytes: &[u8], out: &mut [i8]) {
    for (i, byte) in bytes.iter().enumerate() {
        out[i] = (byte & 15).cast_signed();
        out[i + bytes.len()] = (byte >> 4).cast_signed();
    }
}

/// Add bit `i` of `high` to code `i`, as its fifth bit.
fn fifth_bits(high: &[u8], codes: &mut [i8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((high[i / 8] >> (i % 8) & 1) << 4).cast_signed();
    }
}

/// d f16, 16 bytes: byte i holds code i (low half) and code i + 16.
pub(crate) fn q4_0(b: &[u8], out: &mut Block) {
    out.scales[0] = half(b, 0);
    nibbles(&b[2..18], &mut out.codes);
    out.codes[..32].iter_mut().for_each(|c| *c -= 8);
}

/// d f16, m f16, 16 bytes as in Q4_0.
pub(crate) fn q4_1(b: &[u8], out: &mut Block) {
    (out.scales[0], out.minimums[0]) = (half(b, 0), half(b, 2));
    nibbles(&b[4..20], &mut out.codes);
}

/// d f16, 32 fifth bits, 16 bytes as in Q4_0.
pub(crate) fn q5_0(b: &[u8], out: &mut Block) {
    out.scales[0] = half(b, 0);
    nibbles(&b[6..22], &mut out.codes);
    fifth_bits(&b[2..6], &mut out.codes[..32]);
    out.codes[..32].iter_mut().for_each(|c| *c -= 16);
}

/// d f16, m f16, 32 fifth bits, 16 bytes as in Q4_0.
pub(crate) fn q5_1(b: &[u8], out: &mut Block) {
    (out.scales[0], out.minimums[0]) = (half(b, 0), half(b, 2));
    nibbles(&b[8..24], &mut out.codes);
    fifth_bits(&b[4..8], &mut out.codes[..32]);
}

/// d f16, 32 signed bytes.
pub(crate) fn q8_0(b: &[u8], out: &mut Block) {
    out.scales[0] = half(b, 0);
    out.codes
        .iter_mut()
        .zip(&b[2..34])
        .for_each(|(c, byte)| *c = byte.cast_signed());
}

/// 16 bytes of scale (low half) and minimum, 64 bytes of 2-bit codes, d f16, dmin f16.
pub(crate) fn q2_k(b: &[u8], out: &mut Block) {
    let (d, dmin) = (half(b, 80), half(b, 82));
    for (i, byte) in b[..16].iter().enumerate() {
        out.scales[i] = d * f32::from(byte & 15);
        out.minimums[i] = -dmin * f32::from(byte >> 4);
    }
    for (i, code) in out.codes.iter_mut().enumerate() {
        *code = two_bits(&b[16..80], i).cast_signed();
    }
}

/// The 2-bit code `i` of a block of 256: code `128 h + 32 s + i` is bits `2 s` of byte `32 h + i`.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// The 16 scales of a Q3_K block, 6 bits each less 32: the low four bits of scale `8 n + i` are
/// half n of byte i, the high two of scale `4 n + i` are bits `2 n` of byte `8 + i`.
#[inline(always)]
pub fn q3_k_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = packed[i % 8] >> (4 * (i / 8)) & 15;
        let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// 32 bytes of third bits, 64 bytes as in Q2_K, 12 bytes of scales, d f16. The third bit of code
/// `32 j + i` is bit j of byte i; where the bit is 0, the code is 4 less.
pub(crate) fn q3_k(b: &[u8], out: &mut Block) {
    let (mask, codes, d) = (&b[..32], &b[32..96], half(b, 108));
    let packed = b[96..].first_chunk().expect("the scales precede d");
    out.scales = q3_k_scales(packed).map(|scale| d * f32::from(scale));
    for (i, code) in out.codes.iter_mut().enumerate() {
        let high = mask[i % 32] >> (i / 32) & 1;
        *code = (two_bits(codes, i) | high << 2).cast_signed() - 4;
    }
}

/// The 8 scales, then the 8 minimums of a Q4_K or Q5_K block, 6 bits each. The first four have all
/// their bits in one byte; the last four have their low four bits in bytes 8..12 and their high two
/// bits on top of bytes 0..8.
#[inline(always)]
pub fn k_scales(packed: &[u8; 12]) -> [u8; 16] {
    let word = |at: usize| {
        u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]])
    };
    let (scale, min, low) = (word(0), word(4), word(8));
    let words = [
        scale & 0x3f3f_3f3f,
        (low & 0x0f0f_0f0f) | (scale >> 2 & 0x3030_3030),
        min & 0x3f3f_3f3f,
        (low >> 4 & 0x0f0f_0f0f) | (min >> 2 & 0x3030_3030),
    ];
    let mut bytes = [0; 16];
    for (four, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *four = word.to_le_bytes();
    }
    bytes
}

/// d f16, dmin f16, 12 bytes of [`k_scales`].
fn k_groups(b: &[u8], out: &mut Block) {
    let (d, dmin) = (half(b, 0), half(b, 2));
    let packed = b[4..]
        .first_chunk()
        .expect("the block is longer than its scales");
    let scales = k_scales(packed);
    for i in 0..8 {
        out.scales[i] = d * f32::from(scales[i]);
        out.minimums[i] = -dmin * f32::from(scales[8 + i]);
    }
}

/// d f16, dmin f16, 12 bytes of scales, 128 bytes: byte `32 n + i` holds code `64 n + i` (low half)
/// and code `64 n + 32 + i`.
pub(crate) fn q4_k(b: &[u8], out: &mut Block) {
    k_groups(b, out);
    for (bytes, codes) in b[16..144].chunks(32).zip(out.codes.chunks_mut(64)) {
        nibbles(bytes, codes);
    }
}

/// d f16, dmin f16, 12 bytes of scales, 32 bytes of fifth bits, 128 bytes as in Q4_K. The fifth bit
/// of code `32 j + i` is bit j of byte i.
pub(crate) fn q5_k(b: &[u8], out: &mut Block) {
    k_groups(b, out);
    for (bytes, codes) in b[48..176].chunks(32).zip(out.codes.chunks_mut(64)) {
        nibbles(bytes, codes);
    }
    for (i, code) in out.codes.iter_mut().enumerate() {
        *code |= ((b[16 + i % 32] >> (i / 32) & 1) << 4).cast_signed();
    }
}

/// 128 bytes of low halves, 64 bytes of high two bits as in Q2_K, 16 signed scales, d f16. Code
/// `128 h + 64 n + i` has half n of byte `64 h + i`.
pub(crate) fn q6_k(b: &[u8], out: &mut Block) {
    let (low, high, scales, d) = (&b[..128], &b[128..192], &b[192..208], half(b, 208));
    for (scale, byte) in out.scales.iter_mut().zip(scales) {
        *scale = d * f32::from(byte.cast_signed());
    }
    for (i, code) in out.codes.iter_mut().enumerate() {
        let nibble = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        *code = (nibble | two_bits(high, i) << 4).cast_signed() - 32;
    }
}

/// d f16, 16 bytes as in Q4_0.
pub(crate) fn iq4_nl(b: &[u8], out: &mut Block) {
    out.scales[0] = half(b, 0);
    nibbles(&b[2..18], &mut out.codes);
}

/// d f16, 6 bytes of scales, 8 times 16 bytes as in Q4_0.
pub(crate) fn iq4_xs(b: &[u8], out: &mut Block) {
    let d = half(b, 0);
    let packed = b[2..]
        .first_chunk()
        .expect("the block is longer than its scales");
    for (out, scale) in out.scales.iter_mut().zip(iq4_xs_scales(packed)) {
        *out = d * f32::from(scale);
    }
    for (bytes, codes) in b[8..136].chunks(16).zip(out.codes.chunks_mut(32)) {
        nibbles(bytes, codes);
    }
}

/// The 8 scales of an IQ4_XS block, 6 bits each less 32: `packed` has the high two bits of each in
/// a u16, then the low four bits of each.
#[inline(always)]
pub fn iq4_xs_scales(packed: &[u8; 6]) -> [i8; 8] {
    let high = u16::from_le_bytes([packed[0], packed[1]]);
    std::array::from_fn(|i| {
        let low = packed[2 + i / 2] >> (4 * (i % 2)) & 15;
        (low | ((high >> (2 * i)) as u8 & 3) << 4) as i8 - 32
    })
}

/// e (E8M0: 2^(e - 127)), 16 bytes as in Q4_0. The scale is half of 2^(e - 127), because the table
/// is doubled. As in ggml, e = 255 is a large number; the OCP specification makes it NaN.
pub(crate) fn mxfp4(b: &[u8], out: &mut Block) {
    let exponent = u32::from(b[0]);
    // 2^(e - 128): subnormal for e of 0 and 1.
    out.scales[0] = f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (exponent - 1) << 23,
    });
    nibbles(&b[1..17], &mut out.codes);
}
