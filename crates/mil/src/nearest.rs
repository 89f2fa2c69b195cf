//! Suggests the name that a misspelled one may mean.

/// The name that is spelled most like `word`, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Jaro-Winkler similarity below which names are no longer taken for each other; clap's own
    /// bound is 0.7.
    const LEAST: f64 = 0.8;
    let word = word.to_ascii_lowercase();
    let near = |name: &'a str| {
        (
            strsim::jaro_winkler(&word, &name.to_ascii_lowercase()),
            name,
        )
    };
    let best = names
        .into_iter()
        .map(near)
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= LEAST).then_some(best.1)
}

/// `; did you mean NAME?` with the known name that is most like `name`; empty if none is similar.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |known| format!("; did you mean {known}?"))
}
