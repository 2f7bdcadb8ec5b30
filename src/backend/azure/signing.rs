//! Signs requests of queues with the account's key, or adds a shared access signature.
//!
//! A policy of the client's pipeline. It runs for each attempt, as the last policy before the
//! network, so it signs exactly the request that is sent. The rules for shared keys are in the
//! service's documentation, "Authorize with Shared Key", for versions from 2015-02-21 on.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use azure_core::{
    credentials,
    hmac::hmac_sha256,
    http::{
        ClientOptions, Context, Request, RetryOptions, Transport,
        headers::Headers,
        policies::{Policy, PolicyResult},
    },
    time::{OffsetDateTime, to_rfc7231},
};

use super::account::{Credential, StorageAccount};
use crate::{
    base::{
        clock::wall,
        https::{self, RequestTimeout, Target},
    },
    error::Result,
};

/// Returns the client options for an account's queues. A request is sent once: retries belong to the
/// wrapper of the queue, where they are counted and logged. `timeout` limits each request, from
/// connecting to the end of the answer.
pub(crate) fn client_options(account: &StorageAccount, timeout: Duration) -> Result<ClientOptions> {
    let client = https::client(
        Target::of(&account.queue_url("")),
        RequestTimeout::Total(timeout),
    )?;
    Ok(ClientOptions {
        per_try_policies: vec![Arc::new(Signing::new(account.clone()))],
        retry: RetryOptions::none(),
        transport: Some(Transport::new(Arc::new(client))),
        ..ClientOptions::default()
    })
}

/// A pipeline policy that signs each request of an account.
#[derive(Debug)]
struct Signing {
    account: StorageAccount,
}

impl Signing {
    fn new(account: StorageAccount) -> Self {
        Self { account }
    }

    fn sign(&self, request: &mut Request) -> azure_core::Result<()> {
        match &self.account.credential {
            Credential::Signature(signature) => {
                let url = request.url_mut();
                let query = match url.query() {
                    Some(query) if query.contains("sig=") => return Ok(()),
                    Some(query) if !query.is_empty() => format!("{query}&{}", signature.reveal()),
                    _ => signature.reveal().to_owned(),
                };
                url.set_query(Some(&query));
            }
            Credential::SharedKey(key) => {
                let now = to_rfc7231(&OffsetDateTime::from(wall()));
                request.insert_header("x-ms-date", now);
                let text = string_to_sign(self.account.name(), request);
                let key = credentials::Secret::new(key.reveal().to_owned());
                let signature = hmac_sha256(&text, &key)?;
                let name = self.account.name();
                request.insert_header("authorization", format!("SharedKey {name}:{signature}"));
            }
        }
        Ok(())
    }
}

#[allow(
    elided_lifetimes_in_paths,
    reason = "as in the trait: another form is another lifetime"
)]
#[async_trait]
impl Policy for Signing {
    async fn send(
        &self,
        context: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        self.sign(request)?;
        next[0].send(context, request, &next[1..]).await
    }
}

/// Returns the text whose signature proves the key.
fn string_to_sign(account: &str, request: &Request) -> String {
    let length = match request.body().len() {
        None | Some(0) => String::new(),
        Some(length) => length.to_string(),
    };
    let headers = request.headers();
    let value = |name: &'static str| headers.get_optional_str(&name.into()).unwrap_or_default();
    let mut lines = vec![
        request.method().to_string(),
        value("content-encoding").to_owned(),
        value("content-language").to_owned(),
        length,
        value("content-md5").to_owned(),
        value("content-type").to_owned(),
        // The date is empty, because `x-ms-date` replaces it.
        String::new(),
        value("if-modified-since").to_owned(),
        value("if-match").to_owned(),
        value("if-none-match").to_owned(),
        value("if-unmodified-since").to_owned(),
        value("range").to_owned(),
    ];
    lines.extend(own_headers(headers));
    lines.push(format!("/{account}{}", request.url().path()));
    lines.extend(parameters(request));
    lines.join("\n")
}

/// Returns the service's own headers, sorted.
fn own_headers(headers: &Headers) -> Vec<String> {
    let mut own: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str().to_ascii_lowercase(), value.as_str().trim()))
        .filter(|(name, _)| name.starts_with("x-ms-"))
        .map(|(name, value)| format!("{name}:{value}"))
        .collect();
    own.sort();
    own
}

/// Returns the URL's parameters, decoded and sorted. No parameter occurs twice.
fn parameters(request: &Request) -> Vec<String> {
    let mut parameters: Vec<_> = request
        .url()
        .query_pairs()
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .collect();
    parameters.sort();
    parameters
        .into_iter()
        .map(|(name, value)| format!("{name}:{value}"))
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use azure_core::http::{Method, Url};

    use super::*;

    /// Returns a shared access signature with all permissions on the emulator's queues (`q`) or blobs
    /// (`b`).
    pub(crate) fn signature_of(service: &str) -> String {
        use super::super::account::{EMULATOR as ACCOUNT, EMULATOR_KEY as KEY};
        let (version, end) = ("2022-11-02", "2099-01-01T00:00:00Z");
        let text =
            format!("{ACCOUNT}\nrwdlacup\n{service}\nsco\n\n{end}\n\nhttps,http\n{version}\n\n");
        let signature = hmac_sha256(&text, &credentials::Secret::new(KEY)).expect("signed");
        let signature = signature.replace('+', "%2B").replace('=', "%3D");
        format!(
            "sv={version}&ss={service}&srt=sco&sp=rwdlacup&se={end}&spr=https,http&sig={signature}"
        )
    }

    fn request(url: &str) -> Request {
        Request::new(Url::parse(url).expect(url), Method::Put)
    }

    #[test]
    fn the_string_to_sign_follows_the_services_rules() {
        let mut request =
            request("http://h:1/acct/jobs/messages/1?visibilitytimeout=5&popreceipt=a%2Bb%3D");
        request.insert_header("x-ms-version", "2025-11-05");
        request.insert_header("x-ms-date", "now");
        request.insert_header("accept", "application/xml");
        let empty = "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:now\nx-ms-version:2025-11-05\n\
                     /acct/acct/jobs/messages/1\npopreceipt:a+b=\nvisibilitytimeout:5";
        assert_eq!(string_to_sign("acct", &request), empty);
        request.set_body("four");
        request.insert_header("content-type", "application/xml");
        let text = string_to_sign("acct", &request);
        assert!(
            text.starts_with("PUT\n\n\n4\n\napplication/xml\n\n"),
            "{text}"
        );
    }

    #[test]
    fn a_shared_access_signature_is_added_once() {
        let account = StorageAccount::from_connection_string(
            "AccountName=acct;SharedAccessSignature=?sv=1&sig=x%2B",
        );
        let account = account.expect("one");
        let signing = Signing::new(account);
        for (before, after) in [
            ("http://h/jobs", "http://h/jobs?sv=1&sig=x%2B"),
            (
                "http://h/jobs?comp=metadata",
                "http://h/jobs?comp=metadata&sv=1&sig=x%2B",
            ),
        ] {
            let mut request = request(before);
            for _ in 0..2 {
                signing.sign(&mut request).expect("signed");
                assert_eq!(request.url().as_str(), after);
            }
        }
    }

    #[test]
    fn client_options_do_not_show_the_key() {
        let account = StorageAccount::from_connection_string("AccountName=acct;AccountKey=a2V5");
        let account = account.expect("an account");
        assert!(account.queue_endpoint().starts_with("https://"));
        let options = client_options(&account, Duration::from_secs(1)).expect("a client");
        let shown = format!("{options:?}");
        assert!(!shown.contains("a2V5"), "{shown}");
    }
}
