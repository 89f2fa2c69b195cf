//! The quality of an embedding model: cosines with the vectors of the reference, and how well both
//! find what answers a query, also with the first dimensions of vectors only.

use std::path::Path;

use serde::Serialize;
use thane_engine::embed::similarity::Similarity;
use thane_engine::embed::{Sequence, Watch};
use thane_engine::quality::{mean_interval, ndcg, quantile, ranked};
use thane_runtime::{EmbedOptions, Embedder, Model, Prompt, Tokens};

use super::retrieval::{Query, RetrievalSet};
use super::{Args, Interval, Subjects, row};
use crate::app::App;
use crate::exit::{Failure, usage};
use crate::model::{self, NumericsFlag};
use crate::output::counted;
use crate::source;

/// Documents of a ranking that count.
const K: usize = 10;
/// Least dimensions that vectors are cut to, and how often they are halved at most.
const LEAST_DIM: usize = 16;
const MOST_HALVES: u32 = 5;
/// Texts are independent, unlike tokens.
const ALONE: usize = 1;

/// What is measured of an embedding model.
#[derive(Serialize)]
pub(super) struct Embedding {
    /// Texts whose vectors are compared: documents and queries.
    pub(super) texts: usize,
    /// Queries of the retrieval set; 0 without one.
    queries: usize,
    /// All dimensions of a vector, then the first half, and so on.
    dimensions: Vec<Dimensions>,
}

impl Embedding {
    /// What is recorded, by name: of all dimensions.
    pub(super) fn measures(&self) -> Vec<(String, Interval)> {
        let whole = self.dimensions.first().into_iter();
        let all = whole.flat_map(|d| {
            [
                ("cosine", Some(d.cosine)),
                ("ndcg", d.ndcg),
                ("reference_ndcg", d.reference_ndcg),
                ("ndcg_difference", d.ndcg_difference),
            ]
        });
        all.filter_map(|(name, interval)| Some((name.to_owned(), interval?)))
            .collect()
    }
}

/// With the first dimensions of vectors.
#[derive(Serialize)]
struct Dimensions {
    dimensions: usize,
    cosine: Interval,
    median_cosine: f64,
    /// Of ten texts, one has a lower cosine.
    p10_cosine: f64,
    /// Of a hundred texts, one has a lower cosine.
    p1_cosine: f64,
    worst_cosine: f64,
    /// nDCG@10; null without a retrieval set.
    ndcg: Option<Interval>,
    reference_ndcg: Option<Interval>,
    /// That of the model less that of the reference, query by query.
    ndcg_difference: Option<Interval>,
}

/// The vectors of one model, row by row.
struct Vectors {
    documents: Vec<f32>,
    queries: Vec<f32>,
    dim: usize,
}

/// Cosines and nDCG in one sentence.
pub(super) fn sentence(found: &Embedding) -> String {
    let Some(whole) = found.dimensions.first() else {
        return String::new();
    };
    let ndcg = whole
        .ndcg
        .zip(whole.reference_ndcg)
        .map(|(own, reference)| {
            format!(
                "; nDCG@10 {:.4}, {:.4} of the reference, of {} queries",
                own.value, reference.value, found.queries
            )
        });
    format!(
        "cosine {:.6}, worst {:.6}, of {}{}",
        whole.cosine.value,
        whole.worst_cosine,
        counted(found.texts, "text"),
        ndcg.unwrap_or_default()
    )
}

pub(super) fn measure(args: &Args, subjects: Subjects, app: &App) -> Result<Embedding, Failure> {
    let (documents, queries) = texts(args, app)?;
    let n_texts = documents.len() + queries.len();
    let names = [&subjects.model, &subjects.reference].map(|model| model.name.clone());
    let open = |model: Model, numerics| {
        let backend = model::cpu(numerics, args.threads, app);
        model.embedding_model(&EmbedOptions::default(), &backend, app.output.as_ref())
    };
    let mut embedders = [
        open(subjects.model, args.numerics)?,
        open(subjects.reference, NumericsFlag::F32)?,
    ];
    let dims = embedders.each_ref().map(|embedder| embedder.engine.dim());
    if dims[0] != dims[1] {
        return Err(usage!(
            "expected vectors of one length, found {} dimensions of {} and {} of {}",
            dims[0],
            names[0],
            dims[1],
            names[1]
        ));
    }
    let asked: Vec<&str> = queries.iter().map(|query| query.text.as_str()).collect();
    let embed = |embedder: &mut Embedder| {
        app.output.count("embedding", Some(n_texts as u64), 0);
        Ok::<_, Failure>(Vectors {
            documents: vectors(embedder, "document", &documents, app)?,
            queries: vectors(embedder, "query", &asked, app)?,
            dim: embedder.engine.dim(),
        })
    };
    let [own, others] = &mut embedders;
    let (model, reference) = (embed(own)?, embed(others)?);
    app.output.clear();
    let halves = (0..=MOST_HALVES).map(|n| model.dim >> n);
    let halves = halves.filter(|dim| *dim >= LEAST_DIM || *dim == model.dim);
    let dimensions = halves.map(|dim| dimensions(&model, &reference, dim, &queries));
    Ok(Embedding {
        texts: n_texts,
        queries: queries.len(),
        dimensions: dimensions.collect(),
    })
}

/// The documents, or the lines of a file, and the queries.
fn texts(args: &Args, app: &App) -> Result<(Vec<String>, Vec<Query>), Failure> {
    if let Some(folder) = &args.retrieval {
        let RetrievalSet { documents, queries } = RetrievalSet::read(folder, app)?;
        return Ok((documents, queries));
    }
    let file = args.file.as_deref().ok_or_else(|| {
        usage!("expected texts for the embedding model, found none")
            .remedy("--retrieval DIR, with corpus.jsonl, queries.jsonl and qrels/test.tsv")
            .remedy("--file TEXTS, with a text per line")
    })?;
    Ok((file_lines(file, app)?, Vec::new()))
}

fn file_lines(file: &Path, app: &App) -> Result<Vec<String>, Failure> {
    let (text, _held) = source::read_text(file, &app.budget).map_err(usage)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    match lines.is_empty() {
        true => Err(usage!(
            "{}: expected a text per line, found none",
            file.display()
        )),
        false => Ok(lines),
    }
}

/// The vectors of texts behind the model's prompt of this name, row by row. Longer texts are cut to
/// what the model takes.
fn vectors<T: AsRef<str>>(
    embedder: &mut Embedder,
    prompt: &str,
    texts: &[T],
    app: &App,
) -> Result<Vec<f32>, Failure> {
    let bytes = texts
        .len()
        .saturating_mul(embedder.engine.dim() * size_of::<f32>());
    let _held = app
        .budget
        .reserve(bytes, || "the vectors".to_owned())
        .map_err(usage)?;
    let prompt = Prompt::choose(Some(prompt), &embedder.info)?.text;
    let prefix = embedder.text().prefix(prompt, embedder.max_tokens())?;
    let mut sequences: Vec<Sequence> = Vec::with_capacity(texts.len());
    for text in texts {
        if let (Tokens::Text(sequence), _) = embedder.tokenize(&prefix, text.as_ref(), true)? {
            sequences.push(sequence);
        }
    }
    let mut watch = Watch {
        interrupted: &|| false,
        progress: &mut |n| app.output.advance(n as u64),
    };
    let rows = embedder.engine.texts(&sequences, &mut watch);
    let rows = rows.map_err(thane_runtime::RuntimeError::from)?;
    Ok(rows.unwrap_or_default())
}

fn dimensions(model: &Vectors, reference: &Vectors, dim: usize, queries: &[Query]) -> Dimensions {
    let mut cosines: Vec<f64> = cut(&model.documents, model.dim, dim)
        .zip(cut(&reference.documents, model.dim, dim))
        .chain(cut(&model.queries, model.dim, dim).zip(cut(&reference.queries, model.dim, dim)))
        .map(|(a, b)| Similarity::Cosine.compare(a, b))
        .collect();
    let cosine = mean_interval(&cosines, ALONE);
    cosines.sort_by(f64::total_cmp);
    let found = [model, reference].map(|vectors| found(vectors, dim, queries));
    let difference: Vec<f64> = found[0].iter().zip(&found[1]).map(|(a, b)| a - b).collect();
    let mean = |series: &[f64]| -> Option<Interval> {
        (!series.is_empty()).then(|| mean_interval(series, ALONE).into())
    };
    Dimensions {
        dimensions: dim,
        cosine: cosine.into(),
        median_cosine: quantile(&cosines, 0.5),
        p10_cosine: quantile(&cosines, 0.1),
        p1_cosine: quantile(&cosines, 0.01),
        worst_cosine: quantile(&cosines, 0.0),
        ndcg: mean(&found[0]),
        reference_ndcg: mean(&found[1]),
        ndcg_difference: mean(&difference),
    }
}

/// The first `dim` elements of each row.
fn cut(rows: &[f32], whole: usize, dim: usize) -> impl Iterator<Item = &[f32]> {
    rows.chunks_exact(whole).map(move |row| &row[..dim])
}

/// nDCG@10 of each query, by cosines.
fn found(vectors: &Vectors, dim: usize, queries: &[Query]) -> Vec<f64> {
    let one = |(vector, query): (&[f32], &Query)| {
        let documents = cut(&vectors.documents, vectors.dim, dim);
        let mut scores: Vec<f64> = documents
            .map(|document| Similarity::Cosine.compare(vector, document))
            .collect();
        if let Some(own) = query.own {
            scores[own] = f64::NEG_INFINITY;
        }
        let gain = |at: &usize| {
            if query.own == Some(*at) {
                return 0.0;
            }
            let relevant = query.relevant.iter().find(|(document, _)| document == at);
            relevant.map_or(0.0, |(_, gain)| *gain)
        };
        let gains: Vec<f64> = ranked(&scores, K).iter().map(gain).collect();
        let relevant: Vec<f64> = query.relevant.iter().map(|(_, gain)| *gain).collect();
        ndcg(&gains, &relevant, K)
    };
    cut(&vectors.queries, vectors.dim, dim)
        .zip(queries)
        .map(one)
        .collect()
}

pub(super) fn text(of: &Embedding) -> String {
    let n = counted(of.texts, "text");
    let queries = match of.queries {
        0 => String::new(),
        _ => format!(", {} of them queries", of.queries),
    };
    let mut out = format!("{n}{queries}; ranges are 95 % intervals\n");
    for d in &of.dimensions {
        out += &format!("\n{}\n", counted(d.dimensions, "dimension"));
        out += &row("cosine", d.cosine, |x| format!("{x:.6}"));
        let parts = [d.median_cosine, d.p10_cosine, d.p1_cosine, d.worst_cosine];
        let [median, p10, p1, worst] = parts.map(|x| format!("{x:.6}"));
        out += &format!("  median {median}, 10 % below {p10}, 1 % below {p1}, worst {worst}\n");
        let rows = [
            ("nDCG@10", d.ndcg),
            ("of the reference", d.reference_ndcg),
            ("difference", d.ndcg_difference),
        ];
        for (what, interval) in rows {
            if let Some(interval) = interval {
                out += &row(what, interval, |x| format!("{x:.4}"));
            }
        }
    }
    out
}
