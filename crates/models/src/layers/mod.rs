//! The layers that families share, as functions that add ops to a graph. Comments give shapes.

pub mod activation;
pub mod attention;
pub mod classifier;
pub mod decoder;
pub mod delta_net;
mod delta_rule;
pub mod encoder;
pub mod experts;
pub mod mlp;
pub mod norm;
pub mod per_layer;
pub mod recent;
pub mod rope;
pub mod short_conv;
mod steps;
