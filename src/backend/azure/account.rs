//! A storage account: its name, the endpoints of its services, and the credential.
//!
//! It is read from a connection string (`NAME=VALUE;NAME=VALUE`, with the portal's names). An error names
//! the setting and the rule but not the value, which may be a key.

use std::collections::BTreeMap;

use azure_core::http::Url;

use crate::{
    base::secret::Secret,
    error::{Error, ErrorKind, Result},
};

/// A storage account with a credential. `Debug` shows neither key nor signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageAccount {
    name: String,
    queue_endpoint: Url,
    blob_endpoint: Url,
    pub(crate) credential: Credential,
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
/// The protocol and the endpoint suffix of the public cloud.
const PUBLIC_CLOUD: (&str, &str) = ("https", "core.windows.net");

/// The variable with account, credential and endpoints.
pub(crate) const CONNECTION_STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";

impl StorageAccount {
    /// Parses a connection string in the portal's format. Names are not case sensitive; settings of
    /// other services are ignored.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the setting and the broken rule; the value is not shown.
    pub fn from_connection_string(text: &str) -> Result<Self> {
        const WHOLE: &str = "connection string";
        let mut settings = BTreeMap::new();
        for setting in text.split(';').filter(|setting| !setting.trim().is_empty()) {
            let rule = "must be settings `NAME=VALUE` with `;` between them";
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| Error::invalid(WHOLE, rule))?;
            settings.insert(name.trim().to_ascii_lowercase(), value.trim());
        }
        let get = |name: &str| {
            let value = settings.get(&name.to_ascii_lowercase()).copied();
            value.filter(|value| !value.is_empty())
        };
        match get("UseDevelopmentStorage") {
            Some(flag) if flag.eq_ignore_ascii_case("true") => {
                let credential = Credential::SharedKey(Secret::new(EMULATOR_KEY));
                return Self::new(EMULATOR, credential, PUBLIC_CLOUD);
            }
            Some(_) => return Err(Error::invalid("UseDevelopmentStorage", "must be `true`")),
            None => {}
        }
        let credential = match (get("AccountKey"), get("SharedAccessSignature")) {
            (Some(key), None) => Credential::key("AccountKey", key)?,
            (None, Some(text)) => Credential::signature("SharedAccessSignature", text)?,
            _ => {
                let rule = "needs either an AccountKey or a SharedAccessSignature";
                return Err(Error::invalid(WHOLE, rule));
            }
        };
        let explicit = |name| get(name).map(|url| endpoint(name, url)).transpose();
        let (queue, blob) = (explicit("QueueEndpoint")?, explicit("BlobEndpoint")?);
        let named = queue.as_ref().or(blob.as_ref()).and_then(name_of);
        let name = get("AccountName").map(str::to_owned).or(named);
        let rule = "is missing, and no endpoint names it";
        let name = name.ok_or_else(|| Error::invalid("AccountName", rule))?;
        let protocol = get("DefaultEndpointsProtocol").unwrap_or(PUBLIC_CLOUD.0);
        let suffix = get("EndpointSuffix").unwrap_or(PUBLIC_CLOUD.1);
        let account = Self::new(&name, credential, (protocol, suffix))?;
        Ok(Self {
            queue_endpoint: queue.unwrap_or(account.queue_endpoint),
            blob_endpoint: blob.unwrap_or(account.blob_endpoint),
            ..account
        })
    }

    /// Reads the account `name` from the environment variable `AZURE_STORAGE_CONNECTION_STRING`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it breaks a rule or is for another account; [`ErrorKind::Denied`]
    /// without it.
    pub fn from_environment(name: &str) -> Result<Self> {
        let text = std::env::var(CONNECTION_STRING).unwrap_or_default();
        Self::from_variable(name, text.trim())
    }

    fn from_variable(name: &str, text: &str) -> Result<Self> {
        let name = check_name(name)?;
        if text.is_empty() {
            let message = format!(
                "account `{name}` needs a credential: set {CONNECTION_STRING}; for the emulator, to \
                 `UseDevelopmentStorage=true`"
            );
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let account = connection_string(text)?;
        if account.name == name {
            return Ok(account);
        }
        let rule = format_args!(
            "is for account `{}`, but the queue is in account `{name}`",
            account.name
        );
        Err(Error::invalid(CONNECTION_STRING, rule))
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
    fn new(name: &str, credential: Credential, (protocol, suffix): (&str, &str)) -> Result<Self> {
        let name = check_name(name)?;
        let default = |service, port: u16| {
            let url = match name == EMULATOR {
                true => format!("http://127.0.0.1:{port}/{EMULATOR}"),
                false => format!("{protocol}://{name}.{service}.{suffix}/"),
            };
            endpoint("DefaultEndpointsProtocol or EndpointSuffix", &url)
        };
        Ok(Self {
            queue_endpoint: default("queue", 10001)?,
            blob_endpoint: default("blob", 10000)?,
            name,
            credential,
        })
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
    fn key(field: &str, key: &str) -> Result<Self> {
        let bytes = azure_core::base64::decode(key);
        if key.is_empty() || bytes.is_err() {
            return Err(Error::invalid(field, "must be base64"));
        }
        Ok(Self::SharedKey(Secret::new(key)))
    }

    fn signature(field: &str, signature: &str) -> Result<Self> {
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

/// Returns the account name in an endpoint: the start of its host if that names the service, with a
/// zone or a private link between them or without; else the start of its path, as for the emulator.
fn name_of(endpoint: &Url) -> Option<String> {
    let mut labels = endpoint.host_str()?.split('.');
    let name = labels.next()?;
    if labels.any(|label| matches!(label, "queue" | "blob")) {
        return Some(name.to_owned());
    }
    let first = endpoint.path_segments()?.next()?;
    (!first.is_empty()).then(|| first.to_owned())
}

/// Parses the value of [`CONNECTION_STRING`].
pub(crate) fn connection_string(text: &str) -> Result<StorageAccount> {
    let account = StorageAccount::from_connection_string(text);
    account.map_err(|error| Error::invalid(CONNECTION_STRING, error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "c2VjcmV0LWtleQ==";
    const SIGNED: &str = "sv=2025-11-05&sp=raup&sig=c2lnbmF0dXJl%3D";

    fn read(text: &str) -> StorageAccount {
        StorageAccount::from_connection_string(text).expect(text)
    }

    #[test]
    fn the_portals_string_is_read() {
        let text = format!(
            "DefaultEndpointsProtocol=https;AccountName=Acct1;AccountKey={SECRET};\
             EndpointSuffix=core.windows.net"
        );
        let account = read(&text);
        assert_eq!(account.name(), "acct1");
        let endpoint = "https://acct1.queue.core.windows.net/";
        assert_eq!(account.queue_endpoint(), endpoint);
        let url = account.queue_url("jobs");
        assert_eq!(url.as_str(), format!("{endpoint}jobs"));
    }

    #[test]
    fn each_setting_moves_the_endpoint() {
        for (text, endpoint) in [
            ("AccountName=acct", "https://acct.queue.core.windows.net/"),
            (
                "accountname=acct;BlobEndpoint=https://blobs;DefaultEndpointsProtocol=http",
                "http://acct.queue.core.windows.net/",
            ),
            (
                "AccountName=acct;EndpointSuffix=core.chinacloudapi.cn",
                "https://acct.queue.core.chinacloudapi.cn/",
            ),
            (
                "AccountName=acct;QueueEndpoint=http://10.0.0.1:7/acct;",
                "http://10.0.0.1:7/acct",
            ),
            (
                "QueueEndpoint=https://acct.queue.core.windows.net",
                "https://acct.queue.core.windows.net/",
            ),
            (
                "QueueEndpoint=http://127.0.0.1:7/acct",
                "http://127.0.0.1:7/acct",
            ),
            (
                "QueueEndpoint=http://localhost:7/acct",
                "http://localhost:7/acct",
            ),
            (
                "QueueEndpoint=http://azurite:7/acct",
                "http://azurite:7/acct",
            ),
            ("QueueEndpoint=http://[::1]:7/acct", "http://[::1]:7/acct"),
            (
                "QueueEndpoint=https://acct.z13.queue.storage.azure.net",
                "https://acct.z13.queue.storage.azure.net/",
            ),
            (
                "QueueEndpoint=https://acct.privatelink.queue.core.windows.net",
                "https://acct.privatelink.queue.core.windows.net/",
            ),
        ] {
            let signature = format!("SharedAccessSignature={SIGNED}");
            for credential in [format!("AccountKey={SECRET}"), signature] {
                let account = read(&format!("{text};{credential}"));
                assert_eq!(account.queue_endpoint(), endpoint, "{text}");
                assert_eq!(account.name(), "acct", "{text}");
            }
        }
    }

    #[test]
    fn the_emulator_needs_only_its_flag() {
        let account = read("UseDevelopmentStorage=true");
        assert_eq!(account.name(), EMULATOR);
        let url = account.queue_url("jobs");
        assert_eq!(url.as_str(), "http://127.0.0.1:10001/devstoreaccount1/jobs");
    }

    #[test]
    fn an_error_names_the_setting_and_does_not_show_the_value() {
        let key = format!("AccountKey={SECRET}");
        let signature = format!("SharedAccessSignature={SIGNED}");
        for (text, words) in [
            (
                String::new(),
                "connection string: needs either an AccountKey",
            ),
            (
                SECRET.replace('=', ""),
                "connection string: must be settings",
            ),
            (key.clone(), "AccountName: is missing"),
            ("AccountName=acct".into(), "needs either an AccountKey or a"),
            (
                format!("AccountName=acct;{key};{signature}"),
                "needs either",
            ),
            (
                format!("AccountName=a_b;{key}"),
                "AccountName: must be 3 to 24",
            ),
            (
                format!("AccountName=acct;{key}!"),
                "AccountKey: must be base64",
            ),
            (
                format!("AccountName=acct;{key};DefaultEndpointsProtocol=ftp"),
                "DefaultEndpointsProtocol or EndpointSuffix: must be",
            ),
            (
                format!("AccountName=acct;{key};QueueEndpoint=https://q/?{SIGNED}"),
                "QueueEndpoint: must be an `http` or `https` URL without",
            ),
            (
                "AccountName=acct;SharedAccessSignature=c2lnbmF0dXJl".into(),
                "SharedAccessSignature: must be a URL's query",
            ),
            (
                "UseDevelopmentStorage=yes".into(),
                "UseDevelopmentStorage: must be `true`",
            ),
            (
                format!("QueueEndpoint=http://localhost/;{key}"),
                "AccountName: is missing",
            ),
        ] {
            let error = StorageAccount::from_connection_string(&text).expect_err(&text);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.message().contains(words), "{text}: {error}");
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("c2VjcmV0"), "{shown}");
            assert!(!shown.contains("c2lnbmF0dXJl"), "{shown}");
        }
    }

    #[test]
    fn an_account_shows_neither_key_nor_signature() {
        let by_key = read(&format!("AccountName=acct;AccountKey={SECRET}"));
        let by_signature = read(&format!("AccountName=acct;SharedAccessSignature=?{SIGNED}"));
        for account in [by_key, by_signature] {
            let shown = format!("{account:?} {account:#?} {}", account.queue_url("jobs"));
            assert!(shown.contains("acct"), "{shown}");
            for secret in ["c2VjcmV0", "c2lnbmF0dXJl", "sig="] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
    }

    #[test]
    fn the_variable_is_for_the_queues_account() {
        let text = "AccountName=acct;AccountKey=a2V5;QueueEndpoint=http://here/";
        let account = StorageAccount::from_variable("ACCT", text).expect("a connection string");
        assert_eq!(account.queue_endpoint(), "http://here/");
        let other = StorageAccount::from_variable("acct", "UseDevelopmentStorage=true");
        let error = other.expect_err("another account");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let words = "is for account `devstoreaccount1`, but the queue is in account `acct`";
        assert!(error.message().contains(words), "{error}");
        let error = StorageAccount::from_variable("acct", "").expect_err("none");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.message().contains(CONNECTION_STRING), "{error}");
        let bad = StorageAccount::from_variable("acct", "AccountName=acct;AccountKey=not base64");
        let error = bad.expect_err("no key");
        assert!(error.message().starts_with(CONNECTION_STRING), "{error}");
        assert!(!format!("{error:?}").contains("not base64"), "{error:?}");
    }
}
