//! An account from the environment, with the variable names of Azure's own tools.

use super::account::{Credential, EMULATOR, StorageAccount, check_name, endpoint};
use crate::error::{Error, ErrorKind, Result};

/// Takes precedence: it has account, credential and endpoints together.
pub(crate) const CONNECTION_STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";
pub(crate) const ACCOUNT: &str = "AZURE_STORAGE_ACCOUNT";
pub(crate) const KEY: &str = "AZURE_STORAGE_KEY";
const SIGNATURE: &str = "AZURE_STORAGE_SAS_TOKEN";
const QUEUE_ENDPOINT: &str = "AZURE_STORAGE_QUEUE_ENDPOINT";

impl StorageAccount {
    /// Reads the credential of the account `name` from the environment: from
    /// `AZURE_STORAGE_CONNECTION_STRING`, else `AZURE_STORAGE_KEY` (with `AZURE_STORAGE_ACCOUNT`),
    /// else `AZURE_STORAGE_SAS_TOKEN`. `AZURE_STORAGE_QUEUE_ENDPOINT` replaces the default endpoint
    /// of its queues.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a variable breaks a rule or is for another account;
    /// [`ErrorKind::Denied`] if no variable has a credential.
    pub fn from_environment(name: &str) -> Result<Self> {
        from_variables(name, |variable| std::env::var(variable).ok())
    }
}

fn from_variables(name: &str, read: impl Fn(&str) -> Option<String>) -> Result<StorageAccount> {
    let name = check_name(name)?;
    let read = |variable| read(variable).filter(|value| !value.trim().is_empty());
    let account = match (read(CONNECTION_STRING), read(KEY), read(SIGNATURE)) {
        (Some(text), _, _) => {
            let account = connection_string(text.trim())?;
            check_same(CONNECTION_STRING, account.name(), &name)?;
            account
        }
        (None, Some(key), _) => {
            if let Some(other) = read(ACCOUNT) {
                check_same(ACCOUNT, other.trim(), &name)?;
            }
            StorageAccount::with_credential(&name, Credential::key(KEY, key.trim())?)?
        }
        (None, None, Some(text)) => {
            StorageAccount::with_credential(&name, Credential::signature(SIGNATURE, text.trim())?)?
        }
        (None, None, None) => return Err(no_credentials(&name)),
    };
    match read(QUEUE_ENDPOINT) {
        Some(url) => account.at_queue_endpoint(endpoint(QUEUE_ENDPOINT, url.trim())?.as_str()),
        None => Ok(account),
    }
}

/// Parses the value of [`CONNECTION_STRING`].
pub(crate) fn connection_string(text: &str) -> Result<StorageAccount> {
    let account = StorageAccount::from_connection_string(text);
    account.map_err(|error| Error::invalid(CONNECTION_STRING, error.message()))
}

fn check_same(variable: &str, is: &str, wanted: &str) -> Result<()> {
    if is.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    let rule = format_args!("is for account `{is}`, but the queue is in account `{wanted}`");
    Err(Error::invalid(variable, rule))
}

#[cold]
fn no_credentials(name: &str) -> Error {
    let mut message = format!(
        "account `{name}` needs a credential: set {CONNECTION_STRING}, or {KEY}, or {SIGNATURE}"
    );
    if name == EMULATOR {
        message.push_str("; for the emulator, set the first to `UseDevelopmentStorage=true`");
    }
    Error::new(ErrorKind::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(name: &str, variables: &[(&str, &str)]) -> Result<StorageAccount> {
        from_variables(name, |wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_first_credential_that_is_set_is_used() {
        let text = "AccountName=acct;AccountKey=a2V5;QueueEndpoint=http://here/";
        let all = [
            (CONNECTION_STRING, text),
            (KEY, "b3RoZXI="),
            (SIGNATURE, "sig=x"),
        ];
        let account = from("ACCT", &all).expect("a connection string");
        assert_eq!(account.queue_endpoint(), "http://here/");
        let key = Credential::key(KEY, "b3RoZXI=").expect("a key");
        assert_eq!(*from("acct", &all[1..]).expect("a key").credential(), key);
        let signature = from("acct", &all[2..]).expect("a signature");
        let cloud = "https://acct.queue.core.windows.net/";
        assert_eq!(signature.queue_endpoint(), cloud);
        let elsewhere = (QUEUE_ENDPOINT, "http://127.0.0.1:7/acct");
        let moved = from("acct", &[all[0], elsewhere]).expect("an endpoint");
        assert_eq!(moved.queue_endpoint(), elsewhere.1);
        assert_eq!(
            moved.credential(),
            &Credential::key(KEY, "a2V5").expect("a key")
        );
        let emulator = from(EMULATOR, &all[1..]).expect("a key");
        assert!(
            emulator
                .queue_endpoint()
                .starts_with("http://127.0.0.1:10001/")
        );
    }

    #[test]
    fn a_variable_for_another_account_is_refused() {
        for variables in [
            &[(CONNECTION_STRING, "UseDevelopmentStorage=true")][..],
            &[(KEY, "a2V5"), (ACCOUNT, "devstoreaccount1")],
        ] {
            let error = from("acct", variables).expect_err("another account");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let words = "is for account `devstoreaccount1`, but the queue is in account `acct`";
            assert!(error.message().contains(words), "{error}");
        }
    }

    #[test]
    fn without_a_credential_the_variables_are_named() {
        let error = from("acct", &[(KEY, " ")]).expect_err("an empty one is none");
        assert_eq!(error.kind(), ErrorKind::Denied);
        for variable in [CONNECTION_STRING, KEY, SIGNATURE] {
            assert!(error.message().contains(variable), "{error}");
        }
        let error = from(EMULATOR, &[]).expect_err("none");
        assert!(error.message().contains("UseDevelopmentStorage=true"));
    }

    #[test]
    fn a_bad_value_is_named_by_its_variable_and_not_shown() {
        for (variable, value) in [
            (CONNECTION_STRING, "AccountName=acct;AccountKey=not base64"),
            (KEY, "not base64"),
            (SIGNATURE, "not base64"),
        ] {
            let error = from("acct", &[(variable, value)]).expect_err(variable);
            assert!(error.message().starts_with(variable), "{error}");
            assert!(!format!("{error:?}").contains("not base64"), "{error:?}");
        }
    }
}
