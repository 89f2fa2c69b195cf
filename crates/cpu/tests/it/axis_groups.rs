//! Which axes a reshape splits and joins.

use thane_cpu::internals::{groups, orders};

fn of(old: &[usize], new: &[usize]) -> Option<Vec<(Vec<usize>, Vec<usize>)>> {
    let groups = groups(old, new)?;
    Some(groups.into_iter().map(|g| (g.old, g.new)).collect())
}

#[test]
fn groups_are_as_small_as_they_can_be() {
    let heads = of(&[1, 576, 1, 7], &[1, 9, 64, 7]).unwrap();
    let expected = [
        (vec![0], vec![0]),
        (vec![1], vec![1, 2]),
        (vec![2, 3], vec![3]),
    ];
    assert_eq!(heads, expected);
    assert_eq!(
        of(&[6, 1, 1], &[2, 3]).unwrap(),
        [(vec![0, 1, 2], vec![0, 1])]
    );
    assert_eq!(of(&[2, 3], &[7]), None);
    assert_eq!(of(&[2, 0], &[0]), None);
    assert_eq!(of(&[], &[1]), None);
}

#[test]
fn groups_stay_where_their_last_axis_lies() {
    let of = |old: &[usize], new: &[usize], order: &[usize]| {
        orders(groups(old, new).unwrap(), order, old)
    };
    // Channels last, split into heads.
    assert_eq!(
        of(&[1, 6, 1, 7], &[1, 2, 3, 7], &[0, 2, 3, 1]),
        [vec![0, 2, 3, 1], vec![0, 3, 1, 2]]
    );
    // Heads by row, joined to channels.
    assert_eq!(
        of(&[1, 2, 3, 7], &[1, 6, 1, 7], &[0, 1, 3, 2]),
        [vec![0, 3, 1, 2], vec![0, 2, 3, 1]]
    );
}
