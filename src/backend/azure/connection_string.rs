//! Connection strings: `NAME=VALUE;NAME=VALUE`, with the portal's names.
//!
//! Names are not case sensitive. Settings of other services are ignored. An error names the setting
//! and the rule but not the value, which may be a key.

use std::collections::BTreeMap;

use azure_core::http::Url;

use super::account::{
    Credential, EMULATOR, SUFFIX, Service, StorageAccount, check_name, cloud_endpoint, endpoint,
};
use crate::error::{Error, Result};

/// The parsed settings by their usual names; an empty value counts as missing.
struct Settings<'a>(BTreeMap<&'static str, &'a str>);

/// The settings that are read, in their usual spelling.
const NAMES: [&str; 9] = [
    "DefaultEndpointsProtocol",
    "AccountName",
    "AccountKey",
    "SharedAccessSignature",
    "QueueEndpoint",
    "BlobEndpoint",
    "EndpointSuffix",
    "UseDevelopmentStorage",
    "DevelopmentStorageProxyUri",
];
const WHOLE: &str = "connection string";

impl StorageAccount {
    /// Parses a connection string in the portal's format.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the setting and the broken rule; the
    /// value is not shown.
    pub fn from_connection_string(text: &str) -> Result<Self> {
        let settings = Settings::read(text)?;
        match settings.get("UseDevelopmentStorage") {
            Some(flag) if flag.eq_ignore_ascii_case("true") => {
                return Self::emulator(settings.get("DevelopmentStorageProxyUri"));
            }
            Some(_) => return Err(Error::invalid("UseDevelopmentStorage", "must be `true`")),
            None => {}
        }
        let credential = settings.credential()?;
        let name = settings.account_name()?;
        Self::with_endpoints(&name, credential, |service| {
            match settings.endpoint(service)? {
                Some(url) => Ok(Some(url)),
                None => settings.cloud_endpoint(&name, service),
            }
        })
    }
}

impl<'a> Settings<'a> {
    fn read(text: &'a str) -> Result<Self> {
        let mut settings = BTreeMap::new();
        for setting in text.split(';').map(str::trim).filter(|s| !s.is_empty()) {
            let Some((name, value)) = setting.split_once('=') else {
                let rule = "must be settings `NAME=VALUE` with `;` between them";
                return Err(Error::invalid(WHOLE, rule));
            };
            let (name, value) = (name.trim(), value.trim());
            let known = NAMES.iter().find(|known| known.eq_ignore_ascii_case(name));
            let Some(name) = known else {
                continue;
            };
            if settings.contains_key(name) {
                return Err(Error::invalid(name, "stands there twice"));
            }
            if !value.is_empty() {
                settings.insert(*name, value);
            }
        }
        Ok(Self(settings))
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        debug_assert!(NAMES.contains(&name), "{name} is read");
        self.0.get(name).copied()
    }

    fn credential(&self) -> Result<Credential> {
        match (self.get("AccountKey"), self.get("SharedAccessSignature")) {
            (Some(key), None) => Credential::key("AccountKey", key),
            (None, Some(text)) => Credential::signature("SharedAccessSignature", text),
            (Some(_), Some(_)) => {
                let rule = "takes AccountKey or SharedAccessSignature, not both";
                Err(Error::invalid(WHOLE, rule))
            }
            (None, None) => {
                let rule = "needs an AccountKey or a SharedAccessSignature";
                Err(Error::invalid(WHOLE, rule))
            }
        }
    }

    /// Returns the account's name, from its setting or else from an endpoint.
    fn account_name(&self) -> Result<String> {
        if let Some(name) = self.get("AccountName") {
            return Ok(name.to_owned());
        }
        let queue = self.endpoint(Service::Queue)?;
        match queue.map_or_else(|| self.endpoint(Service::Blob), |url| Ok(Some(url)))? {
            Some(url) => name_of(&url).ok_or_else(|| {
                Error::invalid("AccountName", "is missing, and no endpoint names it")
            }),
            None => Err(Error::invalid(WHOLE, "needs an AccountName")),
        }
    }

    /// Returns the endpoint that a setting gives to a service.
    fn endpoint(&self, service: Service) -> Result<Option<Url>> {
        let name = match service {
            Service::Queue => "QueueEndpoint",
            Service::Blob => "BlobEndpoint",
        };
        self.get(name).map(|url| endpoint(name, url)).transpose()
    }

    /// Returns the endpoint of a cloud account; `None` for the emulator's account.
    fn cloud_endpoint(&self, name: &str, service: Service) -> Result<Option<Url>> {
        let suffix = self.get("EndpointSuffix");
        if name.eq_ignore_ascii_case(EMULATOR) && suffix.is_none() {
            return Ok(None);
        }
        let protocol = self.get("DefaultEndpointsProtocol").unwrap_or("https");
        let protocol = protocol.to_ascii_lowercase();
        if !matches!(&*protocol, "http" | "https") {
            let rule = "must be `https` or `http`";
            return Err(Error::invalid("DefaultEndpointsProtocol", rule));
        }
        let name = check_name(name)?;
        cloud_endpoint(&protocol, &name, service, suffix.unwrap_or(SUFFIX)).map(Some)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const KEY: &str = "c2VjcmV0LWtleQ==";
    const SIGNATURE: &str = "sv=2025-11-05&sp=raup&sig=c2lnbmF0dXJl%3D";

    fn read(text: &str) -> StorageAccount {
        StorageAccount::from_connection_string(text).expect(text)
    }

    #[test]
    fn the_portals_string_is_read() {
        let text = format!(
            "DefaultEndpointsProtocol=https;AccountName=Acct1;AccountKey={KEY};\
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
            let signature = format!("SharedAccessSignature={SIGNATURE}");
            for credential in [format!("AccountKey={KEY}"), signature] {
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
        let elsewhere =
            read("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://storage.local");
        let endpoint = "http://storage.local:10001/devstoreaccount1";
        assert_eq!(elsewhere.queue_endpoint(), endpoint);
    }

    #[test]
    fn an_error_names_the_setting_and_does_not_show_the_value() {
        let key = format!("AccountKey={KEY}");
        let signature = format!("SharedAccessSignature={SIGNATURE}");
        for (text, words) in [
            (String::new(), "connection string: needs an AccountKey"),
            (KEY.replace('=', ""), "connection string: must be settings"),
            (key.clone(), "connection string: needs an AccountName"),
            ("AccountName=acct".into(), "needs an AccountKey or a"),
            (format!("AccountName=acct;{key};{signature}"), "not both"),
            (
                format!("AccountName=acct;{key};{key}"),
                "AccountKey: stands there twice",
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
                "DefaultEndpointsProtocol: must be",
            ),
            (
                format!("AccountName=acct;{key};QueueEndpoint=https://q/?{SIGNATURE}"),
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
        let by_key = read(&format!("AccountName=acct;AccountKey={KEY}"));
        let by_signature = read(&format!(
            "AccountName=acct;SharedAccessSignature=?{SIGNATURE}"
        ));
        for account in [by_key, by_signature] {
            let shown = format!("{account:?} {account:#?} {}", account.queue_url("jobs"));
            assert!(shown.contains("acct"), "{shown}");
            for secret in ["c2VjcmV0", "c2lnbmF0dXJl", "sig="] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
    }
}
