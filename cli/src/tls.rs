//! The files of TLS of the verbs that listen.

use std::path::PathBuf;

use reveille::ServerTls;

use super::exit::Usage;

const HEADING: &str = "TLS";

/// The arguments of a verb that listens.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ServerTlsArgs {
    /// Serve TLS with this certificate and its chain, in PEM; it is read again when it changes
    #[arg(long, env = "REVEILLE_TLS_CERT", value_name = "FILE", help_heading = HEADING)]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert, in PEM
    #[arg(long, env = "REVEILLE_TLS_KEY", value_name = "FILE", help_heading = HEADING)]
    tls_key: Option<PathBuf>,
    /// Refuse clients without a certificate of one of these authorities, in PEM
    #[arg(long, env = "REVEILLE_TLS_CLIENT_CA", value_name = "FILE", help_heading = HEADING)]
    tls_client_ca: Option<PathBuf>,
}

impl ServerTlsArgs {
    /// Returns the TLS of a server; `None` is plain text.
    pub(super) fn config(&self) -> Result<Option<ServerTls>, Usage> {
        let client_ca = self.tls_client_ca.clone();
        match (self.tls_cert.clone(), self.tls_key.clone()) {
            (Some(certificate), Some(key)) => Ok(Some(ServerTls {
                certificate,
                key,
                client_ca,
            })),
            (None, None) if client_ca.is_none() => Ok(None),
            (None, _) => Err(Usage("--tls-cert: must be set for TLS".to_owned())),
            (Some(_), None) => Err(Usage("--tls-key: must be set with --tls-cert".to_owned())),
        }
    }
}
