//! Decodes PNG and JPEG. Sizes are read first, so that callers can refuse an image that is too
//! large before any memory is taken for its pixels.

use std::io::Cursor;

use anyhow::Context;
use png::{BitDepth, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Png,
    Jpeg,
}

/// What an image file says about its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub width: usize,
    pub height: usize,
    /// 1 is gray, 2 gray with alpha, 3 red, green and blue, 4 with alpha.
    pub n_channels: usize,
    /// Bits per channel.
    pub bits: u8,
}

impl Format {
    /// The format of a file that begins with these bytes.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            return Some(Self::Png);
        }
        bytes.starts_with(b"\xff\xd8\xff").then_some(Self::Jpeg)
    }
}

/// Reads the header of an image.
pub fn header(format: Format, bytes: &[u8]) -> anyhow::Result<Header> {
    match format {
        Format::Png => Ok(png(bytes)?.1),
        Format::Jpeg => Ok(jpeg(bytes)?.1),
    }
}

/// Decodes pixels: interleaved channels, 8 bits each, row by row.
pub fn pixels(format: Format, bytes: &[u8], header: &Header) -> anyhow::Result<Vec<u8>> {
    let mut pixels = vec![0; header.width * header.height * header.n_channels];
    match format {
        Format::Png => {
            let (mut reader, _) = png(bytes)?;
            let info = reader
                .next_frame(&mut pixels)
                .context("a damaged PNG file")?;
            // What follows the first image may be damaged too.
            reader.finish().context("a damaged PNG file")?;
            anyhow::ensure!(
                info.buffer_size() == pixels.len(),
                "expected {} bytes of pixels, found {}",
                pixels.len(),
                info.buffer_size()
            );
        }
        Format::Jpeg => {
            let (mut decoder, _) = jpeg(bytes)?;
            decoder
                .decode_into(&mut pixels)
                .map_err(|e| damaged_jpeg(&e))?;
        }
    }
    Ok(pixels)
}

type PngReader<'a> = png::Reader<Cursor<&'a [u8]>>;

fn png(bytes: &[u8]) -> anyhow::Result<(PngReader<'_>, Header)> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::EXPAND);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let reader = decoder.read_info().context("a damaged PNG file")?;
    let (color, depth) = reader.output_color_type();
    let header = Header {
        width: reader.info().width as usize,
        height: reader.info().height as usize,
        n_channels: color.samples(),
        bits: if depth == BitDepth::Sixteen { 16 } else { 8 },
    };
    Ok((reader, header))
}

fn jpeg(bytes: &[u8]) -> anyhow::Result<(JpegDecoder<Cursor<&[u8]>>, Header)> {
    // JPEG has no larger sizes. In strict mode a truncated file is an error instead of gray.
    const LARGEST: usize = 65_535;
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(LARGEST)
        .set_max_height(LARGEST);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| damaged_jpeg(&e))?;
    let (width, height) = decoder.dimensions().context("a JPEG file without a size")?;
    let (n_channels, output) = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => (1, ColorSpace::Luma),
        Some(ColorSpace::YCbCr | ColorSpace::RGB) => (3, ColorSpace::RGB),
        other => anyhow::bail!(
            "expected a JPEG file in gray, YCbCr or RGB, found {}; `magick IMAGE -colorspace sRGB \
             CONVERTED.png` converts it",
            other.map_or_else(|| "no colors".to_owned(), |color| format!("{color:?}"))
        ),
    };
    decoder.set_options(options.jpeg_set_out_colorspace(output));
    let header = Header {
        width,
        height,
        n_channels,
        bits: 8,
    };
    Ok((decoder, header))
}

fn damaged_jpeg(error: &zune_jpeg::errors::DecodeErrors) -> anyhow::Error {
    anyhow::anyhow!("a damaged JPEG file: {error:?}")
}
