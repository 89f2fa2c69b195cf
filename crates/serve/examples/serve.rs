//! Serves a model, given by name, path or package, at http://127.0.0.1:8080 until it is killed:
//! `cargo run --release -p thane-serve --example serve smollm2-135m`
#![expect(clippy::print_stdout, reason = "an example says where it listens")]

use std::net::TcpListener;
use std::thread::available_parallelism;

use thane_cpu::{Cpu, Numerics};
use thane_hub::{Hub, Places};
use thane_runtime::Model;
use thane_serve::{Hooks, LoadError, Loadable, ModelOptions, Options, Served, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let hub = Hub::new(Places::from_variables(None, |name| std::env::var_os(name)));
    let model = Model::open(&name, &hub, &())?;
    let cpu = Cpu::new(Numerics::Fast, available_parallelism()?.get());
    let loadable = Loadable::new(&model, move |id| {
        let model = Model::open(&name, &hub, &()).map_err(LoadError::new)?;
        Served::start(model, id, &cpu, &ModelOptions::default(), &()).map_err(LoadError::new)
    })?;
    let listener = TcpListener::bind(("127.0.0.1", 8080))?;
    let hooks = Hooks {
        on_ready: &|| {
            println!("http://127.0.0.1:8080");
            Ok(())
        },
        is_stopped: &|| false,
        wants_reload: &|| false,
    };
    Server::new(listener, vec![loadable], Options::default())?.run(&hooks)?;
    Ok(())
}
