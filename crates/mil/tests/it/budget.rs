//! The memory limit.

use thane_mil::budget::Budget;

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
