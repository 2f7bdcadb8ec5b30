//! The files of TLS: of the verbs that connect, and of those that listen.

use std::path::PathBuf;

use reveille::{ClientIdentity, ClientTls, Error, ServerTls};
use serde::Deserialize;

use super::exit::Usage;

/// The arguments of a verb that connects.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ClientTlsArgs {
    /// Trust these authorities, in PEM, for https:// [default: the system's]
    #[arg(long, env = "REVEILLE_CA", value_name = "FILE", help_heading = "TLS")]
    ca: Option<PathBuf>,
    /// The client's certificate, in PEM, if the server asks for one
    #[arg(long, env = "REVEILLE_CERT", value_name = "FILE", help_heading = "TLS")]
    cert: Option<PathBuf>,
    /// The key of --cert
    #[arg(long, env = "REVEILLE_KEY", value_name = "FILE", help_heading = "TLS")]
    key: Option<PathBuf>,
}

/// The table `[tls]` of the configuration file, and the arguments merged with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ClientTlsFiles {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// The arguments of a verb that listens.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ServerTlsArgs {
    /// Serve TLS with this certificate and its chain, in PEM; it is read again when it changes
    #[arg(
        long,
        env = "REVEILLE_TLS_CERT",
        value_name = "FILE",
        help_heading = "TLS"
    )]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert, in PEM
    #[arg(
        long,
        env = "REVEILLE_TLS_KEY",
        value_name = "FILE",
        help_heading = "TLS"
    )]
    tls_key: Option<PathBuf>,
    /// Refuse clients without a certificate of one of these authorities, in PEM
    #[arg(
        long,
        env = "REVEILLE_TLS_CLIENT_CA",
        value_name = "FILE",
        help_heading = "TLS"
    )]
    tls_client_ca: Option<PathBuf>,
}

/// The same of the table `[serve]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServerTlsFiles {
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) client_ca: Option<PathBuf>,
}

impl ClientTlsArgs {
    /// Returns a typed flag of a certificate of the client. A variable may be meant for other verbs.
    pub(super) fn typed(&self) -> Option<&'static str> {
        let files = [
            ("cert", "REVEILLE_CERT", &self.cert),
            ("key", "REVEILLE_KEY", &self.key),
        ];
        let is_typed = |variable, file: &Option<PathBuf>| {
            let stated = file.as_ref().map(|path| path.as_os_str().to_owned());
            stated.is_some() && std::env::var_os(variable) != stated
        };
        let typed = files
            .into_iter()
            .find(|(_, variable, file)| is_typed(*variable, file));
        typed.map(|(flag, ..)| flag)
    }

    /// Merges the arguments with the configuration file.
    pub(super) fn resolve(&self, file: &ClientTlsFiles) -> ClientTlsFiles {
        ClientTlsFiles {
            ca: self.ca.clone().or_else(|| file.ca.clone()),
            cert: self.cert.clone().or_else(|| file.cert.clone()),
            key: self.key.clone().or_else(|| file.key.clone()),
        }
    }
}

impl ClientTlsFiles {
    /// Returns the TLS of a client.
    ///
    /// # Errors
    /// A certificate without its key, or the reverse.
    pub(super) fn config(&self) -> reveille::Result<ClientTls> {
        let identity = match (self.cert.clone(), self.key.clone()) {
            (Some(certificate), Some(key)) => Some(ClientIdentity { certificate, key }),
            (None, None) => None,
            (Some(_), None) => return Err(Error::invalid("key", "must be set with --cert")),
            (None, Some(_)) => return Err(Error::invalid("cert", "must be set with --key")),
        };
        Ok(ClientTls {
            ca: self.ca.clone(),
            identity,
        })
    }
}

impl ServerTlsArgs {
    /// Merges the arguments with the configuration file; `None` is plain text.
    pub(super) fn resolve(self, file: ServerTlsFiles) -> Result<Option<ServerTls>, Usage> {
        let client_ca = self.tls_client_ca.or(file.client_ca);
        match (self.tls_cert.or(file.cert), self.tls_key.or(file.key)) {
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
