//! TLS: connections that nobody on the way can read.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error, ServerConfig};

/// A certificate and its key.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of the certificate has none.
    #[error("expected certificates in PEM (BEGIN CERTIFICATE), {0}")]
    Certificate(&'static str),
    /// The file of the key has none.
    #[error("expected a private key in PEM without a password (BEGIN PRIVATE KEY), {0}")]
    Key(&'static str),
    /// They are not one another's, or of a kind that is not supported.
    #[error("the certificate and the key cannot be used together: {0}")]
    Pair(Error),
}

impl Tls {
    /// Reads a certificate, with those that vouch for it behind, and its private key, both in PEM.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let chain = chain.map_err(|e| TlsError::Certificate(found(&e)))?;
        if chain.is_empty() {
            return Err(TlsError::Certificate(found(&pem::Error::NoItemsFound)));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| TlsError::Key(found(&e)))?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
        let mut config = config.map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let config = Arc::new(config);
        Ok(Self { config })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// What was there instead.
fn found(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::NoItemsFound => "found none",
        pem::Error::MissingSectionEnd { .. } => "found one without its END line",
        pem::Error::Base64Decode(_) => "found one that is not base64",
        _ => "found a damaged file",
    }
}
