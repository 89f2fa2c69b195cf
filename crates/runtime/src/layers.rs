//! The residual stream of a language model behind each layer, in whatever form its program is.
//!
//! A model is called as always, on a backend that shows each call before it runs (`watched`). The
//! ops that end a layer are observed then.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use thane_cpu::Cpu;
use thane_cpu::ane::layer_of;
use thane_mil::evaluate::HostTensor;
use thane_mil::observe::{Given, Observe};
use thane_mil::program::{Function, ValueId};

use crate::calibrate::layer_ends;
use crate::error::RuntimeError;
use crate::language_model::LanguageModel;
use crate::watched::{Watched, Witness};

/// Tokens whose streams are compared, unless a call takes fewer.
const MOST_TOKENS: usize = 64;

/// The numbers behind one layer // [tokens, features]
#[derive(Debug)]
struct Stream {
    n_features: usize,
    values: Vec<f64>,
}

impl Stream {
    /// The stream in a tensor of [1, tokens, features], or of [1, features, 1, tokens] as the form
    /// for the Neural Engine has it; an error in words for other shapes.
    fn of(tensor: &impl HostTensor) -> Result<Self, String> {
        let mut values = Vec::with_capacity(tensor.n_elements());
        tensor.each(|x| values.push(x));
        match *tensor.shape() {
            [1, _, n_features] | [1, 1, _, n_features] => Ok(Self { n_features, values }),
            [1, n_features, 1, n_tokens] => {
                let by_token = (0..n_tokens).flat_map(|token| {
                    let values = &values;
                    (0..n_features).map(move |feature| values[feature * n_tokens + token])
                });
                Ok(Self {
                    n_features,
                    values: by_token.collect(),
                })
            }
            ref other => Err(format!(
                "expected a stream of tokens, found shape {other:?}"
            )),
        }
    }

    fn n_rows(&self) -> usize {
        self.values.len() / self.n_features.max(1)
    }

    /// The numbers of a token of `n_tokens`; `None` if there are none. The last layer may have the
    /// last token alone.
    fn row(&self, token: usize, n_tokens: usize) -> Option<&[f64]> {
        let at = match self.n_rows() {
            n_rows if n_rows >= n_tokens => token,
            1 if token + 1 == n_tokens => 0,
            _ => return None,
        };
        self.values.chunks_exact(self.n_features).nth(at)
    }
}

/// Streams by layer, of the first calls.
#[derive(Debug, Default)]
struct Streams(BTreeMap<usize, Stream>);

impl Streams {
    /// The layers of a function that were not seen before.
    fn wanted(&self, f: &Function) -> HashMap<ValueId, usize> {
        let is_new = |(n, _): &(usize, ValueId)| !self.0.contains_key(n);
        let ends = stream_ends(f).into_iter().filter(is_new);
        ends.map(|(n, value)| (value, n)).collect()
    }
}

impl Witness for Streams {
    fn wants(&self, f: &Function) -> bool {
        !self.wanted(f).is_empty()
    }

    fn see(&mut self, cpu: &Cpu, f: &Function, given: Given<'_>) -> Result<(), String> {
        let wanted = self.wanted(f);
        let results = |op| f.op(op).results.iter().filter(|v| wanted.contains_key(v));
        let asks = |op| results(op).next().is_some();
        let observed = cpu.observe(f, &[given], &asks, &mut |call| {
            for value in results(call.op) {
                let stream = Stream::of(&call.value(*value)?)?;
                self.0.insert(wanted[value], stream);
            }
            Ok(ControlFlow::Continue(()))
        });
        observed.map(|_| ()).map_err(|e| e.to_string())
    }
}

/// The residual stream behind each layer, by the number of the layer: its last sum, since what a
/// layer gives to caches may come behind.
fn stream_ends(f: &Function) -> BTreeMap<usize, ValueId> {
    let ends = layer_ends(f).into_iter();
    let mut ends: BTreeMap<usize, ValueId> = ends
        .filter_map(|(layer, value)| Some((number(layer)?, value)))
        .collect();
    let mut last = None;
    for op in f.body().ops.iter().map(|id| f.op(*id)) {
        let Some(result) = op.results.first() else {
            continue;
        };
        let name = &f.value(*result).name;
        let layer = layer_of(&op.origin.place)
            .or(layer_of(name))
            .and_then(number);
        last = last.max(layer);
        // What a package passes on to the next one is named for that, not for its layer.
        let layer = layer.or(last.filter(|_| name == "output_hidden_states"));
        if let Some(n) = layer.filter(|_| op.def.name == "add") {
            ends.insert(n, *result);
        }
    }
    ends
}

/// The number of a layer such as `model.layers.3`.
fn number(layer: &str) -> Option<usize> {
    layer.rsplit(['.', '_']).next()?.parse().ok()
}

/// The streams of a prompt, or why there are none.
fn streams(
    model: &LanguageModel,
    prompt: &[u32],
    cpu: &Cpu,
) -> Result<Result<BTreeMap<usize, Stream>, String>, RuntimeError> {
    if !model.has_function("prefill") || !model.has_function("decode") {
        return Ok(Err("a model lacks `prefill` or `decode`".to_owned()));
    }
    let backend = Watched::<Streams>::new(cpu);
    let mut session = model.session(&backend)?;
    session.feed(prompt, &|| false)?;
    Ok(backend.take().and_then(|found| match found.0.is_empty() {
        true => Err("no op names its layer".to_owned()),
        false => Ok(found.0),
    }))
}

/// How far the residual stream of a model is from that of a reference behind each layer, in the
/// order of layers: the norm of the difference over the norm of the reference, the mean over the
/// first tokens of a text. A program for the Neural Engine may divide its stream by a power of two,
/// which is multiplied again. The inner error says in words why the streams cannot be compared.
///
/// # Errors
///
/// If a program cannot be loaded or fails.
pub fn layer_errors(
    (model, cpu): (&LanguageModel, &Cpu),
    (reference, reference_cpu): (&LanguageModel, &Cpu),
    ids: &[u32],
) -> Result<Result<Vec<f64>, String>, RuntimeError> {
    let context = model.info.context.min(reference.info.context);
    let n = ids
        .len()
        .min(MOST_TOKENS)
        .min(context.saturating_sub(1))
        .max(1);
    let own = match streams(model, &ids[..n], cpu)? {
        Ok(own) => own,
        Err(why) => return Ok(Err(why)),
    };
    // A call may take fewer tokens; the first one was observed.
    let most = own.values().map(Stream::n_rows).max();
    let n = n.min(most.unwrap_or(n));
    let others = match streams(reference, &ids[..n], reference_cpu)? {
        Ok(others) => others,
        Err(why) => return Ok(Err(why)),
    };
    if own.len() != others.len() {
        let (a, b) = (own.len(), others.len());
        return Ok(Err(format!("{a} layers in one model, {b} in the other")));
    }
    let pairs = own.values().zip(others.values());
    Ok(pairs.map(|(a, b)| error(a, b, n)).collect())
}

/// The mean error of a stream over the tokens that both have. Each token counts alike, since the
/// stream of the first one may be a hundred times as large as the others.
fn error(own: &Stream, reference: &Stream, n_tokens: usize) -> Result<f64, String> {
    if own.n_features != reference.n_features {
        let (a, b) = (own.n_features, reference.n_features);
        return Err(format!("{a} features in one model, {b} in the other"));
    }
    let rows = (0..n_tokens).filter_map(|token| {
        let own = own.row(token, n_tokens)?;
        Some((own, reference.row(token, n_tokens)?))
    });
    let rows: Vec<(&[f64], &[f64])> = rows.collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let cross: f64 = rows.iter().map(|(a, b)| dot(a, b)).sum();
    let squares: f64 = rows.iter().map(|(a, _)| dot(a, a)).sum();
    let divisor = match cross / squares {
        scale if scale > 0.0 && scale.is_finite() => scale.log2().round().exp2(),
        _ => 1.0,
    };
    let relative = |(a, b): &(&[f64], &[f64])| {
        let difference: Vec<f64> = a.iter().zip(*b).map(|(a, b)| a * divisor - b).collect();
        (dot(&difference, &difference) / dot(b, b)).sqrt()
    };
    let mean = rows.iter().map(relative).sum::<f64>() / rows.len() as f64;
    match mean.is_finite() {
        true => Ok(mean),
        false => Err("the stream of a token has no finite numbers but 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(n_features: usize, values: &[f64]) -> Stream {
        Stream {
            n_features,
            values: values.to_vec(),
        }
    }

    #[test]
    fn streams_are_compared_token_by_token_whatever_divides_them() {
        let reference = stream(2, &[8.0, -4.0, 2.0, 6.0]);
        let divided = stream(2, &[2.0, -1.0, 0.5, 1.5, 9.0, 9.0]);
        assert_eq!(error(&divided, &reference, 2), Ok(0.0));
        let off = stream(2, &[8.0, -4.0, 2.0, 7.0]);
        let expected = 1.0 / (4.0f64 + 36.0).sqrt() / 2.0;
        assert!((error(&off, &reference, 2).unwrap() - expected).abs() < 1e-12);
        // The last token alone.
        assert_eq!(error(&stream(2, &[2.0, 6.0]), &reference, 2), Ok(0.0));
        assert!(error(&stream(1, &[1.0]), &reference, 1).is_err());
        assert!(error(&reference, &stream(2, &[0.0; 4]), 2).is_err());
        assert_eq!(number("model.layers.13"), Some(13));
    }
}
