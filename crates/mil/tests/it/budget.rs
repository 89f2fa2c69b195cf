//! The memory limit.

use std::sync::{Arc, Mutex};

use thane_mil::budget::{Budget, Loss, Reclaim, Reservation};

/// Reservations that others may take, the last first.
#[derive(Default)]
struct Kept(Vec<Reservation>);

impl Reclaim for Kept {
    fn held_bytes(&self) -> usize {
        self.0.iter().map(Reservation::bytes).sum()
    }

    fn reclaim(&mut self, n_bytes: usize) -> bool {
        let (n_kept, mut n_freed) = (self.0.len(), 0);
        while n_freed < n_bytes
            && let Some(dropped) = self.0.pop()
        {
            n_freed += dropped.bytes();
        }
        self.0.len() < n_kept
    }
}

#[test]
fn what_is_kept_makes_room_for_any_reservation() {
    let budget = Budget::new(1000);
    let kept = |loss: Loss, n: usize| {
        let all = (0..n).map(|_| budget.reserve_spare(100).unwrap());
        let kept = Arc::new(Mutex::new(Kept(all.collect())));
        budget.keep(loss, &kept);
        kept
    };
    let [data, few, many, copies] = [
        (Loss::Data, 2),
        (Loss::Time, 2),
        (Loss::Time, 3),
        (Loss::Copy, 1),
    ]
    .map(|(loss, n)| kept(loss, n));
    let n_left = || [&data, &few, &many, &copies].map(|kept| kept.lock().unwrap().0.len());
    let mut held = budget.reserve(200, String::new).unwrap();
    assert_eq!((n_left(), budget.used_bytes()), ([2, 2, 3, 1], 1000));
    // Nothing makes room for what can do without it, nor for what never fits.
    assert!(budget.reserve_spare(1).is_none());
    for too_many in [801, 1001, usize::MAX] {
        let error = budget.reserve(too_many, || "a".into()).unwrap_err();
        assert_eq!(
            (error.needed_bytes, error.used_bytes),
            (too_many, 1000),
            "{error}"
        );
    }
    // A check takes nothing from others.
    budget.check(800, String::new).unwrap();
    budget.check(801, String::new).unwrap_err();
    budget.check(usize::MAX, String::new).unwrap_err();
    assert_eq!(n_left(), [2, 2, 3, 1]);
    // What is worth least goes first; of equals, whoever has most; and no more than is needed.
    for (more, left) in [
        (1, [2, 2, 3, 0]),
        (150, [2, 2, 2, 0]),
        (100, [2, 1, 2, 0]),
        (300, [2, 0, 0, 0]),
        (200, [0, 0, 0, 0]),
    ] {
        held.grow(more, || "more".into()).unwrap();
        assert_eq!(n_left(), left, "{more}");
        assert!(budget.used_bytes() <= 1000);
    }
    // Whoever reserves while it is locked waits for nobody.
    let last = kept(Loss::Copy, 0);
    last.lock()
        .unwrap()
        .0
        .push(budget.reserve_spare(49).unwrap());
    let locked = last.lock().unwrap();
    assert!(held.grow(49, || "more".into()).is_err());
    drop(locked);
    held.grow(49, || "more".into()).unwrap();
    // Whoever is gone is not asked.
    drop((data, few, many, copies, last));
    assert!(held.grow(100, || "more".into()).is_err());
}

#[test]
fn data_is_spared_until_work_that_may_fail_has_ended() {
    let budget = Budget::new(1000);
    let kept = |loss: Loss| {
        let kept = Arc::new(Mutex::new(Kept(vec![budget.reserve_spare(300).unwrap()])));
        budget.keep(loss, &kept);
        kept
    };
    let (data, pages) = (kept(Loss::Data), kept(Loss::Time));
    let n_left = || [&data, &pages].map(|kept| kept.lock().unwrap().0.len());
    let (loading, sparing) = budget.sparing_data();
    let mut model = loading.reserve(400, String::new).unwrap();
    loading.check(300, String::new).unwrap();
    loading.check(301, String::new).unwrap_err();
    budget.check(600, String::new).unwrap();
    // What can be made again makes room, and nobody waits for data that is in use.
    model.grow(300, String::new).unwrap();
    let locked = data.lock().unwrap();
    model.grow(1, String::new).unwrap_err();
    loading.clone().reserve(1, String::new).unwrap_err();
    drop(locked);
    assert_eq!((n_left(), budget.used_bytes()), ([1, 0], 1000));
    // Requests of others do not spare it meanwhile.
    let other = budget.reserve(200, String::new).unwrap();
    assert_eq!((n_left(), budget.used_bytes()), ([0, 0], 900));
    drop(other);
    let data = kept(Loss::Data);
    // What the work has left behind takes data too, once the work has ended.
    model.grow(1, String::new).unwrap_err();
    drop(sparing);
    model.grow(1, String::new).unwrap();
    assert_eq!((data.lock().unwrap().0.len(), model.bytes()), (0, 701));
    drop(model);
    assert_eq!(budget.used_bytes(), 0);
}

/// Work never fits where what it holds and needs is more than the limit, whatever others have.
#[test]
fn work_that_never_fits_says_so() {
    let budget = Budget::new(1000);
    let others = budget.reserve(500, String::new).unwrap();
    let (work, _sparing) = budget.sparing_data();
    let first = work.reserve(400, String::new).unwrap();
    let never_fits = |more| {
        let error = work.reserve(more, String::new).unwrap_err();
        error.never_fits()
    };
    assert_eq!([600, 601].map(never_fits), [false, true]);
    let of_all = |more| budget.reserve(more, String::new).unwrap_err().never_fits();
    assert_eq!([1000, 1001].map(of_all), [false, true]);
    // What may be taken back is not needed.
    let pages = Arc::new(Mutex::new(Kept(vec![
        work.reserve(100, String::new).unwrap(),
    ])));
    work.keep(Loss::Time, &pages);
    assert_eq!([600, 601].map(never_fits), [false, true]);
    drop((pages, first));
    assert_eq!([1000, 1001].map(never_fits), [false, true]);
    drop(others);
}

#[test]
fn reservations_are_bounded_together_and_returned_on_drop() {
    let budget = Budget::new(1000);
    let mut first = budget.reserve(600, || "a".into()).unwrap();
    let error = budget.reserve(401, || "rows of `x`".into()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rows of `x` needs 401 B of memory, but 600 B of the allowed 1.0 kB are already in use"
    );
    first.shrink(100);
    let second = budget.clone().reserve(500, || "b".into()).unwrap();
    assert!(first.grow(usize::MAX, || "c".into()).is_err());
    assert_eq!(
        (first.bytes(), second.bytes(), budget.used_bytes()),
        (500, 500, 1000)
    );
    drop((first, second));
    assert_eq!(budget.used_bytes(), 0);
}
