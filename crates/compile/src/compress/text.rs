//! Encodings as text, such as `pal4g32` or `sparse50+int8`.

use std::fmt;
use std::str::FromStr;

use super::{Blocks, Codes, Encoding, INDEX_BITS, MOST_TABLE, MOST_WIDTH, Sparsity};

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sparsity {
            None => {}
            Some(Sparsity::Percent(n)) => write!(f, "sparse{n}")?,
            Some(Sparsity::Ratio(n, m)) => write!(f, "{n}:{m}")?,
        }
        if self.sparsity.is_some() && self.codes.is_some() {
            f.write_str("+")?;
        }
        match self.codes {
            None => Ok(()),
            Some(Codes::Palette(bits, None)) => write!(f, "pal{bits}"),
            Some(Codes::Palette(bits, Some(group))) => write!(f, "pal{bits}g{group}"),
            Some(Codes::Vectors { width, entries }) => write!(f, "{width}x{entries}"),
            Some(Codes::Integers(bits, Blocks::Tensor)) => write!(f, "int{bits}t"),
            Some(Codes::Integers(bits, Blocks::Channel)) => write!(f, "int{bits}"),
            Some(Codes::Integers(bits, Blocks::Inputs(n))) => write!(f, "int{bits}b{n}"),
        }
    }
}

/// What is no encoding, and what would be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected an encoding, found `{found}`{because}: pal1, pal2, pal3, pal4, pal6 or pal8, with \
     g32 for a table for each 32 output channels; 2x16 for vectors of 2 in a table of 16; int8 or \
     int4, with t for one scale or b32 for one for each 32 inputs; sparse50, 2:4, or these with \
     codes, as in sparse50+pal4"
)]
pub struct NoEncoding {
    found: String,
    because: &'static str,
}

impl FromStr for Encoding {
    type Err = NoEncoding;

    fn from_str(text: &str) -> Result<Self, NoEncoding> {
        parse(text).map_err(|because| NoEncoding {
            found: text.to_owned(),
            because,
        })
    }
}

/// The encoding, or why it is none.
fn parse(text: &str) -> Result<Encoding, &'static str> {
    let (first, rest) = match text.split_once('+') {
        Some((first, rest)) => (first, Some(rest)),
        None => (text, None),
    };
    let sparsity = sparsity(first)?;
    let codes = match (sparsity, rest) {
        (None, None) => codes(first)?,
        (Some(_), None) => None,
        (Some(_), Some(rest)) => Some(codes(rest)?.ok_or("")?),
        (None, Some(_)) => return Err(" (only sparse tensors have two parts)"),
    };
    if sparsity.is_none() && codes.is_none() {
        return Err("");
    }
    if sparsity.is_some() && matches!(codes, Some(Codes::Vectors { .. })) {
        return Err(" (sparse tensors have no vectors)");
    }
    Ok(Encoding { sparsity, codes })
}

fn sparsity(text: &str) -> Result<Option<Sparsity>, &'static str> {
    if let Some(percent) = text.strip_prefix("sparse") {
        let percent = number(percent).filter(|n| (1..100).contains(n));
        let percent = percent.ok_or(" (sparsity is 1 to 99 percent)")?;
        return Ok(Some(Sparsity::Percent(percent)));
    }
    let Some((kept, among)) = text.split_once(':') else {
        return Ok(None);
    };
    match (number(kept), number(among)) {
        (Some(kept), Some(among)) if 0 < kept && kept < among && among <= 64 => {
            Ok(Some(Sparsity::Ratio(kept, among)))
        }
        _ => Err(" (N:M keeps N of M, at most 64)"),
    }
}

fn codes(text: &str) -> Result<Option<Codes>, &'static str> {
    if let Some(rest) = text.strip_prefix("pal") {
        let (bits, group) = match rest.split_once('g') {
            Some((bits, group)) => (bits, Some(number(group).filter(|n| *n > 0).ok_or("")?)),
            None => (rest, None),
        };
        let bits = number(bits).filter(|n| INDEX_BITS.iter().any(|(known, _)| known == n));
        return Ok(Some(Codes::Palette(bits.ok_or("")?, group)));
    }
    if let Some(rest) = text.strip_prefix("int") {
        let (bits, suffix) = rest.split_at_checked(1).ok_or("")?;
        let bits = number(bits).filter(|n| [4, 8].contains(n)).ok_or("")?;
        let blocks = match (suffix, suffix.strip_prefix('b')) {
            ("", _) => Blocks::Channel,
            ("t", _) => Blocks::Tensor,
            (_, Some(n)) => Blocks::Inputs(number(n).filter(|n| *n > 1).ok_or("")?),
            _ => return Err(""),
        };
        return Ok(Some(Codes::Integers(bits, blocks)));
    }
    let Some((width, entries)) = text.split_once('x') else {
        return Ok(None);
    };
    let (width, entries) = (number(width).ok_or("")?, number(entries).ok_or("")?);
    let is_known =
        entries.is_power_of_two() && INDEX_BITS.iter().any(|(bits, _)| 1 << bits == entries);
    if !is_known || !(2..=MOST_WIDTH).contains(&width) || width * entries > MOST_TABLE {
        return Err(
            " (vectors are 2 to 16 long, in tables of 2, 4, 8, 16 or 64 and at most 256 numbers)",
        );
    }
    Ok(Some(Codes::Vectors { width, entries }))
}

/// A number as it is printed: digits without a sign or leading zeros.
fn number(text: &str) -> Option<usize> {
    let n: usize = text.parse().ok()?;
    (n.to_string() == text && n <= 1 << 20).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_printed_as_they_are_parsed() {
        for text in [
            "pal1",
            "pal2",
            "pal3",
            "pal4",
            "pal6",
            "pal8",
            "pal4g32",
            "pal6g1",
            "2x16",
            "4x64",
            "16x16",
            "int8",
            "int8t",
            "int4",
            "int4t",
            "int4b32",
            "sparse50",
            "2:4",
            "sparse75+pal4",
            "1:4+int8",
            "sparse50+pal4g8",
        ] {
            let parsed: Encoding = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
        for text in [
            "",
            "pal",
            "pal5",
            "pal4g",
            "pal4g0",
            "pal04",
            "pal4g-1",
            "int5",
            "int4b",
            "int4b1",
            "int8x",
            "3x16+",
            "2x32",
            "17x2",
            "16x64",
            "1x16",
            "sparse0",
            "sparse100",
            "4:2",
            "0:4",
            "2:65",
            "pal4+int8",
            "sparse50+",
            "sparse50+2x16",
            "+pal4",
            "int",
        ] {
            let refused = text.parse::<Encoding>().unwrap_err().to_string();
            assert!(refused.contains(&format!("found `{text}`")), "{refused}");
        }
    }
}
