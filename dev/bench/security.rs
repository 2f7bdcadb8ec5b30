//! The certificates, rules and credentials of a protected relay: files made anew for each run.
//!
//! The relay's process gets the paths as arguments. The subscribers' process gets the authority and
//! the credential by the variables of `ClientConfig::from_environment`, and the publisher in this
//! process by a `ClientConfig`.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ED25519,
    SigningKey as _,
};
use reveille::{
    ClientConfig, ClientTls, Credential,
    auth::{NewToken, Principal, TokenFile},
};
use serde_json::json;
use tempfile::TempDir;

use crate::server::Protection;

/// The protection of one relay: its files, and what its clients need. The files are deleted on
/// drop. The default is plain text without credentials.
#[derive(Default)]
pub(crate) struct Security {
    directory: Option<TempDir>,
    tls: Option<TlsFiles>,
    access: Option<Access>,
}

#[derive(Debug)]
struct TlsFiles {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

/// The file of rules, and the credential that it accepts.
struct Access {
    rules: PathBuf,
    credential: String,
}

const PRINCIPAL: &str = "bench";
const ISSUER: &str = "https://login.example.com";
const AUDIENCE: &str = "reveille";
/// Longer than any run.
const JWT_LIFE: Duration = Duration::from_secs(24 * 3600);
/// The rights of publishers and subscribers to the queues of all benchmarks. The rate is counted, and
/// is never reached.
const RULES: &str = r#"
[[rule]]
principals = ["bench"]
actions = ["notify"]
queues = ["bench/*"]

[[rule]]
principals = ["bench"]
actions = ["subscribe", "report"]
queues = ["bench/*"]

[[limit]]
principals = ["bench"]
notify_rate = 100000000
notify_burst = 100000000
connections = 0
streams = 0
selectors = 0
subscribed_queues = 0
"#;

impl Security {
    /// Creates the files of this protection.
    pub(crate) fn create(protection: Protection) -> Result<Self> {
        if protection == Protection::None {
            return Ok(Self::default());
        }
        let directory = TempDir::new()?;
        let path = directory.path();
        let tls = protection.has_tls().then(|| TlsFiles::create(path));
        let access = match protection {
            Protection::None | Protection::Tls => None,
            Protection::Token | Protection::TlsToken => Some(Access::with_token(path)?),
            Protection::Jwt => Some(Access::with_jwt(path)?),
        };
        Ok(Self {
            tls: tls.transpose()?,
            access,
            directory: Some(directory),
        })
    }

    /// Returns the arguments of the relay's process.
    pub(crate) fn relay_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut add = |name: &str, path: &Path| args.push(format!("--{name}={}", path.display()));
        if let Some(tls) = &self.tls {
            add("tls-cert", &tls.certificate);
            add("tls-key", &tls.key);
        }
        if let Some(access) = &self.access {
            add("auth", &access.rules);
        }
        args
    }

    /// Returns the file of the authority that clients trust.
    fn ca(&self) -> Option<&Path> {
        self.tls.as_ref().map(|tls| &*tls.ca)
    }

    /// Returns the token or the JWT that clients show.
    pub(crate) fn credential(&self) -> Option<&str> {
        self.access.as_ref().map(|access| &*access.credential)
    }

    /// Returns the configuration of a client in this process.
    pub(crate) fn client_config(&self) -> ClientConfig {
        ClientConfig {
            tls: ClientTls {
                ca: self.ca().map(Path::to_owned),
                identity: None,
            },
            credential: self.credential().map(Credential::text).unwrap_or_default(),
            ..ClientConfig::default()
        }
    }

    /// Returns the variables of a process with clients. An empty variable is not set, so that none
    /// is inherited.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 5] {
        [
            ("REVEILLE_CA", self.ca().map(Into::into).unwrap_or_default()),
            ("REVEILLE_CERT", OsString::new()),
            ("REVEILLE_KEY", OsString::new()),
            ("REVEILLE_TOKEN_FILE", OsString::new()),
            (
                "REVEILLE_TOKEN",
                self.credential().map(Into::into).unwrap_or_default(),
            ),
        ]
    }
}

impl fmt::Debug for Security {
    /// Without the credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Security").field(&self.directory).finish()
    }
}

impl TlsFiles {
    /// Creates an authority, and a certificate of this machine that it has signed.
    fn create(directory: &Path) -> Result<Self> {
        let authority_key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "reveille-bench");
        let authority = params.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate()?;
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
        Ok(Self {
            ca: write(directory, "ca.pem", &authority)?,
            certificate: write(directory, "relay.pem", &certificate.pem())?,
            key: write(directory, "relay.key", &key.serialize_pem())?,
        })
    }
}

impl Access {
    fn with_token(directory: &Path) -> Result<Self> {
        let new = NewToken {
            principal: Principal::new(PRINCIPAL)?,
            expires: None,
            note: String::new(),
        };
        let tokens = TokenFile::new(directory.join("tokens.toml"));
        let token = tokens.add(&new, SystemTime::now())?;
        let rules = format!("tokens = \"tokens.toml\"\n{RULES}");
        Ok(Self {
            rules: write(directory, "auth.toml", &rules)?,
            credential: token.reveal().to_owned(),
        })
    }

    /// The token has the claims that identity services add.
    fn with_jwt(directory: &Path) -> Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        write(directory, "issuer.pem", &key.public_key_pem())?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let claims = json!({
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": PRINCIPAL,
            "iat": now.as_secs(),
            "exp": (now + JWT_LIFE).as_secs(),
            "jti": format!("{:032x}", fastrand::u128(..)),
        });
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let header = json!({"alg": "EdDSA", "typ": "JWT"}).to_string();
        let signed = format!(
            "{}.{}",
            encode(header.as_bytes()),
            encode(claims.to_string().as_bytes())
        );
        let signature = encode(&key.sign(signed.as_bytes())?);
        let issuer = format!(
            "[[jwt]]\nissuer = \"{ISSUER}\"\naudience = \"{AUDIENCE}\"\nkey = \"issuer.pem\"\n"
        );
        Ok(Self {
            rules: write(directory, "auth.toml", &format!("{issuer}{RULES}"))?,
            credential: format!("{signed}.{signature}"),
        })
    }
}

fn write(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    std::fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(path)
}
