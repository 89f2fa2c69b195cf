//! Reads PNG and JPEG files for inputs that are images.
//!
//! A program gets an image as numbers from 0 to 255 in a tensor [1, channels, height, width] or
//! [channels, height, width]. coremltools writes scale and bias into the program as ops, so nothing
//! is scaled here. As coremltools, this refuses an image of another size or with other channels
//! than the description says; a grayscale file for an input in color has three equal channels.
//! Color profiles and the orientation of a photograph are not applied, as in PIL.

mod decode;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use thane_mil::budget::{Budget, Reservation};
use thane_mil::package::{ColorSpace, Image, ImageSizes, SizeRange};
use thane_mil::types::{DType, TensorType};

use crate::npy::Array;
use crate::tensors;
use decode::{Format, Header};

/// A file with an image, whose header was not read yet.
pub struct Opened {
    format: Format,
    bytes: Vec<u8>,
    _held: Reservation,
}

/// Reads a PNG or JPEG file; `None` if the file begins with no such image.
pub fn open(path: &Path, budget: &Budget) -> anyhow::Result<Option<Opened>> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    // A pipe can be read once, and is a .npy file.
    if !metadata.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.by_ref().take(8).read_to_end(&mut bytes)?;
    let Some(format) = Format::of(&bytes) else {
        return Ok(None);
    };
    let n_bytes = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    let held = budget.reserve(n_bytes, || "an image file".to_owned())?;
    file.take(metadata.len().saturating_sub(8))
        .read_to_end(&mut bytes)?;
    Ok(Some(Opened {
        format,
        bytes,
        _held: held,
    }))
}

impl Opened {
    /// The pixels as the tensor of an input.
    pub fn read(&self, image: &Image, ty: &TensorType, budget: &Budget) -> anyhow::Result<Array> {
        let header = decode::header(self.format, &self.bytes)?;
        check_size(&header, image)?;
        check_channels(&header, image)?;
        let shape = shape(ty, n_channels(image), header.height, header.width)?;
        let n_pixels = header.width * header.height;
        let n_bytes = ty.dtype.byte_len(n_pixels * n_channels(image));
        let what = || format!("an image of {} x {} pixels", header.width, header.height);
        let n_bytes = n_bytes.context("its size is not known")?;
        let held = budget.reserve(n_bytes, what)?;
        // A decoder of progressive JPEG holds 16 bits per channel and its result.
        let _decoding = budget.reserve(n_pixels.saturating_mul(header.n_channels * 3), what)?;
        let pixels = decode::pixels(self.format, &self.bytes, &header)?;
        Ok(Array {
            dtype: ty.dtype,
            shape,
            bytes: planes(&pixels, &header, image, ty.dtype)?,
            held: Some(held),
        })
    }
}

/// Pseudo-random pixels of the default size or of this shape.
pub fn made_up(
    seed: u64,
    name: &str,
    ty: &TensorType,
    image: &Image,
    asked: Option<&[usize]>,
    budget: &Budget,
) -> anyhow::Result<Array> {
    let shape = match asked {
        Some(_) => tensors::shape(ty, asked, None).with_context(|| {
            format!("it is {ty}; --shape {name}=DIMS gives it a size that fits")
        })?,
        None => shape(ty, n_channels(image), image.height, image.width)?,
    };
    let floats = TensorType {
        dtype: DType::Fp32,
        ..ty.clone()
    };
    let values = tensors::made_up(seed, name, &floats, shape, budget)?;
    let mut bytes = Vec::new();
    for value in values.bytes.as_chunks().0 {
        let pixel = ((f32::from_le_bytes(*value) + 1.0) * 128.0)
            .floor()
            .clamp(0.0, 255.0);
        put(&mut bytes, ty.dtype, pixel as u8)?;
    }
    Ok(Array {
        dtype: ty.dtype,
        bytes,
        ..values
    })
}

fn n_channels(image: &Image) -> usize {
    match image.color {
        ColorSpace::Rgb | ColorSpace::Bgr => 3,
        ColorSpace::Grayscale | ColorSpace::GrayscaleFp16 => 1,
    }
}

fn shape(
    ty: &TensorType,
    channels: usize,
    height: usize,
    width: usize,
) -> anyhow::Result<Vec<usize>> {
    let dims = [1, channels, height, width];
    let shape = match ty.rank() {
        4 => &dims[..],
        3 => &dims[1..],
        _ => &[],
    };
    anyhow::ensure!(
        ty.fits(shape),
        "expected a tensor {dims:?} for an image, found {ty}; a .npy file of that type goes in"
    );
    Ok(shape.to_vec())
}

fn check_size(header: &Header, image: &Image) -> anyhow::Result<()> {
    let Header { width, height, .. } = *header;
    let within = |n: usize, range: &SizeRange| {
        n >= range.lower && range.upper.is_none_or(|upper| n <= upper)
    };
    let size = |width: usize, height: usize| format!("{width} x {height}");
    let (fits, sizes) = match &image.sizes {
        ImageSizes::Fixed => (
            (width, height) == (image.width, image.height),
            size(image.width, image.height),
        ),
        ImageSizes::Enumerated(sizes) => {
            let all: Vec<String> = sizes.iter().map(|(w, h)| size(*w, *h)).collect();
            (sizes.contains(&(width, height)), all.join(" or "))
        }
        ImageSizes::Ranges {
            width: w,
            height: h,
        } => (
            within(width, w) && within(height, h),
            format!("{} x {}", range(w), range(h)),
        ),
    };
    anyhow::ensure!(
        fits && width > 0 && height > 0,
        "expected an image of {sizes} pixels (width x height), found {}; scale or crop it first, \
         for example with `magick IMAGE -resize WIDTHxHEIGHT! SCALED.png`",
        size(width, height)
    );
    Ok(())
}

fn range(range: &SizeRange) -> String {
    match range.upper {
        Some(upper) => format!("({} to {upper})", range.lower),
        None => format!("({} or more)", range.lower),
    }
}

fn check_channels(header: &Header, image: &Image) -> anyhow::Result<()> {
    anyhow::ensure!(
        header.bits <= 8,
        "expected 8 bits per channel, found {}; `magick IMAGE -depth 8 NARROWED.png` converts it",
        header.bits
    );
    anyhow::ensure!(
        n_channels(image) == 3 || header.n_channels < 3,
        "expected a grayscale image, found one in color; `magick IMAGE -colorspace gray GRAY.png` \
         converts it"
    );
    Ok(())
}

/// Interleaved pixels as one plane per channel.
fn planes(pixels: &[u8], header: &Header, image: &Image, dtype: DType) -> anyhow::Result<Vec<u8>> {
    let has_alpha = header.n_channels.is_multiple_of(2);
    let n_colors = header.n_channels - usize::from(has_alpha);
    let mut rows = pixels.chunks_exact(header.n_channels);
    anyhow::ensure!(
        !has_alpha || rows.all(|pixel| pixel.last() == Some(&255)),
        "expected opaque pixels, found transparent ones; `magick IMAGE -background white -alpha \
         remove -alpha off OPAQUE.png` puts a color behind them"
    );
    let mut bytes = Vec::new();
    for channel in 0..n_channels(image) {
        let channel = match image.color {
            ColorSpace::Bgr => 2 - channel,
            _ => channel,
        };
        let channel = channel.min(n_colors - 1);
        for pixel in pixels.chunks_exact(header.n_channels) {
            put(&mut bytes, dtype, pixel[channel])?;
        }
    }
    Ok(bytes)
}

fn put(bytes: &mut Vec<u8>, dtype: DType, pixel: u8) -> anyhow::Result<()> {
    tensors::put_float(bytes, dtype, f64::from(pixel))
        .with_context(|| format!("expected an image in fp32 or fp16, found {dtype}"))
}
