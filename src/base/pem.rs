//! Files of TLS in PEM. Their errors name the setting and the path.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::error::{Error, Result};

/// What a file holds that a setting names.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PemFile {
    setting: &'static str,
    path: PathBuf,
    pem: Vec<u8>,
}

impl PemFile {
    /// Takes the content, without the mark that some editors write before it.
    pub(crate) fn new(setting: &'static str, path: &Path, mut pem: Vec<u8>) -> Self {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        if pem.starts_with(MARK) {
            pem.drain(..MARK.len());
        }
        Self {
            setting,
            path: path.to_owned(),
            pem,
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn read(setting: &'static str, path: &Path) -> Result<Self> {
        let pem = std::fs::read(path).map_err(|error| unfit(setting, path, error))?;
        Ok(Self::new(setting, path, pem))
    }

    /// Returns the certificates, at least one.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_slice_iter(&self.pem)
            .collect::<std::result::Result<Vec<_>, _>>()
            .ok()
            .filter(|found| !found.is_empty())
            .ok_or_else(|| self.unfit("no certificate in PEM"))
    }

    /// Returns the certificates as authorities.
    pub(crate) fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for authority in self.certificates()? {
            roots.add(authority).map_err(|error| self.unfit(error))?;
        }
        Ok(roots)
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(&self.pem).map_err(|_| self.unfit(without_key(&self.pem)))
    }

    /// Returns an error of the file.
    pub(crate) fn unfit(&self, reason: impl fmt::Display) -> Error {
        unfit(self.setting, &self.path, reason)
    }
}

/// Returns the error of a file that cannot be used.
pub(crate) fn unfit(setting: &str, path: &Path, reason: impl fmt::Display) -> Error {
    Error::invalid(setting, format_args!("`{}`: {reason}", path.display()))
}

/// Returns why a file has no key that can be used.
fn without_key(pem: &[u8]) -> &'static str {
    let has = |text: &[u8]| pem.windows(text.len()).any(|part| part == text);
    match has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED") {
        true => {
            "the key is encrypted, and no passphrase is asked for: write it without one \
             (`openssl pkey -in KEY -out NEW`)"
        }
        false => "no private key in PEM",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_removed_and_an_encrypted_key_is_named() {
        assert_eq!(
            PemFile::new("ca", "".as_ref(), b"\xef\xbb\xbf-----".to_vec()).pem,
            b"-----"
        );
        assert_eq!(
            PemFile::new("ca", "".as_ref(), b"-----".to_vec()).pem,
            b"-----"
        );
        for text in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n",
        ] {
            assert!(without_key(text.as_bytes()).contains("encrypted"), "{text}");
        }
        assert_eq!(without_key(b"-----BEGIN"), "no private key in PEM");
    }
}
