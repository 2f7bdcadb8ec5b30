//! TLS of the client: the trusted authorities, and the client's certificate.
//!
//! The configuration names its cryptography library, so that nothing has to be installed for the
//! process.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier,
    client::WantsClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use rustls_platform_verifier::BuilderVerifierExt as _;

use super::{
    NatsConfig,
    login::{read_file, unfit},
};
use crate::{
    base::pem::{without_key, without_mark},
    error::{Error, Result},
};

/// Reads the files. Blocks.
///
/// # Errors
/// `Invalid`, with the setting whose file cannot be used.
pub(super) fn client_config(config: &NatsConfig) -> Result<ClientConfig> {
    let builder = builder()?;
    let builder = match &config.ca {
        Some(path) => builder.with_root_certificates(roots(path)?),
        None => system_roots(builder, config.requires_tls())?,
    };
    match (&config.cert, &config.key) {
        (Some(cert), Some(key)) => with_certificate(builder, cert, key),
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    let provider = Arc::new(ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("cluster", error))
}

/// A machine without authorities can still use NATS in plain text: TLS then trusts no server.
fn system_roots(
    plain: ConfigBuilder<ClientConfig, WantsVerifier>,
    is_required: bool,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    match plain.with_platform_verifier() {
        Ok(builder) => Ok(builder),
        Err(error) if is_required => {
            let rule =
                format_args!("must be set: the system's authorities cannot be read: {error}");
            Err(Error::invalid("cluster_ca", rule))
        }
        Err(_) => Ok(builder()?.with_root_certificates(RootCertStore::empty())),
    }
}

fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in certificates("cluster_ca", path)? {
        roots
            .add(authority)
            .map_err(|error| unfit("cluster_ca", path, &error.to_string()))?;
    }
    Ok(roots)
}

fn with_certificate(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    cert: &Path,
    key_path: &Path,
) -> Result<ClientConfig> {
    let chain = certificates("cluster_cert", cert)?;
    let pem = without_mark(read_file("cluster_key", key_path)?);
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| unfit("cluster_key", key_path, without_key(&pem)))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| unfit("cluster_key", key_path, &error.to_string()))
}

fn certificates(setting: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = without_mark(read_file(setting, path)?);
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(unfit(setting, path, "no certificate in PEM")),
    }
}
