//! A storage account: its name, the endpoints of its services, and the credential.

use azure_core::http::Url;

use crate::{
    base::secret::Secret,
    error::{Error, Result},
};

/// A storage account with a credential. `Debug` shows neither key nor signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageAccount {
    name: String,
    queue_endpoint: Url,
    blob_endpoint: Url,
    credential: Credential,
}

/// A service of an account.
#[derive(Debug, Clone, Copy)]
pub(super) enum Service {
    Queue,
    Blob,
}

/// The credential of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    /// The account's key in base64, which signs each request.
    SharedKey(Secret),
    /// A shared access signature, without its `?`.
    Signature(Secret),
}

/// The emulator's account; its name and key are the same everywhere.
pub(crate) const EMULATOR: &str = "devstoreaccount1";
pub(crate) const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// The endpoint suffix of the public cloud.
pub(super) const SUFFIX: &str = "core.windows.net";

impl StorageAccount {
    /// Creates an account of the public cloud with its key. The emulator's account name gives the
    /// emulator.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an invalid name or key.
    pub fn with_key(name: &str, key: &str) -> Result<Self> {
        let credential = Credential::key("AccountKey", key)?;
        Self::with_credential(name, credential)
    }

    /// Creates an account of the public cloud with a shared access signature. The emulator's account
    /// name gives the emulator.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an invalid name or signature.
    pub fn with_signature(name: &str, signature: &str) -> Result<Self> {
        let credential = Credential::signature("SharedAccessSignature", signature)?;
        Self::with_credential(name, credential)
    }

    /// Replaces the endpoint of the account's queues.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) unless it is an HTTP URL without a query.
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

    /// Returns the endpoint of the account's queues.
    pub fn queue_endpoint(&self) -> &str {
        self.queue_endpoint.as_str()
    }

    /// Returns the endpoint of the account's blobs.
    pub fn blob_endpoint(&self) -> &str {
        self.blob_endpoint.as_str()
    }

    /// Creates an account whose services have the default endpoints of its name.
    pub(super) fn with_credential(name: &str, credential: Credential) -> Result<Self> {
        Self::with_endpoints(name, credential, |_| Ok(None))
    }

    /// Creates an account. A service without an explicit endpoint gets the default of the account's
    /// name.
    pub(super) fn with_endpoints(
        name: &str,
        credential: Credential,
        explicit: impl Fn(Service) -> Result<Option<Url>>,
    ) -> Result<Self> {
        let name = check_name(name)?;
        let endpoint = |service| match explicit(service)? {
            Some(url) => Ok(url),
            None if name == EMULATOR => emulator_endpoint(None, service),
            None => cloud_endpoint("https", &name, service, SUFFIX),
        };
        Ok(Self {
            queue_endpoint: endpoint(Service::Queue)?,
            blob_endpoint: endpoint(Service::Blob)?,
            name,
            credential,
        })
    }

    /// Returns the emulator on this machine, or on `host`, which has the form `http://HOST`.
    pub(super) fn emulator(host: Option<&str>) -> Result<Self> {
        let credential = Credential::key("AccountKey", EMULATOR_KEY)?;
        Self::with_endpoints(EMULATOR, credential, |service| {
            emulator_endpoint(host, service).map(Some)
        })
    }

    pub(crate) fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Returns the URL of a queue, without a credential.
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

/// Checks an account's name; returns it in lower case, as the service keeps it.
pub(crate) fn check_name(name: &str) -> Result<String> {
    let lower = name.to_ascii_lowercase();
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if (3..=24).contains(&lower.len()) && lower.bytes().all(fits) {
        return Ok(lower);
    }
    let rule = "must be 3 to 24 letters and digits";
    Err(Error::invalid("AccountName", rule))
}

/// Parses and checks a service's endpoint.
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

/// Returns the endpoint of a service of a cloud account.
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

/// Returns the emulator's default endpoint of a service.
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
