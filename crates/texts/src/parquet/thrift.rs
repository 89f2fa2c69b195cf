//! Parses Thrift's compact protocol as far as Parquet's headers need it: integers by field;
//! everything else is skipped. Lists that are longer than the remaining bytes are refused, so that
//! nothing is allocated for them.
//!
//! Source: `doc/specs/thrift-compact-protocol.md` of Apache Thrift, `parquet.thrift` of Apache
//! Parquet.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};

/// Deepest nesting of structs; Parquet has seven levels.
const MAX_DEPTH: usize = 32;

const TRUE: u8 = 1;
const FALSE: u8 = 2;

/// Bytes to parse.
pub struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Number of structs so far.
    n_structs: usize,
}

/// Counts of a footer.
pub struct Census {
    pub n_structs: usize,
    /// Deepest nesting of groups in the schema.
    pub depth: usize,
}

/// The integers of a struct and of its nested structs, by pairs of fields. The second field is 0
/// for the struct's own integers.
pub type Ints = BTreeMap<(i16, i16), i64>;

impl<'a> Compact<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            n_structs: 0,
        }
    }

    /// Number of bytes that were parsed.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Parses the integers of a struct.
    pub fn ints(&mut self) -> anyhow::Result<Ints> {
        let mut ints = Ints::new();
        let mut outer = 0;
        while let Some(kind) = self.field(&mut outer)? {
            match kind {
                12 => {
                    let mut inner = 0;
                    while let Some(kind) = self.field(&mut inner)? {
                        if let Some(value) = self.int(kind, 2)? {
                            ints.insert((outer, inner), value);
                        }
                    }
                }
                _ => {
                    if let Some(value) = self.int(kind, 1)? {
                        ints.insert((outer, 0), value);
                    }
                }
            }
        }
        Ok(ints)
    }

    /// Parses the metadata of a file. Field 2 is the schema: groups come before their children, and
    /// field 5 is the number of children.
    pub fn census(&mut self) -> anyhow::Result<Census> {
        let (mut field, mut depth) = (0, 0);
        while let Some(kind) = self.field(&mut field)? {
            if (field, kind) == (2, 9) {
                depth = self.schema_depth()?;
            } else {
                self.skip(kind, 1)?;
            }
        }
        Ok(Census {
            n_structs: self.n_structs,
            depth,
        })
    }

    fn schema_depth(&mut self) -> anyhow::Result<usize> {
        let (n, kind) = self.list()?;
        ensure!(kind == 12, "the schema is no list of structs");
        // Remaining children of each enclosing group.
        let (mut open, mut depth) = (Vec::<usize>::new(), 0);
        for i in 0..n {
            while open.last() == Some(&0) {
                open.pop();
            }
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            let (mut field, mut children) = (0, 0);
            while let Some(kind) = self.field(&mut field)? {
                let value = self.int(kind, 2)?;
                children = if field == 5 {
                    value.unwrap_or(0)
                } else {
                    children
                };
            }
            let children = usize::try_from(children).ok().filter(|c| *c < n - i);
            let children = children
                .context("a group of the schema has more children than there are elements")?;
            if children > 0 {
                open.push(children);
                depth = depth.max(open.len());
            }
        }
        Ok(depth)
    }

    fn byte(&mut self) -> anyhow::Result<u8> {
        let byte = *self.bytes.get(self.at).context("it ends in the middle")?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> anyhow::Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        anyhow::bail!("a number has more than ten bytes")
    }

    fn zigzag(&mut self) -> anyhow::Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn advance(&mut self, n: u64) -> anyhow::Result<()> {
        let left = (self.bytes.len() - self.at) as u64;
        ensure!(n <= left, "{n} bytes are announced, {left} are left");
        self.at += n as usize;
        Ok(())
    }

    /// The next field and its kind; `None` at the end of the struct.
    fn field(&mut self, id: &mut i16) -> anyhow::Result<Option<u8>> {
        let head = self.byte()?;
        if head & 15 == 0 {
            self.n_structs += 1;
            return Ok(None);
        }
        *id = match head >> 4 {
            0 => i16::try_from(self.zigzag()?)?,
            step => id
                .checked_add(i16::from(step))
                .context("a field has no number")?,
        };
        Ok(Some(head & 15))
    }

    /// Length of a list and kind of its items. Each item has at least one byte.
    fn list(&mut self) -> anyhow::Result<(usize, u8)> {
        let head = self.byte()?;
        let n = if head >> 4 == 15 {
            self.varint()?
        } else {
            u64::from(head >> 4)
        };
        let left = self.bytes.len() - self.at;
        ensure!(n <= left as u64, "a list of {n} items has {left} bytes");
        Ok((n as usize, head & 15))
    }

    /// The value of a field if it is a number; other values are skipped.
    fn int(&mut self, kind: u8, depth: usize) -> anyhow::Result<Option<i64>> {
        match kind {
            TRUE | FALSE => Ok(Some(i64::from(kind == TRUE))),
            3 => Ok(Some(i64::from(self.byte()? as i8))),
            4..=6 => self.zigzag().map(Some),
            _ => self.skip(kind, depth).map(|()| None),
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> anyhow::Result<()> {
        ensure!(depth < MAX_DEPTH, "it is nested more than {MAX_DEPTH} deep");
        match kind {
            TRUE..=6 => self.int(kind, depth).map(|_| ()),
            7 => self.advance(8),
            8 => {
                let n = self.varint()?;
                self.advance(n)
            }
            9 | 10 => {
                let (n, kind) = self.list()?;
                (0..n).try_for_each(|_| self.item(kind, depth + 1))
            }
            11 => {
                let n = self.varint()?;
                ensure!(
                    n <= (self.bytes.len() - self.at) as u64,
                    "a map of {n} entries is cut off"
                );
                let kinds = if n == 0 { 0 } else { self.byte()? };
                (0..n).try_for_each(|_| {
                    self.item(kinds >> 4, depth + 1)?;
                    self.item(kinds & 15, depth + 1)
                })
            }
            12 => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            13 => self.advance(16),
            other => anyhow::bail!("kind {other} is not known"),
        }
    }

    /// Skips an item of a list or map, where booleans take a byte.
    fn item(&mut self, kind: u8, depth: usize) -> anyhow::Result<()> {
        match kind {
            TRUE | FALSE => self.advance(1),
            _ => self.skip(kind, depth),
        }
    }
}

/// The offset after a run of `DELTA_BINARY_PACKED` numbers. A run of more than `max` numbers is an
/// error.
///
/// Source: `Encodings.md` of Apache Parquet.
pub fn delta_end(bytes: &[u8], max: u64) -> anyhow::Result<usize> {
    let mut from = Compact::new(bytes);
    let (block, n_minis, total) = (from.varint()?, from.varint()?, from.varint()?);
    from.zigzag()?;
    ensure!(
        total <= max,
        "{total} lengths are announced for {max} values"
    );
    ensure!(
        n_minis > 0 && block.is_multiple_of(n_minis) && block > 0,
        "a block of {block} in {n_minis} parts"
    );
    let (mini, mut left) = (block / n_minis, total.saturating_sub(1));
    while left > 0 {
        from.zigzag()?;
        let widths = from.at;
        from.advance(n_minis)?;
        for i in 0..n_minis as usize {
            if left == 0 {
                break;
            }
            let bits = u64::from(bytes[widths + i])
                .checked_mul(mini)
                .context("a block is too long")?;
            from.advance(bits / 8)?;
            left = left.saturating_sub(mini);
        }
    }
    Ok(from.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_found_by_their_fields() {
        // {1: i32 0, 2: i32 150, 5: {1: i32 3, 3: true, 4: binary "ab"}}
        let bytes = [
            0x15, 0x00, 0x15, 0xac, 0x02, 0x3c, 0x15, 0x06, 0x21, 0x18, 0x02, b'a', b'b', 0x00,
            0x00, 0xff,
        ];
        let mut from = Compact::new(&bytes);
        let ints = from.ints().unwrap();
        assert_eq!(
            ints,
            Ints::from([((1, 0), 0), ((2, 0), 150), ((5, 1), 3), ((5, 3), 1)])
        );
        assert_eq!(from.position(), bytes.len() - 1);
        for cut in 0..bytes.len() - 1 {
            assert!(Compact::new(&bytes[..cut]).ints().is_err(), "{cut}");
        }
    }

    #[test]
    fn what_is_announced_and_not_there_is_refused() {
        let error = |bytes: &[u8]| format!("{:#}", Compact::new(bytes).census().err().unwrap());
        // A schema of 2^31 - 1 elements; a group of it with a million children; structs without
        // end.
        assert!(
            error(&[0x29, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07])
                .contains("a list of 2147483647 items has 0 bytes")
        );
        let children = [0x29, 0x2c, 0x55, 0x80, 0x89, 0x7a, 0x00, 0x00, 0x00];
        assert!(
            error(&children).contains("more children than there are elements"),
            "{}",
            error(&children)
        );
        assert!(error(&[0x1c; 1000]).contains("nested more than 32 deep"));
    }

    #[test]
    fn the_end_of_packed_numbers() {
        // 128 in 4 parts, 3 numbers, first 5; deltas of 0 bits, then a byte behind.
        let bytes = [0x80, 0x01, 0x04, 0x03, 0x0a, 0x02, 0, 0, 0, 0, 0x77];
        assert_eq!(delta_end(&bytes, 3).unwrap(), 10);
        assert!(delta_end(&bytes, 2).is_err());
        assert!(delta_end(&bytes[..8], 3).is_err());
        let wide = [0x80, 0x01, 0x04, 0x03, 0x0a, 0x02, 8, 0, 0, 0];
        assert!(
            delta_end(&wide, 3)
                .unwrap_err()
                .to_string()
                .contains("32 bytes are announced, 0 are left")
        );
    }
}
