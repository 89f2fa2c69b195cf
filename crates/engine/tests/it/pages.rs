//! Prompts that are kept in pages beside their sequences.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use thane_engine::pages::{PAGE_TOKENS, PageForm, PageStore};
use thane_engine::schedule::{Request, RequestId, Scheduler, Usage};
use thane_mil::budget::Budget;

use crate::schedule::{Log, PAGE_BYTES, greedy, model, model_within, prompt};

/// A prompt that has nothing in common with [`prompt`].
pub fn other(n: usize) -> Vec<u32> {
    prompt(n).iter().map(|token| token + 100).collect()
}

/// Runs a request alone; its tokens and its answer.
pub fn run(scheduler: &mut Scheduler<'_>, prompt: Vec<u32>) -> (Usage, String) {
    run_for(scheduler, 0, prompt)
}

/// The same, for an owner.
pub fn run_for(scheduler: &mut Scheduler<'_>, owner: u64, prompt: Vec<u32>) -> (Usage, String) {
    let request = Request {
        owner,
        ..greedy(prompt, 5)
    };
    let id = scheduler.submit(request).unwrap();
    let mut log = Log::default();
    while !scheduler.is_idle() {
        log.note(scheduler.step());
    }
    (log.done[&id].1, log.texts.remove(&id).unwrap_or_default())
}

#[test]
fn a_prompt_outlives_its_sequence() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1).with_pages(model.pages(1 << 30));
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let (first, answer) = run(&mut scheduler, prompt(130));
    assert_eq!(first.cached_tokens, 0);
    assert_eq!(run(&mut scheduler, other(70)).0.cached_tokens, 0);
    let (again, same) = run(&mut scheduler, prompt(130));
    assert_eq!((again.cached_tokens, same), (2 * PAGE_TOKENS, answer));
    // The last token is computed, even where pages hold it.
    run(&mut scheduler, other(70));
    let (whole, _) = run(&mut scheduler, prompt(2 * PAGE_TOKENS));
    assert_eq!(whole.cached_tokens, 2 * PAGE_TOKENS - 1);
    // What a sequence holds itself counts beside pages.
    let longer = [prompt(130), vec![7, 8]].concat();
    run(&mut scheduler, prompt(130));
    assert_eq!(run(&mut scheduler, longer).0.cached_tokens, 130);
}

#[test]
fn the_pages_that_were_not_used_for_longest_are_dropped() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1).with_pages(model.pages(3 * PAGE_BYTES));
    let mut scheduler = model.scheduler(&mut sessions, 64);
    run(&mut scheduler, prompt(130));
    run(&mut scheduler, other(70));
    assert_eq!(scheduler.pages().unwrap().n_bytes(), 3 * PAGE_BYTES);
    // A fourth page: the second one of the first prompt goes, and the first one stays.
    let third: Vec<u32> = prompt(70).iter().rev().copied().collect();
    run(&mut scheduler, third);
    assert_eq!(scheduler.pages().unwrap().n_bytes(), 3 * PAGE_BYTES);
    let n_known = |scheduler: &mut Scheduler<'_>, tokens: Vec<u32>| {
        scheduler.pages().unwrap().n_known(0, &tokens)
    };
    assert_eq!(n_known(&mut scheduler, prompt(130)), PAGE_TOKENS);
    assert_eq!(n_known(&mut scheduler, other(70)), PAGE_TOKENS);
    // Without room for one page, none is kept.
    let mut sessions = model.sessions(1).with_pages(model.pages(PAGE_BYTES - 1));
    let mut scheduler = model.scheduler(&mut sessions, 64);
    run(&mut scheduler, prompt(130));
    assert_eq!(scheduler.pages().unwrap().n_bytes(), 0);
}

/// One owner cannot push out what pages hold of another's prompts by asking more.
#[test]
fn the_owner_of_most_pages_makes_room() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1).with_pages(model.pages(5 * PAGE_BYTES));
    let mut scheduler = model.scheduler(&mut sessions, 64);
    run_for(&mut scheduler, 1, prompt(130));
    for k in 0..4 {
        let asked = other(130).iter().map(|token| token + k).collect();
        run_for(&mut scheduler, 2, asked);
    }
    let n_known = |scheduler: &mut Scheduler<'_>, owner: u64, tokens: Vec<u32>| {
        scheduler.pages().unwrap().n_known(owner, &tokens)
    };
    assert_eq!(n_known(&mut scheduler, 1, prompt(130)), 2 * PAGE_TOKENS);
    let last = other(130).iter().map(|token| token + 3).collect();
    assert_eq!(n_known(&mut scheduler, 2, last), 2 * PAGE_TOKENS);
    assert_eq!(scheduler.pages().unwrap().n_bytes(), 5 * PAGE_BYTES);
    // Whoever has nothing yet gets a place.
    run_for(&mut scheduler, 3, prompt(70));
    assert_eq!(n_known(&mut scheduler, 3, prompt(70)), PAGE_TOKENS);
    assert_eq!(n_known(&mut scheduler, 1, prompt(130)), 2 * PAGE_TOKENS);
}

#[test]
fn requests_that_come_together_share_what_one_computes() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(3).with_pages(model.pages(1 << 30));
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let first = scheduler.submit(greedy(prompt(140), 5)).unwrap();
    let second = scheduler.submit(greedy(prompt(140), 5)).unwrap();
    // It has nothing in common with them, and need not wait.
    let third = scheduler.submit(greedy(other(20), 1)).unwrap();
    let mut log = Log::default();
    log.note(scheduler.step());
    assert!(log.done.contains_key(&third));
    while !scheduler.is_idle() {
        log.note(scheduler.step());
    }
    let cached = [first, second].map(|id| log.done[&id].1.cached_tokens);
    assert_eq!(cached, [0, 2 * PAGE_TOKENS]);
    assert_eq!(log.texts[&first], log.texts[&second]);
    // A request that waits for another goes on if that one is cancelled.
    let first = scheduler.submit(greedy(other(140), 5)).unwrap();
    let second = scheduler.submit(greedy(other(140), 5)).unwrap();
    scheduler.step();
    assert!(scheduler.cancel(first));
    while !scheduler.is_idle() {
        log.note(scheduler.step());
    }
    assert!(log.done.contains_key(&second));
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<HashMap<Vec<u32>, Vec<u8>>>>);

impl PageStore for Memory {
    fn has(&mut self, tokens: &[u32]) -> bool {
        self.0.lock().unwrap().contains_key(tokens)
    }

    fn get(&mut self, tokens: &[u32], _: usize) -> Option<Vec<u8>> {
        self.0.lock().unwrap().get(tokens).cloned()
    }

    fn put(&mut self, tokens: &[u32], bytes: &[u8]) {
        let mut pages = self.0.lock().unwrap();
        let known = pages.insert(tokens.to_vec(), bytes.to_vec());
        assert!(known.is_none(), "put twice");
    }
}

#[test]
fn a_store_keeps_pages_beyond_their_memory_and_the_program() {
    let model = model("tiny-chat");
    let memory = Memory::default();
    let stored = |limit| model.pages(limit).with_store(Box::new(memory.clone()));
    let mut sessions = model.sessions(1).with_pages(stored(2 * PAGE_BYTES));
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let (_, answer) = run(&mut scheduler, prompt(130));
    // These drop the pages of the first prompt from memory.
    run(&mut scheduler, other(140));
    assert_eq!(memory.0.lock().unwrap().len(), 2);
    let (again, same) = run(&mut scheduler, prompt(130));
    assert_eq!((again.cached_tokens, &same), (2 * PAGE_TOKENS, &answer));
    while scheduler.pages().unwrap().store_one() {}
    assert_eq!(memory.0.lock().unwrap().len(), 4);
    // Another program.
    let mut sessions = model.sessions(1).with_pages(stored(1 << 30));
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let (later, same) = run(&mut scheduler, prompt(130));
    assert_eq!((later.cached_tokens, &same), (2 * PAGE_TOKENS, &answer));
    // A page of another size is not used.
    for bytes in memory.0.lock().unwrap().values_mut() {
        bytes.pop();
    }
    let mut sessions = model.sessions(1).with_pages(stored(1 << 30));
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let id = scheduler.submit(greedy(prompt(130), 5)).unwrap();
    let mut log = Log::default();
    while !scheduler.is_idle() {
        log.note(scheduler.step());
    }
    let damaged = (log.done[&id].1.cached_tokens, log.texts[&id].clone());
    assert_eq!(damaged, (0, answer));
}

/// An owner sees neither in the tokens that were cached nor in the number of steps what another one
/// has asked, wherever prompts are kept.
#[test]
fn owners_share_no_prompt() {
    let model = model("tiny-chat");
    let memory = Memory::default();
    let paged = || model.sessions(2).with_pages(model.pages(1 << 30));
    let mut whole = model.sessions(2);
    whole.keep_whole(1 << 30, Budget::unlimited());
    let store = Box::new(memory.clone());
    let small = model.pages(2 * PAGE_BYTES).with_store(store);
    let stored = model.sessions(1).with_pages(small);
    for (kept, mut sessions) in [
        ("slots", model.sessions(2)),
        ("pages", paged()),
        ("a store", stored),
        ("whole caches", whole),
    ] {
        let mut scheduler = model.scheduler(&mut sessions, 64);
        let mut ask = |owners: &[u64], prompt: Vec<u32>| {
            let ids = owners.iter().map(|owner| {
                let request = greedy(prompt.clone(), 5);
                let owner = *owner;
                scheduler.submit(Request { owner, ..request }).unwrap()
            });
            let ids: Vec<RequestId> = ids.collect();
            let (mut log, mut n_steps) = (Log::default(), 0);
            while !scheduler.is_idle() {
                log.note(scheduler.step());
                n_steps += 1;
            }
            let of = |id| (log.done[id].1.cached_tokens, log.texts[id].clone());
            (n_steps, ids.iter().map(of).collect::<Vec<_>>())
        };
        // Slots hold the prompt of the first.
        let (first, answers) = ask(&[1], prompt(130));
        let answer = &answers[0].1;
        let expected = (first, vec![(0, answer.clone())]);
        for owner in [2, 0, 3] {
            assert_eq!(ask(&[owner], prompt(130)), expected, "{kept}: {owner}");
        }
        // They still have what they have asked themselves, and do not wait for each other.
        for owner in [2, 3, 0] {
            let (n_steps, again) = ask(&[owner], prompt(130));
            let is_cached = again[0].0 > 0 && n_steps <= first;
            assert!(is_cached || kept == "slots", "{kept}: {owner}");
            assert_eq!(&again[0].1, answer, "{kept}: {owner}");
        }
        let (_, both) = ask(&[4, 5], prompt(130));
        assert_eq!(both, vec![(0, answer.clone()); 2], "{kept}");
    }
    assert!(memory.0.lock().unwrap().len() > 6);
}

#[test]
fn pages_in_int8_take_less_memory() {
    let model = model("tiny-chat");
    let pages = model.pages(1 << 30).with_form(PageForm::Int8);
    let mut sessions = model.sessions(1).with_pages(pages);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    run(&mut scheduler, prompt(130));
    // Rows of 16 numbers and a scale in the place of 16 in fp32.
    let due = 2 * PAGE_BYTES * 20 / 64;
    assert_eq!(scheduler.pages().unwrap().n_bytes(), due);
    run(&mut scheduler, other(70));
    let (again, _) = run(&mut scheduler, prompt(130));
    assert_eq!(again.cached_tokens, 2 * PAGE_TOKENS);
}

#[test]
fn answers_take_the_memory_of_pages() {
    let budget = Budget::new(1 << 30);
    let model = model_within("tiny-chat", &budget);
    let pages = model.pages(1 << 30).with_budget(budget.clone());
    let mut sessions = model.sessions(1).with_pages(pages);
    let mut scheduler = model.scheduler(&mut sessions, 64);
    for first in 0..40 {
        run(&mut scheduler, [vec![first], prompt(69)].concat());
    }
    assert_eq!(scheduler.pages().unwrap().n_bytes(), 40 * PAGE_BYTES);
    // Less than the tensors of twice as many tokens take.
    let rest = budget.limit_bytes() - budget.used_bytes() - 1000;
    let _held = budget.reserve(rest, || "the test".to_owned()).unwrap();
    let (usage, _) = run(&mut scheduler, other(140));
    assert_eq!(usage.answer_tokens, 5);
    let n_left = scheduler.pages().unwrap().n_bytes() / PAGE_BYTES;
    assert!(0 < n_left && n_left < 40, "{n_left} pages are left");
    // What never fits takes nothing.
    assert!(budget.reserve(1 << 29, String::new).is_err());
    assert_eq!(scheduler.pages().unwrap().n_bytes(), n_left * PAGE_BYTES);
    // Others take it too, whoever they are.
    let others = budget.reserve(n_left * PAGE_BYTES, || "another".to_owned());
    assert!(others.is_ok());
    let n_after = scheduler.pages().unwrap().n_bytes() / PAGE_BYTES;
    assert!(n_after < n_left, "{n_after} pages are left");
}
