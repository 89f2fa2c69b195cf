//! Names that a misspelled model name may stand for.

/// Whether a name may have been meant: one text contains the other, or at most a third of the
/// letters differ.
pub fn is_similar(typed: &str, name: &str) -> bool {
    let typed = typed.to_ascii_lowercase();
    let stem = name.split('-').next().unwrap_or(name);
    typed.len() >= 3 && (name.contains(&typed) || typed.contains(stem))
        || [name, stem]
            .iter()
            .any(|name| edit_distance(&typed, name) * 3 <= name.len())
}

/// Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
