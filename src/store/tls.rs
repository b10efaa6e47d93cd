//! TLS: the server's certificate is always verified, by the roots of the settings, or else the system's.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::{
    Result, StoreError,
    files::{Files, unusable},
    settings::Access,
};

/// The settings of one connection, with all certificates read anew.
pub async fn client(access: &Access, files: &Files) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &access.ca_file {
        // Only the configured authorities are trusted: a password must not go to a server with a certificate of some
        // public authority.
        for certificate in certificates(path, files).await? {
            roots
                .add(certificate)
                .map_err(|error| unusable(path, &error))?;
        }
    } else {
        // A system without roots adds none. The connect then reports the certificate that cannot be verified.
        let native = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
        roots.add_parsable_certificates(native.map(|native| native.certs).unwrap_or_default());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Unfit(format!("TLS: {error}")))?
        .with_root_certificates(roots);
    let (Some(certificate), Some(key)) = (&access.certificate, &access.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let secret = PrivateKeyDer::from_pem_slice(files.read(key).await?.as_bytes())
        .map_err(|error| unusable(key, &error))?;
    builder
        .with_client_auth_cert(certificates(certificate, files).await?, secret)
        .map_err(|error| unusable(key, &error))
}

async fn certificates(path: &Path, files: &Files) -> Result<Vec<CertificateDer<'static>>> {
    let text = files.read(path).await?;
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(path, &error))
}
