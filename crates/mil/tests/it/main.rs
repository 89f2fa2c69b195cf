//! Tests of programs in memory, as text and as packages.
#![allow(clippy::unwrap_used)]

mod blob;
mod broadcast;
mod budget;
mod damaged;
mod edit;
mod hostile;
mod interrupted;
mod kind;
mod lines;
mod literal;
mod lower;
mod map;
mod memory;
mod nearest;
mod opset;
mod package;
mod partial;
mod pattern;
mod print;
mod program;
mod recurrent;
mod report;
mod slice;
