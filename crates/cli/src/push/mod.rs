//! `thane push`: what of a bundle is published, and what its model card says.

mod card;
mod collect;
mod speed;

pub use card::{Card, card};
pub use collect::{Collected, collect, find};
pub use speed::speeds;
