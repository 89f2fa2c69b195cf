//! Interrupted pushes and pulls, and other programs on the same Hub and the same cache.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fixture::{Home, assert_ends, json, noise, stderr, stdout, until};
use crate::publisher::Publisher;
use crate::push::{REPO, bundle, contents, push, with};
use crate::server::Reply;

/// A Hub that cuts the answer to one request in the middle, and from then on answers nothing: the
/// number of that request, and whether it came.
struct Cutting {
    hub: Publisher,
    at: Arc<AtomicUsize>,
    n_seen: Arc<AtomicUsize>,
}

impl Cutting {
    fn new() -> Self {
        let (at, n_seen) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::default());
        let (limit, seen) = (Arc::clone(&at), Arc::clone(&n_seen) as Arc<AtomicUsize>);
        let hub = Publisher::lying(move |_, mut reply: Reply| {
            let n = seen.fetch_add(1, Ordering::SeqCst);
            if n >= limit.load(Ordering::SeqCst) {
                reply.cut = Some(reply.body.len() / 2);
            }
            reply
        });
        Self { hub, at, n_seen }
    }

    /// Starts the program, and kills it when the request `at` has been answered by half. Whether it
    /// was killed before its end.
    fn kill_at(&self, at: usize, home: &Home, args: &[&str]) -> bool {
        self.n_seen.store(0, Ordering::SeqCst);
        self.at.store(at, Ordering::SeqCst);
        let mut command = home.thane(args);
        command.env("HF_ENDPOINT", &self.hub.api.url);
        command.env("HF_TOKEN", "hf_secret");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let came = || self.n_seen.load(Ordering::SeqCst) > at;
        let mut ended = false;
        until("the request or the end", || {
            ended = child.try_wait().unwrap().is_some();
            ended || came()
        });
        if ended {
            return false;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        self.at.store(usize::MAX, Ordering::SeqCst);
        true
    }
}

/// Numbers below `n`, without a pattern.
fn points(n: usize, seed: u64) -> Vec<usize> {
    let bytes = noise(60, seed);
    let pairs = bytes.as_chunks::<2>().0.iter();
    pairs
        .map(|pair| u16::from_le_bytes(*pair) as usize % n)
        .collect()
}

#[test]
fn a_push_that_is_killed_goes_on() {
    let flags = ["--formats", "mlpackage", "--no-card"];
    let (home, whole) = (Home::new(), Cutting::new());
    whole.hub.state.lock().unwrap().part_bytes = 6000;
    assert_ends(&push(&home, &whole.hub, &flags), 0, &[]);
    let n_requests = whole.n_seen.load(Ordering::SeqCst);
    let expected = whole.hub.files("org/name", "main");
    let args = [&["push", bundle().to_str().unwrap(), REPO][..], &flags].concat();
    let mut n_killed = 0;
    for at in points(n_requests, 7) {
        let cutting = Cutting::new();
        cutting.hub.state.lock().unwrap().part_bytes = 6000;
        n_killed += usize::from(cutting.kill_at(at, &home, &args));
        let objects = cutting.hub.state.lock().unwrap().objects.clone();
        let before = cutting.hub.store.requests().len();
        assert_ends(&push(&home, &cutting.hub, &flags), 0, &[]);
        assert_eq!(cutting.hub.files("org/name", "main"), expected, "{at}");
        let sent = cutting.hub.store.requests().split_off(before);
        let again = sent
            .iter()
            .filter(|r| objects.keys().any(|oid| r.path.contains(oid)));
        assert_eq!(
            again.count(),
            0,
            "what the store had was not sent again ({at})"
        );
    }
    assert!(n_killed > 20, "{n_killed}");
}

#[test]
fn a_pull_that_is_killed_goes_on() {
    let (home, cutting) = (Home::new(), Cutting::new());
    assert_ends(&push(&home, &cutting.hub, &["--no-card"]), 0, &[]);
    cutting.n_seen.store(0, Ordering::SeqCst);
    let first = json(&with(&home, &cutting.hub, &["pull", REPO, "--json"]));
    let n_requests = cutting.n_seen.load(Ordering::SeqCst);
    let expected = contents(Path::new(first["path"].as_str().unwrap()));
    let mut n_killed = 0;
    for at in points(n_requests, 8) {
        let other = Home::new();
        n_killed += usize::from(cutting.kill_at(at, &other, &["pull", REPO]));
        let offline = with(&other, &cutting.hub, &["pull", REPO, "--offline"]);
        let is_whole = other
            .path("cache/bundles")
            .join("models--org--name")
            .is_dir()
            && offline.status.success();
        assert!(
            is_whole || offline.status.code() == Some(5),
            "{}",
            stderr(&offline)
        );
        let output = with(&other, &cutting.hub, &["pull", REPO, "--json"]);
        assert_ends(&output, 0, &[]);
        let path = json(&output)["path"].as_str().unwrap().to_owned();
        assert_eq!(contents(Path::new(&path)), expected, "{at}");
    }
    assert!(n_killed > 20, "{n_killed}");
}

/// A Python that has huggingface_hub, if THANE_HUB_PYTHON names one.
fn python() -> Option<String> {
    let python = std::env::var("THANE_HUB_PYTHON").ok();
    if python.is_none() {
        println!("skipped: THANE_HUB_PYTHON names no Python with huggingface_hub");
    }
    python
}

fn run_python(python: &str, home: &Home, hub: &Publisher, code: &str) {
    let output = Command::new(python)
        .args(["-c", code])
        .env_clear()
        .env("HOME", home.folder.path())
        .env("HF_ENDPOINT", &hub.api.url)
        .env("HF_HUB_CACHE", home.path("cache/hub"))
        .env("HF_TOKEN", "hf_secret")
        .env("HF_HUB_DISABLE_XET", "1")
        .env("BUNDLE", bundle())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn huggingface_hub_gets_what_thane_publishes_and_shares_its_cache() {
    let Some(python) = python() else { return };
    let (home, hub) = (Home::new(), Publisher::new());
    assert_ends(&push(&home, &hub, &[]), 0, &[]);
    let other = Home::new();
    let code = "from huggingface_hub import snapshot_download\n\
                print(snapshot_download('org/name'))";
    run_python(&python, &other, &hub, code);
    let snapshots = other.path("cache/hub/models--org--name/snapshots");
    let snapshot = fs::read_dir(&snapshots)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    assert_eq!(contents(&snapshot), hub.files("org/name", "main"));
    // Nothing is fetched again, and the snapshot itself is a bundle.
    hub.traffic();
    let pulled = json(&with(&other, &hub, &["pull", REPO, "--json"]));
    assert_eq!((&pulled["fetched_bytes"], hub.traffic()[1]), (&0.into(), 0));
    fs::remove_dir_all(other.path("cache/bundles")).unwrap();
    let offline = with(&other, &hub, &["embed", REPO, "a", "--offline"]);
    assert_ends(&offline, 0, &[]);
    let cached = with(&other, &hub, &["cache", "verify"]);
    assert_ends(&cached, 0, &[]);
    // The other way round: what Thane fetched needs no request of huggingface_hub.
    let third = Home::new();
    assert_ends(&with(&third, &hub, &["pull", REPO]), 0, &[]);
    let code = "from huggingface_hub import hf_hub_download\n\
                hf_hub_download('org/name', 'L8.mlpackage/Manifest.json', local_files_only=True)";
    run_python(&python, &third, &hub, code);
}

/// The program of `scripts/peers/hf-hub`, which THANE_HF_HUB names, shares the cache too.
#[test]
fn hf_hub_gets_what_thane_publishes_and_shares_its_cache() {
    let Ok(peer) = std::env::var("THANE_HF_HUB") else {
        println!("skipped: THANE_HF_HUB names no program; cargo build in scripts/peers/hf-hub");
        return;
    };
    let (home, hub) = (Home::new(), Publisher::new());
    assert_ends(&push(&home, &hub, &[]), 0, &[]);
    let mut command = Command::new(peer);
    command.env_clear().env("HF_ENDPOINT", &hub.api.url);
    let output = command.env("HF_HOME", home.path("cache")).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = hub.files("org/name", "main");
    let printed = stdout(&output);
    assert_eq!(printed.lines().count(), expected.len());
    for line in printed.lines() {
        let (name, path) = line.split_once('\t').unwrap();
        assert_eq!(fs::read(path).unwrap(), expected[name], "{name}");
    }
    hub.traffic();
    let pulled = json(&with(&home, &hub, &["pull", REPO, "--json"]));
    assert_eq!((&pulled["fetched_bytes"], hub.traffic()[1]), (&0.into(), 0));
}

#[test]
fn thane_gets_what_huggingface_hub_publishes() {
    let Some(python) = python() else { return };
    let (home, hub) = (Home::new(), Publisher::new());
    let code = "import os\n\
                from huggingface_hub import HfApi\n\
                api = HfApi()\n\
                api.create_repo('org/name')\n\
                api.upload_folder(repo_id='org/name', folder_path=os.environ['BUNDLE'])";
    run_python(&python, &home, &hub, code);
    let pulled = with(&home, &hub, &["pull", REPO, "--json"]);
    assert_ends(&pulled, 0, &[]);
    let path = json(&pulled)["path"].as_str().unwrap().to_owned();
    assert_eq!(contents(Path::new(&path)), contents(bundle()));
}
