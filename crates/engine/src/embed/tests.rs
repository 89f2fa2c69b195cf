//! The embedder over an encoder whose results can be computed by hand.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use thane_mil::backend::View;

use super::*;
use crate::text::SpecialTokens;

const DIM: usize = 3;

/// The token whose vector contains NaN.
const ODD: u32 = 4242;

/// A vector that identifies a token and its position.
fn token_vector(id: i32, position: usize) -> [f32; DIM] {
    [
        if id == ODD as i32 {
            f32::NAN
        } else {
            id as f32
        },
        position as f32,
        1.0,
    ]
}

/// Returns the [`token_vector`] of each token, or the mean vector of a text or a chunk. The values
/// at padding are garbage.
struct Fake {
    inputs: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
    outputs: BTreeMap<&'static str, (Vec<usize>, Vec<u8>)>,
    calls: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl Fake {
    fn ints(&self, name: &str) -> Vec<i32> {
        self.inputs[name]
            .1
            .as_chunks()
            .0
            .iter()
            .map(|b| i32::from_ne_bytes(*b))
            .collect()
    }

    fn give(&mut self, name: &'static str, shape: Vec<usize>, values: &[f32]) {
        self.outputs
            .insert(name, (shape, bytemuck::cast_slice(values).to_vec()));
    }
}

impl Instance for Fake {
    fn input(&mut self, name: &str, shape: &[usize]) -> Result<&mut [u8], RunError> {
        let n_bytes = shape.iter().product::<usize>() * 4;
        let entry = self.inputs.entry(name.to_owned()).or_default();
        // Fills the buffer with garbage, as an earlier call might have.
        *entry = (shape.to_vec(), vec![0xee; n_bytes]);
        Ok(&mut entry.1)
    }

    fn run(&mut self, function: &str) -> Result<(), RunError> {
        let shape = self.inputs["input_ids"].0.clone();
        self.calls.lock().unwrap().push(shape.clone());
        let (ids, mask) = (self.ints("input_ids"), self.ints("attention_mask"));
        let n_tokens = shape[1];
        let vectors: Vec<[f32; DIM]> = ids
            .iter()
            .zip(&mask)
            .enumerate()
            .map(|(i, (id, seen))| {
                if *seen == 1 {
                    token_vector(*id, i % n_tokens)
                } else {
                    [f32::NAN; DIM]
                }
            })
            .collect();
        match function {
            "encode" => {
                let mut out = Vec::new();
                let mask = match self.inputs.contains_key("pooling_mask") {
                    true => self.ints("pooling_mask"),
                    false => mask,
                };
                for (row, mask) in vectors.chunks(n_tokens).zip(mask.chunks(n_tokens)) {
                    let n: i32 = mask.iter().sum();
                    let seen = || {
                        row.iter()
                            .zip(mask)
                            .filter(|(_, m)| **m == 1)
                            .map(|(v, _)| v)
                    };
                    out.extend((0..DIM).map(|d| seen().map(|v| v[d]).sum::<f32>() / n as f32));
                }
                self.give("embedding", vec![shape[0], DIM], &out);
            }
            "encode_tokens" => self.give(
                "token_embeddings",
                vec![shape[0], n_tokens, DIM],
                vectors.as_flattened(),
            ),
            "encode_chunks" => {
                let (pool_shape, pool) = self.inputs["pool_matrix"].clone();
                let pool: &[f32] = bytemuck::cast_slice(&pool);
                let rows = pool.chunks(n_tokens);
                let pooled = rows.flat_map(|row| {
                    (0..DIM)
                        .map(|d| {
                            row.iter()
                                .zip(&vectors)
                                .map(|(share, v)| share * v[d])
                                .sum()
                        })
                        .collect::<Vec<f32>>()
                });
                let pooled: Vec<f32> = pooled.collect();
                self.give("embedding", vec![pool_shape[0], DIM], &pooled);
            }
            _ => return Err(RunError::NoFunction(function.to_owned())),
        }
        Ok(())
    }

    fn output(&self, name: &str) -> Result<View<'_>, RunError> {
        let (shape, bytes) = self
            .outputs
            .get(name)
            .ok_or_else(|| RunError::NoOutput(name.to_owned()))?;
        Ok(View {
            dtype: DType::Fp32,
            shape,
            bytes,
        })
    }

    fn state(&self, name: &str) -> Result<View<'_>, RunError> {
        Err(RunError::NoState(name.to_owned()))
    }

    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError> {
        Err(RunError::NoState(name.to_owned()))
    }

    fn reset(&mut self) {}
}

type Calls = Arc<Mutex<Vec<Vec<usize>>>>;

fn embedder(batch_tokens: usize) -> (Embedder, Calls) {
    let calls = Calls::default();
    let fake = Fake {
        inputs: BTreeMap::new(),
        outputs: BTreeMap::new(),
        calls: Arc::clone(&calls),
    };
    (
        Embedder::new(
            Box::new(fake),
            DIM,
            Limits {
                max_tokens: 100,
                batch_tokens,
            },
        ),
        calls,
    )
}

fn sequences() -> Vec<Vec<u32>> {
    (0..40u32)
        .map(|i| (0..1 + i * 17 % 29).map(|t| i * 100 + t).collect())
        .collect()
}

fn mean(tokens: &[u32]) -> Vec<f32> {
    let n = tokens.len() as f32;
    let vectors: Vec<[f32; DIM]> = tokens
        .iter()
        .enumerate()
        .map(|(i, id)| token_vector(*id as i32, i))
        .collect();
    (0..DIM)
        .map(|d| vectors.iter().map(|v| v[d]).sum::<f32>() / n)
        .collect()
}

fn texts(sequences: &[Vec<u32>]) -> Vec<Sequence> {
    sequences.iter().cloned().map(Sequence::from).collect()
}

#[test]
fn texts_keep_their_order_and_share_calls() {
    let sequences = sequences();
    let expected: Vec<f32> = sequences.iter().flat_map(|s| mean(s)).collect();
    for budget in [1, 64, 1000] {
        let (mut embedder, calls) = embedder(budget);
        let mut done = 0;
        let mut watch = Watch {
            interrupted: &|| false,
            progress: &mut |n| done += n,
        };
        assert_eq!(
            embedder
                .texts(&texts(&sequences), &mut watch)
                .unwrap()
                .unwrap(),
            expected,
            "{budget}"
        );
        assert_eq!(done, sequences.len());
        let calls = calls.lock().unwrap();
        assert!(
            calls.iter().all(|c| c[0] == 1 || c[0] * c[1] <= budget),
            "{calls:?}"
        );
        assert!(
            calls.len() <= if budget == 1000 { 8 } else { 40 },
            "{calls:?}"
        );
    }
}

/// A program without the input `pooling_mask` is not given one, and one with it pools what is left.
#[test]
fn prompts_are_left_out_where_the_program_can_do_that() {
    let sequences: Vec<Sequence> = [(vec![7, 8, 9], 2), (vec![5], 0), (vec![3, 4], 1)]
        .map(|(tokens, n_skipped)| Sequence { tokens, n_skipped })
        .to_vec();
    for has_mask in [false, true] {
        let embedder = embedder(64).0.with_pooling_mask(has_mask);
        let mut watch = Watch {
            interrupted: &|| false,
            progress: &mut |_| (),
        };
        let rows = { embedder }.texts(&sequences, &mut watch).unwrap().unwrap();
        let expected: Vec<f32> = sequences
            .iter()
            .flat_map(|s| {
                let n_skipped = if has_mask { s.n_skipped } else { 0 };
                let rest = s.tokens.iter().enumerate().skip(n_skipped);
                let vectors: Vec<_> = rest.map(|(i, id)| token_vector(*id as i32, i)).collect();
                let n = vectors.len() as f32;
                (0..DIM).map(move |d| vectors.iter().map(|v| v[d]).sum::<f32>() / n)
            })
            .collect();
        assert_eq!(rows, expected, "{has_mask}");
    }
}

#[test]
fn each_token_has_a_vector() {
    let sequences = sequences();
    let (mut embedder, _) = embedder(64);
    let mut watch = Watch {
        interrupted: &|| false,
        progress: &mut |_| (),
    };
    let rows = embedder.tokens(&sequences, &mut watch).unwrap().unwrap();
    for (row, tokens) in rows.iter().zip(&sequences) {
        let expected: Vec<f32> = tokens
            .iter()
            .enumerate()
            .flat_map(|(i, id)| token_vector(*id as i32, i))
            .collect();
        assert_eq!(row, &expected);
    }
}

#[test]
fn chunks_are_the_means_of_their_spans() {
    for n_chunks in 1..=32u32 {
        // The second chunk is empty, the third has one token.
        let chunks: Vec<Vec<u32>> = (0..n_chunks)
            .map(|c| {
                (0..[2, 0, 1, 3][c as usize % 4])
                    .map(|t| 10 * c + t)
                    .collect()
            })
            .collect();
        let (mut embedder, calls) = embedder(1);
        let document = Document::join(&chunks, 999, &SpecialTokens::default());
        let rows = embedder.chunks(&document).unwrap();
        assert_eq!(calls.lock().unwrap().len(), 1, "one pass");
        for (row, span) in rows.chunks(DIM).zip(document.spans()) {
            let sum = |d: usize| {
                span.clone()
                    .map(|i| token_vector(document.tokens()[i] as i32, i)[d])
                    .sum::<f32>()
            };
            let expected = (0..DIM).map(|d| sum(d) / span.len().max(1) as f32);
            assert!(
                row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4),
                "{n_chunks}: {row:?}"
            );
        }
        assert_eq!(rows.len(), chunks.len() * DIM);
    }
}

#[test]
fn what_cannot_be_embedded_is_named() {
    let (mut embedder, calls) = embedder(64);
    let mut watch = Watch {
        interrupted: &|| false,
        progress: &mut |_| (),
    };
    let mut refusal = |sequences: &[Vec<u32>]| {
        let error = embedder.texts(&texts(sequences), &mut watch).unwrap_err();
        (error.index(), error.to_string())
    };
    assert_eq!(
        refusal(&[vec![1], vec![]]),
        (
            Some(1),
            "expected at least one token, found none".to_owned()
        )
    );
    assert_eq!(
        refusal(&[vec![1; 101]]),
        (Some(0), "expected at most 100 tokens, found 101".to_owned())
    );
    let message = "expected token ids below 2147483648, found 4294967295: its tokenizer is another \
                   model's";
    assert_eq!(
        refusal(&[vec![1], vec![2, u32::MAX]]),
        (Some(1), message.to_owned())
    );
    assert!(
        calls.lock().unwrap().is_empty(),
        "nothing runs before all sequences are checked"
    );
    let message = "the vector contains numbers that are not finite";
    assert_eq!(
        refusal(&[vec![1], vec![2, ODD], vec![1; 9]]),
        (Some(1), message.to_owned())
    );
    let many = Document::join(&vec![vec![]; 3], 999, &SpecialTokens::default());
    assert_eq!(embedder.chunks(&many).unwrap(), [0.0; 3 * DIM]);
}

#[test]
fn an_interruption_ends_between_calls() {
    let (mut embedder, calls) = embedder(1);
    let n_asked = Cell::new(0);
    let interrupted = || {
        n_asked.set(n_asked.get() + 1);
        n_asked.get() > 3
    };
    let mut watch = Watch {
        interrupted: &interrupted,
        progress: &mut |_| (),
    };
    assert_eq!(
        embedder.texts(&texts(&sequences()), &mut watch).unwrap(),
        None
    );
    assert_eq!(calls.lock().unwrap().len(), 3);
}
