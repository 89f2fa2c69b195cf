//! Makes a program rough: what passes smooth is put into it everywhere, and what it computes stays.

use std::collections::HashMap;

use thane_mil::program::Program;
use thane_mil::text::{Blobs, parse, print};
use thane_mil::types::TensorType;

/// After each op that makes one value come its twin and, where the value is computed at run time,
/// `identity` of the twin and a dead op; later uses take the value, the twin and the identity in
/// turn.
pub fn roughen(program: &Program) -> Program {
    let mut blobs = Blobs::default();
    let text = print(program, &mut blobs);
    let mut names = HashMap::new();
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with("    func ") {
            names.clear();
        }
        let Some((made, called)) = line.split_once(" = ").filter(|_| line.ends_with(';')) else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let (op, rest) = called.split_once('(').unwrap();
        let (args, attributes) = rest.split_once(")[").unwrap();
        let args = redirected(args, &mut names);
        out.push_str(&format!("{made} = {op}({args})[{attributes}\n"));
        let (ty, name) = made.rsplit_once(' ').unwrap();
        let is_single = !is_list(made);
        if !is_single || op.contains("state") {
            continue;
        }
        out.push_str(&format!("{ty} {name}_twin = {op}({args})[{attributes}\n"));
        if op == "const" || op.starts_with("constexpr_") {
            names.insert(
                name.to_owned(),
                (0, vec![name.to_owned(), format!("{name}_twin")]),
            );
            continue;
        }
        out.push_str(&format!("{ty} {name}_same = identity(x = {name}_twin);\n"));
        out.push_str(&format!("{ty} {name}_dead = identity(x = {name}_same);\n"));
        let all = ["", "_twin", "_same"].map(|suffix| format!("{name}{suffix}"));
        names.insert(name.to_owned(), (0, all.to_vec()));
    }
    let resolve = |_: &str, offset: u64, ty: &TensorType| blobs.get(offset, ty);
    parse(&out, &resolve).unwrap_or_else(|e| panic!("{e}"))
}

/// Whether more than one value is made: a comma outside of the brackets of types.
fn is_list(made: &str) -> bool {
    let mut depth = 0;
    made.chars().any(|c| {
        match c {
            '<' | '[' => depth += 1,
            '>' | ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// `args` with each use of a value replaced by the next of its names.
fn redirected(args: &str, names: &mut HashMap<String, (usize, Vec<String>)>) -> String {
    let mut next = |word: &str| match names.get_mut(word) {
        Some((n, all)) => {
            *n += 1;
            all[*n % all.len()].clone()
        }
        None => word.to_owned(),
    };
    let bindings = args.split(", ").map(|part| {
        let (param, value) = part.split_once(" = ").map_or(("", part), |(p, v)| (p, v));
        let bare = value.trim_matches(['(', ')']);
        let value = value.replace(bare, &next(bare));
        if param.is_empty() {
            value
        } else {
            format!("{param} = {value}")
        }
    });
    bindings.collect::<Vec<_>>().join(", ")
}
