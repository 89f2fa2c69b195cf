//! How large the inputs of each product are while a model reads a text, by which compression knows
//! how much an error of a weight counts: the error of a product is `sum x^2 (w - q)^2`, as far as
//! inputs do not depend on each other.

use std::collections::HashMap;
use std::sync::Arc;

use thane_compile::compress::program::{Importance, Product};
use thane_cpu::Cpu;
use thane_mil::observe::{Given, Observe, ObserveError};
use thane_mil::program::Function;

use crate::embedder::EmbedOptions;
use crate::error::RuntimeError;
use crate::language_model::LanguageModel;
use crate::opened::Model;
use crate::overflow::Prompts;
use crate::products::{Operand, Products, Taken};
use crate::watched::{Watched, Witness};

/// The mean squares of the inputs of products, by the name of a product's result, by that of its
/// weight, and by the module that it belongs to, which may have several.
#[derive(Default)]
pub struct Activations {
    by_result: HashMap<String, Inputs>,
    by_weight: HashMap<String, Inputs>,
    by_module: HashMap<String, Vec<Inputs>>,
}

/// The operand of a product.
#[derive(Clone)]
struct Inputs {
    /// The operand, by which joined modules are known.
    operand: Operand,
    means: Arc<[f32]>,
    /// The greatest magnitude that 8-bit codes keep.
    range: Option<f32>,
}

impl Activations {
    /// Adds what the products of a function took, unless it is known.
    pub(crate) fn add(&mut self, taken: Vec<Taken>) {
        for Taken {
            module,
            weight,
            result,
            operand,
            means,
            range,
        } in taken
        {
            let inputs = Inputs {
                operand,
                means,
                range,
            };
            self.by_module
                .entry(module)
                .or_default()
                .push(inputs.clone());
            let by_weight = self.by_weight.entry(weight);
            by_weight.or_insert_with(|| inputs.clone());
            self.by_result.entry(result).or_insert(inputs);
        }
    }

    /// As they are for another form of the program, whose results may have the names of others of
    /// this one.
    #[must_use]
    pub fn of_another_form(mut self) -> Self {
        self.by_result.clear();
        self
    }

    /// The operand of a weight that joins several of a module, such as `qkv_proj`: the operand that
    /// several products of the module share.
    fn joined(&self, module: &str, n_inputs: usize) -> Option<Arc<[f32]>> {
        let of_module = self.by_module.get(module).filter(|_| !module.is_empty())?;
        let all: Vec<&Inputs> = of_module
            .iter()
            .filter(|i| i.means.len() == n_inputs)
            .collect();
        let n_same = |a: &&Inputs| all.iter().filter(|b| a.operand == b.operand).count();
        let joined = all.iter().find(|a| n_same(a) > 1 || all.len() == 1)?;
        Some(Arc::clone(&joined.means))
    }
}

impl Importance for Activations {
    fn of(&self, product: &Product<'_>, n_inputs: usize) -> Option<Arc<[f32]>> {
        let known = [
            self.by_result.get(product.result),
            self.by_weight.get(product.weight),
        ];
        let mut known = known.into_iter().flatten();
        match known.find(|inputs| inputs.means.len() == n_inputs) {
            Some(inputs) => Some(Arc::clone(&inputs.means)),
            None => self.joined(product.module, n_inputs),
        }
    }

    /// By the result alone: another form of the program may divide what the product takes.
    fn range(&self, product: &Product<'_>) -> Option<f32> {
        self.by_result.get(product.result)?.range
    }
}

/// Runs the portable form of a model on prompts of these tokens, each from the start of the cache
/// and with logits for each token, on `backend`.
pub fn activations(
    model: &LanguageModel,
    pieces: &[Vec<u32>],
    backend: &impl Observe,
) -> Result<Activations, ObserveError> {
    let prompts = Prompts::of_all_tokens(&model.program, pieces)?;
    let mut products = Products::of(prompts.function, false);
    let asks = products.asks();
    prompts.observe(backend, &asks, &mut |call| products.add(call))?;
    let mut found = Activations::default();
    found.add(products.taken());
    Ok(found.of_another_form())
}

/// The products of each function that is called, by its name.
#[derive(Default)]
struct Taking(HashMap<String, Products>);

impl Witness for Taking {
    fn wants(&self, _: &Function) -> bool {
        true
    }

    fn see(&mut self, cpu: &Cpu, f: &Function, given: Given<'_>) -> Result<(), String> {
        let products = self.0.entry(f.name.clone());
        let products = products.or_insert_with(|| Products::of(f, true));
        let asks = products.asks();
        let observed = cpu.observe(f, &[given], &asks, &mut |call| products.add(call));
        observed.map(|_| ()).map_err(|e| e.to_string())
    }
}

impl Taking {
    /// The operands of all functions; if several have the same product, the one with most tokens.
    fn activations(self) -> Activations {
        let mut functions: Vec<Products> = self.0.into_values().collect();
        functions.sort_by(|a, b| b.n_taken().total_cmp(&a.n_taken()));
        let mut found = Activations::default();
        functions
            .into_iter()
            .for_each(|products| found.add(products.taken()));
        found
    }
}

/// As [`activations`], but of the program that a model has, in whatever form that is: results of
/// products are known by their names there. The inner error says in words why nothing is known.
///
/// # Errors
///
/// If the program cannot be loaded or fails.
pub fn activations_as_built(
    model: &LanguageModel,
    pieces: &[Vec<u32>],
    cpu: &Cpu,
) -> Result<Result<Activations, String>, RuntimeError> {
    let backend = Watched::<Taking>::new(cpu);
    let mut session = model.session_of_any_functions(&backend)?;
    let most = model.info.context.saturating_sub(1).max(1);
    for piece in pieces {
        session.reset();
        let piece = &piece[..piece.len().min(most)];
        if model.has_function("prefill") {
            session.feed(piece, &|| false)?;
        } else {
            for token in piece {
                session.decode(*token)?;
            }
        }
    }
    Ok(backend.take().map(Taking::activations))
}

/// As [`activations_as_built`], of an embedding model and at most `most` tokens of each text.
///
/// # Errors
///
/// If the program cannot be loaded or fails.
pub fn activations_of_embedder(
    model: Model,
    (texts, most): (&[&str], usize),
    cpu: &Cpu,
) -> Result<Result<Activations, String>, RuntimeError> {
    let backend = Watched::<Taking>::new(cpu);
    let mut embedder = model.embedding_model(&EmbedOptions::default(), &backend, &())?;
    let most = most.min(embedder.max_tokens());
    for text in texts {
        let (tokens, _) = embedder.tokenize_within(text, most)?;
        embedder.embed_tokens(tokens)?;
    }
    Ok(backend.take().map(Taking::activations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_modules_take_what_their_parts_do() {
        let text = "program(1.3) { func f<ios18>(tensor<fp32, [1, 2]> a, tensor<fp32, [1, 2]> b) {
                tensor<fp32, [2, 2]> w = const()[val = tensor<fp32, [2, 2]>([[0.0, 0.0], [0.0, 0.0]])];
                tensor<fp32, [1, 2]> x = linear(x = a, weight = w);
                tensor<fp32, [1, 2]> y = linear(x = b, weight = w);
            } -> (x, y); }";
        let program = thane_mil::text::parse(text, &|_, _, _| None).unwrap();
        let f = &program.functions()[0];
        let operands = f
            .all_ops()
            .into_iter()
            .filter_map(|op| Operand::of(f, f.op(op)));
        let [a, b] = operands.collect::<Vec<_>>()[..] else {
            panic!("two products");
        };
        let inputs = |operand, means: &[f32]| Inputs {
            operand,
            means: means.into(),
            range: Some(means[0]),
        };
        let attention = [
            inputs(b, &[5.0, 6.0]),
            inputs(a, &[1.0, 2.0]),
            inputs(a, &[1.0, 2.0]),
        ];
        let by_module = [
            ("layers.0.attn".to_owned(), attention.to_vec()),
            ("layers.1.attn".to_owned(), attention[..2].to_vec()),
        ];
        let activations = Activations {
            by_module: by_module.into(),
            by_weight: [("o_weight".to_owned(), inputs(b, &[5.0, 6.0]))].into(),
            by_result: [("y".to_owned(), inputs(b, &[9.0, 9.5]))].into(),
        };
        let product = |module, weight, result| Product {
            module,
            weight,
            result,
        };
        let of = |module, weight, result, n| {
            let means = activations.of(&product(module, weight, result), n);
            means.map(|means| means.to_vec())
        };
        let (first, second) = ("layers.0.attn", "layers.1.attn");
        assert_eq!(of(first, "o_weight", "y", 2), Some(vec![9.0, 9.5]));
        assert_eq!(of(first, "o_weight", "x", 2), Some(vec![5.0, 6.0]));
        assert_eq!(of(first, "qkv_weight", "x", 2), Some(vec![1.0, 2.0]));
        assert_eq!(of(first, "qkv_weight", "x", 3), None);
        assert_eq!(of(second, "qkv_weight", "x", 2), None);
        assert_eq!(of("", "qkv_weight", "x", 2), None);
        assert_eq!(activations.range(&product("", "", "y")), Some(9.0));
        assert_eq!(activations.range(&product(first, "o_weight", "x")), None);
    }
}
