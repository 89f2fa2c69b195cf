//! Models that are not ML Programs.

use std::fs;

use thane_mil::package::Package;

/// What opening a `.mlmodel` file with these bytes says.
fn refusal(model: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mlmodel");
    fs::write(&path, model).unwrap();
    let error = Package::open(&path).unwrap_err().to_string();
    let (_, refusal) = error.split_once("is a .mlmodel file, which ").unwrap();
    refusal.to_owned()
}

#[test]
fn kinds_are_named_from_the_beginning_of_a_file() {
    // Version 1, an empty description, then the key of a field that is cut off.
    let file = |field: &[u8]| [&[0x08, 0x01, 0x12, 0x02, 0x0a, 0x00], field].concat();
    for (field, kind, remedy) in [
        (
            &[0xa2, 0x1f][..],
            "a neural network,",
            "convert_to=\"mlprogram\"",
        ),
        (
            &[0x9a, 0x19, 0x05],
            "a neural network classifier,",
            "convert_to",
        ),
        (
            &[0xd2, 0x0c],
            "a pipeline,",
            "for each m of the pipeline's models",
        ),
        (
            &[0x92, 0x19],
            "a tree ensemble classifier,",
            "run it with Core ML",
        ),
    ] {
        let refusal = refusal(&file(field));
        assert!(
            refusal.contains(&format!("holds {kind} expected an ML Program")),
            "{refusal}"
        );
        assert!(refusal.contains(remedy), "{refusal}");
    }
    assert!(refusal(&file(&[0xb2, 0x1f])).contains("save it as .mlpackage"));
    assert!(refusal(&file(&[])).starts_with("holds no ML Program"));
    assert!(refusal(b"\xff\xff").starts_with("holds no ML Program"));
}
