//! A storage account: its name, where its queues are, and by what right they are used.

use azure_core::http::Url;

use super::connection_string;
use crate::{
    error::{Error, Result},
    secret::Secret,
};

/// A storage account and the right to use it. Shows neither its key nor its signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageAccount {
    name: String,
    queue_endpoint: Url,
    credential: Credential,
}

/// By what right requests are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Credential {
    /// Each request is signed by the account's key, which is base64.
    SharedKey(Secret),
    /// Each request carries a signature that somebody made beforehand, without its `?`.
    Signature(Secret),
}

/// The account of the emulator, whose name and key are the same everywhere.
pub(super) const EMULATOR: &str = "devstoreaccount1";
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// Where the emulator serves queues unless it is told otherwise.
const EMULATOR_QUEUE_PORT: u16 = 10001;
/// Of the public cloud.
pub(super) const SUFFIX: &str = "core.windows.net";

impl StorageAccount {
    /// Makes an account of the public cloud that is used by its key; of the emulator, where it is
    /// the emulator's account that is named.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name or a key that cannot be one.
    pub fn with_key(name: &str, key: &str) -> Result<Self> {
        Self::of(name, None, Credential::key("AccountKey", key)?)
    }

    /// Makes an account of the public cloud that is used by a shared access signature; of the
    /// emulator, where it is the emulator's account that is named.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name or a signature that cannot be
    /// one.
    pub fn with_signature(name: &str, signature: &str) -> Result<Self> {
        let credential = Credential::signature("SharedAccessSignature", signature)?;
        Self::of(name, None, credential)
    }

    /// Reads a connection string, as the portal shows it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the setting and the rule that it
    /// breaks; its value is not shown.
    pub fn from_connection_string(text: &str) -> Result<Self> {
        connection_string::parse(text)
    }

    /// Replaces where the account's queues are.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for what is no HTTP URL without a query.
    pub fn at_queue_endpoint(mut self, url: &str) -> Result<Self> {
        self.queue_endpoint = endpoint("QueueEndpoint", url)?;
        Ok(self)
    }

    /// Returns the account's name, in lower case.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns where the account's queues are.
    pub fn queue_endpoint(&self) -> &str {
        self.queue_endpoint.as_str()
    }

    /// Makes an account; without an endpoint, at the one that its name has.
    pub(super) fn of(name: &str, at: Option<Url>, credential: Credential) -> Result<Self> {
        let name = check_name(name)?;
        let queue_endpoint = match at {
            Some(endpoint) => endpoint,
            None if name == EMULATOR => emulator_endpoint(None)?,
            None => cloud_endpoint("https", &name, SUFFIX)?,
        };
        Ok(Self {
            name,
            queue_endpoint,
            credential,
        })
    }

    /// The emulator of this machine, or of the one that `host` names by `http://HOST`.
    pub(super) fn emulator(host: Option<&str>) -> Result<Self> {
        let credential = Credential::key("AccountKey", EMULATOR_KEY)?;
        Self::of(EMULATOR, Some(emulator_endpoint(host)?), credential)
    }

    pub(super) fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Returns the URL of a queue, without any credential in it.
    pub(crate) fn queue_url(&self, queue: &str) -> Url {
        let mut url = self.queue_endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push(queue);
        }
        url
    }
}

impl Credential {
    pub(super) fn key(field: &str, key: &str) -> Result<Self> {
        let bytes = azure_core::base64::decode(key);
        if key.is_empty() || bytes.is_err() {
            return Err(Error::invalid(field, "must be base64"));
        }
        Ok(Self::SharedKey(Secret::new(key)))
    }

    pub(super) fn signature(field: &str, signature: &str) -> Result<Self> {
        let signature = signature.trim_start_matches('?');
        let fits = signature.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits || !signature.split('&').any(|pair| pair.starts_with("sig=")) {
            let rule = "must be a URL's query with a `sig=` in it";
            return Err(Error::invalid(field, rule));
        }
        Ok(Self::Signature(Secret::new(signature)))
    }
}

/// Checks an account's name and returns it in lower case, as the service has it.
pub(crate) fn check_name(name: &str) -> Result<String> {
    let lower = name.to_ascii_lowercase();
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if (3..=24).contains(&lower.len()) && lower.bytes().all(fits) {
        return Ok(lower);
    }
    let rule = "must be 3 to 24 letters and digits";
    Err(Error::invalid("AccountName", rule))
}

/// Checks where a service is.
pub(super) fn endpoint(field: &str, text: &str) -> Result<Url> {
    let rule = "must be an `http` or `https` URL without user, query or fragment";
    let invalid = || Error::invalid(field, rule);
    let url = Url::parse(text).map_err(|_| invalid())?;
    let plain = url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    if !plain || !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(invalid());
    }
    Ok(url)
}

/// Returns where the queues of an account in the cloud are.
pub(super) fn cloud_endpoint(protocol: &str, name: &str, suffix: &str) -> Result<Url> {
    let url = format!("{protocol}://{name}.queue.{suffix}/");
    endpoint("EndpointSuffix", &url)
}

fn emulator_endpoint(host: Option<&str>) -> Result<Url> {
    const FIELD: &str = "DevelopmentStorageProxyUri";
    let mut url = endpoint(FIELD, host.unwrap_or("http://127.0.0.1"))?;
    if url.set_port(Some(EMULATOR_QUEUE_PORT)).is_err() {
        return Err(Error::invalid(FIELD, "must take a port"));
    }
    url.set_path(EMULATOR);
    Ok(url)
}
