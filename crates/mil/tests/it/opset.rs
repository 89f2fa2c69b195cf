//! The table of ops.

use thane_mil::opset::{GROUPS, OpDef, find, find_in};

#[test]
fn rows_are_unique_and_found() {
    let mut rows: Vec<_> = GROUPS
        .iter()
        .flat_map(|g| g.iter())
        .map(|d| (d.name, d.since))
        .collect();
    assert!(rows.iter().all(|(n, since)| {
        find_in(n, *since).is_some_and(|d| (d.name, d.since) == (n, *since))
    }));
    let n = rows.len();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), n);
}

#[test]
fn all_forms_of_an_op_are_of_one_kind() {
    for def in GROUPS.iter().flat_map(|g| g.iter()) {
        let newest = find(def.name).unwrap();
        let what = |d: &OpDef| (d.kind, d.exact);
        assert_eq!(what(def), what(newest), "{} {:?}", def.name, def.since);
        assert!(def.exact || !def.kind.moves(), "{}", def.name);
        let is_named = def.is_const() || def.name.starts_with("constexpr_");
        assert_eq!(def.is_constexpr(), is_named, "{}", def.name);
    }
}
