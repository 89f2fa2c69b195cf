//! How large the inputs of each product are while a model reads a text, by which compression knows
//! how much an error of a weight counts: the error of a product is `sum x^2 (w - q)^2`, as far as
//! inputs do not depend on each other.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use thane_compile::compress::program::Importance;
use thane_mil::evaluate::HostTensor;
use thane_mil::observe::{Given, Observe, ObserveError};
use thane_mil::program::{Function, Op, OpId, ValueId};

use crate::language_model::LanguageModel;
use crate::overflow::Prompt;

/// Added to the mean of squares of an input, as a share of that of all: other texts may use what
/// this one does not.
const UNSEEN: f64 = 0.01;

/// The mean squares of the inputs of products, by the module that a product belongs to.
#[derive(Default)]
pub struct Activations {
    by_module: HashMap<String, Inputs>,
}

/// What products of a module take.
struct Inputs {
    /// The operand, by which joined modules are known.
    operand: ValueId,
    means: Arc<[f32]>,
}

impl Importance for Activations {
    fn of(&self, module: &str, n_inputs: usize) -> Option<Arc<[f32]>> {
        let fits = |inputs: &&Inputs| inputs.means.len() == n_inputs;
        if let Some(inputs) = self.by_module.get(module).filter(fits) {
            return Some(Arc::clone(&inputs.means));
        }
        // A module that joins several, such as `qkv_proj`, takes what each of them does.
        let (parent, _) = module.rsplit_once('.')?;
        let is_sibling = |name: &str| {
            let own = name.rsplit_once('.');
            own.is_some_and(|(of, _)| of == parent)
        };
        let siblings = self.by_module.iter().filter(|(name, _)| is_sibling(name));
        let siblings: Vec<&Inputs> = siblings.map(|(_, inputs)| inputs).filter(fits).collect();
        let joined = siblings.iter().find(|a| {
            let same = siblings.iter().filter(|b| a.operand == b.operand);
            same.count() > 1
        });
        joined.map(|inputs| Arc::clone(&inputs.means))
    }
}

/// Runs the portable form of a model on a prompt of these tokens, with logits for each, which runs
/// on `backend`.
pub fn activations(
    model: &LanguageModel,
    tokens: &[u32],
    backend: &impl Observe,
) -> Result<Activations, ObserveError> {
    let prompt = Prompt::of_all_tokens(&model.program, tokens)?;
    let f = prompt.function;
    // One product of several that take an operand is enough.
    let mut asked: HashMap<OpId, ValueId> = HashMap::new();
    let mut modules: Vec<(String, ValueId)> = Vec::new();
    for &id in &f.body().ops {
        let op = f.op(id);
        let Some(x) = operand(f, op) else { continue };
        if !modules.iter().any(|(_, known)| *known == x) {
            asked.insert(id, x);
        }
        modules.push((op.origin.place.to_string(), x));
    }
    let mut means: HashMap<ValueId, Arc<[f32]>> = HashMap::new();
    let given = Given {
        inputs: &prompt.inputs(),
        states: &[],
    };
    let _ = backend.observe(f, &[given], &|op| asked.contains_key(&op), &mut |call| {
        let x = asked[&call.op];
        means.insert(x, mean_squares(&call.value(x)?));
        Ok(ControlFlow::Continue(()))
    })?;
    let inputs = modules.into_iter().filter_map(|(module, operand)| {
        let means = Arc::clone(means.get(&operand)?);
        Some((module, Inputs { operand, means }))
    });
    Ok(Activations {
        by_module: inputs.collect(),
    })
}

/// What a product of a constant weight takes, with features along its last axis.
fn operand(f: &Function, op: &Op) -> Option<ValueId> {
    let weight = match op.def.name {
        "linear" => op.value_arg("weight")?,
        "matmul" => op.value_arg("y")?,
        _ => return None,
    };
    let maker = f.definer(weight)?;
    maker.def.is_constexpr().then(|| op.value_arg("x"))?
}

/// The mean of the squares of each feature, along the last axis.
fn mean_squares<T: HostTensor>(tensor: &T) -> Arc<[f32]> {
    let n = tensor.shape().last().copied().unwrap_or(0).max(1);
    let mut sums = vec![0.0; n];
    let mut at = 0;
    tensor.each(|x| {
        if x.is_finite() {
            sums[at % n] += x * x;
        }
        at += 1;
    });
    let n_rows = (at / n).max(1) as f64;
    let all = sums.iter().sum::<f64>() / n_rows / n as f64;
    let mean = |sum: f64| (sum / n_rows + UNSEEN * all) as f32;
    sums.into_iter().map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_modules_take_what_their_parts_do() {
        let text = "program(1.3) { func f<ios18>(tensor<fp32, [1, 2]> a, tensor<fp32, [1, 2]> b) {
            tensor<fp32, [1, 2]> y = add(x = a, y = b); } -> (y); }";
        let program = thane_mil::text::parse(text, &|_, _, _| None).unwrap();
        let [a, b] = program.functions()[0].body().inputs[..] else {
            panic!("two inputs");
        };
        let inputs = |operand, means: &[f32]| Inputs {
            operand,
            means: means.into(),
        };
        let all = [
            ("layers.0.attn.q_proj", inputs(a, &[1.0, 2.0])),
            ("layers.0.attn.k_proj", inputs(a, &[1.0, 2.0])),
            ("layers.0.attn.o_proj", inputs(b, &[5.0, 6.0])),
            ("layers.1.attn.q_proj", inputs(b, &[7.0, 8.0])),
        ];
        let by_module = all
            .into_iter()
            .map(|(name, inputs)| (name.to_owned(), inputs));
        let activations = Activations {
            by_module: by_module.collect(),
        };
        let of = |name, n| activations.of(name, n).map(|means| means.to_vec());
        assert_eq!(of("layers.0.attn.o_proj", 2), Some(vec![5.0, 6.0]));
        assert_eq!(of("layers.0.attn.qkv_proj", 2), Some(vec![1.0, 2.0]));
        assert_eq!(of("layers.0.attn.qkv_proj", 3), None);
        assert_eq!(of("layers.1.attn.qkv_proj", 2), None);
        assert_eq!(of("lm_head", 2), None);
    }
}
