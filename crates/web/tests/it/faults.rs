//! What cannot be audited is refused with its name, what was expected and what was found.

use std::fs;
use std::path::Path;

use serde_json::json;
use thane_audit::report::files::FOREIGN;

use crate::answers::tests;
use crate::folder::Dropped;

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    }
}

/// The error of a folder `m` with copies of files and packages of `tests`.
fn refusal(files: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("m");
    fs::create_dir(&folder).unwrap();
    for (from, to) in files {
        copy(&tests().join(from), &folder.join(to));
    }
    Dropped::new(&folder).audit(json!({})).unwrap_err()
}

#[test]
fn what_is_no_model_or_several_is_refused() {
    let (half, mil) = ("packages/ios16_half.mlpackage", "audit/ANE001.mil");
    for (files, said) in [
        (&[][..], "m: expected a .mlpackage"),
        (&[("oracle/case.py", "a.py")], "a .mil file; found a.py"),
        (
            &[(mil, "a.mil"), (mil, "b.mil")],
            "m: expected one model, found a.mil, b.mil: choose one of them",
        ),
        (
            &[(half, "a/x.mlpackage"), (half, "b/x.mlpackage")],
            "m: expected one model, found a/x.mlpackage, b/x.mlpackage",
        ),
        (
            &[(half, "x.mlpackage"), (mil, "meta.yaml")],
            "m: meta.yaml says that its packages are a bundle of another project",
        ),
        (
            &[(half, "x.mlpackage"), (mil, "manifest.json")],
            "m/manifest.json is not the JSON that is expected",
        ),
        (
            &[(half, ""), (mil, "Data/ai.thane/contract.json")],
            "m/Data/ai.thane/contract.json is not the JSON that is expected",
        ),
    ] {
        let error = refusal(files);
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_folder_of_packages_is_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("m");
    let half = tests().join("packages/ios16_half.mlpackage");
    for name in ["b.mlpackage", "a.mlpackage", "__MACOSX/c.mlpackage"] {
        copy(&half, &folder.join(name));
    }
    let answer = Dropped::new(&folder).audit(json!({})).unwrap();
    let report: serde_json::Value = serde_json::from_str(&answer.json).unwrap();
    assert_eq!(report["subject"]["kind"], "folder");
    let functions = report["targets"][0]["functions"].as_array().unwrap();
    let names: Vec<&str> = functions
        .iter()
        .map(|f| f["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a.mlpackage/main", "b.mlpackage/main"]);
}

/// Bundles of other projects are known by the files that the runtime knows them by.
#[test]
fn bundles_of_other_projects_have_a_file_that_is_known() {
    let mut n = 0;
    for entry in fs::read_dir(tests().join("bundles")).unwrap() {
        let path = entry.unwrap().path();
        n += 1;
        assert!(
            FOREIGN.iter().any(|file| path.join(file).is_file()),
            "{path:?}"
        );
    }
    assert!(n > 4, "{n} bundles");
}

#[test]
fn a_wrong_question_is_an_error() {
    let dropped = Dropped::new(&tests().join("audit/ANE001.mil"));
    for (question, said) in [
        (json!({"targets": ["m4mx"]}), "did you mean m4-max or m4?"),
        (
            json!({"units": "gpu"}),
            "expected units that are one of cpuAnd",
        ),
        (
            json!({"lengths": [5]}),
            "--length is for functions of any length",
        ),
        (json!({"other": 1}), "expected a question as JSON"),
    ] {
        let error = dropped.audit(question).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}
