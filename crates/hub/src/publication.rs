//! The list of what a repository of the Hub publishes: exact paths, sizes and hashes, and which
//! folders are one package in several forms.
//!
//! `thane push` writes the list as [`PUBLICATION`], and may sign it (see [`crate::sign`]). A pull
//! asks for the files that the list names and for no other, so nothing depends on patterns of file
//! names. The list is the contract between the two: its version is [`SCHEMA`].

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::HubError;
use crate::paths::check_together;
use crate::spec::is_inside;

/// The file with the list.
pub const PUBLICATION: &str = "thane.json";
/// The file with the signature of the list.
pub const SIGNATURE: &str = "thane.json.sig";
/// The version of the list that is written, and the newest one that is read.
pub const SCHEMA: u32 = 1;
/// Bytes of a list at most. A file takes about 200.
pub const MOST_LIST_BYTES: u64 = 4 << 20;
/// Most files of a publication.
pub const MOST_FILES: usize = 10_000;

/// How a package is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A Core ML package, which Xcode and Thane read.
    Mlpackage,
    /// A compiled model, which devices load.
    Mlmodelc,
}

impl Format {
    /// Every form.
    pub const ALL: [Self; 2] = [Self::Mlpackage, Self::Mlmodelc];

    /// The extension of the folder.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Mlpackage => "mlpackage",
            Self::Mlmodelc => "mlmodelc",
        }
    }

    /// The form of a folder by its extension.
    pub fn of_folder(folder: &str) -> Option<Self> {
        let (_, extension) = folder.rsplit_once('.')?;
        Self::ALL.into_iter().find(|f| f.extension() == extension)
    }
}

/// The content of [`PUBLICATION`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// [`SCHEMA`], or an earlier version.
    pub schema: u32,
    /// The program that wrote the list.
    pub generator: String,
    /// `embed` or `generate`; null where the files do not say it.
    pub task: Option<String>,
    /// The model that the packages were made of; null where the files do not say it.
    pub model: Option<String>,
    /// License of the model; null if nobody named one.
    pub license: Option<String>,
    /// The packages of the model.
    pub packages: Vec<PublishedPackage>,
    /// Every file except this list, its signature and the model card.
    pub files: Vec<PublishedFile>,
}

/// A package of a publication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedPackage {
    /// Name without an extension.
    pub name: String,
    /// Tokens that the package takes; null if it takes several lengths, or is a part of a model.
    pub tokens: Option<u64>,
    /// The folder of each form.
    pub forms: BTreeMap<Format, String>,
}

/// A file of a publication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedFile {
    /// Path in the repository.
    pub path: String,
    /// Length.
    pub bytes: u64,
    /// sha256, hexadecimal.
    pub sha256: String,
}

/// Which files of a publication are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Lengths of packages; empty for all packages.
    pub buckets: Vec<u64>,
    /// The form of packages; `None` for packages where there are some, and else compiled models.
    pub format: Option<Format>,
}

impl Selection {
    /// Whether everything is wanted in the form that is usual.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Publication {
    /// Parses and checks a list. `place` is the file, for errors.
    pub fn parse(json: &[u8], place: &str) -> Result<Self, HubError> {
        let bad = |why: String| HubError::BadPublication {
            place: place.to_owned(),
            why,
        };
        let value: Value = serde_json::from_slice(json).map_err(|e| bad(e.to_string()))?;
        check_schema(&value, SCHEMA, place)?;
        let list: Self = serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
        list.check().map_err(bad)?;
        Ok(list)
    }

    /// The JSON of the list.
    pub fn to_json(&self) -> Result<Vec<u8>, HubError> {
        self.check().map_err(|why| HubError::BadPublication {
            place: PUBLICATION.to_owned(),
            why,
        })?;
        let mut json = serde_json::to_vec_pretty(self).unwrap_or_default();
        json.push(b'\n');
        Ok(json)
    }

    /// The first rule that the list breaks, in words.
    fn check(&self) -> Result<(), String> {
        if self.files.len() > MOST_FILES {
            let n = self.files.len();
            return Err(format!("expected at most {MOST_FILES} files, found {n}"));
        }
        if self.files.is_empty() {
            return Err("it lists no files".to_owned());
        }
        for file in &self.files {
            let is_hash = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
            if !is_inside(&file.path) || [PUBLICATION, SIGNATURE].contains(&file.path.as_str()) {
                return Err(format!("`{}` is not the path of a file", file.path));
            }
            if file.sha256.len() != 64 || !file.sha256.bytes().all(is_hash) {
                return Err(format!("`{}` has no sha256", file.path));
            }
        }
        let paths = self.files.iter().map(|file| file.path.as_str());
        check_together([PUBLICATION, SIGNATURE].into_iter().chain(paths))?;
        let mut folders = BTreeSet::new();
        for folder in self.packages.iter().flat_map(|p| p.forms.values()) {
            if !folders.insert(folder) {
                return Err(format!("`{folder}` is the folder of two packages"));
            }
        }
        self.packages.iter().try_for_each(|p| self.check_package(p))
    }

    fn check_package(&self, package: &PublishedPackage) -> Result<(), String> {
        for (format, folder) in &package.forms {
            let is_plain = is_inside(folder) && !folder.contains('/') && !folder.starts_with('.');
            if !is_plain || Format::of_folder(folder) != Some(*format) {
                return Err(format!(
                    "expected the name of a .{} folder, found `{folder}`",
                    format.extension()
                ));
            }
            if !self.files.iter().any(|file| is_below(&file.path, folder)) {
                return Err(format!("`{folder}` has no files"));
            }
        }
        match package.forms.is_empty() {
            true => Err(format!("the package `{}` has no form", package.name)),
            false => Ok(()),
        }
    }
}

/// Whether a path lies below a folder.
pub fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Refuses the version of a list that this program does not know.
pub fn check_schema(list: &Value, newest: u32, place: &str) -> Result<(), HubError> {
    match list["schema"].as_u64() {
        Some(found) if (1..=u64::from(newest)).contains(&found) => Ok(()),
        found => Err(HubError::Schema {
            place: place.to_owned(),
            newest,
            found: short(&list["schema"]),
            is_newer: found.is_some_and(|found| found > u64::from(newest)),
        }),
    }
}

/// A value in a few words.
fn short(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// The packages that are wanted, each with the folder of its form.
pub fn chosen<'a>(
    packages: &'a [PublishedPackage],
    selection: &Selection,
    place: &str,
) -> Result<Vec<(&'a PublishedPackage, &'a str)>, HubError> {
    let bad = |expected: String, found: String| HubError::NoSuchPart {
        place: place.to_owned(),
        expected,
        found,
    };
    let has = |tokens: &u64| packages.iter().any(|p| p.tokens == Some(*tokens));
    if let Some(missing) = selection.buckets.iter().find(|tokens| !has(tokens)) {
        let lengths = packages.iter().filter_map(|p| p.tokens);
        let lengths: Vec<String> = lengths.map(|n| n.to_string()).collect();
        let expected = match lengths.is_empty() {
            true => "no --buckets: its packages are one model together".to_owned(),
            false => format!("--buckets of {}", lengths.join(", ")),
        };
        return Err(bad(expected, missing.to_string()));
    }
    let is_wanted = |p: &&PublishedPackage| {
        selection.buckets.is_empty() || p.tokens.is_some_and(|n| selection.buckets.contains(&n))
    };
    let wanted: Vec<&PublishedPackage> = packages.iter().filter(is_wanted).collect();
    let all_have = |format: &Format| wanted.iter().all(|p| p.forms.contains_key(format));
    let formats: Vec<Format> = Format::ALL.into_iter().filter(all_have).collect();
    let format = match selection.format {
        Some(format) if formats.contains(&format) => Some(format),
        Some(format) => {
            let there: Vec<&str> = formats.iter().map(|f| f.extension()).collect();
            let expected = format!("--format {}", there.join(" or "));
            return Err(bad(expected, format.extension().to_owned()));
        }
        None => formats.first().copied(),
    };
    let form = |p: &'a PublishedPackage| {
        let format = format.or_else(|| p.forms.keys().next().copied())?;
        Some((p, p.forms.get(&format)?.as_str()))
    };
    Ok(wanted.into_iter().filter_map(form).collect())
}

/// Whether a file is wanted: it lies in the folder of a form that was chosen, or in that of none.
pub fn is_wanted(
    path: &str,
    packages: &[PublishedPackage],
    chosen: &[(&PublishedPackage, &str)],
) -> bool {
    let mut folders = packages.iter().flat_map(|p| p.forms.values());
    chosen.iter().any(|(_, folder)| is_below(path, folder))
        || !folders.any(|folder| is_below(path, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Publication {
        let package = |name: &str, tokens: Option<u64>, formats: &[Format]| PublishedPackage {
            name: name.to_owned(),
            tokens,
            forms: formats
                .iter()
                .map(|f| (*f, format!("{name}.{}", f.extension())))
                .collect(),
        };
        let packages = vec![
            package("L128", Some(128), &Format::ALL),
            package("L512", Some(512), &Format::ALL),
            package("any", None, &[Format::Mlpackage]),
        ];
        let folders = packages.iter().flat_map(|p| p.forms.values());
        let file = |path: String| PublishedFile {
            path,
            bytes: 1,
            sha256: "0".repeat(64),
        };
        let mut files: Vec<_> = folders.map(|f| file(format!("{f}/model.mil"))).collect();
        files.push(file("manifest.json".to_owned()));
        Publication {
            schema: SCHEMA,
            generator: "thane".to_owned(),
            task: Some("embed".to_owned()),
            model: None,
            license: None,
            packages,
            files,
        }
    }

    fn names(selection: &Selection) -> Result<Vec<String>, String> {
        let list = list();
        let chosen = chosen(&list.packages, selection, "x").map_err(|e| e.to_string())?;
        let files = list.files.iter().map(|f| f.path.clone());
        Ok(files
            .filter(|path| is_wanted(path, &list.packages, &chosen))
            .collect())
    }

    #[test]
    fn files_are_chosen_by_length_and_form() {
        let select = |buckets: &[u64], format| Selection {
            buckets: buckets.to_vec(),
            format,
        };
        let all = names(&select(&[], None)).unwrap();
        assert_eq!(
            all,
            [
                "L128.mlpackage/model.mil",
                "L512.mlpackage/model.mil",
                "any.mlpackage/model.mil",
                "manifest.json"
            ]
        );
        let compiled = names(&select(&[512], Some(Format::Mlmodelc))).unwrap();
        assert_eq!(compiled, ["L512.mlmodelc/model.mil", "manifest.json"]);
        assert_eq!(
            names(&select(&[256], None)).unwrap_err(),
            "x: expected --buckets of 128, 512, found 256"
        );
        assert_eq!(
            names(&select(&[], Some(Format::Mlmodelc))).unwrap_err(),
            "x: expected --format mlpackage, found mlmodelc"
        );
    }

    #[test]
    fn lists_that_cannot_be_trusted_are_refused() {
        let parse = |change: &dyn Fn(&mut Publication)| {
            let mut list = list();
            change(&mut list);
            let json = serde_json::to_vec(&list).unwrap();
            Publication::parse(&json, "x").map_err(|e| e.to_string())
        };
        assert_eq!(parse(&|_| ()).unwrap(), list());
        for (change, said) in [
            (
                (|l: &mut Publication| l.files[0].path = "../x".to_owned()) as fn(&mut _),
                "`../x` is not the path",
            ),
            (|l| l.files[0].path = "/x".to_owned(), "`/x` is not"),
            (
                |l| l.files[0].path = PUBLICATION.to_owned(),
                "`thane.json` is not",
            ),
            (|l| l.files[0].sha256 = "0".repeat(63), "has no sha256"),
            (
                |l| l.files[0].path = "MANIFEST.json".to_owned(),
                "is there twice",
            ),
            (|l| l.packages[0].forms.clear(), "has no form"),
            (|l| l.schema = 2, "expected schema 1, found 2"),
            (|l| l.schema = 0, "expected schema 1, found 0"),
            (
                |l| l.files[0].path = "Thane.json".to_owned(),
                "is there twice",
            ),
            (
                |l| l.files[0].path = "thane.json.SIG/a".to_owned(),
                "`thane.json.sig` is a file and a folder",
            ),
            (|l| l.files.clear(), "it lists no files"),
            (
                |l| l.packages[1].forms = l.packages[0].forms.clone(),
                "`L128.mlpackage` is the folder of two packages",
            ),
            (
                |l| {
                    drop(
                        l.packages[0]
                            .forms
                            .insert(Format::Mlpackage, "../x.mlpackage".into()),
                    )
                },
                "expected the name of a .mlpackage folder",
            ),
            (
                |l| l.files = vec![l.files[0].clone(); MOST_FILES + 1],
                "expected at most 10000 files, found 10001",
            ),
        ] {
            let error = parse(&change).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        for (schema, said) in [
            ("\"1\"", "a text"),
            ("null", "none"),
            ("true", "true"),
            ("-1", "-1"),
            ("1.0", "1.0"),
            ("[1]", "a list"),
        ] {
            let mut list = serde_json::to_value(list()).unwrap();
            list["schema"] = serde_json::from_str(schema).unwrap();
            let error = Publication::parse(list.to_string().as_bytes(), "x").unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("x: expected schema 1, found {said}")
            );
        }
    }
}
