//! Outputs under temporary names.

use std::cell::RefCell;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::process::Command;
#[cfg(unix)]
use std::sync::mpsc::channel;

use thane_mil::package::{Partial, Rename, create_folders, swap};

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path())
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// The names in a folder, and the content of the file `x` in each.
fn state(folder: &Path) -> Vec<(String, String)> {
    let mut found: Vec<_> = entries(folder)
        .map(|p| {
            (
                name_of(&p),
                fs::read_to_string(p.join("x")).unwrap_or_default(),
            )
        })
        .collect();
    found.sort();
    found
}

fn folder_with(path: &Path, text: &str) {
    fs::create_dir(path).unwrap();
    fs::write(path.join("x"), text).unwrap();
}

/// A system without an exchange, whose renames fail where the list says so.
struct Failing(RefCell<Vec<bool>>);

impl Rename for Failing {
    fn exchange(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.0.borrow_mut().remove(0) {
            Err(ErrorKind::StorageFull.into())
        } else {
            fs::rename(from, to)
        }
    }
}

#[test]
fn a_rename_during_removal_leaves_nothing_incomplete() {
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (root.path().join("a"), root.path().join("b"));
    for round in 0..40 {
        for place in [&old, &new] {
            let partial = Partial::folder(place).unwrap();
            for n in 0..100 {
                fs::write(partial.path().join(n.to_string()), b"x").unwrap();
            }
            std::thread::scope(|scope| {
                scope.spawn(|| Partial::remove_own(place));
                // Vary which thread comes first.
                (0..round * 5000).for_each(|_| std::hint::spin_loop());
                // A removed partial cannot be renamed.
                let _ = if place == &old {
                    partial.replace()
                } else {
                    partial.put()
                };
            });
            if let Ok(found) = fs::read_dir(place) {
                assert_eq!(found.count(), 100, "round {round}, {}", place.display());
            }
        }
        let _ = fs::remove_dir_all(&new);
    }
    assert!(
        entries(root.path()).all(|path| path == old),
        "{:?}",
        entries(root.path()).collect::<Vec<_>>()
    );
}

#[test]
fn a_failed_replacement_keeps_the_old_version() {
    let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    for (fails, expected) in [
        (vec![true], vec![pair("new", "new"), pair("out", "old")]),
        (
            vec![false, true, false],
            vec![pair("new", "new"), pair("out", "old")],
        ),
        (
            vec![false, false, false],
            vec![pair("new", "old"), pair("out", "new")],
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        let [new, out] = ["new", "out"].map(|name| root.path().join(name));
        folder_with(&new, "new");
        folder_with(&out, "old");
        let fault = swap(&new, &out, &Failing(RefCell::new(fails.clone())));
        assert_eq!(fault.is_err(), fails.contains(&true), "{fails:?}");
        assert_eq!(state(root.path()), expected, "{fails:?}");
    }
    // Undoing fails as well: the old version still exists, and the error names its path.
    let root = tempfile::tempdir().unwrap();
    let [new, out] = ["new", "out"].map(|name| root.path().join(name));
    folder_with(&new, "new");
    folder_with(&out, "old");
    let fault = swap(&new, &out, &Failing(RefCell::new(vec![false, true, true])))
        .unwrap_err()
        .to_string();
    let aside = format!(".out.old-{}", std::process::id());
    assert!(
        fault.contains(&format!(
            "the old version is now at {}",
            root.path().join(&aside).display()
        )),
        "{fault}"
    );
    assert_eq!(
        state(root.path()),
        [(aside, "old".to_owned()), pair("new", "new")]
    );
}

#[test]
fn replacing_a_folder_leaves_no_partials() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    folder_with(&out, "old");
    let partial = Partial::folder(&out).unwrap();
    fs::write(partial.path().join("x"), "new").unwrap();
    assert!(
        Partial::folder(&out).unwrap().put().is_err(),
        "something is there"
    );
    partial.replace().unwrap();
    assert_eq!(state(root.path()), [("out".to_owned(), "new".to_owned())]);
    // A partial that was removed before its rename.
    let partial = Partial::folder(&out).unwrap();
    fs::remove_dir(partial.path()).unwrap();
    partial.replace().unwrap_err();
    assert_eq!(state(root.path()), [("out".to_owned(), "new".to_owned())]);
}

/// Where a process of its own is to leave a partial.
#[cfg(unix)]
const LEAVES: &str = "THANE_TEST_LEAVES_PARTIAL";

/// The partial of a process that has ended without removing it.
#[cfg(unix)]
fn left_by_a_dead_process(place: &Path) -> PathBuf {
    let test = "partial::only_partials_of_dead_writers_are_removed";
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(LEAVES, place)
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let mark = format!(".{}.thane-partial-", name_of(place));
    entries(place.parent().unwrap())
        .find(|path| name_of(path).starts_with(&mark))
        .unwrap()
}

#[cfg(unix)]
#[test]
fn only_partials_of_dead_writers_are_removed() {
    if let Some(place) = std::env::var_os(LEAVES) {
        std::mem::forget(Partial::folder(Path::new(&place)).unwrap());
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let left = [
        ".gone.mlpackage.thane-partial-1-0",
        ".out.thane-partial-99-7",
    ]
    .map(|n| root.path().join(n));
    folder_with(&left[0], "half");
    fs::write(&left[1], "half a file").unwrap();
    let others = [".out.partial-1", "out.thane-partial-1-0"].map(|n| root.path().join(n));
    others
        .iter()
        .for_each(|path| folder_with(path, "of others"));
    let live = Partial::folder(&root.path().join("live")).unwrap();
    let file = Partial::file(&root.path().join("out")).unwrap();
    assert!(left.iter().all(|path| !path.exists()), "{left:?}");
    assert!(
        others.iter().all(|path| path.exists()) && live.path().exists() && file.path().is_file()
    );
    // A dying process releases its locks and does not clean up.
    let dead = left_by_a_dead_process(&root.path().join("dead"));
    assert!(dead.is_dir() && live.path().exists() && file.path().exists());
    let _ = Partial::file(&root.path().join("third")).unwrap();
    assert!(!dead.exists() && live.path().exists() && file.path().exists());
}

/// Runs in a process of its own, because that process can write nothing afterwards.
#[cfg(unix)]
#[test]
fn a_process_that_ends_begins_no_partial() {
    const PLACE: &str = "THANE_TEST_ENDS";
    if let Some(place) = std::env::var_os(PLACE) {
        let place = Path::new(&place);
        // The writer begins one partial after another until it may no more.
        let (begun, has_begun) = channel();
        let writer = std::thread::spawn({
            let place = place.to_owned();
            move || {
                loop {
                    match Partial::folder(&place) {
                        Ok(partial) => std::mem::forget(partial),
                        Err(e) => return e.kind(),
                    }
                    begun.send(()).unwrap();
                }
            }
        });
        (0..3).for_each(|_| has_begun.recv().unwrap());
        Partial::begin_no_more();
        Partial::remove_own(place);
        assert_eq!(writer.join().unwrap(), ErrorKind::Interrupted);
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let test = "partial::a_process_that_ends_begins_no_partial";
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(PLACE, root.path().join("out"))
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(
        entries(root.path()).collect::<Vec<_>>(),
        Vec::<PathBuf>::new()
    );
}

#[test]
fn a_process_removes_only_its_own_partials() {
    let root = tempfile::tempdir().unwrap();
    let partial = Partial::folder(&root.path().join("out")).unwrap();
    let other = root.path().join(".out.thane-partial-1-0");
    folder_with(&other, "of another process");
    folder_with(&partial.path().join("weights"), "half");
    Partial::remove_own(&root.path().join("out"));
    assert!(!partial.path().exists() && other.exists());
    create_folders(&partial.path().join("Data/a")).unwrap_err();
    assert!(!partial.path().exists(), "it does not come back");
}
