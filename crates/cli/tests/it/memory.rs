//! Issue 30, 3.5 and 3.8: what a file asks for is bounded by one budget, and a file that shrinks is
//! found before work begins.

use std::path::PathBuf;

use crate::fixture::{Home, assert_ends, stderr};

fn program(home: &Home, inputs: &str, statements: &str, outputs: &str) -> PathBuf {
    let text = format!(
        "program(1.3)\n{{\n func main<ios18>({inputs}) {{\n{statements}\n}} -> ({outputs});\n}}"
    );
    let path = home.path("model.mil");
    std::fs::write(&path, text).unwrap();
    path
}

fn predict(home: &Home, more: &[&str]) -> std::process::Output {
    let (model, out) = (home.path("model.mil"), home.path("out"));
    let args = [
        "predict",
        model.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--force",
    ];
    home.run(&[&args, more].concat())
}

/// 2 kB of text that would take 10 GB.
#[test]
fn many_large_tensors_of_a_small_file_are_refused() {
    let home = Home::new();
    let names: Vec<String> = (0..40).map(|i| format!("y{i}")).collect();
    let value = |y: &String| {
        format!("tensor<fp32, [67108864]> {y} = tile(x = x, reps = tensor<int32, [1]>([65536]));\n")
    };
    let statements: String = names.iter().map(value).collect();
    program(
        &home,
        "tensor<fp32, [1024]> x",
        &statements,
        &names.join(", "),
    );
    let output = predict(&home, &["--memory", "700MB"]);
    let texts = [
        "op `tile` that makes `y2`",
        "a tensor [67108864] of fp32 needs 268.4 MB of memory",
        "--memory SIZE",
    ];
    assert_ends(&output, 2, &texts);
    assert!(!home.path("out").exists(), "nothing is written");
}

#[test]
fn a_state_counts_as_if_it_were_full() {
    let home = Home::new();
    let cache = "state<tensor<fp16, [4, 1000000, 1000]>> cache";
    program(
        &home,
        cache,
        "tensor<fp16, [4, 1000000, 1000]> y = read_state(input = cache);",
        "y",
    );
    let output = predict(&home, &["--memory", "4GB"]);
    assert_ends(
        &output,
        2,
        &[
            "state `cache` does not fit in memory",
            "needs 8.0 GB of memory",
            "--memory SIZE",
        ],
    );
}

#[test]
fn an_npy_file_is_not_believed() {
    let home = Home::new();
    program(
        &home,
        "tensor<fp32, [?]> x",
        "tensor<fp32, [?]> y = relu(x = x);",
        "y",
    );
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (250000000000,), }\n";
    let file = [
        b"\x93NUMPY\x01\x00",
        &(header.len() as u16).to_le_bytes()[..],
        header.as_bytes(),
    ]
    .concat();
    let path = home.path("x.npy");
    std::fs::write(&path, file).unwrap();
    let given = format!("x={}", path.display());
    assert_ends(
        &predict(&home, &["--input", &given]),
        2,
        &["x.npy", "shorter than its shape [250000000000]"],
    );
    // Sparse, it has the length that it says.
    if std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1_000_000_001_000)
        .is_ok()
    {
        let texts = [
            "x.npy",
            "an array [250000000000] of fp32 needs 1000.0 GB of memory",
            "--memory SIZE",
        ];
        assert_ends(
            &predict(&home, &["--input", &given, "--memory", "1GB"]),
            2,
            &texts,
        );
    }
    let shape = ["--shape", "x=250000000000", "--memory", "1GB"];
    assert_ends(
        &predict(&home, &shape),
        2,
        &["input `x`", "needs 1000.0 GB of memory"],
    );
}

#[test]
fn results_and_inputs_are_not_replaced_unasked() {
    let home = Home::new();
    program(
        &home,
        "tensor<fp32, [2]> x",
        "tensor<fp32, [2]> y = relu(x = x);",
        "y",
    );
    let (model, out) = (home.path("model.mil"), home.path("out"));
    let args = [
        "predict",
        model.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ];
    let first = home.run(&args);
    assert_ends(
        &first,
        0,
        &["input x was made up: fp32 [2], from -1 to 1, seed 0; --input x=FILE gives it"],
    );
    let result = std::fs::read(out.join("y.npy")).unwrap();
    assert_ends(&home.run(&args), 2, &["y.npy exists already", "--force"]);
    let again = home.run(&[&args[..], &["--force", "--random-seed", "7", "--quiet"]].concat());
    assert_ends(&again, 0, &[]);
    assert_eq!(stderr(&again), "");
    assert_ne!(std::fs::read(out.join("y.npy")).unwrap(), result);
    // An input is never replaced.
    let given = format!("x={}", out.join("y.npy").display());
    assert_ends(
        &home.run(&[&args[..], &["--force", "--input", &given]].concat()),
        2,
        &["would replace the input"],
    );
    let file = [args[0], args[1], "--out", args[1]];
    assert_ends(&home.run(&file), 2, &["model.mil is not a folder"]);
}

/// Relative to the largest magnitude, on inputs of the user's; 0.1 % of -8 to 8 is 8e-3.
#[test]
fn diff_accepts_what_is_within_the_tolerance() {
    let home = Home::new();
    let scaled = |name: &str, factor: &str| {
        let statement = format!("tensor<fp32, [2]> y = mul(x = x, y = fp32({factor}));");
        let path = home.path(name);
        std::fs::rename(
            program(&home, "tensor<fp32, [2]> x", &statement, "y"),
            &path,
        )
        .unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (a, b) = (scaled("a.mil", "2"), scaled("b.mil", "2.001"));
    let inputs = home.path("inputs");
    std::fs::create_dir(&inputs).unwrap();
    let folder = inputs.to_str().unwrap().to_owned();
    let give = |name: &str, x: [f32; 2]| {
        let header = format!(
            "{:118}\n",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
        );
        let mut file = [
            b"\x93NUMPY\x01\x00",
            &(header.len() as u16).to_le_bytes()[..],
            header.as_bytes(),
        ]
        .concat();
        file.extend(x.map(f32::to_le_bytes).concat());
        std::fs::write(inputs.join(name), file).unwrap();
    };
    let diff = |more: &[&str]| home.run(&[&["diff", &a, &b], more].concat());
    assert_ends(
        &diff(&["--inputs", &folder]),
        2,
        &["expected a .npy, PNG or JPEG file, found none"],
    );
    give("x.npy", [-4.0, 0.5]);
    let far = diff(&["--inputs", &folder, "--tolerance", "4e-4"]);
    assert_ends(&far, 1, &["the packages differ by more than the tolerance"]);
    let text = crate::fixture::stdout(&far);
    assert!(
        text.contains("`y` differs by 4.000e-3 at most, 5.000e-4 of the largest magnitude"),
        "{text}"
    );
    assert!(text.contains("more than the tolerance"), "{text}");
    assert_ends(&diff(&["--inputs", &folder, "--tolerance", "6e-4"]), 0, &[]);
    assert_ends(
        &diff(&["--inputs", &folder, "--absolute-tolerance", "5e-3"]),
        0,
        &[],
    );
    assert_ends(
        &diff(&["--inputs", &folder, "--absolute-tolerance", "3e-3"]),
        1,
        &["differ"],
    );
    assert_ends(
        &diff(&["--tolerance", "1e-3"]),
        0,
        &["made up", "seed 0: x"],
    );
    assert_ends(&diff(&[]), 1, &["the packages differ"]);
    assert_ends(&diff(&["--tolerance", "-1"]), 2, &[]);
    // What cannot be compared is no difference.
    let whole = std::fs::read(inputs.join("x.npy")).unwrap();
    std::fs::write(inputs.join("x.npy"), &whole[..20]).unwrap();
    let bad = home.run(&["diff", &a, &a, "--inputs", &folder]);
    assert_ends(&bad, 2, &["input `x`", "x.npy"]);
    assert!(
        !stderr(&bad).contains("differ") && crate::fixture::stdout(&bad).is_empty(),
        "{bad:?}"
    );
    std::fs::write(inputs.join("x.npy"), &whole).unwrap();
    give("q.npy", [0.0, 0.0]);
    assert_ends(
        &diff(&["--inputs", &folder]),
        2,
        &["no function has an input `q` for q.npy; there are x"],
    );
}

/// A package whose weights were cut while it was in use cannot be tested without a race; one that
/// was cut before is told.
#[test]
fn a_package_that_was_cut_is_refused() {
    let home = Home::new();
    let package = home.path("model.mlpackage");
    let path = package.to_str().unwrap().to_owned();
    let model = crate::fixture::chat_gguf();
    assert_ends(
        &home.run(&["convert", model.to_str().unwrap(), "-o", &path]),
        0,
        &[],
    );
    let weights = package.join("Data/com.apple.CoreML/weights/weight.bin");
    let len = weights.metadata().unwrap().len();
    std::fs::File::options()
        .write(true)
        .open(&weights)
        .unwrap()
        .set_len(len / 2)
        .unwrap();
    assert_ends(
        &home.run(&["check", &path]),
        2,
        &["weight.bin", "reaches beyond the end"],
    );
}
