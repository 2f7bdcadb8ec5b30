//! The login's files: the credentials file of NATS, or the file of a password.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use async_nats::ConnectOptions;

use super::config::NatsCredentials;
use crate::{
    base::{pem::unfit, secret::Secret},
    error::{Error, Result},
};

/// A login with its secrets.
#[derive(Debug)]
pub(super) enum Login {
    None,
    Credentials(Secret),
    Password { user: String, password: Secret },
}

/// A credentials file has about 1 KiB.
const FILE: u64 = 64 * 1024;

impl Login {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// `Invalid`, with the setting whose file cannot be used.
    pub(super) fn read(credentials: Option<&NatsCredentials>) -> Result<Self> {
        match credentials {
            None => Ok(Self::None),
            Some(NatsCredentials::File(path)) => {
                let text = read_text("cluster_creds", path)?;
                // Parsed here, so that the error names the setting, and not the file's contents.
                let is_sound = ConnectOptions::new().credentials(&text).is_ok();
                match is_sound {
                    true => Ok(Self::Credentials(Secret::new(&text))),
                    false => Err(unfit(
                        "cluster_creds",
                        path,
                        "is no credentials file of NATS",
                    )),
                }
            }
            Some(NatsCredentials::Password {
                user,
                password_file,
            }) => {
                let text = read_text("cluster_password_file", password_file)?;
                let password = text.trim_end_matches(['\n', '\r']);
                if password.is_empty() || password.contains('\n') {
                    let rule = "must hold one line: the password";
                    return Err(unfit("cluster_password_file", password_file, rule));
                }
                Ok(Self::Password {
                    user: user.clone(),
                    password: Secret::new(password),
                })
            }
        }
    }

    /// Adds the login to the options of the client.
    pub(super) fn apply(&self, options: ConnectOptions) -> Result<ConnectOptions> {
        match self {
            Self::None => Ok(options),
            Self::Credentials(text) => options
                .credentials(text.reveal())
                .map_err(|_| Error::invalid("cluster_creds", "must be a credentials file of NATS")),
            Self::Password { user, password } => {
                Ok(options.user_and_password(user.clone(), password.reveal().to_owned()))
            }
        }
    }
}

/// Reads a file of TLS or of the login.
///
/// # Errors
/// `Invalid`, with the setting and the path.
pub(super) fn read_file(setting: &str, path: &Path) -> Result<Vec<u8>> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| unfit(setting, path, error))?;
    match bytes.len() as u64 > FILE {
        true => Err(unfit(setting, path, "is longer than 64 KiB")),
        false => Ok(bytes),
    }
}

fn read_text(setting: &str, path: &Path) -> Result<String> {
    let bytes = read_file(setting, path)?;
    String::from_utf8(bytes).map_err(|_| unfit(setting, path, "is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        name: &str,
        content: &[u8],
        credentials: impl Fn(&Path) -> NatsCredentials,
    ) -> Result<Login> {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join(name);
        std::fs::write(&path, content).expect("written");
        Login::read(Some(&credentials(&path)))
    }

    fn password(path: &Path) -> NatsCredentials {
        NatsCredentials::Password {
            user: "relay".to_owned(),
            password_file: path.to_owned(),
        }
    }

    #[test]
    fn a_password_is_one_line_and_is_not_shown() {
        for good in [&b"hunter2"[..], b"hunter2\n", b"hunter2\r\n"] {
            let login = read("password", good, password).expect("one line");
            let Login::Password { password, .. } = &login else {
                panic!("{login:?}");
            };
            assert_eq!(password.reveal(), "hunter2");
            assert!(!format!("{login:?}").contains("hunter2"));
        }
        for bad in [&b""[..], b"\n", b"hunter2\nhunter3\n", b"hunter2\xff"] {
            let error = read("password", bad, password).expect_err("refused");
            let text = error.to_string();
            assert!(text.starts_with("cluster_password_file: `"), "{text}");
            assert!(!text.contains("hunter"), "{text}");
        }
        let long = vec![b'x'; 64 * 1024 + 1];
        let error = read("password", &long, password).expect_err("refused");
        assert!(error.to_string().contains("longer than 64 KiB"), "{error}");
    }

    #[test]
    fn a_credentials_file_that_is_none_is_refused_without_its_contents() {
        let file = |path: &Path| NatsCredentials::File(path.to_owned());
        let error = read("relay.creds", b"SUAhunter2", file).expect_err("refused");
        let text = error.to_string();
        assert!(text.starts_with("cluster_creds: `"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        let missing = NatsCredentials::File("/nonexistent/relay.creds".into());
        let error = Login::read(Some(&missing)).expect_err("refused");
        assert!(
            error
                .to_string()
                .starts_with("cluster_creds: `/nonexistent"),
            "{error}"
        );
    }
}
