//! `thane show --families`: the model families that can be read.

use serde::Serialize;
use thane_models::families;

use crate::app::App;
use crate::exit::Outcome;

/// What `--families --json` prints.
#[derive(Serialize)]
struct Families {
    families: Vec<FamilyRow>,
}

#[derive(Serialize)]
struct FamilyRow {
    /// `model_type` in `config.json`, `general.architecture` in GGUF.
    names: &'static [&'static str],
    models: &'static str,
    /// What can be made of Hugging Face folders and of GGUF files.
    hugging_face: Vec<&'static str>,
    gguf: Vec<&'static str>,
    /// The architecture in GGUF files of these models, where that is of another family.
    gguf_architecture: Option<&'static str>,
    /// Checkpoints in `tests/models` of the source code.
    checked: &'static [&'static str],
}

/// The word for each kind of model that a family makes of its files.
fn kinds(decodes: bool, encodes: bool) -> Vec<&'static str> {
    let kinds = [("generate", decodes), ("embed", encodes)];
    let supported = kinds.into_iter().filter(|(_, is)| *is);
    supported.map(|(kind, _)| kind).collect()
}

pub fn show(app: &App) -> Outcome {
    let rows: Vec<FamilyRow> = families::supported()
        .iter()
        .map(|f| FamilyRow {
            names: f.names,
            models: f.about,
            hugging_face: kinds(f.decodes_hugging_face, f.encodes_hugging_face),
            gguf: kinds(f.decodes_gguf, f.encodes_gguf),
            gguf_architecture: f.gguf_as,
            checked: f.checked,
        })
        .collect();
    Ok(app.output.report(&Families { families: rows }, table)?)
}

fn table(report: &Families) -> String {
    let cells = report.families.iter().map(|row| {
        let or_none = |kinds: &[&str]| match kinds {
            [] => "-".to_owned(),
            kinds => kinds.join(", "),
        };
        let gguf_architecture = row.gguf_architecture.map(|name| format!(" ({name})"));
        let gguf_architecture = gguf_architecture.unwrap_or_default();
        [
            row.names.join(", "),
            or_none(&row.hugging_face),
            or_none(&row.gguf) + &gguf_architecture,
            row.models.to_owned(),
        ]
    });
    let head = ["architecture", "Hugging Face", "GGUF", "models"].map(str::to_owned);
    let cells: Vec<[String; 4]> = [head].into_iter().chain(cells).collect();
    let width = |i: usize| cells.iter().map(|row| row[i].len()).max().unwrap_or(0);
    let [names, hugging_face, gguf] = [0, 1, 2].map(width);
    let line =
        |[a, b, c, d]: &[String; 4]| format!("{a:names$}  {b:hugging_face$}  {c:gguf$}  {d}\n");
    cells.iter().map(line).collect()
}
