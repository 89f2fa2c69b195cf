//! Kernels against their definitions, on every instruction set of the machine. Beside the crate
//! rather than inside: the crate takes minutes to build, and is not built a second time for these.
#![allow(clippy::unwrap_used)]

mod accumulate;
mod activation;
mod attention;
mod cache;
mod ceiling;
mod delta;
mod f16;
mod heap;
mod linear;
mod math;
mod norm;
mod rope;
mod softmax;
mod spatial;
mod testing;
mod threads;
mod topk;
mod wide;
