//! The lines of a text on which functions and values are declared.

use thane_mil::text::lines;

#[test]
fn functions_and_results_have_lines() {
    let text = "program(1.3)\n{\n    // tensor<fp16, [1]> z = relu(x = x);
func f<ios18>(tensor<fp16, [1, 2]> x) {\n
    tensor<fp16, [1, 2]> y = relu(x = x)[name = string(\"a, y = b\")];
    tensor<fp16, [1, 1]> t, tensor<int32,
        [1, 1]> i = topk(x = y, k = int32(1));
} -> (t, i);\n func g<ios18>(bool p) { bool y = logical_not(x = p); } -> (y);\n}";
    let found = lines(text);
    assert_eq!(
        (
            found.function("f"),
            found.function("g"),
            found.function("h")
        ),
        (Some(4), Some(10), None)
    );
    let of = |name| found.value("f", name);
    assert_eq!(
        (of("y"), of("t"), of("i"), of("x"), of("z"), of("k")),
        (Some(6), Some(7), Some(8), None, None, None)
    );
    assert_eq!(
        (found.value("g", "y"), found.value("h", "y")),
        (Some(10), None)
    );
    assert_eq!(lines("no { text <<<").function("no"), None);
}
