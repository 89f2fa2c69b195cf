//! Suggestions for misspelled names.

use thane_audit::nearest::nearest;

/// `; did you mean NAME?` with the known name that is most like `name`; empty if none is similar.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |known| format!("; did you mean {known}?"))
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn a_similar_name_is_suggested() {
        let names = ["prefill", "decode"];
        assert_eq!(did_you_mean("decod", names), "; did you mean decode?");
        assert_eq!(did_you_mean("zzz", names), "");
    }
}
