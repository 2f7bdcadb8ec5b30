//! The HTTP settings of the queue client. A request is sent once, with a time limit. Retries belong
//! to the wrapper of the queue, where they are counted and logged.

use std::{sync::Arc, time::Duration};

use azure_core::http::{ClientOptions, RetryOptions, Transport};

use super::{account::StorageAccount, signing::Signing};
use crate::{
    base::https::{self, RequestTimeout, Target},
    error::Result,
};

/// Returns the client options for an account's queues. `timeout` limits each request, from
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_options_do_not_show_the_key() {
        let account = StorageAccount::with_key("acct", "a2V5").expect("an account");
        assert!(account.queue_endpoint().starts_with("https://"));
        let options = client_options(&account, Duration::from_secs(1)).expect("a client");
        let shown = format!("{options:?}");
        assert!(!shown.contains("a2V5"), "{shown}");
    }
}
