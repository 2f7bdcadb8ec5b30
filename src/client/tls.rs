//! TLS of a client: whom it trusts, and how it shows who it is.

use std::path::PathBuf;

/// The TLS of a client of `https://` URLs. The server's name is always checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The certificates of the authorities that the client trusts, in PEM. Default: the system's.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its chain, and the key, in PEM. Default: none.
    pub identity: Option<ClientIdentity>,
}

/// The files of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The certificate and its chain, the client's own first.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
}

#[cfg(feature = "tls")]
mod with_tls {
    use std::{fs, path::Path};

    use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

    use super::ClientTls;
    use crate::{
        base::causes::with_causes,
        error::{Error, Result},
    };

    /// The begin of a certificate in PEM; without one, no server would be trusted.
    const MARK: &[u8] = b"-----BEGIN CERTIFICATE-----";

    impl ClientTls {
        /// Makes the connections of an endpoint use TLS. Reads the files.
        ///
        /// # Errors
        /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the file that cannot be read, or
        /// that does not fit.
        pub(crate) fn apply(&self, endpoint: Endpoint) -> Result<Endpoint> {
            let mut config = ClientTlsConfig::new();
            config = match &self.ca {
                Some(path) => {
                    let pem = read("ca", path)?;
                    if !pem.windows(MARK.len()).any(|part| part == MARK) {
                        let rule = format_args!("`{}` has no certificate in PEM", path.display());
                        return Err(Error::invalid("ca", rule));
                    }
                    config.ca_certificate(Certificate::from_pem(pem))
                }
                None => config.with_native_roots(),
            };
            if let Some(identity) = &self.identity {
                let certificate = read("cert", &identity.certificate)?;
                let key = read("key", &identity.key)?;
                config = config.identity(Identity::from_pem(certificate, key));
            }
            endpoint.tls_config(config).map_err(|error| {
                let files = [
                    self.ca.as_deref(),
                    self.identity.as_ref().map(|one| &*one.certificate),
                    self.identity.as_ref().map(|one| &*one.key),
                ];
                let files: Vec<_> = files.into_iter().flatten().map(Path::display).collect();
                let files = files.iter().map(ToString::to_string).collect::<Vec<_>>();
                let rule = format_args!("{}: {}", files.join(", "), with_causes(&error));
                Error::invalid("tls", rule)
            })
        }
    }

    fn read(field: &'static str, path: &Path) -> Result<Vec<u8>> {
        fs::read(path).map_err(|error| {
            let rule = format_args!("`{}` cannot be read: {error}", path.display());
            Error::invalid(field, rule)
        })
    }
}

#[cfg(not(feature = "tls"))]
impl ClientTls {
    /// Refuses TLS.
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn apply(
        &self,
        _endpoint: tonic::transport::Endpoint,
    ) -> crate::Result<tonic::transport::Endpoint> {
        let rule = "asks for TLS, which needs the feature `tls` of reveille";
        Err(crate::Error::invalid("relay", rule))
    }
}
