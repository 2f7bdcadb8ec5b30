//! TLS of a client: whom it trusts, and how it shows who it is.

use std::path::PathBuf;

/// The TLS of a client of `https://` URLs. The server's name is always checked. The files are read
/// again for each connection, so that renewed certificates are used without a restart.
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
    /// The key of the certificate: PKCS #8, SEC 1 or PKCS #1.
    pub key: PathBuf,
}
