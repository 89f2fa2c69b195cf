//! `thane cache`: what the cache that Hugging Face's tools share holds, and care for it.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_hub::{CachedRepo, RepoSpec, Verified};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{bytes, counted};

/// List, remove, prune or verify what is in the cache of the Hub.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[arg(value_enum)]
    action: Action,
    /// Repositories, as hf:org/name: those to remove or to verify.
    repos: Vec<String>,
    /// With rm and prune: say what would be removed, and remove nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Action {
    /// List repositories with their branches, commits and sizes.
    Ls,
    /// Remove repositories.
    Rm,
    /// Remove what no branch or tag leads to, and downloads that did not end.
    Prune,
    /// Compare the hash of every file; damaged ones stay where they are.
    Verify,
}

/// What `--json` prints for `ls`.
#[derive(Serialize)]
struct LsReport<'a> {
    cache: &'a Path,
    repos: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    path: &'a Path,
    /// Branches and tags, each with its commit.
    refs: Vec<Ref<'a>>,
    /// Commits of which files are there.
    commits: &'a [String],
    /// Files that were not downloaded to the end.
    incomplete: usize,
    bytes: u64,
    /// Bytes that `prune` removes.
    unused_bytes: u64,
}

#[derive(Serialize)]
struct Ref<'a> {
    name: &'a str,
    commit: &'a str,
}

/// What `--json` prints for `rm` and `prune`.
#[derive(Serialize)]
struct RemovedReport {
    dry_run: bool,
    paths: Vec<PathBuf>,
    freed_bytes: u64,
}

/// What `--json` prints for `verify`.
#[derive(Serialize)]
struct VerifyReport<'a> {
    /// Files whose hash was compared.
    files: usize,
    bytes: u64,
    damaged: &'a [PathBuf],
    /// Names that lead to no file.
    missing: &'a [PathBuf],
    /// Files whose names are no hashes.
    unknown: usize,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    if args.dry_run && !matches!(args.action, Action::Rm | Action::Prune) {
        return Err(usage!("--dry-run is for rm and prune"));
    }
    let repos = repos(args)?;
    match args.action {
        Action::Ls => ls(app),
        Action::Rm => rm(&repos, args, app),
        Action::Prune => {
            let pruned = app.hub.prune(args.dry_run)?;
            removed(args.dry_run, pruned.paths, pruned.bytes, app)
        }
        Action::Verify => verify(&repos, app),
    }
}

/// The repositories that were named. Only `rm` and `verify` take some, and `rm` needs one.
fn repos(args: &Args) -> Result<Vec<RepoSpec>, Failure> {
    let takes = matches!(args.action, Action::Rm | Action::Verify);
    if let Some(first) = args.repos.first().filter(|_| !takes) {
        return Err(usage!("{first}: expected no repository for ls and prune"));
    }
    if args.action == Action::Rm && args.repos.is_empty() {
        return Err(usage!("expected repositories to remove, found none")
            .remedy("thane cache rm hf:org/name; thane cache ls lists them"));
    }
    let parse = |text: &String| {
        let name = text.strip_prefix("hf:").unwrap_or(text);
        let spec = RepoSpec::parse(name)?;
        match spec.file {
            None => Ok(spec),
            Some(_) => Err(usage!("{text}: expected a repository, found a file of one")),
        }
    };
    args.repos.iter().map(parse).collect()
}

fn ls(app: &App) -> Outcome {
    let repos = app.hub.cached_repos()?;
    let cache = &app.hub.places.hub_cache;
    if repos.is_empty() && !app.output.is_json() {
        app.output.say(&format!("nothing in {}", cache.display()));
    }
    let report = LsReport {
        cache,
        repos: repos.iter().map(row).collect(),
    };
    Ok(app.output.report(&report, |_| table(&repos))?)
}

fn row(repo: &CachedRepo) -> Row<'_> {
    let refs = repo.refs.iter();
    Row {
        name: &repo.name,
        path: &repo.path,
        refs: refs.map(|(name, commit)| Ref { name, commit }).collect(),
        commits: &repo.commits,
        incomplete: repo.n_incomplete,
        bytes: repo.bytes,
        unused_bytes: repo.unused_bytes,
    }
}

fn table(repos: &[CachedRepo]) -> String {
    let width = repos.iter().map(|r| r.name.len()).max().unwrap_or(0);
    let line = |repo: &CachedRepo| {
        let refs = repo.refs.iter();
        let refs: Vec<String> = refs
            .map(|(name, commit)| format!("{name} {}", &commit[..commit.len().min(8)]))
            .collect();
        let unused = match repo.unused_bytes {
            0 => String::new(),
            n => format!("  ({} unused)", bytes(n)),
        };
        format!(
            "{:width$}  {:>9}  {}  {}{unused}\n",
            repo.name,
            bytes(repo.bytes),
            counted(repo.commits.len(), "commit"),
            refs.join(", ")
        )
    };
    repos.iter().map(line).collect()
}

fn rm(repos: &[RepoSpec], args: &Args, app: &App) -> Outcome {
    let (mut paths, mut freed) = (Vec::new(), 0);
    if args.dry_run {
        let cached = app.hub.cached_repos()?;
        for spec in repos {
            let name = spec.to_string();
            let found = cached.iter().find(|repo| repo.name == name);
            let found = found.ok_or_else(|| usage!("{name} is not in the cache"))?;
            paths.push(found.path.clone());
            freed += found.bytes;
        }
        return removed(true, paths, freed, app);
    }
    for spec in repos {
        let removed = app.hub.remove(&spec.to_string())?;
        paths.push(removed.path);
        freed += removed.freed_bytes;
    }
    removed(false, paths, freed, app)
}

fn removed(dry_run: bool, paths: Vec<PathBuf>, freed_bytes: u64, app: &App) -> Outcome {
    let report = RemovedReport {
        dry_run,
        paths,
        freed_bytes,
    };
    Ok(app.output.report(&report, |report| {
        let lines = report
            .paths
            .iter()
            .map(|path| format!("{}\n", path.display()));
        let lines: String = lines.collect();
        let size = bytes(report.freed_bytes);
        match report.dry_run {
            true => format!("{lines}{size} would be freed\n"),
            false => format!("{lines}{size} freed\n"),
        }
    })?)
}

fn verify(repos: &[RepoSpec], app: &App) -> Outcome {
    app.output.busy("comparing hashes");
    let mut all = Verified::default();
    let every = [None];
    let named: Vec<Option<&RepoSpec>> = repos.iter().map(Some).collect();
    for only in if named.is_empty() { &every[..] } else { &named } {
        let one = app.hub.verify(*only)?;
        all.n_files += one.n_files;
        all.bytes += one.bytes;
        all.n_unknown += one.n_unknown;
        all.damaged.extend(one.damaged);
        all.missing.extend(one.missing);
    }
    app.output.clear();
    let n_damaged = all.damaged.len() + all.missing.len();
    if all.n_files + n_damaged + all.n_unknown == 0 && !app.output.is_json() {
        let cache = app.hub.places.hub_cache.display();
        app.output.say(&format!("nothing in {cache}"));
    }
    let report = VerifyReport {
        files: all.n_files,
        bytes: all.bytes,
        damaged: &all.damaged,
        missing: &all.missing,
        unknown: all.n_unknown,
    };
    app.output.report(&report, |report| {
        format!(
            "{}, {}\n",
            counted(report.files, "file"),
            bytes(report.bytes)
        )
    })?;
    if n_damaged == 0 {
        return Ok(());
    }
    let paths = all.damaged.iter().chain(&all.missing);
    let paths: Vec<String> = paths
        .map(|path| format!("\n  {}", path.display()))
        .collect();
    let what = counted(n_damaged, "file");
    let failure = Failure::new(
        Code::Other,
        anyhow::anyhow!("{what} damaged or missing:{}", paths.concat()),
    );
    Err(failure.remedy("thane pull NAME --check, which brings them again"))
}
