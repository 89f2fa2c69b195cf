//! The certificates that connections trust.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::config::{Hub, Places};
use crate::error::HubError;
use crate::small::read_small;

/// Bytes of a certificate file at most. Mozilla's certificates are 0.2 MB.
const MAX_CERTIFICATES_BYTES: u64 = 16 << 20;

impl Hub {
    /// The certificates that connections trust: those of [`Places::certificates`], which replace
    /// Mozilla's. If the file is of no use, that is noted, and Mozilla's count.
    pub fn tls(&self) -> TlsConfig {
        let builder = TlsConfig::builder();
        let found = self.places.certificates.as_deref().map(certificates);
        match found {
            None => builder.build(),
            Some(Ok(found)) => {
                let roots = RootCerts::Specific(Arc::new(found));
                builder.root_certs(roots).build()
            }
            Some(Err(error)) => {
                self.progress.note(&error.to_string());
                builder.build()
            }
        }
    }
}

impl Places {
    /// Trusts the certificates of a PEM file instead of others. Returns an error if there are none.
    pub fn trust(&mut self, file: PathBuf) -> Result<(), HubError> {
        certificates(&file)?;
        self.certificates = Some(file);
        Ok(())
    }
}

/// The certificates of a PEM file; an error if there are none.
fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, HubError> {
    let bad = |why: String| HubError::BadCertificates {
        path: path.to_owned(),
        why,
    };
    let pem = read_small(path, MAX_CERTIFICATES_BYTES).map_err(|e| bad(e.to_string()))?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(e) => return Err(bad(format!("expected certificates in PEM, found {e}"))),
        }
    }
    if found.is_empty() {
        let why = "expected certificates in PEM (BEGIN CERTIFICATE), found none";
        return Err(bad(why.to_owned()));
    }
    // ureq leaves out what is no certificate, and every connection would fail.
    let mut roots = RootCertStore::empty();
    for (idx, certificate) in found.iter().enumerate() {
        let added = roots.add(CertificateDer::from(certificate.der()));
        added.map_err(|e| bad(format!("block {} is no certificate: {e}", idx + 1)))?;
    }
    Ok(found)
}
