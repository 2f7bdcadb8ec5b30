//! A storage account: its name, where its queues and blobs are, and by what right they are used.

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
    blob_endpoint: Url,
    credential: Credential,
}

/// Where an account's services are, as far as it was said.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    pub(super) queue: Option<Url>,
    pub(super) blob: Option<Url>,
}

/// A service of an account.
#[derive(Debug, Clone, Copy)]
pub(super) enum Service {
    Queue,
    Blob,
}

/// By what right requests are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    /// Each request is signed by the account's key, which is base64.
    SharedKey(Secret),
    /// Each request carries a signature that somebody made beforehand, without its `?`.
    Signature(Secret),
}

/// The account of the emulator, whose name and key are the same everywhere.
pub(crate) const EMULATOR: &str = "devstoreaccount1";
pub(crate) const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// Of the public cloud.
pub(super) const SUFFIX: &str = "core.windows.net";

impl StorageAccount {
    /// Makes an account of the public cloud that is used by its key; of the emulator, where it is
    /// the emulator's account that is named.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name or a key that cannot be one.
    pub fn with_key(name: &str, key: &str) -> Result<Self> {
        let credential = Credential::key("AccountKey", key)?;
        Self::of(name, Endpoints::default(), credential)
    }

    /// Makes an account of the public cloud that is used by a shared access signature; of the
    /// emulator, where it is the emulator's account that is named.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name or a signature that cannot be
    /// one.
    pub fn with_signature(name: &str, signature: &str) -> Result<Self> {
        let credential = Credential::signature("SharedAccessSignature", signature)?;
        Self::of(name, Endpoints::default(), credential)
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

    /// Returns whether this is the account that every emulator has.
    pub(crate) fn is_emulator(&self) -> bool {
        self.name == EMULATOR
    }

    /// Returns where the account's queues are.
    pub fn queue_endpoint(&self) -> &str {
        self.queue_endpoint.as_str()
    }

    /// Returns where the account's blobs are.
    pub fn blob_endpoint(&self) -> &str {
        self.blob_endpoint.as_str()
    }

    /// Makes an account; a service of which nothing is said is where the account's name has it.
    pub(super) fn of(name: &str, at: Endpoints, credential: Credential) -> Result<Self> {
        let name = check_name(name)?;
        let usual = |service| match name == EMULATOR {
            true => emulator_endpoint(None, service),
            false => cloud_endpoint("https", &name, service, SUFFIX),
        };
        let or_usual = |at: Option<Url>, service| at.map_or_else(|| usual(service), Ok);
        Ok(Self {
            queue_endpoint: or_usual(at.queue, Service::Queue)?,
            blob_endpoint: or_usual(at.blob, Service::Blob)?,
            name,
            credential,
        })
    }

    /// The emulator of this machine, or of the one that `host` names by `http://HOST`.
    pub(super) fn emulator(host: Option<&str>) -> Result<Self> {
        let credential = Credential::key("AccountKey", EMULATOR_KEY)?;
        let at = Endpoints {
            queue: Some(emulator_endpoint(host, Service::Queue)?),
            blob: Some(emulator_endpoint(host, Service::Blob)?),
        };
        Self::of(EMULATOR, at, credential)
    }

    pub(crate) fn credential(&self) -> &Credential {
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
pub(crate) fn endpoint(field: &str, text: &str) -> Result<Url> {
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
pub(super) fn cloud_endpoint(
    protocol: &str,
    name: &str,
    service: Service,
    suffix: &str,
) -> Result<Url> {
    let service = match service {
        Service::Queue => "queue",
        Service::Blob => "blob",
    };
    let url = format!("{protocol}://{name}.{service}.{suffix}/");
    endpoint("EndpointSuffix", &url)
}

/// Where the emulator serves unless it is told otherwise.
fn emulator_endpoint(host: Option<&str>, service: Service) -> Result<Url> {
    let port = match service {
        Service::Queue => 10001,
        Service::Blob => 10000,
    };
    const FIELD: &str = "DevelopmentStorageProxyUri";
    let mut url = endpoint(FIELD, host.unwrap_or("http://127.0.0.1"))?;
    if url.set_port(Some(port)).is_err() {
        return Err(Error::invalid(FIELD, "must take a port"));
    }
    url.set_path(EMULATOR);
    Ok(url)
}
