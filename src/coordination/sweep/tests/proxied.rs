//! Sweeping Azurite through a proxy that cuts, repeats and refuses requests.

use super::*;
use crate::{
    azurite::azurite,
    proxy::{Faults, Proxy},
    store::container::{Container, Content},
};

fn variables(text: String) -> BTreeMap<String, String> {
    [("AZURE_STORAGE_CONNECTION_STRING".to_owned(), text)].into()
}

async fn connected(name: &str) -> Arc<dyn Container> {
    let straight = variables(azurite().connection_string());
    let found = container::connect(&format!("az://{name}"), &straight).await;
    found.expect("a container")
}

async fn all(container: &dyn Container) -> Vec<String> {
    let page = PageOptions {
        size: 1_000,
        token: None,
    };
    let listed = container.list("", &page).await.expect("a list");
    listed
        .entries
        .iter()
        .map(|head| head.name.to_string())
        .collect()
}

/// The network cuts, repeats and refuses requests. Expired blobs are removed at last, moved blobs
/// are complete, and other blobs are untouched.
#[tokio::test]
async fn nothing_is_lost_on_an_unreliable_network() {
    for name in ["rough-source", "rough-state", "rough-grave"] {
        azurite().create_container(name);
    }
    let (source, grave) = (
        connected("rough-source").await,
        connected("rough-grave").await,
    );
    for number in 0..60 {
        let marks: &[(&str, &str)] = match number % 3 {
            0 => &[],
            1 => &[("timetolive", EXPIRED)],
            _ => &[
                ("timetolive", EXPIRED),
                ("deadblobcontainer", "rough-grave"),
            ],
        };
        let marks = marks.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        let name = BlobName::new(&format!("{number:02}")).expect("a name");
        let content = Content::whole(Bytes::from(format!("body {number}")));
        let written = source.write(&name, content, marks.collect(), None).await;
        written.expect("written");
    }
    let proxy = Proxy::start(azurite().blob_port(), 7);
    let through = variables(azurite().connection_string_through(proxy.port()));
    let text = r#"{"name": "rough", "state": "az://rough-state", "page_size": 8,
        "containers": [{"url": "az://rough-source"}], "dead": {"account": "az:"}}"#;
    let sweeper = async || {
        let job = SweepJob::parse(text).expect("a job");
        Sweeper::new(job, &through).await.expect("a sweeper")
    };
    let sweepers = [sweeper().await, sweeper().await];
    proxy.set(Faults {
        cut_before: 4,
        cut_within: 3,
        cut_after: 4,
        repeat: 4,
        busy: 3,
        ..Faults::default()
    });
    let kept: Vec<String> = (0..60)
        .step_by(3)
        .map(|number| format!("{number:02}"))
        .collect();
    let mut rounds = 0;
    while all(&*source).await != kept {
        rounds += 1;
        assert!(rounds < 30, "still there: {:?}", all(&*source).await);
        // A round may fail; the next one continues.
        let [one, other] = sweepers.each_ref().map(|sweeper| sweeper.sweep_once(true));
        let _ = tokio::join!(one, other);
    }
    let moved: Vec<String> = (2..60)
        .step_by(3)
        .map(|number| format!("{number:02}"))
        .collect();
    assert_eq!(all(&*grave).await, moved);
    for blob in moved {
        let name = BlobName::new(&blob).expect("a name");
        let head = grave
            .head(&name)
            .await
            .expect("an answer")
            .expect("it is there");
        let content = grave.read(&name, &head.etag).await.expect("content");
        let number: u32 = blob.parse().expect("a number");
        assert_eq!(content.size, format!("body {number}").len() as u64);
        assert!(!head.metadata.expect("known").contains_key(TIME_TO_LIVE));
    }
    let faults = proxy
        .seen()
        .iter()
        .filter(|seen| seen.fault.is_some())
        .count();
    assert!(faults > 20, "{faults} of {}", proxy.seen().len());
}
