//! The list of families says what is checked, and everything that is checked is in the list.

use std::collections::BTreeSet;
use std::path::Path;

use thane_models::families;

#[test]
fn every_tiny_checkpoint_belongs_to_the_family_that_names_it() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models");
    let mut found = BTreeSet::new();
    for kind in [
        "tiny",
        "tiny-gguf",
        "tiny-embed",
        "tiny-embed-gguf",
        "tiny-rerank",
    ] {
        for entry in std::fs::read_dir(models.join(kind)).unwrap() {
            let path = entry.unwrap().path();
            let is_model = path.is_dir() || path.extension().is_some_and(|e| e == "gguf");
            if is_model {
                let name = path.file_stem().unwrap().to_str().unwrap();
                found.insert(format!("{kind}/{name}"));
            }
        }
    }
    let mut named = BTreeSet::new();
    for family in families::supported() {
        assert!(!family.about.is_empty(), "{:?}", family.names);
        assert!(!family.checked.is_empty(), "{:?}", family.names);
        for name in family.checked {
            assert!(named.insert((*name).to_owned()), "{name} is named twice");
        }
    }
    assert_eq!(named, found);
}
