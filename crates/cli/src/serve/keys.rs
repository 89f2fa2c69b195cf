//! The keys of clients, from flags and a file; the certificate of the server.

use std::path::Path;

use thane_serve::{Tls, TlsError};

use crate::exit::Failure;
use crate::small::read_small;

/// All keys. An empty one is an error, because every client would have it.
pub fn all(given: &[String], file: Option<&Path>) -> Result<Vec<String>, Failure> {
    let mut keys: Vec<String> = given.iter().map(|key| key.trim().to_owned()).collect();
    if keys.iter().any(String::is_empty) {
        return Err(
            usage!("expected a key that is not empty, found an empty --api-key")
                .remedy("--api-key with a long random text"),
        );
    }
    if let Some(path) = file {
        let bytes = read_small(path)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| usage!("{}: expected keys in UTF-8", path.display()))?;
        let lines = text.lines().map(str::trim);
        let found = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let n_before = keys.len();
        keys.extend(found.map(str::to_owned));
        if keys.len() == n_before {
            let failure = usage!("{}: expected keys, found none", path.display());
            return Err(failure.remedy("a file with a long random text on each line"));
        }
    }
    match keys.iter().position(|key| !is_sent(key)) {
        None => Ok(keys),
        Some(at) => {
            let place = match file.filter(|_| at >= given.len()) {
                Some(path) => format!("{}: key {}", path.display(), at - given.len() + 1),
                None => format!("--api-key: key {}", at + 1),
            };
            Err(usage!(
                "{place}: expected ASCII letters, digits, punctuation and spaces, which is what a \
                 header carries"
            )
            .remedy("a long random text of letters and digits"))
        }
    }
}

/// Whether clients can send a key: the rest of a header is read in many ways.
fn is_sent(key: &str) -> bool {
    key.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
}

/// The certificate in one file with the key in another.
pub fn tls(certificate: &Path, key: &Path) -> Result<Tls, Failure> {
    Tls::from_pem(&read_small(certificate)?, &read_small(key)?).map_err(|error| {
        let path = match &error {
            TlsError::Key(_) => key.display().to_string(),
            TlsError::Certificate(_) => certificate.display().to_string(),
            TlsError::Pair(_) => format!("{}, {}", certificate.display(), key.display()),
        };
        usage!("{path}: {error}")
    })
}
