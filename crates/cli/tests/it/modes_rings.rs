//! Caches that keep a part of the tokens, in conversations that go back to a shorter context: the
//! logits are those of the same tokens one by one.

use thane_calls::{AttentionForm, CacheForm, Form, Streaming};
use thane_cpu::{Cpu, Numerics};

use crate::decoder::{error, fp32, model};

/// Bound of the relative difference, whose sums have other orders.
const BOUND: f64 = 2e-5;
/// Forms whose caches forget: by the layers' own windows, by sinks and a window, by means.
fn forms() -> [(&'static str, Form); 3] {
    let plain = Form {
        block: Some(16),
        cache: CacheForm::Explicit,
        contexts: vec![24, 32],
        ..Form::default()
    };
    let streaming = |window, pool| Form {
        block: Some(window),
        attention: AttentionForm {
            streaming: Some(Streaming {
                sinks: 2,
                window,
                pool,
            }),
            ..AttentionForm::default()
        },
        ..plain.clone()
    };
    [
        ("tiny/qwen3-sliding", plain.clone()),
        ("tiny/qwen3", streaming(16, None)),
        ("tiny/qwen3", streaming(8, Some(5))),
    ]
}

#[test]
fn going_back_to_a_shorter_context_reads_no_row_that_was_overwritten() {
    let cpu = Cpu::new(Numerics::F32, 1);
    let mut bad = Vec::new();
    for (at, (name, engine)) in forms().into_iter().enumerate() {
        let model = model(name, "", Some(fp32(engine)));
        let (mut talk, mut alone) = (model.session(&cpu).unwrap(), model.session(&cpu).unwrap());
        let text = |n: usize, factor: usize| -> Vec<u32> {
            (0..n).map(|i| (5 + factor * i) as u32 % 90).collect()
        };
        // A block of 16 tokens in the context of 32 begins at 16, for which rings of 32 rows keep
        // too few tokens of a text of 40 and more.
        let texts = [(36, 24), (41, 26), (47, 26), (45, 28), (49, 28), (51, 30)];
        for (n_before, kept) in texts {
            for n_new in 2..=32 - kept {
                talk.reset();
                talk.feed(&text(n_before, 7), &|| false).unwrap();
                // What a call gave is stored when the next one begins.
                talk.decode(1).unwrap();
                let tokens = [text(kept, 7), text(n_new, 11)].concat();
                let found = talk.feed(&tokens, &|| false).unwrap().unwrap().to_vec();
                alone.reset();
                let each = tokens.iter().map(|id| alone.decode(*id).unwrap().to_vec());
                let found = error(&found, &each.last().unwrap());
                if found > BOUND {
                    bad.push(format!(
                        "{name}, form {at}, {n_before} to {kept}, {n_new} new: {found:.1e}"
                    ));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}
