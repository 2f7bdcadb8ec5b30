//! The TLS files and the credential of what connects. The credential is from a file or a variable, never
//! from an argument, which other users of the machine can read.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use reveille::{ClientConfig, ClientTls, Credential};

use super::output;

/// The variable with a token. The commands of a verb do not get it: they handle the messages of
/// others.
pub(crate) const VARIABLE: &str = "REVEILLE_TOKEN";

/// The arguments of a verb that connects.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ClientArgs {
    /// Trust these authorities, in PEM, for https:// [default: the system's]
    #[arg(long, env = "REVEILLE_CA", value_name = "FILE", help_heading = "TLS")]
    ca: Option<PathBuf>,
    /// The client's certificate, in PEM, if the server asks for one
    #[arg(long, env = "REVEILLE_CERT", value_name = "FILE", help_heading = "TLS")]
    pub(super) cert: Option<PathBuf>,
    /// The key of --cert
    #[arg(long, env = "REVEILLE_KEY", value_name = "FILE", help_heading = "TLS")]
    key: Option<PathBuf>,
    /// The file with the token of this client, read for each request; or the variable REVEILLE_TOKEN
    /// has the token
    #[arg(
        long,
        env = "REVEILLE_TOKEN_FILE",
        value_name = "FILE",
        help_heading = "Relay"
    )]
    token_file: Option<PathBuf>,
}

impl ClientArgs {
    /// # Errors
    /// A certificate without its key, or the reverse.
    pub(super) fn config(&self, insecure: bool) -> reveille::Result<ClientConfig> {
        let credential = match (&self.token_file, of_variable()) {
            (Some(path), _) => of_file(path),
            (None, Some(text)) => Credential::text(&text),
            (None, None) => Credential::default(),
        };
        Ok(ClientConfig {
            tls: ClientTls::new(self.ca.clone(), self.cert.clone(), self.key.clone())?,
            credential,
            insecure,
            ..ClientConfig::default()
        })
    }
}

/// Returns the credential of the variable, which wins over the configuration file.
pub(super) fn of_variable() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|text| !text.is_empty())
}

fn of_file(path: &Path) -> Credential {
    let mode = path.metadata().map(|file| file.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o004 != 0) {
        let path = path.display();
        output::note(format_args!(
            "every user of this machine can read the token in `{path}`: chmod 600 it"
        ));
    }
    Credential::file(path)
}
