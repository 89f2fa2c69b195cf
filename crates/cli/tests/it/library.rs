//! The page of the library shows the examples as they are, and names folders that are there.

use std::fs::read_to_string;
use std::path::Path;

#[test]
fn the_page_of_the_library_has_the_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = read_to_string(root.join("docs/library.md")).unwrap();
    let examples = [
        "runtime/examples/generate.rs",
        "runtime/examples/embed.rs",
        "runtime/examples/plan.rs",
        "serve/examples/serve.rs",
        "audit/examples/audit_package.rs",
    ];
    for example in examples {
        let source = read_to_string(root.join("crates").join(example)).unwrap();
        // What stands before is how to run it.
        let code = &source[source.find("\nuse ").unwrap() + 1..];
        let block = format!("```rust,ignore\n{code}```\n");
        assert!(page.contains(&block), "docs/library.md: expected {example}");
    }
    assert_eq!(page.matches("```rust").count(), examples.len());
    let folders = page.split("path = \"../thane/").skip(1);
    for folder in folders.map(|rest| rest.split('"').next().unwrap()) {
        assert!(root.join(folder).join("Cargo.toml").is_file(), "{folder}");
    }
}
