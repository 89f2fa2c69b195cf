//! Whether files can lie in one folder on every file system.
//!
//! File systems of macOS and Windows ignore case, and macOS takes a letter with its accent and the
//! same two as separate characters for one name. Paths that differ in nothing else would be one
//! file there, and the last one that is written would win.

use std::collections::BTreeMap;

use unicode_normalization_alignments::UnicodeNormalization;

/// Bytes of a path at most. macOS takes 1024, and the cache has a folder before it.
const MOST_PATH_BYTES: usize = 800;
/// Bytes of the name of a file or folder at most, as of most file systems.
const MOST_NAME_BYTES: usize = 255;

/// The first reason why some files cannot lie in one folder, in words.
pub fn check_together<'a>(paths: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let (mut files, mut folders) = (BTreeMap::new(), BTreeMap::new());
    for path in paths {
        let is_long = path.split('/').any(|name| name.len() > MOST_NAME_BYTES);
        if is_long || path.len() > MOST_PATH_BYTES {
            let (start, n): (String, usize) = (path.chars().take(40).collect(), path.len());
            return Err(format!("`{start}..` is too long for a path ({n} bytes)"));
        }
        let folded = folded(path);
        let ends = path.match_indices('/').zip(folded.match_indices('/'));
        for ((end, _), (end_folded, _)) in ends {
            let folder = &path[..end];
            match folders.insert(folded[..end_folded].to_owned(), folder) {
                Some(other) if other != folder => return Err(alike(folder, other)),
                _ => {}
            }
        }
        match files.insert(folded, path) {
            Some(other) if other != path => return Err(alike(path, other)),
            Some(_) => return Err(format!("`{path}` is there twice")),
            None => {}
        }
    }
    let both = files.iter().find(|(path, _)| folders.contains_key(*path));
    both.map_or(Ok(()), |(_, path)| {
        Err(format!("`{path}` is a file and a folder"))
    })
}

fn alike(one: &str, other: &str) -> String {
    format!("`{one}` is there twice: where names ignore case and accents, `{other}` is the same")
}

/// The same text for all paths that one file system takes for the same.
fn folded(path: &str) -> String {
    if path.is_ascii() {
        return path.to_ascii_lowercase();
    }
    let decomposed = |text: &str| -> String { text.nfd().map(|(letter, _)| letter).collect() };
    // Some letters, such as the long s, have a capital only in common with another one.
    decomposed(&decomposed(path).to_uppercase().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_one_folder_cannot_have_are_refused() {
        let check = |paths: &[&str]| check_together(paths.iter().copied());
        for paths in [
            &["a", "b/a", "b/c/a", "b/d"][..],
            &["a.b", "a/b", "ab"],
            &["e", "\u{e9}", "e\u{302}"],
            &[],
        ] {
            assert_eq!(check(paths), Ok(()), "{paths:?}");
        }
        let long = "x".repeat(256);
        let deep = "d/".repeat(400) + "d";
        for (paths, said) in [
            (&["a", "a"][..], "`a` is there twice"),
            (&["a/b", "A/B"], "`a` is the same"),
            (&["a/b", "A/c"], "`A` is there twice: "),
            (&["thane.json", "THANE.JSON"], "`thane.json` is the same"),
            (&["\u{e9}", "e\u{301}"], "is the same"),
            (&["\u{c9}/a", "e\u{301}/b"], "is the same"),
            (&["s", "\u{17f}"], "`s` is the same"),
            (&["k", "\u{212a}"], "`k` is the same"),
            (&["stra\u{df}e", "STRASSE"], "is the same"),
            (&["\u{3b1}\u{3c2}", "\u{391}\u{3a3}"], "is the same"),
            (&["a\u{323}\u{301}", "a\u{301}\u{323}"], "is the same"),
            (&["a", "a/b"], "`a` is a file and a folder"),
            (&["a/b/c", "A/B"], "is there twice"),
            (&["a/b/c", "a/B"], "`a/B` is a file and a folder"),
            (&[&long], "is too long for a path (256 bytes)"),
            (&[&deep], "is too long for a path (801 bytes)"),
        ] {
            let error = check(paths).unwrap_err();
            assert!(error.contains(said), "{paths:?}: {error}");
        }
    }
}
