//! The tokenizers of real GGUF files, from the folder in the variable THANE_MODELS.

use crate::{data, processor_time};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use thane_engine::text::{
    Cut, EncodeOptions, StreamOptions, TextStream, Tokenizer, TokenizerConfig, Vocab,
};
use thane_models::checkpoint::{Checkpoint, Gguf};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// The path of the file; prints a line and returns `None` if the test is skipped.
fn model(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("THANE_MODELS") else {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: THANE_MODELS, the folder with {name}, is not set"
        );
        return None;
    };
    let path = PathBuf::from(folder).join(name);
    if !path.is_file() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {} is not there",
            path.display()
        );
        return None;
    }
    Some(path)
}

fn vocab_of(gguf: &Gguf, n_vocab: usize) -> Vocab {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let text = |name: &str| gguf.opt_str(&key(name)).unwrap().map(str::to_owned);
    let list = |name: &str| {
        let strings = gguf.opt_strings(&key(name)).unwrap();
        strings.map(|strings| strings.into_iter().collect())
    };
    let id = |name: &str| gguf.opt_u32(&key(name)).unwrap();
    let flag = |name: &str| gguf.opt_bool(&key(name)).unwrap();
    Vocab {
        model: text("model").unwrap(),
        pre: text("pre"),
        tokens: list("tokens").unwrap(),
        scores: gguf.opt_f32s(&key("scores")).unwrap(),
        token_types: gguf.opt_i32s(&key("token_type")).unwrap(),
        merges: list("merges"),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        eom: id("eom_token_id"),
        ends: Vec::new(),
        inner: Vec::new(),
        unk: id("unknown_token_id"),
        pad: id("padding_token_id"),
        cls: id("cls_token_id"),
        sep: id("seperator_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
        remove_extra_whitespaces: flag("remove_extra_whitespaces"),
        lowercase: flag("normalizer.lowercase"),
        strip_accents: flag("normalizer.strip_accents"),
        rstrip: Vec::new(),
        chat_template: gguf
            .opt_str("tokenizer.chat_template")
            .unwrap()
            .map(str::to_owned),
        n_vocab,
    }
}

fn load(name: &str, n_vocab: usize) -> Option<Tokenizer> {
    let checkpoint = Checkpoint::open(&model(name)?).unwrap();
    let vocab = vocab_of(checkpoint.gguf().unwrap(), n_vocab);
    Some(Tokenizer::from_vocab(vocab).unwrap())
}

/// The ids of all 2,000 lines, with and without control tokens, equal the reference.
fn check_ids(tokenizer: &Tokenizer, name: &str) -> Vec<(String, Vec<u32>)> {
    let lines = data::mixed_lines();
    let ids = data::id_lists(&format!("{name}.ids"));
    let plain: BTreeMap<usize, Vec<u32>> = data::json(&format!("{name}.plain.json"));
    assert_eq!(ids.len(), lines.len());
    assert!(
        plain.len() > 50,
        "lines with control tokens: {}",
        plain.len()
    );
    for (index, (line, ids)) in lines.iter().zip(&ids).enumerate() {
        let options = EncodeOptions {
            add_special: false,
            parse_special: true,
        };
        assert_eq!(
            &tokenizer.encode(line, options).unwrap(),
            ids,
            "line {index}: {line:?}"
        );
        let options = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let plain = plain.get(&index).unwrap_or(ids);
        assert_eq!(
            &tokenizer.encode(line, options).unwrap(),
            plain,
            "line {index}, plain: {line:?}"
        );
    }
    lines.into_iter().zip(ids).collect()
}

/// Streaming token by token gives the same text as decoding all tokens at once.
fn check_stream(tokenizer: &Tokenizer, ids: &[u32], text: &str) {
    let options = StreamOptions {
        skip_special: false,
        ..StreamOptions::default()
    };
    let mut stream = TextStream::new(tokenizer, options);
    let mut shown: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
    shown.push_str(&stream.finish());
    assert_eq!(shown, text);
}

/// The time of a text grows with its length.
fn check_long(tokenizer: &Tokenizer) {
    let lines = data::mixed_lines().concat();
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    let time = |n_chars: usize| {
        let text: String = lines.chars().cycle().take(n_chars).collect();
        let (ids, time) = processor_time::of(|| tokenizer.encode(&text, options));
        assert!(ids.unwrap().len() > n_chars / 10);
        time
    };
    // Texts of more than 1 MiB have a thread of their own.
    let least = (0..3).map(|_| time(1 << 14)).min().unwrap();
    let most = time(1 << 18);
    // 16 times the text: 256 times the time if each part looked at all.
    assert!(
        most < least * 64,
        "{least:?} for 16 Ki characters, {most:?} for 256 Ki"
    );
}

#[test]
fn smollm2() {
    let Some(tokenizer) = load(SMOLLM2, 49_152) else {
        return;
    };
    // The published vocabulary lacks these characters, and the reference drops them.
    let lost = |c: char| {
        matches!(
            c,
            '\u{4}' | '\u{6}' | '\u{13}' | '\u{14}' | '\u{16}' | '\u{1d}'
        )
    };
    for (line, ids) in check_ids(&tokenizer, "smollm2") {
        let text = tokenizer.decode(&ids, false);
        assert_eq!(text, line.replace(lost, ""));
        assert!(
            tokenizer
                .unencodable(&line)
                .eq(line.chars().filter(|&c| lost(c))),
            "{line:?}"
        );
        check_stream(&tokenizer, &ids, &text);
    }
    check_long(&tokenizer);
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.end_ids()),
        (Some(1), Some(2), &[2][..])
    );
    assert!(!tokenizer.adds_bos());
    assert_eq!(tokenizer.id_of("<|im_end|>"), Some(2));
}

#[test]
fn gemma3() {
    let Some(tokenizer) = load(GEMMA3, 262_144) else {
        return;
    };
    for (line, ids) in check_ids(&tokenizer, "gemma3") {
        let text = tokenizer.decode(&ids, false);
        // SentencePiece uses the same character for both.
        assert_eq!(text, line.replace('\u{2581}', " "));
        assert_eq!(tokenizer.unencodable(&line).next(), None);
        check_stream(&tokenizer, &ids, &text);
    }
    check_long(&tokenizer);
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.end_ids()),
        (Some(2), Some(1), &[1][..])
    );
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    assert_eq!(
        tokenizer.encode("<start_of_turn>", options).unwrap(),
        [2, 105]
    );
    assert_eq!(tokenizer.id_of("<end_of_turn>"), Some(106));
}

/// The vocabulary of BERT in a GGUF file gives the tokens of the `tokenizer.json` that it was made
/// from, on all 2,000 lines, and of pairs of lines.
#[test]
fn wordpieces_of_a_gguf_file_are_those_of_tokenizer_json() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models");
    for name in ["bert-cls", "nomic-bert"] {
        let json = models.join("tiny-embed").join(name).join("tokenizer.json");
        let file = models.join("tiny-embed-gguf").join(format!("{name}.gguf"));
        let checkpoint = Checkpoint::open(&file).unwrap();
        let n_vocab = checkpoint.tensors["token_embd.weight"].shape[0];
        let found = Tokenizer::from_vocab(vocab_of(checkpoint.gguf().unwrap(), n_vocab)).unwrap();
        let config = TokenizerConfig {
            n_vocab,
            ..TokenizerConfig::default()
        };
        let expected = Tokenizer::from_json(&std::fs::read(json).unwrap(), config).unwrap();
        let lines = data::mixed_lines();
        for (i, line) in lines.iter().enumerate() {
            for add_special in [false, true] {
                let options = EncodeOptions {
                    add_special,
                    parse_special: true,
                };
                let ids = [&found, &expected].map(|t| t.encode(line, options).unwrap());
                assert_eq!(ids[0], ids[1], "{name}, line {i}: {line:?}");
            }
            let other = &lines[(i * 7 + 1) % lines.len()];
            for cut in [Cut::End, Cut::Start] {
                let options = EncodeOptions {
                    add_special: false,
                    parse_special: true,
                };
                let pair = |t: &Tokenizer| {
                    let [one, two] = [line, other].map(|text| t.encode(text, options).unwrap());
                    t.join([&one, &two], (24, cut)).unwrap()
                };
                let pairs = [&found, &expected].map(pair);
                assert_eq!(pairs[0], pairs[1], "{name}, line {i}");
                assert!(pairs[0].tokens.len() <= 24);
            }
        }
    }
}
