//! Opens a cloud's store from its URL and the environment.
//!
//! The variables are those of the client (`AZURE_STORAGE_ACCOUNT_NAME`, `AWS_ACCESS_KEY_ID`,
//! `GOOGLE_SERVICE_ACCOUNT`, ...). For Azure the variables of Azure's command line and a connection
//! string are read as well; they name the same account for queues.

use std::{str::FromStr, sync::Arc, time::Duration};

use object_store::{
    ClientConfigKey, ClientOptions, ObjectStore, Result as ClientResult, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::{HttpClient, HttpConnector},
    gcp::GoogleCloudStorageBuilder,
    list::PaginatedListStore,
};

use super::{CloudStore, CredentialClient, Service, azure_rest::AzureRest};
use crate::{
    backend::azure::{
        ACCOUNT, CONNECTION_STRING, Credential, KEY, connection_string,
        endpoint as checked_endpoint,
    },
    base::{
        duration,
        https::{self, RequestTimeout, Target},
        request_error::RequestError,
    },
    error::{Error, ErrorKind, Result},
    store::{BlobName, Variables},
};

/// A client that lists by page as well.
pub(super) trait Client: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Client for T {}

/// The purpose of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Reads,
    Writes,
    Contents,
}

/// Time-outs of a request, and of each piece of large content.
const REQUEST: Duration = Duration::from_secs(10);
const PIECE: Duration = Duration::from_secs(30);
/// How long a failing read is retried.
const RETRY: Duration = Duration::from_secs(15);
/// Time-out of large content, over all attempts.
const CONTENT: Duration = Duration::from_secs(12 * 3600);
pub(super) const READS: usize = 3;
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Time-out of requests to this machine's own network.
const SHORT: Duration = Duration::from_secs(2);

/// Opens `SCHEME://BUCKET[/PREFIX]` and checks that it exists.
///
/// # Errors
/// [`ErrorKind::Invalid`] for an invalid name or variable; [`ErrorKind::NotFound`] if the container
/// does not exist; [`ErrorKind::Denied`] if the credential is missing or refused; any other error
/// of the service.
pub(in crate::store) async fn open(
    scheme: &str,
    rest: &str,
    variables: &Variables,
) -> Option<Result<CloudStore>> {
    let store = match connect(scheme, rest, variables)? {
        Ok(store) => store,
        Err(error) => return Some(Err(error)),
    };
    Some(store.check().await.map(|()| store))
}

/// Like [`open`], without the check.
pub(in crate::store) fn connect(
    scheme: &str,
    rest: &str,
    variables: &Variables,
) -> Option<Result<CloudStore>> {
    let connect = match scheme {
        "az" => azure,
        "s3" => s3,
        "gs" => gcs,
        _ => return None,
    };
    Some(bucket_path(scheme, rest).and_then(|bucket_path| connect(bucket_path, variables)))
}

/// Returns the container of a store's URL, or of a signed address of Azure:
/// `https://ACCOUNT.blob.core.windows.net/CONTAINER?SIGNATURE`. Returns `None` for another text.
pub(in crate::store) fn container_at(
    url: &str,
    variables: &Variables,
) -> Option<Result<CloudStore>> {
    let (scheme, rest) = url.split_once(':')?;
    if !matches!(scheme, "http" | "https") {
        return connect(scheme, rest, variables);
    }
    let (address, signature) = url.split_once('?').unwrap_or((url, ""));
    let (endpoint, container) = address.trim_end_matches('/').rsplit_once('/')?;
    let text = format!("BlobEndpoint={endpoint};SharedAccessSignature={signature}");
    let variables = [(CONNECTION_STRING.to_owned(), text)].into();
    let found = connect("az", &format!("//{container}"), &variables)?;
    Some(found.map_err(|error| {
        let rule = format_args!("`{address}` is not a signed address: {}", error.message());
        Error::invalid("url", rule)
    }))
}

/// A bucket, and a prefix that is empty or ends in `/`.
pub(crate) type BucketPath = (String, String);

pub(crate) fn bucket_path(scheme: &str, rest: &str) -> Result<BucketPath> {
    let rule = |what: &str| {
        // The query of a signed address is a secret.
        let shown = rest.split('?').next().unwrap_or_default();
        let rule = format!("`{scheme}:{shown}` {what}: `{scheme}://CONTAINER[/PREFIX]`");
        Err(Error::invalid("store", rule))
    };
    // A prefix is logged, so a signature must not become a part of it.
    if rest.contains('?') {
        return rule("has parameters, and a store takes none");
    }
    let Some(rest) = rest.strip_prefix("//") else {
        return rule("has no container");
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.$".contains(c);
    if bucket.is_empty() || bucket.len() > 222 || !bucket.chars().all(fits) {
        return rule("names no container that there can be");
    }
    let prefix = prefix.trim_end_matches('/');
    if prefix.is_empty() {
        return Ok((bucket.to_owned(), String::new()));
    }
    let prefix = BlobName::new(prefix).map_err(|e| Error::invalid("store", e.message()))?;
    Ok((bucket.to_owned(), format!("{prefix}/")))
}

/// Makes a client for each purpose, in their order. The builders have no common trait.
macro_rules! clients {
    ($http_clients:expr, $builder:expr) => {
        $http_clients.clients(|retry, connector| {
            let builder = $builder.clone().with_retry(retry);
            builder.with_http_connector(connector).build()
        })?
    };
}

fn azure(bucket_path: BucketPath, variables: &Variables) -> Result<CloudStore> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in with_prefix(variables, "AZURE_") {
        builder = builder.with_config(key, value);
    }
    if let Some(url) = read(variables, "MSI_ENDPOINT") {
        builder = builder.with_msi_endpoint(url);
    }
    let (builder, account) = account(builder, variables)?;
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let endpoint = endpoint.unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
    let endpoint = endpoint.trim_end_matches('/');
    let mut url = checked_endpoint("AZURE_STORAGE_ENDPOINT", endpoint)?;
    let target = Target::of(&url);
    let (bucket, prefix) = bucket_path;
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().push(&bucket);
    }
    let builder = builder
        // A connection string names the emulator.
        .with_use_emulator(false)
        .with_endpoint(endpoint.to_owned())
        .with_container_name(&bucket);
    let http_clients = HttpClients::new(target)?;
    let clients = clients!(http_clients, builder);
    let shown = url.to_string();
    let azure_rest = AzureRest {
        http: http_clients.whole.clone(),
        client: Arc::clone(&clients[0]),
        account,
        url,
    };
    let service = (Service::Azure, CredentialClient::Azure as fn(_) -> _);
    let store = CloudStore::new(
        service,
        (bucket, prefix),
        shown,
        http_clients.whole,
        clients,
    );
    Ok(CloudStore {
        azure_rest: Some(azure_rest),
        ..store
    })
}

/// Adds the account, its endpoint and its credential from sources that the client does not read: a
/// connection string, or the variables of Azure's command line.
fn account(
    mut builder: MicrosoftAzureBuilder,
    variables: &Variables,
) -> Result<(MicrosoftAzureBuilder, String)> {
    let has = |builder: &MicrosoftAzureBuilder, key| builder.get_config_value(&key).is_some();
    if let Some(text) = read(variables, CONNECTION_STRING) {
        let account = connection_string(text)?;
        // All other variables are dropped: the client would prefer a token among them.
        builder = match account.credential() {
            Credential::SharedKey(key) => {
                MicrosoftAzureBuilder::new().with_access_key(key.reveal())
            }
            Credential::Signature(text) => {
                MicrosoftAzureBuilder::new().with_config(AzureConfigKey::SasKey, text.reveal())
            }
        };
        builder = builder
            .with_account(account.name())
            .with_endpoint(account.blob_endpoint().to_owned());
        return Ok((builder, account.name().to_owned()));
    }
    if !has(&builder, AzureConfigKey::AccountName) {
        builder = builder.with_account(read(variables, ACCOUNT).ok_or_else(no_account)?);
    }
    if !has(&builder, AzureConfigKey::AccessKey)
        && let Some(key) = read(variables, KEY)
    {
        builder = builder.with_access_key(key);
    }
    let name = builder.get_config_value(&AzureConfigKey::AccountName);
    Ok((builder, name.unwrap_or_default()))
}

fn s3((bucket, prefix): BucketPath, variables: &Variables) -> Result<CloudStore> {
    let mut builder = AmazonS3Builder::new();
    for (key, value) in with_prefix(variables, "AWS_") {
        builder = builder.with_config(key, value);
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    let target = target("AWS_ENDPOINT", endpoint.as_deref())?;
    let builder = builder
        .with_bucket_name(&bucket)
        // One deletion per request: the answer to a batch has less detail.
        .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
    let http_clients = HttpClients::new(target)?;
    let clients = clients!(http_clients, builder);
    let endpoint = endpoint.unwrap_or_else(|| "https://s3.amazonaws.com".to_owned());
    let url = format!("{}/{bucket}", endpoint.trim_end_matches('/'));
    let service = (Service::S3, CredentialClient::S3 as fn(_) -> _);
    Ok(CloudStore::new(
        service,
        (bucket, prefix),
        url,
        http_clients.whole,
        clients,
    ))
}

fn gcs((bucket, prefix): BucketPath, variables: &Variables) -> Result<CloudStore> {
    let mut builder = GoogleCloudStorageBuilder::new();
    if let Some(path) = read(variables, "SERVICE_ACCOUNT") {
        builder = builder.with_service_account_path(path);
    }
    for (key, value) in with_prefix(variables, "GOOGLE_") {
        builder = builder.with_config(key, value);
    }
    let builder = builder.with_bucket_name(&bucket);
    let target = target("GOOGLE_BASE_URL", None)?;
    let http_clients = HttpClients::new(target)?;
    let clients = clients!(http_clients, builder);
    let url = format!("https://storage.googleapis.com/{bucket}");
    let service = (Service::Gcs, CredentialClient::Gcs as fn(_) -> _);
    Ok(CloudStore::new(
        service,
        (bucket, prefix),
        url,
        http_clients.whole,
        clients,
    ))
}

impl Purpose {
    /// Reads are retried, writes never.
    pub(super) fn retry(self) -> RetryConfig {
        RetryConfig {
            max_retries: if self == Self::Writes { 0 } else { READS },
            retry_timeout: if self == Self::Contents {
                CONTENT
            } else {
                RETRY
            },
            ..RetryConfig::default()
        }
    }

    pub(super) fn patience(self) -> RequestTimeout {
        match self {
            Self::Reads | Self::Writes => RequestTimeout::Total(REQUEST),
            Self::Contents => RequestTimeout::PerChunk(PIECE),
        }
    }
}

/// The HTTP clients of a store, made once: each reads the machine's trusted certificates.
struct HttpClients {
    target: Target,
    whole: HttpClient,
    pieces: HttpClient,
}

/// Gives the HTTP clients to the store's clients.
#[derive(Debug)]
struct Connector {
    target: Target,
    usual: HttpClient,
}

impl HttpClients {
    fn new(target: Target) -> Result<Self> {
        let client = |purpose: Purpose| https::client(target, purpose.patience());
        Ok(Self {
            target,
            whole: HttpClient::new(client(Purpose::Reads)?),
            pieces: HttpClient::new(client(Purpose::Contents)?),
        })
    }

    /// Makes a client for each purpose, in their order.
    fn clients<T>(
        &self,
        build: impl Fn(RetryConfig, Connector) -> ClientResult<T>,
    ) -> Result<[Arc<T>; 3]> {
        let make = |purpose: Purpose| {
            let usual = match purpose {
                Purpose::Reads | Purpose::Writes => self.whole.clone(),
                Purpose::Contents => self.pieces.clone(),
            };
            let target = self.target;
            let built = build(purpose.retry(), Connector { target, usual });
            built.map(Arc::new).map_err(invalid_environment)
        };
        Ok([
            make(Purpose::Reads)?,
            make(Purpose::Writes)?,
            make(Purpose::Contents)?,
        ])
    }
}

impl HttpConnector for Connector {
    /// Of the client's own options only the short time-out for this machine's network is kept. The
    /// client sets it for requests of a credential.
    fn connect(&self, options: &ClientOptions) -> ClientResult<HttpClient> {
        let short = options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let short = short.and_then(|text| duration::parse(&text).ok());
        if short.is_none_or(|short| short > SHORT) {
            return Ok(self.usual.clone());
        }
        let client = https::client(self.target, RequestTimeout::Total(SHORT));
        let client = client.map_err(|error| object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(client))
    }
}

/// Returns a client's settings among the variables with this prefix. The client expects their names
/// in lower case.
fn with_prefix<'a, K: FromStr>(
    variables: &'a Variables,
    prefix: &'a str,
) -> impl Iterator<Item = (K, &'a String)> {
    let own = variables
        .iter()
        .filter(move |(key, value)| key.starts_with(prefix) && !value.is_empty());
    own.filter_map(|(key, value)| Some((key.to_ascii_lowercase().parse().ok()?, value)))
}

fn read<'a>(variables: &'a Variables, key: &str) -> Option<&'a str> {
    let value = variables.get(key)?.trim();
    (!value.is_empty()).then_some(value)
}

fn target(variable: &str, endpoint: Option<&str>) -> Result<Target> {
    match endpoint {
        Some(url) => checked_endpoint(variable, url).map(|url| Target::of(&url)),
        None => Ok(Target {
            secure: true,
            loopback: false,
        }),
    }
}

/// The error of a client that cannot be made from the environment. Values are not shown.
fn invalid_environment(error: object_store::Error) -> Error {
    let error = RequestError::from(error);
    let message = "the environment's credential for this store cannot be used";
    Error::new(ErrorKind::Invalid, message).with_source(error)
}

#[cold]
fn no_account() -> Error {
    let message = format!(
        "an `az:` store needs an account: set {CONNECTION_STRING}, or AZURE_STORAGE_ACCOUNT_NAME \
         and AZURE_STORAGE_ACCOUNT_KEY; for the emulator, set the first to \
         `UseDevelopmentStorage=true`"
    );
    Error::new(ErrorKind::Denied, message)
}
