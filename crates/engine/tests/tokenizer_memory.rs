//! What is reserved for a tokenizer is at least what making and keeping it takes. A program of its
//! own, for it has an allocator that counts.
#![allow(clippy::unwrap_used, unsafe_code)]

#[path = "../../../tests/support/heap_peak.rs"]
mod heap_peak;

use heap_peak::counted;
use serde_json::{Map, Value, json};
use thane_engine::text::{
    EncodeOptions, TextError, Tokenizer, TokenizerConfig, TokenizerFiles, Vocab,
};
use thane_mil::budget::Budget;

type Make<'a> = &'a dyn Fn(&Budget) -> Result<Tokenizer, TextError>;

/// Checks that a tokenizer is refused where it has a byte less than it takes at most, whether it
/// can be made or not, that what it holds then is what it takes, and that no more than `times` as
/// much counts.
fn check(name: &str, times: f64, make: Make) {
    let made = |budget: &Budget| {
        let tokenizer = make(budget)?;
        // A copy of some parts is made then.
        let options = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let _ = tokenizer.encode("a", options);
        Ok::<_, TextError>(tokenizer)
    };
    let (tokenizer, peak, left) = counted(|| made(&Budget::unlimited()));
    let error = make(&Budget::new(peak - 1)).err();
    let is_refused = matches!(error, Some(TextError::Memory(_)));
    assert!(is_refused, "{name}: {peak} bytes, {error:?}");
    let Ok(tokenizer) = tokenizer else { return };
    let held = tokenizer.held_bytes();
    assert!(held >= left, "{name}: counted {held}, found {left}");
    let most = |found: usize| (found as f64 * times) as usize;
    assert!(held <= most(left), "{name}: counted {held}, found {left}");
    let within = make(&Budget::new(most(peak)));
    assert!(within.is_ok(), "{name}: {peak} bytes, {:?}", within.err());
}

/// The tokenizer of a `tokenizer.json` with these parts, beside which lies `config`.
fn of_json(
    file: &str,
    config: &str,
    n_vocab: usize,
    budget: &Budget,
) -> Result<Tokenizer, TextError> {
    let json = file.as_bytes().to_vec();
    let files = TokenizerFiles {
        tokenizer: &json,
        config: Some(config.as_bytes()),
        ..TokenizerFiles::default()
    };
    let config = TokenizerConfig::from_files(&files, n_vocab)?;
    Tokenizer::from_json_within(&json, config, budget)
}

/// A number that looks random.
fn mixed(n: usize) -> usize {
    (n as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29) as usize
}

fn words(n: usize) -> impl Iterator<Item = String> + Clone {
    (0..n).map(|idx| format!("{idx:05x}"))
}

fn vocab(words: impl IntoIterator<Item = String>) -> Value {
    let ids = words.into_iter().zip(0..);
    Value::Object(
        ids.map(|(word, id)| (word, json!(id)))
            .collect::<Map<_, _>>(),
    )
}

fn scored(words: impl IntoIterator<Item = String>) -> Value {
    let rows = words.into_iter().map(|word| json!([word, -1.5]));
    std::iter::once(json!(["<unk>", 0.0])).chain(rows).collect()
}

fn bpe(words: impl IntoIterator<Item = String>, merges: Value) -> Value {
    json!({"model": {"type": "BPE", "vocab": vocab(words), "merges": merges},
        "decoder": {"type": "Fuse"}})
}

fn unigram(words: impl IntoIterator<Item = String>) -> Value {
    json!({"model": {"type": "Unigram", "vocab": scored(words), "unk_id": 0},
        "decoder": {"type": "Fuse"}})
}

/// All texts of up to three of some letters, and the merges of those that have more than one.
fn merged(letters: &str) -> (Vec<String>, Vec<[String; 2]>) {
    let (mut words, mut merges) = (Vec::new(), Vec::new());
    let all: Vec<String> = letters.chars().map(String::from).collect();
    let mut last = all.clone();
    for _ in 0..2 {
        words.extend(last.clone());
        let longer = last
            .iter()
            .flat_map(|a| all.iter().map(move |b| [a.clone(), b.clone()]));
        let longer: Vec<_> = longer.collect();
        last = longer.iter().map(|pair| pair.concat()).collect();
        merges.extend(longer);
    }
    words.extend(last);
    (words, merges)
}

/// Texts that look random, some of which are shorter.
fn random(n: usize, len: usize) -> impl Iterator<Item = String> {
    let letter = |at: usize| char::from(b'!' + (mixed(at) % 90) as u8);
    let is_plain = |c: &char| *c != '"' && *c != '\\';
    (0..n).map(move |idx| {
        (0..len)
            .map(|at| letter(idx * 2000 + at))
            .filter(is_plain)
            .collect()
    })
}

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCD";

/// Files of all models, by what is special about them, and their `tokenizer_config.json`.
#[expect(clippy::too_many_lines, reason = "a list of cases")]
fn cases() -> Vec<(&'static str, Value, &'static str)> {
    let added = |n: usize, len: usize| {
        let texts = random(n, len).enumerate();
        let token = |(id, text)| {
            json!({"id": id, "content": text, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
        };
        texts.map(token).collect::<Value>()
    };
    let with = |mut file: Value, key: &str, value: Value| {
        file[key] = value;
        file
    };
    let wordpiece = |n| {
        json!({"model": {"type": "WordPiece", "vocab": vocab(words(n)),
        "unk_token": "00000", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true}})
    };
    let (all, merges) = merged(LETTERS);
    let legacy: Vec<String> = merges.iter().map(|pair| pair.join(" ")).collect();
    let unknown = |mut file: Value| {
        file["model"]["unk_token"] = json!("a");
        file
    };
    let empty = |n| Value::Array(vec![json!([]); n]);
    let nested = (1..900).map(|n| "h".repeat(n));
    let untyped = |mut file: Value| {
        file["model"].as_object_mut().unwrap().remove("type");
        file
    };
    vec![
        ("bpe without merges", bpe(words(40_000), json!([])), "{}"),
        (
            "bpe, table nearly empty",
            bpe(words(28_673), json!([])),
            "{}",
        ),
        ("bpe, table full", bpe(words(28_672), json!([])), "{}"),
        ("bpe of pairs", bpe(all.clone(), json!(merges)), "{}"),
        ("bpe of texts", bpe(all.clone(), json!(legacy)), "{}"),
        (
            "bpe of a class",
            unknown(bpe(all.clone(), json!(merges))),
            r#"{"tokenizer_class": "GPT2Tokenizer"}"#,
        ),
        ("bpe without a type", untyped(bpe(all, json!(merges))), "{}"),
        ("wordpiece", wordpiece(30_000), "{}"),
        (
            "wordpiece of a class",
            wordpiece(30_000),
            r#"{"tokenizer_class": "BertTokenizer"}"#,
        ),
        ("wordpiece without a type", untyped(wordpiece(33_000)), "{}"),
        (
            "word level",
            json!({"model": {"type": "WordLevel", "vocab": vocab(words(33_000)), "unk_token": "00000"}, "decoder": {"type": "Fuse"}}),
            "{}",
        ),
        ("unigram", unigram(words(40_000)), "{}"),
        (
            "unigram without a type",
            untyped(unigram(words(40_000))),
            "{}",
        ),
        ("unigram of random texts", unigram(random(8000, 30)), "{}"),
        ("unigram of long texts", unigram(random(300, 1500)), "{}"),
        ("unigram of nested texts", unigram(nested), "{}"),
        (
            "unigram of a class",
            unigram(random(8000, 12)),
            r#"{"tokenizer_class": "XLMRobertaTokenizer", "bos_token": "<unk>", "eos_token": "<unk>"}"#,
        ),
        (
            "few long added tokens",
            with(bpe(words(9), json!([])), "added_tokens", added(100, 512)),
            "{}",
        ),
        (
            "many added tokens",
            with(bpe(words(9), json!([])), "added_tokens", added(20_000, 8)),
            "{}",
        ),
        (
            "some long added tokens",
            with(bpe(words(9), json!([])), "added_tokens", added(2000, 500)),
            "{}",
        ),
        (
            "a far id",
            json!({"model": {"type": "BPE", "vocab": {"a": 0, "b": 3_000_000}, "merges": []}, "decoder": {"type": "Fuse"}}),
            "{}",
        ),
        (
            "a list as normalizer",
            with(bpe(words(9), json!([])), "normalizer", empty(100_000)),
            "{}",
        ),
        (
            "lists as added tokens",
            with(bpe(words(9), json!([])), "added_tokens", empty(100_000)),
            "{}",
        ),
        (
            "lists as vocabulary",
            json!({"model": {"type": "BPE", "vocab": {}, "merges": empty(100_000)}}),
            "{}",
        ),
        (
            "objects as decoder",
            with(
                bpe(words(9), json!([])),
                "decoder",
                Value::Array(vec![json!({"": {}}); 50_000]),
            ),
            "{}",
        ),
    ]
}

#[test]
fn files_count_as_what_their_tokenizers_take() {
    for (name, file, config) in cases() {
        let plain = file.to_string();
        let times = if name.contains("added") { 200.0 } else { 2.0 };
        check(name, times, &|budget| {
            of_json(&plain, config, 4_000_000, budget)
        });
        // Escapes are copied where other texts are borrowed.
        let escaped = plain
            .replace("\"0", "\"\\u0030")
            .replace("\"h", "\"\\u0068");
        if escaped.len() > plain.len() + 10_000 {
            let name = format!("{name}, escaped");
            check(&name, times, &|budget| {
                of_json(&escaped, config, 4_000_000, budget)
            });
        }
    }
}

#[test]
fn lists_count_as_what_their_tokenizers_take() {
    const CONTROLS: usize = 300;
    let (all, merges) = merged(LETTERS);
    for (model, first) in ["gpt2", "llama", "bert", "gemma4"]
        .map(|model| (model, "x"))
        .into_iter()
        .chain([("gemma4", "\u{1}"), ("bert", "\""), ("llama", "\u{2581}")])
    {
        let named = ["<unk>", "[CLS]", "[SEP]"].map(str::to_owned);
        let long = (0..CONTROLS).map(|idx| format!("{first}{idx:030}"));
        let tokens: Vec<String> = named.into_iter().chain(long).chain(all.clone()).collect();
        let kinds = (0..tokens.len()).map(|id| if id < CONTROLS + 3 { 3 } else { 1 });
        let list = Vocab {
            model: model.to_owned(),
            scores: (model == "llama").then(|| (0..tokens.len()).map(|id| -(id as f32)).collect()),
            token_types: Some(kinds.collect()),
            merges: matches!(model, "gpt2" | "gemma4")
                .then(|| merges.iter().map(|pair| pair.join(" ")).collect()),
            unk: Some(0),
            bos: Some(1),
            eos: Some(2),
            n_vocab: tokens.len(),
            tokens: tokens.into_iter().collect(),
            ..Vocab::default()
        };
        check(&format!("{model} {first:?}"), 3.0, &|budget| {
            Tokenizer::from_vocab_within(list.clone(), budget)
        });
    }
}
