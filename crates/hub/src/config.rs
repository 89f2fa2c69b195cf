//! What a [`Hub`] needs to know about its surroundings, as values.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use crate::caches::Cache;
use crate::catalog::{self, Entry};
use crate::error::{HubError, NOWHERE};
use crate::small::read_small;

/// Follows downloads. Every method may be called from another thread than the caller's.
pub trait Progress: Send + Sync {
    /// The download of `what` begins; `done` of its `total` bytes were there already.
    fn start(&self, what: &str, total: Option<u64>, done: u64);
    /// `done` bytes are there now.
    fn set(&self, done: u64);
    /// Whether anybody waits for the download. It ends if nobody does, and what is there is kept.
    fn is_wanted(&self) -> bool {
        true
    }
    /// The download ended, with or without success.
    fn finish(&self);
    /// Something that the user should know.
    fn note(&self, line: &str);
    /// Something that a user who asks for details may want to know, such as each request.
    fn detail(&self, line: &str);
}

/// A [`Progress`] that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _: &str, _: Option<u64>, _: u64) {}
    fn set(&self, _: u64) {}
    fn finish(&self) {}
    fn note(&self, _: &str) {}
    fn detail(&self, _: &str) {}
}

/// Runs child processes (pip), so that a program can end them when it is interrupted.
pub trait Children: Send + Sync {
    /// Runs `command` to its end. Calls `started` once with the child, to take its pipes, and
    /// `tick` several times per second until the child ends.
    fn run(
        &self,
        command: &mut Command,
        started: &mut dyn FnMut(&mut Child),
        tick: &mut dyn FnMut(),
    ) -> io::Result<ExitStatus>;
}

/// A [`Children`] that only waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unattended;

impl Children for Unattended {
    fn run(
        &self,
        command: &mut Command,
        started: &mut dyn FnMut(&mut Child),
        tick: &mut dyn FnMut(),
    ) -> io::Result<ExitStatus> {
        let mut child = command.spawn()?;
        started(&mut child);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            tick();
            std::thread::sleep(Duration::from_millis(25));
        }
    }
}

/// Where models come from: caches, catalog and network, with the limits of requests.
///
/// ```
/// use thane_hub::{Hub, Places};
///
/// let hub = Hub {
///     offline: true,
///     ..Hub::new(Places::in_folder("/tmp/thane-doc"))
/// };
/// let error = hub.resolve("smolm2-135m").unwrap_err();
/// assert_eq!(error.to_string(), "unknown model `smolm2-135m`; did you mean smollm2-135m?");
/// ```
#[derive(Clone)]
pub struct Hub {
    /// Folders, endpoint, token, proxy.
    pub places: Places,
    /// Whether requests are forbidden; then pip is not started either.
    pub offline: bool,
    /// Attempts of a request that fails for a transient reason; 0 counts as 1.
    pub attempts: u32,
    /// How long a server may send next to nothing before a request counts as failed.
    pub patience: Duration,
    /// Connections at once, where a model has several files.
    pub connections: usize,
    /// The models that have a short name.
    pub catalog: Vec<Entry>,
    /// Follows downloads.
    pub progress: Arc<dyn Progress>,
    /// Runs pip.
    pub children: Arc<dyn Children>,
}

impl Hub {
    /// A hub with the built-in catalog, five attempts per request and 30 s of patience, which
    /// reports nothing.
    pub fn new(places: Places) -> Self {
        Self {
            offline: places.offline,
            places,
            attempts: 5,
            patience: Duration::from_secs(30),
            connections: 4,
            catalog: catalog::builtin(),
            progress: Arc::new(Silent),
            children: Arc::new(Unattended),
        }
    }

    /// Refuses to go on with the download of `what` if nobody waits for it.
    pub(crate) fn check_wanted(&self, what: &str) -> Result<(), HubError> {
        match self.progress.is_wanted() {
            true => Ok(()),
            false => Err(HubError::Unwanted {
                what: what.to_owned(),
            }),
        }
    }

    /// Sleeps, as long as somebody waits for the download of `what`.
    pub(crate) fn sleep(&self, time: Duration, what: &str) -> Result<(), HubError> {
        /// Time between two questions.
        const STEP: Duration = Duration::from_millis(100);
        let mut left = time;
        while !left.is_zero() {
            self.check_wanted(what)?;
            let step = left.min(STEP);
            std::thread::sleep(step);
            left -= step;
        }
        Ok(())
    }
}

/// Folders, endpoint, token, proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Thane's own cache: models of the catalog lie in `models/<name>/` below it.
    pub cache: PathBuf,
    /// A cache in Hugging Face's layout, which other programs share.
    pub hub_cache: PathBuf,
    /// Address of the Hub, without a slash at the end.
    pub endpoint: String,
    /// Access token, sent to the endpoint's host and to no other.
    pub token: Option<String>,
    /// PEM file of certificates to trust instead of Mozilla's; [`Places::trust`] sets it.
    pub certificates: Option<PathBuf>,
    /// Proxy for all requests.
    pub proxy: Option<Proxy>,
    /// Whether `HF_HUB_OFFLINE` forbids requests.
    pub offline: bool,
}

/// A proxy and the hosts that are reached without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Address, such as `http://user:password@host:8080` or `socks5://host`.
    pub uri: String,
    /// Hosts that are reached directly, as in `NO_PROXY`: `host`, `.domain`, `*.domain` or `*`.
    pub bypass: Vec<String>,
}

/// The Hub that models come from by default.
const ENDPOINT: &str = "https://huggingface.co";

impl Places {
    /// The folder of each cache.
    pub(crate) fn caches(&self) -> [(Cache, &Path); 2] {
        [(Cache::Own, &self.cache), (Cache::Hub, &self.hub_cache)]
    }

    /// Both caches below one folder, the public Hub, no token and no proxy.
    pub fn in_folder(cache: impl Into<PathBuf>) -> Self {
        let cache = cache.into();
        Self {
            hub_cache: cache.join("hub"),
            cache,
            endpoint: ENDPOINT.to_owned(),
            token: None,
            certificates: None,
            proxy: None,
            offline: false,
        }
    }

    /// Reads the variables that Hugging Face's own tools read, as `var` looks them up, for example
    /// `|name| std::env::var_os(name)`: `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, `XDG_CACHE_HOME`, `SSL_CERT_FILE`, and those of proxies
    /// (`HTTPS_PROXY`, `NO_PROXY`).
    ///
    /// `cache` is Thane's own cache; `None` for `thane` in the user's cache folder, which an
    /// absolute `XDG_CACHE_HOME` names, or else is `.cache` in `HOME`. A cache that is given also
    /// holds the Hub's files, unless a variable names another folder for them.
    pub fn from_variables(cache: Option<PathBuf>, var: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name: &str| var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let text = |name: &str| {
            var(name)
                .and_then(|v| v.into_string().ok())
                .filter(|v| !v.trim().is_empty())
        };
        // Of the folders of users, relative ones do not count, as XDG's specification says: what
        // they name would change with the working directory.
        let absolute = |name: &str| path(name).filter(|path| path.is_absolute());
        let base = absolute("XDG_CACHE_HOME").unwrap_or_else(|| {
            absolute("HOME")
                .or_else(|| absolute("USERPROFILE"))
                .map_or_else(|| NOWHERE.into(), |home| home.join(".cache"))
        });
        let home = path("HF_HOME");
        let hub_cache = path("HF_HUB_CACHE")
            .or_else(|| home.as_ref().map(|home| home.join("hub")))
            .or_else(|| cache.as_ref().map(|cache| cache.join("hub")))
            .unwrap_or_else(|| base.join("huggingface/hub"));
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| {
            home.unwrap_or_else(|| base.join("huggingface"))
                .join("token")
        });
        Self {
            cache: cache.unwrap_or_else(|| base.join("thane")),
            hub_cache,
            endpoint: text("HF_ENDPOINT").map_or_else(
                || ENDPOINT.to_owned(),
                |e| e.trim().trim_end_matches('/').to_owned(),
            ),
            token: text("HF_TOKEN")
                .map(|t| t.trim().to_owned())
                .or_else(|| read_token(&token_file)),
            certificates: path("SSL_CERT_FILE"),
            proxy: proxy(text),
            offline: text("HF_HUB_OFFLINE").is_some_and(|v| is_yes(&v)),
        }
    }
}

/// The first proxy that the variables name, in the order of curl and ureq.
fn proxy(text: impl Fn(&str) -> Option<String>) -> Option<Proxy> {
    let names = [
        "ALL_PROXY",
        "all_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
    ];
    let uri = names
        .into_iter()
        .filter_map(&text)
        .find(|uri| ureq::Proxy::new(uri).is_ok())?;
    let bypass = text("NO_PROXY").or_else(|| text("no_proxy"));
    Some(Proxy {
        uri,
        bypass: bypass
            .map(|hosts| hosts.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
    })
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
        Places::from_variables(cache.map(PathBuf::from), |name| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn folders_follow_the_variables() {
        type Case<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], &'a str, &'a str);
        let cases: [Case; 8] = [
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
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "x")],
                "/h/.cache/thane",
                "/h/.cache/huggingface/hub",
            ),
            (
                None,
                &[("HOME", "h")],
                "/dev/null/no-cache/thane",
                "/dev/null/no-cache/huggingface/hub",
            ),
            (
                None,
                &[("HF_HUB_CACHE", "/u")],
                "/dev/null/no-cache/thane",
                "/u",
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
                (got.cache.to_str(), got.hub_cache.to_str()),
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

    #[test]
    fn the_first_valid_proxy_counts() {
        let vars = [
            ("ALL_PROXY", "::"),
            ("https_proxy", "http://p:8080"),
            ("HTTP_PROXY", "http://q"),
            ("no_proxy", "a.b,.c"),
        ];
        let want = Proxy {
            uri: "http://p:8080".to_owned(),
            bypass: vec!["a.b".to_owned(), ".c".to_owned()],
        };
        assert_eq!(places(None, &vars).proxy, Some(want));
        assert_eq!(places(None, &[("NO_PROXY", "*")]).proxy, None);
    }
}
