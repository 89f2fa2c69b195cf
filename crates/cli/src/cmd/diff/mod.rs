//! `thane diff`: how two packages differ in structure, constants and numbers.

mod flags;
mod numbers;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Serialize;
use thane_mil::literal::Literal;
use thane_mil::package::Package;
use thane_mil::program::{Arg, Function, ValueId};

use crate::app::App;
use crate::exit::{Outcome, even_unread};
use crate::output::counted;
use crate::source;

pub use flags::Args;
use numbers::{Numbers, Runs, given, numbers};

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    a: &'a Path,
    b: &'a Path,
    /// Whether the packages are equal.
    equal: bool,
    /// Differences of functions, inputs, outputs and ops.
    structure: Vec<String>,
    /// Constants whose type or numbers differ.
    constants: Vec<String>,
    /// Whether all numbers are within the tolerances; null if there are none.
    within: Option<bool>,
    /// Outputs of both packages on the same inputs.
    numbers: Vec<Numbers>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let open = |path| source::open_whole(path, app);
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let given = given(args, [&a, &b])?;
    let mut report = Report {
        a: &args.a,
        b: &args.b,
        equal: false,
        structure: Vec::new(),
        constants: Vec::new(),
        within: None,
        numbers: Vec::new(),
    };
    report.structure.extend(only(&a, &b, "the first"));
    report.structure.extend(only(&b, &a, "the second"));
    let runs = Runs {
        args,
        given: &given,
        app,
    };
    for f in a.program.functions() {
        let Some(g) = b.program.function(&f.name) else {
            continue;
        };
        structure(f, g, &mut report.structure);
        constants(f, g, &mut report.constants);
        if !args.no_run {
            app.output.busy(&format!("running `{}` of both", f.name));
            report.numbers.extend(numbers(f, g, [&a, &b], &runs)?);
        }
    }
    let same = |n: &Numbers| n.max_error == 0.0 && n.reason.is_none();
    let whole = thane_mil::program::difference(&a.program, &b.program);
    if report.structure.is_empty() && report.constants.is_empty() {
        report.structure.extend(whole);
    }
    if args.tolerance.or(args.absolute_tolerance).is_some() {
        // A function that one package lacks has no numbers to compare.
        let are_alike = only(&a, &b, "").is_empty() && only(&b, &a, "").is_empty();
        report.within = Some(are_alike && report.numbers.iter().all(|n| n.within));
    }
    report.equal = report.structure.is_empty()
        && report.constants.is_empty()
        && report.numbers.iter().all(same);
    even_unread(app.output.report(&report, text))?;
    outcome(&report)
}

/// A message for each function of `x` that `y` lacks.
fn only(x: &Package, y: &Package, which: &str) -> Vec<String> {
    let functions = x.program.functions().iter();
    functions
        .filter(|f| y.program.function(&f.name).is_none())
        .map(|f| format!("function `{}` is in {which} only", f.name))
        .collect()
}

/// Whether the packages are equal, or within the tolerance if there is one.
fn outcome(report: &Report<'_>) -> Outcome {
    if let Some(failed) = report.numbers.iter().find(|n| n.is_failure) {
        let function = &failed.function;
        return Err(
            usage!("the numbers cannot be compared: `{function}` does not run")
                .remedy("--no-run, which compares structure and constants")
                .remedy("--inputs DIR, with NAME.npy of a shape that the function takes"),
        );
    }
    // As in diff(1): a difference is no success, and failing to compare is another code.
    match report.within {
        None if report.equal => Ok(()),
        None => Err(other!("the packages differ")),
        Some(true) => Ok(()),
        Some(false) => Err(other!("the packages differ by more than the tolerance")),
    }
}

/// Compares inputs, outputs, and the number of ops of each kind.
fn structure(f: &Function, g: &Function, out: &mut Vec<String>) {
    let mut say = |what: String| out.push(format!("{}: {what}", f.name));
    if f.opset != g.opset {
        say(format!("opset {} and {}", f.opset.name(), g.opset.name()));
    }
    let ports = |f: &Function, values: &[ValueId]| -> BTreeMap<String, String> {
        let values = values.iter().map(|v| f.value(*v));
        values.map(|v| (v.name.clone(), v.ty.to_string())).collect()
    };
    let (x, y) = (f.body(), g.body());
    for (what, x, y) in [
        ("input", ports(f, &x.inputs), ports(g, &y.inputs)),
        ("output", ports(f, &x.outputs), ports(g, &y.outputs)),
    ] {
        for (name, x, y) in pairs(&x, &y) {
            let show = |ty: Option<&String>| ty.map_or("missing".to_owned(), Clone::clone);
            say(format!("{what} `{name}`: {} and {}", show(x), show(y)));
        }
    }
    let ops = |f: &Function| -> BTreeMap<&'static str, usize> {
        let mut out = BTreeMap::new();
        for id in f.all_ops() {
            *out.entry(f.op(id).def.name).or_insert(0) += 1;
        }
        out
    };
    for (op, x, y) in pairs(&ops(f), &ops(g)) {
        let show = |n: Option<&usize>| counted(n.copied().unwrap_or(0), "time");
        say(format!("op `{op}`: {} and {}", show(x), show(y)));
    }
}

/// The entries that differ between two tables.
fn pairs<'a, K: Ord, V: PartialEq>(
    x: &'a BTreeMap<K, V>,
    y: &'a BTreeMap<K, V>,
) -> Vec<(&'a K, Option<&'a V>, Option<&'a V>)> {
    let mut keys: Vec<&K> = x.keys().chain(y.keys()).collect();
    keys.sort();
    keys.dedup();
    let both = keys.into_iter().map(|k| (k, x.get(k), y.get(k)));
    both.filter(|(_, a, b)| a != b).collect()
}

fn constants(f: &Function, g: &Function, out: &mut Vec<String>) {
    let table = |f: &'_ Function| -> HashMap<String, Literal> {
        let ops = f.all_ops().into_iter().map(|id| f.op(id));
        let consts = ops.filter(|op| op.def.is_const());
        let named = consts.filter_map(|op| match op.args.first() {
            Some(Some(Arg::Literal(l))) => Some((f.value(op.results[0]).name.clone(), l.clone())),
            _ => None,
        });
        named.collect()
    };
    let others = table(g);
    let mut mine: Vec<(String, Literal)> = table(f).into_iter().collect();
    mine.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, literal) in mine {
        match others.get(&name) {
            Some(other) if other.ty() != literal.ty() => {
                let (function, x, y) = (&f.name, literal.ty(), other.ty());
                out.push(format!("{function}: `{name}` is {x} and {y}"));
            }
            Some(other) if *other != literal => {
                out.push(format!("{}: the numbers of `{name}` differ", f.name))
            }
            _ => {}
        }
    }
}

fn text(r: &Report<'_>) -> String {
    let mut lines: Vec<String> = r.structure.iter().chain(&r.constants).cloned().collect();
    for n in &r.numbers {
        lines.push(match &n.reason {
            Some(reason) => format!("{}: {reason}", n.function),
            None if n.max_error == 0.0 => {
                format!("{}: `{}` has the same numbers", n.function, n.output)
            }
            None => format!(
                "{}: `{}` differs by {:.3e} at most, {:.3e} of the largest magnitude{}; {:.3e} by norms",
                n.function,
                n.output,
                n.max_error,
                n.max_error / n.largest,
                if r.within.is_some() && !n.within {
                    ", more than the tolerance"
                } else {
                    ""
                },
                n.relative_error,
            ),
        });
    }
    if r.equal {
        lines.push("the packages are equal".to_owned());
    } else if r.within == Some(true) {
        lines.push("the numbers are within the tolerance".to_owned());
    }
    lines.join("\n") + "\n"
}
