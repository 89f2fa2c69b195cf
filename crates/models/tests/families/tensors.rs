//! Hugging Face folders: the tiny checkpoints with changed tensors.

use std::fs;

use serde_json::{Map, Value, json};
use thane_mil::program::difference;
use thane_mil::text::{Blobs, print};
use thane_models::{Model, Options};

use super::hugging_face::{changed, tiny, with_config};
use super::{GEMMA, IMAGE, LLAMA, assert_refused, faults, lower};
use crate::checkpoint::builder::Folder;

/// The tiny checkpoint with the header of its safetensors file edited; `more` zeros are appended to
/// its data.
fn with_header(name: &str, more: usize, edit: impl Fn(&mut Map<String, Value>, usize)) -> Folder {
    let file = fs::read(tiny(name).join("model.safetensors")).unwrap();
    let (len, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let mut header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    edit(&mut header, data.len());
    let header = Value::Object(header).to_string();
    let weights = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
        &vec![0; more],
    ]
    .concat();
    with_config(name, &json!({})).with("model.safetensors", weights)
}

fn rename(header: &mut Map<String, Value>, from: &str, to: &str) {
    let entry = header.remove(from).unwrap();
    header.insert(to.to_owned(), entry);
}

#[test]
fn missing_extra_and_misshapen_tensors_are_listed_together() {
    let folder = with_header(LLAMA, 8, |header, end| {
        rename(
            header,
            "model.layers.1.mlp.up_proj.bias",
            "model.layers.1.mlp.stray",
        );
        rename(header, "model.norm.weight", "norm.weight");
        header["model.layers.0.input_layernorm.weight"]["shape"] = json!([2, 27]);
        let offsets = [end, end + 8];
        header.insert(
            "position_ids".to_owned(),
            json!({"dtype": "I64", "shape": [1], "data_offsets": offsets}),
        );
    });
    let expected = [
        "`model.layers.0.input_layernorm.weight`: expected the shape [54], found [2, 27]",
        "`model.layers.1.mlp.up_proj.bias` [61] is missing",
        "`model.norm.weight` [54] is missing",
        "`model.layers.1.mlp.stray` [61] does not belong to this architecture",
        "`norm.weight` [54] does not belong to this architecture",
        "`position_ids` [1] does not belong to this architecture",
    ];
    assert_eq!(faults(lower(&folder, "", &Options::default())), expected);
    let message = lower(&folder, "", &Options::default())
        .unwrap_err()
        .to_string();
    assert_eq!(
        message,
        format!(
            "the tensors do not fit the configuration:\n  {}",
            expected.join("\n  ")
        )
    );
}

/// The norms of the heads of StableLM are a list of modules.
#[test]
fn each_norm_of_a_list_is_named() {
    let name = "stablelm-parallel";
    let norm = |i: usize| format!("model.layers.1.self_attn.q_layernorm.norms.{i}.weight");
    let folder = with_header(name, 0, |header, _| rename(header, &norm(2), &norm(6)));
    let expected = [
        format!("`{}` [8] is missing", norm(2)),
        format!("`{}` [8] does not belong to this architecture", norm(6)),
    ];
    assert_eq!(faults(lower(&folder, "", &Options::default())), expected);
    let without = faults(changed(name, &json!({"qk_layernorm": false})));
    assert_eq!(without.len(), 16, "{without:?}");
    // The file bounds how many norms can be missing.
    let heads = json!({"num_attention_heads": 1 << 20, "num_key_value_heads": 2, "head_dim": 8});
    let many = faults(changed(name, &heads));
    assert!(many.len() < 4 * 50, "{}", many.len());
}

#[test]
fn switches_that_the_tensors_contradict_are_refused() {
    let found = faults(changed(LLAMA, &json!({"attention_bias": false})));
    assert_eq!(found.len(), 8, "{found:?}");
    assert!(
        found
            .iter()
            .all(|f| f.contains("_proj.bias` ") && f.contains("does not belong")),
        "{found:?}"
    );
    let found = faults(changed(LLAMA, &json!({"tie_word_embeddings": false})));
    assert_eq!(found, ["`lm_head.weight` [149, 54] is missing"]);
    let found = faults(changed(GEMMA, &json!({"attention_bias": true})));
    assert_eq!(found.len(), 16, "{found:?}");
}

/// If the head in the file differs from the embedding, the head is used and a note says so. If both
/// have equal numbers, the head is tied.
#[test]
fn a_head_beside_tied_embeddings_is_compared_with_them() {
    let is_untied = |model: &Model| {
        let mut blobs = Blobs::default();
        print(&model.program, &mut blobs).contains("lm_head_weight")
    };
    let same = |seed: u8| {
        let (folder, head) = (with_header(LLAMA, 149 * 54 * 4, add_head), 149 * 54 * 4);
        let mut file = fs::read(folder.path("model.safetensors")).unwrap();
        let header = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize + 8;
        let text: Value = serde_json::from_slice(&file[8..header]).unwrap();
        let [from, to] = [0, 1].map(|i| {
            text["model.embed_tokens.weight"]["data_offsets"][i]
                .as_u64()
                .unwrap() as usize
        });
        let table = file[header + from..header + to].to_vec();
        let at = file.len() - head;
        file[at..].copy_from_slice(&table);
        *file.last_mut().unwrap() ^= seed;
        lower(
            &folder.with("model.safetensors", file),
            "",
            &Options::default(),
        )
        .unwrap()
    };
    let (tied, untied) = (same(0), same(1));
    assert!(
        tied.notes.is_empty() && !is_untied(&tied),
        "{:?}",
        tied.notes
    );
    assert!(is_untied(&untied));
    let [note] = untied.notes.as_slice() else {
        panic!("{:?}", untied.notes)
    };
    assert!(note.contains(
        "`lm_head.weight` differs from `model.embed_tokens.weight`: the head in the file is used"
    ));
    assert_eq!(
        difference(&tied.program, &changed(LLAMA, &json!({})).unwrap().program),
        None
    );
}

/// Adds a head of zeros after the other tensors.
fn add_head(header: &mut Map<String, Value>, end: usize) {
    let offsets = [end, end + 149 * 54 * 4];
    header.insert(
        "lm_head.weight".to_owned(),
        json!({"dtype": "F32", "shape": [149, 54], "data_offsets": offsets}),
    );
}

/// Multimodal Gemma 3, in both spellings of its tensor names: the text model is the same, and
/// tensors for images are ignored.
#[test]
fn the_text_part_of_a_model_that_sees_images_is_taken() {
    let original = lower(&with_config(IMAGE, &json!({})), "", &Options::default()).unwrap();
    let newer = with_header(IMAGE, 0, |header, _| {
        for name in header.keys().cloned().collect::<Vec<_>>() {
            if name != "__metadata__" {
                let rest = name.strip_prefix("language_model.model.");
                rename(
                    header,
                    &name,
                    &rest.map_or(format!("model.{name}"), |r| {
                        format!("model.language_model.{r}")
                    }),
                );
            }
        }
    });
    let newer = lower(&newer, "", &Options::default()).unwrap();
    assert_eq!(newer.info, original.info);
    let text = |model: &Model| print(&model.program, &mut Blobs::default());
    // Constants are named after the tensors in the file.
    assert_eq!(
        text(&newer).replace("model_language_model_", "language_model_model_"),
        text(&original)
    );
    let stray = with_header(IMAGE, 0, |header, _| {
        rename(header, "vision_tower.head.probe", "audio_tower.probe");
        rename(
            header,
            "language_model.model.norm.weight",
            "language_model.model.final.weight",
        );
    });
    assert_eq!(
        faults(lower(&stray, "", &Options::default())),
        [
            "`language_model.model.norm.weight` [40] is missing",
            "`audio_tower.probe` [1, 1, 6] does not belong to this architecture",
            "`language_model.model.final.weight` [40] does not belong to this architecture",
        ]
    );
    let config = json!({"audio_config": {}});
    assert_refused(
        "another sense",
        lower(&with_config(IMAGE, &config), "", &Options::default()),
        &["audio_config"],
    );
}

#[test]
fn a_weight_that_holds_no_numbers_of_ours_is_refused() {
    // The bytes of 54 F32 as 27 F64 or as 54 I32.
    for (dtype, len) in [("F64", 27), ("I32", 54)] {
        let folder = with_header(LLAMA, 0, |header, _| {
            header["model.norm.weight"]["dtype"] = json!(dtype);
            header["model.norm.weight"]["shape"] = json!([len]);
        });
        let parts = [
            "`model.norm.weight`: ",
            if len == 54 {
                "F32, F16, BF16 or a block-quantized type, found I32"
            } else {
                "expected the shape [54], found [27]"
            },
        ];
        assert_refused(dtype, lower(&folder, "", &Options::default()), &parts);
    }
}

#[test]
fn tensors_that_follow_from_others_are_left_alone() {
    let folder = with_header(LLAMA, 5 * 4, |header, end| {
        header.insert(
            "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(),
            json!({"dtype": "F32", "shape": [5], "data_offsets": [end, end + 20]}),
        );
    });
    let options = Options::default();
    let (found, expected) = (
        lower(&folder, "", &options).unwrap(),
        changed(LLAMA, &json!({})).unwrap(),
    );
    assert_eq!(difference(&found.program, &expected.program), None);
}
