//! Activations of 8 bits: the ops that are written, and what they compute.

use std::sync::Arc;

use thane_compile::compress::job::Memory;
use thane_compile::compress::program::{Compression, Importance, Product, Settings};
use thane_mil::program::Program;
use thane_mil::text::{Blobs, parse, print};
use thane_mil::valid;

/// The convolution takes numbers up to 12.7, and nothing is known of the linear op `c`.
struct Known;

impl Importance for Known {
    fn of(&self, _: &Product<'_>, _: usize) -> Option<Arc<[f32]>> {
        None
    }

    fn range(&self, product: &Product<'_>) -> Option<f32> {
        (product.result != "c").then_some(12.7)
    }
}

fn program() -> Program {
    let weight = |name: &str, shape: [usize; 2], ones: &str| {
        let [rows, columns] = shape;
        let row = format!("[{}]", vec![ones; columns].join(", "));
        let all = vec![row; rows].join(", ");
        let kernel = if ones == "0.5" { "" } else { ", 1, 1" };
        let ty = format!("tensor<fp16, [{rows}, {columns}{kernel}]>");
        format!("{ty} {name} = const()[val = {ty}([{all}])];")
    };
    let text = format!(
        "program(1.3) {{ func main<ios18>(tensor<fp16, [1, 32, 1, 64]> x) {{ {} {} {}
            tensor<fp16, [1, 64, 1, 64]> a = conv(x = x, weight = w);
            tensor<fp16, [1, 64, 1, 64]> b = conv(x = x, weight = v);
            tensor<fp16, [1, 64, 1, 32]> c = linear(x = b, weight = u);
        }} -> (a, c); }}",
        weight("w", [64, 32], "[[0.5]]"),
        weight("v", [64, 32], "[[0.5]]"),
        weight("u", [32, 64], "0.5"),
    );
    parse(&text, &|_, _, _| None).unwrap()
}

#[test]
fn products_take_8_bits_where_their_range_is_known() {
    let settings = Settings {
        encoding: "int8".parse().unwrap(),
        activations: true,
        ..Settings::default()
    };
    let program = program();
    let store = Arc::new(Memory::default());
    let compression = Compression::weighted(&program, settings, store, &Known).unwrap();
    let (small, report) = compression.apply(&program).unwrap();
    assert_eq!((report.n_quantized, report.n_unknown), (2, 1));
    assert!(valid::check(&small).is_ok());
    let text = print(&small, &mut Blobs::default());
    // Both convolutions share the codes of their input.
    assert_eq!(text.matches(" quantize(").count(), 1, "{text}");
    assert_eq!(text.matches(" dequantize(").count(), 1, "{text}");
    assert_eq!(text.matches("x = x_dequantized").count(), 2, "{text}");
    assert!(
        text.contains("a = conv(") && text.contains("c = linear("),
        "{text}"
    );
    assert!(
        text.contains("\"int8\"") && !text.contains("zero_point"),
        "{text}"
    );
}
