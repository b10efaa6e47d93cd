//! TLS: the server's certificate is always verified, by the roots of the settings, or else the system's.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::store::StoreError;
use crate::store::files::{Files, unusable};
use crate::store::settings::Tls;

/// Makes the TLS connector, and reads all certificates anew.
pub(super) async fn connector(config: &Config, tls: &Tls, files: &Files) -> Result<MakeRustlsConnect, StoreError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &tls.ca_file {
        // Only the configured authorities are trusted: a password must not go to a server with a certificate of some
        // public authority.
        for certificate in certificates(path, files).await? {
            roots.add(certificate).map_err(|error| unusable(path, &error))?;
        }
    } else if config.get_ssl_mode() != SslMode::Disable {
        // A system without roots adds none. The connect then reports the certificate that cannot be verified.
        let native = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
        roots.add_parsable_certificates(native.map(|native| native.certs).unwrap_or_default());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Unfit(format!("TLS: {error}")))?
        .with_root_certificates(roots);
    let mut client = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let text = files.read(key).await?;
            let secret =
                PrivateKeyDer::from_pem_slice(text.expose().as_bytes()).map_err(|error| unusable(key, &error))?;
            let certificates = certificates(certificate, files).await?;
            builder.with_client_auth_cert(certificates, secret).map_err(|error| unusable(key, &error))?
        }
    };
    if config.get_ssl_negotiation() == SslNegotiation::Direct {
        client.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(MakeRustlsConnect::new(client))
}

async fn certificates(path: &Path, files: &Files) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let text = files.read(path).await?;
    let read = CertificateDer::pem_slice_iter(text.expose().as_bytes()).collect::<Result<Vec<_>, pem::Error>>();
    read.map_err(|error| unusable(path, &error))
}
