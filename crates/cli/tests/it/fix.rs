//! `audit --fix` and `bisect` from end to end: a program with faults becomes one without, a package keeps what it
//! carries, and what cannot be done is refused with what to do.

use std::path::Path;

use crate::fixture::{Home, assert_ends, chat_folder, json, stderr, stdout};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

const BROKEN: &str = "program(1.3)
{
    func main<ios18>(tensor<fp16, [3, 20]> x) {
        tensor<fp16, [3, 20]> a = tan(x = x);
        tensor<fp16, [3, 20]> b = cumsum(x = a, axis = int32(1), exclusive = bool(false), reverse = bool(false));
        tensor<fp16, [3, 20]> c = add(x = b, y = b);
        tensor<fp16, [3, 20]> y = crop(x = c);
    } -> (y);
}
";

pub fn broken(home: &Home) -> std::path::PathBuf {
    let path = home.path("broken.mil");
    let line = "        tensor<fp16, [3, 20]> y = crop(x = c);\n";
    // `topk` has no rewrite: it is left, and said so.
    std::fs::write(&path, BROKEN.replace(line, "        tensor<fp16, [3, 2]> y, tensor<int32, [3, 2]> i = topk(x = c, k = int32(2), axis = int32(1));\n").replace("-> (y)", "-> (y, i)")).unwrap();
    path
}

#[test]
fn what_is_found_is_rewritten_and_stays_fixed() {
    let home = Home::new();
    let from = broken(&home);
    for name in ["fixed.mil", "fixed.mlpackage"] {
        let to = home.path(name);
        let output = home.run(&["audit", text(&from), "--fix", "-o", text(&to)]);
        assert_ends(&output, 0, &[]);
        let said = stdout(&output);
        for line in ["fixed ANE001", "fixed ANE007", "fixed ANE141", "proven: ", "left  ANE023", text(&to)] {
            assert!(said.contains(line), "{line}: {said}");
        }
        let again = home.run(&["audit", text(&to), "--deny", "ANE001,ANE007,ANE141"]);
        assert_ends(&again, 0, &[]);
        let other = home.path(&format!("other/{name}"));
        std::fs::create_dir_all(other.parent().unwrap()).unwrap();
        let row = json(&home.run(&["audit", text(&from), "--fix", "--json", "-o", text(&other)]));
        assert_eq!(
            row["steps"].as_array().unwrap().iter().filter(|s| s["kept"] == true && s["proven"] == true).count(),
            3
        );
        assert!(row["after"]["findings"].as_u64() < row["before"]["findings"].as_u64(), "{row}");
    }
}

/// A model converted in fp32 arithmetic: nothing of it is on the engine before, and it still answers after.
#[test]
fn a_package_keeps_its_contract_and_answers_as_before() {
    let home = Home::new();
    let (from, to) = (home.path("model.mlpackage"), home.path("fixed.mlpackage"));
    let model = chat_folder();
    assert_ends(&home.run(&["convert", text(&model), "-o", text(&from), "--context", "64"]), 0, &[]);
    let output = home.run(&["audit", text(&from), "--fix", "-o", text(&to), "--json"]);
    let row = json(&output);
    assert!(row["steps"].as_array().unwrap().iter().any(|s| s["kept"] == true), "{row}");
    assert_ends(&home.run(&["check", text(&to)]), 0, &[]);
    let run = |package: &Path| {
        json(&home.run(&["run", text(package), "hello", "--max-tokens", "8", "--json", "--numerics", "f32"]))["text"]
            .clone()
    };
    assert_eq!(run(&from), run(&to));
    let other = home.path("other.mlpackage");
    let padded = home.run(&["audit", text(&from), "--fix", "--pad-interface", "-o", text(&other)]);
    assert_ends(&padded, 2, &["its contract says what its functions take", "--pad-interface"]);
    assert!(!other.exists());
}

/// Around Core ML rows fill 64 bytes, where the caller is ready for that.
#[test]
fn rows_of_a_package_of_others_are_padded_when_asked_for() {
    let home = Home::new();
    let from = broken(&home);
    let (package, to) = (home.path("plain.mlpackage"), home.path("padded.mlpackage"));
    assert_ends(&home.run(&["audit", text(&from), "--fix", "-o", text(&package)]), 0, &[]);
    let output = home.run(&["audit", text(&package), "--fix", "--direct", "--pad-interface", "-o", text(&to)]);
    assert_ends(&output, 0, &[]);
    for line in ["main: input `x` was tensor<fp16, [3, 20]>, is tensor<fp16, [3, 32]>", "output `y`", "output `i`"] {
        assert!(stdout(&output).contains(line), "{line}: {}", stdout(&output));
    }
    assert_ends(&home.run(&["check", text(&to)]), 0, &[]);
    assert_ends(&home.run(&["audit", text(&to), "--direct", "--deny", "ANE062"]), 0, &[]);
    assert_ends(&home.run(&["audit", text(&package), "--direct", "--deny", "ANE062"]), 1, &["ANE062"]);
}

#[test]
fn a_part_is_written_that_still_has_the_finding() {
    let home = Home::new();
    let from = broken(&home);
    let to = home.path("part.mlpackage");
    let output = home.run(&["bisect", text(&from), "--rule", "ANE007", "-o", text(&to)]);
    assert_ends(&output, 0, &[]);
    let said = stdout(&output);
    for line in ["ANE007", "1 of 4 ops of main", "cumsum(", text(&to)] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_ends(&home.run(&["check", text(&to)]), 0, &[]);
    let denied = home.run(&["audit", text(&to), "--deny", "ANE007"]);
    assert_ends(&denied, 1, &["denied by --deny ANE007"]);
}

#[test]
fn what_cannot_be_done_says_what_to_do() {
    let home = Home::new();
    let from = broken(&home);
    let absent = home.path("absent.mil");
    let weight = "tensor<fp16, [4, 20]> w = const()[val = tensor<fp16, [4, 20]>(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];";
    std::fs::write(&absent, format!("program(1.3) {{ func main<ios18>(tensor<fp16, [3, 20]> x) {{ {weight} tensor<fp16, [3, 4]> y = linear(x = x, weight = w); }} -> (y); }}")).unwrap();
    let (new, model) = (home.path("new.mil"), chat_folder());
    for (args, code, due) in [
        (vec!["audit", text(&from), "--fix"], 2, "--out"),
        (vec!["audit", text(&from), "--fix", "-o", text(&from)], 2, "exists already"),
        (vec!["audit", text(&absent), "--fix", "-o", text(&new)], 2, "not beside it"),
        (vec!["audit", text(&model), "--fix", "-o", text(&new)], 2, "thane convert"),
        (vec!["audit", text(&from), "--fix", "-o", text(&new), "--target", "m1,m4"], 2, "one target"),
        (vec!["bisect", text(&from), "--rule", "ANE128", "-o", text(&new)], 2, "ANE128 finds nothing"),
        (vec!["bisect", text(&from), "--rule", "ANE999", "-o", text(&new)], 2, "explain --list"),
        (vec!["bisect", text(&from), "-o", text(&from)], 2, "exists already"),
    ] {
        let output = home.run(&args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(due), "{args:?}: {}", stderr(&output));
    }
    assert!(!new.exists());
}
