//! Scratch memory of f32 as memory of other types.

/// The memory of some f32, for other uses.
pub(super) fn f32_as_i8(slice: &mut [f32]) -> &mut [i8] {
    // SAFETY: an i8 has no alignment and no bad values, nor has f32; the length is that of the same
    // bytes; the borrow is handed on.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

/// The memory of some f32, for other uses.
pub(super) fn f32_as_u8(slice: &mut [f32]) -> &mut [u8] {
    // SAFETY: as in `f32_as_i8`.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

/// Codes as the bytes that they are.
pub(super) fn i8_as_u8(slice: &[i8]) -> &[u8] {
    // SAFETY: i8 and u8 have the same size, alignment and no bad values.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) }
}
