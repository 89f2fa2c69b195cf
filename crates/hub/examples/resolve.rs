//! Prints the path of a model's files, and downloads them where they are not in the cache:
//! `cargo run -p thane-hub --example resolve smollm2-135m`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use thane_hub::{Hub, Places};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec = std::env::args()
        .nth(1)
        .ok_or("usage: resolve NAME|PATH|hf:org/name")?;
    let hub = Hub::new(Places::from_variables(None, |name| std::env::var_os(name)));
    let files = hub.resolve(&spec)?;
    println!("{}", files.path.display());
    Ok(())
}
