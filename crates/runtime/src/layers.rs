//! The residual stream of a language model behind each layer, in whatever form its program is.
//!
//! A model is called as always, on a backend around the CPU. Before a function runs, the ops that
//! end a layer are observed with the inputs and states that the function is about to take. So
//! chains of packages, tables on the host and caches of every kind need nothing of their own here.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thane_cpu::Cpu;
use thane_cpu::ane::layer_of;
use thane_mil::backend::{
    Backend, Executable, Instance, LoadError, LoadOptions, RunError, States, View,
};
use thane_mil::evaluate::HostTensor;
use thane_mil::observe::{Given, Observe};
use thane_mil::program::{Function, Program, ValueId};
use thane_mil::types::Type;

use crate::calibrate::layer_ends;
use crate::error::RuntimeError;
use crate::language_model::LanguageModel;

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

/// What was observed: streams by layer, or why not, in words.
#[derive(Debug, Default)]
struct Found {
    streams: BTreeMap<usize, Stream>,
    fault: Option<String>,
}

/// The CPU, which observes what it runs.
struct Watched {
    cpu: Cpu,
    found: Arc<Mutex<Found>>,
}

struct WatchedExecutable {
    inner: Arc<dyn Executable>,
    program: Arc<Program>,
    cpu: Cpu,
    found: Arc<Mutex<Found>>,
}

struct WatchedInstance {
    inner: Box<dyn Instance>,
    program: Arc<Program>,
    cpu: Cpu,
    found: Arc<Mutex<Found>>,
}

impl Backend for Watched {
    fn name(&self) -> &'static str {
        self.cpu.name()
    }

    fn load_with(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        Ok(Arc::new(WatchedExecutable {
            inner: self.cpu.load_with(program, options)?,
            program: Arc::new(program.clone()),
            cpu: self.cpu.clone(),
            found: Arc::clone(&self.found),
        }))
    }
}

impl Executable for WatchedExecutable {
    fn instantiate(&self) -> Result<Box<dyn Instance>, RunError> {
        Ok(Box::new(WatchedInstance {
            inner: self.inner.instantiate()?,
            program: Arc::clone(&self.program),
            cpu: self.cpu.clone(),
            found: Arc::clone(&self.found),
        }))
    }
}

impl WatchedInstance {
    /// Observes the layers of a function that were not seen before.
    fn watch(&self, function: &str) {
        let Some(f) = self.program.function(function) else {
            return;
        };
        let mut found = locked(&self.found);
        let is_new = |(n, _): &(usize, ValueId)| !found.streams.contains_key(n);
        let ends = stream_ends(f).into_iter().filter(is_new);
        let wanted: HashMap<ValueId, usize> = ends.map(|(n, value)| (value, n)).collect();
        if wanted.is_empty() || found.fault.is_some() {
            return;
        }
        if let Err(fault) = self.observe(f, &wanted, &mut found.streams) {
            found.fault = Some(fault);
        }
    }

    fn observe(
        &self,
        f: &Function,
        wanted: &HashMap<ValueId, usize>,
        streams: &mut BTreeMap<usize, Stream>,
    ) -> Result<(), String> {
        let (mut inputs, mut states) = (Vec::new(), Vec::new());
        for value in f.body().inputs.iter().map(|id| f.value(*id)) {
            let name = value.name.as_str();
            if matches!(value.ty, Type::State(_)) {
                // A state that nothing was written to yet is zero.
                states.extend(self.inner.state(name).ok().map(|view| (name, view)));
            } else {
                inputs.push((name, self.inner.given(name).map_err(|e| e.to_string())?));
            }
        }
        let given = Given {
            inputs: &inputs,
            states: &states,
        };
        let results = |op| f.op(op).results.iter().filter(|v| wanted.contains_key(v));
        let asks = |op| results(op).next().is_some();
        let observed = self.cpu.observe(f, &[given], &asks, &mut |call| {
            for value in results(call.op) {
                streams.insert(wanted[value], Stream::of(&call.value(*value)?)?);
            }
            Ok(ControlFlow::Continue(()))
        });
        observed.map(|_| ()).map_err(|e| e.to_string())
    }
}

impl Instance for WatchedInstance {
    fn input(&mut self, name: &str, shape: &[usize]) -> Result<&mut [u8], RunError> {
        self.inner.input(name, shape)
    }

    fn given(&self, name: &str) -> Result<View<'_>, RunError> {
        self.inner.given(name)
    }

    fn run(&mut self, function: &str) -> Result<(), RunError> {
        self.watch(function);
        self.inner.run(function)
    }

    fn run_until(&mut self, function: &str, is_over: &dyn Fn() -> bool) -> Result<(), RunError> {
        self.watch(function);
        self.inner.run_until(function, is_over)
    }

    fn run_for_states(&mut self, function: &str) -> Result<(), RunError> {
        self.watch(function);
        self.inner.run_for_states(function)
    }

    fn output(&self, name: &str) -> Result<View<'_>, RunError> {
        self.inner.output(name)
    }

    fn state(&self, name: &str) -> Result<View<'_>, RunError> {
        self.inner.state(name)
    }

    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError> {
        self.inner.state_mut(name)
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn states_bytes(&self) -> Option<usize> {
        self.inner.states_bytes()
    }

    fn fresh_states(&self) -> Option<States> {
        self.inner.fresh_states()
    }

    fn swap_states(&mut self, states: &mut States) -> bool {
        self.inner.swap_states(states)
    }
}

/// What was found; a panic while it was held does not damage it.
fn locked(found: &Mutex<Found>) -> MutexGuard<'_, Found> {
    found.lock().unwrap_or_else(PoisonError::into_inner)
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
    let found = Arc::new(Mutex::new(Found::default()));
    let backend = Watched {
        cpu: cpu.clone(),
        found: Arc::clone(&found),
    };
    let mut session = model.session(&backend)?;
    session.feed(prompt, &|| false)?;
    let found = std::mem::take(&mut *locked(&found));
    Ok(match found.fault {
        Some(fault) => Err(fault),
        None if found.streams.is_empty() => Err("no op names its layer".to_owned()),
        None => Ok(found.streams),
    })
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
