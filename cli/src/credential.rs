//! The credential of the verbs that connect: from a file or a variable, never from an argument, which
//! other users of the machine can read.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use reveille::Credential;

use super::output;

/// The variable with a token. The commands of a verb do not get it: they handle the messages of
/// others.
pub(crate) const VARIABLE: &str = "REVEILLE_TOKEN";

/// The arguments of a verb that connects.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct CredentialArgs {
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

impl CredentialArgs {
    pub(super) fn resolve(&self) -> Credential {
        match (&self.token_file, of_variable()) {
            (Some(path), _) => of_file(path),
            (None, Some(text)) => Credential::text(&text),
            (None, None) => Credential::default(),
        }
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
