//! Conversations whose caches are kept whole while others have their sequence.

use thane_engine::pages::{PAGE_TOKENS, PageForm};
use thane_mil::budget::Budget;

use crate::pages::{other, run, run_for};
use crate::schedule::{PAGE_BYTES, model, model_within, prompt};

/// A prompt that has nothing in common with [`prompt`] and [`other`].
fn third(n: usize) -> Vec<u32> {
    prompt(n).iter().map(|token| token + 7).rev().collect()
}

#[test]
fn a_conversation_takes_its_whole_cache_back() {
    // Layers of attention, with memories, and with windows of convolutions.
    for (name, n_cached) in [
        ("tiny-chat", 100),
        ("tiny/qwen3_5", 104),
        ("tiny/lfm2", 104),
    ] {
        let model = model(name);
        let mut alone = model.sessions(1);
        let mut alone = model.scheduler(&mut alone, 64);
        let mut sessions = model.sessions(1);
        sessions.keep_whole(1 << 30, Budget::unlimited());
        let mut scheduler = model.scheduler(&mut sessions, 64);
        let (first, answer) = run(&mut scheduler, prompt(100));
        assert_eq!((first.cached_tokens, scheduler.kept_bytes()), (0, 0));
        // The smallest vocabulary has 97 tokens.
        let others = [other(70), third(40)].map(|tokens| tokens.iter().map(|t| t % 97).collect());
        for others in others {
            let others: Vec<u32> = others;
            let (usage, text) = run(&mut scheduler, others.clone());
            assert_eq!(usage.cached_tokens, 0, "{name}");
            assert_eq!(text, run(&mut alone, others).1, "{name}");
        }
        // Recurrent states hold what the answer added, and cannot go back.
        let is_recurrent = name != "tiny-chat";
        let turn = if is_recurrent {
            let answer = model.tokens_of(&prompt(100), 4);
            [prompt(100), answer, vec![7, 8]].concat()
        } else {
            [prompt(100), vec![7, 8]].concat()
        };
        let (second, text) = run(&mut scheduler, turn.clone());
        assert_eq!(second.cached_tokens, n_cached, "{name}");
        assert_eq!(text, run(&mut alone, turn).1, "{name}");
        if !is_recurrent {
            let (again, same) = run(&mut scheduler, prompt(100));
            assert_eq!((again.cached_tokens, same), (99, answer), "{name}");
        }
    }
}

#[test]
fn whole_caches_stay_within_their_limit_and_the_oldest_is_dropped() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1);
    // Two caches of two pages.
    sessions.keep_whole(4 * PAGE_BYTES, Budget::unlimited());
    let mut scheduler = model.scheduler(&mut sessions, 64);
    run(&mut scheduler, prompt(100));
    run(&mut scheduler, other(100));
    assert_eq!(scheduler.kept_bytes(), 2 * PAGE_BYTES);
    run(&mut scheduler, third(100));
    assert_eq!(scheduler.kept_bytes(), 4 * PAGE_BYTES);
    // The first one takes its cache, and the third one is kept: the room is that of two.
    assert_eq!(run(&mut scheduler, prompt(100)).0.cached_tokens, 99);
    assert_eq!(scheduler.kept_bytes(), 4 * PAGE_BYTES);
    let fourth: Vec<u32> = (0..100).map(|k| (k * 3 + 5) % 90).collect();
    // That of `other` is the oldest, and its memory is used again.
    run(&mut scheduler, fourth);
    assert_eq!(scheduler.kept_bytes(), 4 * PAGE_BYTES);
    assert_eq!(run(&mut scheduler, third(100)).0.cached_tokens, 99);
    assert_eq!(run(&mut scheduler, prompt(100)).0.cached_tokens, 99);
    assert_eq!(run(&mut scheduler, other(100)).0.cached_tokens, 0);
    // A cache counts as what was ever written to it, however little it holds now.
    let mut sessions = model.sessions(1);
    sessions.keep_whole(2 * PAGE_BYTES, Budget::unlimited());
    let mut scheduler = model.scheduler(&mut sessions, 64);
    run(&mut scheduler, prompt(140));
    run(&mut scheduler, prompt(20));
    run(&mut scheduler, other(20));
    assert_eq!(scheduler.kept_bytes(), 0);
    assert_eq!(run(&mut scheduler, prompt(20)).0.cached_tokens, 0);
}

#[test]
fn the_owner_of_most_whole_caches_makes_room() {
    let model = model("tiny-chat");
    let mut sessions = model.sessions(1);
    // Two caches of two pages.
    sessions.keep_whole(4 * PAGE_BYTES, Budget::unlimited());
    let mut scheduler = model.scheduler(&mut sessions, 64);
    run_for(&mut scheduler, 1, prompt(100));
    for asked in [other(100), third(100), prompt(100)] {
        run_for(&mut scheduler, 2, asked);
    }
    assert_eq!(scheduler.kept_bytes(), 4 * PAGE_BYTES);
    let (usage, _) = run_for(&mut scheduler, 1, prompt(100));
    assert_eq!(usage.cached_tokens, 99);
    // Equal shares: the older one makes room.
    run_for(&mut scheduler, 3, prompt(100));
    run_for(&mut scheduler, 3, other(100));
    assert_eq!(run_for(&mut scheduler, 1, prompt(100)).0.cached_tokens, 99);
}

#[test]
fn a_prompt_that_shares_its_beginning_leaves_the_conversation_whole() {
    let model = model("tiny-chat");
    for form in [PageForm::Exact, PageForm::Int8] {
        let pages = model.pages(1 << 30).with_form(form);
        let mut sessions = model.sessions(1).with_pages(pages);
        sessions.keep_whole(1 << 30, Budget::unlimited());
        let mut scheduler = model.scheduler(&mut sessions, 64);
        run(&mut scheduler, prompt(150));
        // A page, and six tokens that fill none.
        let n_shared = PAGE_TOKENS + 6;
        let fork = [&prompt(n_shared)[..], &other(30)].concat();
        let (usage, text) = run(&mut scheduler, fork.clone());
        assert_eq!(usage.cached_tokens, n_shared, "{form:?}");
        if form == PageForm::Exact {
            let mut alone = model.sessions(1);
            let mut alone = model.scheduler(&mut alone, 64);
            assert_eq!(text, run(&mut alone, fork).1);
        }
        assert_eq!(run(&mut scheduler, prompt(150)).0.cached_tokens, 149);
    }
}

#[test]
fn answers_take_the_memory_of_whole_caches() {
    let budget = Budget::new(1 << 30);
    let model = model_within("tiny-chat", &budget);
    let mut sessions = model.sessions(1);
    sessions.keep_whole(1 << 30, budget.clone());
    let mut scheduler = model.scheduler(&mut sessions, 64);
    let first = |first: u32| [vec![first], prompt(59)].concat();
    (0..40).for_each(|n| _ = run(&mut scheduler, first(n)));
    assert_eq!(scheduler.kept_bytes(), 39 * PAGE_BYTES);
    // Less than the tensors of twice as many tokens take.
    let rest = budget.limit_bytes() - budget.used_bytes() - 1000;
    let held = budget.reserve(rest, || "the test".to_owned()).unwrap();
    let (usage, _) = run(&mut scheduler, other(140));
    assert_eq!(usage.answer_tokens, 5);
    let n_left = scheduler.kept_bytes() / PAGE_BYTES;
    assert!(0 < n_left && n_left < 39, "{n_left} caches are left");
    // The newest ones are left.
    assert_eq!(run(&mut scheduler, first(38)).0.cached_tokens, 59);
    assert_eq!(run(&mut scheduler, first(0)).0.cached_tokens, 0);
    drop(scheduler);
    drop((sessions, model, held));
    assert_eq!(budget.used_bytes(), 0, "all is given back");
}
