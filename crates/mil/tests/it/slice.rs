//! Ranges of slices.

use thane_mil::opset::slice::slice_range;

#[test]
fn slices_select_the_same_indices_as_python() {
    let take = |size, b, e, s| slice_range(size, b, e, s).map(|r| r.indices().collect::<Vec<_>>());
    assert_eq!(take(7, Some(1), Some(6), 2), Ok(vec![1, 3, 5]));
    assert_eq!(take(7, Some(-3), None, 1), Ok(vec![4, 5, 6]));
    assert_eq!(take(7, None, Some(-4), 1), Ok(vec![0, 1, 2]));
    assert_eq!(take(5, None, None, -2), Ok(vec![4, 2, 0]));
    assert_eq!(take(5, Some(3), Some(3), 1), Ok(vec![]));
    assert_eq!(take(5, Some(3), Some(9), 1), Ok(vec![3, 4]));
    assert_eq!(take(5, Some(-9), Some(2), 1), Ok(vec![0, 1]));
    assert_eq!(take(5, Some(9), Some(-9), -2), Ok(vec![4, 2, 0]));
    assert_eq!(take(5, Some(-1), Some(-1), -1), Ok(vec![]));
    assert_eq!(take(0, None, None, -1), Ok(vec![]));
    assert_eq!(
        take(5, Some(i64::MIN), Some(i64::MAX), i64::MAX),
        Ok(vec![0])
    );
    assert!(take(5, None, None, 0).is_err());
}
