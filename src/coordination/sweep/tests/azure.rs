//! Against a real Azurite and moto's S3.

use super::*;
use crate::{
    azurite::azurite,
    moto::moto,
    store::container::{Container, Content},
};

fn connection() -> BTreeMap<String, String> {
    let text = azurite().connection_string();
    [("AZURE_STORAGE_CONNECTION_STRING".to_owned(), text)].into()
}

fn s3() -> BTreeMap<String, String> {
    moto().environment().into_iter().collect()
}

async fn write(container: &dyn Container, blob: &str, marks: &[(&str, &str)]) {
    let mut content = Content::whole(Bytes::from_static(b"body"));
    let kind = ("content-type".to_owned(), "text/x-own".to_owned());
    content.headers.extend([kind]);
    let marks = marks.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    let name = BlobName::new(blob).expect("a name");
    container
        .write(&name, content, marks.collect(), None)
        .await
        .expect("written");
}

/// Sweeps `source` on a cloud whose dead blobs go to the same account.
async fn sweeps(
    scheme: &str,
    environment: &BTreeMap<String, String>,
) -> (Counts, Arc<dyn Container>) {
    let source = container::connect(&format!("{scheme}://source"), environment).await;
    let source = source.expect("a container");
    for (name, marks) in [
        ("kept", &[][..]),
        ("gone", &[("timetolive", EXPIRED)]),
        (
            "in/moved ä",
            &[
                ("timetolive", EXPIRED),
                ("deadblobcontainer", "grave"),
                ("color", "red"),
            ],
        ),
    ] {
        write(&*source, name, marks).await;
    }
    let text = format!(
        r#"{{"name": "job", "state": "{scheme}://state", "dead": {{"account": "{scheme}:"}},
            "containers": [{{"url": "{scheme}://source"}}]}}"#
    );
    let job = SweepJob::parse(&text).expect("a job");
    let sweeper = Sweeper::new(job, environment).await.expect("a sweeper");
    let round = sweeper.sweep_once(false).await.expect("a round");
    let grave = container::connect(&format!("{scheme}://grave"), environment).await;
    (round.done, grave.expect("a container"))
}

async fn is_moved(grave: &dyn Container) {
    let name = BlobName::new("in/moved ä").expect("a name");
    let head = grave
        .head(&name)
        .await
        .expect("an answer")
        .expect("it is there");
    let metadata = head.metadata.clone().expect("known");
    assert_eq!(
        (&*metadata["color"], metadata.contains_key(TIME_TO_LIVE)),
        ("red", false)
    );
    assert!(
        metadata[SWEPT_FROM].ends_with("/source/in/moved%20%C3%A4"),
        "{metadata:?}"
    );
    let content = grave.read(&name, &head.etag).await.expect("content");
    assert_eq!(content.headers["content-type"], "text/x-own");
}

#[tokio::test]
async fn azure_is_swept_and_the_dead_blob_container_created() {
    azurite().create_container("source");
    azurite().create_container("state");
    let (done, grave) = sweeps("az", &connection()).await;
    assert_eq!(
        (done.seen, done.deleted, done.moved, done.unmarked),
        (3, 1, 1, 1)
    );
    is_moved(&*grave).await;
}

#[tokio::test]
async fn s3_is_swept_where_its_buckets_are_there() {
    for bucket in ["source", "state", "grave"] {
        moto().create_bucket(bucket);
    }
    let (done, grave) = sweeps("s3", &s3()).await;
    assert_eq!(
        (done.seen, done.deleted, done.moved, done.unmarked),
        (3, 1, 1, 1)
    );
    is_moved(&*grave).await;
}

#[tokio::test]
async fn dead_blobs_are_moved_to_another_account() {
    azurite().create_container("living");
    moto().create_bucket("cemetery");
    let source = container::connect("az://living", &connection())
        .await
        .expect("a container");
    let marks = [
        ("timetolive", EXPIRED),
        ("deadblobcontainer", "cemetery/from-azure/"),
    ];
    write(&*source, "a", &marks).await;
    let dead: Vec<_> = s3()
        .iter()
        .map(|(k, v)| format!("\"{k}\": \"{v}\""))
        .collect();
    let text = format!(
        r#"{{"name": "job", "state": "memory:", "containers": [{{"url": "az://living"}}],
            "dead": {{"account": "s3:", "environment": {{{}}}}}}}"#,
        dead.join(", ")
    );
    let job = SweepJob::parse(&text).expect("a job");
    let sweeper = Sweeper::new(job, &connection()).await.expect("a sweeper");
    let round = sweeper.sweep_once(false).await.expect("a round");
    assert_eq!(round.done.moved, 1);
    let grave = container::connect("s3://cemetery", &s3())
        .await
        .expect("a container");
    let name = BlobName::new("from-azure/a").expect("a name");
    assert!(grave.head(&name).await.expect("an answer").is_some());
}

#[tokio::test]
async fn a_signed_address_is_swept_and_never_shown() {
    azurite().create_container("signed-source");
    let signature = crate::backend::azure::signature_of("b");
    let url = format!("{}/signed-source?{signature}", azurite().blob_endpoint());
    let source = container::connect("az://signed-source", &connection())
        .await
        .expect("a container");
    write(&*source, "a", &[("timetolive", EXPIRED)]).await;
    let text =
        format!(r#"{{"name": "job", "state": "memory:", "containers": [{{"url": "{url}"}}]}}"#);
    let job = SweepJob::parse(&text).expect("a job");
    let sweeper = Sweeper::new(job, &BTreeMap::new())
        .await
        .expect("a sweeper");
    let mut plan = Vec::new();
    sweeper
        .dry_run(|blob| plan.push(format!("{blob:?}")))
        .await
        .expect("a plan");
    assert_eq!(plan.len(), 1);
    let round = sweeper.sweep_once(false).await.expect("a round");
    assert_eq!(round.done.deleted, 1);
    assert!(!format!("{plan:?} {round:?}").contains("sig="));
}
