//! `thane ops`: which ops are supported, compared with those that coremltools registers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thane_mil::opset::{self, Accepts, OpDef, Opset};

use crate::app::App;
use crate::exit::Outcome;

/// Count the supported ops, and list what is missing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// List only what is missing, with the reason.
    #[arg(long)]
    missing: bool,
}

/// Made by `tests/oracle/make_opset.py`.
const REGISTERED: &str = include_str!("../../data/opset.json");

/// Ops that coremltools registers and that no program can have.
const LEFT_OUT: &[LeftOut] = &[LeftOut {
    name: "_const_symbolic",
    reason: "internal to coremltools' converters: it is never written to a file",
}];

/// Parameters that differ from coremltools on purpose, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "identity",
        "x",
        "coremltools takes lists and dictionaries too, which no other op passes on",
    ),
    (
        "reshape_like",
        "begins",
        "the result's rank follows from it, so coremltools refuses what is not constant too",
    ),
    ("reshape_like", "ends", "as `begins`"),
    ("reshape_like", "end_masks", "as `begins`"),
];

#[derive(Deserialize)]
struct Registered {
    source: String,
    ops: Vec<Registration>,
}

#[derive(Deserialize)]
struct Registration {
    name: String,
    forms: Vec<Signature>,
}

/// The parameters of an op from an opset on.
#[derive(Deserialize)]
struct Signature {
    since: String,
    params: Vec<SignatureParam>,
}

#[derive(Deserialize)]
struct SignatureParam {
    name: String,
    required: bool,
    constant: bool,
    takes: Takes,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Takes {
    /// `list`, `tuple`, `state` or `any`.
    Kind(String),
    /// Element types by name, sorted.
    Tensor(Vec<String>),
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    /// Version of coremltools that ops are compared with.
    source: String,
    registered: Counts,
    /// Number of rows of the table, and of distinct names.
    table: Table,
    /// Ops with a row of the same parameters, and so type inference.
    typed: Counts,
    /// Ops that the CPU backend runs.
    run: Counts,
    /// Ops that coremltools does not register.
    beside: Vec<&'static str>,
    left_out: &'static [LeftOut],
    /// Every registered op; with `--missing` only incomplete ones.
    ops: Vec<OpReport>,
}

#[derive(Serialize)]
struct Counts {
    ops: usize,
    forms: usize,
}

#[derive(Serialize)]
struct Table {
    rows: usize,
    names: usize,
}

#[derive(Serialize)]
struct LeftOut {
    name: &'static str,
    reason: &'static str,
}

#[derive(Serialize)]
struct OpReport {
    name: String,
    forms: Vec<FormReport>,
}

#[derive(Serialize)]
struct FormReport {
    /// The first opset with this form.
    opset: String,
    typed: bool,
    runs: bool,
    /// What is missing; null if nothing is.
    reason: Option<String>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let mut report = report()?;
    if args.missing {
        let lacks = |op: &OpReport| op.forms.iter().any(|form| form.reason.is_some());
        report.ops.retain(lacks);
    }
    Ok(app.output.report(&report, |report| match args.missing {
        true => missing(report),
        false => summary(report) + &missing(report),
    })?)
}

fn report() -> anyhow::Result<Report> {
    let registered: Registered = serde_json::from_str(REGISTERED)?;
    let names = |rows: &mut dyn Iterator<Item = &'static OpDef>| {
        rows.map(|def| def.name).collect::<BTreeSet<_>>()
    };
    let all = names(&mut opset::GROUPS.iter().flat_map(|g| g.iter()));
    let known: BTreeSet<&str> = registered.ops.iter().map(|op| op.name.as_str()).collect();
    let beside = all.iter().copied().filter(|name| !known.contains(name));
    let beside = beside.collect();
    let ops = registered.ops.iter().map(|op| OpReport {
        name: op.name.clone(),
        forms: op.forms.iter().map(|f| form(&op.name, f)).collect(),
    });
    let ops: Vec<OpReport> = ops.collect();
    Ok(Report {
        source: registered.source,
        registered: count(&ops, |_| true),
        table: Table {
            rows: opset::GROUPS.iter().map(|g| g.len()).sum(),
            names: all.len(),
        },
        typed: count(&ops, |form| form.typed),
        run: count(&ops, |form| form.runs),
        beside,
        left_out: LEFT_OUT,
        ops,
    })
}

/// Number of forms that satisfy `holds`, and of ops all of whose forms do.
fn count(ops: &[OpReport], holds: impl Fn(&FormReport) -> bool) -> Counts {
    let forms = ops.iter().flat_map(|op| &op.forms);
    Counts {
        ops: ops.iter().filter(|op| op.forms.iter().all(&holds)).count(),
        forms: forms.filter(|form| holds(form)).count(),
    }
}

fn form(name: &str, form: &Signature) -> FormReport {
    let def = Opset::from_name(&form.since).and_then(|opset| opset::find_in(name, opset));
    let differs = match def {
        None => Some("it has no row".to_owned()),
        Some(def) => difference(form, def),
    };
    let runs = differs.is_none() && def.is_some_and(thane_cpu::runs);
    let typed = differs.is_none();
    let reason = differs.or_else(|| (!runs).then(|| "the CPU backend does not run it".to_owned()));
    FormReport {
        opset: form.since.clone(),
        typed,
        runs,
        reason,
    }
}

/// The difference between the parameters of a row and of a form.
fn difference(form: &Signature, def: &OpDef) -> Option<String> {
    let mut own = def.params.iter();
    if let Some(more) = own.find(|p| form.params.iter().all(|q| q.name != p.name)) {
        return Some(format!("its row has a parameter `{}` too many", more.name));
    }
    form.params.iter().find_map(|param| {
        let name = &param.name;
        let Some(own) = def.params.iter().find(|p| p.name == *name) else {
            return Some(format!("its row lacks the parameter `{name}`"));
        };
        let mut excepted = EXCEPTIONS.iter().map(|(op, param, _)| (*op, *param));
        if excepted.any(|known| known == (def.name, name.as_str())) {
            return None;
        }
        let (required, constant) = (own.required, own.constant);
        if required != param.required {
            return Some(format!(
                "its row says of `{name}` that required is {required}"
            ));
        }
        if constant != param.constant {
            return Some(format!(
                "its row says of `{name}` that constant is {constant}"
            ));
        }
        let (takes, due) = (takes(own.accepts), due(&param.takes));
        (takes != due).then(|| format!("its row takes {takes} for `{name}`, not {due}"))
    })
}

fn takes(accepts: Accepts) -> String {
    match accepts {
        Accepts::Tensor(dtypes) => {
            let names: BTreeSet<&str> = dtypes.iter().map(|d| d.name()).collect();
            names.into_iter().collect::<Vec<_>>().join(" ")
        }
        Accepts::Tensors => "tuple".to_owned(),
        Accepts::List => "list".to_owned(),
        Accepts::State => "state".to_owned(),
        Accepts::Any => "any".to_owned(),
    }
}

fn due(takes: &Takes) -> String {
    match takes {
        Takes::Kind(kind) => kind.clone(),
        Takes::Tensor(dtypes) => dtypes.join(" "),
    }
}

fn summary(r: &Report) -> String {
    let counts = |c: &Counts| {
        format!(
            "{} of {} ops, {} of {} forms",
            c.ops, r.registered.ops, c.forms, r.registered.forms
        )
    };
    let mut lines = vec![
        format!(
            "table           {} rows, {} names",
            r.table.rows, r.table.names
        ),
        format!(
            "registered      {} ops in {} forms of ios15 to ios18, by {}",
            r.registered.ops, r.registered.forms, r.source
        ),
        format!("type inference  {}", counts(&r.typed)),
        format!("run on the CPU  {}", counts(&r.run)),
        format!("beside them     {}", r.beside.join(" ")),
    ];
    let left_out = r.left_out.iter();
    lines.extend(left_out.map(|l| format!("left out        {}: {}", l.name, l.reason)));
    lines.join("\n") + "\n"
}

/// A line for each incomplete form.
fn missing(r: &Report) -> String {
    let ops = r.ops.iter();
    let forms = ops.flat_map(|op| op.forms.iter().map(move |form| (&op.name, form)));
    let line = |(name, form): (&String, &FormReport)| {
        let reason = form.reason.as_ref()?;
        Some(format!(
            "missing         {name}<{}>: {reason}\n",
            form.opset
        ))
    };
    forms.filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_coremltools_registers_is_there() {
        let report = report().unwrap();
        let mut found = BTreeSet::new();
        let mut reasons = Vec::new();
        for op in &report.ops {
            for form in op.forms.iter().filter(|form| form.reason.is_some()) {
                found.insert(format!("{}<{}>", op.name, form.opset));
                reasons.push((&op.name, &form.opset, form.reason.as_ref()));
            }
        }
        assert!(found.is_empty(), "missing: {found:?}; {reasons:#?}");
        assert_eq!(
            (report.registered.ops, report.registered.forms),
            (168, 227),
            "coremltools 9"
        );
    }

    #[test]
    fn what_is_beside_the_list_is_known() {
        assert_eq!(report().unwrap().beside, ["write_state"]);
    }

    #[test]
    fn exceptions_name_what_differs() {
        let registered: Registered = serde_json::from_str(REGISTERED).unwrap();
        for (op, param, reason) in EXCEPTIONS {
            let found = registered
                .ops
                .iter()
                .find(|o| o.name == *op)
                .map(|o| &o.forms)
                .unwrap();
            let own = opset::find(op)
                .and_then(|def| def.params.iter().find(|p| p.name == *param))
                .unwrap();
            let params = found
                .iter()
                .flat_map(|f| &f.params)
                .filter(|p| p.name == *param);
            let same = |p: &SignatureParam| {
                (p.required, p.constant, due(&p.takes))
                    == (own.required, own.constant, takes(own.accepts))
            };
            assert!(!params.clone().all(same), "{op}, {param}: {reason}");
        }
    }
}
