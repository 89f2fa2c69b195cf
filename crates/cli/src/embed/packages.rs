//! Reading what [`super::bundle`] writes.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use thane_mil::lower;
use thane_mil::opset::Opset;
use thane_mil::package::{self, Package};
use thane_mil::program::{Function, Program};
use thane_models::{EncoderInfo, Pooling};

use super::bundle::{MAIN, MANIFEST, MANIFEST_SCHEMA, Manifest};
use super::golden::Golden;
use crate::contract::{self, Contents, Embeds, Facts, FileHash};
use crate::language::Parts;

/// Longest manifest; one has a line or two for each file.
const MOST_MANIFEST: u64 = 1 << 22;

/// An embedding model from its packages.
pub struct Bundle {
    pub facts: Embeds,
    /// The functions of all packages, those of fixed length named after it.
    pub program: Program,
    pub parts: Option<Parts>,
    pub goldens: Vec<Golden>,
    /// Files whose hash was compared.
    pub n_files: usize,
}

/// Whether a path is that of a folder of packages.
pub fn is_bundle(path: &Path) -> bool {
    path.join(MANIFEST).is_file()
}

/// What a folder of packages says of itself, without a look at any other file; none where it is no
/// such folder.
pub fn manifest(path: &Path) -> anyhow::Result<Option<Manifest>> {
    if !is_bundle(path) {
        return Ok(None);
    }
    let file = path.join(MANIFEST);
    let text = package::read_small(&file, MOST_MANIFEST).with_context(|| MANIFEST.to_owned())?;
    if let Some(pointer) = package::lfs_pointer(&text) {
        bail!("{} {pointer}", file.display());
    }
    let manifest: Manifest = serde_json::from_slice(&text).with_context(|| MANIFEST.to_owned())?;
    ensure!(
        manifest.schema == MANIFEST_SCHEMA,
        "{MANIFEST}: its schema is {}, this version of Thane reads {MANIFEST_SCHEMA}",
        manifest.schema
    );
    Ok(Some(manifest))
}

/// As [`manifest`], and the files that it names, whose hashes were compared.
pub fn checked_manifest(path: &Path) -> anyhow::Result<Option<(Manifest, Vec<FileHash>)>> {
    let Some(manifest) = manifest(path)? else {
        return Ok(None);
    };
    let found: Vec<_> = contract::hash_tree(path)?
        .into_iter()
        .filter(|f| f.path != MANIFEST)
        .collect();
    if let Some(file) = contract::differing(&found, &manifest.files) {
        bail!(
            "`{file}` is not what {MANIFEST} says: the folder was changed or damaged; convert again"
        );
    }
    Ok(Some((manifest, found)))
}

/// Read and check a package or a folder of packages.
pub fn open(path: &Path) -> anyhow::Result<Bundle> {
    let Some((manifest, found)) = checked_manifest(path)? else {
        return package(path);
    };
    let Facts::Embed(facts) = manifest.model else {
        bail!("{MANIFEST} is not that of an embedding model")
    };
    // The package that takes the longest texts, whose golden vectors are of texts as they come out
    // of the folder.
    let longest = manifest
        .packages
        .iter()
        .max_by_key(|entry| entry.tokens.unwrap_or(usize::MAX));
    let mut whole: Option<Bundle> = None;
    let mut functions: Vec<Function> = Vec::new();
    for entry in &manifest.packages {
        ensure!(
            found
                .iter()
                .any(|f| f.path.starts_with(&format!("{}/", entry.path))),
            "`{}` is missing",
            entry.path
        );
        let one = package(&path.join(&entry.path)).with_context(|| entry.path.clone())?;
        // Each is in the oldest opset that can say it; together they are in one.
        let program = lower::with_opset(&one.program, Opset::CoreMl8).map_err(|v| {
            anyhow::anyhow!(
                "`{}`: {}",
                entry.path,
                v.first().map(ToString::to_string).unwrap_or_default()
            )
        })?;
        functions.extend(program.functions().iter().cloned());
        if Some(entry) == longest {
            whole = Some(one);
        }
    }
    let longest = whole.context("the manifest names no package")?;
    Ok(Bundle {
        facts: *facts,
        program: Program::new(functions),
        n_files: found.len(),
        ..longest
    })
}

fn package(path: &Path) -> anyhow::Result<Bundle> {
    let package = Package::open(path)?;
    let contents = contract::read(path, &package.program)?;
    let Contents { contract, parts, golden } = contents
        .context("the package has no contract: thane convert MODEL --task embed makes packages that have one")?;
    let Facts::Embed(facts) = contract.model else {
        bail!("the package is that of a language model: thane run answers with it");
    };
    let goldens = golden
        .map(|json| serde_json::from_slice(&json))
        .transpose()
        .context("the golden vectors")?;
    let mut functions = package.program.functions().to_vec();
    if let [function] = functions.as_mut_slice()
        && function.name == MAIN
    {
        let base = if facts.encoding == "chunks" {
            "encode_chunks"
        } else {
            "encode"
        };
        function.name = match facts.buckets.first() {
            Some(n) => format!("{base}_{n}"),
            None => base.to_owned(),
        };
    }
    let n_files = contract.files.len();
    Ok(Bundle {
        facts: *facts,
        program: Program::new(functions),
        parts,
        goldens: goldens.unwrap_or_default(),
        n_files,
    })
}

/// What the packages say of their model.
pub fn info(facts: &Embeds) -> anyhow::Result<EncoderInfo> {
    let pooling = Pooling::from_name(&facts.pooling);
    Ok(EncoderInfo {
        architecture: facts.architecture.clone(),
        n_layers: facts.layers,
        vocab_size: facts.vocabulary,
        n_positions: facts.positions,
        dim: facts.dimensions,
        max_tokens: facts.max_tokens,
        pooling: pooling.with_context(|| {
            format!(
                "the contract's pooling is `{}`, which is none",
                facts.pooling
            )
        })?,
        normalize: facts.normalize,
        prompts: facts.prompts.clone(),
        default_prompt: facts.default_prompt.clone(),
        include_prompt: facts.include_prompt,
        similarity: facts.similarity.clone(),
        lower_case: facts.lower_case,
        quantize: facts.quantize,
    })
}
