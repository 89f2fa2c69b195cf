//! The parts that families share, as builders of graphs. Shapes stand beside the values.

pub mod attention;
pub mod decoder;
pub mod encoder;
pub mod mlp;
pub mod norm;
pub mod rope;
