//! The rules of the house that no compiler knows; ARCHITECTURE.md says why each is there.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a source file without its tests; tables are longer where a row is a line.
const MOST_LINES: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every Rust file under `crates/<name>/src`, by crate.
fn sources() -> Vec<(String, PathBuf, String)> {
    let mut out = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let mut pending = vec![folder.join("src")];
        while let Some(next) = pending.pop() {
            for entry in fs::read_dir(&next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    out.push((name.clone(), path, text));
                }
            }
        }
    }
    assert!(out.len() > 50, "the sources were found");
    out
}

fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

#[test]
fn crates_know_nothing_of_what_they_must_not_know() {
    // Crate, words that may not stand in its code, the invariant.
    let rules: &[(&[&str], &[&str], &str)] = &[
        (
            &[
                "calls", "mil", "kernels", "models", "cpu", "compile", "audit", "engine", "serve",
                "web",
            ],
            &["std::fs", "File::open"],
            "only mil::package, models::checkpoint, hub, texts, runtime and cli touch files",
        ),
        (
            &[
                "calls", "mil", "kernels", "models", "cpu", "compile", "audit", "engine", "hub",
                "texts", "runtime", "serve",
            ],
            &["std::env::", "env::var"],
            "only cli reads the environment",
        ),
        (
            &[
                "calls", "mil", "kernels", "models", "cpu", "compile", "audit", "engine", "hub",
                "texts", "runtime", "serve",
            ],
            &["println!", "eprintln!", "process::exit"],
            "only cli prints and exits",
        ),
        (
            &["models", "mil", "cpu", "compile"],
            &["serde_json::to_", "#[derive(Serialize"],
            "programs are not serialised by their types",
        ),
    ];
    let mut faults = Vec::new();
    // Packages are folders of files, and their manifest is JSON, of types that are that file's own.
    let in_package = |path: &Path| {
        path.parent()
            .is_some_and(|p| p.ends_with("mil/src/package"))
    };
    let in_checkpoint = |path: &Path| {
        path.ancestors()
            .any(|p| p.ends_with("models/src/checkpoint"))
    };
    let of_packages = [
        "std::fs",
        "File::open",
        "serde_json::to_",
        "#[derive(Serialize",
    ];
    for (name, path, text) in sources() {
        for (crates, words, invariant) in rules
            .iter()
            .filter(|(crates, ..)| crates.contains(&name.as_str()))
        {
            // A module of tests, in a file or folder of its own.
            let is_tests = path.ends_with("tests.rs")
                || path
                    .parent()
                    .is_some_and(|folder| folder.ends_with("tests"));
            let text = if is_tests { "" } else { without_tests(&text) };
            let code = text
                .lines()
                .enumerate()
                .filter(|(_, l)| !l.trim_start().starts_with("//"));
            for (i, line) in code {
                let allowed = |word: &str| {
                    in_package(&path) && of_packages.contains(&word)
                        || in_checkpoint(&path) && ["std::fs", "File::open"].contains(&word)
                };
                if let Some(word) = words.iter().find(|w| line.contains(**w) && !allowed(w)) {
                    faults.push(format!(
                        "{}:{}: `{word}`: {invariant} ({})",
                        path.display(),
                        i + 1,
                        crates.join(", ")
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Names of families, without versions: those of the files that define one.
fn families() -> Vec<String> {
    let sources = sources().into_iter().filter(|(_, path, text)| {
        let folder = path.parent().unwrap();
        folder.ends_with("models/src/families") && text.contains(": Family = Family {")
    });
    let names = sources.map(|(_, path, _)| {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        stem.trim_end_matches(|c: char| c.is_ascii_digit())
            .to_owned()
    });
    let names: Vec<String> = names.collect();
    assert!(names.len() > 3, "expected families, found {names:?}");
    names
}

/// What several families share belongs to the layers, the descriptions or the checks.
#[test]
fn the_folder_of_families_holds_families_only() {
    let mut n_families = 0;
    for (_, path, text) in sources() {
        let folder = path.parent().unwrap();
        if folder.ends_with("models/src/families") && !path.ends_with("mod.rs") {
            n_families += 1;
            assert!(
                text.contains(": Family = Family {"),
                "{}: expected a family, found none: move the file out of families/",
                path.display()
            );
        }
    }
    assert!(n_families > 30, "found {n_families} families");
}

/// Published studies that rules cite, whose names hold those of families.
const STUDIES: [&str; 7] = [
    "experiments-bert-all",
    "lfm2_conversion_findings",
    "llama_lm_head hidden 4096",
    "plan of smollm2",
    "probe_gemma4_vision_ane",
    "qwen-ane",
    "statefulmistral7b-int4",
];

#[test]
fn families_are_named_in_models_only() {
    let families = families();
    let mut faults = Vec::new();
    for (name, path, text) in sources() {
        if !["mil", "kernels", "compile", "audit", "cpu"].contains(&name.as_str()) {
            continue;
        }
        let code = without_tests(&text).lines().enumerate();
        for (i, line) in code.filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let line = STUDIES
                .iter()
                .fold(line.to_lowercase(), |line, study| line.replace(study, ""));
            let named = families
                .iter()
                .find(|family| line.contains(family.as_str()));
            if let Some(family) = named {
                faults.push(format!("{}:{}: `{family}`", path.display(), i + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Names of systems and of what runs them, in small letters. A number may follow.
const SYSTEMS: [&str; 11] = [
    "ios", "ipad", "ipados", "ipads", "iphone", "iphones", "mac", "macbook", "macos", "macs",
    "visionos",
];

/// Files of `models` that may name the form for the Neural Engine: public options, errors, and what
/// chooses the functions of that form.
const NAMES_THE_FORM: [&str; 4] = ["lib.rs", "error.rs", "encoder/mod.rs", "lower/"];

/// Whether a word is a chip (M4, A19), an engine as Apple's compiler counts them (H16G), or a
/// system or device (macOS, iOS18, iPhone).
fn is_device(word: &str) -> bool {
    let is_number = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    let is_chip = match (word.chars().next(), word.get(1..)) {
        (Some('M'), Some(rest)) => rest.len() == 1 && is_number(rest),
        (Some('A'), Some(rest)) => rest.len() == 2 && is_number(rest),
        (Some('H'), Some(rest)) => {
            let number = rest.trim_end_matches(|c: char| c.is_ascii_uppercase());
            number.len() == 2 && is_number(number)
        }
        _ => false,
    };
    let name = word.to_lowercase();
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit());
    is_chip || SYSTEMS.contains(&name)
}

/// No comment and no string of `models` names a chip, a device or a system. What depends on a chip
/// is a row of `audit::target`, and arrives as an option from the caller; who measured what stands
/// in `docs/forms.md`, `docs/numerics.md` or an audit rule. "Neural Engine" is the name of a form
/// there, which public options and errors use; layers say what the form is like (fp16, channels,
/// fixed length) instead.
#[test]
fn models_name_no_device() {
    let folder = root().join("crates/models/src");
    let (mut n_files, mut faults) = (0, Vec::new());
    for (_, path, text) in sources() {
        let Ok(file) = path.strip_prefix(&folder) else {
            continue;
        };
        n_files += 1;
        let is_among = |list: &[&str]| list.iter().any(|known| file.starts_with(known));
        let names_form = is_among(&NAMES_THE_FORM);
        for (i, line) in text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
            let named = words.find(|word| is_device(word) || *word == "Neural" && !names_form);
            if let Some(word) = named {
                faults.push(format!(
                    "crates/models/src/{}:{}: expected no device, found `{word}`",
                    file.display(),
                    i + 1
                ));
            }
        }
    }
    assert!(n_files > 100, "{n_files} files of models");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The words that the test above looks for, and names that are none.
#[test]
fn devices_are_told_from_other_names() {
    for word in [
        "M4", "A19", "H13", "H16G", "macOS", "iOS18", "iOS", "iPhone", "Mac",
    ] {
        assert!(is_device(word), "{word}");
    }
    for word in [
        "MIL", "M", "A14B", "M2M", "Half", "H2O", "machine", "ratios", "A1", "",
    ] {
        assert!(!is_device(word), "{word}");
    }
}

#[test]
fn only_the_command_line_imports_verbs() {
    let mut faults = Vec::new();
    for (name, path, text) in sources() {
        let is_verb = path.ancestors().any(|p| p.ends_with("cli/src/cmd"));
        if name != "cli" || is_verb || path.ends_with("main.rs") {
            continue;
        }
        let code = without_tests(&text).lines().enumerate();
        faults.extend(
            code.filter(|(_, line)| !line.trim_start().starts_with("//"))
                .filter(|(_, line)| line.contains("crate::cmd") || line.contains("super::cmd"))
                .map(|(i, line)| format!("{}:{}: {}", path.display(), i + 1, line.trim())),
        );
    }
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        if text.lines().any(|line| line.starts_with("thane-cli")) {
            faults.push(format!("{}: depends on thane-cli", manifest.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Crates of this workspace under `[dependencies]` of a crate's manifest.
fn dependencies(name: &str) -> Vec<String> {
    let path = root().join("crates").join(name).join("Cargo.toml");
    let manifest = fs::read_to_string(path).unwrap();
    let lines = manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    let mut found: Vec<String> = lines
        .filter_map(|line| line.strip_prefix("thane-"))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .map(str::to_owned)
        .collect();
    found.sort();
    found
}

/// The names in backquotes of a cell of a table.
fn quoted(cell: &str) -> Vec<String> {
    let names = cell.split('`').skip(1).step_by(2);
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn crates_depend_on_what_the_table_of_architecture_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with("| crate |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut in_table = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let (name, uses) = (quoted(cells[0]).remove(0), quoted(cells[cells.len() - 1]));
        assert_eq!(dependencies(&name), uses, "Cargo.toml of {name}, the table");
        in_table.push(name);
    }
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let mut crates: Vec<String> = crates
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    crates.sort();
    in_table.sort();
    assert_eq!(in_table, crates, "crates in the table");
}

#[test]
fn unsafe_code_stays_where_it_is_explained() {
    for (name, path, text) in sources() {
        let files = ["mil/src/package/map.rs", "web/src/abi.rs"];
        let allowed = ["kernels", "c"].contains(&name.as_str())
            || files.iter().any(|file| path.ends_with(file));
        let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
        let uses = code
            .filter(|l| l.contains("unsafe ") || l.contains("unsafe_code)"))
            .count();
        assert!(allowed || uses == 0, "{}: unsafe code", path.display());
    }
}

#[test]
fn files_say_what_they_are_and_stay_short() {
    for (_, path, text) in sources() {
        assert!(
            text.starts_with("//!"),
            "{}: the first line says what the module is",
            path.display()
        );
        let n = without_tests(&text).lines().count();
        let is_tests = path.ends_with("tests.rs");
        assert!(
            n <= MOST_LINES || is_tests,
            "{}: {n} lines; split it by noun",
            path.display()
        );
    }
}

/// Tests in `src` would not run there, and nothing would say so.
#[test]
fn crates_without_unit_tests_have_none() {
    let is_without = |name: &str| {
        let path = root().join("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(path).unwrap();
        manifest.contains("\n[lib]\ntest = false\n")
    };
    let sources = sources().into_iter().filter(|(name, ..)| is_without(name));
    let (mut n, mut faults) = (0, Vec::new());
    for (name, path, text) in sources {
        n += 1;
        if text.contains("cfg(test)") || text.contains("#[test]") {
            faults.push(format!(
                "{}: move it to crates/{name}/tests",
                path.display()
            ));
        }
    }
    assert!(n > 100, "the crates were found: {n} files");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Longest line of prose and comments; rustfmt keeps code to the same width.
const MAX_COLUMNS: usize = 100;

/// Files below `folder` that end in `extension`, without build outputs.
fn files(folder: &Path, extension: &str, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            files(&path, extension, out);
        } else if path.extension().is_some_and(|e| e == extension) {
            out.push(path);
        }
    }
}

/// A file that no module names is not compiled, and its tests pass whatever they say.
#[test]
fn every_rust_file_belongs_to_a_module() {
    let mut all = Vec::new();
    files(&root().join("crates"), "rs", &mut all);
    let of_modules = |path: &&PathBuf| {
        let parts = path.components().map(|part| part.as_os_str());
        let is_in = |name: &str| parts.clone().any(|part| part == name);
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let is_root = ["main", "lib", "mod", "build"].map(Some).contains(&stem);
        let folder = path.parent().and_then(Path::file_name);
        // Each file of these folders is a program.
        let is_program = ["tests", "examples", "benches"]
            .map(Path::new)
            .map(Path::as_os_str);
        (is_in("src") || is_in("tests"))
            && !is_root
            && !folder.is_some_and(|f| is_program.contains(&f))
    };
    let mut n_checked = 0;
    for path in all.iter().filter(of_modules) {
        let (folder, stem) = (
            path.parent().unwrap(),
            path.file_stem().unwrap().to_str().unwrap(),
        );
        let line = format!("mod {stem};");
        let names = |parent: PathBuf| {
            let text = fs::read_to_string(parent).unwrap_or_default();
            text.lines()
                .any(|found| found.trim_start_matches(|c| c != 'm').ends_with(&line))
        };
        let parents = ["main.rs", "lib.rs", "mod.rs"].map(|name| folder.join(name));
        let beside = folder.with_extension("rs");
        assert!(
            parents.into_iter().chain([beside]).any(names),
            "{}: no module has `{line}`",
            path.display()
        );
        n_checked += 1;
    }
    assert!(n_checked > 300, "{n_checked} files");
}

#[test]
fn comments_and_prose_fit_100_columns() {
    let (mut rust, mut markdown) = (Vec::new(), Vec::new());
    files(&root().join("crates"), "rs", &mut rust);
    files(&root().join("fuzz"), "rs", &mut rust);
    files(&root(), "md", &mut markdown);
    assert!(
        rust.len() > 300 && markdown.len() > 20,
        "the files were found"
    );
    let mut faults = Vec::new();
    for path in rust.iter().chain(&markdown) {
        let text = fs::read_to_string(path).unwrap();
        let is_rust = path.extension().is_some_and(|e| e == "rs");
        let mut in_code = false;
        for (i, line) in text.lines().enumerate() {
            let (comment, body) = match line.trim_start() {
                l if !is_rust => (true, l),
                l => (l.starts_with("//"), l.trim_start_matches(['/', '!'])),
            };
            in_code ^= comment && body.trim_start().starts_with("```");
            // Tables, code blocks and links cannot be broken.
            let indent = if is_rust { body } else { line };
            let is_code = in_code || indent.starts_with("    ");
            let is_exempt = is_code || body.trim_start().starts_with('|') || !line.contains(' ');
            if comment && !is_exempt && line.chars().count() > MAX_COLUMNS {
                faults.push(format!("{}:{}", path.display(), i + 1));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "lines over {MAX_COLUMNS} columns:\n{}",
        faults.join("\n")
    );
}

/// Words by which code reads a clock, or waits until a time.
const CLOCKS: [&str; 6] = [
    "Instant::now",
    "SystemTime::now",
    ".elapsed(",
    "duration_since(",
    "sleep(",
    "_timeout(",
];

/// Test files that may use these words, and why other work on the machine fails none of them.
const TIMED: &[(&str, &[&str], &str)] = &[
    (
        "tests/support/processor_time.rs",
        &["Instant::now", ".elapsed("],
        "compares two calls where the system counts no processor time",
    ),
    (
        "cli/tests/it/fixture.rs",
        &["Instant::now", "sleep("],
        "gives an event minutes to come, and what must not happen a second",
    ),
    (
        "cli/tests/it/convert.rs",
        &["Instant::now", ".elapsed(", "sleep("],
        "kills at moments spread over a run; any moment will do",
    ),
    (
        "cli/tests/it/hub.rs",
        &["Instant::now", "SystemTime::now"],
        "a server that refuses who comes before the time it has named",
    ),
    (
        "cli/tests/it/server.rs",
        &["sleep("],
        "a server that is slow on purpose",
    ),
    (
        "cli/tests/it/talk.rs",
        &["sleep("],
        "interrupts later and later, until there is something to report",
    ),
    (
        "cpu/tests/it/profile.rs",
        &["Instant::now", ".elapsed("],
        "a call takes as long as its steps, or longer",
    ),
    (
        "engine/tests/it/chat.rs",
        &["Instant::now", ".elapsed("],
        "compares with another run, and several times before it fails",
    ),
    (
        "engine/tests/it/schedule.rs",
        &["Instant::now", "duration_since(", "sleep("],
        "deadlines of requests, which are put off until two steps fit",
    ),
    (
        "kernels/tests/it/threads.rs",
        &["Instant::now", ".elapsed("],
        "a pause; the numbers are right without it",
    ),
    (
        "serve/src/server.rs",
        &["_timeout("],
        "minutes, for a client that would wait for ever",
    ),
    (
        "serve/src/rate.rs",
        &["Instant::now"],
        "a moment that others are counted from",
    ),
    (
        "serve/src/routes/ollama/shape.rs",
        &["Instant::now"],
        "a moment that nothing depends on",
    ),
];

/// The tests of a file, and the number of lines before them.
fn tests_of(path: &Path, text: &str) -> (usize, String) {
    let is_in = |name: &str| path.components().any(|part| part.as_os_str() == name);
    let start = match is_in("tests") || path.ends_with("tests.rs") {
        true => 0,
        false => text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len()),
    };
    (text[..start].lines().count(), text[start..].to_owned())
}

/// A test that measures, or gives another process a time, fails on a busy machine: `fixture::until`
/// waits for an event, `tests/support/processor_time.rs` compares work.
#[test]
fn tests_depend_on_no_clock() {
    let (mut rust, mut n_checked, mut faults) = (Vec::new(), 0, Vec::new());
    files(&root().join("crates"), "rs", &mut rust);
    files(&root().join("tests/support"), "rs", &mut rust);
    let mut unused: Vec<(&str, &str)> = TIMED
        .iter()
        .flat_map(|(file, words, _)| words.iter().map(|word| (*file, *word)))
        .collect();
    for path in rust.iter().filter(|path| !path.ends_with("it/tidy.rs")) {
        let (n_before, tests) = tests_of(path, &fs::read_to_string(path).unwrap());
        n_checked += usize::from(!tests.is_empty());
        // A wait for as long as `until` waits.
        let code = tests
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//") && !line.contains("PATIENCE"));
        for (i, line) in code {
            for word in CLOCKS.iter().filter(|word| line.contains(**word)) {
                unused.retain(|(file, allowed)| !(path.ends_with(file) && allowed == word));
                let mut timed = TIMED.iter().filter(|(file, ..)| path.ends_with(file));
                if !timed.any(|(_, words, _)| words.contains(word)) {
                    let at = n_before + i + 1;
                    faults.push(format!("{}:{at}: `{word}`", path.display()));
                }
            }
        }
    }
    assert!(n_checked > 150, "{n_checked} files have tests");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(unused.is_empty(), "not found any more: {unused:?}");
}
