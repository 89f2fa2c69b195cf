//! The form of each weight, and products of one x that are computed together.

use std::collections::HashMap;

use thane_kernels::BlockType;

use super::{PlanError, Planner};
use crate::Numerics;
use crate::step::{Fused, Product, Then};
use crate::weight::Matrix;

/// Rows up to which a product reads a weight fastest as it is stored, or packed as such: it waits
/// for memory, and panels of fp32 are twice as much as fp16. From SmolLM2 (1536 x 576, AMD EPYC of
/// family 26, one thread), microseconds in fp16 and as fp32: 59 and 131 for one row, 123 and 114
/// for 4, 165 and 151 for 8, 255 and 173 for 16. fp32 as it is stored has to be transposed for more
/// than two rows.
fn most_few_rows(weight: &Matrix) -> usize {
    match weight.stored.ty {
        BlockType::F32 if weight.codes().is_none() => 2,
        _ => 8,
    }
}

impl Planner<'_> {
    /// Brings the kernels of convolutions to the order in which they are read.
    pub(super) fn pack_kernels(&mut self) -> Result<(), PlanError> {
        for id in self.f.body().ops.clone() {
            if !matches!(self.fused.get(&id), Some(Fused::Conv(_))) {
                continue;
            }
            let Some(Fused::Conv(mut conv)) = self.fused.remove(&id) else {
                continue;
            };
            let packed = self.packed_kernels(&conv.kernels, conv.n_taps);
            let failed = || (Some(id), "its weight cannot be computed".to_owned());
            conv.kernels = packed.ok_or_else(failed)?;
            self.fused.insert(id, Fused::Conv(conv));
        }
        Ok(())
    }

    /// Notes with how many rows the function multiplies each weight.
    pub(super) fn count_rows(&self) {
        // A function with states is called for one token after another, where calls may have any
        // number.
        let flexible = if self.states.is_empty() {
            usize::MAX
        } else {
            1
        };
        for fused in self.fused.values() {
            for product in fused.products() {
                let n_rows = fused.n_rows(self.f).unwrap_or(flexible);
                self.folds.count_rows(&product.weight, n_rows);
            }
        }
    }

    /// Brings weights to the form that suits these numbers.
    pub(super) fn suit_weights(&mut self, numerics: Numerics) -> Result<(), PlanError> {
        /// Sequences from which on a packed matrix is read faster, step by step.
        const PACKED_BATCH: usize = 3;
        let (f, folds, context) = (self.f, self.folds, self.context);
        let packed = |weight: &Matrix| match weight.stored.ty {
            BlockType::F16 => folds.pack_wide(context, weight.clone()),
            BlockType::F32 => folds.pack(context, weight.clone()),
            // The reference does not round to bf16.
            _ => weight.clone(),
        };
        for id in &self.f.body().ops {
            let rounded = |weight: &Matrix| {
                folds
                    .round(context, weight.clone())
                    .map_err(|e| (Some(*id), e))
            };
            match self.fused.get_mut(id) {
                Some(Fused::HalfLinear { weight, .. }) if numerics == Numerics::Int8 => {
                    *weight = rounded(weight)?;
                }
                Some(Fused::Recurrent(layer)) => {
                    let shape = f.value(layer.x).ty.tensor().map(|t| &t.shape);
                    let batch = shape.and_then(|s| s.get(1)?.known()).unwrap_or(1);
                    for cell in &mut layer.cells {
                        cell.input = packed(&cell.input);
                        if batch >= PACKED_BATCH {
                            cell.state = packed(&cell.state);
                        }
                    }
                }
                Some(fused) => {
                    for Product { weight, .. } in fused.products_mut() {
                        let has_few_rows = folds.least_rows(weight) <= most_few_rows(weight);
                        *weight = match numerics {
                            Numerics::Ane(_) => continue,
                            _ if weight.codes().is_some() => {
                                let matrix = match has_few_rows {
                                    true => folds.pack_blocks_when_used(weight.clone()),
                                    false => weight.clone(),
                                };
                                folds.order_codes(context, matrix)
                            }
                            Numerics::Int8 if !weight.stored.has_codes() => rounded(weight)?,
                            _ if has_few_rows => folds.pack_when_used(context, weight.clone()),
                            _ if weight.stored.ty == BlockType::F16 => {
                                folds.pack_wide(context, weight.clone())
                            }
                            // The reference does not round to bf16.
                            Numerics::F32 if weight.stored.ty != BlockType::F32 => continue,
                            _ => folds.pack(context, weight.clone()),
                        };
                    }
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Has the products of one x computed at the first of them: it is quantized once, and threads
    /// are asked once.
    pub(super) fn join_linears(&mut self) {
        let mut first_of = HashMap::new();
        for &id in &self.f.body().ops {
            let Some(Fused::Linear {
                x,
                then: Then::Results,
                ..
            }) = self.fused.get(&id)
            else {
                continue;
            };
            let first = *first_of.entry(*x).or_insert(id);
            if first == id {
                continue;
            }
            let Some(Fused::Linear {
                products: joining, ..
            }) = self.fused.remove(&id)
            else {
                continue;
            };
            if let Some(Fused::Linear { products, .. }) = self.fused.get_mut(&first) {
                products.extend(joining);
                self.covered.insert(id, first);
                self.joined
                    .entry(first)
                    .or_default()
                    .extend(&self.f.op(id).results);
            }
        }
    }
}
