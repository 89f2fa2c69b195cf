//! Encoders of the BERT kind: a norm follows the embeddings, each attention and each feed-forward
//! layer. A family file has the names of its modules and reads its configuration into a
//! [`PostNorm`]; what differs between the families is in its fields.

use thane_mil::data::Data;
use thane_mil::program::{Function, ValueId};
use thane_mil::types::DType;

use super::body::{EncoderBody, EncoderSizes};
use crate::checkpoint::Config;
use crate::checks::n_labels;
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::activation::Activation;
use crate::layers::attention::{Attention, AttentionInputs, Projected};
use crate::layers::classifier::Classifier;
use crate::layers::decoder::Mask;
use crate::layers::encoder::{self, Direction, EncoderPlan, Encoding, Io};
use crate::layers::norm::LayerNorm;
use crate::layers::rope::Rotation;
use crate::pooling::Pooling;
use crate::weights::Weights;

/// The configuration of an encoder of the BERT kind.
pub(crate) struct PostNorm {
    pub modules: Modules,
    /// Sizes of the attention, and whether its projections have biases.
    pub attention: Attention,
    /// Elements of a token between the projections of the feed-forward layer.
    pub intermediate: usize,
    pub activation: Activation,
    /// Whether the projections of the feed-forward layer have biases.
    pub mlp_bias: bool,
    pub norm: LayerNorm,
    pub n_layers: usize,
    pub vocab_size: usize,
    pub positions: Positions,
    /// Rows of the table of token types; 0 if there is none.
    pub n_types: usize,
    /// Number of labels, if the file has the layers of a sequence classifier.
    pub n_labels: Option<usize>,
}

/// The names of a family's modules, which follow the name of the base model. Names of modules in
/// layers follow the name of the layer.
#[derive(Clone, Copy)]
pub(crate) struct Modules {
    /// The base model.
    pub base: &'static str,
    pub embedding_norm: &'static str,
    /// The list of layers.
    pub layers: &'static str,
    pub projections: Projections,
    /// The product after attention.
    pub attention_output: &'static str,
    pub attention_norm: &'static str,
    /// The products of the feed-forward layer.
    pub up: &'static str,
    /// `activation(gate(x)) * up(x)` replaces `activation(up(x))`.
    pub gate: Option<&'static str>,
    pub down: &'static str,
    pub output_norm: &'static str,
    pub classifier: ClassifierModules,
}

/// The full names of the modules of a sequence classifier, and what is between them.
#[derive(Clone, Copy)]
pub(crate) struct ClassifierModules {
    pub dense: &'static str,
    pub activation: Activation,
    pub output: &'static str,
}

/// The products before attention.
#[derive(Clone, Copy)]
pub(crate) enum Projections {
    /// Query, key and value are modules.
    Separate([&'static str; 3]),
    /// One module has the rows of query, key and value, in this order.
    Fused(&'static str),
}

/// How tokens get their positions.
pub(crate) enum Positions {
    /// A table with a row for each position.
    Learned(Learned),
    /// Rotary positions.
    Rotary {
        rotation: Option<Rotation>,
        n_positions: usize,
    },
}

/// A table with a row for each position.
pub(crate) struct Learned {
    /// Rows of the table.
    pub rows: usize,
    /// The id of the padding token, if positions are counted from the one after that id.
    pub padding: Option<usize>,
    /// The buckets of distances whose scores have a bias in each head, if the model has them.
    pub buckets: Option<Buckets>,
}

/// Distances between tokens in buckets, as in T5: half of the buckets for each direction, of those
/// one half for a distance each, and the other half with logarithmic widths.
pub(crate) struct Buckets {
    /// Module of the table [buckets, heads].
    pub module: &'static str,
    /// Rows of the table. Those from [`Self::USED`] on are never read; fewer rows bound the length
    /// of texts.
    pub rows: usize,
}

impl Buckets {
    /// Number of buckets that are used, whatever the table has. Source: `compute_position_bias` of
    /// MPNet in transformers.
    pub const USED: usize = 32;
    /// Most positions whose biases are a constant of a program: 24 MB with 12 heads.
    const MOST_WHOLE: usize = 1024;
    /// All distances from this one on are in the last bucket of their direction.
    const MAX_DISTANCE: f32 = 128.0;

    /// Number of tokens that a text can have: the buckets of all their distances are in the table.
    pub fn n_tokens(&self) -> usize {
        let mut distances = 1..Self::MAX_DISTANCE as usize;
        let is_beyond = |n: &usize| Self::of_distance(*n as i32) as usize >= self.rows;
        distances.find(is_beyond).unwrap_or(usize::MAX)
    }

    /// The bucket of the distance from a query to a key. All arithmetic is in f32, like in the
    /// reference implementation, because the result is truncated.
    fn of_distance(distance: i32) -> i32 {
        let half = Self::USED / 2;
        let exact = half / 2;
        let n = distance.unsigned_abs() as usize;
        let (exact_f, rest) = (exact as f32, (half - exact) as f32);
        let bucket = if n < exact {
            n
        } else {
            let whole = f64::from(Self::MAX_DISTANCE / exact_f).ln() as f32;
            let width = (n as f32 / exact_f).ln() / whole * rest;
            (exact + width as usize).min(half - 1)
        };
        (bucket + if distance > 0 { half } else { 0 }) as i32
    }
}

impl Modules {
    /// Number of labels, if the file has the layers of a sequence classifier.
    pub fn n_labels(&self, c: &Config, w: &Weights<'_>) -> Result<Option<usize>, ModelError> {
        let classifies = w.has(self.classifier.output, "weight");
        classifies.then(|| n_labels(c)).transpose()
    }
}

impl Positions {
    /// Number of positions that a text can take.
    fn count(&self) -> usize {
        match self {
            Self::Learned(table) => {
                let rows = table.rows - table.padding.map_or(0, |padding| padding + 1);
                let buckets = table.buckets.as_ref();
                rows.min(buckets.map_or(usize::MAX, Buckets::n_tokens))
            }
            Self::Rotary { n_positions, .. } => *n_positions,
        }
    }
}

impl EncoderBody for PostNorm {
    fn function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        let mut io = Io::new(g_, plan, Direction::Bidirectional, 1, None)?;
        let rotary = match &self.positions {
            Positions::Learned(Learned { buckets, .. }) => {
                if let Some(buckets) = buckets {
                    let bias = self.distance_bias(g_, w, &io, buckets)?;
                    io.bias_scores(g_, bias)?;
                }
                None
            }
            Positions::Rotary { rotation, .. } => {
                let rotation = rotation.as_ref();
                rotation.map(|r| io.rotary(g_, r)).transpose()?
            }
        };
        let mut h = self.embed(g_, w, &io, plan.head.token_types)?;
        let inputs = io.attention_inputs(rotary.as_ref(), Mask::Full);
        for i in 0..self.n_layers {
            let layer = self.module(&format!("{}.{i}", self.modules.layers));
            h = self.layer(g_, w, &layer, h, inputs)?;
        }
        match (plan.head.encoding, self.n_labels) {
            (Encoding::Labels, Some(n_labels)) => {
                let ClassifierModules {
                    dense,
                    activation,
                    output,
                } = self.modules.classifier;
                let classifier = Classifier {
                    pooling: Pooling::Cls,
                    dense,
                    dense_bias: true,
                    activation,
                    norm: None,
                    output,
                    n_labels,
                };
                classifier.finish(g, w, &io, h, self.attention.hidden)
            }
            _ => {
                let ClassifierModules { dense, output, .. } = self.modules.classifier;
                w.ignore_module(dense);
                w.ignore_module(output);
                encoder::finish(g, w, &io, h, plan.head)
            }
        }
    }

    fn n_labels(&self) -> Option<usize> {
        self.n_labels
    }

    fn has_token_types(&self) -> bool {
        self.n_types > 1
    }

    fn sizes(&self) -> EncoderSizes {
        EncoderSizes {
            n_layers: self.n_layers,
            vocab_size: self.vocab_size,
            hidden: self.attention.hidden,
            n_positions: self.positions.count(),
            is_open: match &self.positions {
                Positions::Learned(_) => false,
                Positions::Rotary { rotation, .. } => {
                    rotation.as_ref().is_none_or(Rotation::is_fixed)
                }
            },
            counts_padding: matches!(
                self.positions,
                Positions::Learned(Learned { padding: None, .. })
            ),
            padding: match self.positions {
                Positions::Learned(Learned { padding, .. }) => padding,
                Positions::Rotary { .. } => None,
            },
        }
    }
}

impl PostNorm {
    /// The full name of a module of the base model.
    fn module(&self, name: &str) -> String {
        format!("{}.{name}", self.modules.base)
    }

    /// The norm of the sum of the rows of the tables. All tokens have type 0, or with `has_types`
    /// the type that an input says.
    fn embed(&self, g: &mut Graph, w: &Weights<'_>, io: &Io, has_types: bool) -> ValueResult {
        let module = |name: &str| self.module(&format!("embeddings.{name}_embeddings"));
        let table =
            |name: &str, rows| w.get(&module(name), "weight", &[rows, self.attention.hidden]);
        g.at_module(&self.module("embeddings"));
        let mut parts = vec![io.token_rows(g, &table("word", self.vocab_size), 1.0)?];
        if let Positions::Learned(Learned { rows, padding, .. }) = &self.positions {
            parts.push(io.position_rows(g, &table("position", *rows), *padding)?);
        }
        if self.n_types > 0 {
            let types = if has_types {
                io.token_types(g)
            } else {
                g.ints(&[0])?
            };
            // [batch, tokens, hidden] or [1, hidden]
            parts.push(g.rows_to_residual(&table("token_type", self.n_types), types)?);
        }
        let sum = io.sum_of(g, &parts)?;
        self.normed(g, w, &self.module(self.modules.embedding_norm), sum)
    }

    /// The bias of the score of each query and key by their distance: [1, heads, tokens, tokens].
    fn distance_bias(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        io: &Io,
        buckets: &Buckets,
    ) -> ValueResult {
        let module = self.module(buckets.module);
        g.at_module(&module);
        let count = self.positions.count();
        if g.spelling().float == DType::Fp16 && count <= Buckets::MOST_WHOLE {
            return self.distance_table(g, w, io, buckets);
        }
        let most = count as i32 - 1;
        let of_distances: Vec<i32> = (-most..=most).map(Buckets::of_distance).collect();
        let of_distances = g.ints(&of_distances)?;
        let positions = io.positions().ints(g)?;
        let (queries, keys) = (
            g.expand_dims(positions, &[1])?,
            g.expand_dims(positions, &[0])?,
        );
        let (distances, most) = (g.sub(keys, queries)?, g.int(most)?);
        let indices = g.add(distances, most)?; // [tokens, tokens]
        let indices = g.gather(of_distances, indices)?;
        let table = w.get(&module, "weight", &[buckets.rows, self.attention.n_heads]);
        let table = g.weight(&table)?;
        let bias = g.gather(table, indices)?; // [tokens, tokens, heads]
        let bias = g.transpose(bias, &[2, 0, 1])?;
        g.expand_dims(bias, &[0])
    }

    /// The same without integers and lookups, from a constant of all positions.
    fn distance_table(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        io: &Io,
        buckets: &Buckets,
    ) -> ValueResult {
        let (n, n_heads) = (self.positions.count(), self.attention.n_heads);
        let module = self.module(buckets.module);
        let table = w.get(&module, "weight", &[buckets.rows, n_heads]);
        let data = g.derive_with(&format!("{module}/distances"), |g| {
            let rows = g.table_numbers(&table, 1.0).to_vec();
            let row = |query, key| Buckets::of_distance(key as i32 - query as i32) as usize;
            let mut bytes = Vec::with_capacity(2 * n_heads * n * n);
            for head in 0..n_heads {
                for query in 0..n {
                    for at in (0..n).map(|key| 2 * (row(query, key) * n_heads + head)) {
                        // A tensor with a fault, which `Weights::finish` reports, has zeros.
                        bytes.extend(rows.get(at..at + 2).unwrap_or(&[0; 2]));
                    }
                }
            }
            Data::owned(bytes)
        });
        let whole = g.constant("distances", &[n_heads, n, n], data)?;
        let bias = io.positions().along(g, whole, 1)?;
        let bias = io.positions().along(g, bias, 2)?; // [heads, tokens, tokens]
        g.expand_dims(bias, &[0])
    }

    fn normed(&self, g: &mut Graph, w: &Weights<'_>, module: &str, x: ValueId) -> ValueResult {
        let part = |name| w.get(module, name, &[self.attention.hidden]);
        self.norm.apply(g, x, &part("weight"), Some(&part("bias")))
    }

    fn layer(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        layer: &str,
        x: ValueId,
        inputs: AttentionInputs<'_>,
    ) -> ValueResult {
        let names = &self.modules;
        let hidden = self.attention.hidden;
        let within = |name: &str| format!("{layer}.{name}");
        let product = |g: &mut Graph, name: &str, x, [outputs, inputs]: [usize; 2], bias: bool| {
            let module = within(name);
            g.at_module(&module);
            let weight = w.get(&module, "weight", &[outputs, inputs]);
            let bias = bias.then(|| w.get(&module, "bias", &[outputs]));
            g.linear("product", x, &weight, bias.as_ref())
        };
        let (qkv_bias, square) = (self.attention.qkv_bias, [hidden, hidden]);
        let projected = match names.projections {
            Projections::Separate([q, k, v]) => Projected {
                q: product(g, q, x, square, qkv_bias)?,
                k: product(g, k, x, square, qkv_bias)?,
                v: product(g, v, x, square, qkv_bias)?,
            },
            Projections::Fused(name) => {
                let all = product(g, name, x, [3 * hidden, hidden], qkv_bias)?;
                let axis = g.features();
                let parts = g.split(all, 3, axis)?;
                let (q, k, v) = (parts[0], parts[1], parts[2]);
                Projected { q, k, v }
            }
        };
        g.at_module(layer);
        let a = self.attention.attend(g, w, layer, projected, inputs)?;
        let a = product(
            g,
            names.attention_output,
            a,
            square,
            self.attention.output_bias,
        )?;
        let x = g.add(x, a)?;
        let x = self.normed(g, w, &within(names.attention_norm), x)?;
        let (widen, narrow) = ([self.intermediate, hidden], [hidden, self.intermediate]);
        let up = product(g, names.up, x, widen, self.mlp_bias)?;
        let m = match names.gate {
            None => self.activation.apply(g, up)?,
            Some(gate) => {
                let gate = product(g, gate, x, widen, self.mlp_bias)?;
                let gate = self.activation.apply(g, gate)?;
                g.mul(gate, up)?
            }
        };
        let m = product(g, names.down, m, narrow, self.mlp_bias)?;
        let x = g.add(x, m)?;
        self.normed(g, w, &within(names.output_norm), x)
    }
}
