//! Reads and writes NumPy's `.npy` files, versions 1 to 3: row-major arrays of the element types
//! that programs have.
//!
//! Source: `lib/format.py` of numpy, which documents the format.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use thane_mil::backend::View;
use thane_mil::budget::{Budget, Reservation};
use thane_mil::types::DType;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Most bytes of a header, which usually has a few dozen.
const MOST_HEADER_BYTES: usize = 1 << 16;

/// An array, row-major, little-endian.
#[derive(Debug)]
pub struct Array {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
    /// Holds the memory of the bytes.
    pub held: Option<Reservation>,
}

impl Array {
    /// The array as a backend takes it.
    pub fn view(&self) -> View<'_> {
        View {
            dtype: self.dtype,
            shape: &self.shape,
            bytes: &self.bytes,
        }
    }
}

/// A file whose header was read.
pub struct Opened<R> {
    pub dtype: DType,
    pub shape: Vec<usize>,
    n_bytes: usize,
    file: R,
}

/// Names of element types in headers.
const NAMES: &[(DType, &str)] = &[
    (DType::Fp16, "<f2"),
    (DType::Fp32, "<f4"),
    (DType::Fp64, "<f8"),
    (DType::Int8, "|i1"),
    (DType::Int16, "<i2"),
    (DType::Int32, "<i4"),
    (DType::Int64, "<i8"),
    (DType::Uint8, "|u1"),
    (DType::Uint16, "<u2"),
    (DType::Uint32, "<u4"),
    (DType::Uint64, "<u8"),
    (DType::Bool, "|b1"),
];

/// Reads the header of a file.
pub fn open(path: &Path) -> anyhow::Result<Opened<impl Read>> {
    let file = File::open(path).map_err(|fault| match fault.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!("no such file"),
        _ => fault.into(),
    })?;
    let metadata = file.metadata()?;
    anyhow::ensure!(!metadata.is_dir(), "expected a .npy file, found a folder");
    // A pipe has no length.
    let n_bytes = match metadata.is_file() {
        true => metadata.len(),
        false => u64::MAX,
    };
    parse(io::BufReader::new(file), n_bytes)
}

impl<R: Read> Opened<R> {
    /// Reads the elements.
    pub fn read(mut self, budget: &Budget) -> anyhow::Result<Array> {
        let Self {
            dtype,
            shape,
            n_bytes,
            ..
        } = self;
        let held = budget.reserve(n_bytes, || format!("an array {shape:?} of {dtype}"))?;
        let mut bytes = Vec::new();
        let mut file = self.file.by_ref().take(n_bytes as u64);
        file.read_to_end(&mut bytes)?;
        let is_whole = bytes.len() == n_bytes;
        anyhow::ensure!(is_whole, "it is shorter than its shape {shape:?}");
        Ok(Array {
            dtype,
            shape,
            bytes,
            held: Some(held),
        })
    }
}

fn parse<R: Read>(mut file: R, n_bytes: u64) -> anyhow::Result<Opened<R>> {
    let mut start = [0; 8];
    let is_whole = match file.read_exact(&mut start) {
        Err(fault) if fault.kind() == io::ErrorKind::UnexpectedEof => false,
        read => read.map(|()| true)?,
    };
    anyhow::ensure!(
        is_whole && start.starts_with(MAGIC),
        "it is no .npy file; numpy.save writes one"
    );
    let header_len = match start[6] {
        1 => {
            let mut len = [0; 2];
            file.read_exact(&mut len)?;
            usize::from(u16::from_le_bytes(len))
        }
        2 | 3 => {
            let mut len = [0; 4];
            file.read_exact(&mut len)?;
            u32::from_le_bytes(len) as usize
        }
        version => anyhow::bail!("version {version} of the .npy format is not known"),
    };
    anyhow::ensure!(
        header_len <= MOST_HEADER_BYTES,
        "its header claims {header_len} bytes"
    );
    let mut header = vec![0; header_len];
    file.read_exact(&mut header)?;
    let header = std::str::from_utf8(&header)?;
    let (dtype, shape) = describe(header)?;
    let n = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let n = n.and_then(|n| dtype.byte_len(n));
    let n = n.filter(|n| *n as u64 <= n_bytes);
    let n_bytes = n.ok_or_else(|| anyhow::anyhow!("it is shorter than its shape {shape:?}"))?;
    Ok(Opened {
        dtype,
        shape,
        n_bytes,
        file,
    })
}

/// Parses element type and shape of a header such as `{'descr': '<f4', 'fortran_order': False,
/// 'shape': (2, 3), }`.
fn describe(header: &str) -> anyhow::Result<(DType, Vec<usize>)> {
    let field = |name: &str| {
        let at = header.find(&format!("'{name}':"))? + name.len() + 3;
        Some(header[at..].trim_start())
    };
    let broken = || anyhow::anyhow!("its header is not understood: {}", header.trim_end());
    let descr = field("descr")
        .and_then(|f| f.strip_prefix('\'')?.split('\'').next())
        .ok_or_else(broken)?;
    let same = |name: &str| {
        name[1..] == *descr.trim_start_matches(['<', '|', '=']) && !descr.starts_with('>')
    };
    let known = NAMES.iter().find(|(_, name)| same(name));
    let (dtype, _) = known.ok_or_else(|| {
        anyhow::anyhow!("its elements are `{descr}`; numbers and truth values in little-endian order can be read")
    })?;
    let shape = field("shape")
        .and_then(|f| f.strip_prefix('(')?.split(')').next())
        .ok_or_else(broken)?;
    let dims = shape.split(',').map(str::trim).filter(|d| !d.is_empty());
    let shape = dims
        .map(|d| d.parse().map_err(|_| broken()))
        .collect::<anyhow::Result<Vec<usize>>>()?;
    let order = field("fortran_order").ok_or_else(broken)?;
    let is_row_major = order.starts_with("False");
    anyhow::ensure!(
        is_row_major || shape.len() < 2,
        "it is column-major; numpy.ascontiguousarray makes it row-major"
    );
    Ok((*dtype, shape))
}

/// Writes an array. An element type that numpy does not have is an error.
pub fn write(out: &mut dyn Write, dtype: DType, shape: &[usize], bytes: &[u8]) -> io::Result<()> {
    write_header(out, dtype, shape)?;
    out.write_all(bytes)
}

/// Writes everything before the elements.
pub fn write_header(out: &mut dyn Write, dtype: DType, shape: &[usize]) -> io::Result<()> {
    let unknown = || io::Error::other(format!("numpy has no elements of type {dtype}"));
    let known = NAMES.iter().find(|(d, _)| *d == dtype);
    let (_, name) = known.ok_or_else(unknown)?;
    let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let mut header = format!(
        "{{'descr': '{name}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        dims.join(", ")
    );
    // The elements begin at a multiple of 64 bytes; the header ends with a line break.
    let n_before = MAGIC.len() + 4 + header.len() + 1;
    let fill = n_before.next_multiple_of(64) - n_before;
    header.push_str(&" ".repeat(fill));
    header.push('\n');
    let len = u16::try_from(header.len()).map_err(io::Error::other)?;
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(header.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_bytes(bytes: &[u8]) -> Result<(DType, Vec<usize>, Vec<u8>), String> {
        let opened = parse(bytes, bytes.len() as u64).map_err(|e| e.to_string())?;
        let array = opened
            .read(&Budget::new(1 << 20))
            .map_err(|e| e.to_string())?;
        Ok((array.dtype, array.shape, array.bytes))
    }

    fn file(header: &str) -> Vec<u8> {
        [
            b"\x93NUMPY\x01\x00",
            &(header.len() as u16).to_le_bytes()[..],
            header.as_bytes(),
        ]
        .concat()
    }

    /// Issue 30, 3.5: a sparse file has as many bytes as it says, and a pipe does not say.
    #[test]
    fn a_header_that_claims_terabytes_is_refused_before_it_is_believed() {
        let bytes = file("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }");
        let opened = parse(bytes.as_slice(), u64::MAX).unwrap();
        let error = opened.read(&Budget::new(1 << 30)).unwrap_err().to_string();
        assert!(
            error.starts_with("an array [1099511627776] of fp32 needs 4398.0 GB of memory"),
            "{error}"
        );
        let bytes = file("{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }");
        let error = parse(bytes.as_slice(), u64::MAX)
            .unwrap()
            .read(&Budget::new(1 << 30))
            .unwrap_err()
            .to_string();
        assert!(error.contains("shorter than its shape [9]"), "{error}");
    }

    #[test]
    fn arrays_come_back() {
        for (dtype, shape) in [
            (DType::Fp32, vec![2, 3]),
            (DType::Bool, vec![5]),
            (DType::Fp16, vec![]),
            (DType::Int32, vec![0, 4]),
        ] {
            let n = dtype.byte_len(shape.iter().product()).unwrap();
            let bytes: Vec<u8> = (0..n).map(|i| (i % 2) as u8).collect();
            let mut file = Vec::new();
            write(&mut file, dtype, &shape, &bytes).unwrap();
            assert_eq!((file.len() - n) % 64, 0);
            assert_eq!(read_bytes(&file), Ok((dtype, shape, bytes)));
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (bytes, message) in [
            (b"PK\x03\x04 some zip".to_vec(), "no .npy file"),
            (
                file("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }"),
                "`>f4`",
            ),
            (
                file("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }"),
                "`<c8`",
            ),
            (
                file("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }"),
                "column-major",
            ),
            (
                file(
                    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999), }",
                ),
                "shorter than its shape",
            ),
            (
                file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"),
                "shorter than its shape",
            ),
            (file("nothing"), "not understood"),
        ] {
            let error = read_bytes(&bytes).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
