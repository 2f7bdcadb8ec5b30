//! Tests of URLs and metadata; and a store that fails, for other tests.

pub(crate) mod faulty;

use super::*;

#[tokio::test]
async fn urls_name_stores() {
    assert_eq!(
        open("memory:").await.expect("memory").to_string(),
        "memory:"
    );
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}", directory.path().join("flags.db").display());
    assert_eq!(open(&url).await.expect("sqlite").to_string(), url);
}

#[tokio::test]
async fn opening_an_existing_store_makes_no_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("flags.db");
    let url = format!("sqlite:{}", path.display());
    let error = open_existing(&url).await.expect_err("no file");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("flags.db"), "{error}");
    assert!(!path.exists());
    open(&url).await.expect("made");
    open_existing(&url).await.expect("it is there");
}

#[tokio::test]
async fn sqlite_and_memory_stores_keep_the_contract_of_containers() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}", directory.path().join("blobs.db").display());
    for url in ["memory:", &url] {
        let none = Variables::new();
        // A container's file must be there.
        open(url).await.expect(url);
        container::contract::check(&*container::connect(url, &none).await.expect(url)).await;
        let account = container::Account::open(url, &none).await.expect(url);
        let folder = account.container("folder").expect("a name");
        container::contract::check(&*folder).await;
    }
}

#[tokio::test]
async fn an_invalid_url_is_refused_with_the_valid_ones() {
    for (url, words) in [
        ("ftp://host/x", "`memory:`, `sqlite:PATH`"),
        ("flags.db", "`memory:`, `sqlite:PATH`"),
        ("memory:x", "`memory:`, `sqlite:PATH`"),
        ("sqlite:", "needs the path of a file"),
        ("sqlite:x.db?queue=jobs", "takes no parameters"),
    ] {
        let error = open(url).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(words), "{error}");
    }
    let error = open("sqlite:/no/such/place/flags.db")
        .await
        .expect_err("no directory");
    assert!(
        error.message().contains("its directory does not exist"),
        "{error}"
    );
}

#[test]
fn blob_names_keep_the_rule() {
    let longest = "x".repeat(1024);
    for good in [
        "a",
        "flags/go",
        "a/b c/ä.txt",
        ".hidden/...",
        longest.as_str(),
    ] {
        assert!(BlobName::new(good).is_ok(), "{good}");
    }
    let too_long = "x".repeat(1025);
    for bad in [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        "a/../b",
        "./a",
        "..",
        "a\n",
        "a\\b",
        "a\0",
        too_long.as_str(),
    ] {
        let error = BlobName::new(bad).expect_err(bad);
        assert!(
            error.message().starts_with("blob: must be 1 to 1024"),
            "{error}"
        );
    }
}
