//! Everything the hub needs to know about its surroundings, as values: it reads no environment
//! itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thane_mil::package::read_small;

use super::catalogue::Entry;
use crate::interrupt::Interrupt;

/// Told how far a download has come.
pub trait Progress: Send + Sync {
    /// `what` begins; `done` bytes of it were there already.
    fn start(&self, what: &str, total: Option<u64>, done: u64);
    fn set(&self, done: u64);
    fn finish(&self);
    /// A line for the user.
    fn note(&self, line: &str);
    /// A line for the user who asks for more.
    fn detail(&self, line: &str);
}

/// Where things are and what may be used.
pub struct HubContext {
    pub places: Places,
    /// No request leaves the machine, and pip is not started.
    pub offline: bool,
    /// How often a request that failed in passing is made, at least once.
    pub attempts: u32,
    /// How long a server may send next to nothing.
    pub patience: Duration,
    pub catalogue: Vec<Entry>,
    pub progress: Arc<dyn Progress>,
    pub interrupt: Interrupt,
}

/// Folders, endpoint and token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Thane's own cache: `models/<name>/` below it.
    pub cache: PathBuf,
    /// A cache in Hugging Face's layout, which other programs share.
    pub hub: PathBuf,
    /// Without a slash at the end.
    pub endpoint: String,
    /// Sent to the endpoint's host and to no other.
    pub token: Option<String>,
    /// Certificates to trust instead of Mozilla's, as PEM.
    pub certificates: Option<PathBuf>,
    /// `HF_HUB_OFFLINE`.
    pub offline: bool,
}

const ENDPOINT: &str = "https://huggingface.co";

impl Places {
    /// From variables that `var` looks up (`THANE_CACHE` counts as `cache`), by the rules that
    /// Hugging Face's own tools follow. A cache that was asked for by name holds the Hub's files
    /// too, unless those have their own.
    pub fn new(cache: Option<PathBuf>, var: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name: &str| var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let text = |name: &str| {
            var(name)
                .and_then(|v| v.into_string().ok())
                .filter(|v| !v.trim().is_empty())
        };
        let base = path("XDG_CACHE_HOME").unwrap_or_else(|| {
            path("HOME")
                .or_else(|| path("USERPROFILE"))
                .map_or_else(|| ".cache".into(), |home| home.join(".cache"))
        });
        let home = path("HF_HOME");
        let hub = path("HF_HUB_CACHE")
            .or_else(|| home.as_ref().map(|home| home.join("hub")))
            .or_else(|| cache.as_ref().map(|cache| cache.join("hub")))
            .unwrap_or_else(|| base.join("huggingface/hub"));
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| {
            home.unwrap_or_else(|| base.join("huggingface"))
                .join("token")
        });
        Self {
            cache: cache.unwrap_or_else(|| base.join("thane")),
            hub,
            endpoint: text("HF_ENDPOINT").map_or_else(
                || ENDPOINT.to_owned(),
                |e| e.trim().trim_end_matches('/').to_owned(),
            ),
            token: text("HF_TOKEN")
                .map(|t| t.trim().to_owned())
                .or_else(|| read_token(&token_file)),
            certificates: path("SSL_CERT_FILE"),
            offline: text("HF_HUB_OFFLINE").is_some_and(|v| is_yes(&v)),
        }
    }
}

fn read_token(path: &Path) -> Option<String> {
    let text = String::from_utf8(read_small(path, 1 << 16).ok()?).ok()?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

fn is_yes(text: &str) -> bool {
    matches!(
        text.trim().to_ascii_lowercase().as_str(),
        "1" | "true" | "yes" | "on"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(cache: Option<&str>, vars: &[(&str, &str)]) -> Places {
        Places::new(cache.map(PathBuf::from), |name| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn folders_follow_the_variables() {
        type Case<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], &'a str, &'a str);
        let cases: [Case; 5] = [
            (
                None,
                &[("HOME", "/h")],
                "/h/.cache/thane",
                "/h/.cache/huggingface/hub",
            ),
            (
                None,
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
                "/x/thane",
                "/x/huggingface/hub",
            ),
            (
                None,
                &[("HOME", "/h"), ("HF_HOME", "/f")],
                "/h/.cache/thane",
                "/f/hub",
            ),
            (Some("/c"), &[("HOME", "/h")], "/c", "/c/hub"),
            (
                Some("/c"),
                &[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/u")],
                "/c",
                "/u",
            ),
        ];
        for (cache, vars, own, hub) in cases {
            let got = places(cache, vars);
            assert_eq!(
                (got.cache.to_str(), got.hub.to_str()),
                (Some(own), Some(hub)),
                "{vars:?}"
            );
        }
    }

    #[test]
    fn endpoint_token_and_offline() {
        let got = places(
            None,
            &[
                ("HF_ENDPOINT", "http://m/"),
                ("HF_TOKEN", " t\n"),
                ("HF_HUB_OFFLINE", "ON"),
            ],
        );
        assert_eq!(
            (got.endpoint.as_str(), got.token.as_deref(), got.offline),
            ("http://m", Some("t"), true)
        );
        assert_eq!(places(None, &[("HF_HUB_OFFLINE", "0")]).endpoint, ENDPOINT);
    }
}
