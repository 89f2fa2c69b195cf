//! Which axes a reshape splits and joins.

/// Axes of the old shape and those of the new shape that hold the same elements.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    pub old: Vec<usize>,
    pub new: Vec<usize>,
}

/// The smallest groups of neighboring axes with as many elements before and after; `None` where the
/// shapes hold different numbers of elements, or none at all.
pub fn groups(old: &[usize], new: &[usize]) -> Option<Vec<Group>> {
    if old.contains(&0) || new.contains(&0) {
        return None;
    }
    let mut groups: Vec<Group> = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < old.len() && j < new.len() {
        let (start_i, start_j) = (i, j);
        let (mut n_old, mut n_new) = (old[i], new[j]);
        (i, j) = (i + 1, j + 1);
        while n_old != n_new {
            if n_old < n_new {
                n_old = n_old.checked_mul(*old.get(i)?)?;
                i += 1;
            } else {
                n_new = n_new.checked_mul(*new.get(j)?)?;
                j += 1;
            }
        }
        groups.push(Group {
            old: (start_i..i).collect(),
            new: (start_j..j).collect(),
        });
    }
    // What is left has one element.
    if old[i..].iter().chain(&new[j..]).any(|n| *n != 1) {
        return None;
    }
    let last = groups.last_mut()?;
    last.old.extend(i..old.len());
    last.new.extend(j..new.len());
    Some(groups)
}

/// The order of the old axes in which each group is together, nearest to `order`, and that of the
/// new axes then.
pub fn orders(mut groups: Vec<Group>, order: &[usize], shape: &[usize]) -> [Vec<usize>; 2] {
    let place = |axis: &usize| order.iter().position(|a| a == axis);
    // Where elements lie together counts, not where axes of size 1 are.
    groups.sort_by_key(|group| {
        let real = group.old.iter().filter(|axis| shape[**axis] != 1);
        let all = group.old.iter().filter_map(place).max();
        (
            real.filter_map(place).max().or(all),
            group.old.first().copied(),
        )
    });
    let old = groups.iter().flat_map(|g| g.old.clone()).collect();
    let new = groups.iter().flat_map(|g| g.new.clone()).collect();
    [old, new]
}
