//! The PEM files of TLS, and configurations that follow them when they are renewed.
//!
//! Each error names the setting and the file.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::{
    base::{file, sync::lock},
    error::{Error, Result},
};

/// A file of TLS as it was read.
#[derive(PartialEq, Eq)]
pub(crate) struct TlsFile {
    setting: String,
    path: PathBuf,
    pem: Vec<u8>,
}

/// The files of one configuration, as they were read.
pub(crate) trait TlsFiles: PartialEq {
    type Config;

    /// # Errors
    /// `Invalid` if the files do not fit together.
    fn config(&self) -> Result<Self::Config>;
}

/// The configuration of files that may be renewed. Files that cannot be read or do not fit together,
/// as in the middle of a renewal, leave the former configuration in use.
pub(crate) struct RenewedConfig<F: TlsFiles>(Mutex<(F, Arc<F::Config>)>);

/// The files of a client.
#[cfg(any(feature = "nats", feature = "tls"))]
#[derive(PartialEq)]
pub(crate) struct ClientFiles {
    ca: Option<TlsFile>,
    /// The certificate and its key.
    identity: Option<(TlsFile, TlsFile)>,
    /// What begins the names of the settings.
    prefix: &'static str,
    /// Whether a machine without trusted authorities is an error.
    needs_roots: bool,
}

/// Longest file in bytes: a system's bundle of authorities has a fifth of it.
const LONGEST: u64 = 1 << 20;
/// The mark that some editors write before the text.
const MARK: &[u8] = b"\xef\xbb\xbf";

impl TlsFile {
    /// # Errors
    /// `Invalid` if the file cannot be read.
    pub(crate) fn read(setting: &str, path: &Path) -> Result<Self> {
        let content = file::read_setting(setting, path, LONGEST)?;
        let pem = content.strip_prefix(MARK).unwrap_or(&content);
        Ok(Self {
            setting: setting.to_owned(),
            path: path.to_owned(),
            pem: pem.to_vec(),
        })
    }

    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_slice_iter(&self.pem)
            .collect::<Result<Vec<_>, _>>()
            .ok()
            .filter(|found| !found.is_empty())
            .ok_or_else(|| self.unfit("no certificate in PEM"))
    }

    pub(crate) fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for authority in self.certificates()? {
            roots.add(authority).map_err(|error| self.unfit(error))?;
        }
        Ok(roots)
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>> {
        let has = |text: &[u8]| self.pem.windows(text.len()).any(|part| part == text);
        PrivateKeyDer::from_pem_slice(&self.pem).map_err(|_| {
            if has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED") {
                self.unfit(
                    "the key is encrypted, and no passphrase is asked for: write it without one \
                     (`openssl pkey -in KEY -out NEW`)",
                )
            } else {
                self.unfit("no private key in PEM")
            }
        })
    }

    pub(crate) fn unfit(&self, reason: impl Display) -> Error {
        file::unfit(&self.setting, &self.path, reason)
    }
}

impl<F: TlsFiles> RenewedConfig<F> {
    pub(crate) fn new(files: F) -> Result<Self> {
        let config = files.config()?;
        Ok(Self(Mutex::new((files, Arc::new(config)))))
    }

    /// Returns the configuration of the files that fitted last.
    pub(crate) fn current(&self) -> Arc<F::Config> {
        Arc::clone(&lock(&self.0).1)
    }

    /// Takes the files as they were read again. Returns whether they have changed.
    pub(crate) fn renew(&self, files: F) -> Result<bool> {
        if lock(&self.0).0 == files {
            return Ok(false);
        }
        let config = files.config()?;
        *lock(&self.0) = (files, Arc::new(config));
        Ok(true)
    }

    #[cfg(feature = "relay")]
    pub(crate) fn with_files<T>(&self, read: impl FnOnce(&F) -> T) -> T {
        read(&lock(&self.0).0)
    }
}

#[cfg(any(feature = "nats", feature = "tls"))]
impl ClientFiles {
    /// Reads the files of the settings `ca`, `cert` and `key` with this prefix.
    pub(crate) fn read(
        prefix: &'static str,
        needs_roots: bool,
        ca: Option<&Path>,
        identity: Option<(&Path, &Path)>,
    ) -> Result<Self> {
        let read = |setting: &str, path| TlsFile::read(&format!("{prefix}{setting}"), path);
        let ca = ca.map(|path| read("ca", path)).transpose()?;
        let identity = match identity {
            Some((certificate, key)) => Some((read("cert", certificate)?, read("key", key)?)),
            None => None,
        };
        Ok(Self {
            ca,
            identity,
            prefix,
            needs_roots,
        })
    }
}

/// It names its cryptography library, so that nothing has to be installed for the process.
#[cfg(any(feature = "nats", feature = "tls"))]
impl TlsFiles for ClientFiles {
    type Config = rustls::ClientConfig;

    fn config(&self) -> Result<Self::Config> {
        use rustls_platform_verifier::BuilderVerifierExt as _;
        let invalid = |error: &dyn Display| {
            let rule = format_args!("the system's authorities cannot be read: {error}");
            Error::invalid(&format!("{}ca", self.prefix), rule)
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&error))?;
        let builder = match &self.ca {
            Some(ca) => builder.with_root_certificates(ca.roots()?),
            None => match builder.clone().with_platform_verifier() {
                Ok(builder) => builder,
                Err(error) if self.needs_roots => return Err(invalid(&error)),
                Err(_) => builder.with_root_certificates(RootCertStore::empty()),
            },
        };
        match &self.identity {
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificate.certificates()?, key.key()?)
                .map_err(|error| key.unfit(error)),
            None => Ok(builder.with_no_client_auth()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pem: &[u8]) -> (tempfile::TempDir, Result<TlsFile>) {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("file.pem");
        std::fs::write(&path, pem).expect("written");
        let file = TlsFile::read("key", &path);
        (home, file)
    }

    #[test]
    fn a_mark_before_the_text_is_left_out() {
        let (_home, file) = file(b"\xef\xbb\xbf-----BEGIN");
        assert_eq!(file.expect("read").pem, b"-----BEGIN");
    }

    #[test]
    fn an_encrypted_key_is_named_as_such() {
        for (pem, words) in [
            (&b"-----BEGIN ENCRYPTED PRIVATE KEY-----"[..], "encrypted"),
            (b"Proc-Type: 4,ENCRYPTED", "encrypted"),
            (b"-----BEGIN CERTIFICATE-----", "no private key"),
        ] {
            let (_home, file) = file(pem);
            let error = file.expect("read").key().expect_err("no key").to_string();
            assert!(error.starts_with("key: `"), "{error}");
            assert!(error.contains(words), "{error}");
        }
    }
}
