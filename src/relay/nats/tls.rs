//! TLS of the client: the trusted authorities, and the client's certificate.
//!
//! The configuration names its cryptography library, so that nothing has to be installed for the
//! process.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier, client::WantsClientCert,
    crypto::ring,
};
use rustls_platform_verifier::BuilderVerifierExt as _;

use super::{NatsConfig, login::read_file};
use crate::{
    base::pem::PemFile,
    error::{Error, Result},
};

/// Reads the files. Blocks.
///
/// # Errors
/// `Invalid`, with the setting whose file cannot be used.
pub(super) fn client_config(config: &NatsConfig) -> Result<ClientConfig> {
    let builder = builder()?;
    let builder = match &config.ca {
        Some(path) => builder.with_root_certificates(read("cluster_ca", path)?.roots()?),
        None => system_roots(builder, config.requires_tls())?,
    };
    match (&config.cert, &config.key) {
        (Some(cert), Some(key)) => {
            let chain = read("cluster_cert", cert)?.certificates()?;
            let file = read("cluster_key", key)?;
            builder
                .with_client_auth_cert(chain, file.key()?)
                .map_err(|error| file.unfit(error))
        }
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

fn read(setting: &'static str, path: &Path) -> Result<PemFile> {
    Ok(PemFile::new(setting, path, read_file(setting, path)?))
}
