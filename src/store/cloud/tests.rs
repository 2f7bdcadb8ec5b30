//! Tests on a real Azurite and moto's S3, and of malformed URLs and environments.

mod conditions;
mod proxied;

use std::sync::Arc;

use super::super::{BlobContent, BlobName, BlobStore, Variables, container, contract, open_with};
use crate::{
    azurite::{ACCOUNT, KEY, azurite},
    error::{Error, ErrorKind},
    moto::moto,
};

fn azure() -> Variables {
    let text = azurite().connection_string();
    [("AZURE_STORAGE_CONNECTION_STRING".to_owned(), text)].into()
}

fn s3() -> Variables {
    moto().environment().into_iter().collect()
}

async fn opened(url: &str, variables: &Variables) -> Arc<dyn BlobStore> {
    open_with(url, variables).await.expect(url)
}

async fn refused(url: &str, variables: &Variables) -> Error {
    let error = open_with(url, variables).await.expect_err(url);
    let shown = format!("{error} {error:?}");
    for secret in [&KEY[..20], "c2VjcmV0", "sig="] {
        assert!(!shown.contains(secret), "{shown}");
    }
    error
}

fn name(name: &str) -> BlobName {
    BlobName::new(name).expect("a name")
}

#[tokio::test]
async fn azure_keeps_the_contract() {
    azurite().create_container("contract");
    let [one, other] = [
        opened("az://contract", &azure()).await,
        opened("az://contract", &azure()).await,
    ];
    contract::check(&*one).await;
    contract::check_races(&[one, other]).await;
}

#[tokio::test]
async fn s3_keeps_the_contract() {
    moto().create_bucket("contract");
    let [one, other] = [
        opened("s3://contract", &s3()).await,
        opened("s3://contract", &s3()).await,
    ];
    contract::check(&*one).await;
    contract::check_races(&[one, other]).await;
}

#[tokio::test]
async fn a_prefix_is_a_separate_store() {
    azurite().create_container("prefix");
    moto().create_bucket("prefix");
    for (scheme, variables) in [("az", azure()), ("s3", s3())] {
        let url = format!("{scheme}://prefix/teams/one/");
        let under = opened(&url, &variables).await;
        assert_eq!(under.to_string(), format!("{scheme}://prefix/teams/one"));
        contract::check(&*under).await;
        let beside = opened(&format!("{scheme}://prefix/teams/on"), &variables).await;
        let nothing = beside.list("", &Default::default()).await.expect("a list");
        assert_eq!(nothing.entries, [], "another prefix, although it begins so");
        let whole = opened(&format!("{scheme}://prefix"), &variables).await;
        let blob = whole.get(&name("teams/one/read/empty")).await;
        assert!(blob.expect("get").is_some());
    }
}

#[tokio::test]
async fn foreign_names_are_read_unchanged() {
    azurite().create_container("foreign");
    let store = opened("az://foreign", &azure()).await;
    for foreign in ["a b+c%20d", "ä/ö#?", "x=y&z~", "(1)[2]{3}"] {
        let content = BlobContent::from("x");
        store.create(&name(foreign), content).await.expect(foreign);
    }
    let listed = store.list("", &Default::default()).await.expect("a list");
    let mut names: Vec<_> = listed.entries.iter().map(|e| e.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["(1)[2]{3}", "a b+c%20d", "x=y&z~", "ä/ö#?"]);
    for entry in &listed.entries {
        let deleted = store.delete(&entry.name, Some(&entry.etag)).await;
        assert!(deleted.expect("delete"), "{}", entry.name);
    }
}

#[tokio::test]
async fn a_missing_container_is_reported_at_any_request() {
    for (url, variables, what) in [
        ("az://nowhere", azure(), "there is no container `nowhere`"),
        ("s3://nowhere/p", s3(), "there is no bucket `nowhere`"),
    ] {
        let error = refused(url, &variables).await;
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.message().contains(what), "{error}");
        assert!(error.message().contains("create it first"), "{error}");
    }
}

#[tokio::test]
async fn a_refused_credential_is_no_outage() {
    azurite().create_container("denied");
    let wrong: Variables = azure()
        .into_iter()
        .map(|(key, text)| (key, text.replace(KEY, "d3Jvbmc=")))
        .collect();
    let error = refused("az://denied", &wrong).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.message().contains("refuses the credential"),
        "{error}"
    );
}

#[tokio::test]
async fn an_unreachable_service_is_unavailable() {
    let unreachable = "http://127.0.0.1:1";
    let azure = [
        ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT),
        ("AZURE_STORAGE_ACCOUNT_KEY", KEY),
        ("AZURE_STORAGE_ENDPOINT", unreachable),
    ];
    let s3 = [
        ("AWS_ENDPOINT", unreachable),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "c2VjcmV0"),
    ];
    for (url, variables) in [("az://c", &azure[..]), ("s3://bucket", &s3[..])] {
        let variables = variables.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        let error = refused(url, &variables.collect()).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("cannot be reached"), "{error}");
    }
}

#[tokio::test]
async fn the_clients_own_variables_are_read() {
    azurite().create_container("names");
    let endpoint = azurite().blob_endpoint();
    let variables = [
        ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT),
        ("AZURE_STORAGE_ACCOUNT_KEY", KEY),
        ("AZURE_STORAGE_ENDPOINT", &endpoint),
    ];
    let variables = variables.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    opened("az://names", &variables.collect()).await;
}

#[tokio::test]
async fn a_malformed_url_or_variable_is_reported() {
    let none = Variables::new();
    for (url, words) in [
        ("az:container", "has no container"),
        ("az://", "names no container that there can be"),
        ("az://container?sv=1&sig=c2VjcmV0", "takes none"),
        ("az://container/a?sv=1&sig=c2VjcmV0", "takes none"),
        ("az:container?sv=1&sig=c2VjcmV0", "takes none"),
        ("s3://a b", "names no container that there can be"),
        ("gs://bucket/a//b", "none empty"),
        ("ftp://x", "names no store that is supported"),
    ] {
        let error = refused(url, &none).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains(words), "{url}: {error}");
    }
    let error = refused("az://container", &none).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.message().contains("AZURE_STORAGE_CONNECTION_STRING"),
        "{error}"
    );
    let wrong = [(
        "AZURE_STORAGE_CONNECTION_STRING",
        "AccountName=acct;AccountKey=c2VjcmV0!",
    )];
    let wrong = wrong.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let error = refused("az://container", &wrong).await;
    assert!(
        error
            .message()
            .starts_with("AZURE_STORAGE_CONNECTION_STRING"),
        "{error}"
    );
}

#[tokio::test]
async fn containers_keep_their_contract() {
    azurite().create_container("objects");
    moto().create_bucket("objects");
    for (url, variables) in [("az://objects", azure()), ("s3://objects/under", s3())] {
        let container = container::connect(url, &variables).await.expect(url);
        container::contract::check(&*container).await;
    }
}

#[tokio::test]
async fn a_container_is_created_where_the_service_allows_it() {
    let account = container::Account::open("az://", &azure())
        .await
        .expect("an account");
    let made = account.container("made-by-us").expect("a name");
    for _ in 0..2 {
        made.ensure().await.expect("made, or found");
    }
    opened("az://made-by-us", &azure()).await;
    let account = container::Account::open("s3:", &s3())
        .await
        .expect("an account");
    let error = account.container("nowhere").expect("a name").ensure().await;
    let error = error.expect_err("an operator must create it");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
