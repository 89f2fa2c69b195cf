//! What is asked of whoever has compiled a grammar, and how it goes through a pipe: frames of a
//! length in four bytes, a byte that says what follows, and JSON or other bytes.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thane_engine::choose::GrammarError;

use super::source::GrammarSource;

/// Longest frame: the tokens of a vocabulary are the longest.
const MAX_FRAME_BYTES: usize = 256 << 20;

/// What follows the length of a frame.
const JSON: u8 = 0;
const BYTES: u8 = 1;

/// Whoever has compiled a grammar, and runs the answers that follow it.
pub(super) trait Link: Send + Sync {
    /// Asks, and waits for the reply, which is never [`Reply::Failed`].
    fn call(&self, request: &Request) -> Result<Reply, GrammarError>;

    /// Whether it can still be asked.
    fn is_alive(&self) -> bool {
        true
    }

    /// Bytes of memory that it takes, where that is known.
    fn n_bytes(&self) -> usize {
        0
    }
}

/// What is asked. The number of an answer comes from [`Reply::Started`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Compile the grammar, once.
    Compile(GrammarSource),
    /// Begin an answer.
    Start,
    /// Which tokens can follow.
    Mask(u32),
    /// Append a token that can follow.
    Advance { answer: u32, token: u32 },
    /// Append the tokens that must follow.
    Force(u32),
    /// The answer is over, or nobody waits for it.
    End(u32),
    /// The tokens that [`Reply::Tokenize`] asked for; `None` if they do not spell the bytes.
    Tokens(Option<Vec<u32>>),
}

/// What is replied.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Started(u32),
    /// A bit for each token that can follow.
    #[serde(skip)]
    Mask(Vec<u32>),
    /// The tokens that were appended, and whether only those that end the answer can follow.
    Advanced {
        tokens: Vec<u32>,
        is_complete: bool,
    },
    Failed(String),
    /// No reply yet: the tokens of these bytes are needed first.
    Tokenize(Vec<u8>),
}

impl Reply {
    /// The reply, or the error that it is.
    pub fn into_result(self) -> Result<Self, GrammarError> {
        match self {
            Self::Failed(error) => Err(GrammarError(error)),
            reply => Ok(reply),
        }
    }

    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Mask(words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                write_bytes(to, &bytes)
            }
            reply => write_json(to, reply),
        }
    }

    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        match read_frame(from)? {
            (BYTES, bytes) => {
                let words = bytes.chunks_exact(4);
                let words = words.map(|word| word.try_into().map_or(0, u32::from_le_bytes));
                Ok(Self::Mask(words.collect()))
            }
            (_, bytes) => Ok(serde_json::from_slice(&bytes)?),
        }
    }
}

/// Writes a value as JSON.
pub(super) fn write_json(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    write_frame(to, JSON, &serde_json::to_vec(value)?)
}

/// Reads a value of JSON.
pub(super) fn read_json<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    Ok(serde_json::from_slice(&read_frame(from)?.1)?)
}

/// Writes bytes as they are.
pub(super) fn write_bytes(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    write_frame(to, BYTES, bytes)
}

/// Reads bytes as they are.
pub(super) fn read_bytes(from: &mut impl Read) -> io::Result<Vec<u8>> {
    Ok(read_frame(from)?.1)
}

fn write_frame(to: &mut impl Write, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let n = u32::try_from(bytes.len() + 1).map_err(io::Error::other)?;
    // One write, so that a reader is woken once.
    to.write_all(&[&n.to_le_bytes(), &[kind][..], bytes].concat())?;
    to.flush()
}

fn read_frame(from: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut n = [0; 4];
    from.read_exact(&mut n)?;
    let n = u32::from_le_bytes(n) as usize;
    if !(1..=MAX_FRAME_BYTES).contains(&n) {
        let error = format!("expected a frame of 1 to {MAX_FRAME_BYTES} bytes, found {n}");
        return Err(io::Error::other(error));
    }
    let mut kind = [0];
    from.read_exact(&mut kind)?;
    let mut bytes = vec![0; n - 1];
    from.read_exact(&mut bytes)?;
    Ok((kind[0], bytes))
}
