//! No file imports itself by way of others, apart from a module and its own children.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Crates whose files still import each other in circles.
const NOT_YET: &[&str] = &[];

/// Module path (`["audit", "rules"]`, empty for the crate root).
type Module = Vec<String>;

/// One crate: the code of each module, and what each one re-exports under which name.
#[derive(Default)]
struct Crate {
    code: BTreeMap<Module, String>,
    reexports: BTreeMap<Module, BTreeMap<String, Module>>,
}

fn code_without_comments_and_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let lines = code.lines().map(|l| l.split("//").next().unwrap_or(l));
    lines.collect::<Vec<_>>().join("\n")
}

/// Read the modules of a crate from its `src`.
fn read(src: &Path, at: &Module, out: &mut Crate) {
    for entry in fs::read_dir(src).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut module = at.clone();
        if path.is_dir() {
            module.push(stem);
            read(&path, &module, out);
        } else if path.extension().is_some_and(|e| e == "rs")
            && !["main", "tests", "testing"].contains(&stem.as_str())
        {
            if !["lib", "mod"].contains(&stem.as_str()) {
                module.push(stem);
            }
            let text = fs::read_to_string(&path).unwrap();
            out.code
                .insert(module, code_without_comments_and_tests(&text));
        }
    }
}

/// The paths of a use tree: `a::{b, c::{d, e as f}}` is `a::b`, `a::c::d`, `a::c::e`, each with the
/// name that it has in the importing module.
fn expand(tree: &str, prefix: &str, out: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    if tree.is_empty() {
        return;
    }
    let Some(open) = tree.find('{') else {
        let (path, name) = match tree.split_once(" as ") {
            Some((path, name)) => (path.trim(), name.trim()),
            None => (tree, tree.rsplit("::").next().unwrap_or(tree)),
        };
        let path = path.trim_end_matches("::self");
        let name = if name == "self" { path } else { name };
        let name = name.rsplit("::").next().unwrap_or(name);
        out.push((format!("{prefix}{path}"), name.to_owned()));
        return;
    };
    let prefix = format!("{prefix}{}", &tree[..open]);
    let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut start) = (0, 0);
    for (i, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&inner[start..i], &prefix, out);
                start = i + 1;
            }
            _ => {}
        }
    }
    expand(&inner[start..], &prefix, out);
}

/// Every `use` of a module: whether it is public, the path, the name it gets.
fn imports(code: &str) -> Vec<(bool, String, String)> {
    let mut out = Vec::new();
    let mut offset = 0;
    for line in code.split_inclusive('\n') {
        let statement = line.trim_start();
        let start = offset + line.len() - statement.len();
        offset += line.len();
        let public = statement.starts_with("pub");
        let word = statement.find("use ").filter(|at| match public {
            true => statement[3..*at].trim_end().is_empty() || statement[..*at].ends_with(") "),
            false => *at == 0,
        });
        let Some(at) = word else { continue };
        let tree = code[start + at + 4..].split(';').next().unwrap_or_default();
        let mut paths = Vec::new();
        expand(&tree.replace('\n', " "), "", &mut paths);
        out.extend(
            paths
                .into_iter()
                .map(|(path, name)| (public, path.replace(' ', ""), name)),
        );
    }
    out
}

/// Paths that begin with `crate`, `super` or `self` anywhere in the code.
fn inline_paths(code: &str) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c: char| !is_part(c));
    let local = |w: &&str| {
        ["crate::", "super::", "self::"]
            .iter()
            .any(|p| w.starts_with(p))
    };
    words
        .filter(local)
        .map(|w| w.trim_end_matches(':').to_owned())
        .collect()
}

impl Crate {
    /// A path as written in `from`, from the root of the crate on; `None` for other crates.
    fn absolute(&self, from: &Module, path: &str) -> Option<Module> {
        let mut parts = path.split("::").peekable();
        let mut module = match *parts.peek()? {
            "crate" => Module::new(),
            "super" | "self" => from.clone(),
            first => {
                let mut child = from.clone();
                child.push(first.to_owned());
                if !self.code.contains_key(&child) {
                    return None;
                }
                from.clone()
            }
        };
        for part in parts {
            match part {
                "crate" | "self" => {}
                "super" => drop(module.pop()),
                _ => module.push(part.to_owned()),
            }
        }
        Some(module)
    }

    /// The module in which what a path names is defined, re-exports followed.
    fn home(&self, path: &Module, depth: usize) -> Module {
        let mut len = path.len();
        while len > 0 && !self.code.contains_key(&path[..len]) {
            len -= 1;
        }
        let module = path[..len].to_vec();
        let moved = path
            .get(len)
            .and_then(|n| self.reexports.get(&module)?.get(n));
        match moved {
            Some(to) if depth < 8 => self.home(to, depth + 1),
            _ => module,
        }
    }

    fn edges(&self, from: &Module) -> BTreeSet<Module> {
        let code = &self.code[from];
        let mut paths: Vec<String> = imports(code).into_iter().map(|(_, p, _)| p).collect();
        paths.extend(inline_paths(code));
        let homes = paths
            .iter()
            .filter_map(|p| self.absolute(from, p))
            .map(|p| self.home(&p, 0));
        homes
            .filter(|to| !to.starts_with(from) && !from.starts_with(to))
            .collect()
    }
}

/// What can be reached from a module, itself only by a circle.
fn reach(edges: &BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let mut seen = BTreeSet::new();
    let mut pending: Vec<&Module> = edges[from].iter().collect();
    while let Some(next) = pending.pop() {
        if seen.insert(next.clone()) {
            pending.extend(edges.get(next).into_iter().flatten());
        }
    }
    seen
}

/// The groups of modules of a crate that import each other in a circle, one line each.
fn circles(src: &Path) -> Vec<String> {
    let mut krate = Crate::default();
    read(src, &Module::new(), &mut krate);
    for (module, code) in &krate.code {
        let public = imports(code).into_iter().filter(|(public, ..)| *public);
        let moved = public.filter_map(|(_, p, name)| Some((name, krate.absolute(module, &p)?)));
        let moved: BTreeMap<String, Module> = moved.collect();
        krate.reexports.insert(module.clone(), moved);
    }
    let edges: BTreeMap<Module, BTreeSet<Module>> = krate
        .code
        .keys()
        .map(|m| (m.clone(), krate.edges(m)))
        .collect();
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        edges.keys().map(|m| (m, reach(&edges, m))).collect();
    let mut done = BTreeSet::new();
    let mut out = Vec::new();
    for (module, to) in &reached {
        if !to.contains(*module) || !done.insert((*module).clone()) {
            continue;
        }
        let group = to.iter().filter(|m| reached[*m].contains(*module));
        let names: Vec<String> = group.clone().map(|m| m.join("::")).collect();
        done.extend(group.cloned());
        out.push(format!("{}: {}", names.len(), names.join(", ")));
    }
    out
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut faults = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let found = circles(&folder.join("src"));
        let excused = NOT_YET.contains(&name.as_str());
        assert!(
            !excused || !found.is_empty(),
            "{name} has no circles left: strike it from NOT_YET"
        );
        for group in found {
            println!("{name}: circle of {group}");
            if !excused {
                faults.push(format!("{name}: circle of {group}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
