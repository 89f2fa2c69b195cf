//! Prints the cosine similarity of two texts by an embedding model, given by name, path or package:
//! `cargo run --release -p thane-runtime --example embed minilm "a cat" "a kitten"`
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::sync::Arc;
use std::thread::available_parallelism;

use thane_cpu::{Cpu, Numerics};
use thane_engine::embed::similarity::Similarity;
use thane_hub::{Hub, Places};
use thane_mil::backend::Backend;
use thane_runtime::Model;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [model, a, b] = [1, 2, 3].map(|i| std::env::args().nth(i).unwrap_or_default());
    let hub = Hub::new(Places::from_variables(None, |name| std::env::var_os(name)));
    let n_threads = available_parallelism()?.get();
    let backend: Arc<dyn Backend> = Arc::new(Cpu::new(Numerics::Fast, n_threads));
    let mut embedder = Model::open(&model, &hub, &())?.embedder(&*backend)?;
    let vectors = embedder.embed(&[&a, &b], None)?;
    println!(
        "{:.6}",
        Similarity::Cosine.compare(&vectors[0], &vectors[1])
    );
    Ok(())
}
