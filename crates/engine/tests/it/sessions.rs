//! Many sequences over one program: each answer equals the answer of the sequence alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_cpu::{Cpu, Numerics};
use thane_engine::generate::Session;
use thane_engine::sessions::Sessions;
use thane_mil::backend::{Backend, Executable};
use thane_models::checkpoint::Checkpoint;
use thane_models::{Info, Options, build};

const CONTEXT: usize = 64;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny")
}

/// The first checkpoint of each architecture.
fn one_of_each_architecture() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for name in names {
        // The file of llama2.c has none.
        let Ok(config) = std::fs::read(folder().join(&name).join("config.json")) else {
            continue;
        };
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        let architecture = config["model_type"].as_str().unwrap().to_owned();
        found.entry(architecture).or_insert(name);
    }
    assert!(found.len() > 2, "expected architectures, found {found:?}");
    found
}

fn load(name: &str) -> (Arc<dyn Executable>, Info) {
    let checkpoint = Checkpoint::open(&folder().join(name)).unwrap();
    let model = build(
        &checkpoint,
        &Options {
            context: Some(CONTEXT),
            ..Options::default()
        },
    )
    .unwrap();
    (
        Cpu::new(Numerics::F32, 2).load(&model.program).unwrap(),
        model.info,
    )
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len())
        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
        .unwrap() as u32
}

/// A different prompt for each sequence.
fn prompt(i: usize) -> Vec<u32> {
    (0..1 + 7 * i % 23)
        .map(|k| ((k * k * 5 + 31 * i + 3 * k) % 97) as u32)
        .collect()
}

/// The greedy answer of a single sequence.
fn alone(executable: &Arc<dyn Executable>, info: &Info, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut session = Session::new(executable.instantiate().unwrap(), CONTEXT, info.vocab_size)
        .with_recurrence(info.recurrent);
    let mut answer = vec![argmax(&session.feed(prompt, &|| false).unwrap().unwrap())];
    while answer.len() < n {
        answer.push(argmax(&session.decode(answer[answer.len() - 1]).unwrap()));
    }
    answer
}

/// A sequence in a run: its prompt, the length of its answer, and the answer so far.
struct Running {
    idx: usize,
    prompt: Vec<u32>,
    n: usize,
    answer: Vec<u32>,
}

/// Answers `n_prompts` prompts with `n` sequences. A sequence that has finished takes the next
/// prompt, whose prefill runs beside the steps of the others.
fn serve(
    executable: &Arc<dyn Executable>,
    info: &Info,
    n: usize,
    n_prompts: usize,
) -> Vec<Running> {
    let batch = executable.instantiate_batch(n).unwrap();
    let sessions = Sessions::new(batch, CONTEXT, info.vocab_size);
    let mut sessions = sessions.with_recurrence(info.recurrent);
    assert_eq!(sessions.n_sequences(), n);
    let mut waiting = (0..n_prompts).rev().collect::<Vec<_>>();
    let (mut running, mut done): (Vec<Running>, Vec<Running>) = Default::default();
    for idx in 0..n {
        running.extend(waiting.pop().map(|i| Running {
            idx,
            prompt: prompt(i),
            n: 1 + 5 * i % 17,
            answer: vec![],
        }));
    }
    while !running.is_empty() {
        let targets: Vec<Vec<u32>> = running
            .iter()
            .map(|r| [r.prompt.clone(), r.answer.clone()].concat())
            .collect();
        let work: Vec<(usize, &[u32])> = running
            .iter()
            .zip(&targets)
            .map(|(r, t)| (r.idx, t.as_slice()))
            .collect();
        sessions.step(&work, None).unwrap();
        for (r, target) in running.iter_mut().zip(&targets) {
            if sessions.tokens(r.idx).unwrap() == target {
                r.answer.push(argmax(&sessions.logits(r.idx).unwrap()));
            }
        }
        let (ended, rest): (Vec<Running>, Vec<Running>) =
            running.into_iter().partition(|r| r.answer.len() == r.n);
        running = rest;
        for r in ended {
            let idx = r.idx;
            done.push(r);
            running.extend(waiting.pop().map(|i| Running {
                idx,
                prompt: prompt(i),
                n: 1 + 5 * i % 17,
                answer: vec![],
            }));
        }
    }
    done
}

#[test]
fn each_answer_is_the_one_it_gets_alone() {
    for name in one_of_each_architecture().into_values() {
        let (executable, info) = load(&name);
        for n in [1, 2, 3, 8, 33] {
            let done = serve(&executable, &info, n, n + 4);
            assert_eq!(done.len(), n + 4, "{name}");
            for r in done {
                let expected = alone(&executable, &info, &r.prompt, r.n);
                assert_eq!(
                    r.answer,
                    expected,
                    "{name}, {n} sequences, prompt of {}",
                    r.prompt.len()
                );
            }
        }
    }
}

#[test]
fn a_place_is_used_again_and_keeps_what_prompts_have_in_common() {
    let (executable, info) = load("qwen3");
    let mut sessions = Sessions::new(
        executable.instantiate_batch(2).unwrap(),
        CONTEXT,
        info.vocab_size,
    );
    let (first, other) = (prompt(3), prompt(6));
    assert!(
        sessions
            .feed(&[(1, &first), (0, &other)], &|| false)
            .unwrap()
    );
    sessions.decode(&[(0, 17), (1, 4)], None).unwrap();
    assert_eq!(
        sessions.tokens(1).unwrap(),
        [first.clone(), vec![4]].concat()
    );
    let longer = [first[..first.len() - 2].to_vec(), vec![9, 8, 7, 6]].concat();
    assert!(sessions.feed(&[(1, &longer)], &|| false).unwrap());
    let found = argmax(&sessions.logits(1).unwrap());
    assert_eq!(vec![found], alone(&executable, &info, &longer, 1));
    // The answer of the other sequence waits.
    let behind = alone(&executable, &info, &[other, vec![17]].concat(), 1);
    assert_eq!(vec![argmax(&sessions.logits(0).unwrap())], behind);
    sessions.reset(1).unwrap();
    assert!(sessions.tokens(1).unwrap().is_empty());
    assert!(sessions.feed(&[(1, &first)], &|| false).unwrap());
    assert_eq!(
        vec![argmax(&sessions.logits(1).unwrap())],
        alone(&executable, &info, &first, 1)
    );
    let stopped = sessions.feed(&[(0, &first)], &|| true).unwrap();
    assert!(!stopped);
}

/// Recurrent states hold all tokens together: a prompt that continues the cache is continued, and
/// any other is computed from its start.
#[test]
fn recurrent_states_begin_again_where_a_prompt_goes_back() {
    let (executable, info) = load("qwen3_5");
    assert!(info.recurrent);
    let new = || {
        let instance = executable.instantiate().unwrap();
        Session::new(instance, CONTEXT, info.vocab_size).with_recurrence(true)
    };
    let fed =
        |session: &mut Session, prompt: &[u32]| session.feed(prompt, &|| false).unwrap().unwrap();
    let first: Vec<u32> = prompt(3);
    let mut session = new();
    fed(&mut session, &first);
    session.decode(5).unwrap();
    let second = [first.clone(), vec![5, 11, 12, 13]].concat();
    assert_eq!(session.n_cached(&second), first.len() + 1);
    let other = [first[..first.len() - 1].to_vec(), vec![40, 41]].concat();
    // The same prompt again goes back by one token.
    for prompt in [&second, &other, &other, &first] {
        let expected = fed(&mut new(), prompt);
        let found = fed(&mut session, prompt);
        let far = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        assert!(far.fold(0.0, f32::max) < 1e-4, "{prompt:?}");
        assert_eq!(session.tokens(), prompt.as_slice());
        assert_eq!(session.n_cached(&prompt[..prompt.len() - 1]), 0);
    }
    let mut sessions = Sessions::new(
        executable.instantiate_batch(2).unwrap(),
        CONTEXT,
        info.vocab_size,
    )
    .with_recurrence(true);
    for (one, two) in [(&second, &other), (&first, &second), (&other, &second)] {
        assert!(sessions.feed(&[(0, one), (1, two)], &|| false).unwrap());
        for (idx, prompt) in [one, two].into_iter().enumerate() {
            let found = argmax(&sessions.logits(idx).unwrap());
            assert_eq!(vec![found], alone(&executable, &info, prompt, 1), "{idx}");
        }
    }
}

#[test]
fn errors_name_the_sequence() {
    let (executable, info) = load("llama-bias");
    let mut sessions = Sessions::new(
        executable.instantiate_batch(3).unwrap(),
        CONTEXT,
        info.vocab_size,
    );
    let full: Vec<u32> = (0..CONTEXT as u32).collect();
    assert!(
        sessions
            .feed(&[(0, &full[..3]), (2, &full)], &|| false)
            .unwrap()
    );
    let mut refused = |next: &[(usize, u32)]| sessions.decode(next, None).unwrap_err().to_string();
    assert!(
        refused(&[(0, 1), (2, 1)])
            .starts_with("sequence 2: expected a prompt shorter than the context of 64 tokens")
    );
    assert!(refused(&[(0, 1), (3, 1)]).contains("expected a sequence number below 3, found 3"));
    assert!(refused(&[(1, 1), (1, 2)]).contains("sequence 1 is listed twice"));
    let mut refused =
        |prompts: &[(usize, &[u32])]| sessions.feed(prompts, &|| false).unwrap_err().to_string();
    assert!(refused(&[(0, &full[..2]), (1, &[])]).starts_with(
        "sequence 1: expected a prompt of at \
            least one token"
    ));
    let long = [full.clone(), vec![1]].concat();
    assert!(refused(&[(1, &long)]).starts_with("sequence 1: expected a prompt shorter than"));
    // No rejected token is in a cache.
    assert_eq!(sessions.tokens(2).unwrap(), full);
    assert!(
        sessions.tokens(1).unwrap().is_empty()
            && sessions.tokens(4).is_err()
            && sessions.logits(4).is_err()
    );
    assert!(sessions.logits(1).is_err());
}
