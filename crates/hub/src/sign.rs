//! Signatures of publications: ed25519 over the bytes of the list of files.
//!
//! Keys are files as openssl writes them: `openssl genpkey -algorithm ed25519` makes a private key,
//! `openssl pkey -pubout` the public one. A signature is its 64 bytes, which
//! `openssl pkeyutl -verify -rawin` checks too.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::error::HubError;
use crate::small::read_small;

/// Bytes of a public key.
const KEY_BYTES: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;
/// What stands before the key in the DER form of a public key (RFC 8410).
const DER_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A private key that signs publications.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Reads a private key in PEM.
    pub fn read(path: &Path) -> Result<Self, HubError> {
        let bad = |why: &str| HubError::BadKey {
            key: path.display().to_string(),
            signs: true,
            why: why.to_owned(),
        };
        let text = read_small(path, 1 << 16).map_err(|e| bad(&e.to_string()))?;
        let text = String::from_utf8(text).map_err(|_| bad("it is no PEM file"))?;
        let der = pem(&text, "PRIVATE KEY").ok_or_else(|| bad("it has no PRIVATE KEY in PEM"))?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der);
        Ok(Self(pair.map_err(|_| bad("it is no key of ed25519"))?))
    }

    /// The signature of bytes.
    pub fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.0.sign(bytes).as_ref().to_vec()
    }

    /// The public key in base64, as [`PublicKey::parse`] takes it.
    pub fn public(&self) -> String {
        STANDARD.encode(self.0.public_key().as_ref())
    }
}

/// A public key that publications must be signed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// Parses the path of a PEM file, or the 32 bytes of a key in base64.
    pub fn parse(key: &str) -> Result<Self, HubError> {
        let bad = |why: &str| HubError::BadKey {
            key: key.to_owned(),
            signs: false,
            why: why.to_owned(),
        };
        let plain = STANDARD.decode(key).ok();
        if let Some(bytes) = plain.and_then(|bytes| bytes.try_into().ok()) {
            return Ok(Self(bytes));
        }
        let path = Path::new(key);
        if !path.is_file() {
            return Err(bad("it is no file, and no 32 bytes in base64"));
        }
        let text = read_small(path, 1 << 16).map_err(|e| bad(&e.to_string()))?;
        let text = String::from_utf8(text).map_err(|_| bad("it is no PEM file"))?;
        let der = pem(&text, "PUBLIC KEY").ok_or_else(|| bad("it has no PUBLIC KEY in PEM"))?;
        let bytes = der.strip_prefix(&DER_HEAD).map(<[u8; KEY_BYTES]>::try_from);
        match bytes {
            Some(Ok(bytes)) => Ok(Self(bytes)),
            _ => Err(bad("it is no key of ed25519")),
        }
    }

    /// Whether a signature of bytes is that of this key.
    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0)
            .verify(bytes, signature)
            .is_ok()
    }
}

/// The bytes of the part of a PEM file that has this label.
fn pem(text: &str, label: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    let body: String = body.split_whitespace().collect();
    STANDARD.decode(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first test of RFC 8032, 7.1: key, public key and signature of the empty message. The PEM
    /// form of the key is that of `openssl pkey -inform DER`.
    #[test]
    fn signatures_are_those_of_the_standard() {
        let folder = tempfile::tempdir().unwrap();
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        let signature = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb88215\
                         90a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b";
        let pem = |label: &str, head: &[u8], key: &str| {
            let der = STANDARD.encode([head, &hex(key)].concat());
            format!("-----BEGIN {label}-----\n{der}\n-----END {label}-----\n")
        };
        let head = hex("302e020100300506032b657004220420");
        let paths = ["key.pem", "public.pem"].map(|name| folder.path().join(name));
        std::fs::write(&paths[0], pem("PRIVATE KEY", &head, seed)).unwrap();
        std::fs::write(&paths[1], pem("PUBLIC KEY", &DER_HEAD, public)).unwrap();
        let key = SigningKey::read(&paths[0]).unwrap();
        assert_eq!(key.sign(b""), hex(signature));
        assert_eq!(key.public(), STANDARD.encode(hex(public)));
        for named in [paths[1].to_str().unwrap(), &key.public()] {
            let public = PublicKey::parse(named).unwrap();
            assert!(public.verifies(b"", &hex(signature)));
            assert!(!public.verifies(b"x", &hex(signature)));
            assert!(!public.verifies(b"", &hex(signature)[1..]));
        }
        for named in [paths[0].to_str().unwrap(), "x", ""] {
            assert!(PublicKey::parse(named).is_err(), "{named}");
        }
        assert!(SigningKey::read(&paths[1]).is_err());
    }

    fn hex(text: &str) -> Vec<u8> {
        let byte = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    }
}
