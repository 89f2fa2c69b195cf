//! Chooses the form of a language model for a chip by predicted time, and prints what its calls
//! take: `cargo run --release -p thane-runtime --example plan smollm2-135m m4`
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use thane_audit::plan::form::{Goal, Pinned};
use thane_audit::target::{Route, Target, Units};
use thane_hub::{Hub, Places};
use thane_models::AneDecoder;
use thane_runtime::{Model, PlanOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [model, chip] = [1, 2].map(|i| std::env::args().nth(i).unwrap_or_default());
    let hub = Hub::new(Places::from_variables(None, |name| std::env::var_os(name)));
    let target = Target::parse(&chip, Units::CpuAndNeuralEngine, Route::CoreMl)?;
    let options = PlanOptions {
        context: Some(1024),
        decoder: &AneDecoder::default(),
        pinned: Pinned::default(),
        targets: &[target],
        goal: Goal::Latency,
        compress: None,
    };
    for choice in Model::open(&model, &hub, &())?.plan(&options, &())? {
        println!("{}: {}", choice.target, choice.chosen.describe());
        for priced in &choice.chosen.calls.calls {
            println!(
                "{}: {}",
                priced.call.functions.join(", "),
                priced.time.text()
            );
        }
    }
    Ok(())
}
