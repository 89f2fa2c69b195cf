//! The form of each weight, and products of one x that are computed together.

use std::collections::HashMap;

use thane_kernels::BlockType;

use super::{PlanError, Planner};
use crate::Numerics;
use crate::step::{Fused, Product, Then};
use crate::weight::Matrix;

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

    /// Brings weights to the form that suits these numbers.
    pub(super) fn suit_weights(&mut self, numerics: Numerics) -> Result<(), PlanError> {
        /// Sequences from which on a packed matrix is read faster, step by step.
        const PACKED_BATCH: usize = 3;
        let (f, folds, context) = (self.f, self.folds, self.context);
        let has_states = !self.states.is_empty();
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
                        *weight = match numerics {
                            Numerics::Ane(_) => continue,
                            _ if weight.codes().is_some() => {
                                let matrix = match has_states {
                                    true => folds.pack_blocks_when_used(weight.clone()),
                                    false => weight.clone(),
                                };
                                folds.order_codes(context, matrix)
                            }
                            Numerics::Int8 if !weight.stored.has_codes() => rounded(weight)?,
                            // A function with state is called for one row after another: fp32 is
                            // read as fast as it is stored.
                            _ if has_states => folds.pack_when_used(context, weight.clone()),
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
