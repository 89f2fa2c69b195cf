//! Packages that coremltools made of torch modules (tests/oracle/make_packages.py), beside what
//! torch computed.

use std::path::Path;

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::Backend;
use thane_mil::package::Package;

/// The outputs of a package on the inputs that torch had, and how far they are from its results.
fn check(name: &str, inputs: &[&str], outputs: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packages");
    let package = Package::open(&folder.join(name)).unwrap();
    let torch = |name: &str| -> Vec<f32> {
        let known = package.metadata.user_defined.get(&format!("torch.{name}"));
        serde_json::from_str(known.unwrap_or_else(|| panic!("nothing of `{name}`"))).unwrap()
    };
    let mut instance = Cpu::new(Numerics::F32, 2)
        .load(&package.program)
        .unwrap()
        .instantiate()
        .unwrap();
    let f = &package.program.functions()[0];
    assert_eq!(
        f.body()
            .inputs
            .iter()
            .map(|v| f.value(*v).name.as_str())
            .collect::<Vec<_>>(),
        inputs
    );
    for input in f.body().inputs.iter().map(|v| f.value(*v)) {
        let shape = input.ty.tensor().and_then(|t| t.known_shape()).unwrap();
        let bytes: Vec<u8> = torch(&input.name)
            .into_iter()
            .flat_map(f32::to_le_bytes)
            .collect();
        instance
            .input(&input.name, &shape)
            .unwrap()
            .copy_from_slice(&bytes);
    }
    instance.run(&f.name).unwrap();
    for output in outputs {
        let found: Vec<f32> = instance
            .output(output)
            .unwrap()
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let expected = torch(output);
        assert_eq!(found.len(), expected.len());
        let error = found
            .iter()
            .zip(&expected)
            .map(|(a, b)| (a - b).abs())
            .fold(0f32, f32::max);
        assert!(
            error < 1e-6 && expected.iter().any(|v| v.abs() > 0.1),
            "{name}: `{output}` is off by {error}"
        );
    }
}

/// Issue 30, 2.3: the condition of its loop gives a vector of one truth value.
#[test]
fn a_recurrent_layer_of_torch_runs() {
    check("gru.mlpackage", &["x", "h"], &["y", "last"]);
}

/// Issue 30, 2.2: the mask is minus infinity.
#[test]
fn masks_of_infinities_run() {
    check("infinite_mask.mlpackage", &["scores"], &["y"]);
}
