//! The pages of a column, each decompressed up to the length in its header, which was reserved.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use anyhow::{Context, ensure};
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use thane_mil::budget::{Budget, Reservation};

use super::thrift::{Compact, Ints, delta_end};

/// Values per batch of decoding.
pub const BATCH_LEN: usize = 16;
/// Most bytes of a header; one with statistics of long texts has some kB.
const HEADER_BYTES: u64 = 1 << 16;
const MAX_HEADER_BYTES: u64 = 1 << 24;
/// Upper bound of the bytes in memory of a dictionary value or a length.
const VALUE_BYTES: usize = 64;

/// Whether this compression is supported.
pub fn is_known(codec: Compression) -> bool {
    use Compression::{GZIP, LZ4, LZ4_RAW, SNAPPY, UNCOMPRESSED, ZSTD};
    matches!(
        codec,
        UNCOMPRESSED | SNAPPY | GZIP(_) | LZ4 | LZ4_RAW | ZSTD(_)
    )
}

/// Reads the pages of a column.
pub struct Pages {
    file: File,
    at: u64,
    end: u64,
    codec: Compression,
    values_left: i64,
    is_optional: bool,
    budget: Budget,
    dictionary: Option<Reservation>,
    page: Option<Reservation>,
}

/// A page header.
struct Header {
    ints: Ints,
    /// Bytes of the header.
    len: usize,
}

impl Header {
    fn get(&self, outer: i16, inner: i16) -> anyhow::Result<u32> {
        let value = self.ints.get(&(outer, inner));
        let value = value.with_context(|| format!("its header has no field {outer}.{inner}"))?;
        u32::try_from(*value)
            .with_context(|| format!("field {outer}.{inner} of its header is {value}"))
    }

    fn encoding(&self, outer: i16, inner: i16) -> anyhow::Result<Encoding> {
        Ok(match self.get(outer, inner)? {
            0 => Encoding::PLAIN,
            2 => Encoding::PLAIN_DICTIONARY,
            3 => Encoding::RLE,
            #[expect(deprecated, reason = "old files have it")]
            4 => Encoding::BIT_PACKED,
            5 => Encoding::DELTA_BINARY_PACKED,
            6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            7 => Encoding::DELTA_BYTE_ARRAY,
            8 => Encoding::RLE_DICTIONARY,
            9 => Encoding::BYTE_STREAM_SPLIT,
            other => anyhow::bail!("encoding {other} is not known"),
        })
    }
}

/// Constants of `parquet.thrift`: kinds of pages, and fields of headers.
const DATA: u32 = 0;
const DICTIONARY: u32 = 2;
const DATA_V2: u32 = 3;
const OF_DATA: i16 = 5;
const OF_DICTIONARY: i16 = 7;
const OF_DATA_V2: i16 = 8;

impl Pages {
    pub fn new(
        mut file: File,
        chunk: &ColumnChunkMetaData,
        budget: &Budget,
    ) -> anyhow::Result<Self> {
        let begin = chunk
            .dictionary_page_offset()
            .filter(|at| *at > 0)
            .unwrap_or(chunk.data_page_offset());
        let (begin, len) = (
            u64::try_from(begin)?,
            u64::try_from(chunk.compressed_size())?,
        );
        let file_len = file.seek(SeekFrom::End(0))?;
        let end = begin.checked_add(len).filter(|end| *end <= file_len);
        let end = end
            .with_context(|| format!("its bytes end at {begin} + {len}, the file at {file_len}"))?;
        Ok(Self {
            file,
            at: begin,
            end,
            codec: chunk.compression(),
            values_left: chunk.num_values(),
            is_optional: chunk.column_descr().max_def_level() > 0,
            budget: budget.clone(),
            dictionary: None,
            page: None,
        })
    }

    fn next_page(&mut self) -> anyhow::Result<Option<Page>> {
        while self.values_left > 0 && self.at < self.end {
            let begin = self.at;
            let page = self
                .page_at(begin)
                .with_context(|| format!("the page at byte {begin}"))?;
            if page.is_some() {
                return Ok(page);
            }
        }
        Ok(None)
    }

    /// The page; `None` for a kind without values.
    fn page_at(&mut self, begin: u64) -> anyhow::Result<Option<Page>> {
        let header = self.header(begin)?;
        let [kind, unpacked, packed] = [1, 2, 3].map(|field| header.get(field, 0));
        let (kind, unpacked, packed) = (kind?, unpacked? as usize, packed? as usize);
        let body = begin + header.len as u64;
        ensure!(
            packed as u64 <= self.end - body,
            "it has {packed} bytes, and {} are left",
            self.end - body
        );
        self.at = body + packed as u64;
        if ![DATA, DICTIONARY, DATA_V2].contains(&kind) {
            return Ok(None);
        }
        let what = || "a page of a Parquet file".to_owned();
        let mut held = self.budget.reserve(packed.saturating_add(unpacked), what)?;
        let mut bytes = vec![0; packed];
        self.file.seek(SeekFrom::Start(body))?;
        self.file.read_exact(&mut bytes)?;
        let page = match kind {
            DICTIONARY => self.dictionary(&header, self.unpack(&bytes, unpacked)?, &mut held)?,
            DATA => self.data(&header, self.unpack(&bytes, unpacked)?, &mut held)?,
            _ => self.data_v2(&header, &bytes, unpacked, &mut held)?,
        };
        drop(bytes);
        held.shrink(packed);
        let place = if kind == DICTIONARY {
            &mut self.dictionary
        } else {
            &mut self.page
        };
        *place = Some(held);
        Ok(Some(page))
    }

    fn header(&mut self, begin: u64) -> anyhow::Result<Header> {
        let mut read = |limit: u64| -> anyhow::Result<Header> {
            let mut bytes = Vec::new();
            self.file.seek(SeekFrom::Start(begin))?;
            (&self.file)
                .take(limit.min(self.end - begin))
                .read_to_end(&mut bytes)?;
            let mut from = Compact::new(&bytes);
            let ints = from.ints()?;
            Ok(Header {
                ints,
                len: from.position(),
            })
        };
        read(HEADER_BYTES)
            .or_else(|_| read(MAX_HEADER_BYTES))
            .context("its header")
    }

    fn unpack(&self, packed: &[u8], len: usize) -> anyhow::Result<Vec<u8>> {
        let bytes = unpack(self.codec, packed, len).with_context(|| format!("{}", self.codec))?;
        ensure!(
            bytes.len() == len,
            "expected {len} bytes unpacked, found {}",
            bytes.len()
        );
        Ok(bytes)
    }

    fn dictionary(
        &self,
        header: &Header,
        buf: Vec<u8>,
        held: &mut Reservation,
    ) -> anyhow::Result<Page> {
        let num_values = header.get(OF_DICTIONARY, 1)?;
        // Each text has a length of four bytes, and a number has at least four bytes.
        ensure!(
            num_values as usize <= buf.len() / 4,
            "{num_values} values are announced in {} bytes",
            buf.len()
        );
        held.grow(num_values as usize * VALUE_BYTES, || {
            "a dictionary of a Parquet file".to_owned()
        })?;
        let encoding = header.encoding(OF_DICTIONARY, 2)?;
        Ok(Page::DictionaryPage {
            buf: buf.into(),
            num_values,
            encoding,
            is_sorted: false,
        })
    }

    fn data(
        &mut self,
        header: &Header,
        buf: Vec<u8>,
        held: &mut Reservation,
    ) -> anyhow::Result<Page> {
        let num_values = header.get(OF_DATA, 1)?;
        let [encoding, def_level_encoding, rep_level_encoding] =
            [2, 3, 4].map(|f| header.encoding(OF_DATA, f));
        let (encoding, def_level_encoding) = (encoding?, def_level_encoding?);
        let levels = match (self.is_optional, def_level_encoding) {
            (false, _) => 0,
            (true, Encoding::RLE) => {
                let len = buf.first_chunk().context("its levels have no length")?;
                4 + u32::from_le_bytes(*len) as usize
            }
            (true, _) => (num_values as usize).div_ceil(8),
        };
        self.take(
            num_values,
            encoding,
            buf.get(levels..).context("its levels are cut off")?,
            held,
        )?;
        Ok(Page::DataPage {
            buf: buf.into(),
            num_values,
            encoding,
            def_level_encoding,
            rep_level_encoding: rep_level_encoding?,
            statistics: None,
        })
    }

    fn data_v2(
        &mut self,
        header: &Header,
        bytes: &[u8],
        unpacked: usize,
        held: &mut Reservation,
    ) -> anyhow::Result<Page> {
        let [num_values, num_nulls, num_rows, def, rep] =
            [1, 2, 3, 5, 6].map(|field| header.get(OF_DATA_V2, field));
        let (num_values, def_levels_byte_len, rep_levels_byte_len) = (num_values?, def?, rep?);
        let encoding = header.encoding(OF_DATA_V2, 4)?;
        // Levels come first and are not compressed.
        let levels = def_levels_byte_len as usize + rep_levels_byte_len as usize;
        ensure!(
            levels <= bytes.len() && levels <= unpacked,
            "its levels are cut off"
        );
        let is_compressed = header
            .ints
            .get(&(OF_DATA_V2, 7))
            .is_none_or(|flag| *flag != 0);
        let mut buf = bytes[..levels].to_vec();
        match is_compressed && unpacked > levels {
            true => buf.extend(self.unpack(&bytes[levels..], unpacked - levels)?),
            false => buf.extend(&bytes[levels..]),
        }
        self.take(num_values, encoding, &buf[levels..], held)?;
        Ok(Page::DataPageV2 {
            buf: buf.into(),
            num_values,
            encoding,
            num_nulls: num_nulls?,
            num_rows: num_rows?,
            def_levels_byte_len,
            rep_levels_byte_len,
            is_compressed: false,
            statistics: None,
        })
    }

    /// Counts values, and reserves the memory to decode them.
    fn take(
        &mut self,
        n: u32,
        encoding: Encoding,
        values: &[u8],
        held: &mut Reservation,
    ) -> anyhow::Result<()> {
        self.values_left -= i64::from(n);
        let what = || "values of a page of a Parquet file".to_owned();
        match encoding {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => {
                delta_end(values, u64::from(n)).context("its lengths")?;
                held.grow(n as usize * VALUE_BYTES, what)?;
            }
            Encoding::DELTA_BYTE_ARRAY => {
                let prefixes = delta_end(values, u64::from(n)).context("its prefixes")?;
                delta_end(&values[prefixes..], u64::from(n)).context("its suffixes")?;
                // Each value may repeat the one before it, so each can be as long as the page.
                let values = values.len().saturating_mul(BATCH_LEN);
                held.grow(values.saturating_add(n as usize * VALUE_BYTES), what)?;
            }
            _ => {}
        }
        Ok(())
    }
}

pub fn unpack(codec: Compression, packed: &[u8], len: usize) -> io::Result<Vec<u8>> {
    let invalid =
        |e: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
    let mut out = Vec::new();
    match codec {
        Compression::UNCOMPRESSED => out.extend_from_slice(packed),
        Compression::GZIP(_) => {
            // What grows by itself takes more than is reserved.
            out.reserve_exact(len.saturating_add(1));
            flate2::read::MultiGzDecoder::new(packed)
                .take(len as u64 + 1)
                .read_to_end(&mut out)?;
        }
        Compression::SNAPPY => {
            out.resize(len, 0);
            let n = snap::raw::Decoder::new()
                .decompress(packed, &mut out)
                .map_err(|e| invalid(&e))?;
            out.truncate(n);
        }
        Compression::ZSTD(_) => {
            out.resize(len, 0);
            let n = zstd::bulk::decompress_to_buffer(packed, &mut out)?;
            out.truncate(n);
        }
        Compression::LZ4_RAW => {
            out.resize(len, 0);
            let n = lz4_flex::block::decompress_into(packed, &mut out).map_err(|e| invalid(&e))?;
            out.truncate(n);
        }
        Compression::LZ4 => {
            return unpack_hadoop(packed, len)
                .or_else(|_| unpack(Compression::LZ4_RAW, packed, len));
        }
        other => return Err(invalid(&format!("{other} cannot be unpacked"))),
    }
    Ok(out)
}

/// LZ4 as Hadoop writes it: blocks, each after its two big-endian lengths.
fn unpack_hadoop(mut packed: &[u8], len: usize) -> io::Result<Vec<u8>> {
    let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let mut out = vec![0; len];
    let mut at = 0usize;
    while let Some((unpacked, rest)) = packed.split_first_chunk() {
        let (n, rest) = rest.split_first_chunk().ok_or_else(cut)?;
        let (unpacked, n) = (
            u32::from_be_bytes(*unpacked) as usize,
            u32::from_be_bytes(*n) as usize,
        );
        let block = rest.get(..n).ok_or_else(cut)?;
        let to = at
            .checked_add(unpacked)
            .and_then(|end| out.get_mut(at..end))
            .ok_or_else(cut)?;
        let found = lz4_flex::block::decompress_into(block, to).map_err(io::Error::other)?;
        at += found;
        packed = &rest[n..];
    }
    out.truncate(at);
    Ok(out)
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.next_page()
            .map_err(|e| ParquetError::External(e.into()))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        Err(ParquetError::General(
            "pages are not looked at in advance".to_owned(),
        ))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.get_next_page().map(|_| ())
    }
}
