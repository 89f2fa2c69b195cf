//! Formats of embeddings compared with bytes from numpy (`tests/oracle/make_embed.py`).

use std::path::Path;

use serde_json::Value;
use thane_engine::embed::output::Format;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}

#[test]
fn formats_are_numpys_to_the_byte() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/embed/formats.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert!(cases.len() > 8);
    for (i, case) in cases.iter().enumerate() {
        let vector: Vec<f32> = case["vector"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_f64().unwrap() as f32)
            .collect();
        for format in Format::ALL.into_iter().filter(|f| *f != Format::Float32) {
            let name = format.packing().map_or(format.kind().to_owned(), |p| {
                format!("{p} {}", format.kind())
            });
            let mut out = Vec::new();
            format.write(&vector, &mut out);
            assert_eq!(out, hex(case[&name].as_str().unwrap()), "case {i}, {name}");
        }
    }
}
