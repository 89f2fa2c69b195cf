//! `thane audit` and `thane explain`: what they say of small programs, in every form, and what they
//! refuse.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::fixture::{Home, assert_ends, chat_folder, conversion, json, stderr, stdout};

/// A program of `tests/example`: `broken` or `fixed`.
pub fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/example")
        .join(name);
    path.with_extension("mil")
        .canonicalize()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

fn write(home: &Home, name: &str, text: &str) -> String {
    std::fs::write(home.path(name), text).unwrap();
    home.path(name).to_str().unwrap().to_owned()
}

/// A program of `n` elementwise ops in a row.
fn chain(n: usize) -> String {
    let ty = "tensor<fp16, [1, 8, 16, 32]>";
    let ops: String = (0..n)
        .map(|i| format!("{ty} x{} = mul(x = x{i}, y = x{i});\n", i + 1))
        .collect();
    format!("program(1.3) {{ func main<ios18>({ty} x0) {{\n{ops}}} -> (x{n}); }}")
}

fn audit(home: &Home, args: &[&str]) -> std::process::Output {
    home.run(&[&["audit"], args].concat())
}

fn report(home: &Home, args: &[&str]) -> Value {
    json(&audit(home, &[args, &["--json"]].concat()))
}

fn rules_of(target: &Value) -> BTreeSet<String> {
    target["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["rule"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_broken_program_is_red_and_the_same_without_its_mistakes_green() {
    let home = Home::new();
    let asked = ["--require-ane", "100", "--deny", "warning"];
    let broken = audit(&home, &[&[example("broken").as_str()], &asked[..]].concat());
    assert_ends(
        &broken,
        1,
        &[
            "requirements do not hold",
            "100 % are required",
            "denied by --deny warning",
        ],
    );
    let text = stdout(&broken);
    for said in [
        "ANE070",
        "k_cache",
        "disputed",
        "ANE001",
        "tan `gate` of layers_0_self_attn_gate",
        "fix",
        "ANE046 int32",
    ] {
        assert!(text.contains(said), "`{said}` is not in:\n{text}");
    }
    let path = example("broken");
    assert!(
        text.lines().all(|l| l.chars().count() <= 80 || l == path),
        "{text}"
    );
    assert!(
        !text.contains('\u{1b}'),
        "no colours where nobody sees them"
    );
    let fixed = audit(&home, &[&[example("fixed").as_str()], &asked[..]].concat());
    assert_ends(&fixed, 0, &[]);
    assert!(
        stdout(&fixed).contains("100.0 %: 12 of 12 ops") && stdout(&fixed).contains("no findings")
    );
}

/// The output that docs/audit.md shows is what the command prints, up to where it is cut with `..`.
#[test]
fn the_documentation_shows_what_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let document = std::fs::read_to_string(root.join("docs/audit.md")).unwrap();
    for name in ["broken", "fixed"] {
        let args = [
            "audit",
            &format!("tests/example/{name}.mil"),
            "--require-ane",
            "100",
            "--deny",
            "warning",
        ];
        let shown = document
            .split(&format!("\n$ thane {}\n", args.join(" ")))
            .nth(1)
            .unwrap();
        let shown = shown.lines().take_while(|l| !matches!(*l, ".." | "```"));
        let output = Home::new()
            .thane(&args)
            .current_dir(&root)
            .output()
            .unwrap();
        let (text, said) = (stdout(&output), stderr(&output));
        let mut printed = text.lines();
        let mut n = 0;
        for line in shown {
            assert_eq!(
                Some(line),
                printed.next(),
                "run the command, and show what it prints"
            );
            n += 1;
        }
        assert!(
            n > 10 && said.lines().all(|l| document.contains(l)),
            "{name}: {n} lines, {said}"
        );
    }
}

#[test]
fn json_counts_what_it_lists() {
    let home = Home::new();
    let report = report(
        &home,
        &[&example("broken"), "--target", "m4,a19,m1+macos15"],
    );
    let targets = report["targets"].as_array().unwrap();
    let names: Vec<&str> = targets
        .iter()
        .map(|t| t["target"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "m4+macos27 (cpuAndNeuralEngine)",
            "a19+ios27 (cpuAndNeuralEngine)",
            "m1+macos15 (cpuAndNeuralEngine)"
        ]
    );
    let listed: BTreeSet<&str> = report["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["id"].as_str().unwrap())
        .collect();
    for target in targets {
        let function = &target["functions"][0];
        let table = function["table"].as_array().unwrap();
        let on_engine = table.iter().filter(|op| op["backend"] == "ane").count();
        assert_eq!(
            (function["ops"].as_u64(), function["ane_ops"].as_u64()),
            (Some(table.len() as u64), Some(on_engine as u64))
        );
        let segments = function["segments"].as_array().unwrap();
        assert_eq!(
            segments
                .iter()
                .map(|s| s["ops"].as_u64().unwrap())
                .sum::<u64>(),
            table.len() as u64
        );
        assert!(rules_of(target).iter().all(|r| listed.contains(r.as_str())));
        for finding in target["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|f| !f["op"].is_null())
        {
            assert!(
                table.iter().any(|op| op["name"] == finding["op"]),
                "{finding}"
            );
        }
        let l = &function["latency"];
        let of = |name: &str| l[name].as_f64().unwrap();
        assert!(0.0 < of("low_ms") && of("low_ms") < of("ms") && of("ms") < of("high_ms"));
        let parts: f64 = l["parts"]
            .as_object()
            .unwrap()
            .values()
            .map(|v| v.as_f64().unwrap())
            .sum();
        assert!((parts / of("ms") - 1.0).abs() < 1e-6);
    }
}

#[test]
fn sarif_names_places_and_rules() {
    let home = Home::new();
    let output = audit(
        &home,
        &[&example("broken"), "--format", "sarif", "--target", "m4,m1"],
    );
    assert_ends(&output, 0, &[]);
    let text = std::fs::read_to_string(example("broken")).unwrap();
    let log = json(&output);
    let run = &log["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    let results = run["results"].as_array().unwrap();
    // Six findings on each of two targets are five rules: a result for each.
    assert!(
        log["version"] == "2.1.0" && results.len() == rules.len() && results.len() == 5,
        "{results:?}"
    );
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert_eq!(
            rules[index]["defaultConfiguration"]["level"],
            result["level"]
        );
        assert!(!rules[index]["help"]["text"].as_str().unwrap().is_empty());
        assert!(
            rules[index]["helpUri"]
                .as_str()
                .unwrap()
                .starts_with("https://"),
            "{}",
            rules[index]
        );
        assert_eq!(result["properties"]["targets"].as_array().unwrap().len(), 2);
        let places = result["occurrenceCount"].as_u64().unwrap();
        assert_eq!(
            result["relatedLocations"].as_array().unwrap().len() as u64,
            places - 1
        );
        let place = &result["locations"][0];
        assert!(
            place["logicalLocations"][0]["fullyQualifiedName"]
                .as_str()
                .unwrap()
                .starts_with("main")
        );
        assert!(
            place["physicalLocation"]["artifactLocation"]["uri"]
                .as_str()
                .unwrap()
                .ends_with("broken.mil")
        );
        let name = place["logicalLocations"][0]["name"].as_str().unwrap();
        let line = place["physicalLocation"]["region"]["startLine"]
            .as_u64()
            .unwrap() as usize;
        let shown = text.lines().nth(line - 1).unwrap();
        assert!(
            shown.contains(&format!(" {name} = ")) || shown.contains(&format!("func {name}<")),
            "{name}: {shown}"
        );
    }
}

/// Terms, kinds of ops and layers add up to the call.
#[test]
fn the_time_of_a_call_is_explained() {
    let home = Home::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-chat");
    let args = [model.to_str().unwrap(), "--explain-latency"];
    let said = stdout(&audit(&home, &args));
    for part in [
        "a call",
        "ops by kind",
        "ops by layer",
        "products",
        "layers_1",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let found = report(&home, &args);
    for f in found["targets"][0]["functions"].as_array().unwrap() {
        let sum = |of: &str| -> f64 {
            let rows = f["explained"][of].as_array().unwrap();
            rows.iter().map(|row| row["ms"].as_f64().unwrap()).sum()
        };
        let parts = f["latency"]["parts"].as_object().unwrap();
        let parts: f64 = parts.values().map(|ms| ms.as_f64().unwrap()).sum();
        let ms = f["latency"]["ms"].as_f64().unwrap();
        assert!((parts - ms).abs() < 1e-9 * ms.max(1.0), "{parts}, {ms}");
        assert!((sum("kinds") - sum("layers")).abs() < 1e-9 * ms.max(1.0));
        assert!(sum("kinds") <= ms + 1e-9, "{f}");
    }
}

/// Rows of the tables, with traffic and dispatch, add up to the call.
#[test]
fn tables_of_terms_add_up_to_the_call() {
    let home = Home::new();
    let said = stdout(&audit(&home, &[&example("broken"), "--explain-latency"]));
    for title in ["ops by kind", "ops by layer"] {
        let table = said.split_once(title).unwrap().1;
        let rows = table.lines().skip(1).take_while(|row| !row.is_empty());
        let mut names = Vec::new();
        let mut sum = 0.0;
        for row in rows {
            assert!(row.len() <= 80, "{row}");
            // The name, as wide as its column, then how many ops, and their milliseconds.
            let (name, rest) = row.split_at(18);
            names.push(name.trim());
            sum += rest[5..13].trim().parse::<f64>().unwrap();
        }
        assert!(names.ends_with(&["(traffic)", "(dispatch)"]), "{names:?}");
        assert!((sum - 0.722).abs() < 0.003, "{title}: {sum}\n{table}");
    }
}

/// Each layer is as wide in the bar as its share of the time of ops, and so are its terms together.
#[test]
fn the_page_has_a_bar_by_layer() {
    let home = Home::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-chat");
    let model = model.to_str().unwrap();
    let page = stdout(&audit(&home, &[model, "--format", "html"]));
    let found = report(&home, &[model]);
    assert!(page.contains("reading that they hide takes no time of its own"));
    let functions = found["targets"][0]["functions"].as_array().unwrap();
    let bars: Vec<&str> = page.split("<svg class=\"layers\"").skip(1).collect();
    assert_eq!(bars.len(), functions.len());
    for (f, bar) in functions.iter().zip(bars) {
        let rows = f["explained"]["layers"].as_array().unwrap();
        let ms = |row: &Value| row["ms"].as_f64().unwrap();
        let total: f64 = rows.iter().map(ms).sum();
        let bar = bar.split_once("</svg>").unwrap().0;
        let width = |rect: &str| -> f64 {
            let rest = rect.split_once(" width=\"").unwrap().1;
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        // A layer, then its terms.
        let mut drawn = bar.split("<rect class=\"layer\"").skip(1);
        for row in rows {
            let (layer, terms) = drawn.next().unwrap().split_once("</title>").unwrap();
            let name = match row["name"].as_str().unwrap() {
                "" => "no layer",
                name => name,
            };
            let said = format!("<title>{name}: {} op", row["ops"]);
            assert!(layer.contains(&said), "{said}: {layer}");
            let expected = ms(row) / total * 960.0;
            assert!(
                (width(layer) - expected).abs() < 0.01,
                "{layer}: {expected}"
            );
            let terms = terms.split("<rect class=\"").skip(1);
            let of_terms: f64 = terms.clone().map(width).sum();
            assert!((of_terms - expected).abs() < 0.05, "{of_terms}, {expected}");
            for term in terms {
                let (class, rest) = term.split_once('"').unwrap();
                assert!(rest.contains(&format!(": {class}, ")), "{term}");
            }
        }
        assert!(drawn.next().is_none());
    }
}

/// The page has what the text has, and the whole time of a call.
#[test]
fn the_page_has_caveats_and_explains_the_whole_call() {
    let home = Home::new();
    let page = stdout(&audit(&home, &[&example("broken"), "--format", "html"]));
    for said in [
        "Weights: 3 constants are not beside the text",
        "Estimated: not measured on this chip",
        "mJ a call",
        "A call of 0.722 ms",
        "<title>dispatch, ",
        "<title>traffic, ",
        "FLOP per byte",
        "TFLOP/s",
        "<dd>it does not load</dd>",
        "CPU (BNNS)",
    ] {
        assert!(page.contains(said), "{said}");
    }
}

/// Every op of the function for any length has an open axis: a line for each would hide the rest.
#[test]
fn a_function_of_any_length_is_a_line_for_each_rule() {
    let home = Home::new();
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-embed/bert-mean");
    let args = [
        model.to_str().unwrap(),
        "--buckets",
        "16",
        "--format",
        "concise",
    ];
    let text = stdout(&audit(&home, &args));
    let found: Vec<&str> = text.lines().filter(|l| l.contains(" ANE058 ")).collect();
    assert_eq!(found.len(), 1, "{text}");
    assert!(
        found[0].contains(" of this function, which takes any length)"),
        "{text}"
    );
    assert!(!text.contains("0.000 GFLOP"), "{text}");
}

/// What code review bots need: paths that are relative to the working folder, and what failed.
#[test]
fn sarif_has_relative_paths_and_failed_requirements() {
    let home = Home::new();
    std::fs::create_dir(home.path("ci")).unwrap();
    std::fs::copy(example("broken"), home.path("ci/x.mil")).unwrap();
    let whole = home.path("ci/x.mil").to_str().unwrap().to_owned();
    for file in [whole.as_str(), "ci/../ci/x.mil", "./ci/x.mil"] {
        let output = home
            .thane(&["audit", file, "--format", "sarif", "--require-ane", "100"])
            .current_dir(home.path("."))
            .output()
            .unwrap();
        let log = json(&output);
        let run = &log["runs"][0];
        let place = &run["results"][0]["locations"][0]["physicalLocation"];
        assert_eq!(run["artifacts"][0]["location"]["uri"], "ci/x.mil", "{file}");
        assert_eq!(place["artifactLocation"]["uri"], "ci/x.mil", "{file}");
        let said = &run["invocations"][0]["toolExecutionNotifications"];
        assert!(
            said[0]["message"]["text"]
                .as_str()
                .unwrap()
                .contains("100 % are required")
        );
    }
}

#[test]
fn sarif_of_a_package_elsewhere_has_lines_and_whole_uris() {
    let home = Home::new();
    let package = home.path("a package.mlpackage");
    let package = package.to_str().unwrap();
    let fixed = ["audit", &example("fixable"), "--fix", "-o", package];
    assert_ends(&home.run(&fixed), 0, &[]);
    let log = json(&home.run(&["audit", package, "--format", "sarif"]));
    let result = &log["runs"][0]["results"][0];
    let place = &result["locations"][0]["physicalLocation"];
    let uri = place["artifactLocation"]["uri"].as_str().unwrap();
    assert!(uri.starts_with("file:///"), "{uri}");
    assert!(uri.ends_with("/a%20package.mlpackage"), "{uri}");
    assert_eq!(place["region"]["startLine"], 1);
}

/// Scales of blocks may take a program off the engine, or not: sources differ, and both are told.
#[test]
fn residency_is_told_both_ways_where_that_is_disputed() {
    let home = Home::new();
    let constant = |name: &str, ty: &str| {
        format!(
            "{ty} {name} = const()[val = {ty}(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];"
        )
    };
    let text = format!(
        "program(1.3) {{ func main<ios18>(tensor<fp16, [1, 512, 64, 64]> x) {{ {} {}
        tensor<fp16, [512, 512, 3, 3]> w = constexpr_blockwise_shift_scale(data = q, scale = s);
        tensor<fp16, [1, 512, 62, 62]> y = conv(x = x, weight = w); }} -> (y); }}",
        constant("q", "tensor<int4, [512, 512, 3, 3]>"),
        constant("s", "tensor<fp16, [512, 8, 1, 1]>")
    );
    let file = write(&home, "blocks.mil", &text);
    let said = stdout(&audit(&home, &[&file]));
    for line in [
        "sources differ",
        "100.0 %: 1 of 1 op ",
        "0 %, if ANE083 is right, which is not sure",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(
        json(&audit(&home, &[&file, "--json"]))["targets"][0]["verdict"],
        "may-leave-engine"
    );
    // CI must not pass where all of it may run elsewhere, unless that is accepted.
    let required = |more: &[&str]| {
        let args = [&file, "--require-ane", "100"];
        audit(&home, &[&args[..], more].concat())
    };
    let says = "m4+macos27: 1 op of `main` may leave the engine: ANE083 (";
    assert_ends(
        &required(&[]),
        1,
        &[says, "sources differ) at `w`; --allow"],
    );
    assert_ends(&required(&["--allow-disputed"]), 0, &[]);
    let base = home.path("base.json").to_str().unwrap().to_owned();
    assert_ends(&audit(&home, &[&file, "-o", &base]), 0, &[]);
    assert_ends(&required(&["--baseline", &base]), 0, &[]);
    let none = audit(&home, &[&file, "--require-ane", "0"]);
    assert_ends(&none, 0, &[]);
    let alone = audit(&home, &[&file, "--allow-disputed"]);
    assert_ends(&alone, 2, &["--require-ane"]);
}

#[test]
fn the_page_needs_no_network_and_escapes_names() {
    let home = Home::new();
    let text = std::fs::read_to_string(example("broken")).unwrap();
    let odd = write(&home, "<img src=x onerror=alert(1)>.mil", &text);
    let page = home.path("page.html");
    let output = audit(
        &home,
        &[
            &odd,
            "--format",
            "html",
            "--target",
            "m4,a19",
            "-o",
            page.to_str().unwrap(),
        ],
    );
    assert_ends(&output, 0, &[]);
    assert_eq!(stdout(&output), format!("{}\n", page.display()));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(!page.contains("<img") && page.contains("&lt;img src=x"));
    for outside in ["http://", "https://", "src=\"", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for part in [
        "<svg class=\"timeline\"",
        "<svg class=\"roofline\"",
        "id=\"table\"",
        "ANE070",
        "aria-label",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let data = page
        .split("id=\"data\">")
        .nth(1)
        .unwrap()
        .split("</script>")
        .next()
        .unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(
        (
            data["functions"].as_array().unwrap().len(),
            data["functions"][0]["rows"].as_array().unwrap().len()
        ),
        (2, 14)
    );
}

#[test]
fn the_form_of_apples_compiler_is_read_back_and_compared() {
    let home = Home::new();
    let output = audit(&home, &[&example("broken"), "--format", "mil"]);
    assert_ends(&output, 0, &[]);
    let text = stdout(&output);
    assert!(text.contains(
        "BackendSupport = list<string, 5>([\"unsupported\", \"unsupported\", \"bnns\", \"classic_cpu\", \"ane\"])"
    ));
    let same = write(&home, "analytics.mil", &text);
    let found = report(&home, &[&example("broken"), "--compare", &same])["comparison"].clone();
    assert_eq!(
        (
            &found["matched"],
            &found["selected"]["same"],
            &found["supported"]["same"]
        ),
        (&14.into(), &14.into(), &14.into())
    );
    assert_eq!(
        (
            found["estimates"]["median_error"].as_f64(),
            found["differences"].as_array().unwrap().len()
        ),
        (Some(0.0), 0)
    );
    let other = write(
        &home,
        "other.mil",
        &text.replacen(
            "SelectedBackend = string(\"ane\")",
            "SelectedBackend = string(\"bnns\")",
            1,
        ),
    );
    let found = report(&home, &[&example("broken"), "--compare", &other])["comparison"].clone();
    assert_eq!(
        (
            &found["selected"]["same"],
            &found["differences"][0]["there"]
        ),
        (&13.into(), &"CPU".into())
    );
    let plan = r#"[{"output": "q", "preferred": "gpu", "supported": ["cpu", "gpu"], "cost": 0.5}, {"output": "z", "preferred": "cpu"}]"#;
    let output = audit(
        &home,
        &[
            &example("broken"),
            "--compare",
            &write(&home, "plan.json", plan),
        ],
    );
    assert_ends(&output, 0, &[]);
    let text = stdout(&output);
    assert!(
        text.contains("1 matched by output, 13 here only, 1 there only"),
        "{text}"
    );
    assert!(
        text.contains("ANE here, GPU there (selected)") && text.contains("there (supported)"),
        "{text}"
    );
}

#[test]
fn only_what_a_baseline_does_not_have_counts() {
    let home = Home::new();
    let file = home.path("base.json").to_str().unwrap().to_owned();
    assert_ends(
        &audit(
            &home,
            &[&example("broken"), "--format", "json", "-o", &file],
        ),
        0,
        &[],
    );
    let again = audit(
        &home,
        &[&example("broken"), "--deny", "note", "--baseline", &file],
    );
    assert_ends(&again, 0, &[]);
    assert!(
        stdout(&again).contains("6 findings are known, 0 are new, 0 are fixed"),
        "{}",
        stdout(&again)
    );
    let other = audit(
        &home,
        &[&example("broken"), "--target", "m1", "--baseline", &file],
    );
    let said = stdout(&other);
    let said: Vec<&str> = said.split_whitespace().collect();
    let said = said.join(" ");
    assert!(
        said.contains("the baseline has no m1+macos27 (cpuAndNeuralEngine), only m4+macos27"),
        "{said}"
    );
    let fixed = report(
        &home,
        &[&example("fixed"), "--deny", "note", "--baseline", &file],
    );
    assert_eq!(
        (
            fixed["passed"].as_bool(),
            fixed["baseline"]["fixed"].as_array().unwrap().len()
        ),
        (Some(true), 6)
    );
    let named = fixed["baseline"]["other_program"].as_str().unwrap();
    assert!(named.ends_with("broken.mil"), "{named}");
    // A baseline without any function of the program is of another one.
    let renamed = std::fs::read_to_string(example("fixed"))
        .unwrap()
        .replace("func main", "func step");
    let renamed = write(&home, "renamed.mil", &renamed);
    assert_ends(
        &audit(&home, &[&renamed, "--baseline", &file]),
        2,
        &["broken.mil, none of whose functions (main) this program has"],
    );
    // The other way round, everything is new.
    assert_ends(
        &audit(
            &home,
            &[
                &example("fixed"),
                "--format",
                "json",
                "-o",
                &file,
                "--force",
            ],
        ),
        0,
        &[],
    );
    let broken = audit(
        &home,
        &[&example("broken"), "--deny", "ANE001", "--baseline", &file],
    );
    assert_ends(&broken, 1, &["1 new finding denied by --deny ANE001"]);
}

#[test]
fn requirements_are_of_each_function_and_rule() {
    let home = Home::new();
    let broken = example("broken");
    // The same with a state that loads, of which nothing but the share of ops can fail.
    let text = std::fs::read_to_string(&broken)
        .unwrap()
        .replace("100]", "128]");
    let loads = write(&home, "loads.mil", &text);
    for (share, code) in [("0", 0), ("14.2", 0), ("14.3%", 1)] {
        assert_ends(&audit(&home, &[&loads, "--require-ane", share]), code, &[]);
    }
    for (args, code) in [
        (&["--deny", "ANE002"][..], 0),
        (&["--deny", "ane070"], 1),
        (&["--deny", "Error"], 1),
        (&["--deny", "error"], 1),
        (&["--deny", "ANE002,ANE001"], 1),
        // On the CPU alone nothing leaves the engine, but nothing is on it either.
        (&["--units", "cpuOnly", "--require-ane", "1"], 1),
    ] {
        assert_ends(
            &audit(&home, &[&[broken.as_str()], args].concat()),
            code,
            &[],
        );
    }
    let direct = report(&home, &[&broken, "--direct"]);
    assert_eq!(
        (
            &direct["targets"][0]["verdict"],
            &direct["targets"][0]["route"]
        ),
        (&"fails".into(), &"direct".into())
    );
}

/// What takes what is too long for the others is off the engine by nature: it is required only
/// where it is asked for.
#[test]
fn a_catch_all_is_not_required_to_be_on_the_engine() {
    let home = Home::new();
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-embed/bert-mean");
    let model = model.to_str().unwrap();
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let (package, folder) = (path("a.mlpackage"), path("folder"));
    for (out, layout) in [(&package, "package"), (&folder, "folder")] {
        let flags = [
            "--task",
            "embed",
            "--buckets",
            "16",
            "--layout",
            layout,
            "-o",
            out,
        ];
        assert_ends(
            &home.run(&[&["convert", model][..], &flags].concat()),
            0,
            &[],
        );
    }
    let folder_names = ("L16.mlpackage/main", "any.mlpackage/main");
    for (subject, (fixed, any)) in [
        (model, ("encode_16", "encode")),
        (&package, ("encode_16", "encode")),
        (&folder, folder_names),
    ] {
        // Too small for the engine, all of them.
        let buckets: &[&str] = if subject == model {
            &["--buckets", "16"]
        } else {
            &[]
        };
        let all = audit(&home, &[&[subject, "--require-ane", "1"], buckets].concat());
        assert_ends(
            &all,
            1,
            &[&format!(
                "`{fixed}` are on the engine, 0.00 %, 1 % are required"
            )],
        );
        assert!(
            !stderr(&all).contains(&format!("`{any}`")),
            "{}",
            stderr(&all)
        );
        assert!(
            stdout(&all).contains("--require-ane leaves it out"),
            "{}",
            stdout(&all)
        );
        let row = &report(&home, &[&[subject], buckets].concat())["targets"][0];
        let functions = row["functions"].as_array().unwrap();
        let asked: Vec<&Value> = functions.iter().filter(|f| f["name"] == fixed).collect();
        assert_eq!(
            (asked.len(), &row["ops"]),
            (1, &asked[0]["ops"]),
            "{subject}"
        );
        let deny = [subject, "--deny", "ANE058"];
        assert_ends(&audit(&home, &[&deny[..], buckets].concat()), 0, &[]);
        let deny = [&deny[..], &["--function", any], buckets].concat();
        assert_ends(&audit(&home, &deny), 1, &["ANE058"]);
        let args = [subject, "--require-ane", "1", "--function", any];
        let asked = audit(&home, &[&args[..], buckets].concat());
        assert_ends(&asked, 1, &[&format!("`{any}` are on the engine")]);
    }
}

#[test]
fn packages_compiled_models_and_checkpoints_are_one_program() {
    let home = Home::new();
    let model = chat_folder().to_str().unwrap().to_owned();
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let (package, compiled) = (path("a.mlpackage"), path("a.mlmodelc"));
    // No weight is read for an audit, and so nothing is calibrated.
    let form = [
        "--form",
        "ane",
        "--residual-divisor",
        "8",
        "--context",
        "32",
    ];
    for out in [&package, &compiled] {
        let args = ["convert", &model, "-o", out];
        assert_ends(&home.run(&[&args[..], &form].concat()), 0, &[]);
    }
    let form = ["--form", "ane", "--residual-divisor", "8"];
    let built = report(&home, &[&[&*model, "--context", "32"], &form[..]].concat());
    assert!(
        built["subject"]["built"]
            .as_str()
            .unwrap()
            .contains("--form ane` writes it, but for a divisor that depends on weights")
    );
    assert_eq!(built["contexts"].as_array().unwrap().len(), 1);
    let part = |r: &Value| {
        let functions = r["targets"][0]["functions"].as_array().unwrap().clone();
        functions
            .iter()
            .map(|f| {
                (
                    f["name"].clone(),
                    f["ops"].clone(),
                    f["latency"]["ms"].clone(),
                )
            })
            .collect::<Vec<_>>()
    };
    for (file, kind) in [(&package, "package"), (&compiled, "compiled")] {
        let found = report(&home, &[file]);
        assert_eq!(found["subject"]["kind"], kind);
        assert_eq!(part(&found), part(&built), "{kind}");
    }
    let table = report(&home, &[&package])["targets"][0]["functions"][0]["table"].clone();
    let place = |op: &Value| op["place"].as_str().unwrap().to_owned();
    let places: Vec<String> = table.as_array().unwrap().iter().map(place).collect();
    assert!(
        places
            .iter()
            .any(|p| p.contains("layers_1") || p.contains("layers.1")),
        "{places:?}"
    );
    let one = report(&home, &[&package, "--function", "decode"]);
    assert_eq!(part(&one), part(&built)[1..]);
    let sweep = audit(&home, &[&model, "--context", "64,16"]);
    assert_ends(&sweep, 0, &[]);
    assert!(
        stdout(&sweep).contains("context        ms"),
        "{}",
        stdout(&sweep)
    );
}

#[test]
fn embedding_models_are_built_for_the_engine_and_folders_are_several_programs() {
    let home = Home::new();
    let model = crate::embed::model("bert-mean")
        .to_str()
        .unwrap()
        .to_owned();
    let built = report(&home, &[&model, "--buckets", "8,16"]);
    assert!(
        built["subject"]["built"]
            .as_str()
            .unwrap()
            .contains("for the Neural Engine")
    );
    let out = home.path("bundle").to_str().unwrap().to_owned();
    let convert = conversion(&model, &out, "--task embed --layout folder --buckets 8,16");
    assert_ends(&home.run(&convert), 0, &[]);
    let folder = report(&home, &[&out]);
    let names = |r: &Value| {
        let functions = r["targets"][0]["functions"].as_array().unwrap().clone();
        functions
            .iter()
            .map(|f| f["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(&folder),
        [
            "L16.mlpackage/main",
            "L8.mlpackage/main",
            "any.mlpackage/main"
        ]
    );
    assert_eq!(
        names(&report(&home, &[&out, "--function", "L8.mlpackage/main"])),
        ["L8.mlpackage/main"]
    );
    assert_eq!(folder["targets"][0]["ops"], built["targets"][0]["ops"]);
    assert_ends(
        &audit(&home, &[&model, "--context", "8"]),
        2,
        &["--context is for models that answer", "--buckets"],
    );
    assert_ends(
        &audit(&home, &[&out, "--format", "mil"]),
        2,
        &["a folder of several"],
    );
}

#[test]
fn cycles_of_values_and_of_links_end() {
    let home = Home::new();
    let ty = "tensor<fp16, [4]>";
    let text = format!(
        "program(1.3) {{ func f<ios18>({ty} x) {{ {ty} y = add(x = x, y = z); {ty} z = exp(x = y); }} -> (z); }}"
    );
    let cycle = write(&home, "cycle.mil", &text);
    assert_ends(
        &audit(&home, &[&cycle]),
        2,
        &["cycle.mil", "expected a defined value, found `z`"],
    );
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        let folder = home.path("chunks");
        std::fs::create_dir(&folder).unwrap();
        let packages = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/packages")
            .canonicalize()
            .unwrap();
        let package = std::fs::read_dir(packages)
            .unwrap()
            .map(|e| e.unwrap().path());
        let package = package
            .filter(|p| p.extension().is_some_and(|e| e == "mlpackage"))
            .min()
            .unwrap();
        symlink(package, folder.join("a.mlpackage")).unwrap();
        symlink(".", folder.join("b.mlpackage")).unwrap();
        symlink("c.mlpackage", folder.join("c.mlpackage")).unwrap();
        let output = audit(&home, &[folder.to_str().unwrap(), "--json"]);
        assert_ends(&output, 0, &[]);
        let packages: BTreeSet<_> = json(&output)["targets"][0]["functions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| {
                f["name"]
                    .as_str()
                    .unwrap()
                    .split('/')
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        assert_eq!(packages, BTreeSet::from(["a.mlpackage".to_owned()]));
    }
}

#[cfg(unix)]
#[test]
fn a_file_whose_name_is_not_utf8_is_audited() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let name = std::ffi::OsStr::from_bytes(b"x\xff.mil");
    std::fs::copy(example("broken"), home.path("").join(name)).unwrap();
    let run = |args: &[&str]| {
        let mut command = home.thane(args);
        command.current_dir(home.path("")).arg(name);
        command.output().unwrap()
    };
    for format in ["text", "concise", "json", "sarif", "html"] {
        let output = run(&["audit", "--format", format]);
        assert_ends(&output, 0, &[]);
        assert!(stdout(&output).contains("ANE070"), "{format}");
    }
    assert_ends(
        &run(&["show"]),
        2,
        &["expected UTF-8, found the bytes of argument `x\u{fffd}.mil`"],
    );
}

#[test]
fn a_long_program_is_judged_and_a_closed_pipe_is_quiet() {
    let home = Home::new();
    let long = write(&home, "long.mil", &chain(10_000));
    let closed = |flags: &[&str]| {
        let mut command = home.thane(&[&["audit", &long, "--json"], flags].concat());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 100]).unwrap();
        drop(out);
        child.wait_with_output().unwrap()
    };
    let output = closed(&[]);
    assert_ends(&output, 0, &[]);
    assert_eq!(stderr(&output), "");
    // A gate does not open because nobody reads the report.
    assert_ends(
        &closed(&["--deny", "note"]),
        1,
        &["does not hold: --deny note"],
    );
    let huge = usize::MAX;
    let ty = format!("tensor<fp16, [{huge}, {huge}, {huge}]>");
    let text = format!(
        "program(1.3) {{ func f<ios18>({ty} x) {{ {ty} y = softmax(x = x); {ty} z = matmul(x = y, y = y); }} -> (z); }}"
    );
    let huge = write(&home, "huge.mil", &text);
    for format in ["text", "concise", "json", "sarif", "html", "mil"] {
        let output = audit(&home, &[&huge, "--format", format]);
        assert_ends(&output, 0, &[]);
        let said = stdout(&output);
        assert!(
            !said.contains("-0.0 %") && !said.contains("NaN") && said.len() > 100,
            "{format}: {said}"
        );
    }
    let functions: String = (0..100)
        .map(|i| format!("func f{i}<ios18>(tensor<fp16, [4]> x) {{ tensor<fp16, [4]> y = exp(x = x); }} -> (y);"))
        .collect();
    let many = write(
        &home,
        "many.mil",
        &format!("program(1.3) {{ {functions} }}"),
    );
    let output = audit(&home, &[&many]);
    assert_ends(&output, 0, &[]);
    assert!(
        stdout(&output).contains("and 88 functions more"),
        "{}",
        stdout(&output)
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are cases")]
fn what_cannot_be_audited_is_named() {
    let home = Home::new();
    let broken = example("broken");
    let bad = write(
        &home,
        "bad.mil",
        "program(1.3) {\n  func main<ios18>(tensor<fp16, [4]> x) {\n    y = exp(x = q);\n} -> (y); }",
    );
    let odd = write(
        &home,
        "odd.mil",
        "program(1.3) { func f<ios18>(tensor<fp16, [4]> x) { tensor<fp16, [5]> y = exp(x = x); } -> (y); }",
    );
    let empty = write(&home, "empty.mil", "");
    let bytes = home.path("bytes.mil");
    std::fs::write(&bytes, [0xff, 0xfe, 0x00]).unwrap();
    let text = write(&home, "text.json", "hello");
    let none = write(
        &home,
        "none.json",
        "[{\"output\": \"nobody\", \"preferred\": \"cpu\"}]",
    );
    std::fs::create_dir(home.path("hollow.mlpackage")).unwrap();
    let hollow = home.path("hollow.mlpackage").to_str().unwrap().to_owned();
    let header = write(
        &home,
        "header.csv",
        "case,op,shape_or_params,ane_supported,gpu_supported,reason\n",
    );
    let flags = write(
        &home,
        "flags.csv",
        "case,op,shape_or_params,ane_supported,gpu_supported,reason\na,tan,[4],2,1,\n",
    );
    let columns = write(&home, "columns.csv", "a,b\n1,2\n");
    let nothing = write(&home, "nothing.csv", "");
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["<PROGRAM>"]),
        (
            &["nowhere.mil"],
            &["no such file or folder: nowhere.mil", "try:"],
        ),
        (&["nowhere.mlpackage"], &["no such file or folder"]),
        (&["nosuch"], &["unknown model `nosuch`"]),
        (&[&bad], &["bad.mil", "line 3"]),
        (&[&odd], &["odd.mil", "[5]"]),
        (
            &[&empty],
            &["empty.mil", "expected `program`, found the end"],
        ),
        (&[bytes.to_str().unwrap()], &["bytes.mil", "UTF-8"]),
        (&[&hollow], &["hollow.mlpackage", "Manifest.json"]),
        (
            &[&broken, "--target", "m9"],
            &["\"m9\"", "is no chip", "m6", "macos27", "iphone-17"],
        ),
        (&[&broken, "--target", ""], &["is no chip"]),
        (
            &[&broken, "--units", "npu"],
            &["the settings are cpuAndNeuralEngine"],
        ),
        (
            &[&broken, "--units", "all", "--direct"],
            &["cannot be used with"],
        ),
        (&[&broken, "--deny", "ANE999"], &["thane explain --list"]),
        (
            &[&broken, "--require-ane", "101"],
            &["expected a percentage from 0 to 100"],
        ),
        (
            &[&broken, "--function", "walk"],
            &["no function `walk`", "try: --function main"],
        ),
        (
            &[&broken, "--context", "8"],
            &["--context builds a checkpoint anew"],
        ),
        (
            &[&broken, "--baseline", &text],
            &["text.json", "no report of an audit"],
        ),
        (
            &[&broken, "--baseline", "nowhere"],
            &["nowhere", "No such file"],
        ),
        (
            &[&broken, "--compare", &text],
            &["text.json", "neither MIL text nor JSON"],
        ),
        (
            &[&broken, "--compare", &none],
            &["none of its 1 op is one of this program"],
        ),
        (
            &[&broken, "--compare", &none, "--target", "m4,m5"],
            &["about one target, and there are 2"],
        ),
        (&[&broken, "--format", "yaml"], &["invalid value 'yaml'"]),
        (
            &[&broken, "--form", "anemll"],
            &["bundles of ANEMLL are judged once they are written"],
        ),
        (
            &[&broken, "--format", "html", "--json"],
            &["--json and --format ask for different forms"],
        ),
        (
            &[&broken, "--format", "mil", "--deny", "error"],
            &["no place for requirements"],
        ),
        (&["--self-check", &header], &["header.csv", "no rows"]),
        (
            &["--self-check", &flags],
            &["flags.csv", "row 1: expected 0 or 1, found \"2\""],
        ),
        (
            &["--self-check", &columns],
            &["columns.csv", "neither the columns of placements"],
        ),
        (&["--self-check", &nothing], &["nothing.csv", "no header"]),
        (
            &["--self-check", "nowhere.csv"],
            &["nowhere.csv", "No such file"],
        ),
    ];
    for (args, said) in cases {
        let output = audit(&home, args);
        assert_ends(&output, 2, said);
        assert_eq!(output.stdout.len(), 0, "{args:?}");
    }
}

#[test]
fn weights_beside_a_text_must_be_what_it_says() {
    let home = Home::new();
    let text = std::fs::read_to_string(example("fixed")).unwrap();
    let mil = write(&home, "model.mil", &text);
    assert_eq!(report(&home, &[&mil])["subject"]["absent_constants"], 2);
    std::fs::create_dir(home.path("weights")).unwrap();
    std::fs::write(home.path("weights/weight.bin"), [0; 64]).unwrap();
    assert_ends(&audit(&home, &[&mil]), 2, &["weight.bin", "version 0"]);
}

#[test]
fn the_self_check_reaches_what_it_must() {
    let home = Home::new();
    let scores = report(&home, &["--self-check"]);
    let placement = &scores["placement"][0];
    let (rows, right) = (
        placement["rows"].as_f64().unwrap(),
        placement["right"].as_f64().unwrap(),
    );
    assert!(
        rows > 100.0 && right / rows >= 0.97 && placement["target"] == "m4+macos27 (all)",
        "{placement}"
    );
    let groups = scores["latency"][0]["groups"].as_array().unwrap();
    let all = |seen: bool| {
        groups
            .iter()
            .find(|g| g["by"] == "all" && g["seen"] == seen)
            .unwrap()
    };
    assert!(all(false)["n"].as_u64() > Some(20) && all(false)["median"].as_f64() < Some(0.21));
    for by in ["kind", "chip", "path"] {
        let n = |seen: bool| {
            groups
                .iter()
                .filter(|g| g["by"] == by && g["seen"] == seen)
                .map(|g| g["n"].as_u64().unwrap())
                .sum::<u64>()
        };
        assert_eq!(
            (Some(n(false)), Some(n(true))),
            (all(false)["n"].as_u64(), all(true)["n"].as_u64()),
            "{by}"
        );
    }
    let rows = "case,op,shape_or_params,ane_supported,gpu_supported,reason\na,tan,\"[1,64,32,32]\",1,1,\nb,relu,\"[1,64,32,32]\",1,1,\n";
    let file = write(&home, "mine.csv", rows);
    // The extension selects the format.
    let out = home.path("y.json");
    let (out, flags) = (out.to_str().unwrap(), ["--self-check", file.as_str()]);
    assert_ends(&audit(&home, &[&flags[..], &["-o", out]].concat()), 0, &[]);
    let written: Value = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    assert_eq!(written, report(&home, &flags));
    let text = audit(&home, &["--self-check", &file]);
    assert_ends(&text, 0, &[]);
    assert!(
        stdout(&text).contains("1 of 2 rows right, 50.0 %") && stdout(&text).contains("a: ANE001"),
        "{}",
        stdout(&text)
    );
}

#[test]
fn errors_and_rules_are_explained() {
    let home = Home::new();
    let explain = |args: &[&str]| home.run(&[&["explain"], args].concat());
    for (text, said) in [
        ("-14", "No plan for the program"),
        ("0x1d", "0x1d"),
        ("ANECCompile() FAILED", "engine's compiler failed"),
        ("std::bad_cast", "ANE074"),
        ("Unknown opset 'CoreML8'", "ANE143"),
        ("ane128", "ANE128 Attention scores"),
    ] {
        let output = explain(&[text]);
        assert_ends(&output, 0, &[]);
        assert!(
            stdout(&output).contains(said),
            "{text}: {}",
            stdout(&output)
        );
        assert!(
            stdout(&output).lines().all(|l| l.chars().count() <= 80),
            "{}",
            stdout(&output)
        );
    }
    let all = stdout(&explain(&["--list"]));
    assert!(
        all.lines().count() >= 150 && all.starts_with("ANE001  warning"),
        "{all}"
    );
    assert_ends(
        &explain(&["hello"]),
        2,
        &["neither a rule nor a code", "thane explain --list"],
    );
    assert_ends(&explain(&[]), 2, &["CODE|TEXT|RULE"]);
    assert_ends(&explain(&["-14", "nowhere.mil"]), 2, &["no such file"]);
    // The program's own causes come first, in the order of likelihood.
    let ranked = json(&explain(&["-14", &example("broken"), "--json"]));
    let causes = ranked["errors"][0]["causes"].as_array().unwrap();
    let found: Vec<(&str, u64)> = causes
        .iter()
        .map(|c| (c["rule"].as_str().unwrap(), c["findings"].as_u64().unwrap()))
        .collect();
    assert_eq!(found[..2], [("ANE070", 1), ("ANE046", 2)]);
    assert!(found[2..].iter().all(|(_, n)| *n == 0) && found[2].0 == "ANE079");
}

/// A function of 12 layers with 134 MB of weights each, which are not there.
pub fn large(home: &Home) -> String {
    let mut text =
        "program(1.3)\n{\n    func main<ios18>(tensor<fp16, [1, 8192, 1, 64]> x0) {\n".to_owned();
    for i in 0..12 {
        let _ = write!(
            text,
            "        tensor<fp16, [8192, 8192, 1, 1]> w{i} = const()[val = tensor<fp16, [8192, 8192, 1, 1]>(BLOBFILE(path = \
             string(\"@model_path/weights/weight.bin\"), offset = uint64({})))];\n        tensor<fp16, [1, 8192, 1, 64]> x{} = \
             conv(weight = w{i}, x = x{i});\n",
            64 + 64 * i,
            i + 1
        );
    }
    text += "    } -> (x12);\n}\n";
    write(home, "large.mil", &text)
}

#[test]
fn a_function_that_is_too_large_is_cut_into_programs() {
    let home = Home::new();
    let report = json(&home.run(&["audit", &large(&home), "--target", "m4+macos27", "--json"]));
    let function = &report["targets"][0]["functions"][0];
    assert_ne!(function["latency"]["load_risk"], "none");
    let chunks = function["chunks"].as_array().unwrap();
    // 1 GiB holds 7 of them.
    assert_eq!(chunks.len(), 2, "{chunks:?}");
    let sum: f64 = chunks
        .iter()
        .map(|c| c["weight_bytes"].as_f64().unwrap())
        .sum();
    assert_eq!(sum, 12.0 * 2.0 * 8192.0 * 8192.0);
    assert!(
        chunks
            .iter()
            .all(|c| c["weight_bytes"].as_f64().unwrap() <= (1u64 << 30) as f64)
    );
    assert_eq!(chunks[1]["last"], "x12");
    assert!(function["latency"]["energy_mj"].as_f64().unwrap() > 0.0);
    let text = String::from_utf8(
        home.run(&["audit", &large(&home), "--target", "m4+macos27"])
            .stdout,
    )
    .unwrap();
    assert!(
        text.contains("best into 2 programs") && text.contains("mJ a call"),
        "{text}"
    );
}
