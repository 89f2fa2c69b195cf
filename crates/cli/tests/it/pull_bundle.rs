//! `thane pull` and `thane run` of repositories with packages: which files, whose, and whether they
//! are what they should be.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::fixture::{Home, assert_ends, git_hash, json, sha256, stderr, stdout};
use crate::publisher::Publisher;
use crate::push::{REPO, bundle, contents, push, with};
use crate::server::{Reply, Request};

fn published(flags: &[&str]) -> Publisher {
    let hub = Publisher::new();
    assert_ends(&push(&Home::new(), &hub, flags), 0, &[]);
    hub.traffic();
    hub
}

fn pull(home: &Home, hub: &Publisher, flags: &[&str]) -> Value {
    let output = with(home, hub, &[&["pull", REPO, "--json"][..], flags].concat());
    assert_ends(&output, 0, &[]);
    json(&output)
}

fn path(report: &Value) -> PathBuf {
    PathBuf::from(report["path"].as_str().unwrap())
}

fn names(folder: &Path) -> Vec<String> {
    let tops = contents(folder).into_keys();
    let mut tops: Vec<String> = tops
        .map(|n| n.split('/').next().unwrap().to_owned())
        .collect();
    tops.dedup();
    tops
}

#[test]
fn a_part_is_a_bundle_of_its_own() {
    let (home, hub) = (Home::new(), published(&[]));
    let part = path(&pull(&home, &hub, &["--buckets", "48,16"]));
    assert_eq!(
        names(&part),
        [
            "L16.mlpackage",
            "L48.mlpackage",
            "manifest.json",
            "thane.json",
            "tokenizer.json"
        ]
    );
    let text = ["embed", REPO, "a", "--json"];
    let report = json(&with(&home, &hub, &text));
    let whole = json(&home.run(&["embed", bundle().to_str().unwrap(), "a", "--json"]));
    assert_eq!(report["embeddings"], whole["embeddings"]);
    assert_ends(
        &with(&home, &hub, &["verify", part.to_str().unwrap()]),
        0,
        &[],
    );
    // The rest comes without what is there.
    hub.traffic();
    let all = path(&pull(&home, &hub, &[]));
    assert_eq!(names(&all).len(), 10);
    let weights = "L16.mlpackage/Data/com.apple.CoreML/weights/weight.bin";
    let inode = |folder: &Path| fs::metadata(folder.join(weights)).unwrap().ino();
    assert_eq!(inode(&part), inode(&all), "the disk has it once");
    assert!(
        !fs::symlink_metadata(all.join(weights))
            .unwrap()
            .is_symlink()
    );
    let flags = ["--buckets", "8", "--format", "mlmodelc"];
    let compiled = path(&pull(&home, &hub, &flags));
    assert!(compiled.ends_with("L8.mlmodelc"), "{}", compiled.display());
    assert!(compiled.join("coremldata.bin").is_file());
    for (flags, said) in [
        (
            &["--buckets", "9"][..],
            "expected --buckets of 8, 16, 24, 32, 40, 48, found 9",
        ),
        (&["--format", "x"], "possible values"),
    ] {
        let output = with(&home, &hub, &[&["pull", REPO][..], flags].concat());
        assert_ends(&output, 2, &[said]);
    }
    let packages = published(&["--formats", "mlpackage"]);
    let output = with(&home, &packages, &["pull", REPO, "--format", "mlmodelc"]);
    assert_ends(&output, 2, &["expected --format mlpackage, found mlmodelc"]);
}

#[test]
fn a_copy_belongs_to_nobody_else() {
    let (home, hub) = (Home::new(), published(&["--formats", "mlpackage"]));
    let to = home.path("mine");
    let flags = ["--buckets", "8", "--to", to.to_str().unwrap()];
    assert_eq!(path(&pull(&home, &hub, &flags)), to);
    let file = to.join("L8.mlpackage/Manifest.json");
    assert_eq!(fs::metadata(&file).unwrap().nlink(), 1);
    assert_ends(
        &with(&home, &hub, &["verify", to.to_str().unwrap()]),
        0,
        &[],
    );
    let output = with(&home, &hub, &[&["pull", REPO][..], &flags].concat());
    assert_ends(&output, 2, &["mine exists already", "try: another path"]);
}

#[test]
fn one_package_is_named_by_its_path() {
    let (home, hub) = (Home::new(), published(&[]));
    let name = format!("{REPO}/L24.mlpackage");
    let report = json(&with(&home, &hub, &["pull", &name, "--json"]));
    let package = path(&report);
    assert!(package.ends_with("L24.mlpackage"), "{}", package.display());
    assert_eq!(
        contents(&package),
        contents(&bundle().join("L24.mlpackage"))
    );
    assert_ends(
        &with(&home, &hub, &["embed", &name, "a", "--offline"]),
        0,
        &[],
    );
    let missing = format!("{REPO}/L25.mlpackage");
    assert_ends(
        &with(&home, &hub, &["pull", &missing]),
        5,
        &["L25.mlpackage does not exist"],
    );
}

/// What huggingface_hub uploads of a folder has no list of Thane's.
#[test]
fn a_folder_and_a_package_need_no_list() {
    let files = contents(bundle());
    let folder: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), &bytes[..]))
        .collect();
    let beside: [(&str, &[u8]); 2] = [("README.md", b"x"), (".gitattributes", b"x")];
    let (home, hub) = (Home::new(), Publisher::new());
    hub.put("org/name", &[&folder[..], &beside].concat());
    assert_eq!(contents(&path(&pull(&home, &hub, &[]))), files);
    let part = path(&pull(&home, &hub, &["--buckets", "8"]));
    assert_eq!(names(&part), ["L8.mlpackage", "manifest.json"]);
    assert_ends(
        &with(&home, &hub, &["verify", part.to_str().unwrap()]),
        0,
        &[],
    );

    let one: Vec<(&str, &[u8])> = folder
        .iter()
        .filter(|(name, _)| name.starts_with("L48."))
        .copied()
        .collect();
    let (home, hub) = (Home::new(), Publisher::new());
    hub.put("org/name", &[&one[..], &beside].concat());
    assert!(path(&pull(&home, &hub, &[])).ends_with("L48.mlpackage"));
    assert_ends(&with(&home, &hub, &["embed", REPO, "a"]), 0, &[]);

    let several: Vec<(&str, &[u8])> = folder
        .iter()
        .filter(|(name, _)| *name != "manifest.json")
        .copied()
        .collect();
    hub.put("org/name", &several);
    let output = with(&home, &hub, &["pull", REPO]);
    assert_ends(
        &output,
        2,
        &["has several models", "try: hf:org/name/L16.mlpackage"],
    );
}

#[test]
fn bundles_of_other_projects_run_by_name() {
    let bundles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bundles");
    for name in ["anemll-chat", "coreml-llm-chunks"] {
        let files = contents(&bundles.join(name));
        let mut all: Vec<(&str, &[u8])> = files
            .iter()
            .map(|(name, bytes)| (name.as_str(), &bytes[..]))
            .collect();
        all.extend([
            ("README.md", &b"x"[..]),
            ("demo.png", b"x"),
            ("all.zip", b"x"),
        ]);
        let (home, hub) = (Home::new(), Publisher::new());
        hub.put("org/name", &all);
        let flags = ["--max-tokens", "3", "--temperature", "0", "--json", "Hello"];
        let local = bundles.join(name);
        let local = [&["run", local.to_str().unwrap()][..], &flags].concat();
        let expected = home.run(&local);
        assert_ends(&expected, 0, &[]);
        let named = [&["run", REPO][..], &flags].concat();
        let output = with(&home, &hub, &named);
        assert_ends(&output, 0, &[]);
        assert_eq!(json(&output)["text"], json(&expected)["text"], "{name}");
        let offline = with(&home, &hub, &[&named[..], &["--offline"]].concat());
        assert_ends(&offline, 0, &[]);
    }
}

fn openssl(args: &[&str]) {
    let output = Command::new("openssl").args(args).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn signatures_are_checked_before_anything_else_comes() {
    let home = Home::new();
    let at = |name: &str| home.path(name).to_str().unwrap().to_owned();
    for name in ["key", "other"] {
        let (key, public) = (at(&format!("{name}.pem")), at(&format!("{name}.pub")));
        openssl(&["genpkey", "-algorithm", "ed25519", "-out", &key]);
        openssl(&["pkey", "-in", &key, "-pubout", "-out", &public]);
    }
    let hub = Publisher::new();
    let pushed = push(&home, &hub, &["--sign", &at("key.pem")]);
    assert_ends(&pushed, 0, &[]);
    let key = json(&pushed)["public_key"].as_str().unwrap().to_owned();
    let files = hub.files("org/name", "main");
    for name in ["thane.json", "thane.json.sig"] {
        fs::write(home.path(name), &files[name]).unwrap();
    }
    openssl(&[
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        &at("key.pub"),
        "-rawin",
        "-in",
        &at("thane.json"),
        "-sigfile",
        &at("thane.json.sig"),
    ]);
    for key in [at("key.pub"), key.clone()] {
        let home = Home::new();
        pull(&home, &hub, &["--require-signature", &key]);
    }
    let refused = |hub: &Publisher, key: &str, said: &str| {
        let home = Home::new();
        hub.traffic();
        let output = with(&home, hub, &["pull", REPO, "--require-signature", key]);
        assert_ends(&output, 5, &["hf:org/name is not signed as asked", said]);
        let lists = files["thane.json"].len() + 1 + SIGNATURE_BYTES;
        assert!(
            hub.traffic()[1] <= lists,
            "only the list and its signature came"
        );
    };
    refused(&hub, &at("other.pub"), "the signature is not of this key");
    refused(
        &published(&["--no-card"]),
        &key,
        "there is no thane.json.sig",
    );
    let changed = Publisher::new();
    let mut list = files.clone();
    list.get_mut("thane.json").unwrap().push(b' ');
    let list: Vec<(&str, &[u8])> = list.iter().map(|(n, b)| (n.as_str(), &b[..])).collect();
    changed.put("org/name", &list);
    refused(&changed, &key, "the signature is not of this key");
    let output = with(
        &home,
        &hub,
        &["pull", REPO, "--require-signature", "nonsense"],
    );
    assert_ends(
        &output,
        2,
        &[
            "cannot use the key nonsense",
            "try: the publisher's public key",
        ],
    );
    damaged_in_the_cache(&hub, &key);
}

const SIGNATURE_BYTES: usize = 64;

/// A signed pull reads what was in the cache too, and downloads again what is damaged.
fn damaged_in_the_cache(hub: &Publisher, key: &str) {
    let home = Home::new();
    pull(&home, hub, &[]);
    let blobs = home.path("cache/hub/models--org--name/blobs");
    let largest = fs::read_dir(blobs).unwrap().map(|e| e.unwrap().path());
    let largest = largest
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    bytes[100] ^= 1;
    fs::write(&largest, &bytes).unwrap();
    let output = with(&home, hub, &["cache", "verify", REPO]);
    assert_ends(&output, 1, &["1 file damaged or missing"]);
    let output = with(&home, hub, &["pull", REPO, "--check", "--offline"]);
    let remedy = "try: the same without --offline or HF_HUB_OFFLINE";
    assert_ends(&output, 2, &["is damaged: its sha256", remedy]);
    let list = path(&pull(&home, hub, &[])).join("thane.json");
    let right = fs::read(&list).unwrap();
    fs::write(&list, vec![b' '; right.len()]).unwrap();
    let signed = ["--require-signature", key];
    let output = with(&home, hub, &[&["pull", REPO][..], &signed].concat());
    assert_ends(&output, 0, &["it was removed"]);
    assert_eq!(fs::read(&list).unwrap(), right);
    for (flags, said) in [
        (
            &signed[..],
            "is damaged in the cache; it is downloaded again",
        ),
        (&["--check"], "it was removed"),
    ] {
        fs::write(&largest, &bytes).unwrap();
        let output = with(&home, hub, &[&["pull", REPO][..], flags].concat());
        assert_ends(&output, 0, &[said]);
        assert_ends(&with(&home, hub, &["cache", "verify"]), 0, &[]);
        let there = contents(&path(&pull(&home, hub, &[])));
        assert!(
            contents(bundle())
                .iter()
                .all(|(name, bytes)| there[name] == *bytes)
        );
    }
}

/// Replaces a file of a bundle, which is then no other name of a blob any more.
fn replace(file: &Path, bytes: &[u8]) {
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

#[test]
fn the_files_of_a_bundle_are_compared_with_the_list() {
    let home = Home::new();
    let key = home.path("key.pem").to_str().unwrap().to_owned();
    openssl(&["genpkey", "-algorithm", "ed25519", "-out", &key]);
    let hub = Publisher::new();
    let pushed = push(&home, &hub, &["--sign", &key]);
    let signed = json(&pushed)["public_key"].as_str().unwrap().to_owned();
    let signed = ["--require-signature", &signed[..]];
    let parts: [(&[&str], &str); 4] = [
        (&[], "L16.mlpackage/Manifest.json"),
        (&["--format", "mlmodelc"], "L16.mlmodelc/weights/weight.bin"),
        (
            &["--buckets", "16,48"],
            "L16.mlpackage/Data/com.apple.CoreML/weights/weight.bin",
        ),
        (&["--buckets", "16,48"], "manifest.json"),
    ];
    for (part, name) in parts {
        let folder = path(&pull(&home, &hub, part));
        let right = contents(&folder);
        let file = folder.join(name);
        let verified = |code: i32, said: &[&str]| {
            assert_ends(&with(&home, &hub, &["cache", "verify"]), code, said);
        };
        let pulled = |flags: &[&str]| {
            let args = [&["pull", REPO][..], part, flags].concat();
            assert_ends(&with(&home, &hub, &args), 0, &["it is made again"]);
            assert!(contents(&folder) == right, "{part:?} {flags:?}");
            verified(0, &[]);
        };
        for flags in [&signed[..], &["--check"]] {
            replace(&file, &vec![b'z'; right[name].len()]);
            verified(1, &["1 file damaged or missing", file.to_str().unwrap()]);
            pulled(flags);
            fs::write(folder.join("L16.other"), "more").unwrap();
            pulled(flags);
        }
        for flags in [&signed[..], &["--check"], &[]] {
            fs::remove_file(&file).unwrap();
            verified(1, &["1 file damaged or missing", file.to_str().unwrap()]);
            pulled(flags);
        }
        // A check of another part is one of this part too.
        replace(&file, b"{}");
        let output = with(&home, &hub, &["pull", REPO, "--check"]);
        assert_ends(&output, 0, &["it is made again"]);
        verified(0, &[]);
    }
    let package = format!("{REPO}/L24.mlpackage");
    for (model, name) in [
        (REPO, "L16.mlpackage/Manifest.json"),
        (&package, "Manifest.json"),
    ] {
        let report = json(&with(&home, &hub, &["pull", model, "--json"]));
        let file = path(&report).join(name);
        let right = fs::read(&file).unwrap();
        replace(&file, b"{}");
        let offline = with(&home, &hub, &["pull", model, "--check", "--offline"]);
        assert_ends(&offline, 0, &["it is made again"]);
        assert_eq!(fs::read(&file).unwrap(), right);
    }
}

#[test]
fn pulls_of_one_repository_at_once_all_work() {
    let hub = published(&["--formats", "mlpackage"]);
    let part = format!("{REPO}/L16.mlpackage");
    let at_once = |home: &Home, args: &[&str]| {
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| assert_ends(&with(home, &hub, args), 0, &[]));
            }
        });
        assert_ends(&with(home, &hub, &["cache", "verify"]), 0, &[]);
        let listed = json(&with(home, &hub, &["cache", "ls", "--json"]));
        let repo = &listed["repos"][0];
        let left = (&repo["incomplete"], repo["refs"].as_array().unwrap().len());
        assert_eq!(left, (&0.into(), 1));
    };
    for _ in 0..2 {
        let home = Home::new();
        at_once(&home, &["pull", &part]);
        let home = Home::new();
        at_once(&home, &["pull", REPO]);
        let blobs = home.path("cache/hub/models--org--name/blobs");
        for blob in fs::read_dir(blobs).unwrap() {
            let blob = blob.unwrap().path();
            let len = fs::metadata(&blob).unwrap().len() as usize;
            fs::write(blob, vec![b'z'; len]).unwrap();
        }
        at_once(&home, &["pull", REPO, "--check"]);
    }
}

/// A file of a snapshot that is no link to a blob has no hash in its name.
#[test]
fn a_file_in_the_place_of_a_link_is_checked() {
    let (home, hub) = (Home::new(), published(&["--formats", "mlpackage"]));
    let folder = path(&pull(&home, &hub, &[]));
    let commit = folder.parent().unwrap().file_name().unwrap();
    let snapshot = home
        .path("cache/hub/models--org--name/snapshots")
        .join(commit);
    let name = "L16.mlpackage/Data/com.apple.CoreML/weights/weight.bin";
    let right = fs::read(folder.join(name)).unwrap();
    for file in [snapshot.join(name), folder.join(name)] {
        replace(&file, &vec![b'z'; right.len()]);
    }
    assert_ends(
        &with(&home, &hub, &["pull", REPO, "--check"]),
        0,
        &["it is made again"],
    );
    assert_eq!(fs::read(folder.join(name)).unwrap(), right);
    assert_eq!(fs::read(snapshot.join(name)).unwrap(), right);
}

/// Flags about packages are not ignored where there are none.
#[test]
fn a_model_without_packages_is_not_a_part_and_not_signed() {
    let (home, hub) = (Home::new(), Publisher::new());
    hub.put("org/name", &[("a.gguf", b"GGUF")]);
    // 32 bytes.
    let key = format!("{}A=", "A".repeat(42));
    for name in [REPO, "hf:org/name/a.gguf", "smollm2-135m"] {
        let signed = with(&home, &hub, &["pull", name, "--require-signature", &key]);
        assert_ends(&signed, 5, &["is not signed as asked: "]);
        let part = with(&home, &hub, &["pull", name, "--buckets", "8"]);
        assert_ends(&part, 2, &["expected no --buckets and no --format"]);
    }
    let to = home.path("copy.gguf");
    let copied = ["pull", "hf:org/name/a.gguf", "--to", to.to_str().unwrap()];
    assert_ends(&with(&home, &hub, &copied), 0, &[]);
    assert_eq!(fs::read(to).unwrap(), b"GGUF");
    let bundles = published(&["--formats", "mlpackage", "--no-card"]);
    pull(&home, &bundles, &[]);
    let offline = ["pull", REPO, "--offline", "--require-signature", &key];
    assert_ends(
        &with(&home, &bundles, &offline),
        5,
        &["the network is switched off"],
    );
}

/// Changes the list of files.
fn with_list(change: impl Fn(&mut Value)) -> Publisher {
    let hub = published(&["--no-card", "--formats", "mlpackage"]);
    let mut files = hub.files("org/name", "main");
    let mut list: Value = serde_json::from_slice(&files["thane.json"]).unwrap();
    change(&mut list);
    files.insert("thane.json".to_owned(), list.to_string().into_bytes());
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), &b[..])).collect();
    hub.put("org/name", &files);
    hub
}

/// Lies of a list, the exit code of a pull, and what it says.
type Lie = (fn(&mut Value), i32, &'static str);

/// What no list may say.
fn impossible_lists() -> [Lie; 12] {
    [
        (|l| l["schema"] = 2.into(), 2, "expected schema 1, found 2"),
        (
            |l| l["schema"] = "1".into(),
            2,
            "expected schema 1, found a text",
        ),
        (
            |l| l["schema"] = Value::Null,
            2,
            "expected schema 1, found none",
        ),
        (
            |l| l["files"][0]["path"] = "THANE.JSON".into(),
            2,
            "`thane.json` is the same",
        ),
        (
            |l| l["files"][0]["path"] = "Thane.json.sig/x".into(),
            2,
            "is a file and a folder",
        ),
        (
            |l| {
                l["files"][0]["path"] = "e\u{301}".into();
                l["files"][1]["path"] = "\u{e9}".into();
            },
            2,
            "is there twice: where names ignore case and accents",
        ),
        (
            |l| l["files"][0]["path"] = "L16.mlpackage".into(),
            2,
            "`L16.mlpackage` is a file and a folder",
        ),
        (
            |l| l["files"][0]["path"] = "L16.MLPACKAGE/x".into(),
            2,
            "is there twice",
        ),
        (
            |l| l["files"][0]["path"] = "x".repeat(300).into(),
            2,
            "is too long for a path (300 bytes)",
        ),
        (
            |l| {
                l["files"] = Vec::<Value>::new().into();
                l["packages"] = Vec::<Value>::new().into();
            },
            2,
            "it lists no files",
        ),
        (
            |l| l["files"][0]["path"] = "../../x".into(),
            2,
            "`../../x` is not the path of a file",
        ),
        (|l| l["extra"] = 1.into(), 2, "unknown field `extra`"),
    ]
}

/// What the files are not.
fn false_lists() -> [Lie; 4] {
    [
        (
            |l| l["files"][0]["bytes"] = 1.into(),
            5,
            "expected 1 bytes, found ",
        ),
        (
            |l| l["files"][0]["sha256"] = "0".repeat(64).into(),
            5,
            "expected sha256 0000",
        ),
        (
            |l| l["files"][0]["path"] = "none.json".into(),
            5,
            "a list of the model's files has it",
        ),
        (
            |l| l["packages"][0]["forms"]["mlpackage"] = "/x.mlpackage".into(),
            2,
            "expected the name of a .mlpackage folder",
        ),
    ]
}

#[test]
fn lists_that_lie_are_refused() {
    for (change, code, said) in impossible_lists().into_iter().chain(false_lists()) {
        let (home, hub) = (Home::new(), with_list(change));
        let output = with(&home, &hub, &["pull", REPO]);
        assert_ends(&output, code, &[said]);
        assert!(
            !home.path("cache/bundles/models--org--name").exists(),
            "{said}"
        );
        let list = hub.files("org/name", "main")["thane.json"].len();
        assert!(
            code != 2 || hub.traffic()[1] <= list,
            "only the list came: {said}"
        );
    }
    for (schema, remedy) in [(2, "a newer thane"), (0, "the publisher, who wrote")] {
        let hub = with_list(|l| l["schema"] = schema.into());
        let output = with(&Home::new(), &hub, &["pull", REPO]);
        assert_ends(&output, 2, &["try: ", remedy]);
    }
}

/// What the Hub says of its length is enough.
#[test]
fn lists_that_are_too_long_are_not_downloaded() {
    let list = vec![b' '; (4 << 20) + 1];
    let key = format!("{}A=", "A".repeat(42));
    let (signed, plain) = (["--require-signature", &key[..]], [""; 0]);
    for (name, flags, said) in [
        (
            "thane.json",
            &plain[..],
            "expected at most 4194304 bytes, found 4194305",
        ),
        (
            "manifest.json",
            &plain,
            "expected at most 4194304 bytes, found 4194305",
        ),
        (
            "thane.json.sig",
            &signed,
            "expected 64 bytes in thane.json.sig, found more",
        ),
    ] {
        let hub = Publisher::new();
        let mut files = vec![("L16.mlpackage/Manifest.json", &b"{}"[..])];
        if name == "thane.json.sig" {
            files.extend([("thane.json", &b"{}"[..]), (name, &list[..65])]);
        } else {
            files.push((name, &list));
        }
        hub.put("org/name", &files);
        hub.traffic();
        let output = with(&Home::new(), &hub, &[&["pull", REPO][..], flags].concat());
        assert_ends(&output, 5, &[said]);
        assert!(hub.traffic()[1] <= 2, "{name}");
    }
}

/// Without a list of Thane's, the files of the repository are judged in the same way.
#[test]
fn folders_that_one_disk_cannot_hold_are_refused() {
    let manifest = contents(bundle())["manifest.json"].clone();
    for (other, said) in [
        ("L16.mlpackage/MANIFEST.json", "is there twice"),
        ("L16.mlpackage", "`L16.mlpackage` is a file and a folder"),
    ] {
        let hub = Publisher::new();
        let package: (&str, &[u8]) = ("L16.mlpackage/Manifest.json", b"{}");
        hub.put("org/name", &[package, (other, b"x")]);
        let output = with(&Home::new(), &hub, &["pull", REPO]);
        assert_ends(&output, 2, &["hf:org/name: ", said]);
    }
    let mut list: Value = serde_json::from_slice(&manifest).unwrap();
    let mut file = list["files"][0].clone();
    file["path"] = "Manifest.JSON".into();
    list["files"].as_array_mut().unwrap().push(file);
    let list = list.to_string();
    let files = contents(bundle());
    let files = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), &bytes[..]));
    let mut files: Vec<(&str, &[u8])> = files.filter(|(n, _)| *n != "manifest.json").collect();
    files.extend([("manifest.json", list.as_bytes()), ("Manifest.JSON", b"x")]);
    let hub = Publisher::new();
    hub.put("org/name", &files);
    let output = with(&Home::new(), &hub, &["pull", REPO]);
    assert_ends(&output, 2, &["hf:org/name: ", "is there twice"]);
}

/// Pulls from a Hub that lies about the bundle.
fn lied(lie: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static, said: &str) {
    let honest = published(&["--no-card"]);
    let files = honest.files("org/name", "main");
    let hub = Publisher::lying(lie);
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), &b[..])).collect();
    hub.put("org/name", &files);
    let home = Home::new();
    let output = with(&home, &hub, &["pull", REPO, "--attempts", "2"]);
    assert_ends(&output, 5, &[said]);
    assert!(
        !home
            .path("cache/bundles/models--org--name")
            .join("x")
            .exists()
    );
    let offline = with(&home, &hub, &["pull", REPO, "--offline"]);
    assert_ends(&offline, 5, &["is not in the cache"]);
}

fn is_tree(request: &Request) -> bool {
    request.path.contains("/tree/")
}

#[test]
fn hubs_that_lie_are_refused() {
    let change_tree = |change: fn(&mut Vec<Value>)| {
        move |request: &Request, mut reply: Reply| {
            if is_tree(request) && reply.status == 200 {
                let mut entries: Vec<Value> = serde_json::from_slice(&reply.body).unwrap();
                change(&mut entries);
                reply.body = Value::from(entries).to_string().into_bytes();
            }
            reply
        }
    };
    lied(
        change_tree(|entries| entries.retain(|e| e["path"] != "manifest.json")),
        "a list of the model's files has it, the commit does not",
    );
    lied(
        change_tree(|entries| entries.iter_mut().for_each(|e| e["size"] = 7.into())),
        " bytes, found 7",
    );
    lied(
        |request: &Request, mut reply: Reply| {
            // Half a list: the next page is not named.
            if is_tree(request) {
                reply.headers.retain(|(name, _)| *name != "Link");
            }
            reply
        },
        "a list of the model's files has it, the commit does not",
    );
    lied(
        |request: &Request, reply: Reply| match is_tree(request) {
            true => reply.with("Link", "<http://evil/x>; rel=\"next\""),
            false => reply,
        },
        "expected a next page below /api/models/",
    );
    lied(
        |request: &Request, mut reply: Reply| {
            let is_blob = request.path.contains("?sig=");
            if is_blob && request.method == "GET" && reply.body.len() > 10 {
                reply.body[5] ^= 1;
            }
            reply
        },
        "is damaged: expected sha256",
    );
    lied(
        |request: &Request, mut reply: Reply| {
            if request.path.contains("?sig=") && request.method == "GET" {
                (reply.endless, reply.body) = (true, vec![0; 1 << 20]);
            }
            reply
        },
        "bytes, found ",
    );
    lied(
        |request: &Request, mut reply: Reply| {
            if is_tree(request) {
                (reply.endless, reply.body) = (true, vec![b' '; 1 << 20]);
            }
            reply
        },
        "expected at most 33554432 bytes, found more",
    );
}

#[test]
fn a_small_file_with_other_bytes_is_refused() {
    lied(
        |request: &Request, mut reply: Reply| {
            let is_file = request.path.ends_with("/language.json");
            if is_file && request.method == "GET" {
                reply.body[5] ^= 1;
            }
            reply
        },
        "is damaged",
    );
    assert_eq!(git_hash(b"").len(), 40);
    assert_eq!(sha256(b"").len(), 64);
}

fn make_read_only(path: &Path) {
    for name in contents(path).into_keys() {
        let mut folder = path.join(name);
        while folder.pop() && folder.starts_with(path) {
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
        }
    }
}

/// The shared cache may belong to somebody else, who filled it.
#[test]
fn a_read_only_cache_is_read() {
    let (filler, hub) = (Home::new(), published(&["--formats", "mlpackage"]));
    pull(&filler, &hub, &[]);
    let shared = filler.path("cache/hub");
    make_read_only(&shared);
    let home = Home::new();
    hub.traffic();
    let mut command = home.thane(&["pull", REPO, "--json"]);
    command
        .env("HF_ENDPOINT", &hub.api.url)
        .env("HF_HUB_CACHE", &shared);
    let output = command.output().unwrap();
    assert_ends(&output, 0, &[]);
    assert_eq!(
        (&json(&output)["fetched_bytes"], hub.traffic()[1]),
        (&0.into(), 0)
    );
    let there = contents(&path(&json(&output)));
    for (name, bytes) in contents(bundle()) {
        assert_eq!(there[&name], bytes, "{name}");
    }
    // One that lacks files must be written to.
    let empty = home.path("empty");
    fs::create_dir(&empty).unwrap();
    fs::set_permissions(&empty, fs::Permissions::from_mode(0o555)).unwrap();
    let denied = |variables: &[(&str, &PathBuf)], flags: &[&str], place: &str| {
        let mut command = home.without_privilege(&[&["pull", REPO][..], flags].concat());
        command.env("HF_ENDPOINT", &hub.api.url);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let remedy = format!("try: {place} that you may write to");
        assert_ends(&output, 1, &["cannot ", empty.to_str().unwrap(), &remedy]);
    };
    let (filled, to) = (("HF_HUB_CACHE", &shared), empty.join("to"));
    let none = ("HF_HUB_CACHE", &empty);
    denied(&[none], &[], "set HF_HUB_CACHE to a folder");
    let own = ("THANE_CACHE", &empty);
    denied(&[filled, own], &[], "set THANE_CACHE to a folder");
    denied(&[filled], &["--to", to.to_str().unwrap()], "name a place");
}

#[test]
fn the_cache_is_listed_pruned_and_emptied() {
    let (home, hub) = (
        Home::new(),
        published(&["--formats", "mlpackage", "--no-card"]),
    );
    pull(&home, &hub, &[]);
    let old = fs::read_dir(home.path("cache/hub/models--org--name/snapshots"));
    let old = old
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .file_name()
        .into_string()
        .unwrap();
    assert_ends(
        &push(
            &home,
            &hub,
            &["--formats", "mlpackage", "--no-card", "--license", "MIT"],
        ),
        0,
        &[],
    );
    pull(&home, &hub, &[]);
    let blobs = home.path("cache/hub/models--org--name/blobs");
    fs::write(blobs.join("abc.incomplete"), [0; 1000]).unwrap();
    let listed = json(&with(&home, &hub, &["cache", "ls", "--json"]));
    let repo = &listed["repos"][0];
    assert_eq!(
        (
            &repo["name"],
            repo["commits"].as_array().unwrap().len(),
            &repo["incomplete"]
        ),
        (&REPO.into(), 2, &1.into())
    );
    assert_eq!(repo["refs"][0]["name"], "main");
    let dry = json(&with(
        &home,
        &hub,
        &["cache", "prune", "--dry-run", "--json"],
    ));
    let before = contents(&home.path("cache"));
    let pruned = json(&with(&home, &hub, &["cache", "prune", "--json"]));
    assert_eq!(
        (&dry["paths"], &dry["freed_bytes"]),
        (&pruned["paths"], &pruned["freed_bytes"])
    );
    let after = contents(&home.path("cache"));
    let gone: Vec<&String> = before
        .keys()
        .filter(|name| !after.contains_key(*name))
        .collect();
    assert!(!gone.is_empty());
    for name in &gone {
        let is_of_old = name.contains(&old) || name.contains("abc.incomplete");
        let is_old_list = name.contains("/blobs/");
        assert!(is_of_old || is_old_list, "{name}");
    }
    assert_ends(
        &with(&home, &hub, &["embed", REPO, "a", "--offline"]),
        0,
        &[],
    );
    assert_ends(&with(&home, &hub, &["cache", "verify"]), 0, &[]);
    let text = stdout(&with(&home, &hub, &["cache", "rm", REPO, "--dry-run"]));
    assert!(text.contains("would be freed"), "{text}");
    assert_ends(&with(&home, &hub, &["cache", "rm", REPO]), 0, &[]);
    assert_eq!(home.files("cache/bundles/models--org--name"), [""; 0]);
    assert_ends(
        &with(&home, &hub, &["cache", "rm", REPO]),
        2,
        &["is not in the cache"],
    );
    assert_ends(
        &with(&home, &hub, &["cache", "rm"]),
        2,
        &["expected repositories to remove"],
    );
}
