//! The configuration of a client from the variables of the process.

use std::{env, ffi::OsString, path::PathBuf};

use super::{ClientConfig, ClientIdentity, ClientTls, Credential};
use crate::error::{Error, Result};

impl ClientConfig {
    /// Returns the configuration by the variables that the command line reads as well: `REVEILLE_CA`,
    /// `REVEILLE_CERT` and `REVEILLE_KEY` name the files of TLS, `REVEILLE_TOKEN_FILE` the file of a
    /// token, `REVEILLE_TOKEN` is a token, and `REVEILLE_INSECURE=true` permits its use in plain
    /// text. An empty variable counts as not set.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a certificate without its key, or the
    /// reverse, or text that is not UTF-8.
    pub fn from_environment() -> Result<Self> {
        Self::of(|name| env::var_os(name))
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let path = |name| set(name).map(PathBuf::from);
        let identity = match (path("REVEILLE_CERT"), path("REVEILLE_KEY")) {
            (Some(certificate), Some(key)) => Some(ClientIdentity { certificate, key }),
            (None, None) => None,
            (Some(_), None) => return Err(alone("REVEILLE_KEY", "REVEILLE_CERT")),
            (None, Some(_)) => return Err(alone("REVEILLE_CERT", "REVEILLE_KEY")),
        };
        let credential = match (path("REVEILLE_TOKEN_FILE"), set("REVEILLE_TOKEN")) {
            (Some(path), _) => Credential::file(path),
            (None, Some(token)) => {
                let token = token.into_string();
                let token = token.map_err(|_| Error::invalid("REVEILLE_TOKEN", "must be UTF-8"))?;
                Credential::text(&token)
            }
            (None, None) => Credential::default(),
        };
        Ok(Self {
            tls: ClientTls {
                ca: path("REVEILLE_CA"),
                identity,
            },
            credential,
            insecure: set("REVEILLE_INSECURE").is_some_and(|value| value == "true"),
            ..Self::default()
        })
    }
}

fn alone(missing: &'static str, with: &str) -> Error {
    Error::invalid(missing, format_args!("must be set with {with}"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<ClientConfig> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        ClientConfig::of(|name| variables.get(name).map(OsString::from))
    }

    #[test]
    fn the_variables_name_files_and_tokens() {
        let set = [
            ("REVEILLE_CA", "ca.pem"),
            ("REVEILLE_CERT", "me.pem"),
            ("REVEILLE_KEY", "me.key"),
            ("REVEILLE_TOKEN", "planted"),
        ];
        let config = config(&set).expect("valid");
        assert_eq!(config.tls.ca, Some("ca.pem".into()));
        assert_eq!(
            config.tls.identity.expect("one").key,
            PathBuf::from("me.key")
        );
        assert_eq!(format!("{:?}", config.credential), "(secret)");
        assert!(!config.insecure);
    }

    #[test]
    fn a_file_has_precedence_and_empty_variables_are_not_set() {
        let set = [
            ("REVEILLE_TOKEN", "planted"),
            ("REVEILLE_TOKEN_FILE", "token"),
            ("REVEILLE_CA", ""),
            ("REVEILLE_INSECURE", "true"),
        ];
        let found = config(&set).expect("valid");
        assert_eq!(found.tls.ca, None);
        assert_eq!(format!("{:?}", found.credential), "\"token\"");
        assert!(found.insecure);
        assert!(config(&[]).expect("valid").credential.is_none());
    }

    #[test]
    fn a_certificate_needs_its_key() {
        for (set, missing) in [
            ("REVEILLE_CERT", "REVEILLE_KEY"),
            ("REVEILLE_KEY", "REVEILLE_CERT"),
        ] {
            let error = config(&[(set, "file")]).expect_err("half").to_string();
            assert!(error.starts_with(missing), "{error}");
        }
    }
}
