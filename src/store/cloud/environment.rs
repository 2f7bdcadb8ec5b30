//! Opens a cloud's store from its URL and the environment.
//!
//! The variables are those of the client (`AZURE_STORAGE_ACCOUNT_NAME`, `AWS_ACCESS_KEY_ID`,
//! `GOOGLE_SERVICE_ACCOUNT`, ...). For Azure a connection string is read as well, as for queues.

use std::{str::FromStr, sync::Arc, time::Duration};

use object_store::{
    ClientConfigKey, ClientOptions, Result as ClientResult, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::{HttpClient, HttpConnector},
    gcp::GoogleCloudStorageBuilder,
};
use tokio::sync::OnceCell;

use super::{Client, CloudStore, Service, azure_rest::AzureRest};
use crate::{
    backend::azure::{
        CONNECTION_STRING, Credential, connection_string, endpoint as checked_endpoint,
    },
    base::{
        duration,
        https::{self, RequestTimeout, Target},
        request_error::RequestError,
    },
    error::{Error, ErrorKind, Result},
    store::{BlobName, Variables},
};

/// Time limit of a write, and of each piece of what is read.
const WRITE: Duration = Duration::from_secs(10);
const PIECE: Duration = Duration::from_secs(30);
/// How long a failing read is retried.
const RETRY: Duration = Duration::from_secs(15);
pub(super) const READS: usize = 3;
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Time limit of requests to this machine's own network.
const SHORT: Duration = Duration::from_secs(2);

/// Opens `SCHEME://BUCKET[/PREFIX]` and checks that it exists.
///
/// # Errors
/// [`ErrorKind::Invalid`] for an invalid name or variable; [`ErrorKind::NotFound`] if the container
/// does not exist; [`ErrorKind::Denied`] if the credential is refused; any other error of the service.
pub(in crate::store) async fn open(url: &str, variables: &Variables) -> Result<CloudStore> {
    let store = connect(url, variables)?;
    store.check().await.map(|()| store)
}

/// Like [`open`], without the check.
pub(in crate::store) fn connect(url: &str, variables: &Variables) -> Result<CloudStore> {
    let (scheme, bucket_path) = bucket_path(url)?;
    match scheme {
        "az" => azure(bucket_path, variables),
        "s3" => s3(bucket_path, variables),
        _ => gcs(bucket_path, variables),
    }
}

/// Returns the container of a store's URL, or of a signed address of Azure:
/// `https://ACCOUNT.blob.core.windows.net/CONTAINER?SIGNATURE`. Returns `None` for another text.
pub(in crate::store) fn container_at(
    url: &str,
    variables: &Variables,
) -> Option<Result<CloudStore>> {
    match url.split_once(':')?.0 {
        "az" | "s3" | "gs" => return Some(connect(url, variables)),
        "http" | "https" => {}
        _ => return None,
    }
    let (address, signature) = url.split_once('?').unwrap_or((url, ""));
    let (endpoint, container) = address.trim_end_matches('/').rsplit_once('/')?;
    let text = format!("BlobEndpoint={endpoint};SharedAccessSignature={signature}");
    let variables = [(CONNECTION_STRING.to_owned(), text)].into();
    let found = connect(&format!("az://{container}"), &variables);
    Some(found.map_err(|error| {
        let rule = format_args!("`{address}` is not a signed address: {}", error.message());
        Error::invalid("url", rule)
    }))
}

/// A bucket, and a prefix that is empty or ends in `/`.
pub(crate) type BucketPath = (String, String);

/// Returns the scheme of a store's URL, and the bucket and the prefix in it.
pub(crate) fn bucket_path(url: &str) -> Result<(&str, BucketPath)> {
    let rule = |what: &str| {
        // The query of a signed address is a secret.
        let shown = url.split('?').next().unwrap_or_default();
        let rule = format!("`{shown}` {what}: `az://CONTAINER[/PREFIX]`, or `s3:`, `gs:`");
        Err(Error::invalid("store", rule))
    };
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
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
        return Ok((scheme, (bucket.to_owned(), String::new())));
    }
    let prefix = BlobName::new(prefix).map_err(|e| Error::invalid("store", e.message()))?;
    Ok((scheme, (bucket.to_owned(), format!("{prefix}/"))))
}

fn azure((bucket, prefix): BucketPath, variables: &Variables) -> Result<CloudStore> {
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
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().push(&bucket);
    }
    let builder = builder
        // A connection string names the emulator.
        .with_use_emulator(false)
        .with_endpoint(endpoint.to_owned())
        .with_container_name(&bucket);
    let clients = clients(target, |retry, connector| {
        let builder = builder.clone().with_retry(retry);
        builder.with_http_connector(connector).build()
    })?;
    let shown = url.to_string();
    let service = Service::Azure(AzureRest {
        http: http(target, RequestTimeout::Total(WRITE))?,
        client: Arc::clone(&clients[0]),
        account,
        url,
    });
    store(service, (bucket, prefix), shown, target, clients)
}

/// Adds the account, its endpoint and its credential from a connection string, which the client does not
/// read.
fn account(
    mut builder: MicrosoftAzureBuilder,
    variables: &Variables,
) -> Result<(MicrosoftAzureBuilder, String)> {
    if let Some(text) = read(variables, CONNECTION_STRING) {
        let account = connection_string(text)?;
        // All other variables are dropped: the client would prefer a token among them.
        builder = match &account.credential {
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
    let name = builder.get_config_value(&AzureConfigKey::AccountName);
    Ok((builder, name.ok_or_else(no_account)?))
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
    let clients = clients(target, |retry, connector| {
        let builder = builder.clone().with_retry(retry);
        builder.with_http_connector(connector).build()
    })?;
    let endpoint = endpoint.unwrap_or_else(|| "https://s3.amazonaws.com".to_owned());
    let url = format!("{}/{bucket}", endpoint.trim_end_matches('/'));
    let service = Service::S3(Arc::clone(&clients[0]));
    store(service, (bucket, prefix), url, target, clients)
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
    let clients = clients(target, |retry, connector| {
        let builder = builder.clone().with_retry(retry);
        builder.with_http_connector(connector).build()
    })?;
    let url = format!("https://storage.googleapis.com/{bucket}");
    store(Service::Gcs, (bucket, prefix), url, target, clients)
}

/// Makes a store of its clients for reads and for writes.
fn store<T: Client>(
    service: Service,
    (bucket, prefix): BucketPath,
    url: String,
    target: Target,
    [reads, writes]: [Arc<T>; 2],
) -> Result<CloudStore> {
    Ok(CloudStore {
        service,
        bucket,
        url,
        prefix,
        reads,
        writes,
        http: http(target, RequestTimeout::Total(WRITE))?,
        conditions: OnceCell::new(),
    })
}

/// Makes a client for reads, which are retried and have a time limit for each piece, and one for
/// writes, which are sent once.
fn clients<T>(
    target: Target,
    build: impl Fn(RetryConfig, Connector) -> ClientResult<T>,
) -> Result<[Arc<T>; 2]> {
    let make = |max_retries, timeout| {
        let retry = RetryConfig {
            max_retries,
            retry_timeout: RETRY,
            ..RetryConfig::default()
        };
        let built = build(retry, Connector { target, timeout });
        built.map(Arc::new).map_err(invalid_environment)
    };
    Ok([
        make(READS, RequestTimeout::PerChunk(PIECE))?,
        make(0, RequestTimeout::Total(WRITE))?,
    ])
}

/// Makes the HTTP clients of a store's client.
#[derive(Debug)]
struct Connector {
    target: Target,
    timeout: RequestTimeout,
}

impl HttpConnector for Connector {
    /// Of the client's own options only the short time-out for this machine's network is kept. The
    /// client sets it for requests of a credential.
    fn connect(&self, options: &ClientOptions) -> ClientResult<HttpClient> {
        let short = options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let is_short = |text: String| duration::parse(&text).is_ok_and(|short| short <= SHORT);
        let timeout = match short.is_some_and(is_short) {
            true => RequestTimeout::Total(SHORT),
            false => self.timeout,
        };
        http(self.target, timeout).map_err(|error| object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(error),
        })
    }
}

fn http(target: Target, timeout: RequestTimeout) -> Result<HttpClient> {
    https::client(target, timeout).map(HttpClient::new)
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
