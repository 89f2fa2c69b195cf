//! What MIL text counts for before it is parsed is what parsing it takes. A program of its own, for
//! it has an allocator that counts. Threads that parse nothing do not count.
#![allow(clippy::unwrap_used, unsafe_code)]

#[path = "../../../tests/support/heap_peak.rs"]
mod heap_peak;

use std::collections::BTreeMap;

use heap_peak::counted;
use thane_mil::data::Bytes;
use thane_mil::package::Package;
use thane_mil::text::parse;

const HEAD: &str = "program(1.3)\n[buildInfo = dict<string, string>({{\"coremltools-version\", \
                    \"8.3.0\"}})]\n{\n    func main<ios18>(tensor<fp16, [4]> x) {\n";

fn text(ops: &str, last: &str) -> String {
    format!("{HEAD}{ops}        }} -> ({last});\n}}")
}

/// A statement that no other one needs.
const LAST: &str = "tensor<fp16, [4]> last = tan(x = x)[name = string(\"last\")];\n";

fn beside(ops: &str) -> String {
    text(&format!("{ops}{LAST}"), "last")
}

fn numbered(n: usize, op: impl Fn(usize) -> String) -> String {
    (0..n).map(op).collect()
}

/// A chain of ops whose names have `len` bytes more.
fn chain(n: usize, len: usize) -> String {
    let name = |i: usize| match i {
        0 => "x".to_owned(),
        i => format!("y{i}_{}", "n".repeat(len)),
    };
    let op = |i: usize| {
        let (x, y) = (name(i), name(i + 1));
        format!("tensor<fp16, [4]> {y} = tan(x = {x})[name = string(\"{y}\")];\n")
    };
    beside(&numbered(n, op))
}

/// What programs are made of: constants, and ops that take them.
fn layers(n: usize) -> String {
    let layer = |i: usize| {
        let x = match i {
            0 => "x".to_owned(),
            i => format!("layer_{}_out", i - 1),
        };
        format!(
            "tensor<int32, [2]> layer_{i}_shape = const()[name = string(\"layer_{i}_shape\"), \
             val = tensor<int32, [2]>([1, 4])];\n\
             tensor<fp16, [1, 4]> layer_{i}_wide = reshape(shape = layer_{i}_shape, x = {x})\
             [name = string(\"layer_{i}_wide\")];\n\
             tensor<int32, [1]> layer_{i}_axes = const()[name = string(\"layer_{i}_axes\"), \
             val = tensor<int32, [1]>([0])];\n\
             bool layer_{i}_keep = const()[name = string(\"layer_{i}_keep\"), val = bool(false)];\n\
             tensor<fp16, [4]> layer_{i}_out = reduce_sum(axes = layer_{i}_axes, \
             keep_dims = layer_{i}_keep, x = layer_{i}_wide)[name = string(\"layer_{i}_out\")];\n"
        )
    };
    beside(&numbered(n, layer))
}

fn elements(n: usize, ty: &str, element: &str) -> String {
    let list = vec![element; n].join(",");
    beside(&format!(
        "tensor<{ty}, [{n}]> c = const()[name = string(\"c\"), val = tensor<{ty}, [{n}]>([{list}])];\n"
    ))
}

fn several_results(n: usize, len: usize) -> String {
    let name = |i: usize| format!("{}{i}", "p".repeat(len));
    let results: Vec<String> = (0..n)
        .map(|i| format!("tensor<fp16, [1]> {}", name(i)))
        .collect();
    let ones = vec!["1"; n].join(", ");
    beside(&format!(
        "tensor<fp16, [{n}]> z = tile(reps = tensor<int32, [1]>([{}]), x = x);\n\
             {} = split(axis = int32(0), split_sizes = tensor<int32, [{n}]>([{ones}]), x = z);\n",
        n / 4,
        results.join(", ")
    ))
}

fn many_values(n: usize) -> String {
    let values = vec!["x"; n].join(", ");
    let n = 4 * n;
    beside(&format!(
        "tensor<fp16, [{n}]> y = concat(axis = int32(0), interleave = bool(false), \
         values = ({values}));\n"
    ))
}

fn blocks(n: usize) -> String {
    beside(&numbered(n, |i| {
        format!(
            "tensor<fp16, [4]> y{i} = cond(pred = bool(true)) {{\n\
             block() {{ tensor<fp16, [4]> a{i} = tan(x = x); }} -> (a{i});\n\
             block() {{ tensor<fp16, [4]> b{i} = tan(x = x); }} -> (b{i});\n }};\n"
        )
    }))
}

fn functions(n: usize) -> String {
    let function = |i: usize| {
        format!("func f{i}<ios18>(tensor<fp16, [4]> x)[a = int32({i})] {{ {LAST} }} -> (last);\n")
    };
    format!("program(1.3)\n{{\n{}}}", numbered(n, function))
}

fn attributes(n: usize, value: &str) -> String {
    let list: Vec<String> = (0..n).map(|i| format!("a{i} = {value}")).collect();
    format!(
        "program(1.3)\n[{}]\n{{ func main<ios18>(tensor<fp16, [4]> x) {{ {LAST} }} -> (last);\n}}",
        list.join(",")
    )
}

/// Texts that are mostly literals and names.
fn literals() -> Vec<(&'static str, String)> {
    vec![
        (
            "lists",
            attributes(
                1,
                &format!("list<int32, 40000>([{}])", vec!["0"; 40_000].join(",")),
            ),
        ),
        (
            "pairs",
            attributes(
                1,
                &format!(
                    "dict<int32, string>({{{}}})",
                    vec!["{0,\"\"}"; 30_000].join(",")
                ),
            ),
        ),
        ("attributes", attributes(20_000, "int32(1)")),
        (
            "long attributes",
            attributes(3, &format!("string(\"{}\")", "v".repeat(200_000))),
        ),
        (
            "odd names",
            beside(&numbered(5_000, |i| {
                format!("tensor<fp16, [4]> a@{i} = tan(x = x);\n")
            })),
        ),
        (
            "strings",
            beside(&numbered(20_000, |i| {
                format!("string c{i} = const()[val = string(\"\\na\")];\n")
            })),
        ),
    ]
}

/// Texts that are mostly ops, blocks and types.
fn ops() -> Vec<(&'static str, String)> {
    vec![
        ("ints", elements(300_000, "int32", "0")),
        ("bytes", elements(70_000, "int8", "0")),
        ("floats", elements(100_001, "fp32", "0x1p-3")),
        ("booleans", elements(65_537, "bool", "true")),
        ("results", several_results(3_000, 3)),
        ("long results", several_results(200, 3_000)),
        ("values", many_values(100_000)),
        (
            "twice",
            beside(&format!(
                "tensor<fp16, [4]> y = tan({});\n",
                vec!["x=x"; 50_000].join(",")
            )),
        ),
        (
            "notes",
            beside(&format!(
                "tensor<fp16, [4]> y = tan(x = x)[{}];\n",
                vec!["name=string(\"\")"; 40_000].join(",")
            )),
        ),
        ("blocks", blocks(6_000)),
        ("functions", functions(9_000)),
        (
            "ranks",
            beside(&numbered(6_000, |i| {
                format!(
                    "tensor<fp16, [1,1,1,1,4]> r{i} = reshape(x = x, shape = tensor<int32, [5]>([1,1,1,1,4]));\n"
                )
            })),
        ),
        ("comment", beside(&format!("// {}\n", "c".repeat(1 << 20)))),
        (
            "cut",
            HEAD.to_owned() + &"tensor<fp16, [4]> y = tan(x = x)".repeat(1000),
        ),
        (
            "deep",
            beside(&format!(
                "{}int32, 1{} c = const();\n",
                "list<".repeat(40_000),
                ">, 1".repeat(40_000)
            )),
        ),
    ]
}

fn cases() -> Vec<(String, String)> {
    let usual: Vec<(String, String)> = [1, 40, 300, 1020, 1030, 2000, 5000, 9000]
        .into_iter()
        .flat_map(|n| {
            [
                (format!("usual: chain of {n}"), chain(n, 12)),
                (format!("usual: {n} layers"), layers(n)),
            ]
        })
        .collect();
    let long = [(100, 30_000), (3, 900_000), (1000, 300)];
    let long = long.map(|(n, len)| (format!("usual: {n} names of {len}"), chain(n, len)));
    let odd = literals().into_iter().chain(ops());
    let mut named: Vec<(String, String)> =
        odd.map(|(name, text)| (name.to_owned(), text)).collect();
    named.extend(usual);
    named.extend(long);
    named
}

/// A compiled model with this text.
fn files(description: &[u8], text: &str) -> BTreeMap<String, Bytes> {
    BTreeMap::from([
        (
            "coremldata.bin".to_owned(),
            Bytes::new(description.to_vec()),
        ),
        ("model.mil".to_owned(), Bytes::new(text.as_bytes().to_vec())),
    ])
}

fn description() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.mlmodelc");
    let program = parse(&beside(""), &|_, _, _| None).unwrap();
    Package::new(program).write_compiled(&path).unwrap();
    std::fs::read(path.join("coremldata.bin")).unwrap()
}

#[test]
fn text_counts_as_what_its_program_takes() {
    let description = description();
    // Tables of the library are made once.
    let _ = Package::from_files("m", &files(&description, &layers(2))).unwrap();
    for (name, text) in cases() {
        let files = files(&description, &text);
        let estimate = Package::bytes_of_files("m", &files, &|| false).unwrap();
        let (result, found, _) = counted(|| Package::from_files("m", &files));
        assert!(
            estimate >= found,
            "{name}: counted {estimate}, found {found}"
        );
        let is_usual = name.starts_with("usual");
        if !is_usual {
            continue;
        }
        assert!(result.is_ok(), "{name}");
        // Beside some kilobytes of the description.
        let most = (found as f64 * 1.11) as usize + 10_000;
        assert!(
            estimate <= most,
            "{name}: counted {estimate}, found {found}"
        );
    }
}
