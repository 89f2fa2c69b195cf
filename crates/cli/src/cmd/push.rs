//! `thane push`: publishes packages in a repository of the Hugging Face Hub.

use std::path::PathBuf;

use serde::Serialize;
use thane_hub::catalog::Source;
use thane_hub::{
    Format, HubError, Mode, PUBLICATION, Publication, Push, PushFile, PushPlan, Pushed, RepoSpec,
    SCHEMA, SIGNATURE, SigningKey,
};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{bytes, counted};
use crate::push::{Card, Collected, card, collect, find, speeds};

/// Publish a package or a folder of packages on the Hugging Face Hub.
///
/// The repository is made if it does not exist. Files with the same bytes are uploaded once, one
/// commit names all of them, and an upload that was interrupted goes on where it stopped.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A package, a folder of packages, or a bundle of another project that `run` takes.
    bundle: PathBuf,
    /// The repository, as hf:org/name.
    repo: String,
    /// Forms: mlpackage, mlmodelc [default: both].
    ///
    /// A compiled model is written of each package; one that cannot be compiled here is published
    /// as a package only.
    #[arg(long, value_name = "FORMS", value_enum, value_delimiter = ',')]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    #[arg(default_values_t = [FormatFlag::Mlpackage, FormatFlag::Mlmodelc])]
    formats: Vec<FormatFlag>,
    /// Say which files would be sent, and send nothing.
    #[arg(long)]
    dry_run: bool,
    /// Make the repository private; one that is public already is refused.
    #[arg(long)]
    private: bool,
    /// Branch to change; it is made if it does not exist.
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    revision: String,
    /// Open a pull request instead of a change of the main branch.
    #[arg(long, conflicts_with = "revision")]
    pr: bool,
    /// Sign the list of files with an ed25519 key in a PEM file.
    #[arg(long, value_name = "KEY.pem")]
    sign: Option<PathBuf>,
    /// License of the model, as the Hub names it, such as apache-2.0 [default: the package's].
    #[arg(long, value_name = "ID")]
    license: Option<String>,
    /// Repository of the model that the packages were made of, as org/name.
    #[arg(long, value_name = "REPO")]
    base_model: Option<String>,
    /// First line of the commit.
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    /// Leave the repository's README.md as it is.
    #[arg(long)]
    no_card: bool,
}

/// The values of `--formats` and of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FormatFlag {
    Mlpackage,
    Mlmodelc,
}

impl From<FormatFlag> for Format {
    fn from(flag: FormatFlag) -> Self {
        match flag {
            FormatFlag::Mlpackage => Self::Mlpackage,
            FormatFlag::Mlmodelc => Self::Mlmodelc,
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    /// `hf:org/name`.
    repo: String,
    revision: &'a str,
    /// Whether nothing was sent because of `--dry-run`.
    dry_run: bool,
    /// Whether the repository and the revision were there.
    existed: bool,
    files: Vec<Row<'a>>,
    /// Bytes of all files.
    bytes: u64,
    /// Bytes of different files.
    unique_bytes: u64,
    /// Bytes that had to be sent: uploads and the commit.
    wire_bytes: u64,
    /// Bytes that were sent.
    sent_bytes: u64,
    /// The commit; null if nothing had changed, or nothing was sent.
    commit: Option<&'a str>,
    /// Address of the pull request.
    pull_request: Option<&'a str>,
    /// The public key of the signature in base64.
    public_key: Option<&'a str>,
}

#[derive(Serialize)]
struct Row<'a> {
    path: &'a str,
    bytes: u64,
    sha256: &'a str,
    /// `there`, `upload` or `commit`.
    state: &'static str,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let repo = repo(args)?;
    let key = args.sign.as_deref().map(SigningKey::read).transpose()?;
    let formats: Vec<Format> = args.formats.iter().map(|f| Format::from(*f)).collect();
    let found = find(&args.bundle, app)?;
    let mut push = Push {
        files: Vec::new(),
        message: message(args),
        revision: repo.revision.clone(),
        repo: repo.repo.clone(),
        private: args.private,
        pull_request: args.pr,
    };
    // Before models are compiled and files are hashed, which may take minutes.
    app.output.busy("asking the Hub");
    app.hub.begin_push(&push, args.dry_run).map_err(of_push)?;
    let mut collected = collect(&args.bundle, found, &formats, app)?;
    collected.notes.iter().for_each(|note| app.output.say(note));
    let files = std::mem::take(&mut collected.files);
    push.files = with_lists(files, &collected, key.as_ref(), (args, &repo), app)?;
    app.output.clear();
    let public_key = key.map(|key| key.public());
    if args.dry_run {
        let plan = app.hub.plan_push(&push).map_err(of_push)?;
        return print(&push, &plan, None, public_key.as_deref(), app);
    }
    let pushed = app.hub.push(&push).map_err(of_push)?;
    print(
        &push,
        &pushed.plan,
        Some(&pushed),
        public_key.as_deref(),
        app,
    )
}

/// A failure of a push. What helps to get a model without a network does not help to publish one.
fn of_push(error: HubError) -> Failure {
    const PLAN: &str = "--dry-run --offline, which lists the files and asks nobody";
    let remedies = match &error {
        HubError::Unreachable { .. } => [
            "a network, HTTPS_PROXY behind a proxy, or HF_ENDPOINT for another Hub",
            PLAN,
        ],
        HubError::Offline { .. } => ["the same without --offline or HF_HUB_OFFLINE", PLAN],
        _ => return error.into(),
    };
    let failure = Failure::new(Code::Network, error);
    remedies.into_iter().fold(failure, Failure::remedy)
}

fn message(args: &Args) -> String {
    let name = crate::out::file_name(&args.bundle);
    args.message
        .clone()
        .unwrap_or_else(|| format!("Publish {name} with thane"))
}

fn repo(args: &Args) -> Result<RepoSpec, Failure> {
    let remedy = "hf:org/name, and --revision for a branch";
    let rest = args.repo.strip_prefix("hf:").ok_or_else(|| {
        usage!("{}: expected a repository as hf:org/name", args.repo).remedy(remedy)
    })?;
    let spec = RepoSpec::parse(rest)?;
    if spec.file.is_some() || spec.revision != "main" {
        return Err(
            usage!("{}: expected a repository, found a part of one", args.repo).remedy(remedy),
        );
    }
    // A branch is written as the revision of a name is.
    RepoSpec::parse(&format!("{}@{}", spec.repo, args.revision)).map_err(Failure::from)
}

/// The files with the list of them, its signature and the model card.
fn with_lists(
    mut files: Vec<PushFile>,
    collected: &Collected,
    key: Option<&SigningKey>,
    (args, repo): (&Args, &RepoSpec),
    app: &App,
) -> Result<Vec<PushFile>, Failure> {
    let about = &collected.about;
    let base = base_model(args, about.source.as_deref(), app);
    let list = Publication {
        schema: SCHEMA,
        generator: concat!("thane ", env!("CARGO_PKG_VERSION")).to_owned(),
        task: about.task().map(str::to_owned),
        model: base.clone().or_else(|| about.source.clone()),
        license: args.license.clone().or_else(|| about.license.clone()),
        packages: collected.packages.clone(),
        files: files.iter().map(PushFile::published).collect(),
    };
    let json = list.to_json()?;
    if !args.no_card {
        let speeds = speeds(&args.bundle, app)?;
        let mut hashes: Vec<_> = list.files.iter().map(|f| (&f.sha256, f.bytes)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let text = card(&Card {
            repo: &repo.repo,
            list: &list,
            about,
            base_model: base.as_deref(),
            speeds: Some(&speeds),
            unique_bytes: hashes.iter().map(|(_, bytes)| bytes).sum(),
            key: key.map(SigningKey::public).as_deref(),
        });
        files.push(PushFile::from_bytes("README.md", text.into_bytes()));
    }
    if let Some(key) = key {
        files.push(PushFile::from_bytes(SIGNATURE, key.sign(&json)));
    }
    files.push(PushFile::from_bytes(PUBLICATION, json));
    Ok(files)
}

/// The repository of the model that packages were made of, where the Hub has it.
fn base_model(args: &Args, source: Option<&str>, app: &App) -> Option<String> {
    if let Some(named) = &args.base_model {
        return Some(named.trim_start_matches("hf:").to_owned());
    }
    let source = source?;
    if let Some(rest) = source.strip_prefix("hf:") {
        return RepoSpec::parse(rest).ok().map(|spec| spec.repo);
    }
    let entry = app.hub.catalog.iter().find(|entry| entry.name == source)?;
    entry.sources.iter().find_map(|source| match source {
        Source::Hf { repo, .. } => Some(repo.clone()),
        Source::Pip(_) => None,
    })
}

fn print(
    push: &Push,
    plan: &PushPlan,
    pushed: Option<&Pushed>,
    public_key: Option<&str>,
    app: &App,
) -> Outcome {
    let rows = push.files.iter().zip(&plan.modes).map(|(file, mode)| Row {
        path: &file.path,
        bytes: file.bytes,
        sha256: &file.sha256,
        state: match mode {
            Mode::There => "there",
            Mode::Large => "upload",
            Mode::Regular => "commit",
        },
    });
    let report = Report {
        repo: format!("hf:{}", push.repo),
        revision: &push.revision,
        dry_run: pushed.is_none(),
        existed: plan.exists,
        files: rows.collect(),
        bytes: plan.bytes,
        unique_bytes: plan.unique_bytes,
        wire_bytes: plan.wire_bytes,
        sent_bytes: pushed.map_or(0, |pushed| pushed.sent_bytes),
        commit: pushed.and_then(|pushed| pushed.commit.as_deref()),
        pull_request: pushed.and_then(|pushed| pushed.pull_request.as_deref()),
        public_key,
    };
    Ok(app.output.report(&report, |report| match pushed {
        None => table(report),
        Some(pushed) => {
            app.output.say(&said(report));
            format!("{}\n", pushed.pull_request.as_ref().unwrap_or(&pushed.url))
        }
    })?)
}

/// The files of a dry run, and what would be sent.
fn table(report: &Report<'_>) -> String {
    let line = |row: &Row<'_>| {
        let (size, state) = (bytes(row.bytes), row.state);
        format!("{size:>9}  {state:<6}  {}\n", row.path)
    };
    let lines: String = report.files.iter().map(line).collect();
    format!(
        "{lines}{}: {}, {} of different files, {} on the wire\n",
        counted(report.files.len(), "file"),
        bytes(report.bytes),
        bytes(report.unique_bytes),
        bytes(report.wire_bytes)
    )
}

fn said(report: &Report<'_>) -> String {
    let (repo, n) = (&report.repo, counted(report.files.len(), "file"));
    match report.commit {
        None => format!("{repo}: {n}, all of which were there already"),
        Some(commit) => format!(
            "{repo}: {n}, {} of {} sent, commit {}",
            bytes(report.sent_bytes),
            bytes(report.bytes),
            &commit[..commit.len().min(8)]
        ),
    }
}
