//! Classifiers: the place of the label, and the probabilities.

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::Backend;
use thane_mil::opset;
use thane_mil::program::{Program, difference};
use thane_mil::text::{Blobs, parse, print};
use thane_mil::types::DType;
use thane_mil::valid;

const ANIMALS: &str = "program(1.3)
{
    func main<ios15>(tensor<fp32, [1, ?]> x) {
            list<string, 3> classes = const()[val = list<string, 3>([\"cat\", \"dog\", \"a \\\"bee\\\"\"])];
            tensor<fp32, [1, ?]> p = softmax(x = x);
            string label, dict<string, fp64> all = classify(classes = classes, probabilities = p);
        } -> (label, all);
}
";
const NUMBERS: &str = "program(1.3)
{
    func main<ios18>(tensor<fp32, [1, ?]> x) {
            list<int64, 3> classes = const()[val = list<int64, 3>([10, -20, 30])];
            int64 label, dict<int64, fp64> all = classify(classes = classes, probabilities = x);
        } -> (label, all);
}
";

fn read(text: &str) -> Program {
    let program = parse(text, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}"));
    valid::check(&program).unwrap();
    program
}

#[test]
fn classifiers_are_printed_and_read_back() {
    for text in [ANIMALS, NUMBERS] {
        let program = read(text);
        assert_eq!(print(&program, &mut Blobs::default()), text);
        assert_eq!(difference(&program, &read(text)), None);
    }
}

#[test]
fn the_label_is_the_place_of_the_greatest() {
    for (text, x, label) in [
        (ANIMALS, [0.5f32, 2.0, -1.0], 1),
        (NUMBERS, [0.25, 0.125, 0.625], 2),
        (NUMBERS, [0.4, 0.2, 0.4], 0),
    ] {
        let mut instance = Cpu::new(Numerics::F32, 1)
            .load(&read(text))
            .unwrap()
            .instantiate()
            .unwrap();
        instance
            .input("x", &[1, 3])
            .unwrap()
            .copy_from_slice(x.map(f32::to_ne_bytes).as_flattened());
        instance.run("main").unwrap();
        let found = instance.output("label").unwrap();
        assert_eq!(
            (found.dtype, found.shape, found.bytes),
            (DType::Int32, &[][..], &i32::to_ne_bytes(label)[..])
        );
        let all = instance.output("all").unwrap();
        assert_eq!((all.dtype, all.shape), (DType::Fp32, &[3][..]));
        let sum: f32 = x.iter().map(|v| v.exp()).sum();
        for (bytes, x) in all.bytes.as_chunks().0.iter().zip(x) {
            let expected = if text == ANIMALS { x.exp() / sum } else { x };
            assert!((f32::from_ne_bytes(*bytes) - expected).abs() <= 1e-6);
        }
        instance.input("x", &[1, 2]).unwrap();
        let error = instance.run("main").unwrap_err().to_string();
        assert!(error.contains("2 probabilities for 3 classes"), "{error}");
    }
}

#[test]
fn what_is_no_classifier_is_refused() {
    for (old, new, message) in [
        (
            "[1, ?]> x",
            "[1, 4]> x",
            "expected one number for each of the 3 classes",
        ),
        (
            "classes = classes",
            "classes = x",
            "`classes`: expected a list, found tensor",
        ),
        (
            "list<int64, 3> classes = const()[val = list<int64, 3>",
            "list<int32, 3> classes = const()[val = list<int32, 3>",
            "expected a list of strings or int64",
        ),
        (
            "tensor<fp32, [1, ?]> x",
            "tensor<fp16, [1, ?]> x",
            "expected fp32, found",
        ),
    ] {
        assert!(NUMBERS.contains(old), "{old}");
        let error = parse(&NUMBERS.replace(old, new), &|_, _, _| None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// Every op that the opset has runs here; one that does not is named for the reason.
#[test]
fn every_op_of_the_table_runs() {
    const MISSING: &[&str] = &[];
    let missing: Vec<_> = opset::GROUPS
        .iter()
        .flat_map(|g| g.iter())
        .filter(|d| !thane_cpu::runs(d))
        .map(|d| d.name)
        .collect();
    assert_eq!(missing, MISSING);
}
