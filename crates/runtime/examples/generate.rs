//! Answers a question with a model, given by name, path or package:
//! `cargo run --release -p thane-runtime --example generate smollm2-135m "Why is the sky blue?"`
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::sync::Arc;
use std::thread::available_parallelism;

use thane_cpu::{Cpu, Numerics};
use thane_hub::{Hub, Places};
use thane_mil::backend::Backend;
use thane_runtime::{Message, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [model, question] = [1, 2].map(|i| std::env::args().nth(i).unwrap_or_default());
    let hub = Hub::new(Places::from_variables(None, |name| std::env::var_os(name)));
    let n_threads = available_parallelism()?.get();
    let backend: Arc<dyn Backend> = Arc::new(Cpu::new(Numerics::Fast, n_threads));
    let mut chat = Model::open(&model, &hub, &())?.generator(&*backend)?;
    chat.answer(&[Message::new("user", question)], |piece| print!("{piece}"))?;
    println!();
    Ok(())
}
